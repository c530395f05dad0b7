"""`recd data schema`: what the columns of somebody's files seem to be."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from recd_plugins.cli.options import (
    AsJson,
    Debug,
    Delimiter,
    Encoding,
    ForeignPaths,
    Header,
    Names,
    location_argument,
    text_form,
)
from recd_plugins.cli.output_paths import YAML, check_writable
from recd_plugins.cli.reported import reported
from recd_plugins.errors import so_many
from recd_plugins.storage.whole_file import write_whole

__all__ = ["schema"]

Out = Annotated[
    Path | None,
    typer.Option(
        "--out",
        "-o",
        help="The file to write, or its URI; by default the console.",
        metavar="FILE",
        parser=location_argument,
    ),
]


def schema(
    paths: ForeignPaths,
    out: Out = None,
    delimiter: Delimiter = None,
    header: Header = None,
    encoding: Encoding = None,
    names: Names = "",
    debug: Debug = False,
    as_json: AsJson = False,
) -> None:
    """Suggest a schema for Parquet, CSV, TSV or lines of JSON, from a sample spread over them.

    It is YAML with comments: what each column seems to hold, how many different values it has, and
    what is in doubt. Correct it, and give it to `recd data import --schema`; or, for Parquet that
    is read where it is, to `recd init --schema` or to `dataset.schema` of a registry.
    """
    with reported(debug):
        from recd_plugins.data.importing.proposing.proposal import propose
        from recd_plugins.data.importing.surveying.survey import survey
        from recd_plugins.data.importing.table_files import foreign_files

        check_writable(out, "--out", YAML)
        form = text_form(delimiter, header, encoding, names)
        found = survey(foreign_files(paths, form), form=form)
        proposal = propose(found)
        if out is not None:
            write_whole(out, proposal.text)
        if as_json:
            values = {
                "schema": proposal.schema,
                "doubts": proposal.doubts,
                "to_settle": proposal.to_settle,
                "rows": found.rows,
                "rows_looked_at": found.sampled,
                "files": [{"path": str(one.path), "is": str(one)} for one in found.files],
            }
            print(json.dumps(values, default=str))
        elif out is None:
            print(proposal.text, end="")
        else:
            doubts, to_settle = len(proposal.doubts), len(proposal.to_settle)
            print(f"{out}: {so_many(doubts, 'doubt')}, {to_settle} to settle", file=sys.stderr)
