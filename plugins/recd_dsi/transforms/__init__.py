"""Transforms of features and of dense columns, each with its formula.

`ids` takes each id of a feature by itself, `lists` the ids of a row, and `new_features` makes a
feature of others; `dense` takes dense columns, and `exported` is a user's own. `records` offers all
of them to registry.yaml. Several share `in_place`, which keeps the names of features, `mixing`,
which hashes, and `row_sets`, which finds what rows have in common.
"""

from recd_dsi.transforms.dense import BoxCox, Bucketize, ClampDense, Logit, Onehot
from recd_dsi.transforms.exported import Exported, export
from recd_dsi.transforms.ids import Clamp, GetLocalHour, MapId, PositiveModulus, SigridHash
from recd_dsi.transforms.lists import ComputeScore, FirstX, Sampling
from recd_dsi.transforms.new_features import Cartesian, Enumerate, Intersection, NGram, Union

__all__ = [
    "BoxCox",
    "Bucketize",
    "Cartesian",
    "Clamp",
    "ClampDense",
    "ComputeScore",
    "Enumerate",
    "Exported",
    "FirstX",
    "GetLocalHour",
    "Intersection",
    "Logit",
    "MapId",
    "NGram",
    "Onehot",
    "PositiveModulus",
    "Sampling",
    "SigridHash",
    "Union",
    "export",
]
