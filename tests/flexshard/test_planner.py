"""Ladder: plans for ranks that are not there, as values; then trained on two and four ranks."""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
import yaml
from torch import nn
from torchrec.distributed.planner.types import ParameterConstraints
from torchrec.modules.embedding_configs import EmbeddingBagConfig, EmbeddingConfig, PoolingType
from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection
from torchrec.modules.feature_processor_ import PositionWeightedModuleCollection
from torchrec.modules.fp_embedding_modules import FeatureProcessedEmbeddingBagCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

import recd_flexshard
from recd_flexshard.config import FlexShardConfig
from recd_flexshard.flexshard_planner import FlexShardPlanner
from recd_plugins.config import parse
from recd_plugins.data.batch import Batch
from recd_plugins.errors import CapabilityError, RegistryError
from recd_plugins.planning.access.access_profile import Profile
from recd_plugins.planning.access.parametric import zipf
from recd_plugins.planning.cluster.topology import Topology
from recd_plugins.planning.prices.ledger import Ledger
from recd_plugins.planning.sharders import default_sharders
from recd_plugins.planning.tier_plans.table_sizes import AS_TORCHREC, TableSizes
from recd_plugins.planning.torchrec_plan.torchrec_planner import (
    TorchRecPlannerConfig,
    build_torchrec_planner,
)
from recd_plugins.registry.settings import OptimizerSettings
from recd_plugins.slots import Context
from recd_plugins.testing.batches import random_batches
from recd_plugins.testing.conformance import check_record
from recd_plugins.testing.gloo import GlooPool
from recd_plugins.testing.probe import SCHEMA, Probe
from recd_plugins.tiers.planner.plan_notices import PlanNotices

SLOW = Topology(ranks_per_node=2, inter_node_gbps=0.02, intra_node_gbps=2)
ROWS = 500


def skewed(batches: int = 20, batch_size: int = 64) -> Iterator[Batch]:
    """Histories of 20 ids, of which most are among the first few rows."""
    draw = np.random.default_rng(0)
    for _ in range(batches):
        ids = (draw.zipf(1.5, batch_size * 20) - 1) % ROWS
        lengths = torch.full((batch_size,), 20, dtype=torch.int32)
        yield Batch(
            dense=torch.zeros(batch_size, 0),
            features=KeyedJaggedTensor(
                keys=["history"], values=torch.from_numpy(ids.astype(np.int64)), lengths=lengths
            ),
            labels=torch.zeros(batch_size),
            weights=torch.ones(batch_size),
        )


class Histories(nn.Module):
    """Two tables of sequences, of which the batches know the first one's feature."""

    def __init__(self, tables: int = 1) -> None:
        super().__init__()
        self.sequences = EmbeddingCollection(
            tables=[
                EmbeddingConfig(
                    name=f"t{number}",
                    embedding_dim=16,
                    num_embeddings=ROWS,
                    feature_names=["history"],
                )
                for number in range(tables)
            ],
            device=torch.device("meta"),
        )


def context(batches: Any = skewed, batch_size: int = 64) -> Context:
    return Context(
        batch_size=batch_size,
        fused=OptimizerSettings().fused_params(),
        batches=batches,
    )


def planner(batches: Any = skewed, **options: Any) -> FlexShardPlanner:
    behind = options.pop("others", {"search": "greedy"})
    config = parse(FlexShardConfig, options, "sharding")
    return FlexShardPlanner(config, in_front(context(batches), behind))


def in_front(context: Context, behind: dict[str, Any]) -> Context:
    """The context of a planner in front of TorchRec's, with these options."""
    config = parse(TorchRecPlannerConfig, behind, "sharding.others")
    others = build_torchrec_planner(config, dataclasses.replace(context, where="sharding.others"))
    return dataclasses.replace(context, others=others)


