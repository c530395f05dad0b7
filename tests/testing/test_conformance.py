"""Ladder: pure values. Good records pass; each rule of each slot is broken once and named."""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torchrec.distributed.types import ModuleSharder, ShardingPlan
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recd_plugins.config import Config, Range
from recd_plugins.data.batch import Batch
from recd_plugins.data.dataset import Dataset, Split
from recd_plugins.data.loader import LocalReaderConfig, build_local_reader
from recd_plugins.data.schema import Schema, SparseFeature
from recd_plugins.data.table import Progress, Table, write_table
from recd_plugins.errors import CapabilityError, RegistryError
from recd_plugins.hooks.manager import Catalog
from recd_plugins.planning.plan import TorchRecPlanner, TorchRecPlannerConfig
from recd_plugins.planning.topology import Topology
from recd_plugins.slots import (
    Context,
    DatasetRecord,
    DedupRecord,
    EtlRecord,
    Loader,
    ModelRecord,
    PoolingRecord,
    PreprocessRecord,
    ReaderRecord,
    Record,
    ShardingRecord,
    TierRecord,
)
from recd_plugins.testing.batches import from_lists, random_table, to_lists
from recd_plugins.testing.conformance import ContractBroken, check_record
from recd_plugins.testing.gloo import GlooPool
from recd_plugins.testing.probe import SCHEMA, Probe


@dataclass(frozen=True, kw_only=True)
class Rate(Config):
    rate: Annotated[float, Range(ge=0, le=1)] = 0.5
    """A documented option."""


@dataclass(frozen=True, kw_only=True)
class Undocumented(Config):
    rate: float = 0.5


@dataclass(frozen=True)
class Positional(Config):
    rate: float = 0.5
    """Documented, but not keyword-only."""


def record(kind: type[Record[Any, Any]], make: Callable[[], object], **more: Any) -> Any:
    """A record whose build calls `make`."""
    given = {"name": "mine", "summary": "Mine.", "config": Rate} | more
    return kind(build=lambda config, context: make(), **given)


def broken(subject: Record[Any, Any], **given: Any) -> str:
    """The message with which the record fails."""
    with pytest.raises(ContractBroken) as caught:
        check_record(subject, **given)
    return str(caught.value)


# What any record must have.


@pytest.mark.parametrize(
    ("more", "rule"),
    [
        ({"name": "My Tier"}, "tier 'My Tier': its name must be a word"),
        ({"summary": "No sentence"}, "summary must be a sentence on one line"),
        ({"config": dict}, "config must be a dataclass that inherits from Config"),
        ({"config": Undocumented}, "option 'rate' of Undocumented has no line of text"),
        ({"config": Positional}, "option 'rate' of Positional must be keyword-only"),
        ({"uses": ("poolings",)}, "it uses 'poolings', which is no slot"),
    ],
)
def test_a_record_in_bad_form_is_named_with_its_rule(more: dict[str, Any], rule: str) -> None:
    assert rule in broken(record(TierRecord, object, **more))


def test_what_is_no_record_is_told_so() -> None:
    assert "no record of a slot" in broken(Rate())  # type: ignore[arg-type]  # on purpose


def test_options_and_needs_are_checked_as_a_registry_checks_them() -> None:
    check_record(record(TierRecord, object), options={"rate": 1})
    with pytest.raises(RegistryError, match="must be >= 0 and <= 1"):
        check_record(record(TierRecord, object), options={"rate": 2})
    with pytest.raises(CapabilityError, match="needs the package 'no_such_package'"):
        check_record(record(TierRecord, object, needs=("import:no_such_package",)))


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


def test_a_correct_pooling_passes() -> None:
    check_record(record(PoolingRecord, lambda: lambda dim: Sum()))


@pytest.mark.parametrize(
    ("module", "rule"),
    [
        (OfAnotherWidth, "must become float32 [8, 16]"),
        (Biased, "a row of length 0 must become zeros"),
        (Centred, "must not depend on the other rows"),
        (Greedy, "must leave its arguments as they are"),
        (Detached, "values must get a finite gradient"),
        (IdleParameter, "scale must get a finite gradient even of a batch without a value"),
    ],
)
def test_a_pooling_that_breaks_a_rule_is_told_which(module: type[nn.Module], rule: str) -> None:
    assert rule in broken(record(PoolingRecord, lambda: lambda dim: module()))


