"""Four ranks as two nodes: these agree on the rows that they touched, by the fewest bytes."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from recd_plugins.testing.gloo import GlooPool
from recd_plugins.tiers.collectives import CollectiveSequence
from recd_plugins.tiers.gradients.touched import exchange_touched_by_node
from recd_plugins.tiers.peers import Nodes
from recd_plugins.trainer.measure.traffic import TrafficCounter


def touched(size: int, count: int, rank: int) -> Tensor:
    """The rows that a rank's node touched of its share, some of them several times."""
    draw = torch.Generator().manual_seed(rank)
    return torch.randint(size, (count * (1 + rank // 2),), generator=draw)


def agreed(size: int, count: int) -> tuple[int, int]:
    """On a rank: the bytes that it sends, and the most rows that a node touched of its share."""
    assert dist.group.WORLD is not None
    nodes, rank = Nodes(dist.group.WORLD, 2), dist.get_rank()
    with TrafficCounter() as counter:
        exchange = exchange_touched_by_node(touched(size, count, rank), size, nodes)
        found = CollectiveSequence(exchange).finish()
    each = [touched(size, count, node + rank % 2).unique() for node in (0, 2)]
    assert torch.equal(found.rows, torch.cat(each).unique())
    assert found.by_node.shape == (2, len(found.rows))
    for own, by_node in zip(each, found.by_node, strict=True):
        assert torch.equal(found.rows[by_node], own)
    return int(sum(counter.traffic["send"].values())), max(map(len, each))


@pytest.mark.parametrize(
    ("size", "count", "numbered"), [(100_000, 50, True), (100, 50, False), (10, 0, True)]
)
def test_nodes_agree_on_touched_rows(
    size: int, count: int, numbered: bool, gloo_pool: GlooPool
) -> None:
    for sent, most in gloo_pool.run(agreed, size, count, world_size=4):
        assert sent == 8 + (4 * most if numbered else -(-size // 8))
