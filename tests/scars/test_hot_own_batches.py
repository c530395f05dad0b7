"""Rung 1 to 3 (values, a stateful loader, two ranks): hot batches of a trainer's own type."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hot_table import ALL, FEATURES, SOME, Plans, heard, is_hot, liked
from test_hot_training import build, on_two_ranks
from torch import Tensor, nn
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader
from torchrec.datasets.utils import Batch
from torchrec.distributed import DistributedModelParallel, TrainPipelineSparseDist
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.modules.embedding_configs import EmbeddingBagConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

import recd_plugins as rp
from recd_plugins.errors import CapabilityError, DataError
from recd_plugins.notices import NoticeWarning
from recd_plugins.planning.planner_bases import Tiered
from recd_plugins.planning.tier_plans.tier_plan import TierPlan
from recd_plugins.slots.batch_check import kind_of
from recd_plugins.sparse.features import SparseFeatures
from recd_plugins.sparse.ikjt import InverseKeyedJaggedTensor
from recd_plugins.sparse.jagged import without
from recd_plugins.sparse.keyed import mark_of
from recd_plugins.sparse.own_batches import OwnBatches, features_of
from recd_plugins.testing.batches import from_lists, to_lists
from recd_plugins.testing.gloo import GlooPool
from recd_plugins.tiers.sharder import ShardedTiers
from recd_plugins.trainer.measure.traffic import TrafficCounter
from recd_scars.hot_batches import HotBatches, HotBatchesWithoutState
from recd_scars.scars_planner import ScarsPlanner

ROWS = 96


def kjt_of(rows: list[int]) -> KeyedJaggedTensor:
    lists = {
        "row": [[row] for row in rows],
        "heard": [heard(row) for row in rows],
        "liked": [liked(row) for row in rows],
    }
    return from_lists(lists)


def weighted_now_and_then(rows: list[int]) -> KeyedJaggedTensor:
    kjt = kjt_of(rows)
    weights = torch.ones(kjt.values().numel()) if rows[0] % 12 else None
    return KeyedJaggedTensor(kjt.keys(), kjt.values(), weights=weights, lengths=kjt.lengths())


@dataclass
class Click:
    """Whatever a trainer may keep of its samples."""

    ids: Any
    dense: Tensor
    half: Tensor
    array: Any
    names: list[str]
    epoch: int
    more: dict[str, Any]
    left_out: None = None

    def to(self, device: torch.device, non_blocking: bool = False) -> Click:
        return Click(**{**vars(self), "ids": self.ids.to(device, non_blocking=non_blocking)})


class Pair(NamedTuple):
    ids: Any
    dense: Tensor


def click(rows: list[int]) -> Click:
    numbers = torch.tensor(rows)
    return Click(
        ids=kjt_of(rows),
        dense=numbers[:, None].repeat(1, 2),
        half=numbers.bfloat16(),
        array=np.array(rows, np.int16),
        names=[f"row {row}" for row in rows],
        epoch=3,
        more={"weights": (numbers.float(), "sum"), "scale": torch.tensor(0.5)},
    )


def deduplicated(rows: list[int]) -> dict[str, Any]:
    kjt = kjt_of(rows)
    dedup = InverseKeyedJaggedTensor.from_kjt(kjt, [["heard", "liked"]])
    return {"ids": SparseFeatures(without(kjt, ["heard", "liked"]), dedup)}


KINDS: dict[str, Callable[[list[int]], Any]] = {
    "dataclass": click,
    "kjt": kjt_of,
    "named tuple": lambda rows: Pair(kjt_of(rows), torch.tensor(rows)),
    "tuple": lambda rows: (torch.tensor(rows), kjt_of(rows)),
    "deduplicated": deduplicated,
}


def stage_of(kind: str, loader: type[DataLoader[Any]] = DataLoader, **options: Any) -> HotBatches:
    options = {"plan": SOME, "own": OwnBatches(), "rank": 0, "world_size": 1} | options
    rows: Any = range(options.pop("first", 0), options.pop("last", ROWS))
    made = loader(rows, batch_size=6, collate_fn=KINDS[kind])
    return HotBatches(made, Plans(options.pop("plan")), window=4, **options)


def rows_of(batch: Any) -> list[int]:
    """Its rows, once every part of it was found to be theirs."""
    lists = to_lists(features_of(batch))
    rows = [row for (row,) in lists["row"]]
    assert lists["heard"] == [heard(row) for row in rows]
    assert lists["liked"] == [liked(row) for row in rows]
    if isinstance(batch, Click):
        batch.ids, expected = None, click(rows)
        expected.ids = None
        assert torch.equal(batch.dense, expected.dense)
        assert torch.equal(batch.half, expected.half)
        assert (batch.array == expected.array).all()
        assert batch.array.dtype == np.int16
        assert (batch.names, batch.epoch) == (expected.names, 3)
        assert torch.equal(batch.more["weights"][0], expected.more["weights"][0])
        assert batch.more["weights"][1] == "sum"
    if isinstance(batch, tuple):
        assert next(part for part in batch if isinstance(part, Tensor)).tolist() == rows
    return rows


def mark_in(batch: Any) -> str | None:
    features = features_of(batch)
    return mark_of(features.plain if isinstance(features, SparseFeatures) else features)


@pytest.mark.parametrize("kind", KINDS)
def test_batches_of_any_type_are_taken_apart(kind: str) -> None:
    stage = stage_of(kind)
    assert len(stage) == ROWS // 6
    assert stage.batch_size == 6
    for _ in range(2):
        batches = list(stage)
        marks = [mark_in(batch) for batch in batches]
        assert {None, SOME.version} == set(marks)
        assert [features_of(batch).stride() for batch in batches] == [6] * 16
        rows = [rows_of(batch) for batch in batches]
        assert sorted(row for batch in rows for row in batch) == list(range(ROWS))
        for mark, of_batch in zip(marks, rows, strict=True):
            assert mark is None or all(is_hot(row, SOME) for row in of_batch)


class Scored(NamedTuple):
    """Scored ids beside others: two KJTs, whose keys may have any order."""

    ids: KeyedJaggedTensor
    scored: KeyedJaggedTensor


def scored(rows: list[int]) -> Scored:
    ids = from_lists({"row": [[row] for row in rows], "heard": [heard(row) for row in rows]})
    own = from_lists({"liked": [liked(row) for row in rows]})
    return Scored(
        ids,
        KeyedJaggedTensor(
            own.keys(), own.values(), weights=own.values() / 8, lengths=own.lengths()
        ),
    )


def test_a_batch_is_hot_by_all_kjts_that_are_named() -> None:
    KINDS["scored"] = scored
    batches = list(stage_of("scored", own=OwnBatches(features=tuple)))
    rows = [[row for (row,) in to_lists(batch.ids)["row"]] for batch in batches]
    assert sorted(row for batch in rows for row in batch) == list(range(ROWS))
    marks = [{mark_of(kjt) for kjt in batch} for batch in batches]
    assert [{SOME.version}, {None}] == [one for one in ({SOME.version}, {None}) if one in marks]
    for batch, mark, of_batch in zip(batches, marks, rows, strict=True):
        expected = scored(of_batch)
        for kjt, other in zip(batch, expected, strict=True):
            assert to_lists(kjt) == to_lists(other)
        assert torch.equal(batch.scored.weights(), expected.scored.weights())
        assert mark == {None} or all(is_hot(row, SOME) for row in of_batch)
    # By one of them: the other is looked up as in any batch.
    ids_alone = list(stage_of("scored", own=OwnBatches(features=lambda batch: batch.ids)))
    assert {mark_of(batch.scored) for batch in ids_alone} == {None}
    hot = [batch for batch in ids_alone if mark_of(batch.ids)]
    assert len(hot) > sum(mark == {SOME.version} for mark in marks)


def test_kjts_of_other_samples_than_each_other_are_refused() -> None:
    KINDS["scored"] = lambda rows: Scored(kjt_of(rows), kjt_of(rows[1:]))
    with pytest.raises(DataError, match=r"have \[6, 5\] samples, so it is unknown which"):
        list(stage_of("scored", own=OwnBatches(features=tuple)))


@pytest.mark.parametrize("kind", ["dataclass", "kjt"])
def test_the_mark_stays_where_a_trainer_moves_its_batch(kind: str) -> None:
    batch = next(batch for batch in stage_of(kind) if mark_in(batch))
    assert mark_in(batch.to(torch.device("cpu"), non_blocking=True)) == SOME.version


def test_a_trainer_may_select_by_itself() -> None:
    def select(batches: list[Any], samples: Tensor) -> Any:
        rows = torch.cat([batch["ids"]["row"].values() for batch in batches])
        return {"ids": kjt_of(rows[samples].tolist()), "made": True}

    def opaque(rows: list[int]) -> Any:
        return {"ids": kjt_of(rows), "unknown": object()}

    KINDS["opaque"] = opaque
    batches = list(stage_of("opaque", own=OwnBatches(select=select)))
    assert sorted(row for batch in batches for row in rows_of(batch)) == list(range(ROWS))
    with pytest.raises(CapabilityError, match=r"batch.unknown is a object that differs.*select="):
        list(stage_of("opaque"))
    wrong = OwnBatches(select=lambda batches, samples: batches[0])
    KINDS["uneven"] = lambda rows: {"ids": kjt_of(rows[: 6 - rows[0] // 6 % 2]), "unknown": 1}
    with pytest.raises(DataError, match="was asked for"):
        list(stage_of("uneven", own=wrong))
    del KINDS["opaque"], KINDS["uneven"]


@pytest.mark.parametrize(
    ("part", "reason"),
    [
        (lambda rows: torch.zeros(3, 2), "batch.part has 3 rows in a batch of 6 samples"),
        (lambda rows: rows[0], "batch.part is a int that differs from batch to batch"),
        (lambda rows: [rows[0], rows[1]], r"batch.part.0 is a int that differs"),
        (lambda rows: kjt_of(rows[:2]), "holds 2 KeyedJaggedTensors"),
    ],
)
def test_what_cannot_be_taken_apart_is_refused(part: Any, reason: str) -> None:
    KINDS["odd"] = lambda rows: {"ids": kjt_of(rows), "part": part(rows)}
    with pytest.raises((CapabilityError, DataError), match=reason):
        list(stage_of("odd"))
    del KINDS["odd"]


def test_weights_in_some_batches_alone_are_refused() -> None:
    KINDS["odd"] = weighted_now_and_then
    with pytest.raises(CapabilityError, match="batch is a KeyedJaggedTensor that has weights in"):
        list(stage_of("odd"))
    del KINDS["odd"]


def test_what_an_order_is_given_is_its_loaders() -> None:
    stage = stage_of("dataclass")
    stage.epoch = 3
    assert stage.epoch == 3
    assert "epoch" not in vars(stage)


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")  # torchdata's own call
def test_a_stateful_loader_resumes_exactly() -> None:
    whole = [(mark_in(batch), rows_of(batch)) for batch in stage_of("kjt", StatefulDataLoader)]
    for count in (0, 1, 6, 8, 13):
        stage = stage_of("kjt", StatefulDataLoader)
        stream = iter(stage)
        for _ in range(count):
            next(stream)
        state = stage.state_dict()
        resumed = stage_of("kjt", StatefulDataLoader)
        resumed.load_state_dict(state)
        assert [(mark_in(b), rows_of(b)) for b in resumed] == whole[count:], count


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")  # torchdata's own call
def test_batches_of_a_loader_without_a_state_have_none() -> None:
    """Trainers of frameworks save the state of whatever loader has one."""
    made = rp.load({"plugins": ["recd_scars"], "cache": {"use": "scars"}}).planner()
    assert isinstance(made, ScarsPlanner)
    for loader, has_one in ((DataLoader, False), (StatefulDataLoader, True)):
        ordered = made.order(loader(range(ROWS), collate_fn=kjt_of), 0, 1, OwnBatches())
        for name in ("state_dict", "load_state_dict"):
            assert hasattr(ordered, name) == has_one
            assert hasattr(type(ordered), name) == has_one  # protocols of Python 3.12 ask there
        assert ordered.batch_size == 1
    plain = made.order(DataLoader(range(ROWS), collate_fn=kjt_of), 0, 1, OwnBatches())
    with pytest.raises(AttributeError, match="a DataLoader, has no state_dict"):
        plain.state_dict()


class OneBuffer:
    """A loader that has memory for one batch, and fills it again for each."""

    def __init__(self, batches: int) -> None:
        self.batches = batches
        self.ids, self.lengths = torch.zeros(8, dtype=torch.int64), torch.ones(8, dtype=torch.int64)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for number in range(self.batches):
            self.ids.fill_(number % 5)
            kjt = KeyedJaggedTensor(["heard", "liked"], self.ids, lengths=self.lengths)
            yield {"clicked": torch.zeros(4), "ids": kjt}


@pytest.mark.parametrize("plan", [ALL, SOME, None], ids=["all", "some", "none"])
def test_a_loader_that_writes_over_a_window_is_told_so(plan: TierPlan | None) -> None:
    stage = HotBatchesWithoutState(
        OneBuffer(6), Plans(plan), rank=0, world_size=1, window=4, own=OwnBatches()
    )
    told = r"writes batches over earlier ones.*batch\['ids'\].*hot_batches: false"
    with pytest.raises(DataError, match=told):
        list(stage)


def test_a_loader_that_writes_over_what_was_trained_is_its_own_affair() -> None:
    class Buffers(OneBuffer):
        def __iter__(self) -> Iterator[dict[str, Any]]:
            loaders = [iter(OneBuffer(self.batches)) for _ in range(8)]
            return (next(loaders[number % 8]) for number in range(self.batches))

    stage = HotBatchesWithoutState(
        Buffers(40), Plans(ALL), rank=0, world_size=1, window=4, own=OwnBatches()
    )
    found = [one["ids"].values().tolist() for one in stage]
    assert found == [one["ids"].values().tolist() for one in Buffers(40)]


def uneven_ranks() -> str:
    """On a rank: rank 1 has a window less; every rank says so, and none waits for the other."""
    rank = dist.get_rank()
    stage = stage_of("kjt", rank=rank, world_size=2, last=ROWS - 24 * rank)
    with pytest.raises(DataError) as raised:
        list(stage)
    return str(raised.value)


def failing_rank(first: int) -> tuple[str, str]:
    """On a rank: what is raised where rank 1 cannot read its rows from `first` on."""
    rank = dist.get_rank()

    def read(rows: list[int]) -> KeyedJaggedTensor:
        if rank == 1 and rows[0] >= first:
            raise KeyError("a row of its own")
        return kjt_of(rows)

    KINDS["failing"] = read
    with pytest.raises((DataError, KeyError)) as raised:
        list(stage_of("failing", rank=rank, world_size=2))
    return type(raised.value).__name__, str(raised.value)


@pytest.mark.parametrize("first", [0, 24], ids=["first window", "second window"])
def test_a_rank_that_cannot_read_ends_all(gloo_pool: GlooPool, first: int) -> None:
    (kind, message), own = gloo_pool.run(failing_rank, first)
    assert kind == "DataError"
    assert "rank 1 could not read its batches, and prints why" in message
    assert own == ("KeyError", "'a row of its own'")


def test_ranks_of_unequal_steps_are_refused_on_all(gloo_pool: GlooPool) -> None:
    for message in gloo_pool.run(uneven_ranks):
        assert "ranks have windows of 0 to 4 batches" in message


class OwnModel(nn.Module):
    """test_hot_training's model on TorchRec's own batches."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.sequences, self.bags = inner.sequences, inner.bags
        self.sum, self.over = inner.sum, inner.over

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        summed = self.sum(self.sequences(batch.sparse_features)["heard"])
        both = torch.cat([summed, self.bags(batch.sparse_features)["liked"]], dim=1)
        logits = self.over(both).squeeze(1)
        loss = nn.functional.binary_cross_entropy_with_logits(logits, batch.labels)
        return loss, loss.detach()


