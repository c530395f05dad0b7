"""Checkpoints: model, optimizers, loader position, plan and registry, written atomically.

    run/checkpoints/step-00000100/
        *.distcp, metadata.json    tables, dense parameters, optimizer states (DCP)
        rank-0.json, ...           each rank's loader position, random state, callbacks' states,
                                   its counts for the next lines of metrics, and the values of
                                   its model that are not tensors
        job.json                   step, world size, plan, registry, digests of plugins' code,
                                   rates and numbers of optimizers, the version that wrote it
        replicas.arrow, latest-batches.arrow
                                   what the moves of replicas go on from, if replicas move
        digest.json                the size and hash of each of these files as it was written

A folder is written under another name and renamed when it is complete, so a checkpoint is never
half-written. A file that was damaged later is named before anything is loaded.
"""

from __future__ import annotations

import errno
import json
import shutil
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeGuard

import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torchrec.distributed.types import ShardedTensor

from recd_plugins import __version__
from recd_plugins.errors import DataError, RecdError, RegistryError, listed
from recd_plugins.notices import NoticeWarning
from recd_plugins.planning.together import on_every_rank
from recd_plugins.registry.plugin_code import changed_code
from recd_plugins.storage.json_mappings import as_items
from recd_plugins.storage.whole_file import FULL
from recd_plugins.trainer.assemble import Job
from recd_plugins.trainer.checkpoints.callback_states import states_by_options
from recd_plugins.trainer.checkpoints.extra_states import beside_tensors
from recd_plugins.trainer.checkpoints.files import (
    FileDigest,
    UndigestedError,
    check_whole,
    damaged_file,
    digest_of,
    read_job,
    read_rank,
    write_digest,
    write_json,
)
from recd_plugins.trainer.checkpoints.job_state import fill_job
from recd_plugins.trainer.checkpoints.job_tensors import bytes_to_write, not_finite, tensors_of
from recd_plugins.trainer.checkpoints.optimizer_numbers import (
    RateOf,
    lost_states,
    numbers_of,
    table_rates,
)
from recd_plugins.trainer.checkpoints.random_state import random_state, restored_random_state
from recd_plugins.trainer.checkpoints.rank_buffers import (
    as_named,
    buffer_digests,
    differing,
)
from recd_plugins.trainer.checkpoints.registry_before import (
    check_ranks,
    check_registry,
    have_same_end,
    have_same_planner,
    new_rates,
    rates_of,
)
from recd_plugins.trainer.checkpoints.step_folders import checkpoints_in, remove_parts
from recd_plugins.trainer.checkpoints.storage import JsonWriter
from recd_plugins.trainer.checkpoints.version_before import VERSION

if TYPE_CHECKING:
    from recd_plugins.trainer.checkpoints.other_ranks import OtherRanks

__all__ = [
    "Checkpoints",
    "DiskFullError",
    "NotFiniteError",
    "ReachedState",
]

OnDamaged = Literal["stop", "go_back"]


@dataclass(frozen=True, kw_only=True)
class ReachedState:
    """The state from which a run goes on, apart from model and optimizers."""

    step: int
    loader: dict[str, Any]
    """The state of this rank's loader."""
    random: Mapping[str, Tensor] = field(default_factory=dict)
    """The states of this rank's random numbers, by device; empty for a new rank."""
    callbacks: dict[str, Any] = field(default_factory=dict)
    """The states of this rank's callbacks, by name."""
    so_far: dict[str, Any] = field(default_factory=dict)
    """The state of what this rank has counted and reported."""
    same_end: bool = False
    """Whether the run ends when it would have ended before: the registry's steps and callbacks are
    the same."""
    replicas: Path | None = None
    """The checkpoint, if the registry still has the planner that placed its replicas; else None."""
    new_rates: tuple[str, ...] = ()
    """The rates that change from here on, in words."""
    numbers: Mapping[str, Any] = field(default_factory=dict)
    """What the optimizers kept apart from tensors (`numbers_of`)."""
    rates: Mapping[str, RateOf] = field(default_factory=dict)
    """Where the rates of `dense` and of `tables` begin."""
    begun_anew: tuple[str, ...] = ()
    """The parameters that another optimizer steps from here on, because of another plan: their
    optimizer states begin anew."""
    no_taker: tuple[str, ...] = ()
    """The checkpoint's tensors that nothing in this job takes."""
    new_code: tuple[str, ...] = ()
    """The plugins whose code has changed, in words."""


class DiskFullError(RecdError):
    """There is no room for a checkpoint; the one before it is unchanged."""


class NotFiniteError(RecdError):
    """Weights are not finite, so no run could go on from them."""


