"""Checkpoints: model, optimizers, loader position, plan and registry, written atomically.

    run/checkpoints/step-00000100/
        *.distcp, metadata.json    tables, dense parameters, optimizer states (DCP)
        rank-0.json, ...           each rank's loader position, random state, callbacks' states,
                                   what it has counted for the lines that come next, and what its
                                   model has beside tensors
        job.json                   step, world size, plan, registry, digests of plugins' code,
                                   rates and numbers of optimizers, the version that wrote it
        replicas.arrow, latest-batches.arrow
                                   what the moves of replicas go on from, where these move
        digest.json                what each of these files was when it was written

A folder is written under another name and renamed when whole, so no checkpoint is ever torn; what
was damaged since is named before any of it is loaded.
"""

from __future__ import annotations

import errno
import json
import shutil
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeGuard

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torchrec.distributed.types import ShardedTensor

from recd_plugins import __version__
from recd_plugins.errors import DataError, RecdError, RegistryError, listed
from recd_plugins.notices import NoticeWarning
from recd_plugins.planning.together import on_every_rank
from recd_plugins.registry.plugin_code import changed_code
from recd_plugins.trainer.assemble import Job
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
from recd_plugins.trainer.checkpoints.number_keys import as_items
from recd_plugins.trainer.checkpoints.optimizer_numbers import (
    RateOf,
    lost_states,
    numbers_of,
    restore_states,
    table_rates,
)
from recd_plugins.trainer.checkpoints.rank_buffers import (
    as_named,
    buffer_digests,
    differing,
    is_of_a_rank,
    own_of,
)
from recd_plugins.trainer.checkpoints.registry_before import (
    check_ranks,
    check_registry,
    have_same_end,
    have_same_planner,
    new_rates,
    rates_of,
)
from recd_plugins.trainer.checkpoints.storage import JsonReader, JsonWriter
from recd_plugins.trainer.checkpoints.version_before import VERSION
from recd_plugins.trainer.run_folder import checkpoints_in, remove_parts
from recd_plugins.trainer.training import states_by_options

if TYPE_CHECKING:
    from recd_plugins.trainer.checkpoints.other_ranks import OtherRanks

__all__ = [
    "Checkpoints",
    "DiskFullError",
    "NotFiniteError",
    "Reached",
    "set_random_state",
]

OnDamaged = Literal["stop", "go_back"]

PIECE = 1 << 22
"""Numbers that are looked at at a time."""

FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""What a system says where there is no room for a file, or none left that this user may take."""


@dataclass(frozen=True, kw_only=True)
class Reached:
    """The place where a checkpoint goes on, beside model and optimizers."""

    step: int
    loader: dict[str, Any]
    """This rank's loader's state."""
    random: Mapping[str, Tensor] = field(default_factory=dict)
    """The states of this rank's random numbers, by device; none of a rank that is new."""
    callbacks: dict[str, Any] = field(default_factory=dict)
    """The states of this rank's callbacks, by name."""
    so_far: dict[str, Any] = field(default_factory=dict)
    """The state of what this rank has counted and reported."""
    same_end: bool = False
    """Whether the registry has the run end when it would have ended then: its steps and callbacks
    are the same."""
    replicas: Path | None = None
    """The checkpoint, if the registry still has the planner whose replicas it may have."""
    new_rates: tuple[str, ...] = ()
    """The rates that hold from here on, where they are others than those before."""
    numbers: Mapping[str, Any] = field(default_factory=dict)
    """What the optimizers kept beside tensors (`numbers_of`)."""
    rates: Mapping[str, RateOf] = field(default_factory=dict)
    """Where the rates of `dense` and of `tables` begin."""
    begun_anew: tuple[str, ...] = ()
    """The parameters that another optimizer steps from here on, by another plan: its states of them
    begin anew."""
    no_taker: tuple[str, ...] = ()
    """The checkpoint's tensors that are in nothing of this job."""
    new_code: tuple[str, ...] = ()
    """The plugins whose code is another one from here on, in words."""


class DiskFullError(RecdError):
    """There is no room for a checkpoint; the one before is as it was."""


