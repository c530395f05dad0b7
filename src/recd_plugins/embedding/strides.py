"""Rank by rank as many rows, where pooled embeddings are reduced.

Ranks differ in their unique samples, and row-wise tables scatter the sums of all ranks: gloo
refuses parts of unequal size, and NCCL reduces them root by root. After the exchange of splits
every rank knows each other's rows, so that rows of length 0 even them out at no further
exchange, and add no id.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torchrec.distributed.embedding_types import KJTList
from torchrec.distributed.types import ShardingType
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

__all__ = ["evened"]


def evened(received: KJTList, context: Any, sharding_types: Sequence[str]) -> KJTList:
    """What a rank received of all ranks, with as many rows of each; the context says so too.

    As it is, where no table is row-wise, the ranks sent as many, or none sent any (a hot batch,
    behind tiers). The pooled output then has
    as many rows as the largest rank sent.
    """
    exchanges = context.sharding_contexts
    if not exchanges:
        return received
    by_rank = [
        exchange.batch_size_per_rank
        for exchange, kind in zip(exchanges, sharding_types, strict=True)
        if kind == ShardingType.ROW_WISE.value
    ]
    if not by_rank or len(set(by_rank[0])) <= 1:  # of no stride at all by the route `vbe`
        return received
    longest = max(by_rank[0])
    even = list(received)  # what a sharder of its own exchanges beside TorchRec's stays as it is
    for index, exchange in enumerate(exchanges):
        # Data-parallel tables exchange nothing: all rows are this rank's.
        strides = exchange.batch_size_per_rank or [even[index].stride()]
        even[index] = _padded(even[index], strides, longest)
        exchange.batch_size_per_rank = [longest] * len(exchange.batch_size_per_rank)
    if context.divisor is not None:  # of a mean, which row-wise tables take after their sum
        spare = longest - context.divisor.shape[0]
        context.divisor = F.pad(context.divisor, (0, 0, 0, spare), value=1.0)
    return KJTList(even)


def _padded(kjt: KeyedJaggedTensor, strides: Sequence[int], longest: int) -> KeyedJaggedTensor:
    keys = kjt.keys()
    given = sum(strides)
    # Where each row comes from: behind a rank's rows, from a column of zeros at the end.
    source = np.full((len(strides), longest), given)
    for rank, (end, stride) in enumerate(zip(np.cumsum(strides), strides, strict=True)):
        source[rank, :stride] = np.arange(end - stride, end)
    index = torch.from_numpy(source.ravel()).to(kjt.device())
    lengths = F.pad(kjt.lengths().view(len(keys), given), (0, 1)).index_select(1, index)
    return KeyedJaggedTensor(
        keys=keys,
        values=kjt.values(),
        weights=kjt.weights_or_none(),
        lengths=lengths.view(-1),
        stride=len(strides) * longest,
    )
