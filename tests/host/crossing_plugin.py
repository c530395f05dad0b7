"""A plugin of transforms that add, rename and lose features, named in registries by its path."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recd_plugins.api import Config, PreprocessRecord, hookimpl
from recd_plugins.api.data import Schema, SparseFeature
from recd_plugins.testing.batches import from_lists, to_lists


@dataclass(frozen=True, kw_only=True)
class Options(Config):
    """What every part takes."""

    name: str = "crossed"
    """The new feature's name."""
    num_ids: int = 97
    """Its ids."""
    announced: str | None = None
    """The name that the schema says, if another."""


@dataclass
class Cross:
    """Beside its features one more: for each pair of ids of the first two, (a + 7 b) mod n."""

    config: Options = field(default_factory=Options)

    def __call__(self, features: KeyedJaggedTensor) -> KeyedJaggedTensor:
        rows = to_lists(features)
        first, second = list(rows.values())[:2]
        rows[self.config.name] = [
            [(a + 7 * b) % self.config.num_ids for a in left for b in right]
            for left, right in zip(first, second, strict=True)
        ]
        return from_lists(rows)

    def schema(self, schema: Schema) -> Schema:
        one, other, *_ = schema.sparse
        kind = "user" if one.kind == other.kind == "user" else "item"
        name = self.config.announced or self.config.name
        return schema.add([SparseFeature(name=name, num_ids=self.config.num_ids, kind=kind)])


@dataclass
class Rename:
    """A feature by another name: `announced` and the feature's own."""

    config: Options

    def __call__(self, features: KeyedJaggedTensor) -> KeyedJaggedTensor:
        rows = to_lists(features)
        return from_lists({self.config.name + name: ids for name, ids in rows.items()})

    def schema(self, schema: Schema) -> Schema:
        return Schema(
            sparse=tuple(
                SparseFeature(name=self.config.name + one.name, num_ids=one.num_ids, kind=one.kind)
                for one in schema.sparse
            )
        )


@dataclass
class Nothing(Rename):
    """Leaves no feature."""

    def schema(self, schema: Schema) -> Schema:
        return Schema()


@hookimpl
def recd_preprocess() -> Iterator[PreprocessRecord[Any]]:
    for name, kind in (("cross", Cross), ("rename", Rename), ("nothing", Nothing)):
        yield PreprocessRecord(
            name=name,
            summary=f"{name}.",
            config=Options,
            build=lambda config, _, kind=kind: kind(config),
        )
