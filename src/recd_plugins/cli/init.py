"""`recd init`: a registry.yaml for a table, which `recd train` runs as it is."""

from __future__ import annotations

import json
import math
import shlex
import sys
from glob import escape
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from recd_plugins.cli.options import AsJson, Debug, location_argument
from recd_plugins.cli.output_paths import YAML, check_new_file, check_writable
from recd_plugins.cli.reported import reported
from recd_plugins.errors import so_many
from recd_plugins.storage.whole_file import write_whole

if TYPE_CHECKING:
    from recd_plugins.data.foreign import ForeignSchema
    from recd_plugins.data.schema import Schema, SparseFeature
    from recd_plugins.data.table import Table
    from recd_plugins.storage.uri import Location

__all__ = ["SchemaFile", "Test", "init", "registry_of_table"]

TableFolder = Annotated[
    Path,
    typer.Argument(
        help="What `recd data import` made: a folder with train/ and test/, or one table.",
        metavar="TABLE",
        parser=location_argument,
    ),
]
Test = Annotated[
    Path | None,
    typer.Option(
        "--test",
        help="The table to test on, where TABLE has no test/.",
        metavar="TABLE",
        parser=location_argument,
    ),
]
SchemaFile = Annotated[
    Path | None,
    typer.Option("--schema", help="What the columns mean, for Parquet files that somebody else "
                 "wrote, to be read where they are.", metavar="FILE", parser=location_argument),
]  # fmt: skip
Out = Annotated[Path, typer.Option("--out", "-o", help="The file to write.", metavar="FILE")]
Replace = Annotated[bool, typer.Option("--force", help="Replace the file where it is there.")]

MOST_STEPS = 5_000
LARGEST_BATCH = 2_048
MOST_PAIRED = 400
"""The most sparse features that are paired with each other: for so many the top MLP's first layer
has 41 million weights, and four times as many for twice as many features."""


def init(
    table: TableFolder,
    test: Test = None,
    schema: SchemaFile = None,
    out: Out = Path("registry.yaml"),
    force: Replace = False,
    debug: Debug = False,
    as_json: AsJson = False,
) -> None:
    """Write a registry.yaml for a table: its dataset, a model that fits, and how to train.

    Every line may be changed; `recd train -r FILE` runs it as it is.
    """
    with reported(debug):
        from recd_plugins.data.layout import why_rewrite
        from recd_plugins.data.parquet_tables import ParquetConfig, ParquetTables
        from recd_plugins.registry import Registry

        check_writable(out, "--out", YAML)
        text, opened = registry_of_table(table, test, schema)
        check_new_file(out, "--out", replaces=force)
        write_whole(out, text)
        chosen = Registry.load(out)
        dataset = chosen.one("dataset").config
        for notice in (
            ParquetTables(dataset).notices() if isinstance(dataset, ParquetConfig) else ()
        ):
            print(f"note: {notice}", file=sys.stderr)
    model, rows = chosen.one("model").record.name, opened.num_rows
    if as_json:
        print(json.dumps({"registry": str(out), "model": model, "rows": rows}))
    else:
        if why := why_rewrite(rows, len(opened.stripes)):
            print(f"note: {why}", file=sys.stderr)
        following = shlex.join(["recd", "train", "-r", str(out)])
        print(f"{out}: {model} on {so_many(rows, 'row')}; next: {following}")


def registry_of_table(
    table: Location, test: Location | None, schema: Location | None, named: str = "TABLE"
) -> tuple[str, Table]:
    """The registry for the table that an option or argument has `named`, and the open table."""
    from recd_plugins.data.files.missing_table import named_by
    from recd_plugins.data.importing.made_otherwise import made_otherwise
    from recd_plugins.data.importing.schema_file import load_schema
    from recd_plugins.data.table import Table
    from recd_plugins.errors import DataError

    train = table / "train" if (table / "train").is_dir() else table
    held_out = test or (table / "test" if (table / "test").is_dir() else None)
    foreign = None if schema is None else load_schema(schema)
    whole = None if foreign is None else foreign.keeping_all
    with named_by(named):
        opened = Table.open(train, whole)
    if held_out is None:
        raise DataError(
            f"{table}: has no test split. `recd data import --split-by time` makes one; or "
            "name a table of its own with --test."
        )
    if foreign is None and (found := made_otherwise([train], [held_out])):
        raise DataError(
            f"{held_out}: has other ids or numbers than {train}: {found.why}. {found.cure}"
        )
    with named_by("--test"):
        tested = Table.open(held_out, whole or opened.schema)
    for one in (opened, tested):
        if not one.num_rows:
            raise DataError(f"{one.path}: holds no rows. Name a table that has some.")
    if not opened.schema.sparse:
        raise DataError(
            f"{train}: has no sparse feature, but every model here embeds at least one. List its "
            "columns of ids under the schema's `sparse`; or write a registry.yaml by hand, with a "
            "model of your own: `recd plugins new NAME --slot model` begins one."
        )
    for name in opened.schema.table_sizes():
        if "." in name:
            raise DataError(
                f"{train}: table {name!r} has a dot in its name, which PyTorch does not allow in "
                f"names of modules. Write `table: {name.replace('.', '_')}` for its features in "
                "the schema, and import again what was imported with that schema."
            )
    if foreign is not None:
        _check_vocabularies(foreign, train, schema)
    text = registry_text(train, held_out, opened.schema, opened.num_rows, foreign)
    return text, opened


