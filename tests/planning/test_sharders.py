"""Value tests: what a trainer's sharders and model say of tables, and who may say otherwise."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from torch import nn
from torch.distributed.optim import (  # type: ignore[attr-defined]
    _apply_optimizer_in_backward as apply_optimizer_in_backward,
)
from torchrec.distributed.embedding import EmbeddingCollectionSharder
from torchrec.distributed.embedding_types import BaseEmbeddingSharder
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.sharding_plan import get_default_sharders
from torchrec.modules.embedding_configs import EmbeddingBagConfig, EmbeddingConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection
from torchrec.modules.feature_processor_ import PositionWeightedModule
from torchrec.modules.fp_embedding_modules import FeatureProcessedEmbeddingBagCollection
from torchrec.optim.optimizers import Adagrad

from recd_plugins.config.parsing import parse
from recd_plugins.errors import CapabilityError, PluginError, RegistryError
from recd_plugins.planning.answers import completed
from recd_plugins.planning.fused_params import check_registry_agrees, fused_by_table, fused_in_words
from recd_plugins.planning.sharders import check_planned, default_sharders, sharded_modules
from recd_plugins.registry.settings import OptimizerSettings
from recd_plugins.tiers.sharder import TierSharder, why_no_tiers

META = torch.device("meta")
SGD = {"optimizer": EmbOptimType.EXACT_SGD, "learning_rate": 0.2}


def bags(*names: str, weighted: bool = False) -> EmbeddingBagCollection:
    tables = [
        EmbeddingBagConfig(name=n, embedding_dim=8, num_embeddings=50, feature_names=[f"f_{n}"])
        for n in names
    ]
    return EmbeddingBagCollection(tables=tables, is_weighted=weighted, device=META)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bags = bags("a", "b")
        config = EmbeddingConfig(
            name="c", embedding_dim=8, num_embeddings=50, feature_names=["f_c"]
        )
        self.sequences = EmbeddingCollection(tables=[config], device=META)
        positions = {"f_d": PositionWeightedModule(max_feature_length=5)}
        self.weighted = FeatureProcessedEmbeddingBagCollection(
            bags("d", weighted=True), nn.ModuleDict(positions)
        )


class OwnBags(EmbeddingBagCollection):
    """A stranger's subclass, which DistributedModelParallel shards by no sharder of its base."""


class OwnShard(EmbeddingBagCollectionSharder):
    def shard(self, *args: Any, **options: Any) -> Any:
        return super().shard(*args, **options)


class FromScratch(BaseEmbeddingSharder[EmbeddingBagCollection]):
    """As that of Ascend's RecSDK, which exchanges ids by a process group of the host's."""

    module_type = EmbeddingBagCollection  # type: ignore[assignment]

    def shard(self, *args: Any, **options: Any) -> Any:
        raise NotImplementedError


class OwnKernels(EmbeddingBagCollectionSharder):
    def compute_kernels(self, sharding_type: str, compute_device_type: str) -> list[str]:
        return ["fused"]

    marked = True


def test_modules_are_those_that_distributed_model_parallel_shards() -> None:
    model = Model()
    found = {path: type(module) for path, module, _ in sharded_modules(model, default_sharders())}
    assert found == {
        "bags": EmbeddingBagCollection,
        "sequences": EmbeddingCollection,
        "weighted": FeatureProcessedEmbeddingBagCollection,  # and nothing inside of it
    }
    model.bags.__class__ = OwnBags
    found = {path: type(module) for path, module, _ in sharded_modules(model, default_sharders())}
    assert "bags" not in found


def test_tables_have_their_own_optimizer_or_that_of_their_sharder() -> None:
    model = Model()
    given = {"lr": 0.05, "eps": 1e-3}
    apply_optimizer_in_backward(Adagrad, [model.bags.embedding_bags["b"].weight], given)
    found = fused_by_table(model, default_sharders(SGD))
    assert found["a"] == found["c"] == found["d"] == SGD
    assert found["b"] == {
        "optimizer": EmbOptimType.EXACT_ADAGRAD,
        "learning_rate": 0.05,
        "eps": 1e-3,
    }
    assert given == {"lr": 0.05, "eps": 1e-3}  # TorchRec would have changed it
    assert fused_in_words(found["a"]) == "EXACT_SGD, learning_rate 0.2"
    assert fused_in_words(found["b"]) == "EXACT_ADAGRAD, learning_rate 0.05, eps 0.001"
    assert fused_in_words({}) == "EXACT_SGD, learning_rate 0.01"  # as fbgemm's kernels have it
    assert set(fused_by_table(model, [EmbeddingCollectionSharder()])) == {"c"}


def test_optimizers_that_torchrec_cannot_fuse_are_named() -> None:
    model = Model()
    weight = model.bags.embedding_bags["b"].weight
    apply_optimizer_in_backward(torch.optim.AdamW, [weight], {"lr": 0.1})
    with pytest.raises(
        CapabilityError, match="AdamW is not an optimizer of TorchRec's fused kernels"
    ):
        fused_by_table(model, default_sharders())
    apply_optimizer_in_backward(torch.optim.SGD, [weight], {"lr": 0.1})
    with pytest.raises(CapabilityError, match=r"2 times for a table \(AdamW, SGD\)"):
        fused_by_table(model, default_sharders())


