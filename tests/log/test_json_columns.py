"""Rung 2 (drawn): what a JSON object becomes does not depend on those beside it."""

from __future__ import annotations

import random
import re
from typing import Any

import pytest

from recd_dedup.log.json_columns import JsonColumns
from recd_plugins.api.data import ForeignSchema
from recd_plugins.config import parse

COLUMNS = parse(
    ForeignSchema,
    {
        "session_id": "who",
        "timestamp": "at",
        "dense": ["price", {"name": "point", "width": 2, "nulls": {"value": 0}}],
        "sparse": [
            {"name": "item", "num_ids": 100, "nulls": {"value": 7}},
            {"name": "tags", "num_ids": 1000, "ids": "hash", "missing": [-1]},
            {"name": "scores", "num_ids": 1000, "ids": "hash", "scored": True},
            {"name": "likes", "num_ids": 1000, "ids": "hash", "weights": "strengths"},
        ],
    },
    "columns",
)
ODD = (
    None,
    True,
    -1,
    2**53 + 1,
    2**63,
    2**70,
    1.0,
    1.5,
    1e300,
    float("nan"),
    "",
    "7",
    "世界",
    "\ud800",
)
LISTS = ([], [1], ["x", 2, None], [[1]], [{"a": 1}], {"a": 1}, {"id": 3, "weight": 1})
PAIRS = (
    [{"id": "a", "weight": 0.5}, {"weight": 2, "id": 4}, None],
    {"a": 0.5, "12": 1},
    [{"sku": 12, "count": 3}],
    [{"id": 1}],
)
LIKES = (
    (None, None),
    ([], []),
    (7, 1.5),
    (["a", 3], [0.5, 2]),
    (["a"], [None]),
    (["a", 3], None),
)
"""Ids and their weights, which are fields of their own."""


def drawn(draw: random.Random) -> dict[str, Any]:
    likes, strengths = draw.choice(LIKES)
    one: dict[str, Any] = {
        "who": draw.choice(["me", "you", 12, 2**63, -5]),
        "at": draw.choice([1000, 1000.4, 2**53 + 1]),
        "label": draw.choice([0, 1, True, 0.0]),
        "price": draw.choice([1, 2.5, 2**60 + 1, False]),
        "point": draw.choice([[1, 2.5], [0.5, None], None]),
        "item": draw.choice([3, 4.0, [5, 6], None, [None, 9], []]),
        "tags": draw.choice(["x", 12, "12", ["x", 12, -1], [2**63], 12.0, None]),
        "scores": draw.choice([None, [], *PAIRS[:3]]),
        "likes": likes,
        "strengths": strengths,
    }
    if draw.random() < 0.3:
        name = draw.choice([*one])
        one[name] = draw.choice([*ODD, *LISTS, *PAIRS])
        if draw.random() < 0.2:
            del one[name]
    return one


@pytest.mark.parametrize("seed", range(2))
def test_an_object_becomes_what_it_becomes_alone(seed: int) -> None:
    draw = random.Random(seed)
    objects = [drawn(draw) for _ in range(80)]
    columns = JsonColumns(COLUMNS)
    whole = columns.of(objects)
    alone = [columns.of([one]) for one in objects]
    assert whole.rows.to_pylist() == [row for one in alone for row in one.rows.to_pylist()]
    assert list(whole.at) == [i for i, one in enumerate(alone) if one.at]
    assert whole.misfits == {i: one.misfits[0] for i, one in enumerate(alone) if one.misfits}
    assert 0 < len(whole.misfits) < 40
    first = columns.of(objects, until_misfit=True)
    assert not first.at
    assert first.misfits.items() <= whole.misfits.items()


@pytest.mark.parametrize(
    ("field", "value", "named"),
    [
        ("who", [1], "'who' holds .1., but an id is an integer or a text"),
        ("at", "noon", "'at' holds \"noon\", but `timestamp_unit` is for numbers"),
        ("label", 2, "'label' is a click label and holds 2"),
        ("price", None, "'price' holds null, but must be a number"),
        ("price", "3", "'price' holds \"3\", but it must be a number"),
        ("item", "sku", "'item' holds \"sku\", but its ids are taken as they are"),
        ("item", 1.5, "'item' holds 1.5, but an id is"),
        ("tags", {"a": 1}, "'tags' holds {\"a\": 1}, but an id is"),
        ("tags", "\ud800", "one of its texts is not Unicode"),
        ("strengths", ["a"], "'strengths' holds \"a\", but it must be a number"),
        ("scores", ["a"], "'scores' holds \"a\", but a scored id is an id and its weight"),
        ("point", [1], "'point' holds a list of 1 numbers, but its width is 2"),
    ],
)
def test_what_does_not_fit_is_named(field: str, value: Any, named: str) -> None:
    fits = {"who": 1, "at": 1, "label": 0, "price": 1, "item": 1, "tags": 1}
    found = JsonColumns(COLUMNS).of([fits, fits | {field: value}, fits])
    assert list(found.at) == [0, 2]
    assert re.search(named, found.misfits[1]), found.misfits[1]


def test_what_does_not_fit_is_told_without_a_row() -> None:
    schema = {"session_id": "who", "timestamp": "at", "timestamp_unit": "yyyy-mm-dd"}
    columns = JsonColumns(parse(ForeignSchema, schema | {"dense": ["price"]}, "columns"))
    misfits = columns.of([{"who": 1, "at": "noon", "label": 0, "price": 1}]).misfits
    assert "is no date of `timestamp_unit: yyyy-mm-dd`. Set another unit" in misfits[0]


def test_scored_ids_are_pairs_in_any_order_or_a_map() -> None:
    fits = {"who": 1, "at": 1, "label": 0, "price": 1}
    same = (
        [{"id": 12, "weight": 2}],
        [{"weight": 2, "id": "12"}],
        {"12": 2},
        [{"sku": 12, "n": 2}],
    )
    rows = JsonColumns(COLUMNS).of([fits | {"scores": one} for one in same]).rows.to_pylist()
    assert [row["scores_weights"] for row in rows] == [[2.0]] * 4
    assert len({row["scores"][0] for row in rows}) == 1


def test_a_column_may_be_a_session_and_a_feature() -> None:
    schema = parse(
        ForeignSchema,
        {
            "session_id": "who",
            "timestamp": None,
            "sparse": [{"name": "who", "num_ids": 50, "ids": "hash"}],
        },
        "columns",
    )
    rows = JsonColumns(schema).of([{"who": who, "label": 0} for who in (12, "12", "me")]).rows
    assert rows["who_key"].to_pylist()[0] == 12 != rows["who_key"].to_pylist()[1]
    assert rows["who"].to_pylist()[0] == rows["who"].to_pylist()[1]
