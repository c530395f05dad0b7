"""Checkpoints: model, optimizers, loader position, plan and registry, written atomically.

    run/checkpoints/step-00000100/
        *.distcp, metadata.json    tables, dense parameters, optimizer states (DCP)
        rank-0.json, ...           each rank's loader position, random state, callbacks' states
        job.json                   step, world size, plan, registry, optimizer settings

A folder is written under another name and renamed when whole, so `latest` is never torn.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torchrec.distributed.types import ShardedTensor

from recd_plugins.errors import DataError, RegistryError
from recd_plugins.trainer.assemble import Job
from recd_plugins.trainer.checkpoints.storage import JsonReader, JsonWriter

__all__ = ["Checkpoints", "read_job", "read_rank", "write_json"]

SAME = ("dataset", "etl", "preprocess", "dedup", "reader", "model", "pooling", "optimizer")
"""Registry keys that a resumed job may not change."""


class Checkpoints:
    """The checkpoints of a run; every rank must call each method."""

    def __init__(self, folder: Path, *, keep: int, registry: Mapping[str, Any]) -> None:
        self._folder = folder
        self._keep = keep
        self._registry = json.loads(json.dumps(registry, default=str))

    def latest(self) -> Path:
        """The newest whole checkpoint of a run that has one."""
        return max(self._folder.glob("step-????????"))

    def save(
        self,
        job: Job,
        step: int,
        loader: Mapping[str, Any],
        callbacks: Mapping[str, Any] | None = None,
    ) -> Path:
        """Write step `step`; afterwards the latest `keep` are left."""
        target = self._folder / f"step-{step:08}"
        part = target.with_suffix(".part")
        rank = dist.get_rank()
        if rank == 0:
            shutil.rmtree(part, ignore_errors=True)
            part.mkdir(parents=True)
        dist.barrier()
        dcp.save(_tensors(job), storage_writer=JsonWriter(part))
        mine = {"loader": loader, "random": _random_state(job), "callbacks": callbacks or {}}
        write_json(part / f"rank-{rank}.json", mine)
        if rank == 0:
            write_json(
                part / "job.json",
                {
                    "step": step,
                    "world_size": dist.get_world_size(),
                    "registry": self._registry,
                    "plan": str(job.plan).splitlines(),
                },
            )
        dist.barrier()
        if rank == 0:
            shutil.rmtree(target, ignore_errors=True)
            part.rename(target)
            for old in sorted(self._folder.glob("step-????????"))[: -self._keep]:
                shutil.rmtree(old)
        dist.barrier()
        return target

    def load(self, job: Job, path: Path) -> tuple[int, dict[str, Any], dict[str, Any]]:
        """Fill model and optimizers; the step reached, this rank's loader state and callbacks'."""
        saved = read_job(path)
        self._check(path, saved)
        mine = read_rank(path, dist.get_rank())
        _materialise(job)
        tensors = _tensors(job)
        try:
            dcp.load(tensors, storage_reader=JsonReader(path))
        except dcp.api.CheckpointException as error:
            first = next(iter(error.failures.values()))[0]
            if isinstance(first, DataError):
                raise first from error
            raise DataError(
                f"{path}: does not fit this model, or is damaged ({type(first).__name__}: "
                f"{first}). Resume with the registry that made it (job.json holds it), or remove "
                "the folder, and --resume takes the one before."
            ) from error
        _restore(job, tensors)
        if "random" in mine:  # not of a rank that `reshard` added
            try:
                _set_random_state(job, mine["random"])
            except (AttributeError, KeyError, RuntimeError, TypeError, ValueError) as error:
                file = path / f"rank-{dist.get_rank()}.json"
                raise _damaged(file, f"its random state is none: {error}") from error
        step: int = saved["step"]
        loader: dict[str, Any] = mine["loader"]
        callbacks = mine.get("callbacks", {})
        if not isinstance(callbacks, dict):
            file = path / f"rank-{dist.get_rank()}.json"
            raise _damaged(file, "its 'callbacks' is no mapping")
        return step, loader, callbacks

    def _check(self, path: Path, saved: Mapping[str, Any]) -> None:
        if saved["world_size"] != dist.get_world_size():
            raise RegistryError(
                f"{path}: was made by {saved['world_size']} ranks, this job has "
                f"{dist.get_world_size()}: resume with --ranks {saved['world_size']}, or let "
                "`recd reshard` write it for another number."
            )
        before, now = saved["registry"], self._registry
        for key in SAME:
            if before.get(key) != now.get(key):
                raise RegistryError(
                    f"{path}: was made with `{key}: {json.dumps(before.get(key))}`, but the "
                    f"registry now says {json.dumps(now.get(key))}. Change it back to resume, or "
                    "start anew in another folder (train.run=...)."
                )
        for key in ("batch_size", "seed", "optimizer"):
            old, new = (r.get("train", {}).get(key) for r in (before, now))
            if old != new:
                raise RegistryError(
                    f"{path}: was made with train.{key}={json.dumps(old)}, now it is "
                    f"{json.dumps(new)}. Change it back to resume, or start anew in another "
                    "folder (train.run=...)."
                )


def _tensors(job: Job) -> dict[str, Tensor | ShardedTensor]:
    """Everything that a checkpoint holds as tensors, by a flat name."""
    tensors: dict[str, Any] = {
        f"model.{name}": value for name, value in job.model.state_dict().items()
    }
    for name, states in job.optimizer.state_dict()["state"].items():
        for key, value in states.items():
            if isinstance(value, Tensor | ShardedTensor):
                tensors[f"optimizer.{name}/{key}"] = value
    return tensors


def _materialise(job: Job) -> None:
    """Give optimizers that make their state at the first step (Adam) that state now."""
    for _, optimizer in job.optimizer.optimizers:
        if not optimizer.state_dict()["state"] and hasattr(optimizer, "init_state"):
            optimizer.init_state()


def _restore(job: Job, tensors: Mapping[str, Tensor | ShardedTensor]) -> None:
    """`dcp.load` filled the tensors in place; hand them to those that hold copies."""
    job.model.load_state_dict(
        {name.removeprefix("model."): v for name, v in tensors.items() if name[:6] == "model."}
    )
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


def _set_random_state(job: Job, state: Mapping[str, str]) -> None:
    values = {
        name: torch.tensor(list(bytes.fromhex(text)), dtype=torch.uint8)
        for name, text in state.items()
    }
    torch.set_rng_state(values["cpu"])
    if job.device.type == "cuda" and "cuda" in values:
        torch.cuda.set_rng_state(values["cuda"], job.device)


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    with path.open("w") as file:
        json.dump(value, file)
        file.flush()
        os.fsync(file.fileno())


def read_job(path: Path) -> dict[str, Any]:
    """A checkpoint's job.json, with `step`, `world_size` and `registry`."""
    file = path / "job.json"
    saved = _read(file, {"step": int, "world_size": int, "registry": dict})
    if saved["step"] < 0 or saved["world_size"] < 1:
        raise _damaged(file, f"step {saved['step']} of {saved['world_size']} ranks")
    if not isinstance(saved["registry"].get("train", {}), dict):
        raise _damaged(file, "registry.train is no mapping")
    return saved


def read_rank(path: Path, rank: int) -> dict[str, Any]:
    """A checkpoint's rank-N.json, with `loader`, and `random` unless `reshard` added the rank."""
    return _read(path / f"rank-{rank}.json", {"loader": dict})


def _read(file: Path, fields: Mapping[str, type]) -> dict[str, Any]:
    try:
        value = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise _damaged(file, str(error)) from error
    if not isinstance(value, dict):
        raise _damaged(file, "it holds no mapping")
    for name, kind in fields.items():
        if type(value.get(name)) is not kind:
            raise _damaged(file, f"its {name!r} is missing, or no {kind.__name__}")
    return value


def _damaged(file: Path, why: str) -> DataError:
    return DataError(
        f"{file}: cannot be read ({why}). The checkpoint is damaged: remove its folder, and "
        "--resume takes the one before."
    )
