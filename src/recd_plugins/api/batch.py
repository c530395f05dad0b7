"""A batch, its columns before they are tensors, and the forms that features have in it."""

from recd_plugins.data.batch import Batch
from recd_plugins.data.columns import Columns
from recd_plugins.data.kept_batch import read_batch
from recd_plugins.data.reader.local_loader import LocalLoader
from recd_plugins.data.reader.rank_batches import RankBatches
from recd_plugins.data.request import batch_of
from recd_plugins.data.wired_batch import (
    WIRED_SCHEMA,
    batch_to_record,
    batches_from_record,
    body_of,
    joined_records,
    without_bodies,
)
from recd_plugins.registry.program import TransformProgram
from recd_plugins.sparse.features import SparseFeatures
from recd_plugins.sparse.groups import Groups, check_groups
from recd_plugins.sparse.ikjt import InverseKeyedJaggedTensor
from recd_plugins.sparse.jagged import WeightedJagged
from recd_plugins.sparse.joined import JoinedFeatures
from recd_plugins.sparse.kept_batches import KeptBatches
from recd_plugins.sparse.own_batches import (
    OwnBatches,
    all_features_of,
    features_of,
    marked_batch,
    parts_of,
    with_parts,
)
from recd_plugins.sparse.partial import PartialInverseKeyedJaggedTensor
from recd_plugins.sparse.row_wise import RowWise
from recd_plugins.sparse.wrapped_loader import WrappedLoader

__all__ = [
    "WIRED_SCHEMA",
    "Batch",
    "Columns",
    "Groups",
    "InverseKeyedJaggedTensor",
    "JoinedFeatures",
    "KeptBatches",
    "LocalLoader",
    "OwnBatches",
    "PartialInverseKeyedJaggedTensor",
    "RankBatches",
    "RowWise",
    "SparseFeatures",
    "TransformProgram",
    "WeightedJagged",
    "WrappedLoader",
    "all_features_of",
    "batch_of",
    "batch_to_record",
    "batches_from_record",
    "body_of",
    "check_groups",
    "features_of",
    "joined_records",
    "marked_batch",
    "parts_of",
    "read_batch",
    "with_parts",
    "without_bodies",
]
