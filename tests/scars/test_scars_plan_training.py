"""Ladder: two gloo ranks train through the stack, cached and coalesced, as row-wise TorchRec."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from on_disk import on_disk
from torch import nn
from trio import in_mapped_files

from recd_dlrm.datasets.sessions.dataset import default_features
from recd_plugins.advise.rank_in_turns import trial_side
from recd_plugins.data.batch import Batch
from recd_plugins.planning.planner_bases import Tiered
from recd_plugins.registry.settings import OptimizerSettings
from recd_plugins.stack import load
from recd_plugins.testing.arrange import ByRegistry, BySharding
from recd_plugins.testing.gloo import GlooPool
from recd_plugins.testing.parity import (
    assert_parity,
    check_parity,
    reference_of,
    train_on,
)

STEPS = 4
FEATURES = [
    dataclasses.asdict(dataclasses.replace(feature, num_ids=min(feature.num_ids, 1_000)))
    for feature in default_features()
]
"""With small tables: the reference trains them whole, in each step."""

REGISTRY: dict[str, Any] = {
    "plugins": ["recd_dlrm", "recd_scars", "recd_flexshard"],
    "dataset": {
        "use": "sessions",
        "samples": 2048,
        "test_fraction": 0.0625,
        "features": FEATURES,
    },
    "reader": {"use": "local", "prefetch": False},
    "sharding": {"use": "torchrec", "search": "greedy"},
    "topology": {"ranks_per_node": 1, "inter_node_gbps": 0.01},
    "train": {
        "device": "cpu",
        "batch_size": 32,
        "steps": 7,
        "log_every": 1,
        "retier_batches": 2,
        # The optimizer that shows a wrong gradient.
        "optimizer": {"tables": "sgd", "tables_lr": 0.5, "dense": "sgd", "dense_lr": 0.05},
    },
}
MODELS: dict[str, Any] = {
    "pooled": {"use": "dlrm", "embedding_dim": 8, "bottom": [8], "top": [8]},
    "sequences": {"use": "sequence_dlrm", "embedding_dim": 8, "bottom": [8], "top": [8]},
}
CACHES: dict[str, Any] = {
    "rank": {"use": "scars", "size": "hit_rate", "hit_rate": 0.5, "coalesce": "rank"},
    "node": {"use": "scars", "size": "budget", "budget_gb": 1e-5, "coalesce": "node"},
    "none": {"use": "scars", "size": "hit_rate", "hit_rate": 0.5, "coalesce": "none"},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where tables are prepared once for all."""
    return tmp_path_factory.mktemp("tables")


def registry(folder: Path, model: str, **changed: Any) -> dict[str, Any]:
    return {**REGISTRY, "folder": str(folder), "model": MODELS[model], **changed}


def model_of(values: dict[str, Any]) -> nn.Module:
    return load(values).model()


def batches_of(values: dict[str, Any], steps: int) -> list[list[Batch]]:
    def of_rank(rank: int) -> Iterator[Batch]:
        return islice(load(values).loader(rank, 2), steps)

    return [list(step) for step in zip(*map(of_rank, range(2)), strict=True)]


@pytest.mark.parametrize(
    ("model", "cache"),
    [("pooled", "rank"), ("pooled", "none"), ("sequences", "node")],
)
def test_weights_are_those_of_row_wise_torchrec(
    gloo_pool: GlooPool, folder: Path, model: str, cache: str
) -> None:
    values = registry(folder, model)
    batches, build = batches_of(values, STEPS), partial(model_of, values)
    arrange = ByRegistry({**values, "cache": CACHES[cache]})
    for kind in ("sgd", "rowwise_adagrad"):
        optimizer = OptimizerSettings(
            tables=kind, tables_lr=0.1, tables_eps=1e-4, dense="sgd", dense_lr=0.1
        )
        ours, theirs = (
            train_on(gloo_pool, build, batches, way, optimizer)
            for way in (arrange, BySharding("row_wise"))
        )
        assert_parity(ours, theirs, reference_of(build, batches, optimizer=optimizer).bounds)


def replicated(values: dict[str, Any]) -> int:
    """On a rank: how many rows the plan replicates, of all tables."""
    stack = load(values)
    stack.plan(stack.adapt(stack.model()))
    planner = stack.planner()
    assert isinstance(planner, Tiered)
    assert planner.tier_plan is not None
    return sum(len(table.replicated) for table in planner.tier_plan.tables.values())


@pytest.mark.parametrize("size", [{"size": "optimum"}, {"size": "hit_rate", "hit_rate": 0.5}])
def test_a_cache_of_rows_that_are_all_alike_trains_alike(
    gloo_pool: GlooPool, folder: Path, size: dict[str, Any]
) -> None:
    """Ids without skew: caching gains little, and must cost no accuracy."""
    item = {"name": "item", "num_ids": 500, "table": "items", "distribution": "uniform"}
    history = item | {"name": "history", "kind": "user", "sequence": True, "length": 4}
    values = registry(
        folder,
        "sequences",
        dataset=REGISTRY["dataset"] | {"features": [history, item]},
        cache={"use": "scars", "window": 4, **size},
    )
    load(values).prepare()
    some = gloo_pool.run(replicated, values)
    assert some[0] == some[1] > 0
    first, second = gloo_pool.run(ordered, values, STEPS)
    assert [batch.hot for batch in first] == [batch.hot for batch in second]
    check_parity(
        gloo_pool,
        partial(model_of, values),
        list(zip(first, second, strict=True)),
        arrange=ByRegistry(values),
        reference=BySharding("row_wise"),
        tables=["sgd"],
    )


