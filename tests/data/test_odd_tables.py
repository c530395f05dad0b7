"""Odd tables: each becomes the rows of a plain reference, or one error with file, column, cure."""

from __future__ import annotations

import gzip
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from odd_tables import Odd, Refused, odd_tables, reference, xxh64

from recd_plugins.config import parse
from recd_plugins.data.conform.rows import conform
from recd_plugins.data.foreign import ForeignSchema
from recd_plugins.data.table import Table
from recd_plugins.errors import DataError

CASES = list(odd_tables())


def read(path: Path, schema: ForeignSchema) -> list[dict[str, Any]]:
    """All rows, as whatever reads a table gets them."""
    if schema.drops:  # such a table is written before it is read
        return conform(pq.read_table(path), schema, str(path)).to_pylist()
    table = Table.open(path, schema)
    return [row for stripe in table.stripes for row in table.read(stripe).to_pylist()]


def alike(found: Any, right: Any) -> bool:
    if isinstance(right, float):
        return found == right or (math.isnan(found) and math.isnan(right))
    if isinstance(right, dict):
        return found.keys() == right.keys() and all(alike(found[key], right[key]) for key in right)
    if isinstance(right, list):
        return len(found) == len(right) and all(map(alike, found, right))
    return type(found) is type(right) and found == right


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.role}: {case.name}")
def test_a_table_is_read_right_or_refused(case: Odd, tmp_path: Path) -> None:
    schema = parse(ForeignSchema, case.schema, "dataset.schema")
    path = tmp_path / "odd.parquet"
    try:
        pq.write_table(case.table, path, row_group_size=2)
    except pa.ArrowNotImplementedError:  # Parquet has no such column: a chunk may
        path, rows = tmp_path, lambda: conform(case.table, schema, str(tmp_path)).to_pylist()
    else:
        rows = lambda: read(path, schema)  # noqa: E731
    try:
        right = reference(case)
    except Refused:
        with pytest.raises(DataError) as error:
            rows()
        message = str(error.value)
        assert str(path) in message
        assert "'odd'" in message
        assert message.count(". ") >= 1, f"no cure in {message}"
        return
    found = rows()
    assert alike(found, right), f"{found}\nbut\n{right}"


def test_there_are_enough_of_them() -> None:
    assert len(CASES) >= 150
    assert len({(case.role, case.name) for case in CASES}) == len(CASES)


def test_the_reference_hashes_by_the_specification() -> None:
    assert xxh64(b"") == 0xEF46DB3751D8E999
    assert xxh64(b"Nobody inspects the spammish repetition") == 0xFBCEA83C8A378BF1


SCHEMA = {
    "session_id": None,
    "timestamp": None,
    "sparse": [{"name": "item", "num_ids": 100}],
}
ROWS = {"label": [0, 1], "item": [1, 2]}


def write(path: Path, columns: Any = ROWS, names: list[str] | None = None) -> None:
    table = pa.table(columns) if names is None else pa.table(columns, names=names)
    pq.write_table(table, path)


def cut(folder: Path, kept: int) -> None:
    write(folder / "a.parquet")
    data = (folder / "a.parquet").read_bytes()
    (folder / "a.parquet").write_bytes(data[:kept])


def damaged(folder: Path) -> None:
    """A page whose bytes are others."""
    write(folder / "a.parquet")
    data = bytearray((folder / "a.parquet").read_bytes())
    data[4:60] = bytes(56)
    (folder / "a.parquet").write_bytes(bytes(data))


def named_in_bytes(folder: Path) -> None:
    """A column whose name is not UTF-8."""
    columns = {"label": [0, 1], "item": [1, 2], "odd_name": [3, 4]}
    write(folder / "a.parquet", columns)
    path = folder / "a.parquet"
    path.write_bytes(path.read_bytes().replace(b"odd_name", b"odd_\xff\xfe\xfd\xfc"))