def torchrec_batch(rows: list[int]) -> Batch:
    numbers = torch.tensor(rows).float()
    return Batch(numbers[:, None], kjt_of(rows), numbers % 2)


def watched(stage: HotBatches, marks: list[bool]) -> Iterator[Batch]:
    for batch in stage:
        marks.append(mark_in(batch) is not None)
        yield batch


def traffic_of_steps() -> list[tuple[bool, set[str]]]:
    """On a rank: whether all batches are hot, and the collectives of TorchRec's pipeline."""
    rank = dist.get_rank()
    KINDS["torchrec"] = torchrec_batch
    found = []
    for plan in (SOME, ALL):
        model = build("sgd", ShardedTiers(on_two_ranks(plan, "rank")), wrap=OwnModel)
        stage = stage_of(
            "torchrec",
            rank=rank,
            world_size=2,
            plan=on_two_ranks(plan, "rank"),
            first=rank,
            last=ROWS,
        )
        marks: list[bool] = []
        optimizer = torch.optim.SGD(model.module.over.parameters(), lr=0.1)
        pipeline = TrainPipelineSparseDist(model, optimizer, torch.device("cpu"))
        stream = watched(stage, marks)
        with TrafficCounter() as counter:
            for _ in range(len(stage)):
                pipeline.progress(stream)
        found.append((all(marks), set(counter.traffic)))
    return found


