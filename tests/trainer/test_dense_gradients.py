"""Rungs 1 and 3 (four gloo ranks in two nodes): dense gradients that cross nodes once, against DDP.

Where the test says `exact`, parameters and gradients are small multiples of powers of two, whose
sums are exact in any order: both ways leave the same bits.
"""

from __future__ import annotations

import copy
import os
from contextlib import nullcontext
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
import torch.distributed as dist
from probe_plugin import probe_registry
from torch import Tensor, nn
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.nn.parallel import DistributedDataParallel
from torchrec.distributed import DistributedModelParallel
from torchrec.distributed.types import ShardingEnv, ShardingPlan

from recd_plugins.data.batch import Batch
from recd_plugins.dense_gradients.data_parallel import DenseGradients
from recd_plugins.dense_gradients.once_a_node import OnceANode
from recd_plugins.errors import CapabilityError, RegistryError
from recd_plugins.planning.cluster.cluster import Cluster
from recd_plugins.planning.cluster.topology import Link, Topology
from recd_plugins.planning.tier_plans.tier_plan import TablePlan, TierPlan
from recd_plugins.registry.settings import OptimizerSettings
from recd_plugins.stack import load
from recd_plugins.testing.batches import random_batches
from recd_plugins.testing.gloo import GlooPool
from recd_plugins.testing.parity import assert_parity, reference_of
from recd_plugins.testing.probe import SCHEMA, Probe
from recd_plugins.testing.trained import Trained
from recd_plugins.tiers.collections.sequences import TierEmbeddingCollection
from recd_plugins.trainer.assemble import assemble
from recd_plugins.trainer.measure.traffic import TrafficCounter

CPU = torch.device("cpu")
TABLES = ("item", "shop", "history")
SLOW = {
    "ranks_per_node": 2,
    "ar_global": {"gbps": 0.01},
    "a2a_intra": {"gbps": 1.0},
    "ar_cross": {"gbps": 0.01},
}
"""Links between nodes that are slow: gradients cross nodes once however few they are."""


class Sizes(nn.Module):
    """Parameters of sizes that no number of ranks divides, one of a single element; some of them
    are used where a step says so."""

    def __init__(self) -> None:
        super().__init__()
        draw = torch.Generator().manual_seed(0)
        self.each = nn.ParameterList(
            torch.randint(-2, 3, (size,), generator=draw).float() for size in (1, 7, 513, 2, 30)
        )

    def forward(self, scale: float, used: int) -> Tensor:
        return torch.stack([scale * (one * one).sum() for one in self.each[:used]]).sum()


def steps_of(once: bool, **options: Any) -> list[Tensor]:
    """On a rank: what three steps of SGD leave of `Sizes`; of the first, gradients add up to those
    of a micro-batch that nobody reduces."""
    unused = options.get("find_unused_parameters", False)
    ddp = DistributedDataParallel(Sizes(), bucket_cap_mb=1e-4, **options)
    if once:
        ddp.register_comm_hook(None, OnceANode(dist.group.WORLD, 2).hook)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.25)
    for step in range(3):
        optimizer.zero_grad()
        # With unused parameters each rank uses some of its own, and one of them hardly any.
        used = 1 + (dist.get_rank() + step) % 4 if unused else 5
        for synced in (False, True) if step == 0 else (True,):
            with nullcontext() if synced else ddp.no_sync():
                ddp((dist.get_rank() - step) / 2, used).backward()
        optimizer.step()
    return [one.detach() for one in ddp.parameters()]


def both_ways(options: dict[str, Any]) -> bool:
    ours, theirs = steps_of(True, **options), steps_of(False, **options)
    assert any(not torch.equal(one, start) for one, start in zip(ours, Sizes().each, strict=True))
    return all(torch.equal(one, other) for one, other in zip(ours, theirs, strict=True))


def joined() -> bool:
    """On a rank: whether both ways leave the same bits where each rank has one step more than the
    one before it, and those that are done go on summing with the others."""
    found = []
    for once in (True, False):
        ddp = DistributedDataParallel(Sizes(), bucket_cap_mb=1e-4)
        if once:
            ddp.register_comm_hook(None, OnceANode(dist.group.WORLD, 2).hook)
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.25)
        with ddp.join():
            for step in range(1 + dist.get_rank()):
                optimizer.zero_grad()
                ddp((dist.get_rank() - step) / 2 + 1, 5).backward()
                optimizer.step()
        found.append(torch.cat([one.detach() for one in ddp.parameters()]))
    return torch.equal(*found) and not torch.equal(found[0], torch.cat([*Sizes().each]))


