"""The parts that poolings and models are made with, on the unique samples of a feature group."""

from recd_plugins.compat.pytorch import (
    attends_rows,
    attention_of_rows,
    flash_attention_on_cpu,
    flash_attention_on_cpu_backward,
)
from recd_plugins.embedding.adapt import looked_up_otherwise, poolings_by_feature
from recd_plugins.embedding.expand import cells_of, expand_rows
from recd_plugins.embedding.pooling import PoolsUnique
from recd_plugins.embedding.scored import weighed
from recd_plugins.embedding.timing import (
    PoolingSeconds,
    seconds_of,
    seconds_of_call,
    seconds_of_copies,
    seconds_of_lookups,
    seconds_of_pooling,
)
from recd_plugins.embedding.unique_calls import (
    CALLS_OF_A_FEATURE,
    CALLS_OF_A_GROUP,
    CALLS_OF_A_PART,
    CALLS_OF_A_STEP,
)
from recd_plugins.sparse.rows.counted import CountedRows, counted_rows
from recd_plugins.tiers.mapped_tables import mapped

__all__ = [
    "CALLS_OF_A_FEATURE",
    "CALLS_OF_A_GROUP",
    "CALLS_OF_A_PART",
    "CALLS_OF_A_STEP",
    "CountedRows",
    "PoolingSeconds",
    "PoolsUnique",
    "attends_rows",
    "attention_of_rows",
    "cells_of",
    "counted_rows",
    "expand_rows",
    "flash_attention_on_cpu",
    "flash_attention_on_cpu_backward",
    "looked_up_otherwise",
    "mapped",
    "poolings_by_feature",
    "seconds_of",
    "seconds_of_call",
    "seconds_of_copies",
    "seconds_of_lookups",
    "seconds_of_pooling",
    "weighed",
]