def ordered(values: dict[str, Any], steps: int) -> list[Batch]:
    """On a rank: the batches that it trains on, once there is a plan."""
    stack = load(values)
    loader = stack.loader(dist.get_rank(), dist.get_world_size())
    stack.plan(stack.adapt(stack.model()))
    return list(islice(loader, steps))


def held(values: dict[str, Any]) -> list[bool]:
    """On a rank: which batches are hot of those that a trial is fed from memory."""
    side = trial_side(load(values), torch.device("cpu"), held=8)
    return [batch.hot for batch in islice(side.batches, 8)]


def test_hot_batches_come_through_the_stack_and_train_alike(
    gloo_pool: GlooPool, folder: Path
) -> None:
    item = {"name": "item", "num_ids": 500, "table": "items", "skew": 1.2}
    history = item | {"name": "history", "kind": "user", "sequence": True, "length": 4}
    values = registry(
        folder,
        "sequences",
        dataset=REGISTRY["dataset"] | {"features": [history, item]},
        cache={"use": "scars", "size": "hit_rate", "hit_rate": 0.9, "window": 4},
    )
    load(values).prepare()
    first, second = gloo_pool.run(ordered, values, STEPS)
    assert [batch.hot for batch in first] == [batch.hot for batch in second]
    assert {batch.hot for batch in first} == {True, False}
    first_held, second_held = gloo_pool.run(held, values)
    assert first_held == second_held
    assert any(first_held)
    check_parity(
        gloo_pool,
        partial(model_of, values),
        list(zip(first, second, strict=True)),
        arrange=ByRegistry(values),
        reference=BySharding("row_wise"),
        tables=["sgd"],
    )


@in_mapped_files
def test_tables_in_mapped_files_train_alike(gloo_pool: GlooPool, folder: Path) -> None:
    on_disk(folder)
    values = registry(folder, "sequences", topology={"host_memory_gb": 1e-3})
    check_parity(
        gloo_pool,
        partial(model_of, values),
        batches_of(values, STEPS),
        arrange=ByRegistry({**values, "cache": {**CACHES["rank"], "home": "mapped"}}),
        reference=BySharding("row_wise"),
        tables=["sgd"],
    )
    assert list((folder / "mapped").iterdir()) == []


def trained(values: dict[str, Any]) -> tuple[dict[str, list[int]], str]:
    """On a rank: train; the rows that were cached at the end, and why."""
    from recd_plugins.trainer.run import train

    stack = load(values)
    train(stack, torch.device("cpu"))
    planner = stack.planner()
    if not isinstance(planner, Tiered) or planner.tier_plan is None:
        return {}, stack.explain()
    rows = {name: one.replicated.tolist() for name, one in planner.tier_plan.tables.items()}
    return rows, stack.explain()


def losses(run: Path) -> list[float]:
    lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [line["loss"] for line in lines if line["kind"] in ("train", "test")]


def test_the_cache_follows_the_rows_that_are_hot(
    gloo_pool: GlooPool, folder: Path, tmp_path: Path
) -> None:
    cache = {**CACHES["rank"], "profile_batches": 1, "hot_batches": False}

    def run(name: str, **changed: Any) -> tuple[dict[str, list[int]], str]:
        train = {**REGISTRY["train"], "run": str(tmp_path / name), **changed.pop("train", {})}
        # The tables that sessions have by default: no reference trains them whole here.
        dataset = {name: value for name, value in REGISTRY["dataset"].items() if name != "features"}
        values = registry(folder, "sequences", dataset=dataset, train=train, **changed)
        (rows, why), (same, _) = gloo_pool.run(trained, values)
        assert rows == same
        return rows, why

    moved, why = run("moved", cache=cache, train={"retier_every": 3})
    stayed, _ = run("stayed", cache=cache)
    from_nothing = {**cache, "profile_batches": 0}
    learned, _ = run("learned", cache=from_nothing, train={"retier_every": 3})
    assert run("plain")[0] == {}
    assert "scars: size hit_rate, coalesce rank" in why
    assert {name: len(rows) for name, rows in moved.items()} == {
        name: len(rows) for name, rows in stayed.items()
    }
    assert moved != stayed
    # What a seller had in one batch of these foretells nothing of the next.
    assert all(rows for name, rows in learned.items() if name != "t_item_seller")
    expected = losses(tmp_path / "plain")
    assert len(expected) == 7 + 1
    # Means below 1 are rounded to 2**-25, and SGD divides by nothing that noise could be small in:
    # in 7 steps units in the last place add up, and grow no other way.
    assert losses(tmp_path / "moved") == pytest.approx(expected, abs=1e-6)
    assert losses(tmp_path / "stayed") == pytest.approx(expected, abs=1e-6)
    assert losses(tmp_path / "learned") == pytest.approx(expected, abs=1e-6)
