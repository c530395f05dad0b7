"""Two gloo ranks, which both step all replicas: their copies stay equal to the bit."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from tiered import ByTiers, Sequences, batch_of, sharded
from torch import Tensor

from recd_plugins.testing.gloo import GlooPool


def copies_of() -> list[tuple[Tensor, Tensor]]:
    """On a rank: copies of rows, or their optimizer's state, as they were filled and as they are
    after steps of several chunks."""
    model = sharded(ByTiers(ranks_per_node=2, seed=3, tiers="replicated", chunk_rows=4), Sequences)
    (tiers,) = (module.tiers for module in model.modules() if hasattr(module, "tiers"))
    held: Any = tiers
    first: list[Tensor] = []
    for step in range(6):
        loss = model(batch_of(2 * step + dist.get_rank(), 6))[0]
        first = first or [copy.clone() for copy in held.copies()]
        loss.backward()
    return list(zip(first, (copy.clone() for copy in held.copies()), strict=True))


def test_both_ranks_step_their_copies_alike(gloo_pool: GlooPool) -> None:
    one, other = gloo_pool.run(copies_of)
    assert len(one) == len(other) >= 2
    for (before, mine), (_, theirs) in zip(one, other, strict=True):
        assert torch.equal(mine, theirs)
        assert not torch.equal(before, mine)
