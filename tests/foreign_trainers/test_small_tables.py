"""Rung 3 (ranks): a trainer's own row-wise sharder, and a table with fewer rows than four ranks
need, which all of them look up by the kernel that it shares with another one."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from foreign import CPU, RowWiseBags
from torch import Tensor, nn
from torchrec.distributed import DistributedModelParallel
from torchrec.distributed.planner import EmbeddingShardingPlanner, Topology
from torchrec.modules.embedding_configs import EmbeddingBagConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

import recd_plugins as rp
from recd_plugins.errors import CapabilityError, RecdError
from recd_plugins.notices import NoticeWarning
from recd_plugins.planning.tier_plans.tier_plan import Coalesce, TablePlan, TierPlan
from recd_plugins.testing.gloo import GlooPool

SLOW = {"ranks_per_node": 2, "inter_node_gbps": 0.005, "intra_node_gbps": 1.0}
ROWS = {"shop": 9, "item": 1000}
"""Of nine rows three ranks have three each, and the fourth has none."""


class TwoBags(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        tables = [
            EmbeddingBagConfig(name=n, embedding_dim=8, num_embeddings=rows, feature_names=[n])
            for n, rows in ROWS.items()
        ]
        self.bags = EmbeddingBagCollection(tables, device=torch.device("meta"))
        self.over = nn.Linear(8, 1)

    def forward(self, kjt: KeyedJaggedTensor) -> Tensor:
        found = self.bags(kjt)
        logits: Tensor = self.over(found["shop"] + found["item"])
        return logits.square().mean()


def losses(registry: dict[str, Any] | None) -> tuple[list[float], list[str]]:
    """Of two steps, by TorchRec's planner or by a registry's; and the notices."""
    torch.manual_seed(0)
    net = TwoBags()
    apply_optimizer_in_backward(torch.optim.SGD, net.bags.parameters(), {"lr": 0.1})
    ids = torch.cat([torch.arange(6), torch.arange(1200) % 50])
    kjt = KeyedJaggedTensor(list(ROWS), ids, lengths=torch.tensor([2, 2, 2, 400, 400, 400]))
    sharders: list[Any] = [RowWiseBags()]
    group = dist.group.WORLD
    assert group is not None
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", NoticeWarning)
        if registry is None:
            topology = Topology(world_size=group.size(), compute_device="cpu")
            planner: Any = EmbeddingShardingPlanner(topology=topology)
            plan = planner.collective_plan(net, sharders, group)
        else:
            stack = rp.load(registry)
            if "dedup" in registry:
                stack.adapt(net, batches=[kjt] * 4)
                kjt = stack.convert(kjt)
            own = [kjt] * (4 + group.rank())  # ranks with the same batches would be told so
            plan = stack.plan(net, batches=own, sharders=sharders)
            sharders = stack.sharders()
    model = DistributedModelParallel(net, device=CPU, plan=plan, sharders=sharders)
    for name, table in model.state_dict().items():
        if "bags" in name:
            for shard in table.local_shards():
                shard.tensor.fill_(0.01 * len(name))
    found = []
    for _ in range(2):
        loss = model(kjt)
        loss.backward()
        found.append(loss.item())
    return found, [str(one.message) for one in told if one.category is NoticeWarning]


def train_alike(coalesce: str) -> list[str]:
    """On a rank; the notices."""
    expected, _ = losses(None)
    sharding = {
        "use": "flexshard",
        "goal": "min_communication",
        "coalesce": coalesce,
        "tables": ["item"],
    }
    found, told = losses({"plugins": ["recd_flexshard"], "topology": SLOW, "sharding": sharding})
    assert found == pytest.approx(expected, rel=1e-6)
    return told


@pytest.mark.parametrize("coalesce", ["rank", "node"])
def test_a_table_without_rows_on_some_rank_keeps_the_kernel_that_has_some(
    gloo_pool: GlooPool, coalesce: str
) -> None:
    told, *others = gloo_pool.run(train_alike, coalesce, world_size=4)
    assert len(told) == 1, told
    assert told[0].startswith(
        "sharding: flexshard is not used: table item is left to TorchRec, for its kernel is that "
        "of table shop too, which would have no row on some of 4 ranks without it. Have table shop "
        "planned too"
    )
    assert others == [[]] * 3


def refused_by_a_saved_plan(path: Path) -> str:
    """On a rank; the error of a plan by which the larger table's rows travel in another kernel."""
    net = TwoBags()
    stack = rp.load(
        {
            "plugins": ["recd_flexshard"],
            "topology": SLOW,
            "sharding": {"use": "flexshard", "plan": str(path)},
        }
    )
    with pytest.raises(RecdError) as refused:
        stack.plan(net, sharders=[RowWiseBags()])
    return str(refused.value)


