"""Value tests: tables of Delta Lake whose files have other names for columns than the table, or are
known by numbers (`delta.columnMapping.mode`): read right in place and by an import, or refused."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from delta_tables import Action, added, commit, deleted, lists, metadata, protocol, struct
from imported_tables import recd, rows_both_ways, rows_of, schema_file

from recd_plugins.data.files.found import found_files
from recd_plugins.data.importing.schema_file import load_schema
from recd_plugins.data.layout import layout_of
from recd_plugins.data.parquet_tables import ParquetConfig, ParquetTables
from recd_plugins.data.pins import check_pins, write_pins
from recd_plugins.data.table import Table
from recd_plugins.errors import DataError

pytest.importorskip("deltalake", reason="needs the extra delta")

MAPPING = protocol("columnMapping")
SCHEMA: dict[str, Any] = {"label": "clicked", "sparse": [{"name": "item", "num_ids": 100}]}
CLICKS = {"clicked": "long", "item": "long"}
STORED = {"clicked": "col-1", "item": "col-2"}
NUMBERS = {"clicked": 1, "item": 2}


def mapped(
    columns: Mapping[str, Any], stored: Mapping[str, str], *partitions: str, mode: str = "name"
) -> Action:
    """What a log says of a table whose columns, and fields as `user.city`, have these names in its
    files; a column has the number that ends its stored name, as col-2, or that of its place."""
    described = metadata(dict(columns), *partitions, **{"delta.columnMapping.mode": mode})
    whole = json.loads(described["metaData"]["schemaString"])
    _map(whole, "", stored)
    described["metaData"]["schemaString"] = json.dumps(whole)
    return described


def _map(kind: Any, before: str, stored: Mapping[str, str]) -> None:
    if not isinstance(kind, dict):
        return
    for field in kind.get("fields", ()):
        path = before + field["name"]
        number = stored[path].rpartition("-")[2]
        field["metadata"] = {
            "delta.columnMapping.id": int(number)
            if number.isdigit()
            else 1 + [*stored].index(path),
            "delta.columnMapping.physicalName": stored[path],
        }
        _map(field["type"], f"{path}.", stored)
    for part in ("elementType", "keyType", "valueType"):
        _map(kind.get(part), before, stored)


def numbered(columns: Mapping[str, Any], numbers: Mapping[str, int]) -> pa.Table:
    """Columns that have these numbers in their file."""
    rows = pa.table(dict(columns))
    fields = [
        one.with_metadata({"PARQUET:field_id": str(numbers[one.name])})
        if one.name in numbers
        else one
        for one in rows.schema
    ]
    return rows.cast(pa.schema(fields))


def table_of(tmp_path: Path, described: Action, *files: Action) -> Path:
    return commit(tmp_path / "t", 0, MAPPING, described, *files)


def items(rows: list[dict[str, Any]], name: str = "item") -> list[int]:
    return sorted(one for row in rows for one in row[name])


def in_place(table: Path, schema: Mapping[str, Any], to: Path, **options: Any) -> pa.Table:
    """The rows that training reads where they are."""
    given = load_schema(schema_file(dict(schema), to))
    config = ParquetConfig(train=table, test=table, schema=given, **options)
    opened = ParquetTables(config).prepare(to / "out").train
    return pa.concat_tables([opened.read(stripe) for stripe in opened.stripes])


def test_columns_have_the_names_of_the_table(tmp_path: Path) -> None:
    file = added(tmp_path / "t", "a.parquet", {"col-1": [0, 1], "col-2": [1, 2]})
    table = table_of(tmp_path, mapped(CLICKS, STORED), file)
    assert items(rows_both_ways(table, SCHEMA, tmp_path / "made")) == [1, 2]
    shown = json.loads(recd("data", "schema", table, "--json"))
    assert "col-" not in json.dumps(shown)
    assert [one.name for one in layout_of(table).columns] == ["clicked", "item"]
    recd("data", "rewrite", table, tmp_path / "anew")
    assert pq.read_table(tmp_path / "anew").to_pydict() == {"clicked": [0, 1], "item": [1, 2]}


def test_numbers_tell_columns_whatever_files_call_them(tmp_path: Path) -> None:
    """In mode `id`: the names in files mean nothing, be they those of other columns."""
    rows = numbered({"item": [0, 1], "clicked": [1, 2]}, {"item": 1, "clicked": 2})
    file = added(tmp_path / "t", "a.parquet", rows)
    table = table_of(tmp_path, mapped(CLICKS, STORED, mode="id"), file)
    assert items(rows_both_ways(table, SCHEMA, tmp_path / "made")) == [1, 2]


@pytest.mark.parametrize("numbers", [{}, {"col-1": 1}])
def test_files_without_numbers_do_not_tell_them(tmp_path: Path, numbers: dict[str, int]) -> None:
    rows = numbered({"col-1": [0, 1], "col-2": [1, 2]}, numbers)
    file = added(tmp_path / "t", "a.parquet", rows)
    table = table_of(tmp_path, mapped(CLICKS, STORED, mode="id"), file)
    says = r"a\.parquet: has .*number.*field_id.*write\.parquet\(FOLDER\)"
    with pytest.raises(DataError, match=says):
        Table.open(table, load_schema(schema_file(SCHEMA, tmp_path / "made")))
    told = recd(
        "data", "import", table, tmp_path / "made", "--schema", tmp_path / "made.yaml", fails=2
    )
    assert "(field_id), by which its table identifies" in told


def test_a_mode_that_is_not_known_is_refused(tmp_path: Path) -> None:
    file = added(tmp_path / "t", "a.parquet", {"col-1": [0, 1], "col-2": [1, 2]})
    table = table_of(tmp_path, mapped(CLICKS, STORED, mode="place"), file)
    with pytest.raises(DataError, match=r"t: .*place"):
        found_files(table)


class TestSwapped:
    """Two columns that were renamed to each other's name: files have both names, for the other."""

    KINDS = {**CLICKS, "price": "long", "shop": "long"}  # noqa: RUF012
    STORED = {"clicked": "clicked", "item": "shop", "shop": "item", "price": "price"}  # noqa: RUF012
    SCHEMA: dict[str, Any] = {  # noqa: RUF012
        "label": "clicked",
        "dense": ["price"],
        "sparse": [{"name": "item", "num_ids": 100}, {"name": "shop", "num_ids": 10_000}],
    }

    def table(self, tmp_path: Path) -> Path:
        """`item` is below 100, and `shop` above 1,000."""
        files = []
        for name, first in (("a", 1), ("b", 11)):
            own = [*range(first, first + 10)]
            shops = [1000 + one for one in own]
            rows = {"clicked": [0, 1] * 5, "item": shops, "shop": own, "price": own[::-1]}
            files.append(added(tmp_path / "t", f"{name}.parquet", rows))
        return table_of(tmp_path, mapped(self.KINDS, self.STORED), *files)

    def test_each_has_its_own_values(self, tmp_path: Path) -> None:
        rows = rows_both_ways(self.table(tmp_path), self.SCHEMA, tmp_path / "made")
        assert [(row["item"], row["shop"]) for row in rows] == [
            ([one], [1000 + one]) for one in range(1, 21)
        ]

    def test_rows_are_chosen_by_the_columns_of_the_table(self, tmp_path: Path) -> None:
        """The statistics of a stripe are those of the column that the table means."""
        for where, left in (
            ("item >= 11", [*range(11, 21)]),
            ("shop <= 1003", [1, 2, 3]),
            ("item >= 1000", []),
        ):
            table = self.table(tmp_path / str(len(left)))
            if not left:
                with pytest.raises(DataError, match="none of its 20 rows is left"):
                    in_place(table, self.SCHEMA, tmp_path / "none", where=where)
                continue
            rows = in_place(table, self.SCHEMA, tmp_path / str(len(left)), where=where)
            assert [one for ids in rows["item"].to_pylist() for one in ids] == left

    def test_a_run_is_not_resumed_under_other_names(self, tmp_path: Path) -> None:
        """The files stay as they are, and their columns mean others."""
        schema = schema_file(self.SCHEMA, tmp_path / "made")
        table = self.table(tmp_path)
        config = ParquetConfig(train=table, test=table, schema=load_schema(schema))
        before = ParquetTables(config)
        known = before.fingerprint()
        write_pins(tmp_path, before.prepare(tmp_path / "out"))
        check_pins(tmp_path, ParquetTables(config).prepare(tmp_path / "out"))
        assert ParquetTables(config).fingerprint() == known
        again = {**self.STORED, "item": "item", "shop": "shop"}
        commit(table, 1, mapped(self.KINDS, again))
        after = ParquetTables(config)
        assert after.fingerprint() != known
        wide = dict(self.SCHEMA, sparse=[{"name": "item", "num_ids": 10_000}])
        config = ParquetConfig(
            train=table, test=table, schema=load_schema(schema_file(wide, tmp_path / "wide"))
        )
        with pytest.raises(DataError, match=r"\.parquet: is not what it was when the run began"):
            check_pins(tmp_path, ParquetTables(config).prepare(tmp_path / "out"))