def test_ranks_may_join_that_have_fewer_steps(gloo_pool: GlooPool) -> None:
    assert gloo_pool.run(joined, world_size=4) == [True] * 4


@pytest.mark.parametrize(
    "options",
    [{}, {"gradient_as_bucket_view": True}, {"find_unused_parameters": True}],
    ids=["plain", "views", "unused"],
)
def test_weights_are_ddps_to_the_bit_where_sums_are_exact(
    options: dict[str, Any], gloo_pool: GlooPool
) -> None:
    assert gloo_pool.run(both_ways, options, world_size=4) == [True] * 4


def sums(sizes: list[int], w: int) -> list[bool]:
    """On a rank: whether all-reduces that are under way at once are as torch's."""
    exchange = OnceANode(dist.group.WORLD, w)
    draw = torch.Generator().manual_seed(dist.get_rank())
    mine = [torch.randint(-99, 99, (size,), generator=draw).double() for size in sizes]
    theirs = [one.clone() for one in mine]
    under_way = [exchange.all_reduce(one) for one in mine]
    for one in theirs:
        dist.all_reduce(one)
    ended = [future.wait() for future in under_way]
    return [torch.equal(a, b) and a is c for a, b, c in zip(mine, theirs, ended, strict=True)]


@pytest.mark.parametrize(("world_size", "w"), [(4, 2), (6, 3)])
def test_any_number_of_elements_is_summed(world_size: int, w: int, gloo_pool: GlooPool) -> None:
    """Fewer than a node's ranks, too, of which some then have no part."""
    sizes = [1, 2, 3, 4, 5, 6, 1000, 1, 100_003]
    for found in gloo_pool.run(sums, sizes, w, world_size=world_size):
        assert found == [True] * len(sizes)


