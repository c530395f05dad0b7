"""A dataset: clicks on items, drawn."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import pyarrow as pa

from recd_plugins.api import Config, Context, DatasetRecord, Range, hookimpl
from recd_plugins.api.data import SPLITS, Dataset, Schema, SparseFeature, Split


@dataclass(frozen=True, kw_only=True)
class NewPluginConfig(Config):
    """The options of new_plugin."""

    samples: Annotated[int, Range(ge=10)] = 10_000
    """The number of rows of the train split; the test split has a tenth as many."""
    items: Annotated[int, Range(ge=2)] = 100
    """The number of items; those with even ids are clicked."""


class NewPlugin(Dataset):
    """Label 1 where the item's id is even."""

    def __init__(self, config: NewPluginConfig) -> None:
        self.config = config

    @property
    def schema(self) -> Schema:
        item = SparseFeature(name="item", num_ids=self.config.items)
        return Schema(session_id=None, timestamp=None, dense=("price",), sparse=(item,))

    def num_rows(self, split: Split) -> int:
        return self.config.samples if split == "train" else self.config.samples // 10

    def chunks(self, split: Split) -> Iterator[pa.Table]:
        """A column per name of the schema. A large source yields many chunks."""
        draw = np.random.default_rng(SPLITS.index(split))
        items = draw.integers(0, self.config.items, self.num_rows(split))
        yield pa.table(
            {
                "label": (items % 2 == 0).astype(np.float32),
                "price": draw.random(len(items), np.float32),
                "item": pa.array(items.reshape(-1, 1).tolist()),
            }
        )


def build(config: NewPluginConfig, context: Context) -> NewPlugin:
    return NewPlugin(config)


@hookimpl
def recd_dataset() -> list[DatasetRecord[NewPluginConfig]]:
    return [
        DatasetRecord(
            name="new_plugin",
            summary="Drawn clicks.",
            config=NewPluginConfig,
            build=build,
        )
    ]