def test_a_column_that_was_dropped_and_made_anew_is_null_before(tmp_path: Path) -> None:
    """The old one, whose name the new one has, lies in the files of before."""
    early = added(tmp_path / "t", "a.parquet", {"col-1": [0, 1], "item": [7, 8], "old": [3, 4]})
    late = added(tmp_path / "t", "b.parquet", {"col-1": [0, 1], "col-9": [1, 2]})
    table = table_of(tmp_path, mapped(CLICKS, STORED | {"item": "col-9"}), early, late)
    rows = rows_both_ways(table, SCHEMA, tmp_path / "made")
    assert [row["item"] for row in rows] == [[], [], [1], [2]]
    shown = json.loads(recd("data", "schema", table, "--json"))
    assert not {"old", "item of before"} & {*json.dumps(shown).split('"')}
    wrong = {"label": "clicked", "sparse": [{"name": "item of before", "num_ids": 9}]}
    with pytest.raises(DataError, match="column 'item of before' is not there"):
        Table.open(table, load_schema(schema_file(wrong, tmp_path / "wrong")))


def test_fields_within_columns_have_the_names_of_the_table(tmp_path: Path) -> None:
    """Of a struct, of structs in a list and in a struct, of ids with weights; one was dropped, and
    one has its name."""
    kinds = {
        **CLICKS,
        "user": struct(town="string", home=struct(zip="long"), age="integer"),
        "seen": lists(struct(id="long", kind="string")),
        "cart": lists(struct(id="long", weight="double")),
        "views": {
            "type": "map", "keyType": "long", "valueContainsNull": True,
            "valueType": struct(count="long"),
        },
    }  # fmt: skip
    stored = {
        **STORED, "user": "col-3", "user.town": "col-4", "user.home": "col-5",
        "user.home.zip": "col-6", "user.age": "col-7", "seen": "col-8", "seen.id": "col-9",
        "seen.kind": "col-10", "cart": "col-11", "cart.id": "col-12", "cart.weight": "col-13",
        "views": "col-14", "views.count": "col-15",
    }  # fmt: skip
    users = [
        {"col-4": "Bonn", "col-5": {"col-6": 53}, "age": 40, "secret": 5},
        {"col-4": None, "col-5": None, "age": 50, "secret": 6},
    ]
    rows = {
        "col-1": [0, 1],
        "col-2": [1, 2],
        "col-3": users,
        "col-8": [[{"col-9": 7, "col-10": "a"}, {"col-9": 8, "col-10": "b"}], []],
        "col-11": [[{"col-12": 3, "col-13": 0.5}], None],
        "col-14": pa.array(
            [[(1, {"col-15": 2})], []], pa.map_(pa.int64(), pa.struct([("col-15", pa.int64())]))
        ),
    }
    file = added(tmp_path / "t", "a.parquet", rows)
    table = table_of(tmp_path, mapped(kinds, stored), file)
    features = [
        {"name": "user.town", "num_ids": 99, "ids": "hash", "table": "town"},
        {"name": "user.home.zip", "num_ids": 99, "table": "zip"},
        {"name": "seen.id", "num_ids": 99, "table": "seen"},
        {"name": "cart", "num_ids": 9, "scored": True},
    ]
    age = {"name": "user.age", "nulls": {"value": -1}}
    schema = {"label": "clicked", "dense": [age], "sparse": [*SCHEMA["sparse"], *features]}
    made = tmp_path / "made"
    file_of_schema = schema_file(schema, made)
    assert "no problem" in recd("data", "check", table, "--schema", file_of_schema)
    recd("data", "import", table, made, "--schema", file_of_schema)
    found = rows_of(made).to_pylist()
    assert [len(row["user.town"]) for row in found] == [1, 0]
    assert [row["user.home.zip"] for row in found] == [[53], []]
    assert [row["seen.id"] for row in found] == [[7, 8], []]
    assert [(row["cart"], row["cart_weights"]) for row in found] == [([3], [0.5]), ([], [])]
    # The age that files have is of before: a later one has no value in them.
    assert [row["user.age"] for row in found] == [-1, -1]
    shown = json.dumps(json.loads(recd("data", "schema", table, "--json")))
    assert "secret" not in shown
    assert "of before" not in shown
    (whole,) = Table.open(
        table, load_schema(schema_file(SCHEMA | {"sparse": [features[3]]}, tmp_path / "cart"))
    ).facts
    with Table.open(table, load_schema(tmp_path / "cart.yaml")).opened(whole) as opened:
        assert opened.read_row_group(0, ["views"])["views"].to_pylist() == [
            [(1, {"count": 2})], []
        ]  # fmt: skip