def test_a_pipeline_of_hot_batches_makes_no_all_to_all(gloo_pool: GlooPool) -> None:
    for some, every in gloo_pool.run(traffic_of_steps):
        assert not some[0]
        assert "all_to_all" in some[1]
        assert every[0]
        assert "all_to_all" not in every[1]


def marks_beside(constraints: dict[str, Any]) -> tuple[list[str | None], str | None, list[str]]:
    """On a rank: what batches of hot rows are marked by beside a table of few rows, the plan's
    version, and the notices of hot batches."""
    registry = {
        "plugins": ["recd_scars"],
        "cache": {"use": "scars", "size": "hit_rate", "hit_rate": 1.0, "window": 2},
        "sharding": {"search": "greedy", "constraints": constraints},
        "topology": {"ranks_per_node": 1, "inter_node_gbps": 0.01},
    }
    tables = [
        EmbeddingBagConfig(
            name=name, embedding_dim=16, num_embeddings=rows, feature_names=["pages"]
        )
        for name, rows in {"pages": 500, "few": 4}.items()
    ]
    model = nn.ModuleDict({"bags": EmbeddingBagCollection(tables, device=torch.device("meta"))})
    loader = [from_lists({"pages": [[row % 4] * 20 for row in range(64)]})] * 4
    stack = rp.load(registry)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        stack.plan(model, batches=loader)
    said = [str(one.message) for one in found if one.category is NoticeWarning]
    planner = stack.planner()
    assert isinstance(planner, Tiered)
    marks = [mark_in(batch) for batch in stack.order(loader)]
    version = planner.tier_plan.version if planner.tier_plan else None
    return marks, version, [one for one in said if "hot_batches" in one]


