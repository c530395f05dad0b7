"""`recd data check`: all that is wrong with a table, at once."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from recd_plugins.cli.options import (
    Absent,
    AsJson,
    Debug,
    Delimiter,
    Encoding,
    Header,
    Names,
    location_argument,
    schema_and_form,
    text_form,
)
from recd_plugins.cli.progress import progress
from recd_plugins.cli.reported import reported
from recd_plugins.errors import RegistryError, on_one_line, so_many

if TYPE_CHECKING:
    from collections.abc import Sequence

    from recd_plugins.data.foreign import ForeignSchema
    from recd_plugins.data.importing.checking.table_problems import CheckResult
    from recd_plugins.data.importing.text_form import TextForm
    from recd_plugins.data.progress import Progress
    from recd_plugins.data.side_table import SideTableConfig
    from recd_plugins.storage.uri import Location

__all__ = ["check"]

Checkables = Annotated[
    list[Path],
    typer.Argument(
        help="Tables, foreign files or folders of them; or a registry.yaml, for its dataset.",
        metavar="PATH...",
        parser=location_argument,
    ),
]
SchemaFile = Annotated[
    Path | None,
    typer.Option(
        "--schema",
        help="What the columns mean, as `recd data schema` writes it; by default what the table's "
        "footers say.",
        metavar="FILE",
        show_default=False,
        parser=location_argument,
    ),
]

REPORTED = 0.01
"""The share of rows that repeat another one from which it is reported."""


def check(
    paths: Checkables,
    schema: SchemaFile = None,
    absent: Absent = None,
    delimiter: Delimiter = None,
    header: Header = None,
    encoding: Encoding = None,
    names: Names = "",
    debug: Debug = False,
    as_json: AsJson = False,
) -> None:
    """Read all rows once and list all problems, each with its cure; exit code 1 if there are any.

    It says, by a sample, how many rows are there more than once: a problem only if all are.

    It checks for files that cannot be read or differ, columns that are missing, double or of
    another type, nulls and NaN, labels, times, ids out of range and vocabularies of other data.
    """
    with reported(debug):
        given = text_form(delimiter, header, encoding, names)
        asked, form = schema_and_form(schema, given)
        with progress() as show:
            if len(paths) == 1 and paths[0].suffix in (".yaml", ".yml"):
                _check_says_nothing(given, absent, paths[0])
                checked = _registry(paths[0], asked, show)
            else:
                checked = _tables(paths, asked, form, given, absent or (), show)
    problems = {name: one.problems for name, one in checked.items()}
    if as_json:
        values: dict[str, Any] = {
            name: {
                "rows": one.rows,
                "repeated": round(one.repeated, 4),
                "problems": [dataclasses.asdict(problem) for problem in one.problems],
            }
            for name, one in checked.items()
        }
        print(json.dumps(values))
    else:
        for name, one in checked.items():
            what = f"{so_many(one.rows, 'row')}, {_counted(len(one.problems))}"
            print(f"{name}: {what}{_repeated(one.repeated)}")
            for number, problem in enumerate(one.problems, 1):
                print(f"  {number}. {on_one_line(str(problem))}")
    if any(problems.values()):
        raise typer.Exit(1)


def _repeated(share: float) -> str:
    """What to say of rows that are there before; few are no news in any log."""
    return (
        f"; about {share:.0%} of the rows repeat another in all columns read"
        if share >= REPORTED
        else ""
    )


def _counted(problems: int) -> str:
    return so_many(problems, "problem") if problems else "no problem"


def _check_says_nothing(given: TextForm, absent: Sequence[str] | None, registry: Location) -> None:
    """`RegistryError` if options of text, or absent columns, are given together with a
    registry."""
    if absent:
        raise RegistryError(
            "--absent: is for foreign files. A registry itself lists the columns that some files "
            f"may lack: write `absent: [{', '.join(absent)}]` into the dataset of {registry}."
        )
    options = [one.name for one in dataclasses.fields(given) if getattr(given, one.name)]
    if given.header is False:
        options = ["no-header", *options]
    if options:
        listed = " and ".join(f"--{one}" for one in options)
        raise RegistryError(
            f"{listed}: describes how text is read, but tables of a registry, such as {registry}, "
            "hold no text. Take it out."
        )


def _registry(path: Path, asked: ForeignSchema | None, show: Progress) -> dict[str, CheckResult]:
    """Each split of a registry's dataset, read where it lies or after it is prepared."""
    from recd_plugins.data.dataset import SPLITS
    from recd_plugins.data.foreign import as_foreign
    from recd_plugins.data.importing.checking.file_check import check_files
    from recd_plugins.data.parquet_tables import ParquetConfig, files_of_split, made_apart
    from recd_plugins.patterns import matching
    from recd_plugins.registry.prepare import beside_registry
    from recd_plugins.stack import load

    stack = load(path)
    config = stack.registry.one("dataset").config
    found: dict[str, CheckResult] = {}
    for split in SPLITS:
        if isinstance(config, ParquetConfig):
            with beside_registry(stack.registry):
                files, _, _ = files_of_split(config, split)
            schema = asked or config.schema or _of_footer(next(iter(files)))
            patterns = (config.absent,) if isinstance(config.absent, str) else config.absent
            absent = matching(patterns, () if schema is None else schema.columns)
        else:
            table = stack.prepare(show)[split]
            files = {file: table.facts[file] for file in table.files}
            schema, absent = as_foreign(table.schema), []
        found[split] = check_files(
            files, schema, in_place=True, tests=split == "test", absent=absent, progress=show
        )
    if isinstance(config, ParquetConfig) and config.schema is None:
        for split, made in made_apart(config):
            other = "its first table" if split == "train" else "dataset.train"
            what = f"has other ids or numbers than {other}: {made.why}"
            found[split].add(f"dataset.{split}", None, what, made.cure)
    for number, side in enumerate(config.join if isinstance(config, ParquetConfig) else ()):
        found[f"join[{number}]"] = _side_table(side)
    return found


