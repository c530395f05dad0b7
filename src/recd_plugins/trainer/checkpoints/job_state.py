"""Fills the model and the optimizers of a job from a checkpoint, whatever plan and number of ranks
it is of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch.distributed as dist

from recd_plugins.errors import DataError
from recd_plugins.planning.together import on_every_rank
from recd_plugins.trainer.assemble import Job
from recd_plugins.trainer.checkpoints.job_tensors import (
    begin_anew,
    fill,
    materialise,
    restore,
    tensors_of,
)
from recd_plugins.trainer.checkpoints.optimizer_numbers import restore_states
from recd_plugins.trainer.checkpoints.rank_buffers import as_named, is_of_a_rank, own_of
from recd_plugins.trainer.checkpoints.storage import JsonReader

__all__ = ["fill_job"]


def fill_job(
    job: Job,
    path: Path,
    numbers: Mapping[str, Any],
    mine: Mapping[str, Any],
    *,
    begins: bool = False,
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Fill model and optimizers from the checkpoint at `path`; every rank calls it. Returns the
    parameters whose optimizer states begin anew, and the checkpoint's tensors that nothing takes.

    `numbers` are those of its optimizers, `mine` is this rank's own file of it. If a new run
    `begins` with it, all must fit.
    """
    rank, reader = dist.get_rank(), JsonReader(path)
    kept = reader.read_metadata().state_dict_metadata
    materialise(job)
    anew = begin_anew(job, kept, numbers)
    tensors = {
        name: one
        for name, one in tensors_of(job).items()
        if name.rpartition("/")[0].removeprefix("optimizer.") not in anew
    }
    asked = as_named(tensors, own_of(kept, rank), rank)
    # A rank has the optimizer states of only its own tables.
    taken = {name for names in on_every_rank(lambda: [*tensors]) for name in names}
    no_taker = sorted(name for name in kept.keys() - taken if not is_of_a_rank(name))
    if begins:
        on_every_rank(lambda: _check_fits(path, kept, asked, no_taker))
    fill(asked, reader, path)
    begun_anew = {name for names in on_every_rank(lambda: anew) for name in names}
    restore(job, tensors, mine.get("model", {}))
    restore_states(job, numbers)
    return tuple(sorted(begun_anew)), tuple(no_taker)


def _check_fits(
    path: Path, kept: Mapping[str, Any], asked: Mapping[str, Any], no_taker: Sequence[str]
) -> None:
    """`DataError` if the checkpoint's tensors are not those of the model."""
    cure = "Train this model from its first step, without train.begin_from."
    for name, one in asked.items():
        size, own = getattr(kept.get(name), "size", None), one.size()
        if size != own:
            has = "none" if size is None else f"one of {[*size]}"
            raise DataError(f"{path}: the model has {name!r} of {[*own]}, the run {has}. {cure}")
    if lost := [name for name in no_taker if name.startswith("model.")]:
        raise DataError(f"{path}: the run had {lost[0]!r}, the model has none. {cure}")