def test_what_is_faster_and_may_not_be_taken_is_told() -> None:
    """Coalesced rows would halve the step, and send more bytes than sums of whole tables."""
    table = EmbeddingBagConfig(
        name="item", embedding_dim=16, num_embeddings=50_000, feature_names=["item"]
    )
    model = nn.ModuleDict({"bags": EmbeddingBagCollection([table], device=torch.device("meta"))})
    profile = Profile(rows={"item": zipf(50_000, 8, 1.1)})
    context = Context(batch_size=256, fused={}, profile=profile)
    made = FlexShardPlanner(FlexShardConfig(), in_front(context, {}))
    slow = Topology(ranks_per_node=2, inter_node_gbps=0.001, intra_node_gbps=5)
    made.propose(model, slow, 4)
    (notice,) = made.notices()
    exchanges = "exchanges more bytes than TorchRec's own plan"
    assert "replicas or coalescing of ids would pay in table item, but what is" in notice.why
    assert f"what is fastest {exchanges}, so that all tables are TorchRec's" in notice.why
    assert f"slower than sums, with replicas, which {exchanges}" in made.explain()


@pytest.mark.parametrize(
    ("needs_gb", "told"),
    [
        (0.00291, "Allow it, by `sharding.budget_gb: 0.0030`; or take `sharding` out."),
        (12.1, "Allow it, by `sharding.budget_gb: 13`; or take `sharding` out."),
        (0.0, "Take `sharding` out."),
    ],
)
def test_a_budget_is_advised_if_one_would_do(needs_gb: float, told: str) -> None:
    notices = PlanNotices("sharding", "table", asked_by=("sharding",), options_in="sharding")
    over = "takes 3 MiB a rank"
    notice = notices.none_pays(
        ["item"], 2, row_wise=False, over=over, needs_gb=needs_gb, links_stated=True
    )
    assert notice.cure == f"{told} stack.explain() shows what each way takes."


def test_a_budget_is_advised_where_the_options_are() -> None:
    """`cache.budget_gb` is an error where FlexShard plans the rows."""
    both = ("cache", "sharding")
    notices = PlanNotices("cache", "table", asked_by=both, options_in="sharding")
    over = "takes 3 MiB a rank"
    notice = notices.none_pays(
        ["item"], 2, row_wise=False, over=over, needs_gb=0.5, links_stated=True
    )
    assert notice.cure.startswith(
        "Allow it, by `sharding.budget_gb: 0.50`; or take `cache` and `sharding` out."
    )


def test_many_pooled_tables_are_named_by_a_pattern() -> None:
    """The registry that the notice tells to write lets their rows travel, by a formula's profile
    too, which knows no row's id."""
    names = [f"t{number}" for number in range(7)]
    tables = [
        EmbeddingBagConfig(name=name, embedding_dim=16, num_embeddings=999, feature_names=[name])
        for name in names
    ]
    profile = Profile(rows=dict.fromkeys(names, zipf(999, 8, 1.1)))
    context = Context(batch_size=256, fused={}, profile=profile)

    def proposed(**more: Any) -> FlexShardPlanner:
        options = {"goal": "min_communication", "coalesce": "rank", "tiers": 1, **more}
        config = parse(FlexShardConfig, options, "sharding")
        made = FlexShardPlanner(config, in_front(context, {"search": "greedy"}))
        model = nn.ModuleDict({"bags": EmbeddingBagCollection(tables, device=torch.device("meta"))})
        made.propose(model, SLOW, 4)
        return made

    (notice,) = proposed().notices()
    told = re.search("`coalesce: rank, tables: (.*)`", notice.cure)
    assert told is not None
    made = proposed(tables=yaml.safe_load(told[1]))
    assert made.tier_plan is not None
    assert set(made.tier_plan.tables) == set(names)


def test_hot_rows_of_sequences_get_replicas_and_their_tables_are_row_wise() -> None:
    made = planner(goal="min_communication")
    plan = made.propose(Histories(2), SLOW, 4)
    assert made.tier_plan is not None
    assert (made.tier_plan.n_nodes, made.tier_plan.ranks_per_node) == (2, 2)
    for name in ("t0", "t1"):
        assert plan.plan["sequences"][name].sharding_type == "row_wise"
        table = made.tier_plan.tables[name]
        replicas = np.concatenate([table.replicated, table.per_node])
        # By far the most of the lookups are of row 0, then 1, ...
        assert set(range(4)) <= set(replicas[:8].tolist())
        assert len(table.replicated) % 4 == len(table.per_node) % 4 == 0
    assert "TierSharder" in [type(one).__name__ for one in made.sharders()]
    text = made.explain()
    assert "goal min_communication; 2 nodes of 2 ranks" in text
    assert "by TorchRec's performance model" in text