def _side_table(config: SideTableConfig) -> CheckResult:
    """The features of a side table, and whether each of its keys occurs once."""
    from recd_plugins.data.importing.checking.table_problems import CheckResult
    from recd_plugins.data.side_table import SideTable

    names = [*(one.name for one in config.sparse), *(one.name for one in config.dense)]
    side = SideTable(config, names)
    found = CheckResult(rows=side.num_rows())
    for problem in side.problems():
        where, _, what = problem.partition(": ")
        found.add(where, None, what.removesuffix("."), "")
    return found


def _tables(
    paths: Sequence[Location],
    asked: ForeignSchema | None,
    form: TextForm,
    given: TextForm,
    absent: Sequence[str],
    show: Progress,
) -> dict[str, CheckResult]:
    """The files of the paths as one table; each split by itself if a folder has splits."""
    from recd_plugins.data.dataset import SPLITS
    from recd_plugins.data.importing.checking.file_check import check_files
    from recd_plugins.data.importing.table_files import files_of

    def checked(named: Sequence[Location], tests: bool = False) -> CheckResult:
        files = files_of(named)
        schema = asked or _of_footer(next(iter(files)))
        return check_files(
            files, schema, tests=tests, form=form, given=given, absent=absent, progress=show
        )

    if len(paths) == 1 and all((paths[0] / split).is_dir() for split in SPLITS):
        return {split: checked([paths[0] / split], split == "test") for split in SPLITS}
    return {", ".join(map(str, paths)): checked(paths)}


def _of_footer(file: Location) -> ForeignSchema | None:
    """The schema that a file carries in its footer; None if another program wrote it."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from recd_plugins.data.foreign import as_foreign
    from recd_plugins.data.schema import METADATA_KEY, Schema
    from recd_plugins.storage.uri import input_file

    try:
        with input_file(file) as opened:
            text = (pq.read_metadata(opened).metadata or {}).get(METADATA_KEY)
    except (pa.ArrowException, OSError):
        return None
    return None if text is None else as_foreign(Schema.from_json(text, str(file)))
