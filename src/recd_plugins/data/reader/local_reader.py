"""The `local` reader: a rank reads its share of a table's stripes by itself."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from recd_plugins.config import Config, Range
from recd_plugins.data.dataset import Split
from recd_plugins.data.reader.order import Order, SessionOrder, Shares, Tail
from recd_plugins.data.reader.read_log import note_reading
from recd_plugins.data.table import Table
from recd_plugins.errors import DataError, RegistryError, so_many
from recd_plugins.notices import GivesNotices, Notice, Unused

if TYPE_CHECKING:
    from recd_plugins.data.batch import Batch
    from recd_plugins.data.reader.local_loader import LocalLoader
    from recd_plugins.slots import Context

__all__ = ["LocalReader", "LocalReaderConfig", "build_local_reader", "table_digest"]

WINDOWS_AHEAD = 2
"""The windows that threads load ahead."""


@dataclass(frozen=True, kw_only=True)
class LocalReaderConfig(Config):
    """How a rank reads."""

    shuffle: bool = True
    """Whether each epoch trains in a new order: stripes are permuted, and rows are shuffled within
    a window. Switch it off to read rows in the order of the files."""
    window: Annotated[int, Range(ge=0)] = 2
    """The number of stripes that are in memory at once, and whose rows are shuffled together. More
    shuffle better, and take more memory; 0 permutes stripes alone."""
    sessions: SessionOrder = "split"
    """How rows of a table that is clustered by session are shuffled: one by one (`split`); with
    consecutive rows of a session as one (`together`); or so that sessions also fill batches whole,
    where a batch's end cuts a session only if no session left in the window fits (`whole`)."""
    tail: Tail = "drop"
    """What becomes of rows that do not fill a batch on every rank: they are left out (`drop`), or
    make a shorter last batch on all ranks, where a rank that lacks a row repeats one with weight 0
    (`pad`). The test split is always padded."""
    workers: Annotated[int, Range(ge=0)] = 0
    """The number of processes that read for a rank, in turn; with 0 the rank's own process reads.
    Raise it if training waits for batches."""
    streams: Annotated[int | None, Range(ge=1)] = None
    """The number of ranges into which an epoch is cut, by default one for each consumer. Set it to
    get the same global batches with any number of ranks that divides it (with the same global batch
    size, and no workers)."""
    prefetch: bool = True
    """Whether threads load the next two windows while this one is used: they decode a stripe,
    or two at a time if the trainer waits for them, and gather the rows of one window. Switch it off
    to save memory."""
    pin_memory: bool | None = None
    """Whether batches are in pinned memory, where torch sees a CUDA device; by default if the job
    trains on it."""
    read_log: Path | None = None
    """A file to which each job adds a line with the columns of the train split that it reads; by
    default none is written. Jobs may share it, and `recd data rewrite --read-log` orders columns by
    it."""

    def idle_options(self) -> Mapping[str, str]:
        if self.shuffle and self.window:
            return {}
        off = "`window: 0`" if self.shuffle else "`shuffle: false`"
        idle = {}
        if self.sessions == "together":
            idle["sessions"] = (
                f"it chooses the rows that are shuffled together, and {off} shuffles none"
            )
        if not self.shuffle and self.set_among("window"):
            idle["window"] = f"it chooses the rows that are shuffled, and {off} shuffles none"
        return idle

    @property
    def forks(self) -> bool:
        """Whether a rank forks processes that read for it."""
        return self.workers > 0

    @property
    def consumers(self) -> int:
        """Processes of a rank among which its streams are dealt out."""
        return max(1, self.workers)


