"""Rung 1 (values) and 2 (properties): the join against one that holds everything in memory."""

from __future__ import annotations

import re
import warnings
from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recd_dedup.log.codec import MessageCodec
from recd_dedup.log.join import Join, JoinConfig, JoinReport
from recd_dedup.log.period_join import PeriodReport
from recd_plugins.data.schema import IDS, Schema, SparseFeature

SCHEMA = Schema(dense=("price",), sparse=(SparseFeature(name="item", num_ids=10**6),))
CODEC = MessageCodec(SCHEMA)
CONFIG = JoinConfig(window_ms=100, disorder_ms=10, remember_ms=10**9)


def request(request_id, time, price=1.0, items=(1, 2)):
    columns = {
        "session_id": pa.array([5]),
        "timestamp": pa.array([time]),
        "price": pa.array([price], pa.float32()),
        "item": pa.array([items], IDS),
    }
    return CODEC.requests(np.array([request_id]), pa.table(columns))


def event(request_id, time):
    return CODEC.events(np.array([request_id]), np.array([5]), np.array([time]))


def joined(*blocks, config=CONFIG):
    """How many samples have a timestamp and a label, and the report."""
    join = Join(CODEC, config)
    tables = [table for block in blocks for table in join.add(pa.concat_batches(block))]
    tables += join.finish()
    assert all(table.schema.equals(SCHEMA.arrow()) for table in tables)
    rows = [row for table in tables for row in table.to_pylist()]
    assert join.report.samples == len(rows)
    return Counter((row["timestamp"], row["label"]) for row in rows), join.report


def test_a_sample_is_positive_if_an_event_came_in_its_window():
    samples, report = joined([request(1, 0), request(2, 1), request(3, 2), event(2, 101)])
    assert samples == {(0, 0): 1, (1, 1): 1, (2, 0): 1}
    assert report == JoinReport(requests=3, samples=3, events=1, positives=1, most_waiting=3)


@pytest.mark.parametrize(
    ("time", "became"),
    [
        (989, "orphan_events"),
        (990, "positives"),
        (1000, "positives"),
        (1100, "positives"),
        (1101, "late_events"),
    ],
)
@pytest.mark.parametrize("first", ["request", "event"])
def test_the_edges_of_the_window(time, became, first):
    blocks = [[request(1, 1000)], [event(1, time)]]
    samples, report = joined(*(blocks if first == "request" else reversed(blocks)))
    assert samples == {(1000, became == "positives"): 1}
    assert getattr(report, became) == report.events == 1


def test_every_event_is_reported_for_what_it_is():
    samples, report = joined(
        [request(1, 0), request(1, 0), event(1, 5), event(1, 5), event(1, 6)],
        [event(9, 20), event(1, 101), request(1, 120)],
    )
    assert samples == {(0, 1): 1}
    assert report == JoinReport(
        requests=3,
        samples=1,
        duplicate_requests=2,
        events=5,
        positives=1,
        duplicate_events=2,
        late_events=1,
        orphan_events=1,
        most_waiting=1,
    )


def test_a_sample_is_written_as_soon_as_nothing_can_change_it():
    join = Join(CODEC, CONFIG)
    assert list(join.add(request(1, 0))) == []
    assert list(join.add(event(8, 110))) == []
    (table,) = join.add(event(8, 111))
    assert table["timestamp"].to_pylist() == [0]
    assert list(join.finish()) == []


@pytest.mark.slow
def test_memory_holds_the_window_and_no_more():
    config = JoinConfig(window_ms=100, disorder_ms=0, remember_ms=100)
    join = Join(CODEC, config)
    for time in range(1000):
        list(join.add(request(time, time)))
        list(join.add(event(-time - 1, time)))
    assert join.report.most_waiting <= 102
    assert len(join._known) <= 203
    assert len(join._early) <= 2
    assert join.report.orphan_events == 1000 - len(join._early)


