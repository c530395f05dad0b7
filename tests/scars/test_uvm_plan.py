"""Ladder: plans for GPUs that are not there, two gloo ranks with such a plan, one real GPU."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
import yaml
from torch import nn
from torchrec.distributed.types import CacheAlgorithm, CacheParams, ShardingPlan
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recd_plugins.config import parse
from recd_plugins.data.batch import Batch
from recd_plugins.data.schema import Schema, SparseFeature
from recd_plugins.errors import CapabilityError, RegistryError
from recd_plugins.planning.cluster.topology import GB, Topology
from recd_plugins.planning.explain.words import in_share
from recd_plugins.planning.torchrec_plan.torchrec_planner import (
    TorchRecPlannerConfig,
    build_torchrec_planner,
)
from recd_plugins.registry.settings import OptimizerSettings
from recd_plugins.slots import Context
from recd_plugins.testing.arrange import Arranged, BySharding
from recd_plugins.testing.gloo import GlooPool
from recd_plugins.testing.parity import check_parity
from recd_plugins.testing.probe import Probe
from recd_scars.config import ScarsConfig
from recd_scars.scars_planner import ScarsPlanner, build_scars

SCHEMA = Schema(
    session_id=None,
    timestamp=None,
    dense=("age", "price"),
    sparse=(
        SparseFeature(name="item", num_ids=4_000),
        SparseFeature(name="shop", num_ids=300),
        SparseFeature(name="history", num_ids=6_000, kind="user", sequence=True),
    ),
)
"""Items by Zipf's law, shops all alike, a history of 8 by Zipf's law."""
TABLES = {"bags": ("item", "shop"), "sequences": ("history",)}
ON_CUDA = Topology(device="cuda", ranks_per_node=2)
CACHE = {"use": "scars", "home": "host", "size": "hit_rate", "hit_rate": 0.3}


def batches(steps: int = 20, batch_size: int = 64, seed: int = 0) -> Iterator[Batch]:
    draw = np.random.default_rng(seed)
    lengths = torch.ones(3, batch_size, dtype=torch.int32)
    lengths[2] = 8
    for _ in range(steps):
        ids = [
            (draw.zipf(1.2, batch_size) - 1) % 4_000,
            draw.integers(0, 300, batch_size),
            (draw.zipf(1.1, batch_size * 8) - 1) % 6_000,
        ]
        yield Batch(
            dense=torch.from_numpy(draw.random((batch_size, 2), np.float32)),
            features=KeyedJaggedTensor(
                keys=["item", "shop", "history"],
                values=torch.from_numpy(np.concatenate(ids).astype(np.int64)),
                lengths=lengths.flatten(),
            ),
            labels=torch.from_numpy(draw.integers(0, 2, batch_size).astype(np.float32)),
            weights=torch.ones(batch_size),
        )


def planner(
    optimizer: OptimizerSettings | None = None, reserve: float = 0.15, **options: Any
) -> ScarsPlanner:
    fused = (optimizer or OptimizerSettings(tables="rowwise_adagrad")).fused_params()
    config = parse(TorchRecPlannerConfig, {"search": "greedy", "reserve": reserve}, "sharding")
    others = build_torchrec_planner(config, Context(batch_size=64, fused=fused))
    context = Context(batch_size=64, fused=fused, batches=batches, others=others)
    options = {name: value for name, value in (CACHE | options).items() if name != "use"}
    return build_scars(parse(ScarsConfig, options, "cache"), context)


def memory_for(room: float, **options: Any) -> float:
    """GB of a device that leave so many bytes for tables and their caches."""
    made = planner(**options)
    made.propose(Probe(SCHEMA), dataclasses.replace(ON_CUDA, device_memory_gb=1), 2)
    assert made.served is not None
    planned_for = (1 - made.others.reserve) * GB
    return float((planned_for - made.served.capacity + room) / planned_for)


def planned(
    room: float, world_size: int = 2, **options: Any
) -> tuple[ScarsPlanner, dict[str, Any]]:
    """With so much memory for tables: the planner, and TorchRec's `ParameterSharding` by table."""
    made = planner(**options)
    on = dataclasses.replace(ON_CUDA, device_memory_gb=memory_for(room, **options))
    plan = made.propose(Probe(SCHEMA), on, world_size)
    return made, {name: how for module in plan.plan.values() for name, how in module.items()}


