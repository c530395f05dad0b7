"""Rung 2 (drawn): periods of messages in any order lose and repeat none, whatever their times."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from drawn import at_most

from recd_dedup.log.codec import MessageCodec
from recd_dedup.log.join import JoinConfig
from recd_dedup.log.period_join import PeriodBounds, PeriodJoin, PeriodReport
from recd_plugins.data.messages import Placed
from recd_plugins.data.schema import IDS, Schema, SparseFeature
from recd_plugins.errors import DataError

SCHEMA = Schema(sparse=(SparseFeature(name="item", num_ids=10**6),))
CODEC = MessageCodec(SCHEMA)
ORIGIN = 1_000
LENGTH = 100


class Message(NamedTuple):
    of: int
    time: int
    event: bool


def block(messages: list[Message]) -> pa.RecordBatch:
    def batch(event: bool) -> Iterator[pa.RecordBatch]:
        found = [one for one in messages if one.event == event]
        ids, times = (np.array([one[column] for one in found], np.int64) for column in (0, 1))
        if event:
            yield CODEC.events(ids, ids, times)
        else:
            item = pa.array([[one] for one in ids.tolist()], IDS)
            yield CODEC.requests(
                ids, pa.table({"session_id": ids, "timestamp": times, "item": item})
            )

    whole = pa.concat_batches([*batch(False), *batch(True)])
    place = {False: 0, True: sum(not one.event for one in messages)}
    order = []
    for one in messages:
        order.append(place[one.event])
        place[one.event] += 1
    return whole.take(pa.array(order))


Parts = dict[str, list[list[Message]]]
"""By part, its blocks; the place of a block is its number."""


class Log:
    """Messages in parts, and the places at which periods closed: any."""

    def __init__(self, parts: Parts, ends: list[Mapping[str, int]], join: JoinConfig) -> None:
        self.parts, self.ends, self.join = parts, ends, join
        self.blocks = {part: [block(one) for one in blocks] for part, blocks in parts.items()}

    def bounds(self, number: int) -> PeriodBounds:
        first = PeriodBounds.first(number, LENGTH, self.join)
        start = ORIGIN + number * LENGTH
        return PeriodBounds(
            number=number, start=start, length=LENGTH, ends=self.ends[first : number + 1]
        )

    def read(self, number: int) -> Iterator[Placed]:
        """What lies before the period's end, from a place on before which all is earlier."""
        start = ORIGIN + number * LENGTH - self.join.disorder_ms
        for part, blocks in self.parts.items():
            early = [all(one.time < start for one in messages) for messages in blocks]
            closed = self.ends[number - 1].get(part, 0) if number else 0
            begin = min([*early, False].index(False), closed)
            for place in range(begin, self.ends[number].get(part, 0)):
                yield Placed(part, place, self.blocks[part][place])

    def samples(self, number: int, report: PeriodReport) -> list[tuple[int, int, float]]:
        keep = (0, 500, 1 << 20)[number % 3]
        join = PeriodJoin(CODEC, self.join, self.bounds(number), report, keep)
        rows = (
            row for table in join.samples(lambda: self.read(number)) for row in table.to_pylist()
        )
        return [(row["item"][0], row["timestamp"], row["label"]) for row in rows]


def drawn(seed: int) -> Log:
    draw = random.Random(seed)
    window, disorder = draw.choice([0, 20, 150, 400]), draw.choice([0, 10, 90])
    sent = []
    for of in range(draw.choice([3, 20, 40])):
        time = ORIGIN + draw.randrange(-50, 500)
        sent += [Message(of, time, False)] * draw.choice([0, 1, 1, 1, 2, 3])
        for _ in range(draw.randrange(4)):
            edges = [0, window, window + 1, -disorder, -disorder - 1, draw.randrange(-500, 500)]
            sent += [Message(of, time + draw.choice(edges), True)] * draw.choice([1, 1, 2])
    draw.shuffle(sent)
    if draw.random() < 0.5:
        sent.sort(key=lambda one: one.time + draw.randrange(disorder + 1))
    parts: Parts = {}
    for message in sent:
        blocks = parts.setdefault(draw.choice("abc"[: 1 + seed % 3]), [[]])
        if blocks[-1] and draw.random() < 0.4:
            blocks.append([])
        blocks[-1].append(message)
    latest = max(one.time for one in sent)
    count = max(0, latest - ORIGIN) // LENGTH + 1
    ends: list[Mapping[str, int]] = []
    for _ in range(count - 1):
        before = ends[-1] if ends else {}
        ends.append(
            {
                part: draw.randint(before.get(part, 0), len(blocks))
                for part, blocks in parts.items()
                if part in before or draw.random() < 0.8
            }
        )
    ends.append({part: len(blocks) for part, blocks in parts.items()})
    return Log(parts, ends, JoinConfig(window_ms=window, disorder_ms=disorder, remember_ms=0))


def period(time: int) -> int:
    return (time - ORIGIN) // LENGTH


