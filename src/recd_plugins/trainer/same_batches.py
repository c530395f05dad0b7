"""Notices a reader that ignores its rank, so that all ranks train on the same samples."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Iterator

import torch.distributed as dist
from torch import Tensor

from recd_plugins.data.batch import Batch
from recd_plugins.notices import NoticeWarning
from recd_plugins.planning.together import alike
from recd_plugins.sparse.deduplicated import DeduplicatedFeatures

__all__ = ["notice_same_batch"]

LEAST = 16
"""Samples of a batch that do not come to several ranks by chance."""


def notice_same_batch(batch: Batch, who: str) -> None:
    """Warn on rank 0 if all ranks have the same batch; every rank calls it, with the batch of its
    first step and what the reader is called."""
    world = dist.GroupMember.WORLD
    assert world is not None  # the job trains
    if world.size() == 1:
        return
    digest = _digest(batch)
    if alike(world, digest) and digest and world.rank() == 0:
        warnings.warn(
            f"{who}: every rank has the same batch in its first step. If that goes on, each sample "
            "is trained on by all ranks, and a part of the rows by none. Have its loader yield "
            "other rows on each rank, by `rank` and `world_size`.",
            NoticeWarning,
            stacklevel=2,
        )


def _digest(batch: Batch) -> bytes:
    """A digest that any other value in the batch would change; empty for too few samples, or
    without any ids and counts, as labels alone may be the same."""
    inputs = list(_inputs(batch))
    if len(batch.weights) < LEAST or not any(one.numel() for one in inputs):
        return b""
    digest = hashlib.sha256()
    for one in (*inputs, batch.labels, batch.weights):
        whole = one.detach().cpu().contiguous()
        digest.update(f"{tuple(whole.shape)}".encode() + whole.numpy().tobytes())
    return digest.digest()


def _inputs(batch: Batch) -> Iterator[Tensor]:
    yield batch.dense
    kjts = [batch.features]
    if isinstance(batch.dedup, DeduplicatedFeatures):
        kjts.append(batch.dedup.kjt)
    for kjt in kjts:
        yield kjt.values()
        yield kjt.lengths()
