"""Rung 3 (one and two gloo ranks): a step through the tiers on CUDA's way is the CPU's step.

TorchRec's own side, which sends ids home and looks them up there, stays on the CPU; its tables are
the same memory on both sides. All else of a batch's way (docs/architecture.md) is on the device, on
the streams of TorchRec's pipeline and the replicas' own.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

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
STEPS, MOVES_AT = 5, 1
OF_A_STEP = {
    "bag_sums_output.py of: to the host",
    "bag_sums_output.py of: nonzero",
    "sorted_router.py route: to the host",
    "home_ids.py _different_keys: unique",
    "node_exchange.py of: unique",
    "node_exchange.py ask_node: to the host",
    "touched.py of: to the host",
    "touched.py of: nonzero",
    "touched.py exchange_touched_by_node: to the host",
    "chunks.py _before_each_chunk: to the host",
    "touched.py of_chunks: to the host",
    "entries.py begins: to the host",
    "touched.py exchange_touched_by_node: nonzero",
}
"""What docs/cuda.md says that a step waits for, and why."""
BEFORE_AND_AFTER = (
    *("test_tiers_on_device.py", "hot.py", "group_replicas.py", "tier_rows.py", "home_tables.py"),
    *("input_ids.py arranged", "input_check.py", "touched.py _worth_of_bits", "column_blocks.py"),
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


class Case(NamedTuple):
    kind: str
    """Of the optimizer."""
    coalesce: Coalesce
    n_nodes: int
    ranks_per_node: int
    hot: bool = False
    pooled: bool = False
    chunk_rows: int = 64
    """Smaller than the 16 rows of both tiers: an update has several chunks."""


def plan_of(case: Case, shift: int = 0) -> TierPlan:
    order = (torch.arange(ROWS) * 7 + shift) % ROWS
    table = TablePlan(
        table="songs",
        replicated=order[:9].numpy(),
        per_node=order[9:16].numpy(),
        coalesce=case.coalesce,
    )
    return TierPlan(
        tables={"songs": table}, n_nodes=case.n_nodes, ranks_per_node=case.ranks_per_node
    )


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


class Found(NamedTuple):
    rows: list[Tensor]
    """Those of each step, and at last the table's."""
    waits: dict[str, int]
    """How often a step waited, for what."""
    waits_in_backward: Counter[str]
    """The same of all backwards."""
    launches: Counter[str]
    """The operators that the last step but one launched, without those of its loss."""


def trained(case: Case, *, emulated: bool) -> Found:
    """What a rank trains."""
    rank = torch.distributed.get_rank()
    # In another order than the tables', so that they are put in it.
    keys = ["other", "item"] if case.pooled else ["item"]
    model = _model(keys, case.pooled)
    optimizer = OptimizerSettings(tables=case.kind, tables_lr=0.1, tables_eps=1e-4)
    initialisers = table_initialisers(model)
    arranged = BySharding("row_wise")(model, optimizer)
    sharded_tiers = ShardedTiers(plan_of(case), chunk_rows=case.chunk_rows)
    sharded = DistributedModelParallel(
        model,
        device=torch.device("cpu"),
        plan=arranged.plan,
        sharders=tier_sharders(sharded_tiers, arranged.sharders),
    )
    initialise_tables(sharded, initialisers, 0)
    (collection,) = (m for m in sharded.modules() if isinstance(m, TieredModule))
    found: list[Tensor] = []
    in_backward: Counter[str] = Counter()
    plans = [plan_of(case), plan_of(case, shift=3)]
    version = plans[False].version if case.hot else None
    batches = [marked(batch_of(step, rank, case.hot, keys), version) for step in range(STEPS)]

    def train(outputs: Iterator[Any], device: EmulatedCuda | None = None) -> Counter[str]:
        launched = [Counter[str]()]
        in_backward.clear()
        for step in range(STEPS):
            if step == MOVES_AT:
                collection.tiers.retier(plans[True])
            rows = _values(next(outputs))
            found.append(held(rows).clone())
            before = Counter[str]() if device is None else device.waits.copy()
            (rows.square().sum() / 10).backward()
            in_backward.update(Counter() if device is None else device.waits - before)
            del rows
            if device is not None:
                launched.append(device.launches.copy())
        collection.tiers.flush()
        if device is None:
            return launched[0]
        step = launched[-2] - launched[-3]
        return Counter({where: n for where, n in step.items() if not where.startswith("test_")})

    if not emulated:
        train(collection(batch).wait() for batch in batches)
        return Found([*found, _table(sharded)], {}, in_backward, Counter())
    with pytest.MonkeyPatch.context() as own, EmulatedCuda() as device:
        _home_on_cpu(own)
        _put_on_device(collection.tiers)
        collection.tiers.retier(plan_of(case))
        device.waits.clear()
        launches = train(_Pipeline(collection, CUDA).steps(iter(batches)), device)
        gc.collect()
        assert not device.races, device.races
        waits = {
            where: -(-count // STEPS) for where, count in device.waits.items() if where in OF_A_STEP
        }
        others = device.waits.keys() - waits.keys()
    assert all(where.startswith(BEFORE_AND_AFTER) for where in others), device.waits
    return Found([*found, _table(sharded)], waits, in_backward, launches)


def _table(sharded: DistributedModelParallel) -> Tensor:
    (table,) = (v for name, v in sharded.state_dict().items() if name.endswith("songs.weight"))
    rows: Tensor = table.local_shards()[0].tensor.clone()
    return rows


def both_ways(case: Case) -> Found:
    here, there = (trained(case, emulated=emulated) for emulated in (False, True))
    for one, other in zip(there.rows, here.rows, strict=True):
        # float32's rounding: the two ways may sum a row's gradients in other orders.
        torch.testing.assert_close(one, other)
    return there


@pytest.mark.parametrize(
    ("case", "waits", "launches"),
    [
        (Case("sgd", "none", 1, 1), 6, 90),
        (Case("rowwise_adagrad", "rank", 2, 1), 8, 137),
        (Case("rowwise_adagrad", "rank", 2, 1, chunk_rows=2), 12, 227),
        (Case("sgd", "node", 1, 2), 9, 133),
        (Case("sgd", "rank", 1, 2, hot=True), 7, 99),
        (Case("rowwise_adagrad", "none", 1, 2, pooled=True), 8, 162),
    ],
    ids=lambda value: None if isinstance(value, int) else "-".join(map(str, value)),
)
def test_a_step_is_the_cpus(gloo_pool: GlooPool, case: Case, waits: int, launches: int) -> None:
    """And nothing is read before it is there, or handed on before it is read; and no backward waits
    for the device, unless an update has several chunks."""
    world_size = case.n_nodes * case.ranks_per_node
    for found in gloo_pool.run(both_ways, case, world_size=world_size):
        assert sum(found.waits.values()) <= waits, found.waits
        several = case.chunk_rows < ROWS  # chunks
        assert not found.waits_in_backward or several, found.waits_in_backward
        assert sum(found.launches.values()) <= launches, found.launches
