"""Notices a reader that ignores its rank, so that all ranks train on the same samples."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import Tensor

from recd_plugins.data.batch import Batch
from recd_plugins.notices import NoticeWarning
from recd_plugins.sparse.deduplicated import DeduplicatedFeatures

__all__ = ["notice_same_batch"]

LEAST = 16
"""Samples of a batch that do not come to several ranks by chance."""


def notice_same_batch(batch: Batch, who: str, device: torch.device) -> None:
    """Warn on rank 0 if all ranks have the same batch; every rank calls it, with the batch of its
    first step and what the reader is called."""
    if dist.get_world_size() == 1:
        return
    number = _number(batch)
    ends = torch.tensor([number, -number], device=device)
    dist.all_reduce(ends, dist.ReduceOp.MAX)
    greatest, least = ends[0].item(), -ends[1].item()
    if greatest == least != 0 and dist.get_rank() == 0:
        warnings.warn(
            f"{who}: every rank has the same batch in its first step. If that goes on, each sample "
            "is trained on by all ranks, and a part of the rows by none. Have its loader yield "
            "other rows on each rank, by `rank` and `world_size`.",
            NoticeWarning,
            stacklevel=2,
        )


def _number(batch: Batch) -> int:
    """A number that any other value in the batch would change; 0 for too few samples, or without
    any ids and counts, as labels alone may be the same."""
    inputs = list(_inputs(batch))
    if len(batch.weights) < LEAST or not any(one.numel() for one in inputs):
        return 0
    digest = hashlib.blake2b(digest_size=7)  # whose number, and its negative, fit into 64 bits
    for one in (*inputs, batch.labels, batch.weights):
        whole = one.detach().cpu().contiguous()
        digest.update(f"{tuple(whole.shape)}".encode() + whole.numpy().tobytes())
    return int.from_bytes(digest.digest(), "little")


def _inputs(batch: Batch) -> Iterator[Tensor]:
    yield batch.dense
    kjts = [batch.features]
    if isinstance(batch.dedup, DeduplicatedFeatures):
        kjts.append(batch.dedup.kjt)
    for kjt in kjts:
        yield kjt.values()
        yield kjt.lengths()
