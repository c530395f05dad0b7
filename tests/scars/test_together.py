"""Rung 3 (two gloo ranks): one registry has the papers together, and trains as row-wise TorchRec.

FlexShard says which rows have replicas, SCARS forms hot batches by them and has the tables in
mapped files, and RecD's unique samples come in the batches.
"""

from __future__ import annotations

import dataclasses
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from on_disk import on_disk
from torch import nn
from trio import in_mapped_files

from recd_plugins.cli.plan import _changed
from recd_plugins.compat.both_ways import exchange_both_ways
from recd_plugins.data.batch import Batch
from recd_plugins.errors import CapabilityError, RegistryError
from recd_plugins.notices import NoticeWarning
from recd_plugins.planning.access.access_profile import Profile
from recd_plugins.planning.planner_bases import Tiered
from recd_plugins.planning.tier_plans.tier_plan import TierPlan
from recd_plugins.sparse.features import SparseFeatures
from recd_plugins.stack import Stack, load
from recd_plugins.testing.arrange import ByRegistry, BySharding
from recd_plugins.testing.gloo import GlooPool
from recd_plugins.testing.parity import check_parity

STEPS = 4
ITEM = {"name": "item", "num_ids": 500, "table": "items", "skew": 1.2}
HISTORY = {**ITEM, "name": "history", "kind": "user", "sequence": True, "length": 4, "stay": 0.9}
REGISTRY: dict[str, Any] = {
    "plugins": ["recd_dlrm", "recd_dedup", "recd_flexshard", "recd_scars"],
    "dataset": {
        "use": "sessions",
        "samples": 2048,
        "test_fraction": 0.0625,
        "samples_per_session": 8,
        "features": [HISTORY, ITEM],
    },
    "etl": [{"use": "cluster_by_session"}],
    "reader": {"use": "local", "prefetch": False},
    "topology": {"ranks_per_node": 1, "inter_node_gbps": 0.01},
    "train": {"device": "cpu", "batch_size": 32, "steps": STEPS, "log_every": 1},
}
MODELS = {
    "sequences": {"use": "sequence_dlrm", "embedding_dim": 8, "bottom": [8], "top": [8]},
    "pooled": {"use": "dlrm", "embedding_dim": 8, "bottom": [8], "top": [8]},
}
FLEXSHARD = {
    "use": "flexshard",
    "goal": "budget",
    "budget_gb": 8e-6,
    "coalesce": "rank",
    "tables": ["t_items"],
    "others": {"use": "torchrec", "search": "greedy"},
}
SCARS = {"use": "scars", "size": "plan", "window": 4}


def registry(folder: Path, model: str = "sequences", **slots: Any) -> dict[str, Any]:
    sharded = {"sharding": FLEXSHARD, "cache": SCARS} | slots
    return {**REGISTRY, "folder": str(folder), "model": MODELS[model], **sharded}


def model_of(values: dict[str, Any]) -> nn.Module:
    return load(values).model()


def tier_plan_of(stack: Stack) -> TierPlan:
    planner = stack.planner()
    assert isinstance(planner, Tiered)
    assert planner.tier_plan is not None
    return planner.tier_plan


def ordered(values: dict[str, Any]) -> tuple[list[Batch], list[int], str]:
    """On a rank: the batches that it trains on, the rows of both tiers, and why."""
    stack = load(values)
    loader = stack.loader(dist.get_rank(), dist.get_world_size())
    stack.plan(stack.adapt(stack.model()))
    tiers = [
        len(rows)
        for one in tier_plan_of(stack).tables.values()
        for rows in (one.replicated, one.per_node)
    ]
    return list(islice(loader, STEPS)), tiers, stack.explain()


def expanded(batch: Batch) -> Batch:
    """All samples, with nothing deduplicated."""
    sparse = batch.sparse
    if isinstance(sparse, SparseFeatures):
        return dataclasses.replace(batch, features=sparse.to_kjt(), dedup=None)
    return batch


def check_alike(
    pool: GlooPool, values: dict[str, Any], first: list[Batch], second: list[Batch]
) -> None:
    """Two ranks train on their batches as row-wise TorchRec does on all samples."""
    batches = list(zip(first, second, strict=True))
    check_parity(
        pool,
        partial(model_of, values),
        batches,
        arrange=ByRegistry(values),
        reference=BySharding("row_wise"),
        reference_batches=[[expanded(batch) for batch in step] for step in batches],
        tables=["sgd", "rowwise_adagrad"],
    )


@pytest.mark.parametrize(
    ("model", "slots"),
    [
        ("sequences", {"dedup": {"use": "exact", "groups": [["history"]]}}),
        pytest.param("pooled", {"cache": {**SCARS, "home": "mapped"}}, marks=in_mapped_files),
    ],
)
def test_all_that_one_registry_can_have_trains_alike(
    gloo_pool: GlooPool, tmp_path: Path, model: str, slots: dict[str, Any]
) -> None:
    if slots.get("cache", {}).get("home") == "mapped":
        on_disk(tmp_path)
    values = registry(tmp_path, model, **slots)
    load(values).prepare()
    (first, tiers, why), (second, same, _) = gloo_pool.run(ordered, values)
    assert tiers == same
    assert sum(tiers) > 0
    assert "scars: size plan, as sharding: flexshard has it" in why
    assert [batch.hot for batch in first] == [batch.hot for batch in second]
    assert {batch.hot for batch in first} == {True, False}
    check_alike(gloo_pool, values, first, second)


