"""What records build: one protocol per slot."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from recd_plugins.data.dataset import Split
from recd_plugins.data.messages import LogRoute
from recd_plugins.data.schema import Schema
from recd_plugins.data.stats import StatsReport
from recd_plugins.data.table import Progress, Table

if TYPE_CHECKING:
    import pyarrow as pa
    from torch import Tensor, nn
    from torch.distributed import ProcessGroup
    from torchrec.distributed.types import ModuleSharder, ShardingPlan
    from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

    from recd_plugins.data.batch import Batch
    from recd_plugins.data.columns import Columns
    from recd_plugins.planning.topology import Topology
    from recd_plugins.sparse.groups import Groups

__all__ = [
    "DedupConverter",
    "Etl",
    "Explains",
    "Loader",
    "LogStore",
    "Planner",
    "Pooling",
    "PoolingFactory",
    "Preprocess",
    "Reader",
    "TableStats",
]


class LogStore(Protocol):
    """Raw logs as log shards."""

    @property
    def shards(self) -> int: ...
    @property
    def route(self) -> LogRoute: ...

    def append(self, messages: pa.RecordBatch) -> None:
        """Add messages (columns `MESSAGES`); they may wait in memory until a block is full."""

    def flush(self) -> None:
        """Once it returns, readers in any process see all that was appended here."""

    def close(self) -> None:
        """Flush, and let go of what writing needs."""

    def read(self, shard: int) -> Iterator[pa.RecordBatch]:
        """What a shard holds so far: a writer's messages in its order, writers merged by time."""

    def fingerprint(self) -> str:
        """Changes with what can be read, so that a stale table is never reused."""


class Etl(Protocol):
    """A step from table to table."""

    def run(self, table: Table, folder: Path, progress: Progress) -> Table:
        """Write the result as a table into `folder` and open it."""


class TableStats(Protocol):
    """Measures a table."""

    def measure(self, table: Table, progress: Progress) -> StatsReport:
        """Read the table, which may be far larger than memory, and leave it as it is."""


class Loader(Protocol):
    """The batches of one rank. Iterating goes on where the state says, to the epoch's end."""

    def __iter__(self) -> Iterator[Batch]: ...
    def __len__(self) -> int:
        """Batches in an epoch: equal on all ranks."""

    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class Reader(Protocol):
    """Opens loaders on a table."""

    def loader(
        self,
        table: Table,
        *,
        rank: int,
        world_size: int,
        batch_size: int,
        split: Split,
        transform: Callable[[Batch], Batch] | None = None,
    ) -> Loader:
        """Rank `rank` of `world_size`; `test` is read in order and whole, never shuffled."""


@runtime_checkable
class Explains(Protocol):
    """Says why it is as it is; a `Planner` must, a `DedupConverter` may."""

    def explain(self) -> str: ...


class DedupConverter(Protocol):
    """Takes groups of features out of batches, for `batch.dedup`; may say why (`Explains`)."""

    @property
    def groups(self) -> Groups:
        """The features that it takes, and which together; none: batches stay as they are."""

    def convert(self, features: Columns) -> Any:
        """What becomes `batch.dedup`: the B samples of these features, all that it takes."""


class Preprocess(Protocol):
    """A transform of jagged features, row by row."""

    def __call__(self, features: KeyedJaggedTensor) -> KeyedJaggedTensor: ...
    def schema(self, schema: Schema) -> Schema:
        """What the transform makes of these features' schema (say, a smaller num_ids)."""


class Planner(Protocol):
    """Decides where rows go, and brings the sharders that carry it out."""

    def plan(self, model: nn.Module, topology: Topology, group: ProcessGroup) -> ShardingPlan: ...
    def sharders(self) -> list[ModuleSharder[nn.Module]]: ...
    def explain(self) -> str:
        """Why the last plan is what it is, in words."""


class Pooling(Protocol):
    """Sequences to vectors; an `nn.Module`."""

    def __call__(self, values: Tensor, lengths: Tensor, query: Tensor | None = None) -> Tensor:
        """[N, D] values in B rows of `lengths` [B], and a query [B, D], become [B, D].

        A row of length 0 yields zeros. `query` is the sample's item, which target attention
        needs. A module that cannot do without says so by an attribute `needs_query = True`:
        a model then has one for it, or fails to build. `needs_query = False` says that the
        query is ignored: rows that samples share are then pooled once, whatever they ask. So
        they are, with a query for each sample, by a method `pool_unique`, if the module has
        one (`recd_plugins.embedding.pooling.PoolsUnique`).
        """


PoolingFactory = Callable[[int], "nn.Module"]
"""Embedding dimension D to a `Pooling` module."""
