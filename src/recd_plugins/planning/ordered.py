"""TorchRec's sharding options in one order."""

from __future__ import annotations

from typing import Any

from torchrec.distributed.planner.enumerators import EmbeddingEnumerator
from torchrec.distributed.planner.types import ShardingOption
from torchrec.distributed.types import ShardingType

__all__ = ["OrderedEnumerator"]

KINDS = [kind.value for kind in ShardingType]


class OrderedEnumerator(EmbeddingEnumerator):
    """Its own order is a set's, which breaks ties at random."""

    def enumerate(self, **what: Any) -> list[ShardingOption]:
        options: list[ShardingOption] = super().enumerate(**what)
        return sorted(
            options,
            key=lambda o: (o.path, o.name, KINDS.index(o.sharding_type), o.compute_kernel),
        )
