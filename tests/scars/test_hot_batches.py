"""Rung 1 to 3 (values, properties, two ranks): batches of cached rows alone, and resuming them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from drawn import at_most
from hot_table import ALL, FEATURES, NONE, SOME, Plans, is_hot, open_stage, rows_of, saved, write
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recd_plugins.data.batch import Batch
from recd_plugins.data.reader.local_reader import LocalReaderConfig, build_local_reader
from recd_plugins.data.table import Table
from recd_plugins.errors import CapabilityError, DataError
from recd_plugins.planning.tier_plans.tier_plan import TablePlan, TierPlan
from recd_plugins.slots import Context
from recd_plugins.sparse.features import SparseFeatures
from recd_plugins.sparse.ikjt import InverseKeyedJaggedTensor
from recd_plugins.sparse.joined import JoinedFeatures
from recd_plugins.sparse.keyed import mark_of
from recd_plugins.sparse.own_batches import OwnBatches
from recd_plugins.sparse.partial import PartialInverseKeyedJaggedTensor
from recd_plugins.testing.gloo import GlooPool
from recd_plugins.testing.resume import check_resume
from recd_scars.hot_batches import HotBatches
from recd_scars.hot_batches.batch_window import BatchWindow, hot_counts, share_to_come
from recd_scars.hot_batches.hot_rows import HotRows

GROUPS = (("heard", "liked"),)


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Table:
    return write(tmp_path_factory.mktemp("hot") / "table", 100)


@settings(max_examples=at_most(30), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    plan=st.sampled_from([ALL, NONE, SOME, None]),
    window=st.integers(1, 7),
    batch_size=st.sampled_from([1, 6, 17]),
    tail=st.sampled_from(["pad", "drop"]),
)
def test_an_epoch_has_each_sample_once_and_hot_batches_hot_samples_alone(
    table: Table, plan: TierPlan | None, window: int, batch_size: int, tail: str
) -> None:
    stage = open_stage(table, Plans(plan), window=window, batch_size=batch_size, tail=tail)
    for _ in range(2):
        batches = list(stage)
        rows = [row for batch in batches for row in rows_of(batch)]
        assert len(batches) == len(stage)
        assert (
            len(rows)
            == len(set(rows))
            == (100 if tail == "pad" else 100 // batch_size * batch_size)
        )
        for batch in batches:
            assert batch.hot_under in (None, plan and plan.version)
            assert not batch.hot or all(is_hot(row, plan) for row in rows_of(batch))
        if plan in (ALL, NONE, None):
            assert [batch.hot for batch in batches] == [plan is ALL] * len(batches)
        elif batch_size == 6 and window > 2:
            assert 0 < sum(batch.hot for batch in batches) < len(batches)


def test_as_many_are_hot_as_the_batches_of_the_reader_foretell(table: Table) -> None:
    assert SOME is not None
    plain = list(open_stage(table, Plans(None), window=8, batch_size=3))
    counts = hot_counts(plain, HotRows(SOME, FEATURES))
    found = share_to_come(counts, list(map(len, plain)), 8, 1)
    came = [batch.hot for batch in open_stage(table, Plans(SOME), window=8, batch_size=3)]
    assert 0 < found == pytest.approx(sum(came) / len(came), abs=0.1)


def test_the_order_drifts_by_a_window_at_most(table: Table) -> None:
    plain = [rows_of(batch) for batch in open_stage(table, Plans(None))]
    mixed = [rows_of(batch) for batch in open_stage(table, Plans(SOME))]
    assert mixed != plain
    for first in range(0, len(plain), 4):
        before, after = (
            sorted(row for batch in side[first : first + 4] for row in batch)
            for side in (plain, mixed)
        )
        assert before == after


def test_a_hot_batch_is_marked_wherever_it_goes(table: Table) -> None:
    batch = next(batch for batch in open_stage(table, Plans(SOME)) if batch.hot)
    moved = batch.to(torch.device("cpu"))
    assert mark_of(batch.features) == mark_of(moved.features) == moved.hot_under == SOME.version
    normal = dataclasses.replace(batch, hot_under=None)
    assert mark_of(normal.features) is None
    assert mark_of(batch.features) == SOME.version  # left as it was


class Deduplicated:
    """A transform: two features as their unique samples."""

    def __init__(self, kind: type[InverseKeyedJaggedTensor | PartialInverseKeyedJaggedTensor]):
        self.kind = kind

    def __call__(self, batch: Batch) -> Batch:
        dedup = self.kind.from_kjt(batch.features, GROUPS)
        rest = batch.features.permute([batch.features.keys().index("row")])
        return dataclasses.replace(batch, features=rest, dedup=dedup)


@pytest.mark.parametrize("kind", [InverseKeyedJaggedTensor, PartialInverseKeyedJaggedTensor])
def test_unique_samples_go_with_their_samples(
    table: Table, kind: type[InverseKeyedJaggedTensor | PartialInverseKeyedJaggedTensor]
) -> None:
    plain = list(open_stage(table, Plans(SOME)))
    batches = list(open_stage(table, Plans(SOME), transform=Deduplicated(kind)))
    assert [rows_of(batch) for batch in batches] == [rows_of(batch) for batch in plain]
    assert [batch.hot for batch in batches] == [batch.hot for batch in plain]
    for batch in batches:
        assert type(batch.dedup.validate()) is kind
        assert mark_of(batch.dedup.kjt) == mark_of(batch.sparse.plain) == batch.hot_under
        if kind is InverseKeyedJaggedTensor:
            again = kind.from_kjt(batch.dedup.to_kjt(), GROUPS)
            assert batch.dedup.unique_counts == again.unique_counts


def test_other_deduplicated_features_are_refused(table: Table) -> None:
    def transform(batch: Batch) -> Batch:
        return dataclasses.replace(batch, dedup="unknown")

    with pytest.raises(CapabilityError, match="hot_batches to false"):
        list(open_stage(table, Plans(SOME), transform=transform))


@pytest.mark.slow
@pytest.mark.parametrize("plan", [ALL, NONE, SOME])
@pytest.mark.parametrize("window", [3, 4, 100])
def test_it_resumes_exactly(table: Table, plan: TierPlan, window: int) -> None:
    check_resume(lambda: open_stage(table, Plans(plan), window=window, tail="pad"))


class Counts:
    """A loader whose state is the one mapping in which it counts."""

    def __init__(self, loader: Any) -> None:
        self._loader, self._counts = loader, loader.state_dict()

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[Batch]:
        for batch in self._loader:
            self._counts |= self._loader.state_dict()
            yield batch

    def state_dict(self) -> dict[str, Any]:
        return self._counts

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._loader.load_state_dict(state)
        self._counts |= state


def test_it_resumes_exactly_where_a_loader_goes_on_counting_in_its_state(table: Table) -> None:
    def stage() -> HotBatches:
        reader = build_local_reader(LocalReaderConfig(tail="pad"), Context(seed=1))
        loader = reader.loader(table, rank=0, world_size=1, batch_size=6, split="train")
        return HotBatches(Counts(loader), Plans(SOME), rank=0, world_size=1, window=4)

    check_resume(stage)


def test_what_an_order_of_the_registrys_loader_is_given_is_its_loaders(table: Table) -> None:
    stage = open_stage(table, Plans(SOME))
    stage.epoch = 3
    assert stage.epoch == 3
    assert "epoch" not in vars(stage)
    assert not hasattr(stage, "spread")


def test_a_window_is_resumed_as_it_was_formed_under_another_plan(table: Table) -> None:
    plans = Plans(SOME)
    stage = open_stage(table, plans)
    first = list(islice(stage, 6))
    state = saved(stage)
    rest = list(stage)
    resumed = open_stage(table, Plans(ALL), window=3)
    resumed.load_state_dict(state)
    batches = list(resumed)
    # Two batches are left of the window of four; those that follow are in windows of three.
    assert [rows_of(batch) for batch in batches[:2]] == [rows_of(batch) for batch in rest[:2]]
    assert [batch.hot_under for batch in batches[:2]] == [batch.hot_under for batch in rest[:2]]
    assert {batch.hot_under for batch in batches[2:]} == {ALL.version}
    rows = [row for batch in [*first, *batches] for row in rows_of(batch)]
    assert len(rows) == len(set(rows)) == 96


def test_a_new_plan_counts_from_the_next_window_on(table: Table) -> None:
    plans = Plans(NONE)
    found = []
    for batch in open_stage(table, plans):
        found.append(batch)
        if len(found) == 6:  # the window of batches 4 to 7 is under way, that after it was read
            plans.tier_plan = ALL
    assert [batch.hot_under for batch in found] == [None] * 8 + [ALL.version] * 8
    rows = [row for batch in found for row in rows_of(batch)]
    assert len(rows) == len(set(rows)) == 96


def test_states_of_another_loader_are_refused(table: Table) -> None:
    stage = open_stage(table, Plans(SOME))
    with pytest.raises(DataError, match="hot_batches to false"):
        stage.load_state_dict({"epoch": 0})
    next(iter(stage))
    state = saved(stage)
    state["window"] |= {"samples": 23, "hot": state["window"]["hot"]}
    stage.load_state_dict(state)
    with pytest.raises(DataError, match="Start afresh"):
        list(stage)


@pytest.mark.parametrize("whole", [False, True], ids=["some rows", "all rows"])
@pytest.mark.parametrize("one_id", [(), ("heard",), ("seen", "none", "heard")])
def test_samples_are_hot_where_every_table_has_all_their_ids(
    one_id: tuple[str, ...], whole: bool
) -> None:
    """Of `one_id`, each row has one id; of other keys, none to three."""
    draw = np.random.default_rng(0)
    songs = draw.permutation(200)[: 200 if whole else 150]
    plan = TierPlan(
        tables={
            "songs": TablePlan(table="songs", replicated=songs),
            "artists": TablePlan(
                table="artists",
                replicated=draw.permutation(90)[:80],
                per_node=np.arange(90, 100),
            ),
        },
        n_nodes=1,
        ranks_per_node=1,
    )
    features = {"songs": ["heard", "seen"], "artists": ["seen"], "rest": ["other"]}
    keys, size = ["other", "seen", "none", "heard"], 400
    lengths = draw.integers(0, 4, (4, size)) * (draw.random((4, size)) < 0.3)
    lengths[[keys.index(key) for key in one_id]] = 1
    values = draw.integers(-2, 260, lengths.sum())
    batch = Batch(
        dense=torch.empty(size, 0),
        features=KeyedJaggedTensor(
            keys=keys, values=torch.from_numpy(values), lengths=torch.from_numpy(lengths.ravel())
        ),
        labels=torch.zeros(size),
        weights=torch.ones(size),
    )
    hot = {name: set(plan.tables[name].replicated.tolist()) for name in plan.tables}
    looked_up = {"heard": hot["songs"], "seen": hot["songs"] & hot["artists"], "other": set()}
    expected = np.ones(size, bool)
    for key, jagged in batch.features.to_dict().items():
        if key in looked_up:
            for sample, ids in enumerate(jagged.to_dense()):
                expected[sample] &= looked_up[key].issuperset(ids.tolist())
    assert 0 < expected.sum() < size
    rows = HotRows(plan, features)
    np.testing.assert_array_equal(rows.samples(SparseFeatures.of(batch.features)), expected)
    for deduplicated in ([], ["seen"], ["heard", "seen"]):
        window = [some_rows(batch.features, *ends, deduplicated) for ends in ((0, 90), (90, size))]
        joined = JoinedFeatures([part.plain for part in window])
        np.testing.assert_array_equal(rows.samples_of_all(joined, window), expected)


def some_rows(
    kjt: KeyedJaggedTensor, first: int, end: int, deduplicated: list[str]
) -> SparseFeatures:
    """The samples from `first` to `end`."""
    rows = {key: jagged.to_dense()[first:end] for key, jagged in kjt.to_dict().items()}

    def of(keys: Sequence[str]) -> KeyedJaggedTensor:
        every = [row for key in keys for row in rows[key]]
        return KeyedJaggedTensor(
            keys=list(keys),
            values=torch.cat(every),
            lengths=torch.tensor([len(row) for row in every]),
            stride=end - first,
        )

    unique = InverseKeyedJaggedTensor.from_kjt(of(deduplicated)) if deduplicated else None
    return SparseFeatures(of([key for key in rows if key not in deduplicated]), unique)


def test_windows_of_batches_that_do_not_join_are_classified_one_by_one() -> None:
    """Their keys lie in another order."""
    plan = TierPlan(
        tables={"songs": TablePlan(table="songs", replicated=np.arange(5))},
        n_nodes=1,
        ranks_per_node=1,
    )
    kjts = [
        KeyedJaggedTensor(keys=keys, values=torch.tensor(ids), lengths=torch.ones(4).long())
        for keys, ids in ((["heard", "other"], [9, 9, 3, 3]), (["other", "heard"], [7, 7, 4, 9]))
    ]
    window = BatchWindow(kjts, start=None, end=None, own=OwnBatches())
    window.classify(HotRows(plan, {"songs": ["heard"]}))
    assert window.hot.tolist() == [False, False, True, False]


def ranks_alike(folder: str) -> list[tuple[str | None, list[int]]]:
    """On a rank: two epochs of which it resumes the second within a window; a plan in between."""
    rank, table = dist.get_rank(), Table.open(Path(folder))
    plans = Plans(SOME)

    def open_here() -> HotBatches:
        return open_stage(table, plans, rank=rank, world_size=2, window=3, tail="pad")

    stage = open_here()
    found = list(stage) + list(islice(stage, 4))
    state = saved(stage)
    plans.tier_plan = ALL
    stage = open_here()
    stage.load_state_dict(state)
    found += list(stage)
    return [(batch.hot_under, rows_of(batch)) for batch in found]


def test_ranks_have_the_same_kind_of_batch_at_each_step(gloo_pool: GlooPool, table: Table) -> None:
    ranks = gloo_pool.run(ranks_alike, str(table.path))
    kinds = [[hot_under for hot_under, _ in rank] for rank in ranks]
    assert kinds[0] == kinds[1]
    assert {None, SOME.version, ALL.version} == set(kinds[0])
    half = len(ranks[0]) // 2
    for part in (slice(0, half), slice(half, None)):
        rows = [row for rank in ranks for _, rows in rank[part] for row in rows]
        assert sorted(rows) == list(range(100))


def ranks_of_other_plans(folder: str) -> str:
    rank = dist.get_rank()
    plans = Plans(SOME if rank else ALL)
    stage = open_stage(Table.open(Path(folder)), plans, rank=rank, world_size=2)
    with pytest.raises(DataError) as raised:
        next(iter(stage))
    return str(raised.value)


def test_ranks_of_different_plans_are_refused_on_all(gloo_pool: GlooPool, table: Table) -> None:
    for message in gloo_pool.run(ranks_of_other_plans, str(table.path)):
        assert "tier plans that differ" in message
