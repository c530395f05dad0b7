"""The transforms as records of the slot `preprocess`."""

from __future__ import annotations

from typing import Any

from recd_dsi.transforms.dense import (
    BoxCoxConfig,
    BucketizeConfig,
    ClampDenseConfig,
    LogitConfig,
    OnehotConfig,
    build_box_cox,
    build_bucketize,
    build_clamp_dense,
    build_logit,
    build_onehot,
)
from recd_dsi.transforms.exported import ExportedConfig, build_exported
from recd_dsi.transforms.ids import (
    ClampConfig,
    GetLocalHourConfig,
    MapIdConfig,
    PositiveModulusConfig,
    SigridHashConfig,
    build_clamp,
    build_get_local_hour,
    build_map_id,
    build_positive_modulus,
    build_sigrid_hash,
)
from recd_dsi.transforms.lists import (
    ComputeScoreConfig,
    FirstXConfig,
    SamplingConfig,
    build_compute_score,
    build_first_x,
    build_sampling,
)
from recd_dsi.transforms.new_features import (
    CartesianConfig,
    EnumerateConfig,
    NGramConfig,
    PairConfig,
    build_cartesian,
    build_enumerate,
    build_intersection,
    build_n_gram,
    build_union,
)
from recd_plugins.api import PreprocessRecord

__all__ = ["RECORDS"]

_TRANSFORMS: tuple[tuple[str, str, Any, Any], ...] = (
    ("sigrid_hash", "Ids hashed into [0, modulo).", SigridHashConfig, build_sigrid_hash),
    ("first_x", "The first n ids of each row.", FirstXConfig, build_first_x),
    ("clamp", "Ids cut to [low, high].", ClampConfig, build_clamp),
    ("map_id", "Ids that are named become others.", MapIdConfig, build_map_id),
    (
        "positive_modulus",
        "The remainder of ids in [0, modulo).",
        PositiveModulusConfig,
        build_positive_modulus,
    ),
    (
        "get_local_hour",
        "Times as the hour of the day in a time zone.",
        GetLocalHourConfig,
        build_get_local_hour,
    ),
    ("sampling", "A share of the ids of each row, by their hash.", SamplingConfig, build_sampling),
    (
        "compute_score",
        "Weights of ids scaled, raised to a power and shifted.",
        ComputeScoreConfig,
        build_compute_score,
    ),
    ("n_gram", "A feature of each n ids in a row, hashed.", NGramConfig, build_n_gram),
    ("cartesian", "A feature of all pairs of two features' ids.", CartesianConfig, build_cartesian),
    (
        "intersection",
        "A feature of the ids that two features share.",
        PairConfig,
        build_intersection,
    ),
    ("union", "A feature of the ids of two features.", PairConfig, build_union),
    ("enumerate", "A feature of the places of a feature's ids.", EnumerateConfig, build_enumerate),
    ("bucketize", "A feature of the buckets of dense columns.", BucketizeConfig, build_bucketize),
    ("logit", "Dense columns of shares as log odds.", LogitConfig, build_logit),
    ("box_cox", "Dense columns as Box and Cox's powers.", BoxCoxConfig, build_box_cox),
    ("onehot", "Dense columns of kinds as vectors of 0 and 1.", OnehotConfig, build_onehot),
    ("clamp_dense", "Dense columns cut to [low, high].", ClampDenseConfig, build_clamp_dense),
    ("exported", "A torch.export program of one's own.", ExportedConfig, build_exported),
)

RECORDS: list[PreprocessRecord[Any]] = [
    PreprocessRecord(name=name, summary=summary, config=config, build=build)
    for name, summary, config, build in _TRANSFORMS
]
