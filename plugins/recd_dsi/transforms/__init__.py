"""Transforms of features and of dense columns, each with its formula."""

from recd_dsi.transforms.dense import BoxCox, Bucketize, ClampDense, Logit, Onehot
from recd_dsi.transforms.exported import Exported, export
from recd_dsi.transforms.ids import Clamp, GetLocalHour, MapId, PositiveModulus, SigridHash
from recd_dsi.transforms.lists import ComputeScore, FirstX, Sampling
from recd_dsi.transforms.made import Cartesian, Enumerate, Intersection, NGram, Union

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
