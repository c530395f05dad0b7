"""A dedup converter: the unique samples of each feature of a kind."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from recd_plugins.api import Config, Context, DedupRecord, hookimpl
from recd_plugins.api.batch import Columns, Groups, InverseKeyedJaggedTensor


@dataclass(frozen=True, kw_only=True)
class NewPluginConfig(Config):
    """The options of new_plugin."""

    kind: Literal["user", "item"] = "user"
    """The features that are deduplicated."""


class NewPlugin:
    """Each feature is a group of its own."""

    def __init__(self, groups: Groups) -> None:
        self.groups = groups

    def convert(self, features: Columns) -> InverseKeyedJaggedTensor:
        """Make `batch.dedup`: ids that repeat are not copied."""
        return features.to_ikjt(self.groups)


def build(config: NewPluginConfig, context: Context) -> NewPlugin:
    features = context.require_schema().sparse
    return NewPlugin(tuple((feature.name,) for feature in features if feature.kind == config.kind))


@hookimpl
def recd_dedup() -> list[DedupRecord[NewPluginConfig]]:
    return [
        DedupRecord(
            name="new_plugin",
            summary="Features of one kind, each alone.",
            config=NewPluginConfig,
            build=build,
        )
    ]
