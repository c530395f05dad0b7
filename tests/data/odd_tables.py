"""Odd tables, made by kind of column; and what each is to become, row by row in plain Python.

A case says which values a column holds and of which type. `reference` converts them one value at
a time, by the schema's rules as docs/schema.md states them, in Python alone.
"""

from __future__ import annotations

import decimal
import math
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pyarrow as pa

MASK = 2**64 - 1
PRIMES = (
    11400714785074694791,
    14029467366897019727,
    1609587929392839161,
    9650029242287828579,
    2870177450012600261,
)


@dataclass(frozen=True, kw_only=True)
class Odd:
    """Two or more columns of a few rows, the schema for them, and what is odd about one of them."""

    name: str
    role: str
    """What the odd column is: a feature, dense, label, weight, session or time."""
    values: Sequence[Any]
    type: pa.DataType
    options: dict[str, Any] = field(default_factory=dict)
    """Of the column's entry in the schema."""
    refused: bool = False
    """Whether no value of such a type can conform."""

    @property
    def schema(self) -> dict[str, Any]:
        """As registry.yaml says it; the odd column is called `odd`."""
        made: dict[str, Any] = {"session_id": None, "timestamp": None}
        nulls = {key: value for key, value in self.options.items() if key == "nulls"}
        if self.role == "feature":
            made["sparse"] = [{"name": "odd", "num_ids": 100, **self.options}]
        elif self.role == "dense":
            made["dense"] = [{"name": "odd", **self.options}]
        elif self.role == "label":
            made["labels"] = [{"name": "odd", **self.options}]
        else:
            key = {"weight": "sample_weight", "session": "session_id", "time": "timestamp"}
            made[key[self.role]] = "odd"
            made["nulls"] = {"odd": nulls["nulls"]} if nulls else {}
            if "unit" in self.options:
                made["timestamp_unit"] = self.options["unit"]
        return made

    @property
    def table(self) -> pa.Table:
        odd = pa.array(self.values, self.type)
        if self.role == "label":
            return pa.table({"odd": odd})
        return pa.table({"label": pa.array([n % 2 for n in range(len(odd))]), "odd": odd})


class Refused(Exception):
    """The column cannot become what the schema says."""


def reference(case: Odd) -> list[dict[str, Any]]:
    """The rows that a case becomes; `Refused` where one clear error is due."""
    if case.refused:
        raise Refused
    rows = []
    for number, value in enumerate(case.values):
        row = {} if case.role == "label" else {"label": float(number % 2)}
        if case.options.get("nulls") == "drop" and holds_null(value):
            continue
        made = ROLES[case.role](value, case)
        row |= made if isinstance(made, dict) else {"odd": made}
        rows.append(row)
    return rows


def holds_null(value: Any) -> bool:
    if isinstance(value, list):
        return any(map(holds_null, value))
    if isinstance(value, tuple | dict):
        return any(map(holds_null, value.values() if isinstance(value, dict) else value))
    return value is None or (isinstance(value, float) and not math.isfinite(value))


def ids(value: Any, case: Odd) -> Any:
    nulls = case.options.get("nulls", "empty")
    if marks := {str(mark) for mark in case.options.get("missing", ())}:
        lacks = lambda one: one is not None and str(one) in marks  # noqa: E731
        if isinstance(value, list):
            value = [None if lacks(one) else one for one in value]
        elif lacks(value):
            value = None
    if case.options.get("scored"):
        pairs = None if value is None else [_pair(one) for one in value]
        found = _stood_in(pairs, nulls, pair=True)
        return {
            "odd": [an_id(one, case) for one, _ in found],
            "odd_weights": [float32(weight) for _, weight in found],
        }
    values = value if isinstance(value, list) or value is None else [value]
    is_list = pa.types.is_nested(case.type)
    if value is None and not is_list:
        values = [None]
    return [an_id(one, case) for one in _stood_in(values, nulls)]


def _pair(one: Any) -> tuple[Any, Any]:
    if one is None:
        return None, None
    return tuple(one.values()) if isinstance(one, dict) else one


