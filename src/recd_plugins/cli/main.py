"""`recd`: one command per file, nothing heavy imported before it is needed."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer

from recd_plugins import __version__
from recd_plugins.cli.advise import advise
from recd_plugins.cli.commands import Commands
from recd_plugins.cli.data import data
from recd_plugins.cli.doctor import doctor
from recd_plugins.cli.explain import explain
from recd_plugins.cli.init import init
from recd_plugins.cli.plan import plan
from recd_plugins.cli.plugin_commands import WithPlugins
from recd_plugins.cli.plugins import plugins
from recd_plugins.cli.report import report
from recd_plugins.cli.reshard import reshard
from recd_plugins.cli.standard_streams import open_streams
from recd_plugins.cli.topology import topology
from recd_plugins.cli.train import train
from recd_plugins.cli.tune import tune
from recd_plugins.cli.watch import watch
from recd_plugins.errors import is_of_the_system
from recd_plugins.notices import hide_logs, notices_as_lines

__all__ = ["DAY", "app", "main"]

DAY: dict[str, dict[str, Any]] = {
    "Set up": {"doctor": doctor, "data": data, "init": init, "plugins": plugins},
    "Decide": {"topology": topology, "advise": advise, "plan": plan, "explain": explain},
    "Train": {"train": train, "watch": watch, "report": report, "tune": tune, "reshard": reshard},
}
"""The host's commands in the order of a user's day, as `recd --help` has them."""

app = Commands(
    name="recd",
    cls=WithPlugins,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
for _part, _commands in DAY.items():
    for _name, _command in _commands.items():
        if isinstance(_command, Commands):
            app.add_typer(_command, name=_name, rich_help_panel=_part)
        else:
            app.command(_name, rich_help_panel=_part)(_command)


def _print_version(asked: bool) -> None:
    if asked:
        print(f"recd-plugins {__version__}")
        raise typer.Exit


@app.callback()
def recd(
    _version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version, and exit."
        ),
    ] = False,
) -> None:
    """Train recommendation models with TorchRec and the plugins that registry.yaml names."""


def main() -> None:
    """The entry point of the `recd` script."""
    open_streams()
    notices_as_lines(on_errors=True)
    hide_logs()
    if os.environ.get("COLUMNS") == "0":  # rich would draw all in no width, and so nothing
        del os.environ["COLUMNS"]
    with printing():
        app()


@contextmanager
def printing() -> Iterator[None]:
    """Inside, output that cannot be written gives a message and exit code 2; if the reader is
    gone, as behind `| head`, only exit code 1."""
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except OSError as error:
        unread = isinstance(error, BrokenPipeError)
        if not (unread or is_of_the_system(error)) or error.filename is not None:
            raise
        # Python writes what is left when it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not unread:
            what = os.strerror(error.errno or 0)
            print(
                f"error: what the command prints cannot be written: {what}. Free space on the disk "
                "of its output, or name another file.",
                file=sys.stderr,
            )
        raise SystemExit(1 if unread else 2) from None
