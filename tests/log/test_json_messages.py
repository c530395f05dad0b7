"""Rung 1 (values): messages that others wrote as JSON are requests, events, or left out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from raw_messages import messages_of

import recd_plugins as rp
from recd_dedup.log.codec import id_of_bytes
from recd_dedup.log.join import JoinConfig, JoinReport, samples_of
from recd_dedup.log.json_messages import JsonDecoder, JsonMessages
from recd_dedup.log.logged_dataset import LoggedConfig
from recd_dedup.log.shards import ZstdShards, ZstdShardsConfig
from recd_plugins.config import parse
from recd_plugins.errors import DataError, RegistryError
from recd_plugins.notices import NoticeWarning

COLUMNS: dict[str, Any] = {
    "session_id": None,
    "timestamp": None,
    "dense": ["price"],
    "sparse": [
        {"name": "item", "num_ids": 1000},
        {"name": "user.seen", "num_ids": 50, "ids": "hash", "table": "seen", "nulls": "empty"},
    ],
}
KINDS = {"request_id": "id", "kind": "type", "requests": ["shown"], "events": ["click", "like"]}


def of(**options: Any) -> JsonMessages:
    return parse(JsonMessages, {"columns": COLUMNS, **options}, "messages")


def shown(number: Any, **more: Any) -> dict[str, Any]:
    return {"type": "shown", "id": number, "price": 1.5, "item": 7, **more}


def messages(*rows: Any) -> Any:
    """Each of session 3, a time later than the one before."""
    texts = (row if isinstance(row, bytes) else json.dumps(row).encode() for row in rows)
    return messages_of((3, 1000 + n, text) for n, text in enumerate(texts))


def samples(config: JsonMessages, *rows: Any) -> tuple[list[dict[str, Any]], JoinReport]:
    report = JoinReport()
    logged = LoggedConfig(messages=config, join=JoinConfig(window_ms=100))
    found = samples_of([messages(*rows)], logged.decoder("session"), logged.join, report)
    return [row for table in found for row in table.to_pylist()], report


def test_requests_join_with_their_events() -> None:
    rows, report = samples(
        of(**KINDS),
        shown("a", user={"seen": ["x", "y"]}),
        shown("b", item=[8, 9]),
        shown(17),
        {"type": "like", "id": "b"},
        {"type": "dwell", "id": "a", "ms": 12},
        {"type": "click", "id": "17"},
        {"type": "click", "id": "gone"},
        b"",
    )
    assert [row["label"] for row in rows] == [0, 1, 1]
    assert [row["timestamp"] for row in rows] == [1000, 1001, 1002]
    assert {row["session_id"] for row in rows} == {3}
    assert [row["item"] for row in rows] == [[7], [8, 9], [7]]
    assert [len(row["user.seen"]) for row in rows] == [2, 0, 0]
    assert (report.samples, report.positives, report.orphan_events, report.left_out) == (3, 2, 1, 2)


def test_messages_that_have_their_labels_wait_for_nothing() -> None:
    columns = COLUMNS | {"session_id": "who", "timestamp": "at", "timestamp_unit": "s"}
    rows, report = samples(
        of(columns=columns | {"labels": [{"name": "clicked"}, {"name": "liked"}]}),
        shown(1, who="me", at=5, clicked=1, liked=0),
        shown(1, who="me", at=6, clicked=0, liked=1),
        shown(1, who=12, at=7, clicked=True, liked=0),
    )
    assert [row["clicked"] for row in rows] == [1, 0, 1]
    assert [row["liked"] for row in rows] == [0, 1, 0]
    assert [row["at"] for row in rows] == [5000, 6000, 7000]
    sessions = [row["who"] for row in rows]
    assert sessions[0] == sessions[1] != sessions[2]
    assert report.positives == 2
    config = LoggedConfig(messages=of())
    assert config.join.window_ms == 0


def test_equal_messages_of_one_time_are_one_where_there_is_no_id() -> None:
    batch = messages(shown(1, label=0), shown(1, label=1))
    twice = batch.take([0, 1, 0])
    report = JoinReport()
    logged = LoggedConfig(messages=of())
    found = [*samples_of([twice], logged.decoder("session"), logged.join, report)]
    assert sum(table.num_rows for table in found) == 2
    assert report.duplicate_requests == 1


BAD: dict[str, Any] = {
    "no JSON": b"{",
    "is a JSON list": [1],
    "is a JSON NoneType": None,
    "'id' is null": {"type": "shown", "price": 1, "item": 1},
    "'id' is 1.5": shown(1.5),
    "column 'price'": shown(1, price=None),
    "'item' holds 1000": shown(1, item=1000),
    "column 'item'": shown(1, item={"id": 5}),
    "utf-8": b'{"type": "shown", "id": "\xff"}',
}


@pytest.mark.parametrize("named", BAD)
def test_what_does_not_fit_is_named_or_left_out(named: str) -> None:
    rows = [shown("a"), BAD[named], shown("b"), {"type": "click", "id": "b"}]
    fits = "Expecting" if named == "no JSON" else named
    with pytest.raises(DataError, match=fits):
        samples(of(**KINDS), *rows)
    found, report = samples(of(**KINDS, malformed="skip"), *rows)
    assert [row["label"] for row in found] == [0, 1]
    assert report.left_out == 1


@pytest.mark.parametrize("bad", [b"{", shown(9, price="dear")])
@pytest.mark.parametrize("dataset", ["logged", "growing_log"])
def test_a_message_that_cannot_be_read_is_named_with_its_file_and_place(
    dataset: str, bad: Any, tmp_path: Path
) -> None:
    events = [{"type": "click", "id": number} for number in range(3)]
    with ZstdShards(ZstdShardsConfig(shards=1, fsync="never"), tmp_path / "log") as log:
        log.append(messages(*events, shown(1), bad, shown(2)))
    options: dict[str, Any] = {"messages": {"columns": COLUMNS, **KINDS}}
    if dataset == "growing_log":
        options |= {"origin": 0, "period_ms": 10_000, "ends_when_sealed": True}
    registry = {
        "plugins": ["recd_dedup"],
        "folder": str(tmp_path),
        "log": {"use": "zstd_shards", "shards": 1},
        "dataset": {"use": dataset, **options},
    }
    with pytest.raises(
        DataError,
        match=rf"{tmp_path}/log/shard-00000/\w+\.log, byte 16, message 5: a message of time 1004 ",
    ):
        rp.load(registry).prepare()


def test_values_of_several_types_are_as_in_text() -> None:
    rows, _ = samples(
        of(**KINDS),
        shown("a", user={"seen": [7, "x"]}),
        shown("b", user={"seen": ["7", "x"]}),
        shown("c", user={"seen": [2**63, 7]}),
    )
    seen = [row["user.seen"] for row in rows]
    assert seen[0] == seen[1]
    assert seen[2][1] == seen[0][0]


def test_a_batch_makes_what_its_messages_make_alone() -> None:
    """So it does not matter how a topic is cut into batches."""
    rows = [shown(n, item=n % 900, user={"seen": [n, str(n)] * (n % 3)}) for n in range(50)]
    batch, decoder = messages(*rows), JsonDecoder(of(**KINDS))
    whole = decoder.decode(batch).requests
    alone = [decoder.decode(batch.slice(n, 1)).requests for n in range(50)]
    assert whole.rows.to_pylist() == [row for one in alone for row in one.rows.to_pylist()]
    assert whole.ids.tolist() == [int(one.ids[0]) for one in alone]
    assert np.array_equal(decoder.heads(batch).ids, whole.ids)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (-5, "-5", True),
        (2**64 + 5, 5, False),
        (2**64 + 5, str(2**64 + 5), True),
        (0, "0", True),
        (7, "07", False),
        ("ä", "a\u0308", False),
    ],
)
def test_an_event_finds_its_request_by_a_number_or_what_spells_it(
    one: Any, other: Any, same: bool
) -> None:
    rows, report = samples(of(**KINDS), shown(one), {"type": "click", "id": other})
    assert [row["label"] for row in rows] == [float(same)]
    assert report.orphan_events == 1 - same


def test_fields_and_kinds_that_no_message_has_are_told() -> None:
    rows, report = samples(of(**KINDS), *(shown(n, item=None) for n in range(100)))
    assert len(rows) == 100
    assert report.with_ids == {"item": 0, "user.seen": 0}
    with pytest.warns(
        NoticeWarning, match="no sample has ids of 'item', 'user.seen': check whether"
    ):
        report.warn("a log")
    misspelt = of(**{**KINDS, "requests": ["shwon"]})
    _, report = samples(misspelt, *(shown(n) for n in range(100)))
    with pytest.warns(NoticeWarning, match="no message is a request: check the names of kinds"):
        report.warn("a log")


def test_what_is_none_of_the_requests_named_is_an_event() -> None:
    kinds = {"request_id": "id", "kind": "type", "requests": ["shown"]}
    rows, report = samples(of(**kinds), shown(1), {"type": "click", "id": 1}, {"id": 1})
    assert [row["label"] for row in rows] == [1]
    assert report.left_out == 1  # it is of no kind
    kinds = {"request_id": "id", "kind": "type", "requests": [0], "events": [1]}
    odd = ({"type": True, "id": 1}, {"type": "1", "id": 1}, {"type": [1], "id": 1})
    rows, report = samples(of(**kinds), shown(1, type=0), *odd)
    assert [row["label"] for row in rows] == [0]
    assert report.left_out == 3


def test_what_does_not_fit_is_no_request_of_a_period() -> None:
    batch = messages(shown("a"), shown("b", price=None), {"type": "click", "id": "b"})
    heads = JsonDecoder(of(**KINDS, malformed="skip")).heads(batch)
    assert heads.requests.tolist() == [True, False, False]
    assert heads.events.tolist() == [False, False, True]


def test_keys_of_any_bytes_are_sessions() -> None:
    assert id_of_bytes((-5).to_bytes(8, "little", signed=True)) == -5
    assert id_of_bytes(b"user-1") == id_of_bytes(b"user-1") != id_of_bytes(b"user-2")


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"kind": "type"}, "request_id: is missing"),
        ({"events": ["click"]}, "events: are values of `kind`"),
        ({**KINDS, "requests": ["click"]}, "events: 'click' is among `requests`"),
        ({"columns": COLUMNS | {"nulls": {"price": "drop"}}}, "columns: nulls of price drop"),
    ],
)
def test_options_that_do_not_fit_each_other(options: dict[str, Any], named: str) -> None:
    with pytest.raises(RegistryError, match=named):
        of(**options)


def test_a_dataset_has_its_schema_once() -> None:
    with pytest.raises(RegistryError, match="schema: is missing"):
        LoggedConfig()
    made = LoggedConfig(messages=of())
    assert LoggedConfig(messages=of(), schema=made.schema) == made
    other = parse(JsonMessages, {"columns": COLUMNS | {"dense": []}}, "messages")
    with pytest.raises(RegistryError, match=r"is given by `messages\.columns`"):
        LoggedConfig(messages=other, schema=made.schema)


def test_a_table_with_a_dot_is_refused_before_the_log_is_read(tmp_path: Path) -> None:
    """No model can be made of it, and to join the log may take hours."""
    dotted = {"name": "user.seen", "num_ids": 50, "ids": "hash", "nulls": "empty"}
    messages = {"columns": {**COLUMNS, "sparse": [*COLUMNS["sparse"][:1], dotted]}, **KINDS}
    registry = {
        "plugins": ["recd_dlrm", "recd_dedup"],
        "dataset": {"use": "logged", "messages": messages},
        "log": {"use": "zstd_shards"},
        "folder": str(tmp_path / "tables"),
    }
    stack = rp.load({**registry, "model": {"use": "dlrm"}})
    with pytest.raises(RegistryError, match=r"table 'user\.seen' cannot have a dot .* Set `table`"):
        stack.check_features()
    rp.load({**registry, "model": {"use": "dlrm", "features": ["item", "price"]}}).check_features()
    assert not [*tmp_path.iterdir()]
