"""Rung 3 (one and two gloo ranks): a step through the tiers on CUDA's way is the CPU's step.

TorchRec's own side, which sends ids home and looks them up there, stays on the CPU; its tables are
the same memory on both sides. All else of a batch's way (docs/architecture.md) is on the device, on
the streams of TorchRec's pipeline and the replicas' own.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from emulated import CUDA, EmulatedCuda, held, on_device
from torch import Tensor
from torch.autograd import Function
from torchrec.distributed import DistributedModelParallel
from torchrec.distributed.embedding import ShardedEmbeddingCollection
from torchrec.distributed.embeddingbag import ShardedEmbeddingBagCollection
from torchrec.modules.embedding_configs import EmbeddingBagConfig, EmbeddingConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection
from torchrec.sparse.jagged_tensor import JaggedTensor, KeyedJaggedTensor, KeyedTensor

from recd_plugins.planning.tier_plans.tier_plan import Coalesce, TablePlan, TierPlan
from recd_plugins.registry.settings import OptimizerSettings
from recd_plugins.sparse.keyed import marked
from recd_plugins.testing.arrange import BySharding
from recd_plugins.testing.gloo import GlooPool
from recd_plugins.tiers.collections.tiered_module import TieredModule
from recd_plugins.tiers.home_tables import HomeTable
from recd_plugins.tiers.sharder import ShardedTiers, tier_sharders
from recd_plugins.tiers.tiers import Tiers
from recd_plugins.tiers.updates import update
from recd_plugins.tiers.updates.side_stream import SideStream
from recd_plugins.trainer.initial_tables import initialise_tables, table_initialisers

ROWS, DIM = 40, 8
STEPS, MOVES_AT = 3, 1
OF_A_STEP = {
    "bag_sums_output.py of: to the host",
    "bag_sums_output.py of: nonzero",
    "sorted_router.py route: to the host",
    "home_ids.py coalesce_by_table: unique",
    "home_ids.py coalesce_by_table: to the host",
    "home_ids.py _asked_of_concentrators: bincount",
    "home_ids.py _coalesce_keys: to the host",
    "home_ids.py _coalesce_keys: bincount",
    "node_exchange.py of: unique",
    "node_exchange.py ask_node: to the host",
    "chunks.py _chunks_on_device: to the host",
    "chunks.py _chunks_on_device: nonzero",
    "chunks.py receives: nonzero",
    "touched.py exchange_touched_by_node: nonzero",
    "reduction.py _in_node: nonzero",
}
"""What docs/cuda.md says that a step waits for, and why."""
BEFORE_AND_AFTER = (
    *("test_tiers_on_device.py", "hot.py", "group_replicas.py", "tier_rows.py", "home_tables.py"),
    *("input_ids.py arranged", "input_check.py"),
)
"""Batches that come, replicas that are filled, rows that go home, and what is done once."""


class _FromHome(Function):
    """Rows from the CPU to the device; their gradients back."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor) -> Tensor:
        return on_device(rows)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return held(gradient)


def _home_on_cpu(patches: pytest.MonkeyPatch) -> None:
    """TorchRec takes ids of the device, and yields rows and sums of it."""
    wait = Tiers.wait

    def take_there(kind: Any) -> None:
        take = kind.input_dist

        def input_dist(self: Any, ctx: Any, features: KeyedJaggedTensor) -> Any:
            here = KeyedJaggedTensor(
                keys=features.keys(),
                values=held(features.values()),
                lengths=held(features.lengths()),
                stride=features.stride(),
                length_per_key=features.length_per_key_or_none(),
            )
            return take(self, ctx, here)

        patches.setattr(kind, "input_dist", input_dist)

    def from_home(self: Any, home: Any) -> Any:
        found = wait(self, home)
        if isinstance(found, KeyedTensor):
            values = _FromHome.apply(found.values())
            return KeyedTensor(found.keys(), found.length_per_key(), values)
        return {
            name: JaggedTensor(_FromHome.apply(one.values()), lengths=on_device(one.lengths()))
            for name, one in found.items()
        }

    for kind in (ShardedEmbeddingCollection, ShardedEmbeddingBagCollection):
        take_there(kind)
    patches.setattr(Tiers, "wait", from_home)
    own = SideStream(CUDA)
    patches.setattr(update, "side_stream", lambda _: own)


