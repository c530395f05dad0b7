"""`recd`: one command per file, nothing heavy imported before it is needed."""

from __future__ import annotations

from recd_plugins.cli.advise import advise
from recd_plugins.cli.commands import Commands
from recd_plugins.cli.data import data
from recd_plugins.cli.doctor import doctor
from recd_plugins.cli.init import init
from recd_plugins.cli.plan import explain, plan
from recd_plugins.cli.plugin_commands import WithPlugins
from recd_plugins.cli.plugins import plugins
from recd_plugins.cli.report import report
from recd_plugins.cli.reshard import reshard
from recd_plugins.cli.topology import topology
from recd_plugins.cli.train import train
from recd_plugins.cli.tune import tune

__all__ = ["app", "main"]

app = Commands(
    name="recd",
    cls=WithPlugins,
    help="Train recommendation models with TorchRec and the plugins that registry.yaml names.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command()(init)
app.command()(train)
app.command()(plan)
app.command()(advise)
app.command()(explain)
app.add_typer(tune, name="tune")
app.command()(report)
app.command()(reshard)
app.add_typer(plugins, name="plugins")
app.add_typer(data, name="data")
app.add_typer(topology, name="topology")
app.command()(doctor)


def main() -> None:
    """The entry point of the `recd` script."""
    app()
