"""Value tests: the synthetic_trace dataset, from each of its sources to a table."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hit_rates import hit_rates

from recd_dlrm.datasets.flat_columns import id_lists
from recd_dlrm.datasets.random import CHUNK_ROWS
from recd_dlrm.datasets.trace.dataset import SyntheticRows, TraceConfig, TraceFeature, build_trace
from recd_dlrm.datasets.trace.stack_distance import profile
from recd_plugins.config import parse
from recd_plugins.data.dataset import Split
from recd_plugins.data.schema import Schema, SparseFeature
from recd_plugins.data.table import Table
from recd_plugins.data.table_writer import write_table
from recd_plugins.errors import DataError, RegistryError
from recd_plugins.slots import Context


def config(*features: TraceFeature, **options: object) -> TraceConfig:
    sizes = {"samples": CHUNK_ROWS + 904, "test_samples": 300, "dense": 2}
    return parse(TraceConfig, {"features": features, **sizes, **options}, "dataset")


def build(*features: TraceFeature, **options: object) -> SyntheticRows:
    return build_trace(config(*features, **options), Context())


def flat(dataset: SyntheticRows, name: str, split: Split = "train") -> np.ndarray:
    return pa.concat_tables(dataset.chunks(split))[name].combine_chunks().flatten().to_numpy()


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """Rows of 0 to 3 ids that walk in circles of 5, some way above 100."""
    schema = Schema(
        session_id=None, timestamp=None, sparse=(SparseFeature(name="history", num_ids=200),)
    )
    offsets = np.concatenate(([0], np.cumsum(np.arange(40) % 4)))
    ids = 100 + np.arange(offsets[-1]) % 5
    chunk = pa.table({"label": np.zeros(40, np.float32), "history": id_lists(ids, offsets)})
    return write_table(tmp_path / "table", schema, [chunk[:25], chunk[25:]])


def test_by_default_it_is_the_papers_figure_3() -> None:
    dataset = build_trace(TraceConfig(), Context())
    assert [feature.name for feature in dataset.schema.sparse] == [
        "cat_0",
        "cat_1",
        "cat_2",
        "cat_3",
    ]
    assert set(dataset.schema.table_sizes().values()) == {101}
    ids = flat(dataset, "cat_0")
    assert set(ids) == set(range(1, 101))
    sizes = np.arange(10, 100, 10)
    # 20,000 draws: the rate of each size is off by 0.0035 (one deviation), the start by 0.01.
    assert hit_rates(profile(ids), sizes) == pytest.approx(sizes / 100, abs=0.02)
    assert not np.array_equal(ids, flat(dataset, "cat_1"))


def test_rows_have_the_schema_and_the_numbers_asked_for() -> None:
    dataset = build(TraceFeature(name="one"), TraceFeature(name="three", lookups=3))
    for split, count in (("train", CHUNK_ROWS + 904), ("test", 300)):
        rows = pa.concat_tables(dataset.chunks(split))
        assert rows.num_rows == dataset.num_rows(split) == count
        assert rows.schema.equals(dataset.schema.arrow())
        assert set(rows["three"].combine_chunks().value_lengths().to_pylist()) == {3}
    assert dataset.schema.columns == ("label", "dense_0", "dense_1", "one", "three")


def test_a_table_s_column_is_profiled_in_row_order(table: Table) -> None:
    dataset = build(
        TraceFeature(name="history", table=table.path),
        TraceFeature(name="again", table=table.path, column="history", renumber=True),
    )
    assert dataset.profiles["history"].unique.tolist() == [100, 101, 102, 103, 104]
    assert dataset.profiles["history"].distances.tolist() == [0, 5]
    assert dataset.schema.table_sizes() == {"history": 105, "again": 5}
    ids = flat(dataset, "history")
    assert ids.tolist() == (100 + np.arange(len(ids)) % 5).tolist()


@pytest.mark.parametrize("limit", [1, 4, 30, 59])
def test_no_more_accesses_are_profiled_than_allowed(table: Table, limit: int) -> None:
    text = table.path.parent / "trace.txt"
    text.write_text("\n".join(str(100 + i % 5) for i in range(60)))
    dataset = build(
        TraceFeature(name="history", table=table.path),
        TraceFeature(name="text", trace=text),
        profiled_accesses=limit,
    )
    expected = profile(100 + np.arange(limit) % 5)
    for found in dataset.profiles.values():
        assert found.unique.tolist() == expected.unique.tolist()
        assert found.probabilities.tolist() == expected.probabilities.tolist()


def test_a_text_trace_and_a_saved_profile_say_the_same(tmp_path: Path) -> None:
    text = tmp_path / "trace.txt"
    text.write_text("7, 3, 7\n3 3\n\n12\n")
    saved = tmp_path / "saved.parquet"
    profile([7, 3, 7, 3, 3, 12]).save(saved)
    dataset = build(
        TraceFeature(name="text", trace=text), TraceFeature(name="saved", profile=saved)
    )
    one, other = dataset.profiles.values()
    assert one.unique.tolist() == other.unique.tolist() == [7, 3, 12]
    assert one.probabilities.tolist() == other.probabilities.tolist()
    assert dataset.schema.table_sizes() == {"text": 13, "saved": 13}


def test_the_adjusted_version_sees_all_ids_sooner(tmp_path: Path) -> None:
    profile(np.random.default_rng(1).integers(0, 100, 1_000_000)).save(tmp_path / "long.parquet")
    feature = TraceFeature(name="long", profile=tmp_path / "long.parquet")
    seen = {
        adjusted: len(set(flat(build(feature, adjusted=adjusted), "long")[:1_000]))
        for adjusted in (True, False)
    }
    assert seen[True] == 100
    assert seen[False] < 50
    low = dataclasses.replace(feature, floor=0.0)
    assert len(set(flat(build(low), "long")[:1_000])) < 50


def test_the_seed_and_the_split_decide() -> None:
    feature = TraceFeature(name="even")
    ids = flat(build(feature), "even")
    assert np.array_equal(ids, flat(build(feature), "even"))
    assert not np.array_equal(ids, flat(build(feature, seed=1), "even"))
    assert not np.array_equal(ids[:300], flat(build(feature), "even", "test"))


def test_features_of_one_profile_have_traces_of_their_own(tmp_path: Path) -> None:
    path = tmp_path / "even.parquet"
    profile(np.random.default_rng(1).integers(0, 100, 10_000)).save(path)
    dataset = build(TraceFeature(name="one", profile=path), TraceFeature(name="two", profile=path))
    assert not np.array_equal(flat(dataset, "one"), flat(dataset, "two"))


def test_it_prepares_tables(tmp_path: Path) -> None:
    tables = build(TraceFeature(name="even", lookups=2)).prepare(tmp_path / "data")
    assert tables.train.num_rows == CHUNK_ROWS + 904
    assert tables.test.schema.feature("even").num_ids == 101


def test_the_fingerprint_follows_the_sources(tmp_path: Path, table: Table) -> None:
    text = tmp_path / "trace.txt"
    text.write_text("1 2 3")
    features = (
        TraceFeature(name="text", trace=text),
        TraceFeature(name="history", table=table.path),
    )
    before = build(*features).fingerprint()
    assert before == build(*features).fingerprint()
    text.write_text("1 2 3 4")
    grown = build(*features).fingerprint()
    os.utime(table.files[0], ns=(1, 1))
    assert len({before, grown, build(*features).fingerprint()}) == 3
    assert build(TraceFeature(name="even")).fingerprint() == ""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"cat: an empty trace"),
        ("1 2\n3 x4\n", r"cat: .*trace.txt:2: 'x4' is not an id"),
        ("1\n2.5\n", r"trace.txt:2: '2.5' is not an id"),
        ("1" * 19, r"trace.txt:1: '1+' is not an id.*18 digits"),
        ("1 2\n\0\n", r"cat: .*trace.txt: is no text, or is compressed"),
        ("4 -1 5", r"cat: its trace holds id -1.*renumber"),
    ],
)
def test_a_bad_text_trace_is_named(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "trace.txt"
    path.write_text(text)
    with pytest.raises(DataError, match=message):
        _ = build(TraceFeature(name="cat", trace=path)).schema


def test_negative_ids_can_be_renumbered(tmp_path: Path) -> None:
    path = tmp_path / "trace.txt"
    path.write_text("4 -1 5")
    schema = build(TraceFeature(name="cat", trace=path, renumber=True)).schema
    assert schema.table_sizes() == {"cat": 3}


def test_bad_sources_are_named(tmp_path: Path, table: Table) -> None:
    with pytest.raises(DataError, match=r"absent\.txt: cannot be read .*features: cat"):
        build(TraceFeature(name="cat", trace=tmp_path / "absent.txt"))
    with pytest.raises(
        DataError, match=r"cat: no sparse feature 'histroy'; did you mean 'history'"
    ):
        _ = build(TraceFeature(name="cat", table=table.path, column="histroy")).schema


@pytest.mark.parametrize(
    ("feature", "message"),
    [
        ({"trace": "a", "profile": "b"}, "profile, trace and table exclude each other"),
        ({"column": "a"}, "names a column of no table"),
        ({"floor": 1.5}, "floor: must be >= 0 and <= 1"),
        ({"lookups": 0}, "lookups: must be >= 1"),
    ],
)
def test_bad_options_are_named(feature: dict[str, object], message: str) -> None:
    with pytest.raises(RegistryError, match=message):
        parse(TraceConfig, {"features": [{"name": "cat", **feature}]}, "dataset")


def test_a_floor_of_the_printed_version_is_refused() -> None:
    options = {"adjusted": False, "features": [{"name": "cat"}, {"name": "page", "floor": 0.1}]}
    with pytest.raises(RegistryError, match=r"dataset\.features: the floor of 'page' does nothing"):
        parse(TraceConfig, options, "dataset")


def test_two_columns_of_one_name_are_refused() -> None:
    for names in (("cat", "cat"), ("cat", "dense_0"), ("label", "cat")):
        with pytest.raises(RegistryError, match=r"dataset\.features: column '\w+' is named twice"):
            config(*(TraceFeature(name=name) for name in names))
