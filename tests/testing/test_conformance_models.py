"""Ladder: pure values. Poolings and models: each rule, broken once, is named."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from contract_records import Rate, broken, record
from torch import Tensor, nn
from torchrec.modules.embedding_modules import EmbeddingBagCollection

from recd_plugins.data.batch import Batch
from recd_plugins.data.schema import Schema, SparseFeature
from recd_plugins.slots import ModelRecord, PoolingRecord
from recd_plugins.testing.conformance import check_record
from recd_plugins.testing.probe import SCHEMA, Probe

# pooling


class Sum(nn.Module):
    """Correct; the others each break one rule."""

    def forward(self, values: Tensor, lengths: Tensor, query: Tensor | None = None) -> Tensor:
        return torch.segment_reduce(values, "sum", lengths=lengths, unsafe=True)


class OfAnotherWidth(Sum):
    def forward(self, values: Tensor, lengths: Tensor, query: Tensor | None = None) -> Tensor:
        return super().forward(values, lengths)[:, :1]


class Biased(Sum):
    def forward(self, values: Tensor, lengths: Tensor, query: Tensor | None = None) -> Tensor:
        return super().forward(values, lengths) + 1


class Centred(Sum):
    def forward(self, values: Tensor, lengths: Tensor, query: Tensor | None = None) -> Tensor:
        pooled = super().forward(values, lengths)
        return (pooled - pooled.mean(0)) * (lengths > 0).unsqueeze(1)


class Greedy(Sum):
    def forward(self, values: Tensor, lengths: Tensor, query: Tensor | None = None) -> Tensor:
        values.data.mul_(2)
        return super().forward(values, lengths)


class Detached(Sum):
    def forward(self, values: Tensor, lengths: Tensor, query: Tensor | None = None) -> Tensor:
        return super().forward(values.detach(), lengths)


class IdleParameter(Sum):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, values: Tensor, lengths: Tensor, query: Tensor | None = None) -> Tensor:
        pooled = super().forward(values, lengths)
        return pooled * self.scale if len(values) else pooled


class Asking(Sum):
    def forward(self, values: Tensor, lengths: Tensor, query: Tensor | None = None) -> Tensor:
        pooled = super().forward(values, lengths)
        return pooled if query is None else pooled * query


class SaysItIgnoresItsQuery(Asking):
    needs_query = False


class Sharing(Asking):
    def pool_unique(
        self, values: Tensor, lengths: Tensor, query: Tensor, inverse_lookup: Tensor
    ) -> Tensor:
        return Sum.forward(self, values, lengths)[inverse_lookup] * query


class SharingWrong(Sharing):
    def pool_unique(
        self, values: Tensor, lengths: Tensor, query: Tensor, inverse_lookup: Tensor
    ) -> Tensor:
        return super().pool_unique(values.detach(), lengths, query, inverse_lookup) + 0 * (
            values.sum()
        )


@pytest.mark.parametrize("module", [Sum, Asking, Sharing])
def test_a_correct_pooling_passes(module: type[nn.Module]) -> None:
    check_record(record(PoolingRecord, lambda: lambda dim: module()))


@pytest.mark.parametrize(
    ("module", "rule"),
    [
        (OfAnotherWidth, "must become float32 [8, 16]"),
        (Biased, "a row of length 0 must become zeros"),
        (Centred, "must not depend on the other rows"),
        (Greedy, "must leave its arguments as they are"),
        (Detached, "values must get a finite gradient"),
        (SaysItIgnoresItsQuery, "on another query its result changed by"),
        (SharingWrong, "pool_unique must give each sample what the pooling gives it by itself"),
        (IdleParameter, "scale must get a finite gradient even of a batch without a value"),
    ],
)
def test_a_pooling_that_breaks_a_rule_is_reported_with_the_rule(
    module: type[nn.Module], rule: str
) -> None:
    assert rule in broken(record(PoolingRecord, lambda: lambda dim: module()))


def test_a_pooling_must_be_a_factory() -> None:
    assert "built the int 3, where it must build a" in broken(record(PoolingRecord, lambda: 3))
    assert "its factory must make an nn.Module" in broken(record(PoolingRecord, lambda: str))


# model


class Model(Probe):
    """Correct; `break_` says how it is not."""

    def __init__(self, schema: Schema, break_: str = "") -> None:
        super().__init__(schema)
        self.break_ = break_
        if break_ == "parameter":
            self.idle = nn.Parameter(torch.ones(1))
        if break_ == "device":
            self.bags = EmbeddingBagCollection(
                tables=[dataclasses.replace(t) for t in self.bags.embedding_bag_configs()]
            )

    def forward(self, batch: Batch) -> Any:
        given = batch.weights
        if self.break_ == "weights":
            batch = dataclasses.replace(batch, weights=torch.ones_like(given))
        loss, (detached, logits, labels, _) = super().forward(batch)
        match self.break_:
            case "tuple":
                return loss
            case "vector":
                loss = loss.expand(2)
            case "nan":
                loss = loss * torch.nan
            case "logits":
                logits = logits.unsqueeze(1)
            case "attached":
                detached = loss
            case "labels":
                labels = 1 - labels
        return loss, (detached, logits, labels, given)


def model(break_: str = "", schema: Schema | None = None) -> ModelRecord[Rate]:
    return ModelRecord(
        name="mine",
        summary="Mine.",
        config=Rate,
        build=lambda config, context: Model(schema or context.require_schema(), break_),
    )


def test_a_correct_model_passes() -> None:
    check_record(model())


@pytest.mark.parametrize(
    ("break_", "rule"),
    [
        ("device", "its tables must be on the meta device, but one is on cpu"),
        ("tuple", "forward must return (loss, (loss, logits, labels, weights))"),
        ("vector", "the loss must be one finite number"),
        ("nan", "the loss must be one finite number"),
        ("logits", "logits must be [12] and detached"),
        ("attached", "logits must be [12] and detached, as the loss beside them"),
        ("labels", "loss, labels and weights must come back as they are"),
        ("parameter", "parameter 'idle' must get a finite gradient"),
        ("weights", "a sample of weight 0 must not count"),
    ],
)
def test_a_model_that_breaks_a_rule_is_reported_with_the_rule(break_: str, rule: str) -> None:
    assert rule in broken(model(break_))


def test_a_model_with_tables_too_small_or_none_is_reported() -> None:
    small = SCHEMA.replace([SparseFeature(name="shop", num_ids=3)])
    assert "the table of 'shop' must have 7 rows or more, but has 3" in broken(model("", small))
    assert "must look features up in TorchRec's" in broken(record(ModelRecord, nn.Identity))
