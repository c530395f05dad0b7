"""Whether the ids and numbers of two tables were made alike, by the schemas that imports keep."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, NamedTuple

from recd_plugins.data.conform.vocabulary import vocabulary_digest
from recd_plugins.data.dataset import SPLITS
from recd_plugins.data.files.paths import SCHEMA_FILE, is_glob
from recd_plugins.data.foreign import ForeignFeature, ForeignSchema
from recd_plugins.data.importing.schema_file import load_schema
from recd_plugins.errors import RecdError
from recd_plugins.storage.uri import Location

if TYPE_CHECKING:
    from recd_plugins.data.table import Table

__all__ = ["Difference", "how_made", "made_otherwise", "places_of"]


class Difference(NamedTuple):
    """A column that was made otherwise."""

    why: str
    """What differs, as a clause."""
    cure: str


def made_otherwise(
    trained: Iterable[Location], others: Iterable[Location], named: str = "train"
) -> Difference | None:
    """The first column that an import made otherwise in one of the other tables than in the first
    that is trained on, which is `named` so; None if there is none, or where no import has left its
    schema."""
    for of_train, file in _kept_schemas(trained)[:1]:
        cure = f"Import it again, by `recd data import FILE TABLE --schema {quote(str(file))}`."
        for other, its_file in _kept_schemas(others):
            for clause in _differences(of_train, other, named):
                return Difference(f"{clause} ({its_file})", cure)
    return None


def places_of(paths: Sequence[Location], files: Iterable[Location]) -> list[Location]:
    """Where imports may have left schemas: beside the tables at these paths, and on a disk beside
    each of their files, since a glob or a folder of tables has none of its own."""
    folders = dict.fromkeys(file.parent for file in files if isinstance(file, Path))
    return [*paths, *folders]


def how_made(table: Table) -> dict[str, list[object]]:
    """What the ids or the numbers of each column of a table depend on, as JSON has it: by the
    schema that it is read by, or the first that an import kept. Columns of which that is not known
    are left out."""
    kept = _kept_schemas(places_of(table.paths, table.facts))[:1]
    made: dict[str, list[object]] = {}
    for schema in [table.source] if table.source else [schema for schema, _ in kept]:
        made |= {one.name: [*ids] for one in schema.sparse if (ids := _ids(one))}
        made |= {one.name: ["scale", one.scale] for one in schema.dense_columns}
    return made


def _kept_schemas(paths: Iterable[Location]) -> list[tuple[ForeignSchema, Location]]:
    """The schemas beside these tables, with their files."""
    found: dict[Location, ForeignSchema] = {}
    for path in paths:
        folder = path if not is_glob(path) and path.is_dir() else path.parent
        within = [folder, *([folder.parent] if folder.name in SPLITS else [])]
        for file in (one / SCHEMA_FILE for one in within if not is_glob(one)):
            with suppress(RecdError, OSError):  # a file of that name that no import wrote
                if file not in found and file.exists():
                    found[file] = load_schema(file)
    return [(schema, file) for file, schema in found.items()]


def _differences(trained: ForeignSchema, other: ForeignSchema, named: str) -> Iterator[str]:
    """Each column of both that is made otherwise in the other table, as a clause."""
    features = {one.name: one for one in trained.sparse}
    for feature in other.sparse:
        known = features.get(feature.name, feature)
        if (own := _ids(feature)) and (others := _ids(known)) and own != others:
            yield f"the ids of {feature.name!r} are made {_how(feature, known, named)}"
    columns = {one.name: one for one in trained.dense_columns}
    for column in other.dense_columns:
        scale = columns.get(column.name, column).scale
        if scale != column.scale:
            yield f"{column.name!r} has `scale: {column.scale}`, and in {named} `scale: {scale}`"


def _ids(feature: ForeignFeature) -> tuple[object, ...]:
    """What the ids of a feature depend on; empty if its vocabulary is not there any more."""
    if feature.ids == "vocabulary":
        file = feature.vocabulary
        return ("vocabulary", vocabulary_digest(file)) if file and file.exists() else ()
    if feature.ids == "hash":
        return ("hash", feature.num_ids, feature.hash_seed)
    return ("as_is",)


def _how(feature: ForeignFeature, known: ForeignFeature, named: str) -> str:
    """How the ids of a feature are made otherwise than in the table where it is `known`."""
    if feature.ids != known.ids:
        return f"by `ids: {feature.ids}`, and in {named} by `ids: {known.ids}`"
    if feature.ids == "vocabulary":
        return f"by another vocabulary than in {named}"
    return f"by another hash than in {named}, of another `num_ids` or `hash_seed`"
