"""Columns of a drawn table: their roles, the types that files have them in, and their values."""

from __future__ import annotations

import decimal
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from odd_tables import INTEGERS, Odd

RARE = {"scored": 0.12, "vocabulary": 0.15, "mixed": 0.15, "texts": 0.2, "wide": 0.15}
TEXTS = ["a", "", "12", "-7", "007", "ä" * 9, "x" * 40, "18446744073709551616", "None", "0", "50"]
EPOCH = 1_700_000_000
FLOATS = [pa.float16(), pa.float32(), pa.float64()]
DECIMALS = [pa.decimal128(20, 0), pa.decimal256(40, 0), pa.decimal128(9, 2), pa.decimal32(7, 0)]
DECIMALS += [pa.decimal64(15, 1)]
TEXT_TYPES = [pa.string(), pa.large_string(), pa.string_view(), pa.binary(), pa.large_binary()]
TEXT_TYPES += [pa.binary_view(), pa.dictionary(pa.int32(), pa.string())]
TEXT_TYPES += [pa.dictionary(pa.int8(), pa.large_string())]
NUMBER_DICTIONARY = pa.dictionary(pa.int16(), pa.int64())
Value = Any
Draw = Callable[[Random, pa.DataType], Value]


@dataclass
class Column:
    """A column throughout the files of a table."""

    name: str
    role: str
    options: dict[str, Any]
    """Of its entry in the schema."""
    draw: Draw
    """A value of it in a file where it is of a type; None where that is a null."""
    types: list[pa.DataType]
    lists: bool = False
    """Whether it may hold lists, in some files or in all."""
    nulls: float = 0.0
    """The share of nulls, where they may be."""
    partition: bool = False
    may_lack: bool = False
    plain: bool = False
    """Whether the schema has no entry of its own for it, so that `nulls` says it."""

    def odd(self, kind: pa.DataType) -> Odd:
        return Odd(name=self.name, role=self.role, values=(), type=kind, options=self.options)


def are_numbers(kind: pa.DataType) -> bool:
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)


def number_column(random: Random, name: str) -> Column:
    """A feature that numbers the rows: by it a batch's samples are known."""
    numbers = iter(range(10**9))
    low = random.choice([0, 0, 2**31 - 5, 2**40])
    types = [pa.int64(), pa.uint64(), pa.float64(), pa.decimal128(20, 0)]
    types += [pa.int32(), pa.uint32()] if low < 2**31 - 5 else []
    types += [pa.uint32()] if low < 2**40 else []
    options = {"num_ids": low + random.choice([10**6, 2**33])}
    return Column(
        name, "number", options, lambda r, kind: as_kind(low + next(numbers), kind), types, True
    )


def whole(many: int, first: int = 0) -> Draw:
    """One of so many whole numbers."""
    return lambda r, kind: as_kind(first + r.randrange(many), kind)


def one_of(values: Sequence[Value]) -> Draw:
    return lambda r, kind: r.choice(values)


def as_kind(value: int, kind: pa.DataType) -> Value:
    """A whole number as Python has it in a column of a type."""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if pa.types.is_floating(kind):
        return float(value)
    if pa.types.is_decimal(kind):
        return decimal.Decimal(value)
    if pa.types.is_boolean(kind):
        return bool(value)
    return value


