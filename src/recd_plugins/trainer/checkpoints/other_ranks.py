"""A checkpoint as another number of ranks see it: they load the same tables, dense parameters and
optimizer states, and each has its own position in the epoch, random state and callbacks' states."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recd_plugins.errors import RegistryError, so_many
from recd_plugins.registry.settings import TrainSettings
from recd_plugins.trainer.checkpoints.files import read_job, read_rank
from recd_plugins.trainer.measure.metrics import joined_windows

__all__ = [
    "OtherRanks",
    "batch_size_in",
    "for_ranks",
    "resumed_position",
    "shared_streams",
]

LEFT_OUT = "left_out"
"""The key of a reader's position for the stripes that could not be read."""

BEGINS = "begins_epoch"
"""The only key of a position that names just the epoch to begin; None means the reader's start."""


@dataclass(frozen=True, kw_only=True)
class OtherRanks:
    """A checkpoint as another number of ranks see it, or ranks with other samples each."""

    checkpoint: Path
    step: int
    ranks_before: int
    ranks: int
    batch_size: int
    """Samples per rank, which a resumed run must keep."""
    exact: bool
    """Whether the next batches are those that would have come."""
    begins_epoch: int | None
    """The epoch that begins otherwise; None if `exact`, or if the reader counts no epochs."""
    job: Mapping[str, Any]
    """The content that job.json would have."""
    streams: int | None
    """The reader's new number of streams; None if it keeps the one it had."""
    position: Mapping[str, Any]
    """The position from which the loaders of another number of ranks go on."""

    def rank(self, rank: int) -> dict[str, Any]:
        """The content of this rank's file. A new rank draws its own random numbers, and takes from
        rank 0 the states of callbacks and the model's values that are not tensors."""
        first = read_rank(self.checkpoint, 0)
        new = rank >= self.ranks_before
        kept = first if new else read_rank(self.checkpoint, rank)
        keys = ("callbacks", "model") if new else ("random", "callbacks", "model")
        mine: dict[str, Any] = {key: kept[key] for key in keys if key in kept}
        mine["so_far"] = kept.get("so_far", {})
        if self.ranks != self.ranks_before:
            mine["so_far"] = self._so_far(rank, first.get("so_far", {}))
        as_before = self.exact and self.ranks == self.ranks_before
        return {"loader": dict(kept["loader"] if as_before else self.position), **mine}

    def _so_far(self, rank: int, first: Mapping[str, Any]) -> dict[str, Any]:
        """The counts of a rank toward the next metrics: rank 0 gets what all ranks collected.
        Forecasts are counted anew, since they depend on a plan's ranks."""
        kept = {name: one for name, one in first.items() if name not in ("forecasts", "window")}
        if rank == 0:
            states = [read_rank(self.checkpoint, one) for one in range(self.ranks_before)]
            every = [state.get("so_far", {}) for state in states]
            if windows := [one["window"] for one in every if "window" in one]:
                kept["window"] = joined_windows(
                    windows, ranks_before=self.ranks_before, ranks=self.ranks
                )
        return kept

    def goes_on(self) -> str:
        """The batches with which the run goes on, in words."""
        if self.exact:
            return "goes on with the batches that would have come next"
        if self.begins_epoch is None:
            return "goes on where its reader begins: it counts no epochs"
        streams = "" if self.streams is None else f", in {so_many(self.streams, 'stream')}"
        return (
            f"goes on with the start of epoch {self.begins_epoch}{streams}; what an epoch had left "
            "is skipped"
        )


def for_ranks(
    checkpoint: Path, ranks: int, batch_size: int | None = None, streams: int | None = None
) -> OtherRanks:
    """The checkpoint as `ranks` ranks see it, with `batch_size` samples each (by default as
    before).

    The epoch goes on where it was if ranks and their samples are as many as before, or if the
    position is the same for any rank. That is so if no batch of the epoch has been trained, or if
    `reader.streams` is set and a multiple of `ranks`, no workers read, and `batch_size` times ranks
    is unchanged. Else the next epoch begins, and the rest of this one is skipped. The reader then
    has `streams` streams, if it had another number.
    """
    job = read_job(checkpoint)
    before, registry = job["world_size"], job["registry"]
    size_before = batch_size_in(registry)
    size = batch_size or size_before
    if ranks < 1 or size < 1:
        raise RegistryError(f"reshard: {ranks} ranks of {size} samples train nothing. Name more.")
    if size != size_before:
        registry.setdefault("train", {})["batch_size"] = size
    others = streams if streams not in (None, _streams(registry)) else None
    if others is not None:
        registry["reader"] = {**registry["reader"], "streams": others}
    position = read_rank(checkpoint, 0)["loader"]
    epoch = _begins(position)
    same = others is None and ranks * size == before * size_before
    exact = same and (ranks == before or _any_ranks(registry, position, ranks))
    if exact and ranks != before:
        positions = [read_rank(checkpoint, rank)["loader"] for rank in range(before)]
        position = _leaving_out(position, {one for each in positions for one in _left_out(each)})
    return OtherRanks(
        checkpoint=checkpoint,
        step=job["step"],
        ranks_before=before,
        ranks=ranks,
        batch_size=size,
        exact=exact,
        begins_epoch=None if exact else epoch,
        job={**job, "world_size": ranks, "registry": registry},
        streams=others,
        position=position if exact else {BEGINS: epoch},
    )