def test_pairs_in_another_order_than_the_tables_are_refused(tmp_path: Path) -> None:
    """The log may put the weight first: files of before have it last, and there is no telling an
    id from a count."""
    kinds = {**CLICKS, "cart": lists(struct(count="long", id="long"))}
    rows = {"clicked": [0, 1], "item": [1, 2], "cart": [[{"id": 3, "count": 9}], []]}
    file = added(tmp_path / "t", "a.parquet", rows)
    table = commit(tmp_path / "t", 0, protocol(), metadata(kinds), file)
    says = r"a\.parquet: has the pairs of 'cart' in another order than its table"
    with pytest.raises(DataError, match=says):
        Table.open(table, load_schema(schema_file(SCHEMA, tmp_path / "made")))
    right = {"clicked": [0, 1], "item": [1, 2], "cart": [[{"count": 9, "id": 3}], []]}
    again = {"remove": {"path": "a.parquet", "deletionTimestamp": 0, "dataChange": True}}
    commit(table, 1, again, added(table, "b.parquet", right))
    assert items(rows_both_ways(table, SCHEMA, tmp_path / "made")) == [1, 2]


def test_partitions_are_by_the_names_that_files_have(tmp_path: Path) -> None:
    """Two of them have each other's name."""
    kinds = {**CLICKS, "shop": "long", "city": "long"}
    stored = {**STORED, "shop": "city-3", "city": "shop-4"}
    files = [
        added(
            tmp_path / "t",
            f"{name}.parquet",
            {"col-1": [0, 1], "col-2": [first, first + 1]},
            partitionValues={"city-3": str(first), "shop-4": str(first + 50)},
        )
        for name, first in (("a", 1), ("b", 3))
    ]
    table = table_of(tmp_path, mapped(kinds, stored, "shop", "city"), *files)
    sparse = [*SCHEMA["sparse"], *({"name": one, "num_ids": 99} for one in ("shop", "city"))]
    rows = rows_both_ways(table, SCHEMA | {"sparse": sparse}, tmp_path / "made")
    assert [(row["item"], row["shop"], row["city"]) for row in rows] == [
        ([1], [1], [51]), ([2], [1], [51]), ([3], [3], [53]), ([4], [3], [53]),
    ]  # fmt: skip