def _stood_in(values: list[Any] | None, nulls: Any, *, pair: bool = False) -> list[Any]:
    """The values with what stands for nulls."""

    def lacks(one: Any) -> bool:
        return any(map(holds_null, one)) if pair else holds_null(one)

    if values is None:
        values = [(None, None)] if pair else [None]
    if nulls == "empty":
        return [one for one in values if not lacks(one)]
    if isinstance(nulls, dict):
        fill = nulls["value"]
        if not pair:
            return [fill if lacks(one) else one for one in values]
        return [
            (fill if holds_null(one) else one, 1.0 if holds_null(weight) else weight)
            for one, weight in values
        ]
    if any(map(lacks, values)):
        raise Refused
    return values


def whole(value: Any) -> int | bytes:
    """An integer, or the bytes of a text."""
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytes):
        return value
    if isinstance(value, float | decimal.Decimal) and value != int(value):
        raise Refused
    if isinstance(value, float) and abs(value) > 2**53:
        raise Refused
    return int(value)


def an_id(value: Any, case: Odd) -> int:
    one, count = whole(value), case.options.get("num_ids", 100)
    if case.options.get("ids") == "hash":
        return hash_of(one, case.options.get("hash_seed", 0)) % count
    if isinstance(one, bytes) or not 0 <= one < count:
        raise Refused
    return one


def hash_of(one: int | bytes, seed: int = 0) -> int:
    if isinstance(one, bytes):
        number = _spelt(one)
        if number is None:
            return xxh64(one, seed)
        one = number
    return xxh64(struct.pack("<Q", one & MASK), seed)


def _spelt(text: bytes) -> int | None:
    try:
        number = int(text.decode("ascii"))
    except (UnicodeDecodeError, ValueError):
        return None
    fits = -(2**63) <= number < 2**64
    return number if fits and str(number).encode() == text else None


def float32(value: Any) -> float:
    try:
        return struct.unpack("<f", struct.pack("<f", value))[0]
    except OverflowError:
        return math.copysign(math.inf, value)


def number(value: Any, case: Odd) -> float:
    """A dense float, or a label."""
    nulls = case.options.get("nulls", "error")
    found = math.nan if value is None else float32(float(value))
    if not math.isfinite(found):
        if nulls == "empty":
            return math.nan
        if not isinstance(nulls, dict):
            raise Refused
        found = float32(nulls["value"])
    return found


def dense(value: Any, case: Odd) -> float | list[float]:
    width = case.options.get("width")
    if width is None:
        return number(value, case)
    values = [None] * width if value is None else value
    if len(values) != width:
        raise Refused
    return [number(one, case) for one in values]


def label(value: Any, case: Odd) -> float:
    found, kind = number(value, case), case.options.get("kind", "click")
    most = {"click": 1, "graded": case.options.get("grades", 1) - 1, "regression": math.inf}[kind]
    if kind != "regression" and not math.isnan(found) and not 0 <= found <= most:
        raise Refused
    return found


def weight(value: Any, case: Odd) -> dict[str, float]:
    found = number(value, case)
    if found < 0:
        raise Refused
    return {"odd": found}


def key(value: Any, case: Odd) -> Any:
    """What stands for a null of a session or a time."""
    if not holds_null(value):
        return value
    nulls = case.options.get("nulls", "error")
    if not isinstance(nulls, dict):
        raise Refused
    return nulls["value"]