def test_what_it_leaves_alone_is_torchrecs() -> None:
    made = planner(goal="min_communication", tables=["t1"])
    made.propose(Histories(2), SLOW, 4)
    assert made.tier_plan is not None
    assert set(made.tier_plan.tables) == {"t1"}
    with pytest.raises(RegistryError, match="no table matches 't9'"):
        planner(tables=["t9"]).propose(Histories(), SLOW, 4)


def test_a_table_that_is_constrained_otherwise_is_left_alone() -> None:
    for table_wise, tiered in (
        (["table_wise"], {"t1"}),
        (["table_wise", "row_wise"], {"t0", "t1"}),
    ):
        made = planner(
            goal="min_communication",
            others={"search": "greedy", "constraints": {"t0": {"sharding_types": table_wise}}},
        )
        plan = made.propose(Histories(2), SLOW, 4)
        assert made.tier_plan is not None
        assert set(made.tier_plan.tables) == tiered
        assert (plan.plan["sequences"]["t0"].sharding_type == "row_wise") == ("t0" in tiered)


def test_a_trainers_data_parallel_tables_are_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    """Its dense optimizer steps them, where it names no other one, and no row of them travels.
    Where it names one they are sharded, and a notice says so, unless constraints did, or they have
    replicas on every rank."""
    names = {"history": ROWS, "few": 4}
    bags = EmbeddingBagCollection(
        [
            EmbeddingBagConfig(
                name=name, embedding_dim=16, num_embeddings=rows, feature_names=["history"]
            )
            for name, rows in names.items()
        ],
        device=torch.device("meta"),
    )
    batches = list(skewed(4))
    for one in batches:
        one.features.values().clamp_(max=3)  # ids that both tables have
    config = parse(FlexShardConfig, {"budget_gb": 0.001}, "sharding")
    model = nn.ModuleDict({"bags": bags})
    sharded = {"few": ParameterConstraints(sharding_types=["table_wise"])}
    slow = Topology(ranks_per_node=1, inter_node_gbps=0.02)
    for own, kind, constraints, on in (
        (True, "data_parallel", {}, Topology()),
        (False, "table_wise", {}, Topology()),
        (False, "table_wise", sharded, Topology()),
        (False, "row_wise", {}, slow),
    ):
        given = dataclasses.replace(
            context(lambda: batches),
            data_parallel=True,
            constraints=constraints,
            own_sharders=default_sharders if own else None,
        )
        made = FlexShardPlanner(config, in_front(given, {"search": "greedy"}))
        plan = made.propose(model, on, 2)
        assert plan.plan["bags"]["few"].sharding_type == kind
        assert ("table few is left to TorchRec, for TorchRec's own plan" in made.explain()) == own
        said = [
            one
            for one in map(str, made.notices())
            if "names an optimizer of" in one and "few" in one
        ]
        assert len(said) == (kind != "data_parallel" and not constraints)
        in_tiers = ["those with replicas too" in one for one in said]
        assert in_tiers == [kind == "row_wise"] * len(said)
        tiers = made.tier_plan.tables if made.tier_plan else {}
        assert len(tiers["few"].replicated if "few" in tiers else ()) == 4 * (kind == "row_wise")
    assert "Sharding spec not found" not in caplog.text
    (types,) = re.findall(r"`(\[.*\])` there", said[0])
    advised = {"few": {"sharding_types": yaml.safe_load(types)}}
    for on, kind in ((slow, "row_wise"), (Topology(), "table_wise")):
        others = in_front(given, {"search": "greedy", "constraints": advised})
        made = FlexShardPlanner(config, others)
        assert made.propose(model, on, 2).plan["bags"]["few"].sharding_type == kind
        assert "names an optimizer of" not in " ".join(map(str, made.notices()))


