"""The options and arguments that commands share."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from recd_plugins.errors import DataError, RegistryError
from recd_plugins.storage.uri import Location, location_of

if TYPE_CHECKING:
    from recd_plugins.data.foreign import ForeignSchema
    from recd_plugins.data.importing.text_form import TextForm

__all__ = [
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
    "location_argument",
    "schema_and_form",
    "text_form",
]

RegistryFile = Annotated[
    Path, typer.Option("--registry", "-r", help="The registry to read.", show_default=True)
]
"""The registry that a command reads: `--registry`, or `-r`."""
REGISTRY = Path("registry.yaml")
"""The registry of those who name none."""
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