@pytest.mark.parametrize("coalesce", ["none", "rank"])
@pytest.mark.parametrize("table", ROWS)
def test_a_saved_plan_that_leaves_a_table_without_rows_on_some_rank_is_refused(
    gloo_pool: GlooPool, tmp_path: Path, table: str, coalesce: Coalesce
) -> None:
    hot = np.arange(4)
    one = TablePlan(table=table, replicated=hot, coalesce=coalesce, num_rows=ROWS[table])
    TierPlan(tables={table: one}, n_nodes=2, ranks_per_node=2).save(tmp_path / "p.arrow")
    if coalesce == "none":  # both are in one kernel
        assert gloo_pool.run(trains_by_a_saved_plan, tmp_path / "p.arrow", world_size=4)
        return
    for said in gloo_pool.run(refused_by_a_saved_plan, tmp_path / "p.arrow", world_size=4):
        assert f"sharding.plan: {tmp_path}/p.arrow leaves table shop row-wise in a kernel" in said
        assert "without a row on some of 4 ranks, where the first batch would fail" in said


ANOTHER_ORDER = 2 * 400 * 2**-24
"""What squares of sums of 400 rows may differ by where these are added in another order."""


def trains_by_a_saved_plan(path: Path) -> bool:
    """On a rank."""
    sharding = {"use": "flexshard", "plan": str(path)}
    found, _ = losses({"plugins": ["recd_flexshard"], "topology": SLOW, "sharding": sharding})
    expected, _ = losses(None)
    assert found == pytest.approx(expected, rel=ANOTHER_ORDER)
    return True


def refused_on_unique_samples() -> str:
    """On a rank; the error of a plan in which the parts of the collection have a table each."""
    net = TwoBags()
    stack = rp.load({"plugins": ["recd_dedup"], "dedup": {"use": "exact", "groups": [["item"]]}})
    stack.adapt(net)
    kjt = KeyedJaggedTensor(list(ROWS), torch.arange(6) % 3, lengths=torch.ones(6).int())
    with pytest.raises(CapabilityError) as refused:
        stack.plan(net, batches=[stack.convert(kjt)], sharders=[RowWiseBags()])
    return str(refused.value)


def test_unique_samples_that_leave_a_table_without_rows_on_some_rank_are_refused(
    gloo_pool: GlooPool,
) -> None:
    for said in gloo_pool.run(refused_on_unique_samples, world_size=4):
        assert "table shop would be row-wise, in a kernel without a row on some of 4 ranks" in said


def refused_apart() -> str:
    """On a rank; the error of a plan in which each table has a kernel, by an optimizer of its
    own."""
    net, stack = TwoBags(), rp.load({"plugins": []})
    for kind, name in ((torch.optim.SGD, "shop"), (torch.optim.Adagrad, "item")):
        apply_optimizer_in_backward(kind, net.bags.embedding_bags[name].parameters(), {"lr": 0.1})
    with pytest.raises(CapabilityError) as refused:
        stack.plan(net, sharders=[RowWiseBags()])
    return str(refused.value)


def test_a_plan_with_a_kernel_that_has_no_rows_on_some_rank_is_refused(
    gloo_pool: GlooPool,
) -> None:
    """Plain TorchRec's first batch fails on that rank, and the others wait."""
    for said in gloo_pool.run(refused_apart, world_size=4):
        assert "table shop would be row-wise, in a kernel without a row on some of 4 ranks" in said
        assert "`{'shop': ParameterConstraints(sharding_types=['table_wise'])}`" in said


BESIDE = {
    "alone": {"plugins": ["recd_dedup"]},
    "tiers": {
        "plugins": ["recd_dedup", "recd_flexshard"],
        "topology": SLOW,
        "sharding": {"use": "flexshard", "goal": "min_communication", "coalesce": "rank"},
    },
}


def train_alike_where_groups_are_advised(beside: str) -> list[str]:
    """On a rank; the notices."""
    expected, _ = losses(None)
    dedup = {"use": "exact", "groups": "auto", "weigh": "bytes"}
    found, told = losses({**BESIDE[beside], "dedup": dedup})
    assert found == pytest.approx(expected, rel=1e-6)
    return told


@pytest.mark.parametrize("beside", BESIDE)
def test_groups_that_nobody_named_stop_no_job_with_small_tables(
    gloo_pool: GlooPool, beside: str
) -> None:
    told, *_ = gloo_pool.run(train_alike_where_groups_are_advised, beside, world_size=4)
    said = (
        "dedup: exact gains less than it could: collection bags looks up all samples, for on "
        "unique samples table shop would be row-wise, in a kernel without a row on some of 4 ra"
    )
    assert any(one.startswith(said) for one in told), told