def _check_vocabularies(foreign: ForeignSchema, train: Location, schema: Location | None) -> None:
    """Raise `DataError` if features need vocabularies that the schema does not name."""
    from recd_plugins.errors import DataError, listed

    lacking = [
        one.name for one in foreign.sparse if one.ids == "vocabulary" and one.vocabulary is None
    ]
    if lacking:
        raise DataError(
            f"{schema}: `ids: vocabulary` of {listed(lacking)} names no vocabulary. Count each: "
            f"recd data vocabulary {shlex.quote(str(train))} --column {shlex.quote(lacking[0])} "
            f"--save 1.parquet --schema {shlex.quote(str(schema))}; and write into its entry what "
            "that prints. Or write `ids: hash`, or `recd data import` the files, which makes them."
        )


def registry_text(
    train: Location, test: Location, schema: Schema, rows: int, foreign: ForeignSchema | None = None
) -> str:
    """The registry, with a word to each choice."""
    sequences = asked_sequences(schema)
    sessions = schema.session_id is not None and any(one.sequence for one in schema.sparse)
    plugins = ["recd_dlrm", *(["recd_dedup"] if sessions else [])]
    ranks, batch, steps = sizes(rows)
    lines = [
        "# Written by `recd init`; `recd plugins` lists what else each line may say.",
        f"plugins: [{', '.join(plugins)}]",
        "",
        "dataset:",
        "  use: parquet",
        f"  train: {_quoted(train)}",
        f"  test: {_quoted(test)}",
    ]
    if foreign is not None:
        from recd_plugins.config.yaml_text import to_yaml
        from recd_plugins.data.importing.schema_file import options_of_schema

        options = to_yaml({"schema": options_of_schema(foreign)}, flow=None)
        lines += [f"  {line}" for line in options.splitlines()]
    if sessions:
        lines += [
            "# Samples of a session lie together; what they share is kept once where that pays.",
            "etl: [cluster_by_session]",
            "reader: {use: local, sessions: whole}  # shuffled row by row they would share nothing",
            "dedup: {use: exact, groups: auto}",
        ]
    if len(schema.sparse) > MOST_PAIRED:
        lines += [
            "",
            f"# Pairs of {len(schema.sparse):,} features are too many; a cross network "
            "grows as the features do.",
            "model: {use: dlrm_dcn, embedding_dim: 16}",
        ]
    elif sequences:
        lines += ["", "model: {use: sequence_dlrm, embedding_dim: 16}", "pooling:"]
        lines += [
            f"  {_quoted(escape(one.name))}: {{use: attention}}  # its items are weighed by "
            f"{_quoted(query)}"
            for one, query in sequences
        ]
    else:
        lines += ["", "model: {use: dlrm, embedding_dim: 16}"]
    lines += [
        "sharding: torchrec",
        "",
        "train:",
        f"  ranks: {ranks}",
        f"  batch_size: {batch}  # of each rank; `recd tune batch` finds the largest that fits",
        f"  steps: {steps}  # {_epochs(steps * ranks * batch / max(rows, 1))} of "
        f"{so_many(rows, 'row')}",
        "  optimizer: {tables: rowwise_adagrad, tables_lr: 0.05, dense: adam, dense_lr: 0.001}",
    ]
    return "\n".join(lines) + "\n"


def asked_sequences(schema: Schema) -> list[tuple[SparseFeature, str]]:
    """The sequences that share a table with a feature that is not a sequence, and the first such
    feature; sequences of scored ids are left out, since their weighted sums are used instead of
    attention."""
    found = []
    for sequence in (one for one in schema.sparse if one.sequence and not one.scored):
        query = next(
            (
                one.name
                for one in schema.sparse
                if not one.sequence and one.table_name == sequence.table_name
            ),
            None,
        )
        if query is not None:
            found.append((sequence, query))
    return found


def sizes(rows: int) -> tuple[int, int, int]:
    """Ranks, batch size and steps: some hundred steps an epoch, and at least one epoch."""
    ranks = 2 if rows >= 256 else 1
    batch = 2 ** int(math.log2(max(rows / (ranks * 200), 16)))
    batch = min(batch, LARGEST_BATCH, max(1, rows // ranks))
    steps = max(1, min(math.ceil(rows / (ranks * batch)), MOST_STEPS))
    return ranks, batch, steps


def _epochs(share: float) -> str:
    return "one epoch" if 0.95 < share < 1.2 else f"{share:.2f} epochs"


def _quoted(value: Any) -> str:
    from recd_plugins.config.yaml_text import to_yaml  # PyYAML, which `recd --help` does without

    text = to_yaml(str(value), flow=True, width=10_000)
    return text.removesuffix("\n").removesuffix("\n...")