def session(value: Any, case: Odd) -> dict[str, int]:
    one = key(value, case)
    if (unit := unit_of(case.type)) is not None:
        times, over = PER_MS[unit]
        return {"odd": int(one) * times * 1000 // over}
    one = whole(one)
    return {"odd": signed(hash_of(one) if isinstance(one, bytes) else one)}


def signed(number: int) -> int:
    return (number & MASK) - (2**64 if number & 2**63 else 0)


PER_MS = {"s": (1000, 1), "ms": (1, 1), "us": (1, 1000), "ns": (1, 1_000_000), "day": (86400000, 1)}


def unit_of(kind: pa.DataType) -> str | None:
    """What a type of dates and times counts."""
    if pa.types.is_date(kind):
        return "day" if pa.types.is_date32(kind) else "ms"
    return kind.unit if pa.types.is_timestamp(kind) else None


def time(value: Any, case: Odd) -> dict[str, int]:
    """Values are numbers, of whatever the type counts."""
    value, unit = key(value, case), unit_of(case.type) or case.options.get("unit", "ms")
    times, over = PER_MS[unit]
    exact = not isinstance(value, float)
    found = int(value) * times // over if exact else round(value * times / over)
    if not -(2**63) <= found < 2**63:
        raise Refused
    return {"odd": found}


ROLES = {
    "feature": ids,
    "dense": dense,
    "label": label,
    "weight": weight,
    "session": session,
    "time": time,
}


def xxh64(data: bytes, seed: int = 0) -> int:
    """The specification's text, a byte at a time."""
    one, two, three, four, five = PRIMES

    def rotated(x: int, by: int) -> int:
        return ((x << by) | (x >> (64 - by))) & MASK

    def rounded(lane: int, word: int) -> int:
        return rotated((lane + word * two) & MASK, 31) * one & MASK

    at = 0
    if len(data) >= 32:
        lanes = [(seed + one + two) & MASK, (seed + two) & MASK, seed, (seed - one) & MASK]
        while len(data) - at >= 32:
            words = struct.unpack_from("<4Q", data, at)
            lanes = [rounded(lane, word) for lane, word in zip(lanes, words, strict=True)]
            at += 32
        x = sum(rotated(lane, by) for lane, by in zip(lanes, (1, 7, 12, 18), strict=True)) & MASK
        for lane in lanes:
            x = ((x ^ rounded(0, lane)) * one + four) & MASK
    else:
        x = (seed + five) & MASK
    x = (x + len(data)) & MASK
    while len(data) - at >= 8:
        (word,) = struct.unpack_from("<Q", data, at)
        x = (rotated(x ^ rounded(0, word), 27) * one + four) & MASK
        at += 8
    if len(data) - at >= 4:
        (half,) = struct.unpack_from("<I", data, at)
        x = (rotated(x ^ (half * one & MASK), 23) * two + three) & MASK
        at += 4
    for byte in data[at:]:
        x = rotated(x ^ (byte * five & MASK), 11) * one & MASK
    for by, prime in ((33, two), (29, three)):
        x = (x ^ (x >> by)) * prime & MASK
    return x ^ (x >> 32)


INTEGERS = [getattr(pa, f"{sign}int{bits}")() for sign in ("", "u") for bits in (8, 16, 32, 64)]
TEXTS = [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int8(), pa.string())]
POLICIES: list[Any] = ["empty", {"value": 7}, "drop", "error"]
NAN, INF = math.nan, math.inf


def odd(
    role: str,
    name: str,
    values: Sequence[Any],
    of: pa.DataType,
    /,
    refused: bool = False,
    **options: Any,
) -> Odd:
    return Odd(name=name, role=role, values=values, type=of, options=options, refused=refused)


def odd_tables() -> Iterator[Odd]:
    """Each case once, by role."""
    yield from _features()
    yield from _scored()
    yield from _dense()
    yield from _labels_and_weights()
    yield from _sessions()
    yield from _times()