def test_what_is_remembered_and_what_is_not():
    config = JoinConfig(window_ms=100, disorder_ms=0, remember_ms=1000)
    early, late = ([request(1, 0)], [event(1, 1050)]), ([request(1, 0)], [event(1, 1101)])
    gone = ([request(1, 0)], [request(2, 1200)], [event(1, 1201)])
    assert joined(*early, config=config)[1].late_events == 1
    assert joined(*late, config=config)[1].late_events == 1
    assert joined(*gone, config=config)[1].orphan_events == 1


@pytest.mark.parametrize(("watermark", "became"), [(1100, "late_events"), (1101, "orphan_events")])
def test_a_request_is_remembered_so_long_after_its_window(watermark, became):
    """Request 1 is known up to 0 + window_ms + remember_ms, while nothing later came."""
    config = JoinConfig(window_ms=100, disorder_ms=0, remember_ms=1000)
    blocks = ([request(1, 0)], [request(2, watermark)], [event(1, watermark)])
    _, report = joined(*blocks, config=config)
    assert getattr(report, became) == report.events == 1
    assert report.late_events + report.orphan_events == 1


@pytest.mark.parametrize(("watermark", "waits"), [(119, True), (120, True), (121, False)])
def test_an_event_waits_for_its_request_as_long_as_messages_may_be_late(watermark, waits):
    """An event at 100 waits until nothing of 110 can come: up to a watermark of 120."""
    join = Join(CODEC, CONFIG)
    assert list(join.add(pa.concat_batches([event(9, 90), event(9, 100)]))) == []
    assert list(join.add(request(1, watermark))) == []
    assert join.report.orphan_events == (0 if waits else 2)
    list(join.add(request(9, watermark)))
    # Those that waited came longer before their request than clocks may differ.
    assert join.report.orphan_events == 2
    assert join.report.events == 2


def test_events_that_came_first_are_counted_as_those_that_came_later():
    samples, report = joined([event(1, 5), event(1, 6), event(1, 104)], [request(1, 3)])
    assert samples == {(3, 1): 1}
    assert (report.positives, report.duplicate_events, report.late_events) == (1, 1, 1)


def test_once_a_sample_is_written_no_event_changes_it():
    join = Join(CODEC, CONFIG)
    for block in (request(1, 0), request(2, 0)):
        list(join.add(block))
    list(join.add(event(1, 5)))
    written = list(join.add(event(8, 111)))
    assert [table["label"].to_pylist() for table in written] == [[1], [0]]
    assert join.report.most_waiting == 2
    list(join.add(event(1, 6)))
    list(join.add(event(2, 6)))
    list(join.add(request(3, 112)))
    assert (join.report.duplicate_events, join.report.late_events) == (1, 1)
    assert join.report.disordered == 2  # both came more than 10 ms behind the 111
    assert join.report.most_waiting == 2  # written ones wait no more
    assert [table["label"].to_pylist() for table in join.finish()] == [[0]]


def test_a_block_waits_for_its_latest_request():
    join = Join(CODEC, CONFIG)
    both = pa.concat_batches([request(1, 50), request(2, 0), request(2, 7)])
    assert list(join.add(both)) == []
    assert list(join.add(event(8, 160))) == []
    (table,) = join.add(event(8, 161))
    assert table["timestamp"].to_pylist() == [50, 0]
    assert (join.report.requests, join.report.duplicate_requests) == (3, 1)


def test_time_may_begin_before_1970():
    samples, report = joined([request(1, -5000)], [event(1, -4900), event(1, -4899)])
    assert samples == {(-5000, 1): 1}
    assert (report.positives, report.late_events, report.disordered) == (1, 1, 0)


def test_half_an_hour_and_a_minute_are_waited_for_unless_asked_otherwise():
    minute = 60_000
    assert JoinConfig() == JoinConfig(
        window_ms=30 * minute, disorder_ms=minute, remember_ms=60 * minute
    )


def test_of_nothing_nothing_is_counted():
    join = Join(CODEC, CONFIG)
    assert list(join.finish()) == []
    assert not any(join.report.to_dict().values())