@pytest.mark.parametrize("others", [0, 1])
def test_collections_that_are_given_variable_batches_are_left_alone(others: int) -> None:
    """Replicas take no KJT whose keys differ in batch size, as training would find at once."""

    def varying() -> Iterator[list[KeyedJaggedTensor]]:
        for batch in skewed():
            history = batch.features
            keys = KeyedJaggedTensor(
                keys=["query", "document"],
                values=torch.cat([history.values()] * 2),
                lengths=torch.cat([history.lengths()] * 2),
                stride_per_key_per_rank=[[64], [64]],
            )
            assert keys.variable_stride_per_key()
            yield [keys, history]

    tables = [
        EmbeddingConfig(name=name, embedding_dim=16, num_embeddings=ROWS, feature_names=[name])
        for name in ("query", "document")
    ]
    sequences = EmbeddingCollection(tables, device=torch.device("meta"))
    made = planner(varying, goal="min_communication")
    made.context = dataclasses.replace(made.context, features=lambda batch: batch)
    model = nn.ModuleList([sequences, *(Histories() for _ in range(others))])
    made.propose(model, SLOW, 4)
    planned = made.tier_plan.tables if made.tier_plan else {}
    assert set(planned) == {"t0"} if others else not planned
    (notice,) = made.notices()
    assert "tables query, document are left to TorchRec, for keys of the KJT differ" in str(notice)
    assert notice.refused == (not others)


def test_tables_of_two_collections_that_have_one_name_are_left_alone() -> None:
    made = planner(goal="min_communication")
    made.propose(nn.ModuleDict({"query": Histories(1), "document": Histories(2)}), SLOW, 4)
    assert made.tier_plan is not None
    assert set(made.tier_plan.tables) == {"t1"}
    (notice,) = made.notices()
    for text in (str(notice), made.explain()):
        assert "table t0 is left to TorchRec, for other collections have tables" in text


@pytest.mark.parametrize(("strange", "told"), [(0.2, False), (0.8, True), (1.0, True)])
def test_ids_that_are_none_of_a_tables_are_told(strange: float, told: bool) -> None:
    """A model maps hashes, say, and its loader's batches hold them as they are."""
    batches = list(skewed())
    for batch in batches:
        ids = batch.features.values()
        ids[: int(strange * len(ids))] += 1 << 40
    made = planner(lambda: batches, goal="min_communication")
    made.propose(Histories(), SLOW, 4)
    says = "most ids that were counted of table t0 are of no row, as where a model maps ids"
    assert any(says in str(one) for one in made.notices()) == told


def notices_on_ranks(apart: bool) -> list[str]:
    first = dist.get_rank() if apart else 0
    made = planner(lambda: itertools.islice(skewed(), first, None), goal="min_communication")
    assert dist.group.WORLD is not None
    made.plan(Histories(), SLOW, dist.group.WORLD)
    return [str(notice) for notice in made.notices()]


@pytest.mark.parametrize("apart", [False, True])
def test_ranks_that_count_the_same_batches_are_told(gloo_pool: GlooPool, apart: bool) -> None:
    """A trainer's loader is not split over ranks."""
    told, _ = gloo_pool.run(notices_on_ranks, apart)
    assert any("every rank counted the same batches" in one for one in told) == (not apart)


@pytest.mark.parametrize("others", [0, 1])
def test_means_of_weighted_ids_are_left_alone(others: int) -> None:
    """What TorchRec makes of them is another thing where a table is row-wise."""
    pools = {"means": PoolingType.MEAN} | ({"sums": PoolingType.SUM} if others else {})
    tables = [
        EmbeddingBagConfig(
            name=name,
            embedding_dim=16,
            num_embeddings=ROWS,
            feature_names=["history"],
            pooling=pooling,
        )
        for name, pooling in pools.items()
    ]

    def scored() -> Iterator[Batch]:
        for batch in skewed():
            kjt = batch.features
            weights = torch.ones(len(kjt.values()))
            yield dataclasses.replace(
                batch,
                features=KeyedJaggedTensor(
                    keys=kjt.keys(), values=kjt.values(), lengths=kjt.lengths(), weights=weights
                ),
            )

    for says, has in itertools.product((False, True), repeat=2):
        weighted = says or has
        batches = scored if has else skewed
        made = planner(batches, goal="min_communication", coalesce="rank", tables=["*s"])
        bags = EmbeddingBagCollection(tables, is_weighted=says, device=torch.device("meta"))
        plan = made.propose(nn.ModuleDict({"bags": bags}), SLOW, 4)
        planned = set(made.tier_plan.tables) if made.tier_plan else set()
        assert planned == set(pools) - ({"means"} if weighted else set())
        notices = [str(one) for one in made.notices() if "weighted ids" in str(one)]
        assert len(notices) == weighted
        if weighted:
            assert plan.plan["bags"]["means"].sharding_type != "row_wise"
            assert "table means is left to TorchRec" in notices[0]
            assert "Pool weighted ids by the sum" in notices[0]