def test_a_pooling_must_be_a_factory() -> None:
    assert "must return a factory" in broken(record(PoolingRecord, lambda: 3))


# dataset


class Rows(Dataset):
    """Correct; `break_` says how it is not."""

    def __init__(self, break_: str = "") -> None:
        self.break_ = break_

    @property
    def schema(self) -> Schema:
        names = ("item", str(random.random())) if self.break_ == "schema" else ("item", "shop")
        return Schema(
            session_id=None,
            timestamp=None,
            dense=("age",),
            sparse=tuple(SparseFeature(name=name, num_ids=9) for name in names),
        )

    def num_rows(self, split: Split) -> int | None:
        return 7 if self.break_ == "num_rows" else 8

    def chunks(self, split: Split) -> Iterator[pa.Table]:
        rows = 0 if self.break_ == "rows" and split == "test" else 8
        seed: Any = None if self.break_ == "seed" else ["train", "test"].index(split)
        draw = np.random.default_rng(0 if self.break_ == "splits" else seed)
        ids = draw.integers(0, 10 if self.break_ == "ids" else 9, (rows, 4)).tolist()
        if self.break_ == "ids":
            ids[0][0] = 9
        chunk = {
            "label": np.arange(rows, dtype=np.float32) % (3 if self.break_ == "label" else 2),
            "age": np.full(rows, np.nan if self.break_ == "nan" else 1, dtype=np.float32),
            "item": [None, *ids[1:]] if self.break_ == "null" else ids,
            "shop": ids,
        }
        if self.break_ == "column":
            del chunk["shop"]
        if rows:
            yield pa.table(chunk)


def test_a_correct_dataset_passes() -> None:
    check_record(record(DatasetRecord, Rows))


@pytest.mark.parametrize(
    ("break_", "rule"),
    [
        ("schema", "its schema must be a Schema, the same whenever it is asked for"),
        ("rows", "split 'test' must have a row"),
        ("column", "lacks column 'shop'"),
        ("null", "has 1 nulls in column 'item'"),
        ("ids", "feature 'item' has ids from 0 to 9, outside [0, 9)"),
        ("label", "labels must be 0 or 1"),
        ("nan", "dense column 'age' holds a NaN"),
        ("num_rows", "num_rows('train') is 7, but 8 rows came"),
        ("seed", "two builds must yield the same rows"),
        ("splits", "the splits must not hold the same rows"),
    ],
)
def test_a_dataset_that_breaks_a_rule_is_told_which(break_: str, rule: str) -> None:
    assert rule in broken(record(DatasetRecord, lambda: Rows(break_)))


# preprocess


@dataclass
class Modulo:
    """id -> id mod `modulo`; `break_` says how it is wrong."""

    modulo: int = 5
    break_: str = ""

    def __call__(self, features: KeyedJaggedTensor) -> KeyedJaggedTensor:
        lists = to_lists(features)
        if self.break_ == "rows":
            seen: set[int] = set()
            lists["item"] = [
                [i for i in row if not (i in seen or seen.add(i))]  # type: ignore[func-returns-value]
                for row in lists["item"]
            ]
        if self.break_ == "keys":
            lists.pop("item")
        if self.break_ == "in place":
            features.values().zero_()
        return from_lists(
            {key: [[i % self.modulo for i in row] for row in ids] for key, ids in lists.items()}
        )

    def schema(self, schema: Schema) -> Schema:
        modulo = 4 if self.break_ == "schema" else self.modulo
        return schema.replace(dataclasses.replace(f, num_ids=modulo) for f in schema.sparse)


def test_a_correct_transform_passes() -> None:
    check_record(record(PreprocessRecord, Modulo))


@pytest.mark.parametrize(
    ("break_", "rule"),
    [
        ("keys", "must return a KeyedJaggedTensor of the keys"),
        ("in place", "must leave its input as it is"),
        ("schema", "must be int64 in [0, 4)"),
        ("rows", "must not depend on the other rows, but that of 'item' does"),
    ],
)
def test_a_transform_that_breaks_a_rule_is_told_which(break_: str, rule: str) -> None:
    assert rule in broken(record(PreprocessRecord, lambda: Modulo(break_=break_)))