@pytest.mark.parametrize("algorithm", ["lru", "lfu"])
def test_the_kernel_follows_from_rows_and_memory(algorithm: str) -> None:
    enum = CacheAlgorithm[algorithm.upper()]
    made, tables = planned(50_000, cache_algorithm=algorithm)
    assert made.served is not None
    assert {name: how.sharding_type for name, how in tables.items()} == dict.fromkeys(
        tables, "row_wise"
    )
    for name, how in tables.items():
        choice = made.served.choices[name]
        assert how.compute_kernel == choice.kernel
        # All name the algorithm: tables of equal cache params share a kernel, load factor aside.
        assert how.cache_params == CacheParams(algorithm=enum, load_factor=choice.load_factor)
    cached = {n: c for n, c in made.served.choices.items() if c.kernel == "fused_uvm_caching"}
    assert cached
    for name, choice in cached.items():
        rows = tables[name].sharding_spec.shards[0].shard_sizes[0]
        assert choice.load_factor == choice.slots / rows
        assert 0 < choice.load_factor < choice.hit_rate < 1


@pytest.mark.parametrize(("room", "kernel"), [(0, "fused_uvm"), (400_000, "fused")])
def test_without_memory_none_is_on_the_device_and_with_plenty_all(room: int, kernel: str) -> None:
    _, tables = planned(room)
    assert {how.compute_kernel for how in tables.values()} == {kernel}
    assert {how.cache_params.load_factor for how in tables.values()} == {None}


@pytest.mark.parametrize("reserve", [0.15, 0.4])
def test_a_device_is_not_filled_to_its_last_byte(reserve: float) -> None:
    """TorchRec's planner is told of no limit there, and CUDA, activations and collectives have to
    have room."""
    device = 2e-4
    made = planner(reserve=reserve)
    made.propose(Probe(SCHEMA), dataclasses.replace(ON_CUDA, device_memory_gb=device), 2)
    assert made.served is not None
    assert {one.kernel for one in made.served.choices.values()} != {"fused"}
    taken = sum(one.device_bytes for one in made.served.choices.values())
    left = (1 - reserve) * device * GB
    assert left / 2 < taken < left


def test_on_one_rank_the_caches_of_kernels_have_the_memory_of_replicas() -> None:
    """No row travels there, and a step does not make up for two ways to keep rows at hand."""
    options = {"size": "optimum", "hit_rate": None}
    alone = dataclasses.replace(ON_CUDA, ranks_per_node=1, device_memory_gb=1e-3)
    made = planner(**options)
    plan = made.propose(Probe(SCHEMA), alone, 1)
    tables = {name: how for module in plan.plan.values() for name, how in module.items()}
    assert made.tier_plan is None
    assert made.served is not None
    assert {name: how.sharding_type for name, how in tables.items()} == dict.fromkeys(
        made.served.choices, "row_wise"
    )
    for name, choice in made.served.choices.items():
        assert tables[name].compute_kernel == choice.kernel
    assert {one.kernel for one in made.served.choices.values()} != {"fused_uvm"}
    assert "on one rank no row travels" in made.explain()
    assert [one.what for one in made.notices()] == ["cache: hot_batches"]
    asked = planner(hit_rate=0.3)  # whoever says how many rows gets them
    asked.propose(Probe(SCHEMA), alone, 1)
    assert asked.tier_plan is not None


def test_it_says_what_serves_each_table_and_what_that_hits() -> None:
    made, _ = planned(50_000)
    assert made.served is not None
    text = made.explain()
    assert "GB of a rank's device are left for them and their caches (lru)" in text
    lines = text[text.index("tables in host memory") :].splitlines()
    assert lines[1].split("  ")[0] == "table"
    for name, choice in made.served.choices.items():
        line = next(line for line in lines if line.startswith(name)).split()
        assert line[1] == choice.kernel
        assert line[3] == f"{choice.slots:,}"
        assert made.tier_plan is not None
        assert made.profile is not None
        hot = len(made.tier_plan.tables[name].replicated)
        rows = made.profile[name]
        assert line[4] == in_share(rows.coverage(hot), rows.interval(hot))
        assert line[5] == (f"{choice.hit_rate:.1%}" if choice.slots else "-")
        assert float(line[7]) == pytest.approx(choice.host_bytes / 1e6, rel=0.01)
    assert "fused_uvm_caching" in text[text.index("TorchRec's performance model") :]


def test_tables_that_are_left_out_are_whole_on_the_device() -> None:
    one_row = {"coalesce": "none", "hit_rate": 1e-6, "activation_bytes": 1}
    options = {**one_row, "tables": ["item", "history"]}
    some, every = memory_for(0, **options), memory_for(0, **one_row)
    planned_for = (1 - planner().others.reserve) * GB
    assert (some - every) * planned_for == pytest.approx(300 / 2 * 32, abs=1)
    made, tables = planned(0, **options)
    assert made.served is not None
    assert set(made.served.choices) == {"item", "history"}
    assert tables["item"].compute_kernel == "fused_uvm"
    assert tables["shop"].cache_params is None


