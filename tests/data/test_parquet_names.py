"""Property tests: a Parquet footer under other names is that of the file, as if it had been written
with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recd_plugins.data.parquet.footer import Footer, read_footer
from recd_plugins.data.parquet.footer_names import StoredColumn, columns_of, renamed
from recd_plugins.data.parquet.table_names import TableColumn, TableNames

NAMES = st.text(min_size=1, max_size=300).filter(lambda name: "\0" not in name and _is_utf8(name))


def _is_utf8(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def deep(levels: int) -> pa.DataType:
    kind: pa.DataType = pa.int64()
    for level in range(levels):
        kind = pa.struct([(f"level_{level}", kind)])
    return kind


def nested(levels: int) -> Any:
    value: Any = 7
    for level in range(levels):
        value = {f"level_{level}": value}
    return value


COLUMNS: dict[str, Any] = {
    "label": [0, 1, None],
    "item": pa.array([5, 6, 7], pa.int32()),
    "name": ["a", "b", "ü"],
    "score": [0.5, float("nan"), None],
    "seen": [[1, 2], [], None],
    "user": [{"city": "Bonn", "home": {"zip": 1}}, None, {"city": None, "home": None}],
    "cart": [[{"id": 1, "weight": 0.5}], [], None],
    "views": pa.array([[(1, "a")], [], None], pa.map_(pa.int64(), pa.string())),
    "deep": pa.array([nested(16)] * 3, deep(16)),
}


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two row groups, with all that a footer may hold."""
    made: Path = tmp_path_factory.mktemp("names") / "a.parquet"
    rows = pa.table(COLUMNS)
    pq.write_table(
        pa.concat_tables([rows, rows]),
        made,
        row_group_size=3,
        write_page_index=True,
        write_page_checksum=True,
        sorting_columns=[pq.SortingColumn(1)],
        store_schema=True,
    )
    return made


def every(columns: list[StoredColumn]) -> list[StoredColumn]:
    return [one for column in columns for one in column.every()]


def test_the_names_of_a_footer_are_those_of_its_schema(file: Path) -> None:
    footer = read_footer(file)
    columns = columns_of(footer.raw)
    assert [one.name for one in columns] == [*COLUMNS]
    schema = footer.metadata.schema
    paths = {schema.column(at).path for at in range(footer.metadata.num_columns)}
    leaves = [one for one in every(columns) if not one.within]
    assert [one.name for one in leaves] == [
        schema.column(at).name for at in range(footer.metadata.num_columns)
    ]
    assert "user.home.zip" in paths
    (seen,) = (one for one in columns if one.name == "seen")
    assert [one.repeated for one in seen.every()] == [False, True, False]


@given(data=st.data())
def test_a_footer_under_other_names_has_these_alone(file: Path, data: st.DataObject) -> None:
    """Types, statistics, places and rows stay; names and paths are the new ones."""
    footer = read_footer(file)
    columns = columns_of(footer.raw)
    some = data.draw(st.lists(st.sampled_from([one.at for one in every(columns)]), unique=True))
    names = {at: data.draw(NAMES) for at in some}
    raw = renamed(footer.raw, columns, names)
    found = Footer.of(raw).metadata
    now = every(columns_of(raw))
    before = every(columns)
    assert [one.name for one in now] == [names.get(one.at, one.name) for one in before]
    assert [(one.number, one.repeated) for one in now] == [
        (one.number, one.repeated) for one in before
    ]
    assert (found.num_rows, found.num_columns) == (6, footer.metadata.num_columns)
    for group in range(2):
        for at in range(found.num_columns):
            new, old = (one.row_group(group).column(at) for one in (found, footer.metadata))
            assert new.path_in_schema == found.schema.column(at).path
            assert new.statistics == old.statistics or old.statistics is None
            assert (new.data_page_offset, new.total_compressed_size) == (
                old.data_page_offset, old.total_compressed_size,
            )  # fmt: skip
    rows = pq.ParquetFile(file, metadata=found).read()
    assert rows.columns[1:3] == pq.ParquetFile(file).read().columns[1:3]
    if not names:
        assert raw == footer.raw


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        # A root that has 3 columns; a list, and a map, of nearly 2^62 booleans.
        (b"\x15\x02\x19\x1c\x48\x01a\x15\x06\x00\x00", "fewer columns than it says"),
        (b"\x19\xf1" + b"\xff" * 8 + b"\x3f\x00", "4611686018427387903 items, and 1 bytes"),
        (b"\x1b" + b"\xff" * 8 + b"\x3f\x11\x00", "4611686018427387903 items, and 2 bytes"),
    ],
)
def test_a_footer_that_claims_more_than_it_has_is_refused_at_once(raw: bytes, says: str) -> None:
    with pytest.raises((IndexError, ValueError), match=says):
        columns_of(raw)


def test_rows_are_read_under_the_new_names(file: Path) -> None:
    """Nested ones too, as if they had been written so."""
    footer = read_footer(file)
    columns = columns_of(footer.raw)
    new = {"city": "town", "user": "person", "weight": "w", "item": "label", "label": "item"}
    names = {one.at: new[one.name] for one in every(columns) if one.name in new}
    with pq.ParquetFile(
        file, metadata=Footer.of(renamed(footer.raw, columns, names)).metadata
    ) as opened:
        rows = opened.read_row_group(0)
        assert opened.read_row_group(1, ["label"]).to_pydict() == {"label": [5, 6, 7]}
    expected = {new.get(name, name): values for name, values in COLUMNS.items()}
    expected["person"] = [
        {"town": "Bonn", "home": {"zip": 1}}, None, {"town": None, "home": None},
    ]  # fmt: skip
    expected["cart"] = [[{"id": 1, "w": 0.5}], [], None]
    assert rows.drop_columns("score").equals(
        pa.table(expected).drop_columns("score").cast(rows.drop_columns("score").schema)
    )


def test_lists_of_older_writers_have_their_elements(tmp_path: Path) -> None:
    """In two levels, where the repeated group is the element, by its name or as it has several
    fields."""
    file = tmp_path / "a.parquet"
    rows = pa.table({"cart": [[{"col-1": 1, "col-2": 2}]], "seen": [[5]]})
    pq.write_table(rows, file, store_schema=False)
    whole = read_footer(file)
    columns = columns_of(whole.raw)
    (group,) = columns[1].within
    two = {group.at: "array", group.within[0].at: "col-3"}
    older = Footer.of(renamed(whole.raw, columns, two))
    kind = older.metadata.schema.to_arrow_schema().field("seen").type
    assert kind.value_type == pa.struct([("col-3", pa.int64())])
    element = TableColumn(
        name="element",
        kind="struct",
        within=(
            TableColumn(name="id", stored=("col-1",)), TableColumn(name="count", stored=("col-2",)),
        ),
    )  # fmt: skip
    one = TableColumn(
        name="element", kind="struct", within=(TableColumn(name="id", stored=("col-3",)),)
    )
    names = TableNames(
        columns=(
            TableColumn(name="cart", stored=("cart",), kind="list", within=(element,)),
            TableColumn(name="seen", stored=("seen",), kind="list", within=(one,)),
        ),
        numbers=False,
        names="always",
        cure="",
    )
    footer = older.under(names, file)
    found = pq.ParquetFile(file, metadata=footer.metadata).read().to_pylist()
    assert found == [{"cart": [{"id": 1, "count": 2}], "seen": [{"id": 5}]}]
    assert names.has(("cart", "[]", "id"), "[]")
    assert not names.has(("cart", "[]", "col-1"), "[]")
