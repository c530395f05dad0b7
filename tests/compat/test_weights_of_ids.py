"""Rung 2 (a gloo rank): weights of ids that nothing learns have no gradient, others keep theirs."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torchrec.distributed import DistributedModelParallel
from torchrec.distributed.sharding_plan import construct_module_sharding_plan, table_wise
from torchrec.distributed.types import ShardingPlan
from torchrec.modules.embedding_configs import EmbeddingBagConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recd_plugins.compat.fused_kernels import leave_weights
from recd_plugins.testing.gloo import GlooPool

ROWS, DIM = 10, 4
IDS, LENGTHS = [1, 2, 2, 3, 9], [2, 0, 1, 2]
WEIGHTS = [0.5, 2.0, 1.0, -1.0, 3.0]


def stepped(leave: bool, learnt: bool) -> dict[str, Any]:
    """On a rank: a table after a step, the gradient of the weights of its ids, and whether its
    kernel was told to leave it out."""
    torch.manual_seed(0)
    names = ["one", "two"]
    tables = [
        EmbeddingBagConfig(
            name=n, embedding_dim=DIM, num_embeddings=ROWS, feature_names=[f"of {n}"]
        )
        for n in names
    ]
    collection = EmbeddingBagCollection(tables, is_weighted=True)
    apply_optimizer_in_backward(torch.optim.SGD, collection.parameters(), {"lr": 1.0})
    shards = construct_module_sharding_plan(
        collection, dict.fromkeys(names, table_wise(rank=0)), world_size=1, device_type="cpu"
    )
    model = DistributedModelParallel(
        nn.Sequential(collection), device=torch.device("cpu"), plan=ShardingPlan({"0": shards})
    )
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, generator=torch.Generator().manual_seed(1))
    if leave:
        leave_weights(model)
    told: list[Tensor | None] = []
    for module in model.modules():
        for lookup in getattr(module, "_lookups", ()):
            for kernel in lookup.modules():
                if "SplitTable" in type(kernel).__name__:
                    kernel.register_forward_pre_hook(
                        lambda _, args, kwargs: told.append(kwargs.get("feature_requires_grad")),
                        with_kwargs=True,
                    )
    weights = torch.tensor(WEIGHTS * 2, requires_grad=learnt)
    kjt = KeyedJaggedTensor(
        keys=[f"of {n}" for n in names],
        values=torch.tensor(IDS * 2),
        lengths=torch.tensor(LENGTHS * 2),
        weights=weights,
    )
    model(kjt).values().square().sum().backward()
    return {
        "tables": {name: one.detach().clone() for name, one in model.named_parameters()},
        "gradient": weights.grad,
        "told": told,
    }


def test_tables_step_as_before_where_the_gradients_of_weights_are_left(gloo_pool: GlooPool) -> None:
    before, left = (
        gloo_pool.run(stepped, leave, False, world_size=1)[0] for leave in (False, True)
    )
    assert [one is None for one in before["told"]] == [True]
    assert [one.tolist() for one in left["told"]] == [[0, 0]]
    assert before["tables"].keys() == left["tables"].keys() != set()
    for name, table in before["tables"].items():
        torch.testing.assert_close(left["tables"][name], table, rtol=0, atol=0)


def test_weights_that_are_learnt_keep_their_gradients(gloo_pool: GlooPool) -> None:
    before, left = (gloo_pool.run(stepped, leave, True, world_size=1)[0] for leave in (False, True))
    assert left["told"] == [None]
    if before["gradient"] is not None:
        torch.testing.assert_close(left["gradient"], before["gradient"])