@pytest.mark.parametrize("goal", ["auto", "memory_neutral"])
def test_every_goal_makes_a_plan(goal: str) -> None:
    made = planner(goal=goal)
    made.propose(Histories(), SLOW, 4)
    assert made.report is not None
    report = made.report
    assert report.ledger.ms <= (report.torchrec if goal == "auto" else report.row_wise).ms
    level = report.ledger.tables["t0"].sizes.coalesce
    tables = {name: one.table for name, one in report.ledger.tables.items()}
    alone = Ledger.of(tables, {"t0": TableSizes(coalesce=level)}, report.ledger.prices)
    assert report.ledger.memory <= max(report.row_wise.memory, alone.memory)


def test_k_and_budgets_size_the_tiers() -> None:
    def replicas(**options: Any) -> int:
        made = planner(tiers=2, **options)
        made.propose(Histories(), SLOW, 4)
        assert made.report is not None
        return made.report.ledger.tables["t0"].sizes.replicated

    assert replicas(goal="memory_neutral", k=6.25) < replicas(goal="memory_neutral", k=1.5)
    small, large = (replicas(goal="budget", k=6.25, budget_gb=gb) for gb in (0.0, 1e-5))
    assert small < large
    with pytest.raises(CapabilityError, match=r"Raise sharding\.budget_gb"):
        replicas(goal="budget", budget_gb=-1.0)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"goal": "memory_neutral", "budget_gb": 5}, "sharding.budget_gb: is for `goal: budget or"),
        ({"goal": "min_communication", "budget_gb": 0}, "but goal is min_communication"),
        ({"goal": "max_memory_saving", "budget_gb": -1}, "but goal is max_memory_saving"),
        ({"coalesce": "node"}, "sharding.coalesce: is node, but goal auto itself chooses"),
        ({"coalesce": "none", "goal": "auto"}, "Leave it out, or write `goal: budget`"),
        ({"budget_gb": float("nan")}, "sharding.budget_gb: must be a finite number, but is nan"),
        (
            {"plan": "p.arrow", "k": 2},
            "sharding.k: sizes a plan, but `plan: p.arrow` is a complete one",
        ),
        ({"plan": "p.arrow", "goal": "budget"}, "sharding.goal: sizes a plan"),
        ({"profile_batches": 2**63}, r"sharding.profile_batches: must be >= 1 and <= 1e\+09"),
        ({"k": "inf"}, "sharding.k: must be a finite number, but is inf"),
    ],
)
def test_options_that_clash_or_are_no_numbers_are_reported_at_once(
    options: dict[str, Any], says: str
) -> None:
    with pytest.raises(RegistryError, match=says):
        planner(**options)


@pytest.mark.parametrize(
    ("optimizer", "k"), [("sgd", 1.64), ("rowwise_adagrad", 1.64 + 4 / 64), ("adagrad", 2.64)]
)
def test_k_follows_from_the_optimizer_where_nobody_says(optimizer: Any, k: float) -> None:
    fused = OptimizerSettings(tables=optimizer).fused_params()
    made = planner()
    made.context = dataclasses.replace(made.context, fused=fused)
    made.propose(Histories(), SLOW, 4)
    assert made.report is not None
    assert made.report.ledger.prices.k == pytest.approx(k)