def feature_column(random: Random, name: str, folder: Path) -> Column:
    options: dict[str, Any] = {}
    kind = random.choices(["plain", *RARE], [1.2 - sum(RARE.values()) + 0.3, *RARE.values()], k=1)[
        0
    ]
    nulls = random.choice([0, 0, 0.2])
    options["nulls"] = random.choice(["empty", "empty", {"value": 7}])
    if not nulls and random.random() < 0.5:
        options["nulls"] = "error"
    if nulls and random.random() < 0.15:
        options["nulls"] = "drop"
    lists = random.random() < 0.7
    column = Column(name, "feature", options, lambda r, kind: None, [], lists, nulls)
    if kind == "plain":
        most = random.choice([2, 50, 100, 128])
        options["num_ids"] = max(8, most)
        column.types = [*INTEGERS, *FLOATS, *DECIMALS, NUMBER_DICTIONARY]
        column.types += [pa.bool_()] if most == 2 else []
        column.draw = lambda r, kind: as_kind(r.randrange(most), kind)
        if random.random() < 0.25:
            options["missing"] = random.choice([[0], [-1, 1], [3]])
            if -1 in options["missing"]:
                column.types = [one for one in column.types if not pa.types.is_boolean(one)]
                column.draw = lambda r, kind: as_kind(
                    r.randrange(most) if unsigned(kind) or r.random() < 0.8 else -1, kind
                )
            if options["nulls"] == "error":
                options["nulls"] = "empty"
    elif kind == "wide":
        options |= {"ids": "hash", "num_ids": random.choice([1, 10, 2**20, 2**40])}
        options |= {"hash_seed": 3} if random.random() < 0.3 else {}
        column.types = [pa.int64(), pa.uint64(), pa.int32(), pa.float64(), pa.decimal128(20, 0)]
        column.types += [NUMBER_DICTIONARY]
        column.draw = wide_number
    elif kind == "texts":
        options |= {"ids": "hash", "num_ids": random.choice([10, 2**20])}
        column.types = [*TEXT_TYPES, pa.binary(4)]
        column.draw = a_text
        if random.random() < 0.3:
            options["missing"] = random.choice([["a"], ["12", ""], ["None"]])
            if options["nulls"] == "error":
                options["nulls"] = "empty"
    elif kind == "mixed":
        options |= {"ids": "hash", "num_ids": random.choice([10, 2**20])}
        column.types = [*TEXT_TYPES, *INTEGERS, pa.float32(), pa.decimal64(15, 1)]
        column.draw = lambda r, kind: (
            a_text(r, kind) if is_text(kind) else as_kind(r.randrange(100), kind)
        )
    elif kind == "vocabulary":
        known = random.sample(["a", "", "12", "-7", "ä" * 9, "0", "50", "007", "3"], 6)
        others = random.choice([1, 3])
        path = folder / f"vocabulary-{len(list(folder.iterdir()))}.parquet"
        values = pa.table({"value": known, "count": list(range(6, 0, -1))})
        meta = {b"recd_vocabulary": json.dumps({"others": others}).encode()}
        pq.write_table(values.replace_schema_metadata(meta), path)
        options |= {"ids": "vocabulary", "num_ids": 20, "vocabulary": str(path)}
        options |= {"known": known, "others": others}
        column.types = [*TEXT_TYPES[:3], *INTEGERS, pa.float64()]
        column.draw = lambda r, kind: (
            a_text(r, kind) if is_text(kind) else as_kind(r.randrange(60), kind)
        )
    else:
        options |= {"scored": True, "num_ids": 100}
        column.types = []
        for ids in (pa.int32(), pa.uint8(), pa.int64(), pa.float32()):
            for weight in (pa.float32(), pa.float64(), pa.int8()):
                pair = pa.struct([("id", ids), ("weight", weight)])
                column.types += [pa.list_(pair), pa.large_list(pair), pa.map_(ids, weight)]
        column.draw = lambda r, kind: as_kind(r.randrange(100), kind)
        column.lists = False
    if random.random() < 0.2:
        options["sequence"] = True
    if random.random() < 0.3:
        options["kind"] = "user"
    if "." in name:
        options["table"] = "of_a_dotted"
    return column


def unsigned(kind: pa.DataType) -> bool:
    return pa.types.is_unsigned_integer(kind) or pa.types.is_boolean(kind)


def wide_number(random: Random, kind: pa.DataType) -> Value:
    kind_of = kind.value_type if pa.types.is_dictionary(kind) else kind
    if kind_of == pa.uint64():
        return random.choice([0, 1, 2**63, 2**64 - 1, 2**31])
    if kind_of == pa.int32():
        return random.choice([0, -1, -(2**31), 2**31 - 1])
    if pa.types.is_floating(kind_of):
        return random.choice([0.0, -1.0, 2.0**53, -(2.0**53), -0.0])
    if pa.types.is_decimal(kind_of):
        return decimal.Decimal(random.choice([0, -1, 2**63, 5, -(2**62)][:: random.choice([1, 1])]))
    return random.choice([0, -1, 2**63 - 1, -(2**63), 2**31])


def is_text(kind: pa.DataType) -> bool:
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return any(test(kind) for test in (
        pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view,
        pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view,
        pa.types.is_fixed_size_binary,
    ))  # fmt: skip


def a_text(random: Random, kind: pa.DataType) -> Value:
    inner = kind.value_type if pa.types.is_dictionary(kind) else kind
    if pa.types.is_fixed_size_binary(inner):
        return random.choice([b"\0\1\2\xff", b"1234", b"abcd"])
    text = random.choice(TEXTS)
    is_string = any(test(inner) for test in (
        pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view))  # fmt: skip
    return text if is_string else random.choice([text.encode(), text.encode(), b"\xff\0"])


