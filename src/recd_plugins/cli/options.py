"""The options that commands share, and how errors and progress reach a person."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from recd_plugins.cli.few_addresses import warn_of_few_addresses
from recd_plugins.cli.standard_streams import UTF_8
from recd_plugins.compat.build import missing_library, not_loaded
from recd_plugins.errors import (
    DataError,
    RecdError,
    RegistryError,
    cure_of,
    is_of_memory,
    shortened,
    shown,
)
from recd_plugins.hooks.blame import blamed
from recd_plugins.storage.uri import Location, location_of

if TYPE_CHECKING:
    from recd_plugins.data.foreign import ForeignSchema
    from recd_plugins.data.importing.text_form import TextForm
    from recd_plugins.data.table import Progress, Table  # pyarrow, which `recd --help` does without
    from recd_plugins.launch.rank_server import RankServer
    from recd_plugins.stack import Stack

__all__ = [
    "DPI",
    "REGISTRY",
    "Absent",
    "AsJson",
    "Debug",
    "Delimiter",
    "Encoding",
    "ForeignPaths",
    "Header",
    "LeastCount",
    "Names",
    "Others",
    "Overrides",
    "RegistryFile",
    "TableFolder",
    "check_of_use",
    "loaded",
    "location_argument",
    "opened_table",
    "progress",
    "ready",
    "registry_schema",
    "reported",
    "reported_trial",
    "schema_and_form",
    "server_of_ranks",
    "text_form",
]

RegistryFile = Annotated[
    Path, typer.Option("--registry", "-r", help="The registry to read.", show_default=True)
]
"""The registry that a command reads: `--registry`, or `-r`."""
REGISTRY = Path("registry.yaml")
"""The registry of those who name none."""
DPI = 150
"""The pixels of an inch of a picture."""
Overrides = Annotated[
    list[str] | None,
    typer.Argument(help="key=value over the registry's, as train.batch_size=512."),
]
"""What a command line changes of a registry: `train.batch_size=512`."""


def location_argument(text: str) -> Location:
    """A path or a URI of the command line."""
    try:
        return location_of(text)
    except DataError as error:
        raise typer.BadParameter(str(error)) from None


TableFolder = Annotated[
    Path,  # or a Uri, which typer has no word for
    typer.Argument(
        help="A folder of .parquet files, a file or a glob; on a store, its URI.",
        metavar="TABLE",
        parser=location_argument,
    ),
]
"""The table that a command is about."""
ForeignPaths = Annotated[
    list[Path],
    typer.Argument(
        help="Files of Parquet, CSV, TSV or lines of JSON, compressed or not, folders or globs; on "
        "a store, their URIs.",
        metavar="PATH...",
        parser=location_argument,
    ),
]
Delimiter = Annotated[
    str | None,
    typer.Option(
        "--delimiter",
        help="What separates the fields of text, as ',', '\\t' or '::'; by default recognised.",
        show_default=False,
        parser=lambda text: text.replace("\\t", "\t"),
        metavar="TEXT",
    ),
]
Header = Annotated[
    bool | None,
    typer.Option(
        "--header/--no-header",
        help="Whether the first line of text names its columns; by default recognised by its look.",
        show_default=False,
    ),
]
Encoding = Annotated[
    str | None,
    typer.Option(
        "--encoding",
        help="The encoding of text and lines of JSON that are not UTF-8, as latin-1.",
        metavar="NAME",
        show_default=False,
    ),
]
Names = Annotated[
    str,
    typer.Option(
        "--names",
        help="The names of the columns of text, in order, as user_id,item_id,rating.",
        metavar="NAME,...",
        show_default=False,
    ),
]
Absent = Annotated[
    list[str] | None,
    typer.Option(
        "--absent",
        help="A column that some of the files may lack, as one that was added later; it is null "
        "there.",
        metavar="COLUMN",
        show_default=False,
    ),
]
LeastCount = Annotated[
    int,
    typer.Option(
        "--least-count",
        help="The number of times that a value must occur to get an id of its own in a vocabulary.",
        min=1,
    ),
]
Others = Annotated[
    int,
    typer.Option(
        "--others", help="The number of ids that all other values share, by a hash.", min=1
    ),
]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]
"""`--debug`, which `reported` is given."""
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]
"""`--json`: a command then prints one JSON object on standard output."""


def check_of_use(given: Mapping[str, bool], why: str, cure: str) -> None:
    """`RegistryError` for the first of these options that is given, since it would do nothing."""
    for option, is_given in given.items():
        if is_given:
            raise RegistryError(
                f"{option}: does nothing here, because {why}. {cure}, or take {option} out."
            )


def text_form(
    delimiter: str | None, header: bool | None, encoding: str | None, names: str
) -> TextForm:
    """The form of text that options give."""
    from recd_plugins.data.importing.text_form import TextForm

    given = tuple(name.strip() for name in names.split(",")) if names else ()
    return TextForm(delimiter=delimiter, header=header, encoding=encoding, names=given)


def schema_and_form(schema: Path | None, given: TextForm) -> tuple[ForeignSchema | None, TextForm]:
    """The schema of a file, if one is named; and how text is read, by the options or else by that
    file."""
    if schema is None:
        return None, given
    from recd_plugins.data.importing.schema_file import load_schema_and_form

    asked, own = load_schema_and_form(schema)
    return asked, given.over(own)


def opened_table(path: Location, registry: Path) -> Table:
    """The table; if it does not say what its columns mean, with the schema of
    `dataset.schema`."""
    from recd_plugins.data.table import Table, carries_schema

    return Table.open(path, None if carries_schema(path) else registry_schema(registry))


def registry_schema(registry: Path) -> ForeignSchema | None:
    """`dataset.schema` of the registry, if there is one that has it."""
    if not registry.exists():
        return None
    from recd_plugins.data.foreign import ForeignSchema
    from recd_plugins.stack import load

    chosen = load(registry).registry.chosen("dataset")
    given = getattr(chosen[0].config, "schema", None) if chosen else None
    return given if isinstance(given, ForeignSchema) else None


def loaded(registry: Path, overrides: Sequence[str]) -> Stack:
    """The stack of a registry with a dataset and a model; an error says that one is missing
    before any work is done."""
    _check_readable(registry, overrides)
    from recd_plugins.stack import load

    stack = load(registry, overrides)
    for slot in ("dataset", "model"):
        stack.registry.one(slot)
    return stack


def ready(registry: Path, overrides: Sequence[str]) -> Stack:
    """The same, checked, with its tables made. What plugins print meanwhile does not go into the
    command's output."""
    stack = loaded(registry, overrides)
    with redirect_stdout(sys.stderr):
        with progress() as show:
            stack.prepare(show)
        stack.check()
    return stack