def resumed_position(fresh: dict[str, Any], position: dict[str, Any]) -> dict[str, Any]:
    """A loader's state from a rank's `position`. If the position begins an epoch, this is the state
    of a `fresh` loader at that epoch."""
    if set(position) != {BEGINS}:
        return position
    return fresh if position[BEGINS] is None else _at_epoch(fresh, position[BEGINS])


def shared_streams(registry: Mapping[str, Any], ranks: int, batch_size: int) -> int | None:
    """How many streams the reader of `ranks` ranks has: as many as the registry names, or about as
    many if the ranks cannot share these, or if the samples of a rank cannot come evenly from its
    own streams. None if the registry names no number."""
    if (streams := _streams(registry)) is None:
        return None
    reader = registry["reader"]
    of_ranks = reader.get("use", "local") != "local"  # other readers have no consumers in a rank
    consumers = ranks * (1 if of_ranks else max(1, reader.get("workers") or 0))
    even = (each for each in range(1, batch_size + 1) if batch_size % each == 0)
    return consumers * min(even, key=lambda each: abs(each - streams / consumers))


def batch_size_in(registry: Mapping[str, Any]) -> int:
    """The samples of a rank and step, by the values of a registry."""
    size: int = registry.get("train", {}).get("batch_size", TrainSettings().batch_size)
    return size


def _at_epoch(state: Mapping[str, Any], epoch: int) -> dict[str, Any]:
    """The state at another epoch, at any depth: a stage of the loader keeps its reader's state
    inside its own."""
    return {
        key: epoch if key == "epoch" else _at_epoch(value, epoch) if _is_mapping(value) else value
        for key, value in state.items()
    }


def _begins(position: Mapping[str, Any]) -> int | None:
    """The epoch that begins if a position of the local reader is given up; None if the reader
    counts no epochs."""
    found = _epoch_and_begun(position)
    return None if found is None else sum(found)


def _epoch_and_begun(position: Mapping[str, Any]) -> tuple[int, bool] | None:
    """The epoch, and whether the reader yielded any batch of it, or a stage did that keeps its
    reader's state from the start of a window and counts its own batches from there. None if no
    epochs are counted."""
    if set(position) == {BEGINS}:  # a checkpoint that was already rewritten for other ranks
        return None if position[BEGINS] is None else (int(position[BEGINS]), False)
    yielded = bool(position.get("batches"))
    if "epoch" in position:
        return int(position["epoch"]), yielded
    for value in filter(_is_mapping, position.values()):
        if (found := _epoch_and_begun(value)) is not None:
            return found[0], found[1] or yielded
    return None


def _any_ranks(registry: Mapping[str, Any], position: Mapping[str, Any], ranks: int) -> bool:
    """Whether a position of the local reader is the same for `ranks` ranks."""
    streams = _streams(registry) or 0
    held = position.get("within") or position  # the reader's own, if data grow
    made_for = held.get("made_for", {"workers": 1})
    return streams > 0 and streams % ranks == 0 and not made_for["workers"]


def _streams(registry: Mapping[str, Any]) -> int | None:
    reader = registry.get("reader")
    streams = reader.get("streams") if isinstance(reader, Mapping) else None
    return streams if isinstance(streams, int) else None


def _left_out(position: Mapping[str, Any]) -> Iterator[int]:
    """The stripes that a rank's reader leaves out because they could not be read."""
    yield from position.get(LEFT_OUT, ())
    for value in filter(_is_mapping, position.values()):
        yield from _left_out(value)


def _leaving_out(position: Mapping[str, Any], stripes: Collection[int]) -> dict[str, Any]:
    """The position with these stripes left out for all ranks: some of the ranks before could not
    read them, and any of the new ranks may come to their rows."""
    if not stripes:
        return dict(position)
    if within := position.get("within"):  # the reader's own, if data grow
        return {**position, "within": _leaving_out(within, stripes)}
    return {**position, LEFT_OUT: sorted(stripes)}


def _is_mapping(value: object) -> bool:
    return isinstance(value, Mapping)