def test_fast_links_leave_everything_to_torchrec() -> None:
    fast = Topology(inter_node_gbps=1e6, intra_node_gbps=1e6, unique_ns=1000, op_us=1000)
    made = planner()
    plan = made.propose(Histories(), fast, 4)
    assert made.tier_plan is None
    assert made.report is not None
    assert made.report.ledger.tables["t0"].sizes == AS_TORCHREC
    assert "TierSharder" not in [type(one).__name__ for one in made.sharders()]
    assert set(plan.plan["sequences"]) == {"t0"}
    assert "nobody measured the links (what the topology says stands for them) and" in (
        made.explain()
    )


def test_a_saved_profile_takes_the_place_of_batches(tmp_path: Path) -> None:
    first = planner()
    first.propose(Histories(), SLOW, 4)
    assert first.profile is not None
    first.profile.save(tmp_path / "profile.arrow")

    def none() -> Iterable[Batch]:
        raise AssertionError("nothing must be read")

    second = planner(none, profile=str(tmp_path / "profile.arrow"))
    second.propose(Histories(), SLOW, 4)
    assert second.tier_plan == first.tier_plan
    other = Profile(rows={"t0": dataclasses.replace(first.profile["t0"].part(0, 100), ids=None)})
    other.save(tmp_path / "other.arrow")
    with pytest.raises(CapabilityError, match="of 100 rows, but the model's has 500"):
        planner(none, profile=str(tmp_path / "other.arrow")).propose(Histories(), SLOW, 4)
    Profile(rows={"t1": first.profile["t0"]}).save(tmp_path / "another.arrow")
    with pytest.raises(CapabilityError, match=r"another\.arrow has no table 't0'.* Profile again"):
        planner(none, profile=str(tmp_path / "another.arrow")).propose(Histories(), SLOW, 4)


def test_constraints_of_the_others_are_named_by_their_path() -> None:
    options = {"constraints": {"t9": {"sharding_types": ["row_wise"]}}}
    with pytest.raises(RegistryError, match=r"^sharding\.others\.constraints: no table .*'t9'"):
        planner(others=options).propose(Histories(), SLOW, 4)


def test_a_saved_plan_is_taken_as_it_is(tmp_path: Path) -> None:
    first = planner(goal="min_communication")
    wanted = first.propose(Histories(2), SLOW, 4)
    assert first.tier_plan is not None
    path = tmp_path / "plan.arrow"
    first.tier_plan.save(path)
    made = planner(None, plan=str(path))  # nothing is read
    assert made.propose(Histories(2), SLOW, 4).plan == wanted.plan
    assert made.tier_plan == first.tier_plan
    assert [type(one) for one in made.sharders()] == [type(one) for one in first.sharders()]
    assert f"tier plan: as in {path}; 2 nodes of 2 ranks, 2 tables" in made.explain()
    rows = len(first.tier_plan.tables["t1"].replicated)
    assert f"t1: {rows:,} rows in replicated" in made.explain()
    for model, options, world_size, says in (
        (Histories(1), {}, 4, "of a table 't1', but the model has none"),
        (Histories(2), {"tables": ["t0"]}, 4, "of a table 't1'"),
        (Histories(2), {}, 8, "is for 2 nodes of 2 ranks, but here are 4 nodes of 2"),
    ):
        with pytest.raises(CapabilityError, match=f"sharding.plan: .*{says}"):
            planner(None, plan=str(path), **options).propose(model, SLOW, world_size)


def test_without_batches_or_sequences_it_says_so() -> None:
    made = planner(None)
    made.propose(Histories(), SLOW, 4)
    assert made.tier_plan is None
    assert "no batches to profile" in made.explain()
    model = Probe()
    del model.sequences
    bags = planner(goal="budget")
    bags.propose(model, SLOW, 4)
    assert "Set `goal: auto`, which plans pooled tables too" in bags.explain()


class Scored(nn.Module):
    """Bags behind a feature processor, and others beside them."""

    def __init__(self, *others: str) -> None:
        super().__init__()
        processor = PositionWeightedModuleCollection({"scored": 4})
        self.scored = FeatureProcessedEmbeddingBagCollection(bags("scored", True), processor)
        self.others = nn.ModuleList(bags(name, False) for name in others)