def dense_column(random: Random, name: str) -> Column:
    nulls = random.choice([0, 0, 0.2])
    options: dict[str, Any] = {"nulls": "error"}
    if nulls:
        options["nulls"] = random.choice([{"value": 0}, {"value": -1.5}, {"value": 2}, "drop"])
    if random.random() < 0.3:
        options["width"] = random.choice([1, 3])
    if random.random() < 0.2:
        options["scale"] = "log"
    types = [*INTEGERS, *FLOATS, pa.bool_(), pa.decimal128(9, 2), pa.decimal32(7, 0)]
    if "width" not in options:
        types += [pa.dictionary(pa.int8(), pa.float64()), pa.dictionary(pa.int32(), pa.float32())]
    return Column(name, "dense", options, a_number, types, nulls=nulls)


def a_number(random: Random, kind: pa.DataType) -> Value:
    inner = kind.value_type if pa.types.is_dictionary(kind) else kind
    if pa.types.is_boolean(inner):
        return random.random() < 0.5
    if pa.types.is_decimal(inner):
        return decimal.Decimal(random.choice(["0", "1", "7", "-3"]))
    if pa.types.is_integer(inner):
        return random.choice([0, 1, 100, 7] + ([] if unsigned(inner) else [-5]))
    return random.choice([0.0, 0.5, -1.25, 3.0, 60000.0])


def label_column(random: Random, name: str, kind: str) -> Column:
    options: dict[str, Any] = {"kind": kind}
    nulls = random.choice([0, 0, 0, 0.1])
    if kind == "graded":
        options["grades"] = 5
    options["nulls"] = random.choice(["empty", {"value": 1}, "drop"]) if nulls else "error"
    types = [*INTEGERS, *FLOATS, pa.decimal128(9, 2)]
    types += [pa.bool_()] if kind == "click" else []

    def draw(random: Random, type_: pa.DataType) -> Value:
        if kind == "regression":
            return a_number(random, type_)
        value = random.randrange(2 if kind == "click" else 5)
        if kind == "click" and pa.types.is_floating(type_) and random.random() < 0.2:
            return 0.25
        return as_kind(value, type_)

    return Column(name, "label", options, draw, types, nulls=nulls)


def weight_column(random: Random, name: str) -> Column:
    nulls = random.choice([0, 0.2])
    options: dict[str, Any] = {"nulls": random.choice([{"value": 2}, "drop"]) if nulls else "error"}
    types = [*INTEGERS, *FLOATS, pa.decimal128(9, 2)]

    def draw(random: Random, kind: pa.DataType) -> Value:
        return as_kind(random.choice([1, 2, 3]), kind)

    return Column(name, "weight", options, draw, types, nulls=nulls, plain=True)


def session_columns(random: Random, names: list[str]) -> list[Column]:
    """One, or several that make a session together."""
    if random.random() < 0.7:
        return [session_column(random, names.pop(), random.choice([1, 4, 30]))]
    numbers = [*INTEGERS, NUMBER_DICTIONARY, pa.decimal128(20, 0), pa.float64()]
    parts = [("part", numbers, whole(4)), ("part", TEXT_TYPES, a_text)]
    found = [
        Column(names.pop(), role, {"nulls": "error"}, draw, types, plain=True)
        for role, types, draw in parts
    ]
    return found if random.random() < 0.5 else found[::-1]


def session_column(random: Random, name: str, sessions: int) -> Column:
    which = random.choice(["small", "small", "wide", "texts", "unsigned", "floats"])
    options: dict[str, Any] = {}
    types: list[pa.DataType] = [*INTEGERS, NUMBER_DICTIONARY]
    draw = whole(sessions)
    if which == "wide":
        types = [pa.int64()]
        draw = one_of([-(2**63), 2**63 - 1, -1, 0, 5])
    elif which == "unsigned":
        types = [pa.uint64()]
        draw = one_of([0, 2**63, 2**64 - 1, 5])
    elif which == "texts":
        types = [*TEXT_TYPES, pa.binary(4)]
        draw = a_text
    elif which == "floats":
        types = [pa.float64(), pa.float32(), pa.decimal128(20, 0)]
    nulls = random.choice([0, 0, 0.1])
    options["nulls"] = "error"
    if nulls:
        options["nulls"] = "drop" if which == "texts" else random.choice([{"value": 3}, "drop"])
    return Column(name, "session", options, draw, types, nulls=nulls, plain=True)