# dedup


@dataclass
class Unique:
    """The unique rows of a feature and where they go; `off` shifts the inverse lookup."""

    rows: list[list[int]]
    inverse_lookup: list[int]

    def to_kjt(self) -> KeyedJaggedTensor:
        return from_lists({"history": [self.rows[index] for index in self.inverse_lookup]})


@dataclass
class OneGroup:
    off: int = 0

    def convert(self, batch: Batch) -> Batch:
        lists = to_lists(batch.features)
        history = lists.pop("history")
        rows = [list(row) for row in dict.fromkeys(map(tuple, history))]
        inverse = [(rows.index(row) + self.off) % len(rows) for row in history]
        return dataclasses.replace(batch, features=from_lists(lists), dedup=Unique(rows, inverse))


def test_a_correct_dedup_passes_and_a_wrong_inverse_is_told() -> None:
    check_record(record(DedupRecord, OneGroup))
    check_record(record(DedupRecord, OneGroup), expand=lambda batch: batch.dedup.to_kjt())
    assert "every row of 'history' must come back" in broken(
        record(DedupRecord, lambda: OneGroup(off=1))
    )


# etl


@dataclass
class Copy:
    seed: int | None = 0

    def run(self, table: Table, folder: Path, progress: Progress) -> Table:
        rows = pa.concat_tables(pq.read_table(file) for file in table.files)
        order = np.random.default_rng(self.seed).permutation(rows.num_rows)
        return write_table(folder, table.schema, [rows.take(order)])


def test_a_correct_etl_passes_and_one_without_a_seed_is_told() -> None:
    check_record(record(EtlRecord, Copy))
    assert "two runs on the same table" in broken(record(EtlRecord, lambda: Copy(seed=None)))


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
        loss, (told, logits, labels, _) = super().forward(batch)
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
                told = loss
            case "labels":
                labels = 1 - labels
        return loss, (told, logits, labels, given)


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
def test_a_model_that_breaks_a_rule_is_told_which(break_: str, rule: str) -> None:
    assert rule in broken(model(break_))


def test_a_model_with_tables_too_small_or_none_is_told() -> None:
    small = SCHEMA.replace([SparseFeature(name="shop", num_ids=3)])
    assert "the table of 'shop' must have 7 rows or more, but has 3" in broken(model("", small))
    assert "must look features up in TorchRec's" in broken(record(ModelRecord, nn.Identity))


# reader


@dataclass
class BentLoader:
    """The local reader's loader, bent as `break_` says."""

    straight: Loader
    break_: str

    def __len__(self) -> int:
        return len(self.straight) - (self.break_ in ("length", "rest"))

    def __iter__(self) -> Iterator[Batch]:
        count = len(self) if self.break_ == "rest" else None
        for batch in itertools.islice(self.straight, count):
            match self.break_:
                case "twice":
                    lists = to_lists(batch.features)
                    lists["row"] = [[0]] * len(batch)
                    batch = dataclasses.replace(batch, features=from_lists(lists))
                case "columns":
                    lists = to_lists(batch.features)
                    batch = dataclasses.replace(batch, features=from_lists({"row": lists["row"]}))
            yield batch

    def state_dict(self) -> dict[str, Any]:
        return self.straight.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if self.break_ != "state":
            self.straight.load_state_dict(state)


@dataclass
class Bent:
    break_: str

    def loader(self, table: Table, *, split: Split, **given: Any) -> BentLoader:
        reader = build_local_reader(LocalReaderConfig(prefetch=False), Context())
        return BentLoader(reader.loader(table, split=split, **given), self.break_)


@pytest.mark.parametrize(
    ("break_", "rule"),
    [
        ("length", "all ranks must have as many batches as len(loader) says"),
        ("columns", "a batch must have up to 16 samples of the schema's columns"),
        ("twice", "a row must come once an epoch"),
        ("rest", "split 'test' over 1 ranks: every row must come"),
        ("state", "resumed after"),
    ],
)
def test_a_reader_that_breaks_a_rule_is_told_which(break_: str, rule: str) -> None:
    assert rule in broken(record(ReaderRecord, lambda: Bent(break_)))


# sharding: its records travel to ranks, so they are built by functions of this module