def test_a_data_parallel_table_beside_coalesced_bags_keeps_no_batch_from_being_hot(
    gloo_pool: GlooPool,
) -> None:
    """TorchRec has it on every rank, in a module apart; a table that it shards is another matter,
    of which rank 0 warns."""
    for marks, version, said in gloo_pool.run(marks_beside, {}):
        assert version is not None
        assert marks == [version] * 4
        assert not said
    first, second = gloo_pool.run(marks_beside, {"few": {"sharding_types": ["table_wise"]}})
    assert first[0] == second[0] == [None] * 4
    assert [len(first[2]), len(second[2])] == [1, 0]
    assert "the plan leaves few to others, so no sample that looks up a row" in first[2][0]


class Pages(nn.Module):
    """Two tables, of which one is looked up by a KJT that the model makes, if it makes one."""

    def __init__(self, makes: bool) -> None:
        super().__init__()
        self.makes = makes
        self.read, self.seen = (
            EmbeddingBagCollection(
                [
                    EmbeddingBagConfig(
                        name=name, embedding_dim=8, num_embeddings=500, feature_names=["pages"]
                    )
                ],
                device=torch.device("meta"),
            )
            for name in ("read", "seen")
        )

    def forward(self, given: KeyedJaggedTensor) -> Tensor:
        made = KeyedJaggedTensor(given.keys(), given.values(), lengths=given.lengths())
        read, seen = self.read(given), self.seen(made if self.makes else given)
        return read.values().sum() + seen.values().sum()


