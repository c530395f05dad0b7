"""Ladder: tables that `goal: auto` has leave memory, as values; then trained so on two ranks."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from test_planner import in_front
from torch import nn
from torchrec.modules.embedding_configs import EmbeddingBagConfig, EmbeddingConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection
from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor
from trio import in_mapped_files

from recd_flexshard.config import FlexShardConfig
from recd_flexshard.flexshard_planner import FlexShardPlanner
from recd_flexshard.policy.search import PlanSearch
from recd_plugins.data.batch import Batch
from recd_plugins.data.schema import Schema, SparseFeature
from recd_plugins.errors import CapabilityError
from recd_plugins.planning.access.access_profile import Profile
from recd_plugins.planning.access.parametric import uniform, zipf
from recd_plugins.planning.cluster.cluster import Cluster
from recd_plugins.planning.cluster.topology import Topology
from recd_plugins.planning.prices.cost import Prices
from recd_plugins.planning.tables.profiled_table import ProfiledTable
from recd_plugins.planning.tier_plans.tier_plan import TierPlan
from recd_plugins.registry.settings import OptimizerSettings
from recd_plugins.slots import Context
from recd_plugins.testing.arrange import Arranged, BySharding
from recd_plugins.testing.gloo import GlooPool
from recd_plugins.testing.parity import check_parity
from recd_plugins.testing.probe import Probe
from recd_plugins.tiers.mapped_tables import IN_MEMORY, file_system

pytestmark = in_mapped_files

B, DIM = 32, 16
SCHEMA = Schema(
    session_id=None,
    timestamp=None,
    dense=("age",),
    sparse=(
        SparseFeature(name="word", num_ids=20_000),
        SparseFeature(name="item", num_ids=2_000),
        SparseFeature(name="page", num_ids=20_000, kind="user", sequence=True),
    ),
)
"""A sample looks up a word, eight items and six pages, a few of these far more often."""
LENGTHS = {"word": 1, "item": 8, "page": 6}
SLOW = {"ranks_per_node": 1, "inter_node_gbps": 0.001}
FAST = {"ranks_per_node": 2, "intra_node_gbps": 500, "mapped_ns": 0}
ROOM_FOR_ITEMS, ROOM_FOR_PAGES = 5e-4, 1.1e-3
"""GB: the items take 0.13 MB, pages and words 1.3 MB each, over two ranks."""


def batch_of(seed: int) -> Batch:
    draw = np.random.default_rng(seed)
    ids = [
        draw.integers(0, 20_000, B),
        draw.integers(0, 2_000, 8 * B),
        (draw.zipf(1.3, 6 * B) - 1) % 20_000,
    ]
    return Batch(
        dense=torch.from_numpy(draw.random((B, 1), np.float32)),
        features=KeyedJaggedTensor(
            keys=list(LENGTHS),
            values=torch.from_numpy(np.concatenate(ids)),
            lengths=torch.tensor(list(LENGTHS.values()), dtype=torch.int32).repeat_interleave(B),
        ),
        labels=torch.from_numpy(draw.integers(0, 2, B)).float(),
        weights=torch.ones(B),
    )


def counted() -> list[Batch]:
    return [batch_of(1_000 + number) for number in range(20)]


def model() -> nn.Module:
    return Probe(SCHEMA, DIM)


def planner(
    config: FlexShardConfig, optimizer: OptimizerSettings | None = None, folder: Path = Path("data")
) -> FlexShardPlanner:
    fused = (optimizer or OptimizerSettings()).fused_params()
    context = Context(batch_size=B, fused=fused, batches=counted, folder=folder)
    return FlexShardPlanner(config, in_front(context, {"search": "greedy"}))


def test_nothing_leaves_memory_that_has_room_for_all() -> None:
    made = planner(FlexShardConfig())
    made.propose(model(), Topology(**SLOW), 2)
    assert made.mapped == ()
    assert "homes:" not in made.explain()
    assert not any(type(one).__name__ == "MappedSharder" for one in made.sharders())


@pytest.mark.parametrize(
    ("room", "mapped"), [(ROOM_FOR_PAGES, ("word",)), (ROOM_FOR_ITEMS, ("word", "page"))]
)
def test_as_few_leave_as_there_is_no_room_for_and_it_says_why(
    room: float, mapped: tuple[str, ...]
) -> None:
    made = planner(FlexShardConfig())
    plan = made.propose(model(), Topology(**FAST, host_memory_gb=room), 2)
    assert made.mapped == mapped
    assert set(plan.plan) == {"bags", "sequences"}
    homes = made.explain().split("homes: ")[1].splitlines()
    assert homes[0].startswith("memory has no room for all tables")
    at = {line.split()[0]: line.split()[1] for line in homes[2:5]}
    assert at == {name: "mapped" if name in mapped else "memory" for name in LENGTHS}
    assert made.report is not None
    reported = {name: one["mapped"] for name, one in made.report.values()["tables"].items()}
    assert reported == {name: name in mapped for name in LENGTHS}


def test_where_nothing_would_fit_it_says_so() -> None:
    with pytest.raises(
        CapabilityError,
        match=r"no room for the tables, even with tables word, page, item in mapped",
    ):
        planner(FlexShardConfig()).propose(model(), Topology(**FAST, host_memory_gb=1e-6), 2)
    for goal, device in (("budget", "cpu"), ("auto", "cuda")):
        made = planner(FlexShardConfig(goal=goal))  # type: ignore[arg-type]
        little = Topology(**FAST, host_memory_gb=1e-6, device_memory_gb=1e-6, device=device)  # type: ignore[arg-type]
        with pytest.raises(CapabilityError, match="do not fit on 2 ranks"):
            made.propose(model(), little, 2)


def test_where_no_table_may_leave_it_does_not_advise_what_is_set_already() -> None:
    little = Topology(**FAST, host_memory_gb=1e-6)
    adam = Context(
        batch_size=B, fused={"optimizer": EmbOptimType.ADAM}, batches=counted, folder=Path("data")
    )
    kept = {name: {"sharding_types": ["table_wise"]} for name in LENGTHS}
    for context, behind in ((adam, {}), (dataclasses.replace(adam, fused={}), kept)):
        others = in_front(context, {"search": "greedy", "constraints": behind})
        with pytest.raises(CapabilityError, match="no table may lie in mapped files") as caught:
            FlexShardPlanner(FlexShardConfig(), others).propose(model(), little, 2)
        assert "do not fit on 2 ranks" in str(caught.value)
        assert "goal: auto" not in str(caught.value)


def test_a_saved_plan_has_its_homes(tmp_path: Path) -> None:
    first, path = planner(FlexShardConfig(budget_gb=1e-4)), tmp_path / "plan.arrow"
    little = Topology(**SLOW, host_memory_gb=ROOM_FOR_ITEMS)
    wanted = first.propose(model(), little, 2)
    assert first.tier_plan is not None
    first.tier_plan.save(path)
    made = planner(FlexShardConfig(plan=path))
    assert made.propose(model(), little, 2).plan == wanted.plan
    assert made.tier_plan == first.tier_plan
    assert made.mapped == first.mapped == ("word", "page")
    assert "in mapped files: word, page" in made.explain()
    made.propose(model(), Topology(**SLOW), 2)  # where memory would have room for all
    assert made.mapped == ("word", "page")
    for options, on, says in (
        ({"tables": ("page",)}, little, "a table 'word' in mapped files, but the model has none"),
        ({}, dataclasses.replace(little, device="cuda"), "which are for the CPU, but the tables"),
    ):
        with pytest.raises(CapabilityError, match=f"sharding.plan: .*{says}"):
            planner(FlexShardConfig(plan=path, **options)).propose(model(), on, 2)  # type: ignore[arg-type]
    with pytest.raises(CapabilityError, match="do not fit on 2 ranks"):
        made.propose(model(), Topology(**SLOW, host_memory_gb=1e-6), 2)


def test_a_saved_plan_may_be_of_homes_alone(tmp_path: Path) -> None:
    path = tmp_path / "plan.arrow"
    TierPlan(tables={}, n_nodes=1, ranks_per_node=2, mapped=("word",)).save(path)
    made = planner(FlexShardConfig(plan=path))
    made.propose(model(), Topology(**FAST, host_memory_gb=ROOM_FOR_PAGES), 2)
    assert made.mapped == ("word",)
    assert made.tier_plan is None


class Two(nn.Module):
    """Pages, and words of fewer rows, in one collection."""

    def __init__(self, words: int, *, bags: bool = False) -> None:
        super().__init__()
        tables = [
            (EmbeddingBagConfig if bags else EmbeddingConfig)(
                name=name, embedding_dim=DIM, num_embeddings=rows, feature_names=[name]
            )
            for name, rows in {"page": 20_000, "word": words}.items()
        ]
        kind = EmbeddingBagCollection if bags else EmbeddingCollection
        self.rows = kind(tables, device=torch.device("meta"))


def beside_pages(words: int, types: list[str], *, bags: bool = False) -> FlexShardPlanner:
    """A planner that has planned both tables on four ranks without room for the pages, where the
    dense optimizer may step tables."""
    context = Context(
        batch_size=B,
        fused={},
        folder=Path("data"),
        data_parallel=True,
        profile=Profile(rows={"page": uniform(20_000, 6), "word": uniform(words, 0.01)}),
    )
    constraints = {"word": {"sharding_types": types}}
    if not bags:
        constraints["page"] = {"sharding_types": ["row_wise"]}
    behind = {"search": "greedy", "constraints": constraints}
    made = FlexShardPlanner(FlexShardConfig(), in_front(context, behind))
    made.propose(Two(words, bags=bags), Topology(**FAST, host_memory_gb=2e-4), 4)
    return made


def test_rows_alone_in_memory_must_be_on_every_rank() -> None:
    """TorchRec has both tables in one kernel, until one of them has files of its own."""
    with pytest.raises(CapabilityError, match=r"table page in mapped files, table word in memory"):
        beside_pages(5, ["row_wise"])  # 2, 2, 1 and 0
    assert beside_pages(8, ["row_wise"]).mapped == ("page",)


@pytest.mark.filterwarnings("ignore:This API is deprecated:DeprecationWarning")
def test_a_saved_plan_leaves_no_rank_without_rows_of_an_optimizers_own_kernel(
    tmp_path: Path,
) -> None:
    """Words and items are in memory, one beside the other, until one is stepped otherwise."""
    path, kept = tmp_path / "plan.arrow", {"sharding_types": ["row_wise"]}
    TierPlan(tables={}, n_nodes=1, ranks_per_node=4, mapped=("page",)).save(path)

    def propose(*, alike: bool) -> FlexShardPlanner:
        tables = {"page": 20_000, "word": 5, "item": 400}  # of the words 2, 2, 1 and 0
        rows = EmbeddingCollection(
            [
                EmbeddingConfig(
                    name=name, embedding_dim=DIM, num_embeddings=count, feature_names=[name]
                )
                for name, count in tables.items()
            ],
            device=torch.device("meta"),
        )
        words = [rows.embeddings["word"].weight]
        if not alike:
            apply_optimizer_in_backward(torch.optim.SGD, words, {"lr": 0.1})
        context = Context(batch_size=B, fused={}, folder=Path("data"))
        behind = {"search": "greedy", "constraints": dict.fromkeys(tables, kept)}
        made = FlexShardPlanner(FlexShardConfig(plan=path), in_front(context, behind))
        made.propose(nn.ModuleDict({"rows": rows}), Topology(ranks_per_node=4), 4)
        return made

    assert propose(alike=True).mapped == ("page",)
    says = r"sharding.plan: .* has table page in mapped files, and table word in memory would have"
    with pytest.raises(CapabilityError, match=says):
        propose(alike=False)


def test_tables_that_every_rank_has_lie_in_no_file() -> None:
    """The words would be the first to leave."""
    made = beside_pages(100, ["data_parallel", "row_wise"], bags=True)
    assert made.mapped == ("page",)
    assert (
        "table word is left to TorchRec, for TorchRec's own plan has it data-par" in made.explain()
    )
    homes = made.explain().split("homes: ")[1].splitlines()[2:4]
    assert [line.split()[:2] for line in homes] == [["word", "memory"], ["page", "mapped"]]


def test_rows_of_mapped_files_are_the_first_to_get_replicas() -> None:
    """Two tables alike, of which the disk reads one."""
    cluster = Cluster.of(Topology(ranks_per_node=1, inter_node_gbps=0.1), 2)
    prices = Prices(cluster=cluster, batch_size=B, k=1.7)
    tables = {
        name: ProfiledTable(name=name, rows=zipf(20_000, 6, 1.2), dim=DIM, mapped=name == "mapped")
        for name in ("mapped", "memory")
    }
    found = PlanSearch(tables, prices, budget=1000 * 1.7 * 4 * DIM).run().tables
    replicas = {name: one.sizes.replicated for name, one in found.items()}
    assert replicas["mapped"] > replicas["memory"]


@dataclass(frozen=True)
class Auto:
    """What the planner chooses where there is room for the items alone; where it is `saved`, as a
    planner has it again that is given the file."""

    folder: Path
    slow: bool
    saved: bool = False

    def __call__(self, model: nn.Module, optimizer: OptimizerSettings) -> Arranged:
        made = planner(FlexShardConfig(budget_gb=1e-4), optimizer, self.folder)
        on = Topology(**(SLOW if self.slow else FAST), host_memory_gb=ROOM_FOR_ITEMS)
        assert dist.group.WORLD is not None
        plan = made.plan(model, on, dist.group.WORLD)
        assert made.mapped == ("word", "page")
        replicas = {}
        if made.tier_plan is not None:
            replicas = {name: len(one.replicated) for name, one in made.tier_plan.tables.items()}
        assert bool(replicas.get("page")) == self.slow
        if self.saved:
            file = self.folder / "plan.arrow"
            if dist.get_rank() == 0:
                assert made.tier_plan is not None
                made.tier_plan.save(file)
            dist.barrier()
            made = planner(FlexShardConfig(plan=file), optimizer, self.folder)
            plan = made.plan(model, on, dist.group.WORLD)
            assert made.mapped == ("word", "page")
        return Arranged(model, plan, made.sharders())


@pytest.mark.parametrize(
    ("slow", "saved"),
    [(True, False), (True, True), (False, False)],
    ids=["behind tiers", "by a saved plan", "as TorchRec has them"],
)
def test_tables_that_left_memory_train_as_plain_torchrec(
    gloo_pool: GlooPool, tmp_path: Path, slow: bool, saved: bool
) -> None:
    if (kind := file_system(tmp_path)) in IN_MEMORY:
        pytest.skip(f"needs a temporary folder on a disk; {tmp_path} lies on {kind}")
    batches = [[batch_of(2 * step + rank) for rank in range(2)] for step in range(4)]
    check_parity(
        gloo_pool,
        partial(model),
        batches,
        arrange=Auto(tmp_path, slow, saved),
        reference=BySharding("table_wise"),
        tables=["sgd", "rowwise_adagrad"] if slow and not saved else ["sgd"],
    )
    assert list((tmp_path / "mapped").iterdir()) == []