def _features() -> Iterator[Odd]:
    case = partial(odd, "feature")
    for kind in INTEGERS:
        yield case(f"{kind} as it is", [0, 99, 5], kind)
        yield case(f"a list of {kind}", [[0, 99], [], None, [5, None]], pa.list_(kind))
    for kind in (pa.int8(), pa.int64()):
        yield case(f"negative {kind}", [1, -1, 2], kind)
        yield case(f"negative {kind}, hashed", [1, -1, 2], kind, ids="hash")
    yield case("2^63 - 1", [2**63 - 1, 0], pa.int64())
    yield case("2^63 - 1 within", [[2**63 - 1], [0]], pa.list_(pa.int64()), num_ids=2**63)
    yield case("2^63 - 1, hashed", [2**63 - 1, -(2**63)], pa.int64(), ids="hash")
    yield case("2^63", [[2**63], [1]], pa.list_(pa.uint64()))
    yield case("2^63, hashed", [[2**63, 2**64 - 1], [1]], pa.list_(pa.uint64()), ids="hash")
    yield case("beyond num_ids", [[1, 2], [3, 100]], pa.list_(pa.int32()))
    yield case("num_ids of 1", [0, 0], pa.int64(), num_ids=1)
    yield case("bools", [True, False, None], pa.bool_())
    yield case("bools, hashed", [[True, False], None], pa.list_(pa.bool_()), ids="hash")
    yield case("floats that are whole", [1.0, None, NAN, 99.0], pa.float64())
    yield case("lists of floats that are whole", [[3.0, NAN], [], [4.0]], pa.list_(pa.float32()))
    yield case("floats with a fraction", [1.0, 2.5], pa.float64())
    yield case("floats with a fraction, hashed", [1.0, 2.5], pa.float64(), ids="hash")
    yield case("floats beyond 2^53", [2.0**60, 1.0], pa.float64(), ids="hash")
    yield case("infinite floats", [INF, 1.0], pa.float64(), refused=True)
    yield case("decimals", [decimal.Decimal(7), decimal.Decimal(9), None], pa.decimal128(20, 0))
    yield case("decimals with a fraction", [decimal.Decimal("7.5")], pa.decimal128(20, 1))
    for kind in (pa.decimal32(7, 0), pa.decimal64(15, 1), pa.decimal256(40, 0)):
        three = [decimal.Decimal(7), None, decimal.Decimal(9)]
        yield case(f"{kind}", three, kind)
        yield case(f"lists of {kind}", [three, None, []], pa.list_(kind))
        yield case(f"{kind}, one of which stands for a null", three, kind, missing=[7])
    ends = [decimal.Decimal(2**64 - 1), decimal.Decimal(-(2**63)), None, decimal.Decimal(5)]
    yield case(
        "decimals of either sign beyond int63, hashed", ends, pa.decimal128(20, 0), ids="hash"
    )
    for marks, kind in ([-1], pa.int64()), ([-1, 300], pa.int32()), (["300"], pa.uint64()):
        values = [5, 300, None, 7] if "300" in marks else [5, -1, None, marks[-1]]
        name = f"{kind} out of range that stand for nulls"
        yield case(name, values, kind, missing=marks)
        yield case(f"{name}, in lists", [values, []], pa.list_(kind), missing=marks)
        yield case(f"{name}, and others", [*values, 200], kind, missing=marks)
    for kind in (pa.string_view(), pa.binary_view()):
        words = [None, "a", "b"] if kind == pa.string_view() else [None, b"a", b"b"]
        for of in (pa.list_(kind), pa.list_view(kind)):
            yield case(f"a list of {of}, hashed", [words, None, []], of, ids="hash")
    texts = ["a", "", "12", "-7", "007", "ä" * 9, "x" * 40, None, "18446744073709551616"]
    for kind in TEXTS:
        yield case(f"{kind} as it is", texts, kind, refused=True)
        yield case(f"{kind}, hashed", texts, kind, ids="hash")
        yield case(f"{kind}, hashed by a seed", texts, kind, ids="hash", hash_seed=5)
    for kind in (pa.string(), pa.dictionary(pa.int32(), pa.large_string())):
        yield case(
            f"a list of {kind}, hashed", [["b", None, "12"], None, []], pa.list_(kind), ids="hash"
        )
    blobs = [b"", b"\xff\xfe", b"12", None]
    for kind in (pa.binary(), pa.large_binary(), pa.binary_view()):
        yield case(f"{kind}, hashed", blobs, kind, ids="hash")
    yield case("16 bytes, hashed", [bytes(range(16)), None], pa.binary(16), ids="hash")
    yield case("dictionary of integers", [9, 5, None, 9], pa.dictionary(pa.int8(), pa.int64()))
    yield case("dictionary of too large ones", [900, 5], pa.dictionary(pa.int8(), pa.int64()))
    for kind in (pa.large_list(pa.int64()), pa.list_(pa.int64()), pa.list_view(pa.int32())):
        yield case(f"{kind}", [[1, 2], [], None, [3]], kind)
    yield case("two in each list", [[1, 2], [3, 4]], pa.list_(pa.int64(), 2))
    yield case("two in each list, or none", [[1, 2], None, [3, None]], pa.list_(pa.int16(), 2))
    yield case("nothing but nulls", [None, None], pa.null())
    yield case("nothing but nulls, hashed", [None, None], pa.null(), ids="hash")
    yield case("lists of nulls", [[None], [], None], pa.list_(pa.null()))
    yield case("no rows", [], pa.list_(pa.string()), ids="hash")
    for nulls in POLICIES:
        name = f"nulls: {nulls}"
        yield case(f"{name}, scalars", [1, None, 3], pa.int32(), nulls=nulls)
        yield case(f"{name}, lists", [[1], None, [None, 2], []], pa.list_(pa.int64()), nulls=nulls)
        yield case(f"{name}, NaN", [1.0, NAN], pa.float32(), nulls=nulls)
        hashed = {"nulls": nulls, "ids": "hash"}
        yield case(f"{name}, texts", ["a", None], pa.string(), **hashed)
        dictionary = pa.dictionary(pa.int16(), pa.string())
        yield case(f"{name}, dictionary", [["a"], None, [None]], pa.list_(dictionary), **hashed)
        yield case(f"{name}, none there", [[1], [2, 3]], pa.list_(pa.int64()), nulls=nulls)
    yield case(
        "a text for nulls, hashed", ["a", None], pa.string(), ids="hash", nulls={"value": "?"}
    )
    yield case("a value for nulls out of range", [1, None], pa.int8(), nulls={"value": 100})
    yield case("lists of lists", [[[1]]], pa.list_(pa.list_(pa.int64())), refused=True)
    yield case("structs", [{"a": 1}], pa.struct([("a", pa.int64())]), refused=True)
    yield case("pairs, not scored", [[(1, 2.0)]], pa.map_(pa.int64(), pa.float32()), refused=True)
    for kind in (pa.timestamp("s"), pa.date32(), pa.time32("s"), pa.duration("s")):
        yield case(f"{kind} as ids", [1], kind, refused=True)


