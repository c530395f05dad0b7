"""A table of which half fits into memory: in a mapped file, with replicas of its hot rows."""

from __future__ import annotations

import contextlib
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torchrec.distributed import DistributedModelParallel
from torchrec.modules.embedding_configs import EmbeddingConfig
from torchrec.modules.embedding_modules import EmbeddingCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from benchmarks.harness import Figure, spread
from benchmarks.scars.memory_cap import MemoryCap, NoMemoryCap, memory_cap
from benchmarks.scars.tables import Law
from recd_plugins.errors import RegistryError
from recd_plugins.planning.tier_plans.tier_plan import TablePlan, TierPlan
from recd_plugins.registry.settings import OptimizerSettings
from recd_plugins.testing.arrange import BySharding
from recd_plugins.testing.gloo import GlooPool, RanksFailed
from recd_plugins.tiers.mapped_tables import check_folder, mapped
from recd_plugins.tiers.sharder import ShardedTiers, tier_sharders
from recd_plugins.trainer.initial_tables import initialise_tables, table_initialisers

__all__ = ["LargeWorkload", "larger_than_memory"]

DIM = 64
LOOKUPS = 10
STRIDE = 1_000_003
"""Rank times this, modulo the rows, is the id: a prime, so that hot rows are on many pages."""


@dataclass(frozen=True, kw_only=True)
class LargeWorkload:
    """Batches of one table, Zipf 1.05, and its hot rows."""

    num_rows: int
    hot: int
    batch_size: int
    steps: int

    @property
    def table_bytes(self) -> int:
        return self.num_rows * DIM * 4

    def ids(self, rank: NDArray[np.int64]) -> NDArray[np.int64]:
        """The ids of the rows of these ranks, the hottest being 0."""
        return rank * STRIDE % self.num_rows

    def batches(self) -> list[Tensor]:
        """The ids of each step."""
        law = Law("Zipf 1.05", self.num_rows, LOOKUPS)
        drawn = (law.draw(self.batch_size, seed)["table"] for seed in range(self.steps))
        return [torch.from_numpy(self.ids(ranks.numpy())) for ranks in drawn]

    def hot_rows(self) -> NDArray[np.int64]:
        return self.ids(np.arange(self.hot))


