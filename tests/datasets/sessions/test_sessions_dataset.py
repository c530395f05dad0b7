"""Value and property tests: generated sessions are what their config says.

Tolerances are five standard errors of the measured quantity unless said otherwise.
"""

from __future__ import annotations

import dataclasses
import math
import tracemalloc
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from drawn import at_most
from hypothesis import given, settings
from hypothesis import strategies as st

from recd_dlrm.datasets.sessions.dataset import Sessions, SessionsConfig, build_sessions
from recd_dlrm.datasets.sessions.feature_draws import FeatureConfig, FeatureDraws, change_rates
from recd_dlrm.datasets.sessions.laws import CountLaw
from recd_plugins.data.dataset import Split
from recd_plugins.slots import Context

ONE = FeatureConfig(name="item", num_ids=100)
SMALL = SessionsConfig(samples=3_000, samples_per_session=8, concurrent_sessions=50, dense=3)


def table(config: SessionsConfig, split: Split = "train", **options: int) -> pa.Table:
    return pa.concat_tables(Sessions(config, **options).chunks(split)).combine_chunks()


def column(rows: pa.Table, name: str) -> np.ndarray:
    return rows[name].to_numpy()


class Clustered:
    """A table sorted by session, its own order within: what `adjacent` means for d(f)."""

    def __init__(self, rows: pa.Table) -> None:
        sessions = column(rows, "session_id")
        self.rows = rows.take(np.argsort(sessions, kind="stable")).combine_chunks()
        sessions = column(self.rows, "session_id")
        self.adjacent = sessions[1:] == sessions[:-1]
        self.firsts = np.flatnonzero(np.concatenate(([True], ~self.adjacent)))
        self.sizes = np.diff(self.firsts, append=len(sessions))

    def lists(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        lists = self.rows[name].combine_chunks()
        return lists.flatten().to_numpy(), lists.offsets.to_numpy()

    def unchanged(self, name: str) -> np.ndarray:
        """Per adjacent pair of samples, whether the feature's value is the same."""
        values, offsets = self.lists(name)
        bytes_ = pa.py_buffer(values.tobytes())
        as_binary = pa.Array.from_buffers(
            pa.binary(), len(offsets) - 1, [None, pa.py_buffer(offsets * np.int32(8)), bytes_]
        )
        codes = as_binary.dictionary_encode().indices.to_numpy()
        return (codes[1:] == codes[:-1])[self.adjacent]


@pytest.fixture(scope="module")
def default() -> Sessions:
    return build_sessions(SessionsConfig(), Context())


@pytest.fixture(scope="module")
def rows(default: Sessions) -> pa.Table:
    return pa.concat_tables(default.chunks("train")).combine_chunks()


@pytest.fixture(scope="module")
def clustered(rows: pa.Table) -> Clustered:
    return Clustered(rows)


def test_rows_have_the_schema_and_the_numbers_asked_for(
    default: Sessions, rows: pa.Table, clustered: Clustered
) -> None:
    assert rows.num_rows == default.num_rows("train") == 200_000
    assert sum(c.num_rows for c in default.chunks("test")) == default.num_rows("test") == 20_000
    assert rows.schema.equals(default.schema.arrow(), check_metadata=True)
    assert default.schema.table_sizes()["items"] == 100_000
    for feature in default.config.features:
        ids, offsets = clustered.lists(feature.name)
        lengths = np.diff(offsets)
        assert 0 <= ids.min() <= ids.max() < feature.num_ids
        assert feature.min_length <= lengths.min() <= lengths.max() <= feature.most_ids
    dense = np.stack([column(rows, name) for name in default.schema.dense])
    assert np.abs(dense.mean(axis=1)).max() < 5 / math.sqrt(200_000)
    assert np.abs(np.cov(dense) - np.eye(8)).max() < 5 * math.sqrt(2 / 200_000)


def test_time_order_and_later_test_sessions(default: Sessions, rows: pa.Table) -> None:
    test = pa.concat_tables(default.chunks("test"))
    for part in (rows, test):
        assert (np.diff(column(part, "timestamp")) >= 0).all()
    assert not set(column(rows, "session_id")) & set(column(test, "session_id"))
    # Arrivals keep pace with the samples, so train's end after 200,000 of them.
    last_arrival = column(rows, "timestamp")[0] + 200_000 / default._stream.samples_per_ms
    assert column(test, "timestamp").min() > last_arrival - 1_000  # the first sample's lag
    _, first = np.unique(column(rows, "session_id"), return_index=True)
    assert np.median(column(rows, "timestamp")[first]) < last_arrival


def test_samples_per_session_have_their_mean_and_their_tail(clustered: Clustered) -> None:
    sizes = CountLaw.lognormal(16.5, 1.5, 10_000).sample(np.random.default_rng(0).random(1_000_000))
    error = 5 * sizes.std() / math.sqrt(clustered.sizes.size)
    assert abs(clustered.sizes.mean() - 16.5) < error
    assert clustered.sizes.max() > 1000


def test_l_of_each_feature(default: Sessions, clustered: Clustered) -> None:
    """Over the first samples of the sessions, which are independent."""
    for feature in default.config.features:
        lengths = np.diff(clustered.lists(feature.name)[1])[clustered.firsts]
        error = 5 * lengths.std() / math.sqrt(lengths.size)
        assert abs(lengths.mean() - feature.length) <= error, feature.name


def test_d_of_each_feature_and_group(default: Sessions, clustered: Clustered) -> None:
    """A group is unchanged with its `stay`; one of several in it more often, by chance alike."""
    groups: dict[str, np.ndarray] = {}
    draws = {f.name: FeatureDraws(f, 0) for f in default.config.features}
    rates = change_rates(draws)
    for name, feature in draws.items():
        unchanged = clustered.unchanged(name)
        group = feature.config.group_name
        groups[group] = groups.get(group, np.True_) & unchanged
        expected = 1 - rates[group] * (1 - feature.repeats())
        assert abs(unchanged.mean() - expected) <= error_of(expected, unchanged.size), name
    for feature in default.config.features:
        # The default items ask for 0, and two of them agree by chance with 0.0008.
        expected = max(feature.stay, 1 - rates[feature.group_name])
        measured = groups[feature.group_name]
        tolerance = error_of(expected, measured.size) + (0.001 if feature.stay == 0 else 0)
        assert abs(measured.mean() - expected) <= tolerance, feature.group_name


def error_of(p: float, n: int) -> float:
    return 5 * math.sqrt(p * (1 - p) / n)


def test_features_of_a_group_change_together_and_others_do_not(clustered: Clustered) -> None:
    topics, brands = clustered.unchanged("user_topics"), clustered.unchanged("user_brands")
    assert (topics == brands).mean() > 0.999  # they differ where a redraw repeats by chance
    device = clustered.unchanged("user_device")
    both = (~topics & ~device).mean()
    assert both == pytest.approx((~topics).mean() * (~device).mean(), rel=0.3)


def test_shifts_drop_the_oldest_and_append_one(clustered: Clustered) -> None:
    changes = np.flatnonzero(clustered.adjacent)[~clustered.unchanged("history")]
    ids, offsets = clustered.lists("history")
    for row in changes[:5_000]:
        old, new = ids[offsets[row] : offsets[row + 1]], ids[offsets[row + 1] : offsets[row + 2]]
        assert old[1:].tolist() == new[:-1].tolist()
    ids, offsets = clustered.lists("user_topics")
    changes = np.flatnonzero(clustered.adjacent)[~clustered.unchanged("user_topics")][:1_000]
    redrawn = sum(
        ids[offsets[row] + 1 : offsets[row + 1]].tolist()
        != ids[offsets[row + 1] : offsets[row + 2] - 1].tolist()
        for row in changes
    )
    assert redrawn > 800  # the others have one id at most


def test_a_batch_in_time_order_holds_few_samples_of_a_session() -> None:
    """At scale: RecD's 1.15 samples per session in a batch of 4096."""
    config = SessionsConfig(samples=1_500_000, features=(ONE,), dense=0)
    sessions = np.concatenate([column(c, "session_id") for c in Sessions(config).chunks("train")])
    middle = np.split(sessions[: 366 * 4096], 366)[100:250]
    ratio = [4096 / np.unique(batch).size for batch in middle]
    assert 1.10 < np.median(ratio) < 1.20
    assert sessions.size / np.unique(sessions).size > 15


def test_same_seed_same_bytes_another_seed_other_rows(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        tables = Sessions(SMALL).prepare(tmp_path / folder)
        assert tables.train.num_rows == 3_000
        assert tables.test.num_rows == 300
    for file in (tmp_path / "a").rglob("*.parquet"):
        twin = tmp_path / "b" / file.relative_to(tmp_path / "a")
        assert file.read_bytes() == twin.read_bytes()
    other = table(dataclasses.replace(SMALL, seed=1))
    same = table(SMALL)
    assert (column(other, "label") != column(same, "label")).any()
    for name in ("session_id", "timestamp", "history", "item", "user_topics", "dense_0"):
        assert other[name] != same[name], name


def test_tables_that_are_there_are_opened_without_solving_any_law(tmp_path: Path) -> None:
    made, opened = Sessions(SMALL), Sessions(SMALL)
    before = set(vars(opened))
    assert made.prepare(tmp_path) == opened.prepare(tmp_path)
    assert set(vars(opened)) == before < set(vars(made))


@pytest.mark.parametrize("chunk_rows", [40, 977, 100_000])
def test_chunks_do_not_change_the_rows(chunk_rows: int) -> None:
    chunks = list(Sessions(SMALL, chunk_rows=chunk_rows).chunks("train"))
    assert len(chunks) > 3_000 / chunk_rows - 1
    assert pa.concat_tables(chunks).equals(table(SMALL, chunk_rows=500))


def test_more_samples_go_on_where_fewer_ended() -> None:
    """What is not cut short at the end is the same: a demo is a part of the large table."""
    few, many = Clustered(table(SMALL)), Clustered(table(dataclasses.replace(SMALL, samples=6_000)))
    ours = dict(zip(column(few.rows, "session_id")[few.firsts], few.sizes, strict=True))
    theirs = dict(zip(column(many.rows, "session_id")[many.firsts], many.sizes, strict=True))
    assert sum(size != theirs[session] for session, size in ours.items()) <= 1


@pytest.mark.slow
def test_memory_is_bounded_by_open_sessions_not_by_the_table() -> None:
    def peak(samples: int) -> int:
        config = SessionsConfig(
            samples=samples,
            samples_per_session=2,
            concurrent_sessions=200,
            features=(ONE,),
            dense=0,
        )
        dataset = Sessions(config, chunk_rows=2_000)
        tracemalloc.start()
        before, arrow = pa.total_allocated_bytes(), 0
        for _ in dataset.chunks("train"):
            arrow = max(arrow, pa.total_allocated_bytes() - before)
        _, traced = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return traced + arrow

    assert peak(120_000) < 1.3 * peak(20_000)


@settings(max_examples=at_most(15), deadline=None)
@given(
    stay=st.sampled_from([0.0, 0.5, 0.93, 1.0]),
    shift=st.booleans(),
    num_ids=st.sampled_from([1, 2, 1000]),
    length=st.sampled_from([(0.0, 0, 0), (0.5, 0, 3), (1.0, 1, 1), (6.0, 2, 30)]),
    distribution=st.sampled_from(["zipf", "half_normal", "exponential", "uniform"]),
    sequence=st.booleans(),
    sigma=st.sampled_from([0.1, 2.0]),
    seed=st.integers(0, 1000),
)
def test_any_config_keeps_the_contract(
    stay: float,
    shift: bool,
    num_ids: int,
    length: tuple[float, int, int],
    distribution: str,
    sequence: bool,
    sigma: float,
    seed: int,
) -> None:
    feature = FeatureConfig(
        name="f",
        num_ids=num_ids,
        kind="user",
        stay=stay,
        shift=shift,
        length=length[0],
        min_length=length[1],
        max_length=length[2],
        distribution=distribution,  # type: ignore[arg-type]
        sequence=sequence,
    )
    config = SessionsConfig(
        samples=700,
        samples_per_session=5,
        session_sigma=sigma,
        max_samples_per_session=60,
        concurrent_sessions=10,
        features=(feature, dataclasses.replace(ONE, group="g")),
        dense=1,
        seed=seed,
    )
    rows = table(config, chunk_rows=64)
    assert rows.num_rows == 700
    assert rows.equals(table(config, chunk_rows=300))
    assert (np.diff(column(rows, "timestamp")) >= 0).all()
    assert set(column(rows, "label")) <= {0.0, 1.0}
    clustered = Clustered(rows)
    assert clustered.sizes.max() <= 60
    ids, offsets = clustered.lists("f")
    assert ((ids >= 0) & (ids < num_ids)).all()
    lengths = np.diff(offsets)
    assert length[1] <= lengths.min() <= lengths.max() <= length[2]
    unchanged = clustered.unchanged("f")
    if stay == 1 or length[2] == 0 or num_ids == 1 == length[2]:
        assert unchanged.all()
    elif num_ids == 1000 and stay < 1 and length[1] >= 1:
        expected = max(stay, 1 - change_rates({"f": FeatureDraws(feature, seed)})["feature f"])
        assert abs(unchanged.mean() - expected) < error_of(0.5, unchanged.size)


def test_every_session_is_whole_within_one_split() -> None:
    """Steps are drawn once each: sizes of train sessions follow the law but for the last."""
    config = dataclasses.replace(SMALL, features=(ONE,), dense=0, samples=20_000)
    clustered = Clustered(table(config))
    law = CountLaw.lognormal(8, 1.5, 10_000)
    singles = (clustered.sizes == 1).mean()
    expected = law.probabilities[0]
    assert abs(singles - expected) < error_of(expected, clustered.sizes.size)


def test_sessions_interleave() -> None:
    rows = table(SMALL)
    sessions = column(rows, "session_id")
    bands = sum(a != b for a, b in pairwise(sessions))
    assert bands > 0.8 * sessions.size