def _scored() -> Iterator[Odd]:
    case = partial(odd, "feature", scored=True)
    pair = pa.struct([("id", pa.int32()), ("weight", pa.float64())])
    rows = [[{"id": 3, "weight": 0.1}, {"id": 5, "weight": -2.0}], [], [{"id": 3, "weight": 1e9}]]
    lacking = [[{"id": None, "weight": 0.5}, {"id": 4, "weight": None}, None], None]
    for nulls in POLICIES:
        yield case(f"pairs, nulls: {nulls}", [*rows, *lacking], pa.list_(pair), nulls=nulls)
        yield case(
            f"weights that are NaN, nulls: {nulls}",
            [[{"id": 1, "weight": NAN}], [{"id": 2, "weight": 1.0}]],
            pa.large_list(pair),
            nulls=nulls,
        )
    for nulls in POLICIES:
        nothing = [None, None]
        yield case(f"nothing but nulls, scored, {nulls}", nothing, pa.null(), nulls=nulls)
        lists = [[None], [], None]
        yield case(f"lists of nulls, scored, {nulls}", lists, pa.list_(pa.null()), nulls=nulls)
        yield case(f"empty lists, scored, {nulls}", [[], []], pa.list_(pa.null()), nulls=nulls)
    yield case("a map", [[(3, 0.5), (4, None)], None, []], pa.map_(pa.uint8(), pa.float32()))
    integers = pa.map_(pa.int64(), pa.int64())
    yield case("a map to integers beyond num_ids", [[(3, 5000), (4, -1)], []], integers)
    texts = pa.map_(pa.string(), pa.int64())
    yield case("a map of texts, hashed", [[("a", 2), ("12", 3)], []], texts, ids="hash")
    yield case("a map of texts", [[("a", 2)]], texts, refused=True)
    yield case("ids out of range", [[(3, 0.5), (400, 1.0)]], pa.map_(pa.int64(), pa.float32()))
    yield case("no weights", [[3]], pa.list_(pa.int64()), refused=True)
    yield case(
        "a weight that is a text", [[(3, "a")]], pa.map_(pa.int64(), pa.string()), refused=True
    )
    three = pa.struct([("id", pa.int64()), ("weight", pa.float32()), ("time", pa.int64())])
    yield case(
        "three of a kind", [[{"id": 1, "weight": 2, "time": 3}]], pa.list_(three), refused=True
    )


