"""A reader: the whole table in memory, its rows dealt out to ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recd_plugins.api import Config, Context, Loader, ReaderRecord, hookimpl
from recd_plugins.api.batch import Batch
from recd_plugins.api.data import Split, Table

Transform = Callable[[Batch], Batch]


@dataclass(frozen=True, kw_only=True)
class NewPluginConfig(Config):
    """The options of new_plugin."""

    shuffle: bool = True
    """Whether the rows of the train split come in another order in each epoch."""


class NewPlugin:
    def __init__(self, config: NewPluginConfig, context: Context) -> None:
        self.shuffle, self.seed = config.shuffle, context.seed

    def loader(
        self,
        table: Table,
        *,
        rank: int,
        world_size: int,
        batch_size: int,
        split: Split,
        transform: Transform | None = None,
    ) -> Loader:
        seed = self.seed if self.shuffle and split == "train" else None
        steps = table.num_rows / (batch_size * world_size)
        # The tail of the train split is dropped; that of the test split is padded.
        shape = (int(steps if split == "train" else np.ceil(steps)), world_size, batch_size)
        return InMemory(table, shape, rank, seed, transform or (lambda batch: batch))


class InMemory:
    """The batches of one rank; its position is an epoch and a step."""

    def __init__(
        self,
        table: Table,
        shape: tuple[int, int, int],
        rank: int,
        seed: int | None,
        transform: Transform,
    ) -> None:
        self.schema, self.shape, self.rank, self.seed = table.schema, shape, rank, seed
        self.rows = pa.concat_tables(table.read(stripe) for stripe in table.stripes)
        self.transform = transform
        self.epoch = self.step = 0

    def __len__(self) -> int:
        return self.shape[0]

    def __iter__(self) -> Iterator[Batch]:
        if self.step == len(self):
            self.epoch, self.step = self.epoch + 1, 0
        order = np.arange(self.rows.num_rows)
        if self.seed is not None:
            order = np.random.default_rng([self.seed, self.epoch]).permutation(order)
        dealt = np.full(self.shape, -1)
        dealt.flat[: order.size] = order[: dealt.size]
        while self.step < len(self):
            self.step += 1
            yield self.transform(self.batch(dealt[self.step - 1, self.rank]))

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "step": self.step}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.epoch, self.step = state["epoch"], state["step"]

    def close(self) -> None:
        """Nothing is held open."""

    def batch(self, rows: np.ndarray[Any, np.dtype[np.int64]]) -> Batch:
        """The samples of these rows; -1 stands for padding, a row of weight 0."""
        part = self.rows.take(pa.array(np.maximum(rows, 0)))
        columns = [part[name].combine_chunks() for name in self.schema.sparse_names]
        ids = [pc.list_flatten(column) for column in columns]
        lengths = [pc.list_value_length(column) for column in columns]
        dense = [torch.tensor(part[name].to_numpy()) for name in self.schema.dense]
        return Batch(
            dense=torch.stack(dense, 1) if dense else torch.zeros(len(rows), 0),
            features=KeyedJaggedTensor.from_lengths_sync(
                keys=list(self.schema.sparse_names),
                values=torch.tensor(pa.chunked_array(ids, pa.int64()).to_numpy()),
                lengths=torch.tensor(pa.chunked_array(lengths, pa.int32()).to_numpy()).long(),
            ),
            labels=torch.tensor(part[self.schema.label].to_numpy()),
            weights=torch.tensor(rows >= 0).float(),
        )


@hookimpl
def recd_reader() -> list[ReaderRecord[NewPluginConfig]]:
    return [
        ReaderRecord(
            name="new_plugin",
            summary="A table in memory.",
            config=NewPluginConfig,
            build=NewPlugin,
        )
    ]
