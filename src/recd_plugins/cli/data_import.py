"""`recd data import`: a table of somebody's files."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from recd_plugins.cli.options import (
    Absent,
    AsJson,
    Debug,
    Delimiter,
    Encoding,
    ForeignPaths,
    Header,
    LeastCount,
    Names,
    Others,
    check_of_use,
    location_argument,
    schema_and_form,
    text_form,
)
from recd_plugins.cli.output_paths import check_makable
from recd_plugins.cli.progress import progress
from recd_plugins.cli.reported import reported
from recd_plugins.data.files.paths import SCHEMA_FILE
from recd_plugins.errors import DataError, on_one_line, so_many

if TYPE_CHECKING:
    from recd_plugins.data.foreign import ForeignSchema
    from recd_plugins.data.importing.negatives import Negatives
    from recd_plugins.data.importing.splits import SplitBy
    from recd_plugins.data.importing.surveying.survey import Survey
    from recd_plugins.data.importing.table_import import Imported

__all__ = ["import_"]

Destination = Annotated[
    Path,
    typer.Argument(
        help="The folder to make, or its URI on a store; it must not be there yet.",
        metavar="TABLE",
        parser=location_argument,
    ),
]
SchemaFile = Annotated[
    Path | None,
    typer.Option(
        "--schema",
        help="What the columns mean, as `recd data schema` writes it; by default what it would "
        "suggest, unless there are doubts by which a model would be trained wrongly.",
        metavar="FILE",
        show_default=False,
        parser=location_argument,
    ),
]
By = Annotated[
    str | None,
    typer.Option(
        "--split-by",
        help="What parts the rows into TABLE/train and TABLE/test: `time` (the latest are "
        "tested on) or `hash:COLUMN` (those of some values of a column, say of users, are).",
        metavar="time|hash:COLUMN",
        show_default=False,
    ),
]
Share = Annotated[float, typer.Option("--test-share", help="The share of rows to test on.")]
Count = Annotated[
    int, typer.Option("--negatives", help="The number of samples with label 0, of other items, "
    "that are drawn beside each click. This is for data of clicks alone.", min=0)
]  # fmt: skip
Drawn = Annotated[
    Literal["popularity", "uniform"],
    typer.Option("--by", help="How the items of negatives are drawn: as they are clicked, or "
                 "evenly."),
]  # fmt: skip
Items = Annotated[
    list[str] | None,
    typer.Option(
        "--item",
        help="A column that a negative has of the other item, the item's id first; by default the "
        "features of kind item.",
        metavar="COLUMN",
        show_default=False,
    ),
]
Seed = Annotated[
    int,
    typer.Option(
        "--seed",
        help="The seed by which negatives are drawn; the same seed draws the same ones.",
        min=0,
    ),
]
Accept = Annotated[
    bool,
    typer.Option(
        "--accept-doubts",
        help="Import the columns as what they seem to be, in spite of any doubts.",
    ),
]


def import_(
    paths: ForeignPaths,
    table: Destination,
    schema: SchemaFile = None,
    split_by: By = None,
    test_share: Share = 0.1,
    negatives: Count = 0,
    by: Drawn = "popularity",
    item: Items = None,
    seed: Seed = 0,
    least_count: LeastCount = 1,
    others: Others = 1,
    absent: Absent = None,
    accept_doubts: Accept = False,
    delimiter: Delimiter = None,
    header: Header = None,
    encoding: Encoding = None,
    names: Names = "",
    debug: Debug = False,
    as_json: AsJson = False,
) -> None:
    """Make a table from Parquet, CSV, TSV or lines of JSON, with a schema of their columns.

    It streams: memory does not grow with the files. An import that was killed goes on when it is
    run again; until it is done there is no table. TABLE/schema.yaml and TABLE/vocabularies keep
    how values become ids, for more files and for serving.
    """
    with reported(debug):
        from recd_plugins.data.importing.negatives import Negatives
        from recd_plugins.data.importing.proposing.proposal import propose
        from recd_plugins.data.importing.schema_file import parsed
        from recd_plugins.data.importing.splits import SplitBy
        from recd_plugins.data.importing.surveying.asked_types import types_asked
        from recd_plugins.data.importing.surveying.survey import survey
        from recd_plugins.data.importing.table_files import foreign_files
        from recd_plugins.data.importing.table_import import TableImport

        check_makable(table, "TABLE")
        if not negatives:
            check_of_use(
                {"--item": bool(item), "--by": by != "popularity", "--seed": seed != 0},
                "it is of the samples that --negatives draws",
                "Add --negatives",
            )
        if split_by is None:
            check_of_use(
                {"--test-share": test_share != 0.1},
                "rows are parted by --split-by alone",
                "Add --split-by",
            )
        given = text_form(delimiter, header, encoding, names)
        asked, form = schema_and_form(schema, given)
        files = foreign_files(paths, form, absent=absent or (), given=given)
        split = None if split_by is None else SplitBy.of(split_by, test_share)
        found = survey(
            files,
            _wanted(asked, split, negatives),
            alone=asked is not None,
            form=form,
            ids=() if asked is None else [one.name for one in asked.sparse],
        )
        doubts: tuple[str, ...] = ()
        guesses: tuple[str, ...] = ()
        if asked is None:
            proposal = propose(found)
            asked, _ = parsed(proposal.schema, "schema")
            doubts, guesses = proposal.doubts, proposal.to_settle
        items = tuple(item or ())
        drawn = Negatives(count=negatives, by=by, seed=seed, items=items) if negatives else None
        lacking = _telling(asked, drawn, found)
        for doubt in (*doubts, *lacking):
            print(f"doubt: {on_one_line(doubt)}", file=sys.stderr)
        if not accept_doubts:
            _check_settled(guesses, lacking)
        with progress() as show:
            imported = TableImport(
                found.files,
                table,
                asked,
                types_asked(found, asked),
                split=split,
                negatives=drawn,
                least_count=least_count,
                others=others,
                absent=absent or (),
                form=form,
                progress=show,
            ).run()
    _show(table, imported, as_json, has_ids=bool(asked.sparse))


def _telling(asked: ForeignSchema, drawn: Negatives | None, found: Survey) -> tuple[str, ...]:
    """The columns that would tell negatives from clicks, each with its cure."""
    from recd_plugins.data.importing.negatives import undrawn

    return () if drawn is None else tuple(
        f"{name}: is the same wherever an item is, and no negative has that of its own item, "
        "which tells it from a click: write `--item` of all that describe an item, its id first, "
        f"and of {name} too; or leave it out of the schema"
        for name in undrawn(asked.conformed, drawn, found.sample)
    )  # fmt: skip


def _check_settled(guesses: Sequence[str], undrawn: Sequence[str]) -> None:
    """Refuse to import with guesses that would train a wrong model if they are wrong, and
    negatives that other columns tell from clicks."""
    if not (guesses or undrawn):
        return
    listed = "".join(f"\n  {on_one_line(one)}" for one in (*guesses, *undrawn))
    cure = "Correct it as each line says"
    if guesses:
        cure = (
            "Write the guesses with `recd data schema FILE --out schema.yaml`, mend them, and "
            "import with `--schema schema.yaml`"
        )
    raise DataError(
        "these doubts are not settled, and if one is right, the model would be "
        f"wrong:{listed}\n{cure}; or take all as it is with `--accept-doubts`."
    )


def _wanted(schema: ForeignSchema | None, split: SplitBy | None, negatives: int) -> set[str]:
    """The columns that are needed; negatives bring a label, which the files need not have."""
    wanted = set[str]() if schema is None else {*schema.columns}
    if schema is not None and negatives:
        wanted.discard(schema.label)
    if split is not None and split.column is not None:
        wanted.add(split.column)
    return wanted


def _show(table: Path, imported: Imported, as_json: bool, *, has_ids: bool) -> None:
    for note in imported.notes:
        print(f"note: {on_one_line(note)}", file=sys.stderr)
    if as_json:
        print(
            json.dumps(
                {
                    "tables": {
                        split or "table": str(one) for split, one in imported.tables.items()
                    },
                    "rows": imported.rows,
                    "dropped": imported.dropped,
                    "segments_resumed": imported.resumed,
                }
            )
        )
        return
    for (split, path), rows in zip(imported.tables.items(), imported.rows.values(), strict=True):
        print(f"{split + ': ' if split else ''}{so_many(rows, 'row')} in {path}")
    for column, count in imported.dropped.items():
        print(f"left out: {so_many(count, 'row')} without {on_one_line(column)}")
    if imported.resumed:
        print("an import that had been killed went on where it was")
    if not has_ids:
        return  # a note says what to do, since `recd init` has no model for the table
    following = shlex.join(["recd", "init", str(table)])
    test = ""
    if "test" not in imported.tables:
        kept = shlex.quote(str(table / SCHEMA_FILE))
        test = f" --test TABLE, which names a table to test on, imported with --schema {kept}"
    print(f"next: {following}{test}")
