"""Value tests: columns of odd types and names in Parquet, imported as they are read in place."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from imported_tables import recd, rows_both_ways, rows_of, schema_file
from strangers_files import text

from recd_plugins.data.importing.column_types import ColumnTypes
from recd_plugins.data.importing.proposing import feature_columns, leaks
from recd_plugins.data.importing.proposing.label_columns import answer_in
from recd_plugins.data.importing.proposing.proposal import propose
from recd_plugins.data.importing.reading import blocks
from recd_plugins.data.importing.schema_file import load_schema
from recd_plugins.data.importing.surveying.survey import survey
from recd_plugins.data.importing.table_files import foreign_files
from recd_plugins.data.table import Table
from recd_plugins.errors import DataError

ROWS = 60
IDS = [one % 7 for one in range(ROWS)]
LABEL = pa.array([one % 2 for one in range(ROWS)])
WORDS = [None if one % 5 == 0 else [f"w{one % 3}", None] for one in range(ROWS)]


def read(path: Path, *names: str) -> dict[str, list[Any]]:
    """Columns as an import reads them."""
    parts = [one.rows(names, ColumnTypes()) for one in blocks(foreign_files([path]), names)]
    found: dict[str, list[Any]] = pa.concat_tables(parts).to_pydict()
    return found


def test_fields_and_columns_whose_names_have_dots(tmp_path: Path) -> None:
    """A column `user.id` beside a field `id` of a struct `user`, and fields with dots, or that
    begin with what begins a path."""
    user = [{"id": one, "at.city": one + 1, "at": {"city": one + 2}} for one in range(ROWS)]
    odd = [{".id": one + 3, "[0]": one + 4, "": one + 5} for one in range(ROWS)]
    table = pa.table(
        {
            "clicked": LABEL,
            "user": user,
            "user.id": [one + 6 for one in range(ROWS)],
            "odd": odd,
            "a.b.c": [one + 7 for one in range(ROWS)],
        }
    )
    path = tmp_path / "a.parquet"
    pq.write_table(table, path, row_group_size=25)
    names = [one.name for one in survey(foreign_files([path])).columns]
    assert names == [
        "clicked", "user.id_2", "user.at.city", "user.at.city_2", "user.id", "odd..id", "odd.[0]",
        "odd.", "a.b.c",
    ]  # fmt: skip
    found = read(path, *names[1:])
    firsts = {name: column[0] for name, column in found.items()}
    assert [*firsts.values()] == [0, 1, 2, 6, 3, 4, 5, 7]
    assert all(one == [*range(one[0], one[0] + ROWS)] for one in found.values())


@pytest.mark.parametrize("kind", [pa.list_view(pa.string()), pa.large_list_view(pa.string())])
def test_lists_that_are_views_are_lists(tmp_path: Path, kind: pa.DataType) -> None:
    """Of one file; beside lists of another; and where rows are dropped."""
    (tmp_path / "in").mkdir()
    price = pa.array([None if one % 9 == 0 else one / 2 for one in range(ROWS)])
    for name, of in (("a", kind), ("b", pa.list_(pa.string()))):
        words = pa.array(WORDS, of)
        table = pa.table({"clicked": LABEL, "words": words, "price": price})
        pq.write_table(table, tmp_path / "in" / f"{name}.parquet")
    shown = json.loads(recd("data", "schema", tmp_path / "in", "--json"))
    assert [one["name"] for one in shown["schema"]["sparse"]] == ["words"]
    sparse = [{"name": "words", "num_ids": 2**40, "ids": "hash"}]
    whole = {"label": "clicked", "sparse": sparse}
    rows = rows_both_ways(tmp_path / "in", whole, tmp_path / "made")
    assert [len(row["words"]) for row in rows] == [int(one is not None) for one in WORDS] * 2
    left = schema_file(whole | {"dense": [{"name": "price", "nulls": "drop"}]}, tmp_path / "left")
    recd("data", "import", tmp_path / "in", tmp_path / "left", "--schema", left)
    made = rows_of(tmp_path / "left")["words"].to_pylist()
    assert made == [row["words"] for at, row in enumerate(rows) if at % ROWS % 9]


def test_uuids_and_texts_of_json_are_ids_by_their_values(tmp_path: Path) -> None:
    """In one file as such, in the next as the bytes and texts that they are."""
    (tmp_path / "in").mkdir()
    keys = [uuid.UUID(int=one << 100).bytes for one in IDS]
    notes = [json.dumps({"n": one}) for one in IDS]
    for name, of, note in (("a", pa.uuid(), pa.json_()), ("b", pa.binary(16), pa.string())):
        table = {
            "clicked": LABEL,
            "key": pa.array(keys, pa.binary(16)).cast(of),
            "note": pa.array(notes).cast(note),
            "keys": pa.array([[one] for one in keys], pa.list_(pa.binary(16))).cast(pa.list_(of)),
        }
        pq.write_table(pa.table(table), tmp_path / "in" / f"{name}.parquet")
    hashed = {"num_ids": 2**40, "ids": "hash"}
    sparse = [{"name": name, **hashed} for name in ("key", "note", "keys")]
    rows = rows_both_ways(tmp_path / "in", {"label": "clicked", "sparse": sparse}, tmp_path / "t")
    for name in ("key", "note"):
        by_value = {(one, row[name][0]) for one, row in zip(IDS * 2, rows, strict=True)}
        assert len(by_value) == len({one for _, one in by_value}) == 7
    assert [row["keys"] for row in rows] == [row["key"] for row in rows]
    shown = json.loads(recd("data", "schema", tmp_path / "in", "--json"))
    assert [one["name"] for one in shown["schema"]["sparse"]] == ["key", "keys"]
    assert "note: objects or lists as a program printed them" in "".join(shown["doubts"])


FIRST, LAST, STANDS, FILL = (1_600_000_000 + one for one in range(4))


@pytest.mark.parametrize("key", ["session_id", "timestamp"])
@pytest.mark.parametrize("own", ["empty", {"value": FILL}, "drop", "error"])
@pytest.mark.parametrize("whole", [{"value": STANDS}, "drop", None])
def test_a_column_of_a_key_and_a_feature_has_nulls_of_each(
    tmp_path: Path, key: str, own: Any, whole: Any
) -> None:
    """What the schema says of the session or the time, and what the entry says of the feature;
    either may leave the row out, and what an error advises may be written as it is."""
    table, file, made = tmp_path / "a.parquet", tmp_path / "made.yaml", tmp_path / "made"
    pq.write_table(pa.table({"label": [0, 1, 1], "c": [FIRST, None, LAST]}), table)
    entry = {"name": "c", "num_ids": 2_000_000_000, "nulls": own}
    schema: dict[str, Any] = {key: "c", "timestamp_unit": "s", "sparse": [entry]}
    if whole is not None:
        schema["nulls"] = {"c": whole}
    schema_file(schema, made)
    if "drop" not in (own, whole) and (whole is None or own == "error"):
        words = (table, "--schema", file)
        checked = " ".join(recd("data", "check", *words, fails=1).split())
        said = " ".join(recd("data", "import", *(table, made, *words[1:]), fails=2).split())
        assert ("`nulls: {c: {value: 0}}` or `nulls: {c: drop}` in" in checked) == (whole is None)
        assert ("`nulls: {c: {value: 0}}` or `{c: drop}`" in said) == (whole is None)
        schema["nulls"] = {"c": {"value": STANDS}}
        entry["nulls"] = {"value": FILL} if own == "error" else own
    unit = 1 if key == "session_id" else 1_000
    rows = [
        {"label": 0, "c_key": FIRST * unit, "c": [FIRST]},
        {"label": 1, "c_key": STANDS * unit, "c": [] if own == "empty" else [FILL]},
        {"label": 1, "c_key": LAST * unit, "c": [LAST]},
    ]
    if "drop" not in (own, whole):
        assert rows_both_ways(table, schema, made) == rows
        return
    assert "no problem" in recd("data", "check", table, "--schema", file)
    said = recd("data", "import", table, made, "--schema", file)
    assert "left out: 1 row without c\n" in said
    assert rows_of(made).to_pylist() == [rows[0], rows[2]]
    with pytest.raises(DataError, match="drops rows with nulls in c, "):
        Table.open(table, load_schema(file))


def test_nulls_of_a_part_of_a_session_that_is_a_feature_too(tmp_path: Path) -> None:
    """The session of a row without `c` is that of one whose `c` is the value; and it stays where a
    dataset is without the feature."""
    table = tmp_path / "a.parquet"
    columns = {"label": [0, 1, 1], "u": [1, 1, 2], "c": ["none", None, "x"]}
    pq.write_table(pa.table(columns), table)
    schema = {
        "session_id": ["u", "c"],
        "sparse": [{"name": "u", "num_ids": 9}, {"name": "c", "num_ids": 99, "ids": "hash"}],
        "nulls": {"c": {"value": "none"}},
    }
    first, second, third = rows_both_ways(table, schema, tmp_path / "made")
    assert first["session_id"] == second["session_id"] != third["session_id"]
    assert [len(one["c"]) for one in (first, second, third)] == [1, 0, 1]
    without = load_schema(tmp_path / "made.yaml").having(["u"])
    rows = Table.open(table, without)
    assert rows.read(rows.stripes[0])["session_id"].to_pylist()[1] == first["session_id"]


def test_nulls_among_folders_and_what_lies_beside_files(tmp_path: Path) -> None:
    """Labels of bools; marks, checksums and copies of attributes are no part of the table."""
    for day in ("1", "__HIVE_DEFAULT_PARTITION__"):
        folder = tmp_path / "in" / f"day={day}"
        folder.mkdir(parents=True)
        rows = {"clicked": LABEL.cast(pa.bool_()), "item": IDS}
        rows = rows if day == "1" else dict(reversed(rows.items()))
        pq.write_table(pa.table(rows), folder / "part.parquet")
        for name in ("_SUCCESS", "._part.parquet", ".part.parquet.crc", "_committed_1"):
            text(folder / name, "no rows")
    features = [{"name": "item", "num_ids": 9}, {"name": "day", "num_ids": 9}]
    schema = {"label": "clicked", "sparse": features}
    rows = rows_both_ways(tmp_path / "in", schema, tmp_path / "made")
    assert [row["day"] for row in rows] == [[1]] * ROWS + [[]] * ROWS
    assert [row["item"] for row in rows] == [[one] for one in IDS] * 2
    assert [row["clicked"] for row in rows] == LABEL.to_pylist() * 2


def test_each_of_many_columns_is_looked_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None is compared with all others, so that thousands of columns take seconds, not hours."""
    path, many = tmp_path / "wide.parquet", 300
    rows = {f"item_{one}_id": [row * one % 7 for row in range(50)] for one in range(1, many)}
    rows |= {f"empty_{one}": [None] * 50 for one in range(many)}  # these are left out
    pq.write_table(pa.table({"click": [0, 1] * 25, **rows}), path)
    made = asked = 0

    class Counted(feature_columns.SparseFeature):
        def __post_init__(self) -> None:
            nonlocal made
            made += 1

    def counted(column: Any) -> str:
        nonlocal asked
        asked += 1
        return answer_in(column)

    monkeypatch.setattr(feature_columns, "SparseFeature", Counted)
    monkeypatch.setattr(leaks, "answer_in", counted)
    found = survey(foreign_files([path]))
    assert len(propose(found).schema["sparse"]) > many // 2
    assert made <= many
    assert asked <= 2 * many


def test_a_terminal_obeys_no_columns_name(tmp_path: Path) -> None:
    """Each doubt, note and problem stays on its line, be its column called as it may."""
    odd = "item\nerror: \x1b[2J"
    rows = {
        odd: [f"The long story of a film, which is number {one}" for one in range(400)],
        "user": [one % 40 for one in range(400)],
        "clicked": [one % 2 for one in range(400)],
    }
    path, to = tmp_path / "clicks.parquet", tmp_path / "table"
    pq.write_table(pa.table(rows), path)
    printed = recd("data", "import", path, to)
    schema = {"label": "clicked", "sparse": [{"name": odd, "num_ids": 3}]}
    printed += recd("data", "check", path, "--schema", schema_file(schema, to), fails=1)
    assert printed.count(r"item\nerror: \x1b[2J") >= 2
    assert all(one.isprintable() for one in printed.splitlines())