def _dense() -> Iterator[Odd]:
    case = partial(odd, "dense")
    for kind in INTEGERS:
        yield case(f"{kind} as dense", [0, 100, 7], kind)
    for kind in (pa.float16(), pa.float32(), pa.float64()):
        yield case(f"{kind} as dense", [0.5, -1.25, 0.0], kind)
    yield case("0.1, rounded", [0.1, 1 / 3], pa.float64())
    yield case("large integers, rounded", [2**53 + 1, -(2**63)], pa.int64())
    yield case("bools as dense", [True, False], pa.bool_())
    yield case(
        "decimals as dense",
        [decimal.Decimal("1.25"), None],
        pa.decimal128(9, 2),
        nulls={"value": 0},
    )
    yield case("a dictionary as dense", [1.5, 2.5, 1.5], pa.dictionary(pa.int8(), pa.float64()))
    yield case("1e300", [1e300, 1.0], pa.float64())
    yield case("1e300 with a value", [1e300, 1.0], pa.float64(), nulls={"value": -1})
    for nulls in ({"value": 2.5}, "drop", "error"):
        yield case(f"null as dense, {nulls}", [1.5, None], pa.float32(), nulls=nulls)
        yield case(f"NaN as dense, {nulls}", [NAN, 1.5], pa.float64(), nulls=nulls)
        yield case(f"infinity as dense, {nulls}", [1.5, -INF], pa.float32(), nulls=nulls)
        yield case(f"null integers as dense, {nulls}", [1, None], pa.int64(), nulls=nulls)
        vectors = [[1.0, 2.0], None, [NAN, 3.0]]
        yield case(f"vectors, {nulls}", vectors, pa.list_(pa.float32(), 2), width=2, nulls=nulls)
    yield case("nothing but nulls as dense", [None], pa.null(), nulls={"value": 3})
    for nulls in ({"value": 3}, "drop", "error"):
        name = f"nothing but nulls as vectors, {nulls}"
        yield case(name, [None, None], pa.null(), width=2, nulls=nulls)
        yield case(
            f"lists of nulls, {name}", [[None], None], pa.list_(pa.null()), width=1, nulls=nulls
        )
    yield case("vectors of float64", [[1.0, 2.0], [3.0, 4.5]], pa.list_(pa.float64()), width=2)
    yield case("vectors of integers", [[1, 2], [3, 4]], pa.large_list(pa.int16()), width=2)
    yield case("vectors of one", [[1.0], [2.0]], pa.list_(pa.float32()), width=1)
    yield case("a vector that is short", [[1.0, 2.0], [3.0]], pa.list_(pa.float32()), width=2)
    yield case(
        "a vector of another width", [[1.0, 2.0]], pa.list_(pa.float32(), 2), width=3, refused=True
    )
    yield case("a vector without a width", [[1.0]], pa.list_(pa.float32()), refused=True)
    yield case("a number with a width", [1.0], pa.float32(), width=2, refused=True)
    yield case("vectors of texts", [["a"]], pa.list_(pa.string()), width=1, refused=True)
    for kind in (pa.string(), pa.timestamp("s"), pa.binary(), pa.date32()):
        yield case(f"{kind} as dense", [None], kind, refused=True)


def _labels_and_weights() -> Iterator[Odd]:
    label_of, weight_of = partial(odd, "label"), partial(odd, "weight")
    for kind in (pa.bool_(), pa.int8(), pa.uint64(), pa.float64()):
        clicks = [bool(one) if kind == pa.bool_() else one for one in (1, 0, 1)]
        yield label_of(f"{kind} as a click", clicks, kind)
    yield label_of("a probability", [0.25, 1.0], pa.float32())
    yield label_of("a click of 2", [0, 2], pa.int64())
    yield label_of("a click of -1", [1, -1], pa.int64())
    yield label_of("a value", [-3.5, 1e6], pa.float64(), kind="regression")
    yield label_of("stars", [0, 4, 2], pa.int32(), kind="graded", grades=5)
    yield label_of("too many stars", [0, 5], pa.int32(), kind="graded", grades=5)
    yield label_of("a text as a label", ["yes"], pa.string(), refused=True)
    yield label_of("a list as a label", [[1.0]], pa.list_(pa.float32()), refused=True)
    for nulls in POLICIES:
        filled = {"value": 1} if isinstance(nulls, dict) else nulls
        yield label_of(f"a label that is null, {nulls}", [1, None, 0], pa.int8(), nulls=filled)
        yield label_of(f"a label that is NaN, {nulls}", [1.0, NAN], pa.float32(), nulls=filled)
    yield weight_of("integers as weights", [1, 2, 0], pa.int16())
    yield weight_of("decimals as weights", [decimal.Decimal("0.5")], pa.decimal128(4, 1))
    yield weight_of("a negative weight", [1.0, -0.5], pa.float64())
    yield weight_of("a null weight", [1.0, None], pa.float64())
    two = {"value": 2}
    yield weight_of("a null weight with a value", [1.0, None], pa.float64(), nulls=two)
    yield weight_of("texts as weights", ["1"], pa.string(), refused=True)


