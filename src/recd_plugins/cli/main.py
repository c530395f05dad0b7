"""`recd`: one command per file, nothing heavy imported before it is needed."""

from __future__ import annotations

from typing import Any

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
from recd_plugins.cli.topology import topology
from recd_plugins.cli.train import train
from recd_plugins.cli.tune import tune
from recd_plugins.cli.watch import watch
from recd_plugins.notices import notices_as_lines

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
    help="Train recommendation models with TorchRec and the plugins that registry.yaml names.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
for _part, _commands in DAY.items():
    for _name, _command in _commands.items():
        if isinstance(_command, Commands):
            app.add_typer(_command, name=_name, rich_help_panel=_part)
        else:
            app.command(_name, rich_help_panel=_part)(_command)


def main() -> None:
    """The entry point of the `recd` script."""
    notices_as_lines(on_errors=True)
    app()
