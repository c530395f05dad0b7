"""Schemas, tables on disk, the datasets that write them, logs, and what measures a table."""

from recd_plugins.data.conform.key_counts import KeyCounts
from recd_plugins.data.conform.rows import conform
from recd_plugins.data.dataset import SPLITS, Dataset, Split, Tables
from recd_plugins.data.foreign import DenseColumn, ForeignFeature, ForeignSchema
from recd_plugins.data.growing import GrowingDataset, NotClosed, Period
from recd_plugins.data.importing.schema_file import load_schema
from recd_plugins.data.messages import MESSAGES, Cuts, LogRoute, Placed
from recd_plugins.data.progress import Progress, silent
from recd_plugins.data.schema import IDS, Fill, Label, Schema, SparseFeature, Vector
from recd_plugins.data.stats_report import Draw, StatsReport, StatsTable
from recd_plugins.data.stripes import Stripe
from recd_plugins.data.table import Table, check_columns
from recd_plugins.data.table_writer import TableWriter, write_table
from recd_plugins.storage.uri import Location
from recd_plugins.storage.whole_file import whole_file, write_whole

__all__ = [
    "IDS",
    "MESSAGES",
    "SPLITS",
    "Cuts",
    "Dataset",
    "DenseColumn",
    "Draw",
    "Fill",
    "ForeignFeature",
    "ForeignSchema",
    "GrowingDataset",
    "KeyCounts",
    "Label",
    "Location",
    "LogRoute",
    "NotClosed",
    "Period",
    "Placed",
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
    "Vector",
    "check_columns",
    "conform",
    "load_schema",
    "silent",
    "whole_file",
    "write_table",
    "write_whole",
]
