"""A chain of transforms as one text, which serving or another trainer can run.

It is JSON. It has the names and options from registry.yaml, the schema that the chain is for, and
the digests of the files that it reads. No part of it is code, and nothing is unpickled.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recd_plugins.data.preprocess.steps import ChosenTransform, steps_of
from recd_plugins.data.schema import Schema
from recd_plugins.errors import DataError, nearest, shown, so_many
from recd_plugins.registry.choice import Choice
from recd_plugins.registry.option_files import paths_of
from recd_plugins.registry.registry import Registry
from recd_plugins.slots import Context
from recd_plugins.storage.file_digest import sha256_of
from recd_plugins.storage.json_mappings import as_items, from_items

if TYPE_CHECKING:
    from recd_plugins.data.preprocess.batch_transform import BatchTransform

__all__ = ["TransformProgram", "digest_of"]

FORMAT = 2

ANEW = "Write the program anew for these tables, or give it those that it is for."
"""How to fix that tables are not those of a program."""


@dataclass(frozen=True, kw_only=True)
class TransformProgram:
    """The transforms of a registry, in their order, and the schema that they are for."""

    plugins: tuple[str, ...]
    """The plugins as registry.yaml names them, with absolute paths."""
    steps: tuple[Mapping[str, Any], ...]
    """The steps as registry.yaml has them under `preprocess`, with all options."""
    schema: Schema
    """The columns of the tables that the steps get."""
    files: Mapping[str, str]
    """The SHA-256 of each file that an option names."""
    seed: int = 0
    """`train.seed`, from which a transform may draw random numbers."""

    @classmethod
    def of(cls, registry: Registry, schema: Schema) -> TransformProgram:
        """The program of a registry's `preprocess`, for tables of this schema."""
        choices = registry.chosen("preprocess")
        found = [value for choice in choices for value in paths_of(choice)]
        base = registry.source.base
        return cls(
            plugins=tuple(
                str((base / name).resolve()) if "/" in name or name.endswith(".py") else name
                for name in registry.plugins
            ),
            steps=tuple(map(_step, choices)),
            schema=schema,
            files={str(path.resolve()): digest_of(path) for path in found},
            seed=registry.train.seed,
        )

    @property
    def digest(self) -> str:
        """The SHA-256 of the whole program: equal programs compute the same."""
        return _digest(self._content())

    def to_json(self) -> str:
        return _text({**self._content(), "digest": self.digest})

    @classmethod
    def from_json(cls, text: str | bytes, where: str = "program") -> TransformProgram:
        """The program in a text; `DataError` if the text is not a program, or if it or one of its
        files was altered."""
        try:
            content = json.loads(text)
            digest, version = content.pop("digest"), content["format"]
            if version != FORMAT:
                raise DataError(
                    f"{where}: has format {version}, but {FORMAT} is read here. Write it again by "
                    "this version: `stack.program().to_json()`."
                )
            steps = json.loads(json.dumps(content["steps"]), object_hook=from_items)
            program = cls(
                plugins=tuple(content["plugins"]),
                steps=tuple(steps),
                schema=Schema.from_json(content["schema"], where),
                files=dict(content["files"]),
                seed=content["seed"],
            )
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            what = shown(repr(error))
            raise DataError(
                f"{where}: is no program of transforms ({what}). Give the text that "
                "`stack.program().to_json()` returned."
            ) from error
        if _digest(content) != digest:
            raise DataError(f"{where}: was changed after it was written: write it again.")
        for name, wanted in program.files.items():
            if digest_of(Path(name)) != wanted:
                raise DataError(
                    f"{where}: {name} is not the file with which the program was written. Restore "
                    "that one, or write the program again."
                )
        return program

    def check(self, schema: Schema) -> None:
        """`DataError`, before any row is read, unless tables of `schema` have all that the program
        needs."""
        for name in self.schema.dense:
            if name not in schema.dense or schema.width(name) != self.schema.width(name):
                raise DataError(
                    f"the program is for a dense column {name!r} of width "
                    f"{self.schema.width(name) or 1}; {nearest(name, schema.dense)} {ANEW}"
                )
        for feature in self.schema.sparse:
            other = schema.feature(feature.name)
            if (other.num_ids, other.scored) != (feature.num_ids, feature.scored):
                raise DataError(
                    f"the program is for a feature {feature.name!r} of "
                    f"{so_many(feature.num_ids, 'id')}{' with weights' if feature.scored else ''}, "
                    f"but here it has {other.num_ids}{' with weights' if other.scored else ''}. "
                    f"{ANEW}"
                )

    def transform(self, schema: Schema | None = None) -> BatchTransform:
        """The transform that applies the chain to batches of `schema`, by default the program's
        schema."""
        from recd_plugins.data.preprocess.batch_transform import BatchTransform, batch_steps

        if schema is not None:
            self.check(schema)
        registry = Registry.load(
            {
                "plugins": list(self.plugins),
                "preprocess": list(self.steps),
            }
        )
        chosen = [
            ChosenTransform(
                who=choice.who,
                where=choice.where,
                features=choice.features,
                transform=choice.build(Context(seed=self.seed)),
            )
            for choice in registry.chosen("preprocess")
        ]
        return BatchTransform(batch_steps(steps_of(chosen, schema or self.schema)))

    def _content(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "plugins": list(self.plugins),
            "schema": self.schema.to_json(),
            "steps": as_items(self.steps),
            "files": dict(self.files),
            "seed": self.seed,
        }


def _text(content: Mapping[str, Any]) -> str:
    return json.dumps(content, sort_keys=True, indent=1)


def _digest(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(_text(content).encode()).hexdigest()


def _step(choice: Choice) -> dict[str, Any]:
    values = {
        field.name: _plain(getattr(choice.config, field.name))
        for field in dataclasses.fields(choice.config)
    }
    named = {} if choice.features == ("*",) else {"features": list(choice.features)}
    return {"use": f"{choice.provider.plugin}:{choice.record.name}", **named, **values}


def _plain(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value.resolve())
    if isinstance(value, Mapping):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(one) for one in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {one.name: _plain(getattr(value, one.name)) for one in dataclasses.fields(value)}
    return value


def digest_of(path: Path) -> str:
    """The SHA-256 of a file that a transform reads; `DataError` if it cannot be read."""
    try:
        return sha256_of(path)
    except OSError as error:
        raise DataError(f"{path}, which a transform reads, cannot be read: {error}") from error