CACHE_OF_ALL: dict[str, Any] = {
    "plugins": ["recd_scars"],
    "cache": {
        "use": "scars",
        "size": "hit_rate",
        "hit_rate": 1.0,
        "coalesce": "none",
        "window": 2,
    },
    "sharding": {"search": "greedy"},
    "topology": {"ranks_per_node": 1, "inter_node_gbps": 0.01},
}


def test_an_order_without_a_plan_is_told() -> None:
    loader = [kjt_of([row] * 6) for row in range(5)]
    ordered = rp.load(CACHE_OF_ALL).order(loader)
    with pytest.warns(NoticeWarning, match="asked of stack.order.loader. before there is a plan"):
        assert len(list(ordered)) == 5
    strict = rp.load({**CACHE_OF_ALL, "strict": True}).order(loader)
    with pytest.raises(CapabilityError, match=r"Call `plan = stack.plan\(model, ...\)` before"):
        list(strict)
    none = {**CACHE_OF_ALL, "cache": {"use": "scars", "hot_batches": False}}
    assert rp.load(none).order(loader) is loader


def test_a_loader_of_the_registry_is_told_alike(tmp_path: Path) -> None:
    """Of what no plan has put in another order; not of batches in the reader's own."""
    values = {
        **CACHE_OF_ALL,
        "plugins": ["recd_dlrm", "recd_scars"],
        "folder": str(tmp_path),
        "dataset": {"use": "sessions", "samples": 200, "test_fraction": 0.5},
        "train": {"batch_size": 20},
    }
    stack = rp.load(values)
    with warnings.catch_warnings():
        warnings.simplefilter("error", NoticeWarning)
        assert len(list(stack.loader(0, 1, "test"))) == 5
        assert len(list(stack.read(0, 1))) == 10
        loader = stack.loader(0, 1)
        assert stack.ordered
        assert kind_of(loader) == "HotBatches"
    with pytest.warns(NoticeWarning, match=r"asked of stack.loader\(...\) before there is a plan"):
        assert len(list(loader)) == len(loader) == 10
    with pytest.raises(CapabilityError, match=r"Call `plan = stack.plan\(model, ...\)` before"):
        list(rp.load({**values, "strict": True}).loader(0, 1))