def in_turns() -> None:
    """As before, for the tests that follow."""
    assert dist.group.WORLD is not None
    exchange_both_ways(dist.group.WORLD, on=False)


def test_all_train_alike_where_exchanges_have_both_ways_at_once(
    gloo_pool: GlooPool, tmp_path: Path
) -> None:
    values = registry(
        tmp_path,
        dedup={"use": "exact", "groups": [["history"]]},
        topology=REGISTRY["topology"] | {"both_ways": True},
    )
    load(values).prepare()
    try:
        (first, _, why), (second, _, _) = gloo_pool.run(ordered, values)
        assert "exchanges of ids, rows and gradients: both ways at once" in why
        check_alike(gloo_pool, values, first, second)
    finally:
        gloo_pool.run(in_turns)


def proposed(values: dict[str, Any]) -> Any:
    stack = load(values)
    return stack.planned_for(stack.model(), 2)


def saved_in(path: Path) -> dict[str, Any]:
    """The slot by which a saved plan is taken as it is."""
    return {"use": "flexshard", "plan": str(path), "others": FLEXSHARD["others"]}


def test_the_cache_is_what_the_sharding_plans(tmp_path: Path) -> None:
    values = registry(tmp_path)
    load(values).prepare()
    together = proposed(values)
    alone = proposed({name: part for name, part in values.items() if name != "cache"})
    assert together.tier_plan.version == alone.tier_plan.version
    assert together.report.ledger.ms == alone.report.ledger.ms
    path = tmp_path / "plan.arrow"
    # All are in mapped files, whatever the plan says.
    for home, mapped, saved in (
        ("memory", ("t_items",), ("t_items",)),
        ("mapped", (), ("t_items", "left_out")),
    ):
        dataclasses.replace(alone.tier_plan, mapped=saved).save(path)
        again = proposed({**values, "sharding": saved_in(path), "cache": {**SCARS, "home": home}})
        assert again.mapped == mapped
        assert again.tier_plan.version == alone.tier_plan.version
        changed = _changed(again, TierPlan.load(path))
        assert not any("home" in str(change) for change in changed.values())
    # What is not worth it is left alone by both, and the cache says so for its slot.
    fast = {"topology": {"ranks_per_node": 2, "intra_node_gbps": 500}}
    auto = {**FLEXSHARD, "goal": "auto", "budget_gb": None, "coalesce": None, "tables": ["*"]}
    with pytest.warns(NoticeWarning, match="cache: scars is not used: by its prices for 2 ranks"):
        left = proposed(registry(tmp_path, sharding=auto, **fast))
    assert left.tier_plan is None
    # Nor if the policy alone is told that it is for none of the tables.
    bags = {**FLEXSHARD, "coalesce": "none", "tables": ["*"]}
    with pytest.warns(NoticeWarning) as told:
        proposed(registry(tmp_path, "pooled", sharding=bags))
    says = [str(one.message) for one in told]
    unused = "sharding: flexshard is not used: the model has no table of sequences"
    assert any(unused in one for one in says)
    assert any("cache: hot_batches is not used: no row has a copy on every" in one for one in says)


def test_the_replicas_of_a_saved_plan_move_too(tmp_path: Path) -> None:
    values, path = registry(tmp_path), tmp_path / "plan.arrow"
    load(values).prepare()
    alone = {name: part for name, part in values.items() if name != "cache"}
    saved = proposed(alone).tier_plan
    saved.save(path)
    together = proposed({**values, "sharding": saved_in(path)})
    moved = together.hotter(islice(load(alone).loader(0, 1), STEPS))
    assert len(saved.tables["t_items"].replicated)
    for name, before in saved.tables.items():
        after = moved.tables[name]
        assert len(after.replicated) == len(before.replicated)
        assert set(after.replicated) != set(before.replicated)


def test_what_is_wrong_with_a_file_is_said_of_the_slot_that_names_it(tmp_path: Path) -> None:
    values = registry(tmp_path)
    load(values).prepare()
    made = proposed(values)
    plan, profile = tmp_path / "plan.arrow", tmp_path / "profile.arrow"
    dataclasses.replace(made.tier_plan, n_nodes=4).save(plan)
    Profile(rows={"albums": made.profile["t_items"]}).save(profile)
    with pytest.raises(CapabilityError, match=r"sharding\.plan: .* is for 4 nodes of 1 rank"):
        proposed({**values, "sharding": saved_in(plan)})
    with pytest.raises(CapabilityError, match=r"sharding\.profile: .* has no table 't_items'"):
        proposed({**values, "sharding": {**FLEXSHARD, "profile": str(profile)}})


@pytest.mark.parametrize(
    ("slots", "says"),
    [
        ({"sharding": "torchrec"}, r"cache\.size: is plan, .* \(TorchRecPlanner\) gives no row"),
        (
            {"cache": {"use": "scars", "size": "optimum"}},
            r"cache\.size: is optimum, but sharding: flexshard gives rows replicas too",
        ),
        ({"cache": {**SCARS, "coalesce": "node"}}, r"cache\.coalesce: cannot be set here"),
        (
            {"sharding": saved_in(Path("plan.arrow")), "cache": {**SCARS, "home": "host"}},
            r"cache\.home: is host, .* but sharding\.plan is a saved plan",
        ),
    ],
)
def test_who_says_what_is_reported(tmp_path: Path, slots: dict[str, Any], says: str) -> None:
    with pytest.raises(RegistryError, match=says):
        load(registry(tmp_path, **slots)).check()