class Checkpoints:
    """The checkpoints of a run; every rank must call each method."""

    def __init__(
        self,
        folder: Path,
        *,
        keep: int,
        registry: Mapping[str, Any],
        samples_of_step: int | None = None,
        free: Sequence[str] = (),
        code: Mapping[str, str] | None = None,
    ) -> None:
        """`samples_of_step`: the samples of all ranks in a step when the job began, if the number
        of its ranks may change. `free`: the dataset's options that a resumed job may change.
        `code`: the digests of plugins' code, by plugin."""
        self._folder = folder
        self._samples_of_step = samples_of_step
        self._keep = keep
        self._free = free
        self._code = dict(code or {})
        self._registry = json.loads(json.dumps(registry, default=str))
        self._saved = False
        """Whether this process has begun to write a checkpoint."""

    def latest(self) -> Path | None:
        """The newest checkpoint, or None; the weights of every checkpoint are finite."""
        return next(reversed(checkpoints_in(self._folder)), None)

    def whole(self, on_damaged: OnDamaged = "stop") -> tuple[Path, list[str]]:
        """The newest checkpoint that is not damaged, and what is damaged in each later one.

        With `go_back` the damaged ones are renamed, so that nothing resumes from them.
        """
        lost: list[str] = []
        found = checkpoints_in(self._folder)[::-1]
        for number, path in enumerate(found, start=1):
            try:
                on_every_rank(partial(check_whole, path, dist.get_rank(), dist.get_world_size()))
            except UndigestedError:
                raise
            except DataError as error:
                if on_damaged == "stop" or number == len(found):
                    raise
                lost.append(str(error).partition(" The checkpoint")[0])
                continue
            if lost and dist.get_rank() == 0:
                for after in found[: number - 1]:
                    shutil.rmtree(aside := after.with_suffix(".damaged"), ignore_errors=True)
                    after.rename(aside)
            dist.barrier()
            return path, lost
        raise RegistryError(
            f"--resume: {self._folder} holds no checkpoint. Begin with --resume-or-begin."
        )

    @staticmethod
    def check(job: Job) -> None:
        """`PluginError`, before training, if the model has a value that no checkpoint can keep."""
        beside_tensors(job.model)

    def save(
        self,
        job: Job,
        step: int,
        loader: Mapping[str, Any],
        callbacks: Mapping[str, Any] | None = None,
        so_far: Mapping[str, Any] | None = None,
        write: Callable[[Path], None] | None = None,
    ) -> Path:
        """Write the checkpoint of `step` and keep only the latest `keep`; returns its folder. On
        rank 0, `write` adds its own files to the folder.

        `DiskFullError` on all ranks if there is no room for it; what was written is removed.
        `NotFiniteError` if weights are not finite; nothing is written.
        """
        target = self._folder / f"step-{step:08}"
        part = target.with_suffix(".part")
        tensors, beside = tensors_of(job), beside_tensors(job.model)
        wrong = {
            name for names in on_every_rank(lambda: not_finite(job, tensors)) for name in names
        }
        if wrong:
            raise NotFiniteError(
                f"after step {step} weights are not finite: {listed(sorted(wrong))}"
            )
        digests = on_every_rank(lambda: buffer_digests(job.model, tensors))
        tensors = as_named(tensors, differing(digests), dist.get_rank())
        if not self._saved and dist.get_rank() == 0 and (lost := lost_states(job)):
            warnings.warn(lost, NoticeWarning, stacklevel=2)
        self._saved = True
        rates = {
            name: rate
            for one in on_every_rank(lambda: table_rates(job))
            for name, rate in one.items()
        }
        mine = {
            "loader": as_items(loader),
            "random": random_state(job.device),
            "callbacks": as_items(callbacks or {}),
            "so_far": so_far or {},
            **({"model": as_items(beside)} if beside else {}),
        }
        try:
            on_every_rank(lambda: _make_anew(part))
            dcp.save(tensors, storage_writer=JsonWriter(part))
            files = on_every_rank(lambda: _rank_files(part, mine))
            if write is not None:
                on_every_rank(lambda: write(part) if dist.get_rank() == 0 else None)
            on_every_rank(lambda: self._complete(part, step, job, rates, files))
            on_every_rank(lambda: self._put(part, target))
        except (dcp.api.CheckpointException, OSError) as error:
            full = next(filter(_is_full, _causes(error)), None)
            if full is None:
                raise
            raise self._full(part, step, full, tensors) from error
        return target

    def _complete(
        self,
        part: Path,
        step: int,
        job: Job,
        rates: Mapping[str, float],
        files: list[dict[str, FileDigest]],
    ) -> None:
        """On rank 0, write the files that belong to no rank, and the digest of all files."""
        if dist.get_rank():
            return
        about: dict[str, Any] = {
            "step": step,
            VERSION: __version__,
            "world_size": dist.get_world_size(),
            "registry": self._registry,
            "code": self._code,
            "plan": str(job.plan).splitlines(),
            "optimizers": numbers_of(job, rates),
        }
        if self._samples_of_step is not None:
            about["samples_of_step"] = self._samples_of_step
        write_json(part / "job.json", about)
        every = {name: one for rank in files for name, one in rank.items()}
        others = {file.name for file in part.iterdir()} - every.keys()
        write_digest(part, every | {name: digest_of(part / name) for name in others})

    def _put(self, part: Path, target: Path) -> None:
        """On rank 0, give the folder its final name, and tidy."""
        if dist.get_rank() == 0:
            shutil.rmtree(target, ignore_errors=True)
            part.rename(target)
        self.tidy()

    def tidy(self) -> None:
        """On rank 0, remove the checkpoints that are no longer kept, and parts that a kill left."""
        if dist.get_rank():
            return
        for old in checkpoints_in(self._folder)[: -self._keep]:
            old.rename(old.with_suffix(".part"))  # a kill leaves no half-removed checkpoint
        remove_parts(self._folder)

    def _full(
        self, part: Path, step: int, why: OSError, tensors: Mapping[str, Tensor | ShardedTensor]
    ) -> DiskFullError:
        needed = sum(on_every_rank(lambda: bytes_to_write(tensors)))
        if dist.get_rank() == 0:
            shutil.rmtree(part, ignore_errors=True)
        dist.barrier()
        before = self.latest()
        free = shutil.disk_usage(self._folder if self._folder.exists() else Path()).free
        room, cure = f"and {free / 2**20:,.1f} MiB are free on this disk", "make room"
        if why.errno == errno.EFBIG:
            room = "in larger files than the system lets this process write (`ulimit -f`)"
            cure = "raise that limit"
        goes_on = (
            f"The checkpoint before, {before}, is whole: {cure}, and `recd train --resume` goes on "
            "from it"
            if before
            else f"There is none before it: {cure}, and train anew"
        )
        return DiskFullError(
            f"{part.with_suffix('')}: there is no room for the checkpoint of step {step} "
            f"({why.strerror}): its tensors take {needed / 2**20:,.1f} MiB, {room}. {goes_on}. "
            "With train.on_full=go_on a run trains on without such a checkpoint."
        )

    def check_same_job(self, path: Path, other: OtherRanks | None = None) -> Mapping[str, Any]:
        """`RegistryError` if another registry, or another number of ranks, made a checkpoint.

        Returns its job.json. `other`: the checkpoint as these ranks see it, if other ranks made it.
        """
        saved = other.job if other else read_job(path)
        check_ranks(path, saved["world_size"], dist.get_world_size())
        check_registry(path, saved["registry"], self._registry, self._free)
        return saved

    def begin_from(self, job: Job, path: Path) -> ReachedState:
        """Fill model and optimizers of a new run from the checkpoint of another one; returns its
        step and the parameters whose optimizer states begin anew."""
        rank, ranks = dist.get_rank(), dist.get_world_size()
        on_every_rank(lambda: check_whole(path, rank, ranks))
        saved = read_job(path)
        check_registry(path, saved["registry"], self._registry, self._free, begins=True)
        mine = read_rank(path, rank if rank < saved["world_size"] else 0)
        anew, _ = fill_job(job, path, saved["optimizers"], mine, begins=True)
        return ReachedState(step=saved["step"], loader={}, begun_anew=anew)

    def load(self, job: Job, path: Path, other: OtherRanks | None = None) -> ReachedState:
        """Fill model and optimizers; returns the state from which the run goes on.

        `other`: the checkpoint as these ranks see it, if other ranks made it.
        """
        saved = self.check_same_job(path, other)
        before, now = saved["registry"], self._registry
        mine = other.rank(dist.get_rank()) if other else read_rank(path, dist.get_rank())
        numbers = saved["optimizers"]
        begun_anew, no_taker = fill_job(job, path, numbers, mine)
        file = path / f"rank-{dist.get_rank()}.json"
        random = restored_random_state(mine, job.device, file)
        states = {name: _mapping_of(mine, name, file) for name in ("callbacks", "so_far")}
        states["callbacks"] = states_by_options(states["callbacks"], before, now)
        return ReachedState(
            step=saved["step"],
            loader=mine["loader"],
            random=random,
            same_end=have_same_end(before, now),
            replicas=path if have_same_planner(before, now) else None,
            new_rates=tuple(new_rates(before, now)),
            numbers=numbers,
            rates=rates_of(before, now),
            begun_anew=begun_anew,
            no_taker=no_taker,
            new_code=tuple(changed_code(saved["code"], self._code)),
            **states,
        )


def _mapping_of(mine: Mapping[str, Any], name: str, file: Path) -> dict[str, Any]:
    """What `file` has of this rank under a name; empty if it has nothing there."""
    state = mine.get(name, {})
    if not isinstance(state, dict):
        raise damaged_file(file, f"its {name!r} is no mapping")
    return state


def _make_anew(part: Path) -> None:
    if dist.get_rank() == 0:
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)


def _rank_files(part: Path, mine: Mapping[str, Any]) -> dict[str, FileDigest]:
    """Write this rank's own file; returns the digests of all files that this rank wrote, by
    name."""
    own = part / f"rank-{dist.get_rank()}.json"
    write_json(own, mine)
    return {file.name: digest_of(file) for file in (own, *part.glob(f"__{dist.get_rank()}_*"))}


def _causes(error: dcp.api.CheckpointException | OSError) -> list[BaseException]:
    if isinstance(error, OSError):
        return [error]
    return [failure for failure, _ in error.failures.values()]


def _is_full(error: BaseException) -> TypeGuard[OSError]:
    return isinstance(error, OSError) and error.errno in FULL
