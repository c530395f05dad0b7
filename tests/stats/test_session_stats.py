"""Value tests, then property tests: what is measured of a table is what counting by hand finds."""

from __future__ import annotations

import dataclasses
import json
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from brute_force import (
    SCHEMA,
    Sample,
    arrow_of,
    by_session,
    change_together,
    repeats,
    table_of,
    unique_ids,
)
from hypothesis import given
from hypothesis import strategies as st

from recd_dedup.stats import measure
from recd_dedup.stats.measure import SessionStats, SessionStatsConfig, build_session_stats
from recd_dedup.stats.repeats import BatchRepeats, SessionRepeats, agreement, groups
from recd_dedup.stats.session_rows import SessionRows, blocks
from recd_plugins.data.progress import silent
from recd_plugins.data.schema import Schema, SparseFeature
from recd_plugins.data.table import Table
from recd_plugins.data.table_writer import TableWriter
from recd_plugins.errors import DataError
from recd_plugins.slots import Context, StatsRecord
from recd_plugins.testing.conformance import check_record

NAMES = SCHEMA.sparse_names


def interleaved(n_sessions: int, seed: int = 0) -> list[Sample]:
    """Sessions whose likes grow now and then, with them their shares; items are always new."""
    draw = random.Random(seed)
    samples: list[Sample] = []
    for _ in range(n_sessions):
        session, likes = draw.randrange(-(2**62), 2**62), [draw.randrange(50) for _ in range(4)]
        shares: list[int] = []
        for _ in range(draw.choice([1, 2, 3, 9, 30])):
            if draw.random() < 0.3:
                likes = [*likes[1:], draw.randrange(50)]
                shares = likes[:2]
            samples.append(
                (session, {"likes": likes, "shares": shares, "item": [draw.randrange(50)]})
            )
    positions = sorted(range(len(samples)), key=lambda at: (draw.random(), at))
    return [samples[at] for at in positions]


def measured(table: Table, folder: Path, **options: Any) -> dict[str, Any]:
    config = SessionStatsConfig(**options)
    values = SessionStats(config, folder / "scratch").measure(table, silent).values
    assert list((folder / "scratch").iterdir()) == []
    return json.loads(json.dumps(values))  # what a machine reads