@pytest.mark.parametrize("first", [0, 12])
def test_each_message_is_counted_and_labels_are_those_of_what_came(first: int) -> None:
    for seed in range(first, first + at_most(12)):
        log = drawn(seed)
        window, disorder = log.join.window_ms, log.join.disorder_ms
        came = [  # each message, and the period in which it came
            (next(n for n, ends in enumerate(log.ends) if place < ends.get(part, 0)), one)
            for part, blocks in log.parts.items()
            for place, messages in enumerate(blocks)
            for one in messages
        ]
        requests = [(n, one) for n, one in came if not one.event]
        events = [(n, one) for n, one in came if one.event]
        in_time = {one.of: one.time for n, one in requests if n <= period(one.time)}
        taken = [
            one
            for n, one in events
            if one.of in in_time
            and n <= period(in_time[one.of])
            and -disorder <= one.time - in_time[one.of] <= window
        ]
        expected = {
            (of, time, float(any(one.of == of for one in taken))) for of, time in in_time.items()
        }
        counts: Counter[str] = Counter()
        samples = []
        for number in range(len(log.ends)):
            report = PeriodReport()
            found = log.samples(number, report)
            assert {period(time) for _, time, _ in found} <= {number}, seed
            samples += found
            counts.update({k: n for k, n in report.to_dict().items() if isinstance(n, int)})
        assert len(samples) == len(expected) == counts["samples"], seed
        assert set(samples) == expected, seed
        late = sum(n > period(one.time) for n, one in requests)
        assert counts["late_requests"] == late, seed
        assert counts["samples"] + counts["duplicate_requests"] + late == len(requests), seed
        assert counts["positives"] + counts["duplicate_events"] == len(taken), seed
        others = counts["late_events"] + counts["orphan_events"] - counts["recovered_events"]
        assert counts["events"] == len(events) == len(taken) + others, seed


def one_part(*messages: Message, ends: list[int]) -> Log:
    return Log(
        {"a": [[one] for one in messages]},
        [{"a": end} for end in ends],
        JoinConfig(window_ms=50, disorder_ms=10, remember_ms=0),
    )


def test_an_event_whose_request_is_a_later_periods_and_late_in_coming_is_recovered() -> None:
    log = one_part(Message(7, 1_095, True), Message(7, 1_100, False), ends=[1, 2])
    reports = [PeriodReport(), PeriodReport()]
    assert log.samples(0, reports[0]) == []
    assert log.samples(1, reports[1]) == [(7, 1_100, 1.0)]
    assert (reports[0].orphan_events, reports[0].recovered_events) == (1, 0)
    assert (reports[1].positives, reports[1].recovered_events) == (1, 1)
    assert (reports[0].events, reports[1].events) == (1, 0)


def test_neither_a_time_that_jumps_nor_a_long_wait_makes_a_label_or_a_second_sample() -> None:
    jumps = Message(1, 100_000, True)
    again = (Message(7, 1_050, False), Message(7, 1_060, True))
    log = one_part(again[0], jumps, *again, ends=[4])
    report = PeriodReport()
    assert log.samples(0, report) == [(7, 1_050, 1.0)]
    assert (report.duplicate_requests, report.positives, report.disordered) == (1, 1, 2)
    assert "most_waiting" not in report.to_dict()


@pytest.mark.parametrize("far", [2**62, 2**63 - 1])
def test_times_at_the_ends_of_int64_are_counted_as_others_are(far: int) -> None:
    """The earliest is an orphan, or late where its request is there; the latest is in no
    period."""
    ends = (Message(8, -far - 1, True), Message(7, -far - 1, True), Message(7, far, True))
    log = one_part(*ends, Message(9, -far - 1, False), Message(7, 1_050, False), ends=[5])
    report = PeriodReport()
    assert log.samples(0, report) == [(7, 1_050, 0.0)]
    assert (report.events, report.late_events, report.orphan_events) == (3, 1, 1)
    assert (report.late_requests, report.positives, report.disordered) == (1, 0, 1)


def test_an_event_is_late_where_its_request_may_have_been_an_earlier_periods() -> None:
    events = (Message(9, 1_049, True), Message(8, 1_050, True), Message(7, 1_000, True))
    later = (Message(5, 2_000, False), Message(6, 1_500, False))
    log = one_part(events[0], *events, Message(7, 1_050, False), *later, ends=[7])
    report = PeriodReport()
    assert log.samples(0, report) == [(7, 1_050, 0.0)]
    # That of 7 came with its request, but too long before it.
    assert (report.late_events, report.orphan_events) == (2, 2)
    assert report.disordered == 1  # that of 7; the period takes none of the later ones


def test_of_copies_with_other_times_the_earliest_is_the_sample() -> None:
    times = (1_060, 1_050, 1_055)
    log = one_part(*(Message(7, time, False) for time in times), Message(7, 1_101, True), ends=[4])
    report = PeriodReport()
    assert log.samples(0, report) == [(7, 1_050, 0.0)]
    assert (report.duplicate_requests, report.late_events) == (2, 1)


def test_a_log_that_changes_while_it_is_read_is_refused() -> None:
    log = one_part(Message(7, 1_050, False), Message(8, 1_050, False), ends=[2])
    others = [
        [*log.read(0)],
        [*one_part(Message(9, 1_050, False), ends=[1]).read(0)],
        [*log.read(0)][:1],
    ]
    for second in others[1:]:
        reads = iter([others[0], second])
        join = PeriodJoin(CODEC, log.join, log.bounds(0), PeriodReport(), keep=0)
        with pytest.raises(DataError, match="holds other messages than a moment ago"):
            [*join.samples(lambda reads=reads: iter(next(reads)))]