def bags(name: str, is_weighted: bool) -> EmbeddingBagCollection:
    table = EmbeddingBagConfig(
        name=name, embedding_dim=16, num_embeddings=ROWS, feature_names=[name]
    )
    meta = torch.device("meta")
    return EmbeddingBagCollection([table], is_weighted=is_weighted, device=meta)


@pytest.mark.parametrize(
    ("others", "says"),
    [
        (["item"], r"let their rows travel: `coalesce: rank, tables: \[item\]`"),
        ([], "table scored is left to TorchRec, for FeatureProcessedEmbeddingBagCollectionSharder"),
    ],
)
def test_tables_that_none_can_choose_are_not_proposed(others: list[str], says: str) -> None:
    """Bags are planned where they are named; those behind a feature processor nowhere."""
    made = planner(goal="min_communication", coalesce="rank")
    made.propose(Scored(*others), SLOW, 4)
    (said,) = [text for text in map(str, made.notices()) if "flexshard is not used" in text]
    assert re.search(says, said)


@pytest.mark.parametrize(
    ("constrained", "says"),
    [
        (["item"], r"let their rows travel: `coalesce: rank, tables: \[user\]`"),
        (["item", "user"], "constraints keep tables item, user from being row-wise"),
    ],
)
def test_tables_that_constraints_keep_whole_are_not_proposed(
    constrained: list[str], says: str
) -> None:
    constraints = {name: {"sharding_types": ["table_wise"]} for name in constrained}
    others = {"search": "greedy", "constraints": constraints}
    made = planner(goal="min_communication", coalesce="rank", others=others)
    made.propose(nn.ModuleList(bags(name, False) for name in ("item", "user")), SLOW, 4)
    (said,) = [text for text in map(str, made.notices()) if "flexshard is not used" in text]
    assert re.search(says, said)


def probed() -> Iterable[Batch]:
    return [step[0] for step in random_batches(SCHEMA, steps=8)]


def test_the_record_keeps_its_contract(gloo_pool: GlooPool) -> None:
    """Weights equal unsharded ones, with replicas or without."""
    (record,) = recd_flexshard.recd_sharding()
    base = Context(schema=SCHEMA, batch_size=16)
    options = {"others": {"search": "greedy"}}
    check_record(record, options=options, context=base, pool=gloo_pool)
    check_record(
        record,
        options={**options, "goal": "min_communication", "tiers": 2},
        context=dataclasses.replace(base, batches=partial(probed)),
        pool=gloo_pool,
    )


def test_pooled_tables_are_planned_where_they_are_named_and_coalesced(gloo_pool: GlooPool) -> None:
    """Weights equal unsharded ones: rows travel once, and are summed where they are asked for."""
    (record,) = recd_flexshard.recd_sharding()
    context = Context(schema=SCHEMA, batch_size=16, batches=partial(probed))
    options = {
        "others": {"search": "greedy"},
        "goal": "min_communication",
        "coalesce": "rank",
        "tables": ["item", "shop", "history"],
    }
    own = {name: option for name, option in options.items() if name != "others"}
    front = in_front(context, {"search": "greedy"})
    made = FlexShardPlanner(parse(FlexShardConfig, own, "sharding"), front)
    made.propose(Probe(), SLOW, 4)
    assert made.tier_plan is not None
    assert set(made.tier_plan.tables) == {"item", "shop", "history"}
    assert made.report is not None
    assert made.report.row_wise.cost.ar_global > 0  # of sums
    check_record(record, options=options, context=context, pool=gloo_pool)


def test_pooled_tables_are_named_but_for_the_goal_auto() -> None:
    def tables(*names: str, **options: Any) -> set[str]:
        made = planner(probed, **{"goal": "min_communication", **options}, tables=names)
        made.propose(Probe(), SLOW, 4)
        return set(made.tier_plan.tables) if made.tier_plan else set()

    assert tables("*", coalesce="rank") == {"history"}
    assert tables("item", "history", coalesce="rank") == {"item", "history"}
    with pytest.raises(RegistryError, match="no table of sequences matches 'item'"):
        tables("item")
    assert tables("*", goal="auto") == {"item", "shop", "history"}