class Forgetful(TorchRecPlanner):
    """Leaves a table out of its plan."""

    def plan(self, model: nn.Module, topology: Topology, group: ProcessGroup) -> ShardingPlan:
        plan = super().plan(model, topology, group)
        plan.plan["bags"].pop("shop")
        return plan


class Mute(TorchRecPlanner):
    def explain(self) -> str:
        return ""


class Hasty(TorchRecPlanner):
    """Trains its tables at twice the rate."""

    def sharders(self) -> list[ModuleSharder[nn.Module]]:
        self._fused = {**self._fused, "learning_rate": 2 * self._fused["learning_rate"]}
        return super().sharders()


def build_planner(kind: type[TorchRecPlanner], context: Context) -> TorchRecPlanner:
    return kind(TorchRecPlannerConfig(), device="cpu", batch_size=16, fused=context.fused)


def build_forgetful(config: Rate, context: Context) -> TorchRecPlanner:
    return build_planner(Forgetful, context)


def build_mute(config: Rate, context: Context) -> TorchRecPlanner:
    return build_planner(Mute, context)


def build_hasty(config: Rate, context: Context) -> TorchRecPlanner:
    return build_planner(Hasty, context)


@pytest.mark.parametrize(
    ("build", "rule"),
    [
        (build_forgetful, "the plan must place every table, but leaves out ['shop']"),
        (build_mute, "explain must say in words"),
        (build_hasty, "training with its plan must equal training unsharded"),
    ],
)
def test_a_sharding_that_breaks_a_rule_is_told_which(
    gloo_pool: GlooPool, build: Callable[[Rate, Context], TorchRecPlanner], rule: str
) -> None:
    sharding = ShardingRecord(name="mine", summary="Mine.", config=Rate, build=build)
    assert rule in broken(sharding, pool=gloo_pool)


def test_a_sharding_needs_ranks() -> None:
    assert "check_record(record, pool=gloo_pool)" in broken(record(ShardingRecord, object))


# What the host and its plugins provide.


CLAIMS = Catalog(["recd_dlrm"], Path()).claims


@pytest.mark.parametrize(
    "provided",
    [claim.record for claim in CLAIMS],
    ids=[f"{claim.record.slot}-{claim.record.name}" for claim in CLAIMS],
)
def test_every_record_of_the_host_and_its_plugins_keeps_its_contract(
    provided: Record[Any, Any], gloo_pool: GlooPool, tmp_path: Path
) -> None:
    options = NEEDED.get(provided.name, lambda folder: {})(tmp_path)
    check_record(provided, options=options, pool=gloo_pool)


def parquet(folder: Path) -> dict[str, Any]:
    for split, seed in (("train", 0), ("test", 1)):
        random_table(folder / split, SCHEMA, 100, seed=seed)
    return {"train": str(folder / "train"), "test": str(folder / "test")}


def criteo(folder: Path) -> dict[str, Any]:
    rows = [[n % 2, *range(n, n + 13), *(f"{n * k % 7:08x}" for k in range(26))] for n in range(70)]
    return {"train": [write(folder / "train.tsv", rows)]}


def movielens(folder: Path) -> dict[str, Any]:
    head = ["user_id:token", "item_id:token", "rating:float", "timestamp:float"]
    rows = [[n % 5, n % 11, n % 5 + 1, 100 * n] for n in range(60)]
    return {"path": write(folder / "ratings.inter", [head, *rows])}


def yoochoose(folder: Path) -> dict[str, Any]:
    rows = [[n // 6, n % 11, 100.0 * n] for n in range(60)]
    return {"path": write(folder / "clicks.tsv", [["SessionId", "ItemId", "Time"], *rows])}


def write(file: Path, rows: list[list[Any]]) -> str:
    file.write_text("".join("\t".join(map(str, row)) + "\n" for row in rows))
    return str(file)


NEEDED: dict[str, Callable[[Path], dict[str, Any]]] = {
    "parquet": parquet,
    "criteo": criteo,
    "movielens": movielens,
    "yoochoose": yoochoose,
    "sessions": lambda folder: {"samples": 500},
    "synthetic_trace": lambda folder: {
        "samples": 500,
        "test_samples": 100,
        "profiled_accesses": 2_000,
    },
}
"""By record: the options that it cannot do without, or that make it small."""