def test_host_memory_is_counted_too() -> None:
    little = dataclasses.replace(ON_CUDA, device_memory_gb=memory_for(0), host_memory_gb=1e-4)
    with pytest.raises(CapabilityError, match=r"Set topology\.host_memory_gb"):
        planner().propose(Probe(SCHEMA), little, 2)


def test_homes_are_for_one_kind_of_device_and_name_the_other() -> None:
    with pytest.raises(CapabilityError, match=r"host is for CUDA.*`home: mapped`"):
        planner().propose(Probe(SCHEMA), Topology(), 2)
    with pytest.raises(CapabilityError, match=r"mapped tables are for the CPU.*`home: host`"):
        planner(home="mapped").propose(Probe(SCHEMA), ON_CUDA, 2)
    with pytest.raises(RegistryError, match=r"cache\.profile_batches: is 0, but `home: host`"):
        planner(profile_batches=0)
    with pytest.raises(RegistryError, match=r"cache\.cache_algorithm: is for `home: host`"):
        planner(home="memory", cache_algorithm="lfu")


@dataclass(frozen=True)
class WithoutGpu:
    """A plan for GPUs on the CPU, where fbgemm serves the same tables, and caches nothing."""

    room: float
    coalesce: str

    def __call__(self, model: nn.Module, optimizer: OptimizerSettings) -> Arranged:
        options = {"optimizer": optimizer, "coalesce": self.coalesce}
        memory = memory_for(self.room, **options)
        made = planner(**options)
        world_size = dist.get_world_size()
        on = dataclasses.replace(ON_CUDA, device_memory_gb=memory, ranks_per_node=1)
        plan: ShardingPlan = made.propose(model, on, world_size)
        kernels = {how.compute_kernel for module in plan.plan.values() for how in module.values()}
        assert "fused_uvm_caching" in kernels
        assert len(kernels) > 1
        for module in plan.plan.values():
            for how in module.values():
                for rank, shard in enumerate(how.sharding_spec.shards):
                    shard.placement = torch.distributed._remote_device(f"rank:{rank}/cpu")
        return Arranged(model, plan, made.sharders())


@pytest.mark.parametrize("coalesce", ["none", "rank"])
def test_tiers_take_a_plan_of_such_kernels(gloo_pool: GlooPool, coalesce: str) -> None:
    """TorchRec groups the tables as it would on GPUs; weights are those of plain row-wise."""
    ranks = [list(batches(3, seed=seed)) for seed in (1, 2)]
    check_parity(
        gloo_pool,
        partial(Probe, SCHEMA),
        list(zip(*ranks, strict=True)),
        arrange=WithoutGpu(room=50_000, coalesce=coalesce),
        reference=BySharding("row_wise"),
        tables=["sgd", "rowwise_adagrad"],
    )


@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU here")
def test_on_a_gpu_it_trains_as_plain_torchrec(tmp_path: Path) -> None:
    """One rank; a step's losses are those of tables on the device."""
    options: dict[str, Any] = {
        "plugins": ["recd_dlrm", "recd_scars"],
        "folder": str(tmp_path / "data"),
        "dataset": {"use": "sessions", "samples": 20_000, "test_fraction": 0.1},
        "model": {"use": "sequence_dlrm", "embedding_dim": 16, "bottom": [16], "top": [16]},
        "sharding": {"use": "torchrec", "search": "greedy"},
    }
    train = {"device": "cuda", "ranks": 1, "batch_size": 128, "steps": 40, "log_every": 1}
    train["optimizer"] = {"tables": "sgd", "tables_lr": 0.1, "dense": "sgd", "dense_lr": 0.05}
    losses = {}
    for side, cache in {
        "plain": None,
        "host": CACHE | {"hot_batches": False, "activation_bytes": 1, "memory_gb": 1e-3},
    }.items():
        run = tmp_path / side
        file = tmp_path / f"{side}.yaml"
        named = options | ({"cache": cache} if cache else {}) | {"train": train | {"run": str(run)}}
        file.write_text(yaml.safe_dump(named))
        command = [sys.executable, "-m", "recd_plugins", "train", str(file)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        assert ("fused_uvm" in done.stdout) == bool(cache)
        lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
        losses[side] = [line["loss"] for line in lines if line["kind"] in ("train", "test")]
    # Sums in another order, over 40 steps.
    assert losses["host"] == pytest.approx(losses["plain"], abs=1e-5)