class HoldsStack(list[Any]):
    """A loader that converts, say, and so has a stack."""

    stack: rp.Stack | None = None


def hot_by_its_own_order() -> tuple[list[bool], list[str]]:
    """On a rank: which batches are hot where an order is made, then a plan by it, then batches; and
    what is said."""
    loader = HoldsStack([from_lists({"pages": [[row % 4] for row in range(64)]})] * 6)
    loader.stack = stack = rp.load(CACHE_OF_ALL)
    ordered = stack.order(loader)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        sgd = [EmbeddingBagCollectionSharder({"learning_rate": 0.1})]
        stack.plan(Pages(makes=False), batches=ordered, sharders=sgd)
        hot = [mark_of(batch) is not None for batch in ordered]
    return hot, [str(one.message) for one in found if "stack.order" in str(one.message)]


def test_an_order_may_be_made_before_the_plan(gloo_pool: GlooPool) -> None:
    assert gloo_pool.run(hot_by_its_own_order) == [([True] * 6, [])] * 2


def said_of_marks(makes: bool) -> list[list[str]]:
    """On a rank: what is said at each step, where all batches are hot."""
    stack = rp.load(CACHE_OF_ALL)
    model, loader = Pages(makes), [from_lists({"pages": [[row % 4] for row in range(64)]})] * 6
    sgd = [EmbeddingBagCollectionSharder({"learning_rate": 0.1})]
    said = []
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        plan = stack.plan(model, batches=loader, sharders=sgd)
        sharded = DistributedModelParallel(
            model, device=torch.device("cpu"), plan=plan, sharders=stack.sharders()
        )
        for batch in stack.order(loader):
            found.clear()
            sharded(batch).backward()
            said.append([str(one.message) for one in found if one.category is NoticeWarning])
    return said


def test_a_model_that_loses_the_marks_of_hot_batches_is_told(gloo_pool: GlooPool) -> None:
    """Once it was trained on so many that it must have met one: what reads ahead, reads less."""
    first, second = gloo_pool.run(said_of_marks, True)
    assert list(map(len, first)) == [0, 0, 0, 0, 1, 0]
    assert not any(second)
    assert "cache: hot_batches gains less than it could: the model reads the ids" in first[4][0]
    assert "hot batches are looked up like any others in seen. Pass the batch's own" in first[4][0]
    assert not any(gloo_pool.run(said_of_marks, False)[0])


def told_of_made_features() -> tuple[list[str], str, int]:
    """On a rank: what is said of a plan whose `features` make the KJT that the model looks up; the
    error of its order, and the batches that came before it."""
    ids = torch.arange(64).reshape(4, 16) % 4
    loader = [{"ids": ids + 100 + dist.get_rank()}, *[{"ids": ids}] * 5]

    def made(batch: dict[str, Tensor]) -> KeyedJaggedTensor:
        rows = batch["ids"]
        lengths = torch.full((len(rows),), rows.shape[1])
        return KeyedJaggedTensor(["pages"], rows.flatten(), lengths=lengths)

    stack = rp.load(CACHE_OF_ALL)
    sgd = [EmbeddingBagCollectionSharder({"learning_rate": 0.1})]
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        stack.plan(Pages(makes=False), batches=loader, features=made, sharders=sgd)
    said = [str(one.message) for one in found if one.category is NoticeWarning]
    planner = stack.planner()
    assert isinstance(planner, Tiered)
    assert planner.tier_plan is not None
    cold = [{"ids": ids + 200}] * 6  # no row of these is hot
    came: list[Any] = []
    with pytest.raises(DataError) as raised:
        came.extend(stack.order(cold, features=made))
    return said, str(raised.value), len(came)


