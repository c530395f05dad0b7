"""Checkpoints for another number of ranks: what of a job's files depends on it, written anew.

Tables, dense parameters and optimizer states lie whole in a checkpoint, wherever their parts
do: they load under any plan and world size, and are copied as they are. A rank's own are its
place in the epoch, its random state and its callbacks' states.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recd_plugins.errors import DataError, RegistryError
from recd_plugins.registry.settings import TrainSettings
from recd_plugins.trainer.checkpoints.checkpoint import (
    check_whole,
    read_job,
    read_rank,
    write_json,
)
from recd_plugins.trainer.checkpoints.digest import digest_of, read_digest, write_digest
from recd_plugins.trainer.measure.metrics import joined_windows

__all__ = ["Resharded", "reshard", "resumed_position"]

BEGINS = "begins_epoch"
"""What a rank's position says where it is no more than that; none: where the reader begins."""


@dataclass(frozen=True, kw_only=True)
class Resharded:
    """A checkpoint that was written for another number of ranks."""

    path: Path
    step: int
    ranks_before: int
    ranks: int
    batch_size: int
    """Samples per rank, to which a resumed run must keep."""
    exact: bool
    """Whether the batches that come next are those that would have come."""
    begins_epoch: int | None
    """The epoch with which training goes on otherwise; none if the reader counts none."""


def reshard(source: Path, target: Path, ranks: int, batch_size: int | None = None) -> Resharded:
    """Write a checkpoint of the run `source`, its latest or the one named, into the run `target`.

    The epoch goes on where it was if that is the same place for any rank: no batch of it has
    been trained; or `reader.streams` is set and a multiple of `ranks`, no workers read, and
    `batch_size` (samples per rank, by default as before) times ranks is unchanged. Else the next
    epoch begins, and what was left of this one is skipped.
    """
    checkpoint = _checkpoint(source)
    check_whole(checkpoint)
    job = read_job(checkpoint)
    before, registry = job["world_size"], job["registry"]
    states = [read_rank(checkpoint, rank) for rank in range(before)]
    size_before = registry.get("train", {}).get("batch_size", TrainSettings().batch_size)
    size = batch_size or size_before
    if ranks < 1 or size < 1:
        raise RegistryError(f"reshard: {ranks} ranks of {size} samples train nothing. Name more.")
    if size != size_before:
        registry.setdefault("train", {})["batch_size"] = size
    position = states[0]["loader"]
    epoch = _begins(position)
    exact = ranks * size == before * size_before and _any_ranks(registry, position, ranks)
    if not exact:
        position = {BEGINS: epoch}
    written = target / "checkpoints" / checkpoint.name
    if written.exists():
        raise RegistryError(f"{written} is there already. Name another folder, or remove it.")
    part = written.with_suffix(".part")
    shutil.rmtree(part, ignore_errors=True)
    anew = ("rank-*.json", "job.json", "digest.json")
    shutil.copytree(checkpoint, part, ignore=shutil.ignore_patterns(*anew))
    for rank in range(ranks):
        # A rank that is new draws its own random numbers; callbacks' states are alike on all.
        kept = {"callbacks": states[0].get("callbacks", {})} if rank >= before else states[rank]
        mine: dict[str, Any] = {key: kept[key] for key in ("random", "callbacks") if key in kept}
        mine["so_far"] = _so_far(states, rank, ranks)
        write_json(part / f"rank-{rank}.json", {"loader": position} | mine)
    write_json(part / "job.json", {**job, "world_size": ranks, "registry": registry})
    # What was copied keeps the digest that it was written with: a bad copy is found as it is read.
    every = {file.name: digest_of(file) for name in anew for file in part.glob(name)}
    copied = {name: one for name, one in read_digest(checkpoint).items() if (part / name).exists()}
    write_digest(part, copied | every)
    part.rename(written)
    return Resharded(
        path=written,
        step=job["step"],
        ranks_before=before,
        ranks=ranks,
        batch_size=size,
        exact=exact,
        begins_epoch=None if exact else epoch,
    )


def resumed_position(fresh: dict[str, Any], position: dict[str, Any]) -> dict[str, Any]:
    """A loader's state from a rank's `position`; of one that begins an epoch, the state of a
    `fresh` loader, at that epoch."""
    if set(position) != {BEGINS}:
        return position
    return fresh if position[BEGINS] is None else _at_epoch(fresh, position[BEGINS])


def _at_epoch(state: Mapping[str, Any], epoch: int) -> dict[str, Any]:
    """Wherever it lies: a stage of the loader keeps its reader's state within its own."""
    return {
        key: epoch if key == "epoch" else _at_epoch(value, epoch) if _is_mapping(value) else value
        for key, value in state.items()
    }


def _begins(position: Mapping[str, Any]) -> int | None:
    """The epoch that begins where a position of the local reader is left."""
    if "epoch" in position:
        return int(position["epoch"]) + bool(position.get("batches"))
    within = (_begins(value) for value in position.values() if _is_mapping(value))
    return next((epoch for epoch in within if epoch is not None), None)


def _any_ranks(registry: Mapping[str, Any], position: Mapping[str, Any], ranks: int) -> bool:
    """Whether a position of the local reader is the same for so many ranks."""
    reader = registry.get("reader")
    streams: int = (reader.get("streams") or 0) if isinstance(reader, Mapping) else 0
    made_for = position.get("made_for", {"workers": 1})
    return streams > 0 and streams % ranks == 0 and not made_for["workers"]


def _so_far(states: Sequence[Mapping[str, Any]], rank: int, ranks: int) -> dict[str, Any]:
    """What a rank has counted toward the metrics that come next; of another number of ranks, rank 0
    has what all of them collected, and forecasts, which are of a plan's ranks, are counted anew."""
    every = [state.get("so_far", {}) for state in states]
    if ranks == len(states):
        return dict(every[rank])
    kept = {name: value for name, value in every[0].items() if name != "forecasts"}
    windows = [one["window"] for one in every if "window" in one]
    kept.pop("window", None)
    return kept | {"window": joined_windows(windows)} if windows and rank == 0 else kept


def _is_mapping(value: object) -> bool:
    return isinstance(value, Mapping)


def _checkpoint(source: Path) -> Path:
    if (source / "job.json").exists():
        return source
    found = sorted((source / "checkpoints").glob("step-????????"))
    if not found:
        raise DataError(
            f"{source}: holds no checkpoint. Name a run's folder (train.run), or one of its "
            "checkpoints/step-... folders."
        )
    return found[-1]