def test_the_report_in_words():
    report = JoinReport(requests=1_200, samples=1_100, duplicate_requests=100, events=50)
    text = (
        "1,200 requests -> 1,100 samples (100 duplicates); 50 events -> 0 positives "
        "(0 duplicates, 0 late, 0 orphans)"
    )
    assert str(report) == text
    report.missing["price"] = 2
    report.disordered = 1
    assert str(report) == (
        f"{text}; missing: price in 2; 1 message came further out of order than allowed"
    )


def test_missing_features_are_filled_and_counted():
    join = Join(CODEC, CONFIG)
    messages = [request(1, 0, price=None), request(2, 0, items=None), request(3, 0, None, None)]
    list(join.add(pa.concat_batches(messages)))
    (table,) = join.finish()
    assert table["price"].to_pylist() == [0, 1, 0]
    assert table["item"].to_pylist() == [[1, 2], [], []]
    assert join.report.missing == {"price": 2, "item": 2}
    assert "missing: item in 2, price in 2" in str(join.report)


def test_what_is_too_far_out_of_order_is_reported():
    _, report = joined([request(1, 1000)], [request(2, 990)], [request(3, 989)])
    assert report.disordered == 1
    assert report.samples == 3


def test_a_clock_far_ahead_delays_its_own_block_only():
    join = Join(CODEC, CONFIG)
    list(join.add(pa.concat_batches([request(1, 0), request(2, 10**12)])))
    list(join.add(request(3, 50)))
    (table,) = join.add(request(4, 500))
    assert table["timestamp"].to_pylist() == [50]


MESSAGE = st.tuples(st.booleans(), st.integers(0, 6), st.integers(0, 400), st.integers(0, 10))


@given(st.lists(MESSAGE, max_size=40), st.lists(st.booleans(), min_size=40, max_size=40))
def test_like_a_join_that_holds_everything(drawn, cuts):
    """Messages within the bounds of disorder, in any blocks; an id's first request counts."""
    drawn.sort(key=lambda row: row[2] + row[3])  # they arrive up to 10 ms after their time
    blocks, block = [], []
    for (is_request, key, time, _), cut in zip(drawn, cuts, strict=False):
        block.append(request(key, time) if is_request else event(key, time))
        if cut:
            blocks.append(block)
            block = []
    samples, report = joined(*blocks, *([block] if block else []))

    first: dict[int, int] = {}
    for is_request, key, time, _ in drawn:
        if is_request:
            first.setdefault(key, time)
    inside: Counter[int] = Counter()
    late = orphans = 0
    for is_request, key, time, _ in drawn:
        if is_request:
            continue
        if key not in first or time < first[key] - CONFIG.disorder_ms:
            orphans += 1
        elif time > first[key] + CONFIG.window_ms:
            late += 1
        else:
            inside[key] += 1
    assert samples == Counter((time, bool(inside[key])) for key, time in first.items())
    assert report.requests == sum(row[0] for row in drawn)
    assert report.samples == report.requests - report.duplicate_requests == len(first)
    assert report.late_events == late
    assert report.orphan_events == orphans
    assert report.positives == len(+inside)
    assert report.duplicate_events == inside.total() - len(+inside)
    assert report.disordered == 0


@pytest.mark.parametrize(
    ("report", "doubt"),
    [
        (JoinReport(samples=100, positives=1, events=20, late_events=2), None),
        (JoinReport(samples=100, positives=1, events=20, late_events=3), "many events are late"),
        (JoinReport(samples=100, positives=1, events=20, orphan_events=3), "`log.route: message`"),
        (JoinReport(samples=100), "all labels are 0"),
        (JoinReport(samples=99, events=2, late_events=2), None),
        (JoinReport(samples=100, positives=1, left_out=1), "left out: 1 message"),
        (JoinReport(samples=100, positives=1, disordered=1), "raise `join.disorder_ms`"),
        (PeriodReport(requests=1000, late_requests=100), None),
        (PeriodReport(late_requests=101), "their period had closed.*; late: 101 requests"),
    ],
)
def test_what_a_log_may_not_have_meant_is_told(report: JoinReport, doubt: str | None) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        report.warn("a log")
    told = [str(one.message) for one in caught]
    assert len(told) == (doubt is not None)
    assert all(doubt and re.search(doubt, one) for one in told)