class NotFiniteError(RecdError):
    """Weights are not finite: no run could go on from them."""


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
        """`samples_of_step`: those of all ranks, as the job was begun, if its ranks may become
        others. `free`: the dataset's options that a resumed job may change. `code`: the digests of
        plugins' code, by plugin."""
        self._folder = folder
        self._samples_of_step = samples_of_step
        self._keep = keep
        self._free = free
        self._code = dict(code or {})
        self._registry = json.loads(json.dumps(registry, default=str))
        self._saved = False
        """Whether this process has written any."""

    def latest(self) -> Path:
        """The newest checkpoint of a run that has one."""
        return checkpoints_in(self._folder)[-1]

    def there(self) -> Path | None:
        """The newest checkpoint, if there is one; the weights of each are finite."""
        return next(reversed(checkpoints_in(self._folder)), None)

    def whole(self, on_damaged: OnDamaged = "stop") -> tuple[Path, list[str]]:
        """The newest checkpoint that is what was written; what is damaged of those after it.

        With `go_back` the damaged ones are renamed, so that they are in nobody's way.
        """
        lost: list[str] = []
        found = checkpoints_in(self._folder)[::-1]
        for number, path in enumerate(found, start=1):
            try:
                on_every_rank(partial(check_whole, path, *_place()))
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
        raise RegistryError(f"--resume: {self._folder} holds no checkpoint.")

    @staticmethod
    def check(job: Job) -> None:
        """`PluginError` where a model has what no checkpoint keeps, before anything is trained."""
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
        """Write step `step`; afterwards the latest `keep` are left. On rank 0, `write` adds files
        of its own to the folder.

        `DiskFullError` on all ranks where there is no room for it; what was written is removed.
        `NotFiniteError` where weights are not finite; nothing is written.
        """
        target = self._folder / f"step-{step:08}"
        part = target.with_suffix(".part")
        tensors, beside = _tensors(job), beside_tensors(job.model)
        wrong = {
            name for names in on_every_rank(lambda: _not_finite(job, tensors)) for name in names
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
            "random": _random_state(job),
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
        """Write the files that are no rank's, and the digest of all, on rank 0."""
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
        """Give it its name, on rank 0."""
        if dist.get_rank() == 0:
            shutil.rmtree(target, ignore_errors=True)
            part.rename(target)
        self.tidy()

    def tidy(self) -> None:
        """Remove what is no longer kept, and parts that a kill left, on rank 0."""
        if dist.get_rank():
            return
        for old in checkpoints_in(self._folder)[: -self._keep]:
            old.rename(old.with_suffix(".part"))  # of which a kill leaves nothing by its name
        remove_parts(self._folder)

    def _full(
        self, part: Path, step: int, why: OSError, tensors: Mapping[str, Tensor | ShardedTensor]
    ) -> DiskFullError:
        needed = sum(on_every_rank(lambda: _bytes(tensors)))
        if dist.get_rank() == 0:
            shutil.rmtree(part, ignore_errors=True)
        dist.barrier()
        before = self.there()
        free = shutil.disk_usage(self._folder if self._folder.exists() else Path()).free
        goes_on = (
            f"The checkpoint before, {before}, is whole: make room, and `recd train --resume` goes "
            "on from it"
            if before
            else "There is none before it: make room, and train anew"
        )
        return DiskFullError(
            f"{part.with_suffix('')}: there is no room for the checkpoint of step {step} "
            f"({why.strerror}): its tensors take {needed / 2**20:,.1f} MiB, and "
            f"{free / 2**20:,.1f} MiB are free on this disk. {goes_on}. With train.on_full=go_on a "
            "run trains on without such a checkpoint."
        )

    def load(self, job: Job, path: Path, other: OtherRanks | None = None) -> Reached:
        """Fill model and optimizers; where the run goes on.

        `other`: what the checkpoint is for these ranks, where they are not those that made it.
        """
        saved = other.job if other else read_job(path)
        before, now = saved["registry"], self._registry
        check_ranks(path, saved["world_size"], dist.get_world_size())
        check_registry(path, before, now, self._free)
        mine = other.rank(dist.get_rank()) if other else read_rank(path, dist.get_rank())
        numbers = saved.get("optimizers", {})
        reader = JsonReader(path)
        kept = reader.read_metadata().state_dict_metadata
        _materialise(job)
        anew = _begin_anew(job, kept, numbers)
        tensors = {
            name: one
            for name, one in _tensors(job).items()
            if name.rpartition("/")[0].removeprefix("optimizer.") not in anew
        }
        asked = as_named(tensors, own_of(kept, dist.get_rank()), dist.get_rank())
        try:
            dcp.load(asked, storage_reader=reader)
        except dcp.api.CheckpointException as error:
            first = next(iter(error.failures.values()))[0]
            if isinstance(first, DataError):
                raise first from error
            raise DataError(
                f"{path}: does not fit this model, or is damaged ({type(first).__name__}: "
                f"{first}). Resume with the registry that made it (job.json holds it), or remove "
                "the folder, and --resume takes the one before."
            ) from error
        # A rank has the optimizer states of its own tables alone.
        taken = {name for names in on_every_rank(lambda: [*tensors]) for name in names}
        begun_anew = {name for names in on_every_rank(lambda: anew) for name in names}
        _restore(job, tensors, mine.get("model", {}))
        restore_states(job, numbers)
        random: dict[str, Tensor] = {}
        if "random" in mine:  # not of a rank that `reshard` added
            try:
                random = _random_state_of(mine["random"])
                set_random_state(random, job.device)
            except (AttributeError, KeyError, RuntimeError, TypeError, ValueError) as error:
                file = path / f"rank-{dist.get_rank()}.json"
                raise damaged_file(file, f"its random state is none: {error}") from error
        states = {name: mine.get(name, {}) for name in ("callbacks", "so_far")}
        for name, state in states.items():
            if not isinstance(state, dict):
                file = path / f"rank-{dist.get_rank()}.json"
                raise damaged_file(file, f"its {name!r} is no mapping")
        states["callbacks"] = states_by_options(states["callbacks"], before, now)
        return Reached(
            step=saved["step"],
            loader=mine["loader"],
            random=random,
            same_end=have_same_end(before, now),
            replicas=path if have_same_planner(before, now) else None,
            new_rates=tuple(new_rates(before, now)),
            numbers=numbers,
            rates=rates_of(before, now),
            begun_anew=tuple(sorted(begun_anew)),
            no_taker=tuple(sorted(name for name in kept.keys() - taken if not is_of_a_rank(name))),
            new_code=tuple(changed_code(saved.get("code", {}), self._code)),
            **states,
        )


def _tensors(job: Job) -> dict[str, Tensor | ShardedTensor]:
    """Everything that a checkpoint holds as tensors, by a flat name."""
    tensors: dict[str, Any] = {
        f"model.{name}": value
        for name, value in job.model.state_dict().items()
        if isinstance(value, Tensor | ShardedTensor)
    }
    for name, states in job.optimizer.state_dict()["state"].items():
        for key, value in states.items():
            if isinstance(value, Tensor | ShardedTensor):
                tensors[f"optimizer.{name}/{key}"] = value
    return tensors


def _not_finite(job: Job, tensors: Mapping[str, Tensor | ShardedTensor]) -> list[str]:
    """The parameters, as far as this rank has them, that hold what is not finite."""
    found = []
    for name, parameter in job.model.named_parameters():
        value = tensors.get(f"model.{name}")
        if value is None or not parameter.requires_grad:
            continue
        parts = (
            [shard.tensor for shard in value.local_shards()]
            if isinstance(value, ShardedTensor)
            else [value]
        )
        if not all(_is_finite(part) for part in parts):
            found.append(name)
    return found


def _is_finite(tensor: Tensor) -> bool:
    """Piece by piece: a table may be larger than memory."""
    if not tensor.numel():
        return True
    rows = tensor.detach().reshape(1) if tensor.dim() == 0 else tensor.detach()
    each = max(1, len(rows) * PIECE // rows.numel())
    return bool(torch.stack([piece.isfinite().all() for piece in rows.split(each)]).all())


def _materialise(job: Job) -> None:
    """Give optimizers that make their state at the first step (Adam) that state now."""
    for _, optimizer in job.optimizer.optimizers:
        if not optimizer.state_dict()["state"] and hasattr(optimizer, "init_state"):
            optimizer.init_state()


def _begin_anew(job: Job, kept: Collection[str], numbers: Mapping[str, Any]) -> list[str]:
    """The parameters of this rank that another optimizer stepped before, as the tables that a plan
    has data-parallel, and the one before had not, or the other way round: their states begin anew.

    Those of dense parameters are taken away here: their first step makes them. So are those of
    parameters that had no gradient before the checkpoint, which has none of them.
    """
    had: dict[str, set[str]] = {}
    for one in kept:
        name, _, key = one.rpartition("/")
        had.setdefault(name, set()).add(key)
    tables = job.model.fused_optimizer.params
    found = []
    for name, states in job.optimizer.state_dict()["state"].items():
        before = had.get(f"optimizer.{name}", set())
        if not before.isdisjoint(states) or name in numbers.get("states", {}):
            continue
        if name not in tables:
            job.dense.state.pop(job.optimizer.params[name])
        # SGD of tables has no states, and the checkpoint has its rates.
        was_table = name in numbers.get("tables", {})
        if before or (states if name in tables else was_table):
            found.append(name)
    return found


def _restore(
    job: Job, tensors: Mapping[str, Tensor | ShardedTensor], beside: Mapping[str, Any]
) -> None:
    """`dcp.load` filled the tensors in place; hand them to those that hold copies, and the model
    what it has `beside` them."""
    of_model = {
        name.removeprefix("model."): v for name, v in tensors.items() if name[:6] == "model."
    }
    job.model.load_state_dict({**of_model, **beside})
    state = job.optimizer.state_dict()
    for name, states in state["state"].items():
        for key in states:
            filled = tensors.get(f"optimizer.{name}/{key}")
            if filled is not None:
                states[key] = filled
    job.optimizer.load_state_dict(state)


def _random_state(job: Job) -> dict[str, str]:
    state = {"cpu": torch.get_rng_state()}
    if job.device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(job.device)
    return {name: bytes(value.tolist()).hex() for name, value in state.items()}


def _random_state_of(state: Mapping[str, str]) -> dict[str, Tensor]:
    return {
        name: torch.tensor(list(bytes.fromhex(text)), dtype=torch.uint8)
        for name, text in state.items()
    }


def set_random_state(state: Mapping[str, Tensor], device: torch.device) -> None:
    """Have the random numbers that come next be those that would have come; nothing changes
    without a `state`."""
    if not state:
        return
    torch.set_rng_state(state["cpu"])
    if device.type == "cuda" and "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"], device)