class LocalReader(GivesNotices):
    """Opens loaders on a table; a `slots.Reader`."""

    def __init__(self, config: LocalReaderConfig, *, seed: int, pin_memory: bool) -> None:
        self._config = config
        self._seed = seed
        self.pins = pin_memory and _sees_cuda()
        """Whether batches come in pinned memory."""

    @classmethod
    def of(cls, config: LocalReaderConfig, context: Context) -> LocalReader:
        """The reader of a job; by default batches are in pinned memory where it trains on CUDA."""
        pin_memory = context.device == "cuda" if config.pin_memory is None else config.pin_memory
        return cls(config, seed=context.seed, pin_memory=pin_memory)

    def notices(self) -> Sequence[Notice]:
        if self.pins or not self._config.pin_memory:
            return ()
        return [
            Unused(
                what="reader: pin_memory",
                why="memory is pinned for copies to a CUDA device, and torch sees none here",
                cure="Take it out: batches are pinned by default where the job trains on CUDA.",
            )
        ]

    def loader(
        self,
        table: Table,
        *,
        rank: int,
        world_size: int,
        batch_size: int,
        split: Split,
        transform: Callable[[Batch], Batch] | None = None,
    ) -> LocalLoader:
        from recd_plugins.data.reader.local_loader import LocalLoader  # torch, torchrec: seconds
        from recd_plugins.data.reader.rank_batches import RankBatches

        config, train = self._config, split == "train"
        consumers = world_size * config.consumers
        shares = Shares(
            world_size=world_size, workers=config.workers, streams=config.streams or consumers
        )
        order = self._order(table, shares, batch_size=batch_size, train=train)
        if train:
            _check_fills(table, order, batch_size, consumers)
        if config.read_log is not None and train and rank == 0:
            note_reading(config.read_log, table.path, table.batch_columns)
        return LocalLoader(
            RankBatches(
                table,
                order,
                shares,
                rank=rank,
                prefetch=WINDOWS_AHEAD if config.prefetch else 0,
                transform=transform,
            ),
            workers=config.workers,
            pin_memory=self.pins,
            made_for=self._made_for(table, split, order, world_size),
        )

    def _order(self, table: Table, shares: Shares, *, batch_size: int, train: bool) -> Order:
        """The order in which rows are read: to train by the options, to test as the rows lie."""
        config = self._config
        order = Order(
            stripe_rows=tuple(stripe.num_rows for stripe in table.stripes),
            streams=shares.streams,
            rows_per_batch=shares.rows_per_batch(batch_size),
            shuffle=config.shuffle and train,
            window=config.window,
            tail=config.tail if train else "pad",
            seed=self._seed,
            sessions=config.sessions if train else "split",
        )
        if order.sessions != "split" and table.schema.session_id is None:
            raise RegistryError(
                f"is {order.sessions!r}, but the table {table.path} has no session column: its "
                "schema's session_id is null. Name the column there, or choose split.",
                "reader.sessions",
            )
        return order

    def _made_for(
        self, table: Table, split: Split, order: Order, world_size: int
    ) -> dict[str, Any]:
        """What a loader's state is for: a loader that differs in any of it refuses the state."""
        made_for = {
            "table": table_digest(table),
            "split": split,
            "seed": order.seed,
            "shuffle": order.shuffle,
            "window": order.window,
            "tail": order.tail,
            "streams": order.streams,
            "rows per stream and batch": order.rows_per_batch,
            "workers": self._config.workers,
        }
        if order.sessions != "split":
            made_for["sessions"] = order.sessions
        if self._config.workers:
            made_for["ranks"] = world_size
        return made_for


def _check_fills(table: Table, order: Order, batch_size: int, consumers: int) -> None:
    """Raises `DataError` for a table from which training would get no batch."""
    if not table.num_rows:
        raise DataError(
            f"{table.path}: holds no rows, so nothing can be trained on it. Name another table, or "
            "find out which log, etl step or filter leaves it without any."
        )
    if not order.num_batches:
        fill = "fills" if table.num_rows == 1 else "fill"
        raise DataError(
            f"{table.path}: its {so_many(table.num_rows, 'row')} {fill} no batch of {batch_size} "
            f"on each of {so_many(consumers, 'consumer')}. Lower train.batch_size, or set "
            "reader.tail to pad."
        )


def _sees_cuda() -> bool:
    import torch

    return torch.cuda.is_available()


def build_local_reader(config: LocalReaderConfig, context: Context) -> LocalReader:
    """The record's build."""
    return LocalReader.of(config, context)


def table_digest(table: Table) -> str:
    """Changes with a table's files (their footers and partitions), its stripes, what is joined to
    its rows, and what is made of its columns, including the content of vocabularies; but not with
    where any of these lie."""
    parts: list[object] = [
        (stripe.file.name, stripe.group, stripe.num_rows) for stripe in table.stripes
    ]
    parts += [facts.digest for facts in table.facts.values()]
    parts += [values for facts in table.facts.values() if (values := facts.partition_texts)]
    parts += [side.identity for side in table.joins]
    if table.selection is not None:
        parts.append(table.selection.identity)
    if table.source is not None:
        parts.append(table.source.identity(table.vocabularies))
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]