class _Pipeline:
    """The order of TorchRec's TrainPipelineSparseDist: a batch's ids are exchanged, on a stream of
    their own, while the batch before it is computed."""

    def __init__(self, collection: Any, device: torch.device) -> None:
        self._collection, self._device = collection, device
        self._stream = torch.cuda.Stream(device)
        self._context: Any = None
        self._splits: Any = None
        self._ids: Any = None

    def begin(self, batch: KeyedJaggedTensor) -> None:
        with torch.cuda.stream(self._stream):
            self._context = self._collection.create_context()
            self._splits = self._collection.input_dist(self._context, batch.to(self._device))

    def exchange(self) -> None:
        with torch.cuda.stream(self._stream):
            self._ids = self._splits.wait()

    def steps(self, batches: Iterator[KeyedJaggedTensor]) -> Iterator[Any]:
        """The output of each batch; the next one's ids are exchanged until it is asked for."""
        self.begin(next(batches))
        self.exchange()
        more = True
        while more:
            context, ids = self._context, self._ids
            if more := (following := next(batches, None)) is not None:
                self.begin(following)
            with torch.cuda.stream(self._stream):
                received = ids.wait()
            main = torch.cuda.current_stream()
            main.wait_stream(self._stream)
            received.record_stream(main)
            context.record_stream(main)
            output = self._collection.compute_and_output_dist(context, received).wait()
            del context, ids, received
            if more:
                self.exchange()
            yield output
            del output


def _put_on_device(tiers: Tiers) -> None:
    for group in tiers._groups:
        group.homes = tuple(
            HomeTable(one.first_row, rows, states, (rows, *states))
            for one in group.homes
            for rows, states in [(on_device(one.rows), tuple(map(on_device, one.states)))]
        )


def plan_of(world_size: int, coalesce: Coalesce, shift: int = 0) -> TierPlan:
    order = (torch.arange(ROWS) * 7 + shift) % ROWS
    table = TablePlan(
        table="songs",
        replicated=order[:9].numpy(),
        per_node=order[9:16].numpy(),
        coalesce=coalesce,
    )
    return TierPlan(tables={"songs": table}, n_nodes=1, ranks_per_node=world_size)


def batch_of(step: int, rank: int, hot: bool, keys: list[str]) -> KeyedJaggedTensor:
    """A hot one has ids of rows that all ranks have, and of no others."""
    draw = torch.Generator().manual_seed(10 * step + rank)
    size = len(keys) * (6 + rank)
    lengths = torch.randint(0, 5, (size,), generator=draw, dtype=torch.int32)
    return KeyedJaggedTensor.from_lengths_sync(  # counted before it is copied, as a reader does
        keys=keys,
        values=torch.randint(0, 9 if hot else ROWS, (int(lengths.sum()),), generator=draw)
        * (7 if hot else 1)
        % ROWS,
        lengths=lengths,
    )


def _model(keys: list[str], pooled: bool) -> torch.nn.Module:
    meta = torch.device("meta")
    table = {
        "name": "songs",
        "embedding_dim": DIM,
        "num_embeddings": ROWS,
        "feature_names": sorted(keys),
    }
    if pooled:
        bags = EmbeddingBagCollection(tables=[EmbeddingBagConfig(**table)], device=meta)
        return torch.nn.Sequential(bags)
    sequences = EmbeddingCollection(tables=[EmbeddingConfig(**table)], device=meta)
    return torch.nn.Sequential(sequences)


def _values(output: Any) -> Tensor:
    """The rows of the ids, or the sums of the bags."""
    values: Tensor = output.values() if isinstance(output, KeyedTensor) else output["item"].values()
    return values