def test_a_table_in_order_of_time_is_measured_as_by_hand(tmp_path: Path) -> None:
    samples = interleaved(40)
    table = table_of(tmp_path / "table", samples)
    values = measured(table, tmp_path, batch_size=16)
    sessions = by_session(samples)
    assert values["rows"] == values["measured_rows"] == len(samples)
    assert not values["is_clustered"]

    sizes = Counter(len(rows) for rows in sessions.values())
    assert values["samples_per_session"]["table"] == {
        "mean": pytest.approx(len(samples) / len(sessions)),
        "max": max(sizes),
        "sessions": len(sessions),
        "histogram": [list(pair) for pair in sorted(sizes.items())],
    }
    batches = [samples[at : at + 16] for at in range(0, len(samples) // 16 * 16, 16)]
    in_batches = Counter(len(rows) for batch in batches for rows in by_session(batch).values())
    assert values["samples_per_session"]["batch_stored"]["histogram"] == [
        list(pair) for pair in sorted(in_batches.items())
    ]

    for feature in values["features"]:
        by_hand = repeats(samples, feature["name"])
        assert feature["length"] == by_hand["ids"] / by_hand["rows"]
        assert feature["stay"] == by_hand["unchanged"] / by_hand["pairs"]
        assert feature["exact"] == by_hand["exact_rows"] / by_hand["rows"]
        assert feature["partial"] == by_hand["partial_ids"] / by_hand["ids"]
        kept = sum(unique_ids(batch, feature["name"]) for batch in batches)
        stored = feature["stored"]
        assert stored["dedupe_len"]["measured"] == kept / len(batches)
        assert stored["dedupe_factor"]["measured"] == pytest.approx(
            sum(len(lists[feature["name"]]) for batch in batches for _, lists in batch) / kept
        )
    counts = [repeats(samples, name) for name in NAMES]
    ids = sum(one["ids"] for one in counts)
    shares = values["duplicates"]
    assert shares["exact"] == pytest.approx(
        sum(one["exact_rows"] / one["rows"] for one in counts) / 3
    )
    assert shares["exact_by_bytes"] == sum(one["exact_ids"] for one in counts) / ids
    assert shares["partial_by_bytes"] == sum(one["partial_ids"] for one in counts) / ids
    assert shares["most"] == pytest.approx(1 - len(sessions) / len(samples))


def test_clustered_batches_are_those_of_the_clustered_table(tmp_path: Path) -> None:
    from recd_dedup.etl.cluster import ClusterBySession, ClusterConfig

    samples = interleaved(40)
    table = table_of(tmp_path / "table", samples)
    clustered = ClusterBySession(ClusterConfig()).run(table, tmp_path / "clustered")
    before = measured(table, tmp_path, batch_size=16)
    after = measured(clustered, tmp_path, batch_size=16)
    assert after["is_clustered"]
    for one, other in zip(before["features"], after["features"], strict=True):
        assert one["clustered"] == other["clustered"] == other["stored"]
        assert {**one, "stored": None} == {**other, "stored": None}
    assert (
        after["samples_per_session"]["batch_stored"]["mean"]
        > 2 * (before["samples_per_session"]["batch_stored"]["mean"])
    )


@pytest.mark.parametrize(
    ("sessions", "clustered"),
    [
        ([1, 1, 2, 2, 2, 3, 3], True),
        ([1, 1, 2, 2, 1, 1, 2, 2], False),  # in order within each stripe of four rows
        ([2, 2, 1, 1], False),
    ],
)
def test_whether_a_table_is_clustered_is_seen_across_stripes(
    sessions: list[int], clustered: bool, tmp_path: Path
) -> None:
    lists = {"likes": [1], "shares": [2], "item": [3]}
    table = table_of(tmp_path / "table", [(one, lists) for one in sessions], rows_per_stripe=4)
    values = measured(table, tmp_path)
    assert values["is_clustered"] is clustered
    assert values["samples_per_session"]["table"]["sessions"] == len(set(sessions))


def test_the_formula_is_the_papers(tmp_path: Path) -> None:
    """B = S = 3, l = 3, d = 0.5: DedupeLen 6, DedupeFactor 1.5."""
    likes = [[3, 4, 5], [3, 4, 5], [4, 5, 6]]
    samples: list[Sample] = [(1, {"likes": ids, "shares": [], "item": [7]}) for ids in likes]
    values = measured(table_of(tmp_path / "table", samples), tmp_path, batch_size=3)
    found, empty, item = (feature["clustered"] for feature in values["features"])
    assert found["length"] == 9
    assert found["dedupe_len"] == {"formula": pytest.approx(6), "measured": 6}
    assert found["dedupe_factor"] == {"formula": pytest.approx(1.5), "measured": 1.5}
    assert empty["dedupe_factor"] == {"formula": 1, "measured": 1}
    assert item["dedupe_factor"] == {"formula": pytest.approx(3), "measured": 3}


def test_a_shifted_list_is_the_papers_partial_duplicate(tmp_path: Path) -> None:
    """100 ids in 2 samples, shifted by one: 99 of 200."""
    schema = Schema(dense=(), sparse=(dataclasses.replace(SCHEMA.feature("likes"), num_ids=200),))
    samples: list[Sample] = [(1, {"likes": list(range(at, at + 100))}) for at in (0, 1)]
    with TableWriter(tmp_path / "table", schema) as writer:
        writer.write(arrow_of(samples, schema))
    (likes,) = measured(Table.open(tmp_path / "table"), tmp_path)["features"]
    assert likes["exact"] == 0
    assert likes["partial"] == 99 / 200


def test_a_batch_larger_than_the_table_is_the_table(tmp_path: Path) -> None:
    samples = interleaved(5)
    values = measured(table_of(tmp_path / "table", samples), tmp_path, batch_size=10_000)
    in_batch, in_table = (
        values["samples_per_session"][where] for where in ("batch_stored", "table")
    )
    assert in_batch == in_table


def test_features_that_change_together_are_grouped(tmp_path: Path) -> None:
    samples = interleaved(60)
    found = measured(table_of(tmp_path / "table", samples), tmp_path)["together"]
    assert found["features"] == list(NAMES)
    both, likes, shares = (
        change_together(samples, *pair)
        for pair in (("likes", "shares"), ("likes", "likes"), ("shares", "shares"))
    )
    assert found["agreement"][0][1] == pytest.approx(both / (likes + shares - both))
    assert found["agreement"][1][0] == found["agreement"][0][1] > 0.8
    loose = measured(Table.open(tmp_path / "table"), tmp_path, together=0.8)["together"]
    assert loose["groups"] == [["likes", "shares"], ["item"]]


def test_every_two_of_a_group_agree() -> None:
    shares = np.array([[1, 0.95, 0.2], [0.95, 1, 0.95], [0.2, 0.95, 1]])
    assert groups(["a", "b", "c"], shares, 0.9) == [("a", "b"), ("c",)]
    assert groups(["a", "b", "c"], shares, 0.2) == [("a", "b", "c")]
    never = agreement(np.array([[0, 0], [0, 5]]))
    assert never.tolist() == [[1, 0], [0, 1]]


def test_a_sample_has_whole_sessions_and_spaced_batches(tmp_path: Path) -> None:
    samples = interleaved(300)
    table = table_of(tmp_path / "table", samples, rows_per_stripe=100)
    values = measured(table, tmp_path, batch_size=50, max_rows=len(samples) // 3)
    assert values["rows"] == len(samples)
    assert len(samples) / 5 < values["measured_rows"] < len(samples) / 2
    sizes = values["samples_per_session"]
    assert set(map(tuple, sizes["table"]["histogram"])) <= {
        (len(rows), count) for rows in by_session(samples).values() for count in range(1, 301)
    }
    mean = len(samples) / len(by_session(samples))
    assert sizes["table"]["mean"] == pytest.approx(mean, rel=0.25)
    wanted = len(samples) // 3 // 50
    step = len(samples) // wanted
    spaced = [samples[at * step : at * step + 50] for at in range(wanted)]
    (likes, *_) = values["features"]
    assert likes["stored"]["dedupe_len"]["measured"] == pytest.approx(
        sum(unique_ids(batch, "likes") for batch in spaced) / wanted
    )
    assert values == measured(table, tmp_path, batch_size=50, max_rows=len(samples) // 3)


def test_what_cannot_be_measured_is_reported(tmp_path: Path) -> None:
    table = table_of(tmp_path / "table", interleaved(3))
    nameless = dataclasses.replace(
        table, schema=dataclasses.replace(SCHEMA, session_id=None, timestamp=None)
    )
    with pytest.raises(DataError, match="names no session_id"):
        measured(nameless, tmp_path)
    without = dataclasses.replace(table, schema=dataclasses.replace(SCHEMA, sparse=()))
    with pytest.raises(DataError, match="its schema has no sparse features"):
        measured(without, tmp_path)
    with pytest.raises(DataError, match="has no rows"):
        measured(table_of(tmp_path / "empty", []), tmp_path)
    large = table_of(tmp_path / "large", [(1, lists) for _, lists in interleaved(30)])
    with pytest.raises(DataError, match=r"no session is drawn for max_rows: 1\."):
        measured(large, tmp_path, max_rows=1)


def test_the_record_keeps_its_slots_contract(tmp_path: Path) -> None:
    record = StatsRecord(
        name="sessions",
        summary="How much the samples of a session repeat each other.",
        config=SessionStatsConfig,
        build=build_session_stats,
    )
    check_record(record, context=Context(schema=SCHEMA, folder=tmp_path))


LISTS = st.lists(st.integers(0, 3), max_size=3)
SAMPLES = st.lists(
    st.tuples(st.integers(-2, 2), st.fixed_dictionaries(dict.fromkeys(NAMES, LISTS))),
    min_size=1,
    max_size=24,
)


@given(samples=SAMPLES, rows=st.integers(1, 9))
def test_any_sessions_in_any_blocks_are_counted_as_by_hand(
    samples: list[Sample], rows: int
) -> None:
    clustered = sorted(samples, key=lambda sample: sample[0])
    found = SessionRepeats(NAMES)
    cut = list(blocks(pieces(clustered), SCHEMA, rows))
    for block in cut:
        found.add(block)
    found.close()
    sessions = by_session(samples)
    assert sorted(found.sizes.sessions.elements()) == sorted(map(len, sessions.values()))
    if any(len(lists) > rows for lists in sessions.values()):
        return  # such a session is counted by stretches
    for name in NAMES:
        by_hand = repeats(clustered, name)
        counts = dataclasses.asdict(found.features[name])
        assert {key: count for key, count in counts.items() if count} == {
            key: count for key, count in by_hand.items() if count
        }
    assert found.changes.tolist() == [
        [change_together(clustered, left, right) for right in NAMES] for left in NAMES
    ]


@given(samples=SAMPLES)
def test_any_batch_is_counted_as_by_hand(samples: list[Sample]) -> None:
    found = BatchRepeats(NAMES)
    found.add(SessionRows.of(arrow_of(samples), SCHEMA))
    assert sorted(found.sizes.sessions.elements()) == sorted(map(len, by_session(samples).values()))
    for name in NAMES:
        counts, by_hand = found.features[name], repeats(samples, name)
        assert counts.unique_ids == unique_ids(samples, name)
        assert counts.ids == by_hand.get("ids", 0)
        assert counts.pairs == by_hand.get("pairs", 0)
        assert counts.unchanged == by_hand.get("unchanged", 0)


def test_weights_tell_lists_apart_and_are_no_ids() -> None:
    schema = Schema(sparse=(SparseFeature(name="cart", num_ids=9, scored=True),))
    carts = [[1, 2], [1, 2], [1, 2], []]
    weights = [[0.5, 1.0], [0.5, 1.0], [0.5, 2.0], []]
    columns = {
        "session_id": [7] * 4,
        "timestamp": [0] * 4,
        "label": [0.0] * 4,
        "cart": carts,
        "cart_weights": weights,
    }
    arrow = schema.arrow()
    rows = SessionRows.of(
        pa.table({name: columns[name] for name in arrow.names}, schema=arrow), schema
    )
    found, batch = SessionRepeats(["cart"]), BatchRepeats(["cart"])
    found.add(rows)
    batch.add(rows)
    cart = found.features["cart"]
    assert (cart.rows, cart.ids, cart.partial_ids) == (4, 6, 4)
    assert (cart.exact_rows, cart.exact_ids, cart.unchanged, cart.pairs) == (1, 2, 1, 3)
    assert (batch.features["cart"].ids, batch.features["cart"].unique_ids) == (6, 4)


def pieces(samples: list[Sample]) -> Iterator[Any]:
    """In chunks of five rows."""
    for at in range(0, len(samples), 5):
        yield arrow_of(samples[at : at + 5])


def test_a_session_longer_than_a_block_is_still_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measure, "BLOCK_ROWS", 8)
    lists = {"likes": [1, 2], "shares": [], "item": [3]}
    table = table_of(tmp_path / "table", [(5, lists)] * 30 + [(6, lists)] * 2)
    values = measured(table, tmp_path)
    assert values["samples_per_session"]["table"]["histogram"] == [[2, 1], [30, 1]]
    # Each stretch begins anew, so of 30 equal lists one in each of four is not a duplicate.
    assert values["features"][0]["exact"] == (32 - 5) / 32


def test_little_memory_takes_more_blocks_and_buckets_and_counts_the_same(tmp_path: Path) -> None:
    table = table_of(tmp_path / "table", interleaved(40))
    row_bytes = 150
    little = measured(table, tmp_path, batch_size=16, memory_gb=8 * 60 * row_bytes / 1e9)
    assert little == measured(table, tmp_path, batch_size=16)


def test_the_notes_say_what_measured_figures_count(tmp_path: Path) -> None:
    table = table_of(tmp_path / "table", interleaved(5))
    found = SessionStats(SessionStatsConfig(), tmp_path / "scratch").measure(table, silent)
    notes = [note for one in found.tables for note in one.notes]
    assert "Measured ones count equal lists of different sessions too." in notes


def test_what_a_killed_measurement_left_is_removed_and_not_what_a_living_one_has(
    tmp_path: Path,
) -> None:
    table, scratch = table_of(tmp_path / "table", interleaved(20)), tmp_path / "scratch"
    left = scratch / f"{measure.FOLDER}left" / "clustered"
    left.mkdir(parents=True)
    with measure._folder_within(scratch) as living:
        assert [*scratch.iterdir()] == [living]
        SessionStats(SessionStatsConfig(), scratch).measure(table, silent)
        assert [*scratch.iterdir()] == [living]
    assert not [*scratch.iterdir()]
