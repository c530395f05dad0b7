"""The parts that the host's commands share, so that a plugin's look like them."""

from recd_plugins.cli.commands import Commands
from recd_plugins.cli.ended_by_signals import ended_by_signals
from recd_plugins.cli.options import (
    AsJson,
    Debug,
    Overrides,
    RegistryFile,
    TableFolder,
    check_of_use,
)
from recd_plugins.cli.output_paths import PICTURES, check_writable
from recd_plugins.cli.progress import progress
from recd_plugins.cli.reported import reported
from recd_plugins.report.page_server import HTML, PageServer

__all__ = [
    "HTML",
    "PICTURES",
    "AsJson",
    "Commands",
    "Debug",
    "Overrides",
    "PageServer",
    "RegistryFile",
    "TableFolder",
    "check_of_use",
    "check_writable",
    "ended_by_signals",
    "progress",
    "reported",
]