class Looked(nn.Module):
    """A table of torch's own, whose gradients are sparse, and a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(5, 2, sparse=True)
        self.layer = nn.Linear(2, 1, bias=False)
        nn.init.ones_(self.table.weight)
        nn.init.ones_(self.layer.weight)

    def forward(self, ids: Tensor) -> Tensor:
        loss: Tensor = self.layer(self.table(ids)).sum()
        return loss


def sparse() -> list[Tensor]:
    """On a rank: weights after a step on gradients of which some are sparse."""
    found = []
    for once in (True, False):
        ddp = DistributedDataParallel(Looked())
        if once:
            ddp.register_comm_hook(None, OnceANode(dist.group.WORLD, 2).hook)
        ddp(torch.tensor([dist.get_rank(), 4])).backward()
        torch.optim.SGD(ddp.parameters(), lr=1).step()
        found.append(torch.cat([one.detach().flatten() for one in ddp.parameters()]))
    return found


def test_sparse_gradients_are_summed_as_ddp_does_it(gloo_pool: GlooPool) -> None:
    for ours, theirs in gloo_pool.run(sparse, world_size=4):
        assert torch.equal(ours, theirs)
        assert not torch.equal(ours, torch.ones_like(ours))


def broken() -> str:
    """On a rank: what backward says where a step of the all-reduce cannot begin; and a copy of
    such a DDP trains."""
    exchange = OnceANode(dist.group.WORLD, 2)
    ddp = DistributedDataParallel(Sizes())
    ddp.register_comm_hook(None, exchange.hook)
    copy.deepcopy(ddp)(1.0, 5).backward()
    exchange._across = cast("Any", "no group")
    with pytest.raises(RuntimeError) as raised:
        ddp(1.0, 5).backward()
    return str(raised.value)


def test_a_failure_is_backwards_own(gloo_pool: GlooPool) -> None:
    for says in gloo_pool.run(broken, world_size=4):
        assert "Process group no group is not initialized" in says


def trained(registry: dict[str, Any], batches: list[list[Batch]]) -> tuple[Trained, str, float]:
    """On a rank: what the assembled job makes of its batches, what is said of its dense gradients,
    and what a step's all-reduces were handed, in the eyes of whoever counts."""
    stack = load(registry)
    job = assemble(stack, CPU)
    tiered = isinstance(job.model.module.sequences, TierEmbeddingCollection)
    assert tiered == ("plan" in registry["sharding"])
    start = Trained.of(job.model, TABLES, losses=[])
    mine = iter([step[dist.get_rank()] for step in batches])
    losses = []
    for _ in batches:
        with TrafficCounter() as counter:
            losses.append(float(job.pipeline.progress(mine)[0]))
    reduced = sum(counter.traffic.get("all_reduce", {}).values())
    own = torch.tensor(losses)
    everyones = [torch.empty_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(everyones, own)
    found = Trained.of(
        job.model, TABLES, losses=torch.stack(everyones, dim=1).tolist(), start=start.tables
    )
    return found, stack.explain().splitlines()[-1], reduced


@pytest.mark.parametrize("sharding", ["torchrec", "replicas of hot rows"])
def test_a_job_on_two_nodes_trains_as_unsharded(
    sharding: str, tmp_path: Path, gloo_pool: GlooPool
) -> None:
    # An eps well above the noise of float32 sums, which Adagrad would turn into steps.
    options = {"tables": "sgd", "tables_lr": 0.1, "dense": "sgd", "dense_lr": 0.1}
    registry = probe_registry(tmp_path, optimizer=options, seed=3)
    registry["topology"] = {**SLOW, "device": "cpu"}
    if sharding != "torchrec":
        registry["plugins"] = [*registry["plugins"], "recd_flexshard"]
        rows = np.arange(40)
        history = TablePlan(
            table="history", replicated=rows[::3], per_node=rows[1::3], coalesce="rank", num_rows=40
        )
        plan = tmp_path / "plan.json"
        TierPlan(tables={"history": history}, n_nodes=2, ranks_per_node=2).save(plan)
        registry["sharding"] = {"use": "flexshard", "plan": str(plan)}
    batches = random_batches(SCHEMA, steps=3, world_size=4)
    expected = reference_of(Probe, batches, optimizer=OptimizerSettings(**options), seed=3)
    for ours, says, reduced in gloo_pool.run(trained, registry, batches, world_size=4):
        assert_parity(ours, *expected)
        assert says.startswith("dense gradients: they cross nodes once: 140 B leave each node")
        if sharding == "torchrec":
            assert reduced == 4 * (34 + 1)


def chosen(
    topologies: list[Topology], local: list[str] | None = None, first: Topology | None = None
) -> list[str]:
    """On a rank: what is said of a layer's gradients, by topology; rank 0 may have another `first`
    one."""
    if first is not None and dist.get_rank() == 0:
        topologies = [first, *topologies[1:]]
    if local is not None:
        os.environ["LOCAL_WORLD_SIZE"] = local[dist.get_rank()]
    found = []
    for topology in topologies:
        wrapper = DenseGradients(4 * 9, topology)
        dmp = DistributedModelParallel(
            nn.Linear(8, 1), plan=ShardingPlan({}), sharders=[], data_parallel_wrapper=wrapper
        )
        dmp(torch.ones(1, 8)).sum().backward()
        found.append(wrapper.explained)
        assert wrapper.once == wrapper.explained.startswith("they cross nodes once")
    return found


CROSSING = (
    "they cross nodes once: 36 B leave each node in a step, where gloo's ring over all ranks "
    "has 54 B"
)


def slow(**options: Any) -> Topology:
    links = {name: Link(**link) for name, link in SLOW.items() if isinstance(link, dict)}
    return Topology(**{"ranks_per_node": 2, **links, **options})


def test_where_nothing_is_gained_it_is_ddp_and_says_why(gloo_pool: GlooPool) -> None:
    topologies = [
        slow(),
        slow(ranks_per_node=4),
        slow(ranks_per_node=1),
        slow(ar_global=Link(gbps=10)),
        slow(ranks_per_node=3),
    ]
    (found, *others) = gloo_pool.run(chosen, topologies, world_size=4)
    assert others == [found] * 3
    ddp = "DistributedDataParallel all-reduces them over all ranks: "
    assert found == [
        CROSSING,
        f"{ddp}they are all on one node",
        f"{ddp}each node has one",
        f"{ddp}by the topology, the links between nodes are too fast for more calls to pay",
        f"{ddp}nodes have different numbers of ranks",
    ]
    uneven = gloo_pool.run(chosen, [slow(ranks_per_node=None)], ["1", "1", "2", "2"], world_size=4)
    assert uneven == [[f"{ddp}nodes have different numbers of ranks"]] * 4
    differ = gloo_pool.run(chosen, [slow()], None, slow(ar_global=Link(gbps=10)), world_size=4)
    assert differ == [found[3:4]] * 4


def with_options() -> list[str]:
    """On a rank: what is said where the trainer has wrapped the model already, and where some of
    the ranks train it."""
    pairs = dist.new_group([0, 1]), dist.new_group([2, 3])
    some, all_again = (ShardingEnv.from_process_group(dist.group.WORLD) for _ in range(2))
    some.process_group = pairs[dist.get_rank() // 2]
    all_again.process_group = dist.new_group(backend="cpu:gloo")
    found = []
    for model, on, options in (
        (DistributedDataParallel(nn.Linear(8, 1)), None, {}),
        (FullyShardedDataParallel(nn.Linear(8, 1), device_id=CPU), None, {}),
        (nn.Linear(8, 1), some, {"find_unused_parameters": True}),
        (nn.Linear(8, 1), all_again, {"bucket_cap_mb": 1, "static_graph": False}),
    ):
        wrapper = DenseGradients(4 * 9, slow(), **options)
        dmp = DistributedModelParallel(
            model, on, plan=ShardingPlan({}), sharders=[], data_parallel_wrapper=wrapper
        )
        dmp(torch.ones(1, 8)).sum().backward()
        found.append(wrapper.explained)
    return found


def test_it_leaves_wrappers_of_others_alone(gloo_pool: GlooPool) -> None:
    ddp = "DistributedDataParallel all-reduces them over all ranks: "
    for found in gloo_pool.run(with_options, world_size=4):
        assert found == [
            "the trainer's own DistributedDataParallel reduces them",
            "the trainer's own FullyShardedDataParallel reduces them",
            f"{ddp}the model is not on all ranks",
            CROSSING,
        ]


def test_a_wrapper_is_asked_for_once_there_is_a_plan(tmp_path: Path) -> None:
    with pytest.raises(CapabilityError, match=r"before there is a plan.*Call `plan = stack\.plan"):
        load(probe_registry(tmp_path)).data_parallel()


def uncalled() -> str:
    """On a rank: the answer to who hands over the method that makes a wrapper."""
    stack: Any = load({})
    with pytest.raises(RegistryError) as raised:
        DistributedModelParallel(
            nn.Linear(2, 1),
            device=CPU,
            plan=ShardingPlan({}),
            sharders=[],
            data_parallel_wrapper=stack.data_parallel,
        )
    return str(raised.value)


def test_the_method_that_makes_a_wrapper_is_none(gloo_pool: GlooPool) -> None:
    (said,) = gloo_pool.run(uncalled, world_size=1)
    assert "Write `data_parallel_wrapper=stack.data_parallel()`." in said


def test_bytes_between_nodes_are_those_of_the_formula() -> None:
    cluster = Cluster.of(slow(device="cpu"), 6)  # three nodes of two
    assert cluster.crosses_once(300)
    assert cluster.dense_between_nodes(300) == pytest.approx(3 * 300 * 2 * 2 / 3)
    assert cluster.reduced_between_nodes * 300 == pytest.approx(3 * 300 * 2 * 5 / 6)
    gb, ms = 1 << 30, 1000
    assert cluster.once_a_node_ms(gb) == pytest.approx(ms * (2 / 1.0 + 1 / 2 / 0.01))
    on_cuda, one_node = slow(device="cuda"), slow(device="cpu", ranks_per_node=6)
    for other in (on_cuda, one_node, slow(device="cpu", ranks_per_node=1)):
        assert not Cluster.of(other, 6).crosses_once(300)


@pytest.mark.parametrize(("inter", "once"), [(2.0, True), (9.99, True), (10.0, False)])
def test_bandwidths_alone_decide_by_which_links_are_slower(inter: float, once: bool) -> None:
    stated = {"device": "cpu", "ranks_per_node": 2, "intra_node_gbps": 10.0}
    cluster = Cluster.of(Topology(**stated, inter_node_gbps=inter), 4)
    assert cluster.crosses_once(1 << 30) == once
    assert not cluster.crosses_once(100)  # which three latencies outweigh
