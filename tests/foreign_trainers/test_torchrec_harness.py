"""TorchRec's own sharding test with our sharders: two gloo ranks, each case held by TorchRec's
harness to its unsharded model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from harness import Case, outcome
from torchrec.distributed.fbgemm_qcomm_codec import CommType, QCommsConfig
from torchrec.modules.embedding_configs import DataType, PoolingType
from trio import MINOR

from recd_plugins.testing.gloo import GlooPool

SGD = torch.optim.SGD, {"lr": 0.1}
INT32 = dict.fromkeys(("indices_dtype", "lengths_dtype", "offsets_dtype"), torch.int32)
HALF = QCommsConfig(forward_precision=CommType.FP16, backward_precision=CommType.BF16)

EACH: dict[str, Mapping[str, Any]] = {
    "as it is": {},
    "float16 tables": {"data_type": DataType.FP16},
    "ids and lengths of int32": {"options": INT32},
    "KJTs by offsets": {"options": {"use_offsets": True}},
    "optimizer in backward": {
        "options": {"apply_optimizer_in_backward_config": {"embedding": SGD}}
    },
    "quantized communication": {"options": {"qcomms_config": HALF}},
}
if MINOR < 8:  # whose own harness makes them wrong
    EACH.pop("KJTs by offsets")
TENSOR_DICT = {"weighted": False, "options": {"input_type": "td"}}
MEAN = {"weighted": False, "pooling": PoolingType.MEAN}
UNEVEN = {"options": {"variable_batch_size": True}}
"""Plain row-wise bags fail on uneven batches over gloo, which has no such reduce-scatter."""

BAGS = {**EACH, "TensorDict": TENSOR_DICT, "means": MEAN, "uneven batches": UNEVEN}
DEDUP = {**EACH, "means": MEAN, "uneven batches": UNEVEN}
SEQUENCES = {**EACH, "TensorDict": TENSOR_DICT}
"""The harness' own model with sequences is not in the wheel, and ours sums no uneven batches."""


def outcomes(cases: Mapping[str, Case]) -> dict[str, str]:
    """On a rank: what the harness says of each case; nothing where it passes."""
    return {name: outcome(case) for name, case in cases.items()}


@pytest.mark.parametrize(
    ("way", "kinds"),
    [
        ({"by": "tiers"}, BAGS),
        ({"by": "tiers", "coalesce": "rank"}, BAGS),
        ({"by": "tiers", "coalesce": "node"}, BAGS),
        ({"by": "tiers", "model": "sequences"}, SEQUENCES),
        ({"by": "tiers", "model": "sequences", "coalesce": "rank"}, SEQUENCES),
        ({"by": "dedup"}, DEDUP),
        ({"by": "dedup over tiers", "coalesce": "rank"}, DEDUP),
    ],
    ids=lambda value: " ".join(value.values()) if "by" in value else "",
)
def test_torchrecs_own_sharding_test_passes(
    gloo_pool: GlooPool, way: Mapping[str, Any], kinds: Mapping[str, Mapping[str, Any]]
) -> None:
    cases = {name: Case(**way, **kind) for name, kind in kinds.items()}
    for found in gloo_pool.run(outcomes, cases):
        assert found == dict.fromkeys(cases, "")