def test_registry_yaml_may_say_the_same_and_nothing_else() -> None:
    model, settings = Model(), OptimizerSettings(tables="adagrad", tables_lr=0.05, tables_eps=1e-3)
    said = ["tables", "tables_lr", "tables_eps"]
    check_registry_agrees(model, default_sharders(settings.fused_params()), said, settings)
    mine = default_sharders(SGD)
    check_registry_agrees(model, mine, [], settings)  # what it says by default is for `recd train`
    with pytest.raises(RegistryError) as caught:
        check_registry_agrees(model, mine, said, settings)
    assert str(caught.value) == (
        "train.optimizer: registry.yaml says EXACT_ADAGRAD, learning_rate 0.05, eps 0.001, but the "
        "trainer's table 'a' has EXACT_SGD, learning_rate 0.2, by apply_optimizer_in_backward or "
        "by the fused_params of its sharder. Set it in one place: take tables, tables_lr out, "
        "or let the trainer set the same."
    )
    slower = OptimizerSettings(tables="sgd", tables_lr=0.2, tables_eps=1e-3)
    check_registry_agrees(model, mine, said, slower)  # SGD has no epsilon
    with pytest.raises(RegistryError, match=r"table 'a' has EXACT_SGD, learning_rate 0\.01"):
        check_registry_agrees(model, get_default_sharders(), ["tables_lr"], slower)


def test_a_registry_says_of_tables_what_their_optimizer_has() -> None:
    sgd = OptimizerSettings(tables="sgd", tables_lr=0.2)
    kept = {"tables": "sgd", "tables_lr": 0.2, "dense": "adam", "dense_lr": 1e-3}
    assert sgd.options == {**kept, "dense_options": {}}
    adagrad = OptimizerSettings(tables="adagrad", tables_eps=1e-3)
    assert parse(OptimizerSettings, adagrad.options, "optimizer") == adagrad


def test_what_was_planned_must_be_sharded() -> None:
    model = Model()
    check_planned(model, default_sharders(), default_sharders(SGD))
    mine: list[Any] = [EmbeddingBagCollectionSharder(SGD), EmbeddingCollectionSharder(SGD)]
    with pytest.raises(CapabilityError, match="tables of 'weighted', a FeatureProcessed") as caught:
        check_planned(model, default_sharders(), mine)
    assert str(caught.value).endswith("stack.plan(model, sharders=mine).")


def test_a_planner_brings_the_trainers_sharders_or_says_why_not() -> None:
    mine: list[Any] = [EmbeddingBagCollectionSharder(SGD), EmbeddingCollectionSharder(SGD)]
    assert completed([mine[1]], mine, "sharding: Mine") == [mine[1], mine[0]]
    alike: list[Any] = [EmbeddingBagCollectionSharder(dict(SGD))]
    assert completed(alike, mine, "sharding: Mine") == [alike[0], mine[1]]
    theirs: list[Any] = [EmbeddingBagCollectionSharder({"learning_rate": 0.05})]
    with pytest.raises(PluginError) as caught:
        completed(theirs, mine, "sharding: Mine")
    assert str(caught.value) == (
        "sharding: Mine brings a EmbeddingBagCollectionSharder of its own for "
        "EmbeddingBagCollection, which trains tables with EXACT_SGD, learning_rate 0.05, where the "
        "trainer's have EXACT_SGD, learning_rate 0.2. Have its `sharders` return those of "
        "`context.sharders()`, wrapped where its plan changes modules."
    )
    coded: list[Any] = [EmbeddingBagCollectionSharder(SGD, qcomm_codecs_registry={})]
    with pytest.raises(PluginError, match="leaves out the trainer's qcomm_codecs_registry"):
        completed([mine[0]], coded, "sharding: Mine")


def test_tiers_stand_in_front_of_what_torchrec_shards() -> None:
    refused = {one.module_type: why_no_tiers(one) for one in default_sharders()}
    taken = {kind for kind, why in refused.items() if not why}
    assert taken == {EmbeddingCollection, EmbeddingBagCollection}
    assert refused[FeatureProcessedEmbeddingBagCollection].startswith(
        "FeatureProcessedEmbeddingBagCollectionSharder shards a FeatureProcessed"
    )
    assert not why_no_tiers(OwnKernels())
    assert why_no_tiers(OwnShard()) == (
        "OwnShard shards an EmbeddingBagCollection in a way of its own"
    )
    assert why_no_tiers(FromScratch()) == (
        "FromScratch shards an EmbeddingBagCollection in a way of its own"
    )
    cluster: Any = None
    around = TierSharder(OwnKernels(fused_params=SGD), cluster)
    assert around.compute_kernels("row_wise", "cuda") == ["fused"]
    assert around.fused_params is around._inner.fused_params
    assert around.marked
    assert not hasattr(around, "no_such_attribute")
