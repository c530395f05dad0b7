"""Rung 3 (ranks): row-wise bags, be they a trainer's or ours, whose ranks have batches of unlike
sizes; TorchRec's own fail on them in backward on gloo."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from foreign import CPU, RowWiseBags
from torch import Tensor, nn
from torchrec.distributed import DistributedModelParallel
from torchrec.distributed.comm_ops import reduce_scatter_v_pooled
from torchrec.modules.embedding_configs import EmbeddingBagConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

import recd_plugins as rp
from recd_plugins.testing.gloo import GlooPool

SIZES = (3, 0, 5, 1)
"""The samples of each of four ranks."""


def scattered(sizes: tuple[int, ...]) -> None:
    """On a rank: each sends a sum for every sample of every rank; their gradients come back."""
    stack, rank = rp.load({}), dist.get_rank()
    stack.plan(nn.Linear(2, 2))
    sums = (torch.arange(sum(sizes) * 2.0).view(-1, 2) + rank).requires_grad_()
    mine = reduce_scatter_v_pooled(sums, list(sizes), dist.group.WORLD).wait()
    world = len(sizes)
    before = sum(sizes[:rank])
    expected = torch.arange(sum(sizes) * 2.0).view(-1, 2)[before : before + sizes[rank]]
    assert torch.equal(mine, expected * world + sum(range(world)))
    mine.backward(torch.full_like(mine, rank + 1.0))
    of_ranks = torch.arange(1.0, world + 1).repeat_interleave(torch.tensor(sizes)) / world
    assert torch.equal(sums.grad, of_ranks.unsqueeze(1).expand(-1, 2))


@pytest.mark.filterwarnings("ignore::recd_plugins.notices.NoticeWarning")
@pytest.mark.parametrize("sizes", [SIZES, (2, 2, 2, 2), (0, 0, 0, 4)])
def test_sums_of_unlike_numbers_of_samples_have_their_gradients(
    sizes: tuple[int, ...], gloo_pool: GlooPool
) -> None:
    gloo_pool.run(scattered, sizes, world_size=4)


class Bags(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        table = EmbeddingBagConfig(
            name="item", embedding_dim=4, num_embeddings=40, feature_names=["item"]
        )
        self.bags = EmbeddingBagCollection([table], device=torch.device("meta"))

    def forward(self, kjt: KeyedJaggedTensor) -> Tensor:
        return self.bags(kjt)["item"].square().sum()


def trained(sharders: list[Any] | None) -> Tensor:
    """On a rank: the table after three steps of batches that are as large as `SIZES` says."""
    net = Bags()
    apply_optimizer_in_backward(torch.optim.SGD, net.bags.parameters(), {"lr": 0.1})
    stack, rank = rp.load({}), dist.get_rank()
    plan = stack.plan(net, sharders=sharders)
    model = DistributedModelParallel(net, device=CPU, plan=plan, sharders=stack.sharders())
    (table,) = model.state_dict().values()
    for shard in table.local_shards():
        first = shard.metadata.shard_offsets[0]
        rows = torch.arange(first, first + len(shard.tensor)).float()
        shard.tensor.copy_((rows.unsqueeze(1) + torch.arange(4)).sin())
    for step in range(3):
        ids = torch.arange(2 * SIZES[rank]) * 7 + step + rank
        lengths = torch.full((SIZES[rank],), 2)
        model(KeyedJaggedTensor(["item"], ids % 40, lengths=lengths)).backward()
    whole = torch.zeros(40, 4) if rank == 0 else None
    table.gather(0, whole)
    return torch.empty(0) if whole is None else whole


@pytest.mark.filterwarnings("ignore::recd_plugins.notices.NoticeWarning")
def test_row_wise_bags_train_as_table_wise_ones(gloo_pool: GlooPool) -> None:
    """Within rounding: row-wise, the ids of a bag are summed by rank."""
    whole, *_ = gloo_pool.run(trained, None, world_size=4)
    row_wise, *_ = gloo_pool.run(trained, [RowWiseBags()], world_size=4)
    torch.testing.assert_close(row_wise, whole, rtol=1e-6, atol=1e-6)
