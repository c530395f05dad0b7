"""`recd data`: tables on disk."""

from __future__ import annotations

from recd_plugins.cli.commands import Commands
from recd_plugins.cli.data_check import check
from recd_plugins.cli.data_import import import_
from recd_plugins.cli.data_layout import layout
from recd_plugins.cli.data_prepare import prepare
from recd_plugins.cli.data_profile import profile
from recd_plugins.cli.data_rewrite import rewrite
from recd_plugins.cli.data_schema import schema
from recd_plugins.cli.data_show import show
from recd_plugins.cli.data_stats import stats
from recd_plugins.cli.data_vocabulary import vocabulary

__all__ = ["data"]

data = Commands(help="Prepare and look at tables.", no_args_is_help=True)
data.command()(schema)
data.command()(check)
data.command("import")(import_)
data.command()(vocabulary)
data.command()(layout)
data.command()(rewrite)
data.command()(stats)
data.command()(profile)
data.command()(prepare)
data.command()(show)
