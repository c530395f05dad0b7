"""`recd watch`: the page of a run while it trains."""

from __future__ import annotations

import json
import threading
from typing import Annotated

import typer

from recd_plugins.cli.options import AsJson, Debug
from recd_plugins.cli.reported import reported

__all__ = ["watch"]

Runs = Annotated[
    list[str],
    typer.Argument(
        help="Folders of runs, as runs/latest; several are shown side by side.", metavar="RUN"
    ),
]
Port = Annotated[
    int, typer.Option("--port", help="The page's port; 0 takes a free one.", min=0, max=65535)
]


def watch(runs: Runs, port: Port = 0, debug: Debug = False, as_json: AsJson = False) -> None:
    """Show what `recd report` draws of a run while it trains, on a page that only this machine
    sees.

    It reads the run's files every two seconds, waits for a run that has just begun, and ends with
    Ctrl-C.
    """
    with reported(debug):
        from recd_plugins.errors import DataError
        from recd_plugins.launch.environment import HOST
        from recd_plugins.report.sources import begun, read_sources
        from recd_plugins.report.watch import Watched

        read_sources(begun(runs))  # what is no run is said before a page is
        try:
            watched = Watched(runs, port)
        except OSError as error:
            raise DataError(
                f"--port: no page can be served at {HOST}:{port} ({error.strerror}). Name another "
                "port, or 0 for a free one."
            ) from error
        address, waiting = watched.address, watched.waiting()
        if as_json:
            print(json.dumps({"page": address, "waits_for": waiting}), flush=True)
        else:
            for folder in waiting:
                print(f"{folder}: no run has written metrics there yet; the page waits for them")
            print(f"{address}  (Ctrl-C ends it)", flush=True)
        try:
            threading.Event().wait()
        finally:
            watched.close()
