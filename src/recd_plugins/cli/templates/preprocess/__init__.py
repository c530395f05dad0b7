"""A transform of ids: each modulo a number."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Annotated

from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recd_plugins.api import Config, Context, PreprocessRecord, Range, hookimpl
from recd_plugins.api.data import Schema
from recd_plugins.api.rows import with_ids


@dataclass(frozen=True, kw_only=True)
class NewPluginConfig(Config):
    """The options of new_plugin."""

    size: Annotated[int, Range(ge=1)] = 1000
    """The number by which ids are divided; what remains of each is its new id."""


class NewPlugin:
    """id -> id mod size, for the features that registry.yaml names."""

    elementwise = True  # an id's result depends on that id alone

    def __init__(self, size: int) -> None:
        self.size = size

    def __call__(self, features: KeyedJaggedTensor) -> KeyedJaggedTensor:
        return with_ids(features, features.values() % self.size)

    def schema(self, schema: Schema) -> Schema:
        """The same features with smaller tables: `num_ids` is what a model sizes them by."""
        return schema.replace(
            dataclasses.replace(feature, num_ids=min(feature.num_ids, self.size))
            for feature in schema.sparse
        )


def build(config: NewPluginConfig, context: Context) -> NewPlugin:
    return NewPlugin(config.size)


@hookimpl
def recd_preprocess() -> list[PreprocessRecord[NewPluginConfig]]:
    return [
        PreprocessRecord(
            name="new_plugin",
            summary="Ids modulo a size.",
            config=NewPluginConfig,
            build=build,
        )
    ]