def _place() -> tuple[int, int]:
    return dist.get_rank(), dist.get_world_size()


def _make_anew(part: Path) -> None:
    if dist.get_rank() == 0:
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)


def _rank_files(part: Path, mine: Mapping[str, Any]) -> dict[str, FileDigest]:
    """Write what is this rank's alone; the digests of all that this rank wrote, by name."""
    own = part / f"rank-{dist.get_rank()}.json"
    write_json(own, mine)
    return {file.name: digest_of(file) for file in (own, *part.glob(f"__{dist.get_rank()}_*"))}


def _causes(error: dcp.api.CheckpointException | OSError) -> list[BaseException]:
    if isinstance(error, OSError):
        return [error]
    return [failure for failure, _ in error.failures.values()]


def _is_full(error: BaseException) -> TypeGuard[OSError]:
    return isinstance(error, OSError) and error.errno in FULL


def _bytes(tensors: Mapping[str, Tensor | ShardedTensor]) -> int:
    """The bytes that this rank writes of them, about: rank 0 writes those that all ranks have."""
    first = dist.get_rank() == 0
    return sum(
        sum(shard.tensor.nbytes for shard in value.local_shards())
        if isinstance(value, ShardedTensor)
        else value.nbytes * first
        for value in tensors.values()
    )
