"""TorchRec's own sharding test, `torchrec.distributed.test_utils.test_sharding`, on our sharders.

It trains a model of TorchRec's one step, sharded by the sharders that it is given, and holds the
predictions after it to those of the unsharded model.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, Literal

import numpy as np
import torch
import torch.distributed as dist
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from torch import Tensor
from torchrec.distributed.embedding import EmbeddingCollectionSharder
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.modules.embedding_configs import (
    DataType,
    EmbeddingBagConfig,
    EmbeddingConfig,
    PoolingType,
)
from torchrec.modules.embedding_modules import EmbeddingCollection
from torchrec.sparse.jagged_tensor import KeyedTensor

from recd_plugins.embedding.adapt import adapt
from recd_plugins.embedding.sharded import with_dedup
from recd_plugins.planning.tier_plans.tier_plan import Coalesce, TablePlan, TierPlan
from recd_plugins.sparse.features import SparseFeatures
from recd_plugins.sparse.ikjt import InverseKeyedJaggedTensor
from recd_plugins.sparse.jagged import without
from recd_plugins.tiers.sharder import ShardedTiers, tier_sharders

with warnings.catch_warnings():
    warnings.filterwarnings("ignore", ".*torch.jit.script")  # deprecated, in TorchRec's models
    from torchrec.distributed.test_utils.test_model import (
        ModelInput,
        TestSparseNN,
        TestSparseNNBase,
    )

__all__ = ["Case", "outcome"]

# TorchRec's wheel leaves its tests out, from which its harness takes a sharder that it uses for
# 2D parallelism alone.
MISSING = "torchrec.distributed.tests.test_sequence_model"

ROWS = {"table_0": 40, "table_1": 27, "table_2": 16}
WEIGHTED = {"weighted_table_0": 33, "weighted_table_1": 21}
DIMS = (8, 16, 8, 8, 4)
FEATURES = {
    "table_0": ["feature_0"],
    "table_1": ["feature_1", "feature_1b"],
    "table_2": ["feature_2"],
    "weighted_table_0": ["weighted_0"],
    "weighted_table_1": ["weighted_1"],
}
GROUPS = (("feature_0", "feature_2"),)

By = Literal["torchrec", "tiers", "dedup", "dedup over tiers"]


@dataclass(frozen=True)
class Case:
    """A run of TorchRec's harness, by one of our ways or its own."""

    by: By
    model: Literal["bags", "sequences"] = "bags"
    coalesce: Coalesce = "none"
    pooling: PoolingType = PoolingType.SUM
    data_type: DataType = DataType.FP32
    weighted: bool = True
    options: Mapping[str, Any] = field(default_factory=dict)
    """Those of the harness."""


class _RowWise:
    """Offers row-wise sharding and the fused kernel alone, as the harness' own sharders do."""

    def sharding_types(self, compute_device_type: str) -> list[str]:
        return ["row_wise"]

    def compute_kernels(self, sharding_type: str, compute_device_type: str) -> list[str]:
        return ["fused"]


class PlainBags(_RowWise, EmbeddingBagCollectionSharder):
    pass


class PlainSequences(_RowWise, EmbeddingCollectionSharder):
    pass


class SequenceNN(TestSparseNN):
    """TorchRec's model with an EmbeddingCollection, whose sequences are summed."""

    def __init__(self, tables: Any, **options: Any) -> None:
        bags = [EmbeddingBagConfig(**{**vars(one), "pooling": PoolingType.SUM}) for one in tables]
        super().__init__(tables=bags, **options)
        device = options["sparse_device"] or torch.device("cpu")
        self.sparse = _SummedSequences(tables, device)


class _SummedSequences(torch.nn.Module):
    def __init__(self, tables: list[EmbeddingConfig], device: torch.device) -> None:
        super().__init__()
        self.ec = EmbeddingCollection(tables=tables, device=device)

    def forward(
        self, features: Any, weighted_features: Any = None, batch_size: int | None = None
    ) -> KeyedTensor:
        embedded = self.ec(features)
        sums: list[Tensor] = []
        for jagged in embedded.values():
            lengths, values = jagged.lengths(), jagged.values()
            rows = torch.repeat_interleave(lengths.long())
            sums.append(values.new_zeros(len(lengths), values.shape[1]).index_add(0, rows, values))
        return KeyedTensor.from_tensor_list(list(embedded.keys()), sums)