def trained(
    kind: str, coalesce: Coalesce, hot: bool, pooled: bool, emulated: bool
) -> tuple[list[Tensor], dict[str, int]]:
    """On a rank: each step's rows, and at last the table's; how often a step waited for what."""
    rank, world_size = torch.distributed.get_rank(), torch.distributed.get_world_size()
    # In another order than the tables', so that they are put in it.
    keys = ["other", "item"] if pooled else ["item"]
    model = _model(keys, pooled)
    optimizer = OptimizerSettings(tables=kind, tables_lr=0.1, tables_eps=1e-4)
    initialisers = table_initialisers(model)
    arranged = BySharding("row_wise")(model, optimizer)
    sharded_tiers = ShardedTiers(plan_of(world_size, coalesce), chunk_rows=64)
    sharded = DistributedModelParallel(
        model,
        device=torch.device("cpu"),
        plan=arranged.plan,
        sharders=tier_sharders(sharded_tiers, arranged.sharders),
    )
    initialise_tables(sharded, initialisers, 0)
    (collection,) = (m for m in sharded.modules() if isinstance(m, TieredModule))
    found: list[Tensor] = []
    plans = [plan_of(world_size, coalesce), plan_of(world_size, coalesce, shift=3)]
    version = plans[False].version if hot else None
    batches = [marked(batch_of(step, rank, hot, keys), version) for step in range(STEPS)]

    def train(outputs: Iterator[Any]) -> None:
        for step in range(STEPS):
            if step == MOVES_AT:
                collection.tiers.retier(plans[True])
            rows = _values(next(outputs))
            found.append(held(rows).clone())
            (rows.square().sum() / 10).backward()
            del rows
        collection.tiers.flush()

    if not emulated:
        train(collection(batch).wait() for batch in batches)
        return [*found, _table(sharded)], {}
    with pytest.MonkeyPatch.context() as own, EmulatedCuda() as device:
        _home_on_cpu(own)
        _put_on_device(collection.tiers)
        collection.tiers.retier(plan_of(world_size, coalesce))
        device.waits.clear()
        train(_Pipeline(collection, CUDA).steps(iter(batches)))
        gc.collect()
        assert not device.races, device.races
        waits = {
            where: -(-count // STEPS) for where, count in device.waits.items() if where in OF_A_STEP
        }
        others = device.waits.keys() - waits.keys()
    assert all(where.startswith(BEFORE_AND_AFTER) for where in others), device.waits
    return [*found, _table(sharded)], waits


def _table(sharded: DistributedModelParallel) -> Tensor:
    (table,) = (v for name, v in sharded.state_dict().items() if name.endswith("songs.weight"))
    rows: Tensor = table.local_shards()[0].tensor.clone()
    return rows


def both_ways(kind: str, coalesce: Coalesce, hot: bool, pooled: bool) -> dict[str, int]:
    here, _ = trained(kind, coalesce, hot, pooled, emulated=False)
    there, waits = trained(kind, coalesce, hot, pooled, emulated=True)
    for one, other in zip(there, here, strict=True):
        # float32's rounding: the two ways may sum a row's gradients in other orders.
        torch.testing.assert_close(one, other)
    return waits


@pytest.mark.parametrize(
    ("kind", "coalesce", "world_size", "hot", "pooled", "most"),
    [
        ("sgd", "none", 1, False, False, 7),
        ("rowwise_adagrad", "rank", 2, False, False, 9),
        ("sgd", "node", 2, False, False, 15),
        ("sgd", "rank", 2, True, False, 9),
        ("rowwise_adagrad", "none", 2, False, True, 9),
    ],
)
def test_a_step_is_the_cpus(
    gloo_pool: GlooPool,
    kind: str,
    coalesce: Coalesce,
    world_size: int,
    hot: bool,
    pooled: bool,
    most: int,
) -> None:
    """And nothing is read before it is there, or handed on before it is read."""
    for waits in gloo_pool.run(both_ways, kind, coalesce, hot, pooled, world_size=world_size):
        assert sum(waits.values()) <= most, waits