FILES: dict[str, tuple[Callable[[Path], None], str]] = {
    "an empty file": (lambda folder: (folder / "a.parquet").write_bytes(b""), "but empty"),
    "nothing but the magic": (lambda folder: (folder / "a.parquet").write_bytes(b"PAR1"), "cut"),
    "cut after 100 bytes": (lambda folder: cut(folder, 100), "cut short or damaged"),
    "without its last byte": (lambda folder: cut(folder, -1), "cut short or damaged"),
    "without its last 300 bytes": (lambda folder: cut(folder, -300), "cut short or damaged"),
    "CSV": (lambda folder: (folder / "a.parquet").write_text("a,b\n1,2\n"), "CSV.*data import"),
    "JSON lines": (lambda folder: (folder / "a.parquet").write_text('{"a": 1}\n'), "JSON"),
    "CSV in gzip": (
        lambda folder: (folder / "a.parquet").write_bytes(gzip.compress(b"a,b\n1,2\n")),
        "gzip",
    ),
    "a zip archive": (lambda folder: (folder / "a.parquet").write_bytes(b"PK\x03\x04" * 9), "zip"),
    "a web page": (lambda folder: (folder / "a.parquet").write_text("<html>no</html>"), "HTML"),
    "zeros": (lambda folder: (folder / "a.parquet").write_bytes(bytes(99)), "something else"),
    "a whole file and an empty one": (
        lambda folder: [write(folder / "a.parquet"), (folder / "b.parquet").write_bytes(b"")],
        r"b\.parquet: .*empty",
    ),
    "a column twice": (
        lambda folder: write(
            folder / "a.parquet", [[0, 1], [1, 2], [3, 4]], ["label", "item", "item"]
        ),
        "column 'item' is there 2 times",
    ),
    "a column that is not there": (
        lambda folder: write(folder / "a.parquet", {"label": [0, 1], "itm": [1, 2]}),
        "column 'item' is not there.*did you mean 'itm'",
    ),
    "a text beside an integer": (
        lambda folder: [
            write(folder / "a.parquet"),
            write(folder / "b.parquet", {"label": [0], "item": ["x"]}),
        ],
        r"b\.parquet: column 'item' is string.*ids: hash",
    ),
    "a column that the second file lacks": (
        lambda folder: [
            write(folder / "a.parquet"),
            write(folder / "b.parquet", {"label": [0], "other": ["x"]}),
        ],
        r"b\.parquet: column 'item' is not there",
    ),
    "a name that is not UTF-8": (lambda folder: named_in_bytes(folder), "not UTF-8"),
    "a damaged page": (damaged, r"a\.parquet"),
    "no file": (lambda folder: None, "holds no .parquet file"),
    "files in a folder below": (
        lambda folder: [(folder / "day").mkdir(), write(folder / "day" / "a.parquet")],
        r"\*\*/\*\.parquet",
    ),
}


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_is_none_is_said_to_be_what_it_is(name: str, tmp_path: Path) -> None:
    make, says = FILES[name]
    make(tmp_path)
    with pytest.raises(DataError, match=says) as error:
        read(tmp_path, parse(ForeignSchema, SCHEMA, "dataset.schema"))
    assert str(tmp_path) in str(error.value)


def test_files_whose_types_differ_are_one_table(tmp_path: Path) -> None:
    """Widths and kinds of integers, lists and scalars; of what is hashed texts too."""
    kinds = [pa.int8(), pa.uint64(), pa.list_(pa.int32()), pa.dictionary(pa.int8(), pa.int16())]
    for number, kind in enumerate(kinds):
        values = [[1], [2]] if pa.types.is_list(kind) else [1, 2]
        columns = {"item": pa.array(values, kind), "label": [0.0, 1.0], "more": [number] * 2}
        write(tmp_path / f"{number}.parquet", columns)
    none = pa.array([], pa.int8())
    write(tmp_path / "5.parquet", {"label": none, "item": none})
    rows = read(tmp_path, parse(ForeignSchema, SCHEMA, "dataset.schema"))
    assert rows == [{"label": 0.0, "item": [1]}, {"label": 1.0, "item": [2]}] * len(kinds)
    write(tmp_path / "9.parquet", {"label": [0, 1], "item": ["1", "2"]})
    hashed = {**SCHEMA, "sparse": [{"name": "item", "num_ids": 100, "ids": "hash"}]}
    found = read(tmp_path, parse(ForeignSchema, hashed, "dataset.schema"))
    assert found == found[:2] * (len(kinds) + 1)
    assert found[0]["item"] != found[1]["item"]