def test_features_that_the_model_makes_are_told_of_at_the_plan(gloo_pool: GlooPool) -> None:
    """Batches of them cannot be marked: the plan says so, and an order before its first batch."""
    first, second = gloo_pool.run(told_of_made_features)
    assert len(first[0]) == 1
    assert "cache: hot_batches is not used: no batch can be marked as hot" in first[0][0]
    assert not second[0]
    for _, error, came in (first, second):
        assert came == 0
        assert "what it returns is not in the dict itself" in error
        assert "put it into the batch, and have the model look up that one. Or set `cache" in error


HOT, COLD = 0, 10
"""Two rows, by SOME."""


def told_at(
    monkeypatch: pytest.MonkeyPatch, *epochs: list[int], calls: int = 1, unused: bool = False
) -> tuple[int, int] | None:
    """The epoch, and the batch of it, at whose forward a model that loses the marks is told; of
    batches of a row each, which a pipeline reads two ahead. Each epoch has its own order."""
    monkeypatch.setattr(ScarsPlanner, "features_of", FEATURES)
    cache = {"use": "scars", "size": "hit_rate", "hit_rate": 0.5, "window": 2}
    planner: Any = rp.load({"plugins": ["recd_scars"], "cache": cache}).planner()
    planner.tier_plan, planner._sharded = SOME, SimpleNamespace(never_hot={"songs"})
    trained, kept = 0, []
    for epoch, rows in enumerate(epochs):
        batches = planner.order([kjt_of([row] * 6) for row in rows], 0, 1, OwnBatches())
        if unused:
            kept.append(planner.order([kjt_of([COLD])], 0, 1, OwnBatches()))
        stream = iter(batches)
        list(islice(stream, 2))
        for index in range(len(rows)):
            next(stream, None)
            for _ in range(calls):
                trained += 1
                if planner.ordered_in_vain(trained):
                    return epoch, index
    return None


def test_who_loses_the_marks_is_told_once_a_hot_batch_came_to_the_model(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Four batches after the first hot one was handed over, though the pipeline has two of them."""
    cold, late = [COLD] * 8, [COLD] * 4 + [HOT] * 8
    assert told_at(monkeypatch, late) == (0, 8)
    assert told_at(monkeypatch, cold, late) == (1, 6)
    assert told_at(monkeypatch, late, calls=2) == (0, 6)
    assert told_at(monkeypatch, late, unused=True) == (0, 8)
    assert told_at(monkeypatch, [HOT] * 3, [HOT] * 3, [HOT] * 3) is not None
    assert told_at(monkeypatch, cold, cold) is None


def test_hot_batches_that_never_come_are_told_of_after_ten_windows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not while no row has a copy, as before replicas are moved first, nor once one was hot."""
    monkeypatch.setattr(ScarsPlanner, "features_of", FEATURES)
    cache = {"use": "scars", "size": "hit_rate", "hit_rate": 0.5, "window": 2}

    def told(plan: TierPlan, *rows: int) -> list[str]:
        """What is said of batches of a row each by this plan, and where."""
        planner: Any = rp.load({"plugins": ["recd_scars"], "cache": cache}).planner()
        planner.tier_plan, planner._sharded = plan, SimpleNamespace(never_hot=set())
        batches = planner.order([kjt_of([row] * 6) for row in rows], 0, 1, OwnBatches())
        for trained, _ in enumerate(batches, 1):
            if (found := planner.ordered_in_vain(trained)) is not None:
                return [f"{trained}: {one}" for one in found]
        return ["nothing"]

    (said,) = told(SOME, *[COLD] * 24)
    assert said.startswith("20: cache: hot_batches is not used: none of the first 20 batches was")
    assert "Set `cache.hot_batches: false`" in said
    assert told(SOME, *[COLD] * 6, HOT, HOT, *[COLD] * 24) == []
    assert told(dataclasses.replace(SOME, tables={}), *[COLD] * 24) == ["nothing"]