def test_partitions_that_were_swapped_after_they_were_written(tmp_path: Path) -> None:
    """As a table has them that was mapped after it was made: a name is that of the other column."""
    kinds = {**CLICKS, "shop": "long", "city": "long"}
    described = mapped(kinds, {**STORED, "shop": "col-3", "city": "col-4"}, "shop", "city")
    described = json.loads(json.dumps(described).replace("col-3", "city").replace("col-4", "shop"))
    file = added(
        tmp_path / "t",
        "a.parquet",
        {"col-1": [0, 1], "col-2": [1, 2]},
        partitionValues={"city": "7", "shop": "8"},
    )
    table = table_of(tmp_path, described, file)
    sparse = [*SCHEMA["sparse"], *({"name": one, "num_ids": 99} for one in ("shop", "city"))]
    rows = rows_both_ways(table, SCHEMA | {"sparse": sparse}, tmp_path / "made")
    assert [(row["shop"], row["city"]) for row in rows] == [([7], [8])] * 2


def test_rows_that_are_deleted_are_refused_under_any_names(tmp_path: Path) -> None:
    rows = {"col-1": [0, 1] * 15, "col-2": [*range(30)]}
    file = added(tmp_path / "t", "a.parquet", rows)
    stats = {"deletionVector": deleted(3, 7), "stats": json.dumps({"numRecords": 30})}
    both = protocol("columnMapping", "deletionVectors")
    table = commit(tmp_path / "t", 0, both, mapped(CLICKS, STORED), {"add": file["add"] | stats})
    with pytest.raises(DataError, match="has deletion vectors"):
        found_files(table)


def test_a_rewrite_that_was_ended_begins_anew_under_other_names(tmp_path: Path) -> None:
    """So does an import: what is done has the columns of before."""
    file = added(tmp_path / "t", "a.parquet", {"col-1": [0, 1], "col-2": [1, 2]})
    table = table_of(tmp_path, mapped(CLICKS, STORED), file)
    from recd_plugins.data.rewrite import RewriteConfig, _plan

    def plan() -> str:
        files = found_files(table)
        from recd_plugins.data.parquet.footer import footer_of

        footers = {one: footer_of(one, facts.names) for one, facts in files.items()}
        return _plan(files, footers, RewriteConfig())

    before = plan()
    assert plan() == before
    commit(table, 1, mapped(CLICKS, {"clicked": "col-2", "item": "col-1"}))
    assert plan() != before