@pytest.mark.parametrize("name", ["item.id", "item id", "Größe", "", "item\nid", "label.x", "価格"])
def test_a_column_may_have_any_name(name: str, tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", {"label": [0, 1], name: [1, 2], f"{name}.b": [3, 4]})
    options = {**SCHEMA, "sparse": [{"name": name, "num_ids": 100, "table": "items"}]}
    rows = read(tmp_path, parse(ForeignSchema, options, "dataset.schema"))
    assert rows == [{"label": 0.0, name: [1]}, {"label": 1.0, name: [2]}]


def test_a_column_is_not_taken_for_a_field_of_a_struct(tmp_path: Path) -> None:
    """In a footer `item.id` may be a column, and id of a struct item."""
    structs = pa.array([{"id": 500}, {"id": -3}], pa.struct([("id", pa.int64())]))
    options = {**SCHEMA, "sparse": [{"name": "item.id", "num_ids": 100, "table": "items"}]}
    for columns in ({"item.id": [1, 2], "item": structs}, {"item": structs, "item.id": [1, 2]}):
        write(tmp_path / "a.parquet", {"label": [0, 1], **columns})
        rows = read(tmp_path, parse(ForeignSchema, options, "dataset.schema"))
        assert rows == [{"label": 0.0, "item.id": [1]}, {"label": 1.0, "item.id": [2]}]


def test_a_field_of_a_struct_is_not_taken_for_a_partition(tmp_path: Path) -> None:
    structs = pa.array([{"id": 500}, {"id": -3}], pa.struct([("id", pa.int64())]))
    (tmp_path / "item.id=7").mkdir()
    write(tmp_path / "item.id=7" / "a.parquet", {"label": [0, 1], "item": structs})
    options = {**SCHEMA, "sparse": [{"name": "item.id", "num_ids": 100, "table": "items"}]}
    rows = read(tmp_path, parse(ForeignSchema, options, "dataset.schema"))
    assert rows == [{"label": 0.0, "item.id": [7]}, {"label": 1.0, "item.id": [7]}]


def test_files_that_are_hidden_are_none_of_a_table(tmp_path: Path) -> None:
    """As those that a writer has not ended yet, or that a file system keeps."""
    write(tmp_path / "a.parquet")
    for name in (".a.parquet", "_metadata.parquet", "._b.parquet"):
        (tmp_path / name).write_bytes(b"PAR1 half")
    rows = read(tmp_path, parse(ForeignSchema, SCHEMA, "dataset.schema"))
    assert rows == [{"label": 0.0, "item": [1]}, {"label": 1.0, "item": [2]}]


def test_a_column_twice_does_not_matter_where_nobody_reads_it(tmp_path: Path) -> None:
    names = ["label", "item", "other", "other"]
    write(tmp_path / "a.parquet", [[0, 1], [1, 2], [3, 4], [5, 6]], names)
    rows = read(tmp_path, parse(ForeignSchema, SCHEMA, "dataset.schema"))
    assert rows == [{"label": 0.0, "item": [1]}, {"label": 1.0, "item": [2]}]


def test_sessions_of_several_columns_differ_where_one_does(tmp_path: Path) -> None:
    columns = {"label": [0] * 5, "user": ["a", "a", "b", "b", "a"], "visit": [1, 2, 1, 2, 1]}
    write(tmp_path / "a.parquet", columns)
    options = {"session_id": ["user", "visit"], "timestamp": None}
    one = read(tmp_path, parse(ForeignSchema, options, "dataset.schema"))
    sessions = [row["session_id"] for row in one]
    assert len(set(sessions)) == 4
    assert sessions[0] == sessions[4]
    # h = XXH64(h) ^ part, from the first part on.
    first, part = xxh64(b"a"), xxh64((1).to_bytes(8, "little"))
    whole = xxh64(first.to_bytes(8, "little")) ^ part
    assert sessions[0] % 2**64 == whole