class DedupNN(TestSparseNN):
    """TorchRec's model, adapted; it finds unique samples in its batch by itself."""

    def __init__(self, tables: Any, **options: Any) -> None:
        super().__init__(tables=tables, **options)
        adapt(self, GROUPS)

    def sparse_forward(self, input: ModelInput) -> KeyedTensor:
        unique = InverseKeyedJaggedTensor.from_kjt(input.idlist_features, GROUPS)
        rest = without(input.idlist_features, frozenset(key for group in GROUPS for key in group))
        found: KeyedTensor = self.sparse(
            features=SparseFeatures.of(rest, unique),
            weighted_features=input.idscore_features,
            batch_size=input.float_features.size(0),
        )
        return found


def outcome(case: Case) -> str:
    """On a rank: the error of the harness, or nothing."""
    if MISSING not in sys.modules:
        stand_in = ModuleType(MISSING)
        stand_in.TestEmbeddingCollectionSharder = PlainSequences  # type: ignore[attr-defined]
        sys.modules[MISSING] = stand_in
    from torchrec.distributed.test_utils.test_sharding import (
        sharding_single_rank_test_single_process,
    )

    tables, weighted = _tables(case, ROWS, 0), _tables(case, WEIGHTED, len(ROWS))
    features = [name for table in ROWS for name in FEATURES[table]]
    try:
        sharding_single_rank_test_single_process(
            pg=dist.group.WORLD,
            device=torch.device("cpu"),
            rank=dist.get_rank(),
            world_size=dist.get_world_size(),
            model_class=_model(case),
            embedding_groups={"group_0": features},
            tables=tables,
            weighted_tables=weighted if case.weighted and case.model == "bags" else None,
            sharders=_sharders(case),
            optim=EmbOptimType.EXACT_SGD,
            **case.options,
        )
    except Exception as error:  # what fails is told, and may be expected
        return f"{type(error).__name__}: {error}"
    return ""


def _model(case: Case) -> type[TestSparseNNBase]:
    if case.model == "sequences":
        return SequenceNN
    return DedupNN if case.by.startswith("dedup") else TestSparseNN


def _tables(case: Case, rows: Mapping[str, int], first: int) -> list[Any]:
    found = []
    for number, (name, num_rows) in enumerate(rows.items(), first):
        given = {
            "name": name,
            "num_embeddings": num_rows,
            "embedding_dim": 8 if case.model == "sequences" else DIMS[number],
            "feature_names": FEATURES[name],
            "data_type": case.data_type,
        }
        kind = EmbeddingConfig if case.model == "sequences" else EmbeddingBagConfig
        found.append(
            kind(**given, **({} if case.model == "sequences" else {"pooling": case.pooling}))
        )
    return found


def _sharders(case: Case) -> list[Any]:
    fused = {"learning_rate": 0.1, "optimizer": EmbOptimType.EXACT_SGD}
    sharders: list[Any] = [PlainBags(dict(fused)), PlainSequences(dict(fused))]
    if case.by not in ("torchrec", "dedup"):
        sharders = tier_sharders(ShardedTiers(_tier_plan(case)), sharders)
    return with_dedup(sharders) if case.by.startswith("dedup") else sharders


def _tier_plan(case: Case) -> TierPlan:
    tables = {}
    for name, rows in {**ROWS, **WEIGHTED}.items():
        order = np.random.default_rng(rows).permutation(rows)
        tables[name] = TablePlan(
            table=name,
            replicated=order[: rows // 3],
            per_node=order[rows // 3 : 2 * rows // 3],
            coalesce=case.coalesce,
        )
    return TierPlan(tables=tables, n_nodes=1, ranks_per_node=dist.get_world_size())