@dataclass(frozen=True)
class TrainedLarge:
    """What one side took."""

    losses: list[float]
    seconds: list[float]
    """The time of each step, by the clock: waiting for the disk takes no processor time."""
    started: float
    """Seconds until the first step: sharding and initialisation."""

    @property
    def late(self) -> list[float]:
        """The times of the steps after the first quarter, when caches are warm."""
        return self.seconds[len(self.seconds) // 4 :]


def larger_than_memory(quick: bool, folder: Path | None = None) -> list[Figure]:
    """The figures; or none, and why, if memory cannot be capped or `folder` is not on a disk."""
    folder = Path(tempfile.gettempdir()) if folder is None else folder
    work = (
        LargeWorkload(num_rows=1 << 20, hot=1 << 14, batch_size=1024, steps=16)
        if quick
        else LargeWorkload(num_rows=1 << 23, hot=1 << 17, batch_size=2048, steps=60)
    )
    try:
        check_folder(folder)
        return figures(work, folder)
    except (NoMemoryCap, RegistryError) as error:
        print(f"no figures on a table larger than memory: {error}", file=sys.stderr)
        return []


def figures(work: LargeWorkload, folder: Path) -> list[Figure]:
    batches = work.batches()
    free = on_a_rank(work, batches, None, None)
    assert free is not None
    with memory_cap(work.table_bytes // 2) as cap:
        unmapped = on_a_rank(work, batches, None, cap)
    with memory_cap(work.table_bytes // 2) as cap:
        capped = on_a_rank(work, batches, folder, cap)
        most = cap.most()
    if capped is None or capped.losses != free.losses:
        raise AssertionError("mapped and capped, it does not train as it does in memory")
    step, usual = (statistics.median(side.late) for side in (capped, free))
    hits = np.isin(torch.cat(batches).numpy(), work.hot_rows()).mean()
    table, where = f"{work.table_bytes / 1e6:,.0f} MB", "a table of twice the cap"
    return [
        Figure(
            name=f"steps trained on {where}",
            value=len(capped.losses),
            baseline=0 if unmapped is None else len(unmapped.losses),
            target=work.steps,
            unit="steps",
            note=f"{table}; baseline: the same process without mapping"
            + (", which the system killed" if unmapped is None else ""),
        ),
        Figure(
            name=f"memory of {where}",
            value=most / 1e6,
            target=work.table_bytes / 2e6,
            at_most=True,
            unit="MB",
            note="pages of files too; what the libraries held before does not count",
        ),
        Figure(
            name=f"lookups that replicas answer, {where}",
            value=100 * float(hits),
            unit="%",
            note=f"{work.hot:,} of {work.num_rows:,} rows replicated, Zipf 1.05",
        ),
        Figure(
            name=f"slowdown of a step, {where}",
            value=step / usual,
            unit="x",
            spread=spread(capped.late),
            note=f"{1e3 * step:,.0f} ms against {1e3 * usual:,.1f} in memory without a cap; by "
            f"the clock; start {capped.started:,.1f} s against {free.started:,.1f}",
        ),
    ]


def on_a_rank(
    work: LargeWorkload, batches: list[Tensor], folder: Path | None, cap: MemoryCap | None
) -> TrainedLarge | None:
    """Train in a separate process; None if the system killed it."""
    with GlooPool(deadline=600) as pool:
        try:
            return pool.run(train, work, batches, folder, cap, world_size=1)[0]
        except RanksFailed as error:
            if "SIGKILL" not in str(error):
                raise
            return None


def train(
    work: LargeWorkload, batches: list[Tensor], folder: Path | None, cap: MemoryCap | None
) -> TrainedLarge:
    """Train on a rank, with the table in `folder`, or in memory."""
    if cap is not None:
        cap.enter()
    begin = time.perf_counter()
    optimizer = OptimizerSettings(tables="rowwise_adagrad", tables_lr=0.1)
    model = _Model(work.num_rows)
    initialisers = table_initialisers(model)
    plan = TierPlan(
        tables={"table": TablePlan(table="table", replicated=work.hot_rows())},
        n_nodes=1,
        ranks_per_node=1,
    )
    arranged = BySharding("row_wise")(model, optimizer)
    sharders = tier_sharders(ShardedTiers(plan), arranged.sharders)
    if folder is not None:
        sharders = mapped(sharders, folder)
    sharded = DistributedModelParallel(
        model,
        device=torch.device("cpu"),
        plan=arranged.plan,
        sharders=sharders,
    )
    initialise_tables(sharded, initialisers, 0)
    started = time.perf_counter() - begin
    losses, seconds = [], []
    for ids in batches:
        begin = time.perf_counter()
        loss = sharded(ids)
        loss.backward()
        seconds.append(time.perf_counter() - begin)
        losses.append(loss.item())
    return TrainedLarge(losses, seconds, started)


class _Model(nn.Module):
    """The mean square of the rows that a batch looks up."""

    def __init__(self, num_rows: int) -> None:
        super().__init__()
        table = EmbeddingConfig(
            name="table", embedding_dim=DIM, num_embeddings=num_rows, feature_names=["ids"]
        )
        self.sequences = EmbeddingCollection(tables=[table], device=torch.device("meta"))

    def forward(self, ids: Tensor) -> Tensor:
        features = KeyedJaggedTensor(
            keys=["ids"],
            values=ids,
            lengths=torch.full((len(ids) // LOOKUPS,), LOOKUPS, dtype=torch.int32),
        )
        rows: Tensor = self.sequences(features)["ids"].values()
        return rows.square().sum(1).mean()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        for figure in larger_than_memory("--quick" in sys.argv):
            print(figure)