def _sessions() -> Iterator[Odd]:
    case = partial(odd, "session")
    for kind in INTEGERS:
        yield case(f"{kind} as a session", [1, 0, 100], kind)
    yield case("sessions of 2^63 - 1", [2**63 - 1, -(2**63)], pa.int64())
    yield case("sessions from 2^63 on", [2**63, 2**64 - 1], pa.uint64())
    for kind in TEXTS:
        yield case(f"{kind} as a session", ["a", "12", ""], kind)
    yield case("bytes as a session", [b"\xff" * 16, b"\0" * 16], pa.binary(16))
    yield case("whole floats as a session", [1.0, 2.0], pa.float64())
    yield case("fractions as a session", [1.0, 2.5], pa.float64())
    yield case("a null session", [1, None], pa.int64())
    yield case("a null session with a value", [1, None], pa.int64(), nulls={"value": -1})
    for fill in (3, "a"):
        name = f"nothing but nulls as a session, of value {fill}"
        yield case(name, [None, None], pa.null(), nulls={"value": fill})
    yield case("nothing but nulls as a session", [None], pa.null())
    two = [decimal.Decimal(2), None]
    yield case("a null decimal as a session", two, pa.decimal128(9, 2), nulls={"value": 3})
    yield case("a null as a session wider than others", [1, None], pa.int8(), nulls={"value": 300})
    yield case("a null as a session below others", [1, None], pa.uint8(), nulls={"value": -1})
    yield case("a null text as a session", ["a", None], pa.string(), nulls={"value": "none"})
    yield case("a null session, dropped", ["a", None], pa.string(), nulls="drop")
    yield case("lists as a session", [[1]], pa.list_(pa.int64()), refused=True)
    for unit in ("s", "ms", "us", "ns"):
        yield case(f"times in {unit} as a session", [-2000, 0, 10**9], pa.timestamp(unit))
    yield case("days as a session", [-1, 0, 20000], pa.date32())
    yield case("days in ms as a session", [-86400000, 0, 86400000], pa.date64())
    yield case("times of a day as a session", [1], pa.time32("s"), refused=True)


def _times() -> Iterator[Odd]:
    case = partial(odd, "time")
    before = [-1, -1999, 0, 1_700_000_000]
    for unit in ("s", "ms", "us", "ns"):
        yield case(f"timestamps in {unit}", before, pa.timestamp(unit))
        yield case(f"timestamps in {unit} of a zone", before, pa.timestamp(unit, "+05:30"))
        yield case(f"integers in {unit}", before, pa.int64(), unit=unit)
        yield case(f"unsigned ones in {unit}", [0, 2**32 - 1], pa.uint32(), unit=unit)
    yield case("floats in s", [-0.5, 1.25, 1.7e9], pa.float64(), unit="s")
    yield case("decimals in s", [decimal.Decimal(7)], pa.decimal128(12, 0), unit="s")
    yield case("days", [-1, 0, 20000], pa.date32())
    yield case("days in ms", [-86400000, 0, 86400000], pa.date64())
    yield case("a null time", [1, None], pa.timestamp("ms"))
    yield case("a null time with a value", [1, None], pa.int64(), nulls={"value": 0})
    yield case("nothing but nulls as times", [None], pa.null(), nulls={"value": 5}, unit="s")
    yield case("nothing but nulls as times, dropped", [None], pa.null(), nulls="drop")
    yield case("a null time, dropped", [1, None], pa.timestamp("us"), nulls="drop")
    yield case("NaN as a time", [1.0, NAN], pa.float64())
    yield case("infinity as a time", [1.0, INF], pa.float64(), refused=True)
    yield case("2^63 - 1 s", [2**63 - 1], pa.int64(), unit="s")
    yield case("2^63 ms", [2**63], pa.uint64())
    yield case("the time of a day", [1], pa.time64("us"), refused=True)
    yield case("a text as a time", ["2020-01-01"], pa.string(), refused=True)
    yield case("bools as a time", [True], pa.bool_(), refused=True)