def time_column(random: Random, name: str) -> Column:
    nulls = random.choice([0, 0, 0.1])
    options: dict[str, Any] = {"nulls": "drop" if nulls else "error"}
    which = random.choice(["timestamp", "timestamp", "unit", "date", "float"])
    near = random.choice([3, 1000, 10**6])
    if which == "timestamp":
        units = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
        zones = [None, "UTC", "+05:30", "America/New_York"]
        types = [pa.timestamp(unit, zone) for unit in list(units)[:3] for zone in zones]
        types += [pa.timestamp("ns")]

        def draw(r: Random, kind: pa.DataType) -> Value:
            return (r.choice([EPOCH, -5]) * 1000 + r.randrange(near)) * units[kind.unit] // 1000

    elif which == "unit":
        options["unit"] = random.choice(["s", "ms", "us", "ns"])
        types = [pa.int64(), pa.uint64(), pa.decimal128(20, 0)]
        draw = whole(near, first=EPOCH)
    elif which == "float":
        options["unit"] = "s"
        types = [pa.float64(), pa.int32(), pa.int64()]
        draw = whole(near, first=EPOCH)
    else:
        types = [pa.date32(), pa.date64()]

        def draw(r: Random, kind: pa.DataType) -> Value:
            day = r.randrange(20000, 20000 + min(near, 300))
            return day * (86400000 if kind == pa.date64() else 1)

    return Column(name, "time", options, draw, types, nulls=nulls, plain=True)


KEY_NUMBERS = [pa.int8(), pa.int32(), pa.int64(), NUMBER_DICTIONARY]
KEY_TEXTS = [pa.string(), pa.large_string(), pa.string_view(), TEXT_TYPES[6]]


def key_column(random: Random, name: str) -> Column:
    """The key of a side table, which is no feature; the drawn table has keys that it lacks."""
    text = random.random() < 0.5
    draw = one_of([f"k{number}" for number in range(14)]) if text else whole(14, first=-2)
    types = KEY_TEXTS if text else KEY_NUMBERS
    return Column(name, "key", {"text": text}, draw, types, nulls=random.choice([0, 0.2]))


def schema_of(columns: list[Column]) -> dict[str, Any]:
    """As registry.yaml says it."""
    schema: dict[str, Any] = {"session_id": None, "timestamp": None}
    nulls: dict[str, Any] = {}
    for one in columns:
        options = {
            key: value for key, value in one.options.items() if key not in ("known", "others")
        }
        if one.role in ("feature", "number"):
            schema.setdefault("sparse", []).append({"name": one.name, **options})
        elif one.role == "dense":
            schema.setdefault("dense", []).append({"name": one.name, **options})
        elif one.role == "label":
            schema.setdefault("labels", []).append({"name": one.name, **options})
        elif one.role == "weight":
            schema["sample_weight"] = one.name
        elif one.role == "session":
            schema["session_id"] = one.name
        elif one.role == "part":
            schema["session_id"] = [*(schema["session_id"] or ()), one.name]
        elif one.role == "time":
            schema["timestamp"] = one.name
            if "unit" in options:
                schema["timestamp_unit"] = options["unit"]
        if one.plain and options.get("nulls") != "error":
            nulls[one.name] = options["nulls"]
    if nulls:
        schema["nulls"] = nulls
    return schema


def partition_columns(random: Random, names: list[str]) -> list[Column]:
    found = []
    for _ in range(random.choice([1, 2])):
        which = random.choice(["feature", "dense", "unread", "text"])
        name = names.pop()
        if "/" in name or name == ".":
            name = "part of" + name.replace("/", " ")
        options: dict[str, Any] = {}
        draw = whole(3)
        if which == "feature":
            options = {"num_ids": 10}
        elif which == "text":
            options = {"num_ids": 10, "ids": "hash"}
            draw = one_of(["DE", "a b", "x=y", "ü/%", "7", "08"])
        elif which == "dense":
            options = {"nulls": "error"}
        if which in ("feature", "text") and "." in name:
            options["table"] = "of_a_dotted"
        role = "feature" if which == "text" else which
        found.append(Column(name, role, options, draw, [pa.int64()], partition=True))
    return found
