"""Schemas, tables on disk, the datasets that write them, logs, and what measures a table."""

from recd_plugins.data.dataset import SPLITS, Dataset, Split, Tables
from recd_plugins.data.messages import MESSAGES, LogRoute
from recd_plugins.data.schema import IDS, Schema, SparseFeature
from recd_plugins.data.stats_report import Draw, StatsReport, StatsTable
from recd_plugins.data.table import (
    Progress,
    Stripe,
    Table,
    TableWriter,
    check_columns,
    silent,
    write_table,
)

__all__ = [
    "IDS",
    "MESSAGES",
    "SPLITS",
    "Dataset",
    "Draw",
    "LogRoute",
    "Progress",
    "Schema",
    "SparseFeature",
    "Split",
    "StatsReport",
    "StatsTable",
    "Stripe",
    "Table",
    "TableWriter",
    "Tables",
    "check_columns",
    "silent",
    "write_table",
]