def _check_readable(registry: Path, overrides: Sequence[str]) -> None:
    """`RegistryError` for what can be seen before torch is imported, which takes seconds."""
    from recd_plugins.registry.source import Source

    Source.read(registry, overrides)


@contextmanager
def reported(debug: bool) -> Iterator[None]:
    """Print an error that a user can fix as one message, and exit with code 2."""
    try:
        yield
    except Exception as error:
        message = _message(error)
        if message is None:
            raise
        if debug:
            traceback.print_exc()
        print(f"error: {shortened(message)}", file=sys.stderr, flush=True)
        raise typer.Exit(2) from None


def _message(error: Exception) -> str | None:
    """The message for the user; None for a defect of ours, which keeps its traceback."""
    if isinstance(error, RecdError):
        return str(error)
    if missing_library(error) is not None:
        return f"{not_loaded(error)}. recd doctor says whether torch loads here, and what to do."
    if isinstance(error, UnicodeEncodeError) and error.encoding != "utf-8":
        text = error.object[error.start : error.end]
        return f"{shown(text)} has no place in {error.encoding}. {UTF_8}"
    if isinstance(error, FileNotFoundError) and (message := _missing_folder(error)):
        return message
    cure = cure_of(error)
    if not cure:
        return blamed(error)
    if isinstance(error, OSError):
        where = f"{os.fsdecode(error.filename)}: " if error.filename else ""
        return f"{where}{os.strerror(error.errno or 0)}. {cure}"
    why = str(error).strip().partition("\n")[0]
    if is_of_memory(error):
        return f"there is not enough memory for what was asked{f' ({why})' if why else ''}. {cure}"
    return f"{why.partition('. ')[0]}. {cure}"


def _missing_folder(error: FileNotFoundError) -> str:
    """The message for an error about a missing folder that every command needs; empty if it is
    about another file."""
    if (error.strerror or "").startswith("No usable temporary directory"):
        return f"{error.strerror}. Let TMPDIR name a folder that can be written to, and has room."
    try:
        os.getcwd()
    except FileNotFoundError:
        return "the folder in which the command was called has been removed. Go to another one."
    return ""


@contextmanager
def reported_trial() -> Iterator[None]:
    """Print how a trial failed, other than for lack of memory, and exit with its code if a user
    can fix it, else with 1."""
    from recd_plugins.trainer.tuning.trials import TrialFailed

    try:
        yield
    except TrialFailed as error:
        user_error = error.failure.code == 2
        print(error.failure.output if user_error else f"error: {error}", file=sys.stderr)
        raise typer.Exit(2 if user_error else 1) from None


@contextmanager
def server_of_ranks(
    registry: Path | None = None, overrides: Sequence[str] | None = None
) -> Iterator[RankServer | None]:
    """Import what ranks need and, if possible, fork the server from which `launch` forks them:
    before anything is loaded or computed, since the server is a copy of this process. A registry
    that cannot be read is reported first."""
    from recd_plugins.compat.versions import check_versions, installed_versions
    from recd_plugins.launch.rank_server import rank_server

    def check() -> None:
        if registry is not None:
            _check_readable(registry, overrides or ())

    check_versions(installed_versions())
    warn_of_few_addresses()
    with rank_server(["recd_plugins.trainer.run"], check) as server:
        yield server


@contextmanager
def progress() -> Iterator[Progress]:
    """Show the progress of long work on standard error: how much is done, how fast, and how long
    it will take; by bars on a terminal, by a line every minute elsewhere. What plugins or a trainer
    print meanwhile goes there too, not into the command's output."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        ProgressColumn,
        Task,
        TaskID,
        TextColumn,
        TimeRemainingColumn,
    )
    from rich.progress import Progress as Bars
    from rich.text import Text

    from recd_plugins.cli.progress_lines import ProgressLines
    from recd_plugins.report.kit import number

    class Rate(ProgressColumn):
        def render(self, task: Task) -> Text:
            return Text(f"{number(task.speed)}/s" if task.speed else "")

    bars = Bars(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        Rate(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
    )
    tasks: dict[str, TaskID] = {}
    lines = None if bars.console.is_terminal else ProgressLines()

    def show(what: str, done: int, total: int | None) -> None:
        if what not in tasks:
            bars.start()
            tasks[what] = bars.add_task(what, total=total)
        bars.update(tasks[what], completed=done, total=total)
        if lines is not None:
            lines(what, done, total)

    with redirect_stdout(sys.stderr):
        try:
            yield show
        finally:
            if tasks:
                bars.stop()
