"""Tables as a stranger's lake might hold them, drawn from a seed: a folder of Parquet files, a
registry that reads them, and what each row must become.

The reference knows the values from before they were written, so nothing of what reads them is
asked: `drawn_rows` says what one value becomes, as docs/schema.md states it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
from drawn_columns import (
    KEY_NUMBERS,
    KEY_TEXTS,
    Column,
    Value,
    a_number,
    are_numbers,
    dense_column,
    feature_column,
    key_column,
    label_column,
    number_column,
    partition_columns,
    schema_of,
    session_columns,
    time_column,
    weight_column,
)
from drawn_rows import becomes, combined, less_marks
from odd_tables import hash_of, holds_null, whole

NAMES = [
    *("item", "user id", "Größe", "a.b", "a.b.c", "価格", "list", "element", "list.element"),
    *("item.list.element", "key_value", "x%y", 'q"uote', "emoji🙂", "UPPER", "upper", "0", "-"),
    *("a/b", "weights", "null", "true", "tab\there", "new\nline", "`tick`", "{curly}", "a,b"),
]
CODECS = ["none", "snappy", "gzip", "zstd", "lz4", "brotli"]


@dataclass
class File:
    path: Path
    columns: dict[str, tuple[pa.DataType, list[Value]]]
    rows: int
    partitions: dict[str, str] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)


class DrawnTable:
    """A table of some files, and its rows as they must become."""

    def __init__(self, random: Random, folder: Path, columns: list[Column], most_rows: int) -> None:
        self.random, self.folder, self.columns = random, folder, columns
        self.partitions = [one for one in columns if one.partition]
        self.where: tuple[Column, str, Any] | None = None
        self.side: Side | None = None
        self.without: str | None = None
        count = random.choice([1, 1, 2, 3, 5])
        sizes = [random.choice([0, 1, 2, 7, 20, most_rows]) for _ in range(count)]
        if not sum(sizes):
            sizes[0] = 30
        self.given: Any = str(folder)
        self.layout = "partitions" if self.partitions else random.choice(["flat", "glob", "files"])
        self.files = [self._file(number, rows) for number, rows in enumerate(sizes)]
        self.files.sort(key=lambda one: str(one.path))
        for file in self.files:
            self.write(file)
        self._litter()
        if self.layout == "glob":
            self.given = f"{folder}/**/*.parquet"
        elif self.layout == "files":
            self.given = [str(one.path) for one in self.files]

    # The rows, as they are and as they must become.

    def rows(self) -> list[dict[str, Any]]:
        """Each row, by column; in order. What `drop` or `where` leaves out is not there."""
        found = []
        for file in self.files:
            for at in range(file.rows):
                row = self._row(file, at) if self._taken(file, at) else None
                if row is not None:
                    found.append(row)
        return found

    def _row(self, file: File, at: int) -> dict[str, Any] | None:
        made: dict[str, Any] = {}
        parts: list[int] = []
        for column in self.columns:
            if column.role in ("unread", "key") or column.name == self.without:
                continue
            kind, values = self.values(file, column)
            value = values[at]
            if column.options.get("nulls") == "drop" and holds_null(less_marks(value, column)):
                return None
            if column.role == "part":
                parts.append(hash_of(whole(value)))
            else:
                made[column.name] = becomes(column, kind, value)
        if parts:
            made["session_id"] = combined(parts)
        if self.side is not None:
            made = self.side.joined(made, self.values(file, self.side.key)[1][at])
        return made

    def _taken(self, file: File, at: int) -> bool:
        if self.where is None:
            return True
        column, sign, bound = self.where
        kind, values = self.values(file, column)
        value = values[at]
        if value is None:
            return False
        assert not pa.types.is_nested(kind)
        return {">=": value >= bound, "<": value < bound, "!=": value != bound}[sign]

    def choose(self) -> str | None:
        """A `where` by a column whose values compare as numbers in every file."""
        if self.random.random() > 0.25:
            return None
        fitting = [
            one for one in self.columns
            if one.role in ("feature", "dense", "label", "unread", "number") and not one.may_lack
            and "width" not in one.options and not one.options.get("scored")
            and not {"`", "\n", "\t"} & {*one.name}
            and all(
                are_numbers(self.values(file, one)[0]) and not pa.types.is_boolean(
                    self.values(file, one)[0]) for file in self.files
            )
        ]  # fmt: skip
        if not fitting:
            return None
        column = self.random.choice(fitting)
        values = [one for file in self.files for one in self.values(file, column)[1]]
        values = [one for one in values if one is not None and not isinstance(one, str)]
        values = [one for one in values if abs(one) < 2**63] or [0]  # NaN is neither
        bound = self.random.choice(values)
        kinds = [self.values(file, column)[0] for file in self.files]
        floats = all(map(pa.types.is_floating, kinds))
        bound = float(bound) if floats else int(bound)
        self.where = column, self.random.choice([">=", "<", "!="]), bound
        return f"`{column.name}` {self.where[1]} {bound!r}"

    def values(self, file: File, column: Column) -> tuple[pa.DataType, list[Value]]:
        if column.name in file.columns:
            return file.columns[column.name]
        if column.partition:
            text = file.partitions[column.name]
            texts = [one.partitions[column.name] for one in self.files]
            whole_numbers = all(re.fullmatch("-?(0|[1-9][0-9]*)", one) for one in texts)
            value: Any = int(text) if whole_numbers else text
            return (pa.int64() if whole_numbers else pa.string()), [value] * file.rows
        return pa.null(), [None] * file.rows

    # How it is made.

    def _file(self, number: int, rows: int) -> File:
        random = self.random
        folder = self.folder
        partitions = {}
        if self.layout == "glob":
            folder = folder / random.choice(["one", "two", "deep/er"])
        for column in self.partitions:
            value = column.draw(random, pa.int64())
            partitions[column.name] = str(value)
            folder = folder / f"{quote(column.name, safe='')}={quote(str(value), safe='')}"
        file = File(folder / f"part-{number:03}.parquet", {}, rows, partitions)
        for column in random.sample(self.columns, len(self.columns)):
            if column.partition or (column.may_lack and number % 3 == 1):
                continue
            kind, values = self._column(column, rows)
            file.columns[column.name] = kind, values
        if random.random() < 0.3:
            file.columns[f"more {number}"] = pa.string(), [str(at) for at in range(rows)]
        if random.random() < 0.2:
            kind = pa.struct([("b", pa.int32()), ("c", pa.list_(pa.string()))])
            values = [None if at % 3 else {"b": at, "c": ["x"] * (at % 2)} for at in range(rows)]
            file.columns["a"] = kind, values
        file.options = self._options()
        return file

    def _column(self, column: Column, rows: int) -> tuple[pa.DataType, list[Value]]:
        random = self.random
        element = random.choice(column.types)
        if column.nulls and random.random() < 0.05 and column.role != "session":
            typed = pa.null() if "width" in column.options else element
            return random.choice([pa.null(), typed]), [None] * rows
        width = column.options.get("width")
        if width is not None:
            kind = random.choice([pa.list_(element), pa.large_list(element)])
            kind = random.choice([kind, pa.list_(element, width)])
            each = lambda: [self.one(column, element) for _ in range(width)]  # noqa: E731
        elif column.options.get("scored"):
            kind = element
            each = lambda: self.pairs(column, element)  # noqa: E731
        elif column.lists and random.random() < 0.75:
            makes = [pa.list_, pa.large_list, pa.list_view, pa.large_list_view]
            width = random.choice([None, None, None, 1, 3])
            least, longest = 0, random.choice([1, 3, 9])
            if column.role == "number":
                width, least, longest = random.choice([None, 1]), 1, 1
            kind = pa.list_(element, width) if width else random.choice(makes)(element)
            each = lambda: [  # noqa: E731
                self.one(column, element) for _ in range(width or random.randint(least, longest))
            ]
        else:
            return element, self._repeated(lambda: self.one(column, element), rows, column)
        lacks = column.nulls / 2
        return kind, self._repeated(
            lambda: None if random.random() < lacks else each(), rows, column
        )

    def one(self, column: Column, kind: pa.DataType) -> Value:
        if self.random.random() < column.nulls:
            if pa.types.is_floating(kind) and self.random.random() < 0.5:
                return math.nan
            return None
        return column.draw(self.random, kind)

    def pairs(self, column: Column, kind: pa.DataType) -> list[Value]:
        random, pairs = self.random, []
        is_map = pa.types.is_map(kind)
        id_kind = kind.key_type if is_map else kind.value_type.field(0).type
        for _ in range(random.randint(0, 4)):
            one = column.draw(random, id_kind)
            weight: Any = random.choice([0.5, 2.0, -1.25, 3.0])
            weight_kind = kind.item_type if is_map else kind.value_type.field(1).type
            weight = int(weight) if pa.types.is_integer(weight_kind) else weight
            if random.random() < column.nulls:
                weight = None
            if is_map:
                pairs.append((one, weight))
                continue
            one = None if random.random() < column.nulls else one
            names = [kind.value_type.field(at).name for at in range(2)]
            pairs.append(dict(zip(names, (one, weight), strict=True)))
            if random.random() < column.nulls / 2:
                pairs[-1] = None
        return pairs

    def _repeated(self, draw: Callable[[], Value], rows: int, column: Column) -> list[Value]:
        """Values of which many are that of the row before, but for those that number rows."""
        share = 0.0 if column.role == "number" else self.random.choice([0, 0.3, 0.9])
        if column.role == "number":
            return [draw() for _ in range(rows)]
        values: list[Value] = []
        for _ in range(rows):
            values.append(values[-1] if values and self.random.random() < share else draw())
        return values

    def _options(self) -> dict[str, Any]:
        random = self.random
        return {
            "row_group_size": random.choice([1, 3, 8, 17, 1000]),
            "compression": random.choice(CODECS),
            "data_page_version": random.choice(["1.0", "2.0"]),
            "data_page_size": random.choice([1000, 1 << 20]),
            "use_dictionary": random.random() < 0.5,
            "write_statistics": random.random() < 0.7,
            "write_page_index": random.random() < 0.3,
            "write_page_checksum": random.random() < 0.3,
            "store_schema": random.random() < 0.7,
            "use_compliant_nested_type": random.random() < 0.7,
            "version": random.choice(["2.4", "2.6", "2.6"]),
            "encodings": random.random() < 0.3,
        }

    def write(self, file: File) -> None:
        file.path.parent.mkdir(parents=True, exist_ok=True)
        arrays = [pa.array(values, kind) for kind, values in file.columns.values()]
        table = pa.table(arrays, names=list(file.columns))
        options = dict(file.options)
        if options.pop("encodings"):
            options["use_dictionary"] = False
            options["column_encoding"] = encodings_of(table)
        with pq.ParquetWriter(
            file.path,
            table.schema,
            **{key: one for key, one in options.items() if key != "row_group_size"},
        ) as writer:
            writer.write_table(table, row_group_size=options["row_group_size"])

    def _litter(self) -> None:
        """What other programs leave in a folder."""
        first = self.files[0].path.parent
        if self.random.random() < 0.3 and self.layout != "files":
            (self.folder / "_SUCCESS").write_text("")
            (first / ".part-000.parquet.crc").write_bytes(b"crc")
            (first / "README.md").write_text("rows")
        if self.random.random() < 0.2 and self.layout in ("flat", "partitions"):
            (first / ".part-000.parquet").write_bytes(b"PAR1 half")
            (first / "_metadata.parquet").write_bytes(b"")


def encodings_of(table: pa.Table) -> dict[str, str]:
    """Encodings that fit flat columns."""
    made = {}
    for one in table.schema:
        kind = one.type
        if "." in one.name:
            continue
        if pa.types.is_floating(kind):
            made[one.name] = "BYTE_STREAM_SPLIT"
        elif kind in (pa.int32(), pa.int64(), pa.uint32(), pa.uint64()):
            made[one.name] = "DELTA_BINARY_PACKED"
        elif kind in (pa.string(), pa.binary(), pa.large_string()):
            made[one.name] = "DELTA_BYTE_ARRAY"
    return made


@dataclass
class Drawn:
    """A table, the registry that reads it, and what it must yield."""

    seed: int
    table: DrawnTable
    registry: dict[str, Any]
    world_size: int
    batch_size: int


class Side:
    """A table of features by a key of the drawn table, of which it lacks some keys."""

    def __init__(self, random: Random, table: DrawnTable, folder: Path) -> None:
        self.key = next(one for one in table.columns if one.role == "key")
        is_text = self.key.options["text"]
        keys = [f"k{n}" if is_text else n - 2 for n in range(12)]
        kinds = KEY_TEXTS if is_text else KEY_NUMBERS
        self.feature = feature_column(random, "of the side", folder)
        self.dense = dense_column(random, "dense of the side")
        for one in (self.feature, self.dense):
            if one.options["nulls"] in ("error", "drop"):
                one.options["nulls"] = {"value": 1}
        if self.feature.options.get("scored"):
            self.feature.options["nulls"] = "empty"
        self.rows: dict[Any, tuple[Any, Any]] = {}
        self.path = folder / "side"
        self.path.mkdir()
        random.shuffle(keys)
        element, number = random.choice(self.feature.types), random.choice(self.dense.types)
        width = self.dense.options.get("width")
        number = pa.list_(number) if width else number
        for part, some in enumerate((keys[:4], keys[4:10])):
            values = [column_of(table, self.feature, element) for _ in some]
            numbers = [
                [a_number(random, number.value_type) for _ in range(width)]
                if width
                else a_number(random, number)
                for _ in some
            ]
            columns = {
                self.key.name: pa.array(some, random.choice(kinds)),
                self.feature.name: pa.array(values, element),
                self.dense.name: pa.array(numbers, number),
            }
            pq.write_table(pa.table(columns), self.path / f"{part}.parquet", row_group_size=3)
            for key, value, one in zip(some, values, numbers, strict=True):
                self.rows[key] = (
                    becomes(self.feature, element, value),
                    becomes(self.dense, number, one),
                )
        self.nothing = (
            becomes(self.feature, element, None),
            becomes(self.dense, number, None),
        )

    @property
    def config(self) -> dict[str, Any]:
        schema = schema_of([self.feature, self.dense])
        return {
            "table": str(self.path),
            "key": self.key.name,
            "sparse": schema["sparse"],
            "dense": schema["dense"],
        }

    def joined(self, row: dict[str, Any], key: Any) -> dict[str, Any]:
        feature, dense = self.rows.get(key, self.nothing)
        return {**row, self.feature.name: feature, self.dense.name: dense}


def column_of(table: DrawnTable, column: Column, kind: pa.DataType) -> Value:
    return table.pairs(column, kind) if column.options.get("scored") else table.one(column, kind)


def drawn(seed: int, folder: Path) -> Drawn:
    random = Random(seed)
    names = random.sample(NAMES, len(NAMES))
    columns = [number_column(random, names.pop())]
    columns += [feature_column(random, names.pop(), folder) for _ in range(random.randint(0, 4))]
    columns += [dense_column(random, names.pop()) for _ in range(random.randint(0, 3))]
    kinds = random.choice([["click"], ["click"], ["regression"], ["click", "graded"]])
    columns += [label_column(random, names.pop(), kind) for kind in kinds]
    if random.random() < 0.3:
        columns.append(weight_column(random, names.pop()))
    if random.random() < 0.6:
        columns += session_columns(random, names)
    if random.random() < 0.5:
        columns.append(time_column(random, names.pop()))
    if random.random() < 0.15:
        columns.append(key_column(random, names.pop()))
    if random.random() < 0.25:
        columns += partition_columns(random, names)
    absent = []
    for one in columns:
        fills = one.options.get("nulls") in ("empty",) or isinstance(one.options.get("nulls"), dict)
        if (
            one.role in ("feature", "dense")
            and not one.partition
            and fills
            and (random.random() < 0.2)
        ):
            one.may_lack = True
            absent.append(one.name)
    train = folder / random.choice(["train", "tr ain", "train.parquet", "träin"])
    table = DrawnTable(random, train, columns, random.choice([40, 120]))
    registry = registry_of(random, table, folder)
    table.without = registry["dataset"].get("without")
    if any(one.role == "key" for one in columns):
        table.side = Side(random, table, folder)
        registry["dataset"]["join"] = [table.side.config]
    if (where := table.choose()) is not None:
        registry["dataset"]["where"] = where
    lacking = [
        name for name in absent
        if any(name not in file.columns for file in table.files)
        and any(name in file.columns for file in table.files)
    ]  # fmt: skip
    if absent and len(lacking) == len(absent):
        registry["dataset"]["absent"] = lacking
    elif absent:  # a file that lacks it may be the only one: write them all
        for one in columns:
            one.may_lack = False
        (folder / "again").mkdir()
        return drawn(seed + 10**6, folder / "again")
    return Drawn(
        seed=seed,
        table=table,
        registry=registry,
        world_size=random.choice([1, 2, 3]),
        batch_size=registry["train"]["batch_size"],
    )


def registry_of(random: Random, table: DrawnTable, folder: Path) -> dict[str, Any]:
    columns = table.columns
    session = any(one.role in ("session", "part") for one in columns)
    reader: dict[str, Any] = {
        "use": "local",
        "shuffle": random.random() < 0.7,
        "window": random.choice([0, 1, 2, 5]),
        "tail": random.choice(["drop", "pad", "pad"]),
        "prefetch": random.random() < 0.5,
    }
    registry: dict[str, Any] = {
        "plugins": ["recd_dlrm", "recd_dedup", "recd_dsi"],
        "folder": str(folder / "made"),
        "dataset": {
            "use": "parquet",
            "train": table.given,
            "test": table.given,
            "schema": schema_of(columns),
        },
        "reader": reader,
        "train": {"batch_size": random.choice([1, 5, 16]), "seed": 1, "device": "cpu"},
    }
    taken = [one.name for one in columns if one.role in ("feature", "dense") and not one.may_lack]
    if taken and random.random() < 0.2:
        registry["dataset"]["without"] = random.choice(taken)
    if session:
        reader["sessions"] = random.choice(["split", "together", "whole"])
        if random.random() < 0.4:
            registry["etl"] = [
                {
                    "use": "cluster_by_session",
                    "memory_gb": random.choice([1.0, 1e-5, 1e-4]),
                    "leave_out_repeats": random.random() < 0.5,
                }
            ]
            if random.random() < 0.3:
                use = random.choice(["downsample_sessions", "downsample_samples"])
                registry["etl"].append({"use": use, "keep": 0.6})
        if random.random() < 0.2:
            registry["dataset"]["sessions_share"] = random.choice([0.5, 0.9])
    left_out = registry["dataset"].get("without")
    columns = [one for one in columns if one.name != left_out]
    features = [one.name for one in columns if one.role in ("feature", "number")]
    random.shuffle(features)
    use = random.choice(["none", "exact", "partial"])
    if use != "none":
        cut = random.randint(1, len(features))
        group = features[:cut]
        groups = [group] if random.random() < 0.5 else [[one] for one in group]
        scored = {one.name for one in columns if one.options.get("scored")}
        if use == "partial":
            groups = [[one for one in some if one not in scored] for some in groups]
            groups = [some for some in groups if some]
        if groups:
            registry["dedup"] = {"use": use, "groups": groups}
        elif random.random() < 0.2:
            registry["dedup"] = {"use": use, "groups": "auto", "weigh": "bytes"}
    steps = [step_of(random, one) for one in columns if random.random() < 0.3]
    if steps := [one for one in steps if one is not None]:
        registry["preprocess"] = steps
    return registry


def step_of(random: Random, column: Column) -> dict[str, Any] | None:
    """A transform of one column, of those that need no table of their own."""
    if column.role == "dense" and "width" not in column.options:
        return {"use": "clamp_dense", "features": [column.name], "low": -1.0, "high": 2.0}
    if column.role != "feature" or column.partition:
        return None
    use = random.choice(["first_x", "clamp", "positive_modulus", "map_id"])
    made: dict[str, Any] = {"use": use, "features": [column.name]}
    if use == "first_x":
        made["n"] = random.choice([0, 1, 2])
    elif use == "clamp":
        made |= {"low": 2, "high": 7}
    elif use == "positive_modulus":
        made["modulo"] = 3
    else:
        made |= {"ids": {1: 5, 7: 0}, "other": 4}
    return made
