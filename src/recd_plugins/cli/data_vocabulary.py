"""`recd data vocabulary`: which values of foreign files get ids of their own."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Annotated

import typer

from recd_plugins.cli.ended_by_signals import ended_by_signals
from recd_plugins.cli.options import (
    AsJson,
    Debug,
    Delimiter,
    Encoding,
    ForeignPaths,
    Header,
    LeastCount,
    Names,
    Others,
    location_argument,
    text_form,
)
from recd_plugins.cli.output_paths import check_not_read, check_writable
from recd_plugins.cli.progress import progress
from recd_plugins.cli.reported import reported
from recd_plugins.errors import RegistryError
from recd_plugins.storage.uri import Location

__all__ = ["vocabulary"]

Columns = Annotated[
    list[str],
    typer.Option(
        "--column",
        help="A column whose values are counted; several are counted together, as features of one "
        "table are.",
        metavar="NAME",
        show_default=False,
    ),
]
To = Annotated[
    Path,
    typer.Option(
        "--save",
        help="The Parquet file to write, or its URI.",
        metavar="FILE",
        show_default=False,
        parser=location_argument,
    ),
]
SchemaFile = Annotated[
    Path | None,
    typer.Option(
        "--schema",
        help="The schema that has the columns as features: values that stand for a null there "
        "(`missing`) are not counted, and text is read as it says.",
        metavar="FILE",
        show_default=False,
        parser=location_argument,
    ),
]
Most = Annotated[
    int,
    typer.Option("--most", help="The largest number of ids; the most frequent values get them."),
]


def vocabulary(
    paths: ForeignPaths,
    column: Columns,
    save: To,
    schema: SchemaFile = None,
    most: Most = 1_000_000,
    least_count: LeastCount = 1,
    others: Others = 1,
    delimiter: Delimiter = None,
    header: Header = None,
    encoding: Encoding = None,
    names: Names = "",
    debug: Debug = False,
    as_json: AsJson = False,
) -> None:
    """Write the vocabulary of columns of Parquet, CSV, TSV or lines of JSON, read in one pass.

    A schema that names the file (`ids: vocabulary`, `vocabulary: FILE`) gives the same values the
    same ids in an import, in Parquet files that are read where they are, and in serving. Count
    the files that you train on: values that only a test has are unknown in training.
    """
    with reported(debug), ended_by_signals():
        check_writable(save, "--save")
        _check_holds_nothing_else(save)

        from recd_plugins.data.conform.rows import dropping_columns
        from recd_plugins.data.importing.schema_file import load_schema_and_form
        from recd_plugins.data.importing.surveying.survey import survey
        from recd_plugins.data.importing.table_files import foreign_files
        from recd_plugins.data.importing.vocabulary_pass import write_vocabulary

        given = form = text_form(delimiter, header, encoding, names)
        asked = None
        if schema is not None:
            asked, own = load_schema_and_form(schema)
            form = given.over(own)
            for name in column:
                asked.feature(name)  # which there must be
        files = foreign_files(paths, form, given=given)
        check_not_read(save, "--save", [one.path for one in files])
        there = {name for one in files for name in one.columns}
        drops = () if asked is None else dropping_columns(asked)
        read = dict.fromkeys([*column, *(name for name in drops if name in there)])
        found = survey(files, [*read], alone=True, form=form, ids=column)
        with progress() as show:
            made = write_vocabulary(
                found,
                column,
                save,
                most=most,
                least_count=least_count,
                others=others,
                schema=asked,
                progress=show,
            )
    if as_json:
        print(json.dumps({"path": str(save), **dataclasses.asdict(made)}))
        return
    print(f"{made.own:,} of {made.values:,} values have ids of their own, in {save}")
    print(f"next, in the schema: {{ids: vocabulary, vocabulary: {save}, num_ids: {made.num_ids}}}")


def _check_holds_nothing_else(save: Location) -> None:
    """`RegistryError` if the file exists and is not a vocabulary, such as a log that a shell put
    behind the option for `*.csv`."""
    from recd_plugins.data.importing.formats import PARQUET

    if isinstance(save, Path) and save.exists():
        with save.open("rb") as file:
            begins = file.read(len(PARQUET[0]))
        if begins and begins not in PARQUET:
            raise RegistryError(
                f"--save: {save} is there already, and is not a vocabulary, since it is no Parquet "
                "file. Name another file, or remove it."
            )
