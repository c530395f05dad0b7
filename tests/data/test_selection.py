"""Value tests: some of a table's rows are read as if the table had no others."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from recd_plugins.config import parse
from recd_plugins.data.foreign import ForeignSchema
from recd_plugins.data.parquet_tables import ParquetConfig, build_parquet
from recd_plugins.data.reader.local_reader import LocalReaderConfig, build_local_reader
from recd_plugins.data.schema import Fill, Schema, SparseFeature
from recd_plugins.data.selection import Selection
from recd_plugins.data.stripes import read_stripe
from recd_plugins.data.table import Table
from recd_plugins.errors import DataError, RegistryError
from recd_plugins.notices import NoticeWarning
from recd_plugins.slots import Context

SCHEMA = Schema(dense=("d",), sparse=(SparseFeature(name="ids", num_ids=10_000),))
FOREIGN = ForeignSchema(session_id="user", timestamp="time", dense=("d",))
ROWS, STRIPE = 600, 50
RULE = 'country == "DE" and d < 430'


def rows(count: int = ROWS) -> pa.Table:
    """Columns of the schema, and others."""
    number = np.arange(count)
    return pa.table(
        {
            "session_id": number // 5,
            "timestamp": number,
            "label": (number % 2).astype(np.float32),
            "d": number.astype(np.float32),
            "ids": pa.array([[one, one + 1] for one in number]),
            "country": [("DE", "FR", "US")[one % 3] for one in number],
            "user": [f"u{one // 5}" for one in number],
            "time": number * 1000,
        }
    )


def write(path: Path, parts: Sequence[pa.Table], schema: Schema | None = SCHEMA) -> Path:
    """A file with a stripe of each part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    metadata = None if schema is None else schema.arrow().metadata
    arrow = parts[0].schema.with_metadata(metadata)
    with pq.ParquetWriter(path, arrow) as file:
        for part in parts:
            file.write_table(part.replace_schema_metadata(metadata), row_group_size=len(part))
    return path


def stripes(table: pa.Table) -> list[pa.Table]:
    return [table.slice(first, STRIPE) for first in range(0, table.num_rows, STRIPE)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("selection")
    write(folder / "all.parquet", stripes(rows()))
    kept = [part.filter(_meant(part)) for part in stripes(rows())]
    write(folder / "kept.parquet", [part for part in kept if part.num_rows])
    write(folder / "test.parquet", stripes(rows(60)))
    return folder


def _meant(part: pa.Table) -> pa.Array:
    return pa.array(
        [
            country == "DE" and d < 430
            for country, d in zip(part["country"].to_pylist(), part["d"].to_pylist(), strict=True)
        ]
    )


def opened(folder: Path, train: str = "all.parquet", **options: Any) -> Table:
    options = {"where_test": "d >= 0"} | options
    config = ParquetConfig(train=folder / train, test=folder / "test.parquet", **options)
    return build_parquet(config, Context(folder=folder / "data")).prepare(folder / "data").train


def batches(table: Table, rank: int = 0, world_size: int = 1, **options: Any) -> list[Any]:
    config = LocalReaderConfig(streams=4, **options)
    loader = build_local_reader(config, Context(seed=3)).loader(
        table, rank=rank, world_size=world_size, batch_size=16 // world_size, split="train"
    )
    return [
        (one.dense.flatten().tolist(), one.labels.tolist(), one.features.values().tolist())
        for _ in range(2)
        for one in loader
    ]


@pytest.mark.parametrize("options", [{}, {"shuffle": False}, {"sessions": "whole", "tail": "pad"}])
def test_batches_are_those_of_a_table_of_these_rows_alone(folder: Path, options: Any) -> None:
    table = opened(folder, where=RULE)
    assert table.num_rows == Table.open(folder / "kept.parquet").num_rows == 144
    found = batches(table, **options)
    assert found == batches(Table.open(folder / "kept.parquet"), **options)
    assert all(d % 3 == 0 and d < 430 for dense, *_ in found for d in dense)


def test_a_column_of_a_file_counts_and_not_its_folders(tmp_path: Path) -> None:
    file = tmp_path / "t" / "country=FR" / "a.parquet"
    file.parent.mkdir(parents=True)
    made = rows(60).replace_schema_metadata(SCHEMA.arrow().metadata)
    pq.write_table(made, file, write_statistics=False)
    table = Table.open(tmp_path / "t").select(Selection(where='country == "DE"', schema=SCHEMA))
    assert table.num_rows == 20
    assert table.read(table.stripes[0])["d"].to_pylist() == [float(one) for one in range(0, 60, 3)]


def test_global_batches_are_the_same_with_two_ranks(folder: Path) -> None:
    table = opened(folder, where=RULE)
    whole = [sorted(dense) for dense, *_ in batches(table)]
    halves = zip(batches(table, 0, 2), batches(table, 1, 2), strict=True)
    assert [sorted(one[0] + other[0]) for one, other in halves] == whole


def test_an_epoch_goes_on_where_it_was_left(folder: Path) -> None:
    reader = build_local_reader(LocalReaderConfig(), Context())
    options = {"rank": 0, "world_size": 1, "batch_size": 16, "split": "train"}
    loader = reader.loader(opened(folder, where=RULE), **options)
    it = iter(loader)
    next(it)
    state, rest = loader.state_dict(), [one.dense for one in it]
    again = reader.loader(opened(folder, where=RULE), **options)
    again.load_state_dict(state)
    assert all(map(torch.equal, rest, (one.dense for one in again)))
    other = reader.loader(opened(folder, where='country == "FR" and d < 430'), **options)
    with pytest.raises(DataError, match="table"):
        other.load_state_dict(state)


def test_whoever_reads_the_table_sees_these_rows(folder: Path) -> None:
    table = opened(folder, where=RULE)
    found = [table.read(stripe) for stripe in table.stripes]
    assert [one.num_rows for one in found] == [stripe.num_rows for stripe in table.stripes]
    whole = pa.concat_tables(found)
    assert whole["d"].to_pylist() == [d for d in range(430) if d % 3 == 0]


def test_stripes_that_statistics_tell_of_are_not_read_to_be_counted(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = []
    was = read_stripe

    def noted(file: Any, stripe: Any, columns: Any, **options: Any) -> Any:
        read.append((stripe.group, tuple(columns)))
        return was(file, stripe, columns, **options)

    monkeypatch.setattr("recd_plugins.data.selection.read_stripe", noted)
    table = opened(folder, where="timestamp >= 125 and timestamp < 275.5")
    assert read == [(2, ("timestamp",)), (5, ("timestamp",))]
    assert [one.num_rows for one in table.stripes] == [25, 50, 50, 26]
    assert [one.stored for one in table.stripes] == [50, None, None, 50]
    read.clear()
    assert opened(folder, where="timestamp >= 125 and timestamp < 275.5") == table
    assert not read  # its numbers were kept
    next((folder / "data/known").glob("*.json")).write_text("[1, 2")
    assert opened(folder, where="timestamp >= 125 and timestamp < 275.5").num_rows == table.num_rows


def test_the_columns_that_select_are_not_handed_on(folder: Path) -> None:
    table = opened(folder, where=RULE)
    assert table.read(table.stripes[0], ["d"]).column_names == ["d"]


def test_the_test_split_may_have_an_expression_of_its_own(folder: Path) -> None:
    config = ParquetConfig(
        train=folder / "all.parquet",
        test=folder / "test.parquet",
        where="d < 100",
        where_test="d >= 10",
        sessions_share=0.5,
    )
    found = build_parquet(config, Context(folder=folder / "data")).prepare(folder)
    assert found.test.num_rows == 50
    assert 0 < found.train.num_rows < 100


def test_a_folder_above_the_named_one_makes_no_column_for_a_rule(
    folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "country=DE").mkdir()
    table = pq.read_table(folder / "all.parquet").drop_columns(["country"])
    pq.write_table(table, tmp_path / "country=DE" / "all.parquet")
    (tmp_path / "test.parquet").symlink_to(folder / "test.parquet")
    with pytest.raises(RegistryError) as error:
        opened(tmp_path, train="country=DE", where='country == "DE"')
    said = str(error.value)
    assert "has no column 'country': only folders below the one that is named make columns" in said
    assert "Name the folder around `country=...`, or give the test split a rule without it" in said
    with pytest.raises(RegistryError, match="has no column 'e'; "):
        opened(tmp_path, train="country=DE", where="e >= 2")


def test_shares_of_sessions_are_within_each_other(folder: Path) -> None:
    def sessions(share: float) -> set[int]:
        table = opened(folder, sessions_share=share)
        read = [table.read(stripe) for stripe in table.stripes]
        found = pa.concat_tables(read)["session_id"].to_pylist()
        assert all(found.count(one) == 5 for one in set(found))  # each is whole
        return set(found)

    small, large = sessions(0.1), sessions(0.4)
    assert small < large < set(range(ROWS // 5))
    assert 0.03 < len(small) / (ROWS // 5) < 0.2
    assert 0.3 < len(large) / (ROWS // 5) < 0.5
    assert sessions(0.1) == small


def test_foreign_sessions_and_times_select_rows(folder: Path) -> None:
    schema = dataclasses.replace(FOREIGN, timestamp_unit="s")
    table = opened(folder, schema=schema, sessions_share=0.3, where="time < 1970-01-02T00:00:00")
    whole = pa.concat_tables(table.read(stripe) for stripe in table.stripes)
    assert max(whole["d"].to_pylist()) <= 86
    assert 0 < whole.num_rows < 87


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"where": "contry == 1"}, RegistryError, "did you mean 'country'"),
        ({"where": "country == 1"}, RegistryError, "does not compare"),
        ({"where": "d < 0"}, DataError, "none of its 600 rows is left by dataset.where `d < 0`"),
        (
            {"sessions_share": 0.5, "schema": dataclasses.replace(FOREIGN, session_id=None)},
            RegistryError,
            "no session column",
        ),
    ],
)
def test_what_selects_nothing_is_said(folder: Path, options: Any, error: Any, says: str) -> None:
    with pytest.raises(error, match=says):
        opened(folder, **options)


def test_a_text_that_is_no_expression_is_refused_before_a_file_is_opened() -> None:
    options = {"train": "nowhere", "test": "nowhere", "where": "a ="}
    with pytest.raises(RegistryError, match=r"dataset.where: `=` compares nothing"):
        parse(ParquetConfig, {name: _path(value) for name, value in options.items()}, "dataset")


def _path(value: str) -> Any:
    return Path(value) if value == "nowhere" else value


def test_rows_that_change_under_it_are_noticed(tmp_path: Path) -> None:
    write(tmp_path / "all.parquet", stripes(rows()))
    write(tmp_path / "test.parquet", stripes(rows(60)))
    table = opened(tmp_path, where=RULE)
    others = rows().set_column(5, "country", pa.array(["DE"] * ROWS))
    write(tmp_path / "all.parquet", stripes(others))
    with pytest.raises(DataError, match="has changed since the table was opened"):
        table.read(table.stripes[0])


WIDE = dataclasses.replace(
    SCHEMA,
    dense=("d", "huge"),
    sparse=(
        *SCHEMA.sparse,
        SparseFeature(name="user_ids", num_ids=9),
        SparseFeature(name="old", num_ids=9),
    ),
)


def wide(count: int, **columns: Any) -> pa.Table:
    number = np.arange(count)
    found = rows(count).drop_columns(["country", "user", "time"])
    found = found.append_column("huge", pa.array(np.random.default_rng(0).random(count)))
    for name in ("user_ids", "old"):
        found = found.append_column(name, pa.array([[one % 9] for one in number]))
    for name, column in columns.items():
        place = found.column_names.index(name)
        found = found.set_column(place, name, column)
    return found


def test_features_that_are_not_wanted_are_never_read(tmp_path: Path) -> None:
    broken = pa.array(["no number"] * 100)
    write(tmp_path / "all.parquet", [wide(100, old=broken, huge=broken)], WIDE)
    write(tmp_path / "test.parquet", [wide(20)], WIDE)
    with pytest.raises(DataError, match=r"huge|old"):
        opened(tmp_path)
    for options in (
        {"features": ("d", "*ids")},
        {"without": ("old", "hug*")},
        {"features": ("d", "ids", "user_*", "old"), "without": "old"},
    ):
        table = opened(tmp_path, **options)
        assert table.schema.dense == ("d",)
        assert table.schema.sparse_names == ("ids", "user_ids")
        assert len(batches(table, shuffle=False)) == 2 * 6
    foreign = parse(ForeignSchema, json.loads(WIDE.to_json()), "schema")
    assert opened(tmp_path, schema=foreign, features=("ids", "d")).schema.sparse_names == ("ids",)


def test_a_byte_of_a_column_that_nobody_asks_for_may_be_damaged(tmp_path: Path) -> None:
    """Sessions and times neither: no converter asks for them here."""
    path = write(tmp_path / "all.parquet", [wide(100)], WIDE)
    write(tmp_path / "test.parquet", [wide(20)], WIDE)
    table = opened(tmp_path, features=("d", "ids"), where="timestamp < 90")
    expected = batches(table)
    described = pq.ParquetFile(path).metadata.row_group(0)
    content, damaged = bytearray(path.read_bytes()), []
    for index in range(described.num_columns):
        chunk = described.column(index)
        name = chunk.path_in_schema.split(".")[0]
        if name in ("session_id", "huge", "user_ids", "old"):
            first = chunk.dictionary_page_offset or chunk.data_page_offset
            content[first : first + chunk.total_compressed_size] = b"\xff" * (
                chunk.total_compressed_size
            )
            damaged.append(name)
    assert len(damaged) == 4
    path.write_bytes(bytes(content))
    assert batches(table) == expected


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"features": "usr_*"}, "dataset.features: no feature or dense column matches 'usr_"),
        ({"without": "x"}, "dataset.without: no feature or dense column matches 'x'"),
        (
            {"features": "ids", "without": "i*"},
            "leave none of the 4 features and dense columns. Leave",
        ),
        ({"absent": "x"}, "dataset.absent: no feature or dense column matches 'x'"),
    ],
)
def test_features_that_there_are_not(tmp_path: Path, options: Any, says: str) -> None:
    write(tmp_path / "all.parquet", [wide(20)], dataclasses.replace(WIDE, dense=("d",)))
    write(tmp_path / "test.parquet", [wide(20)], WIDE)
    with pytest.raises(RegistryError, match=re.escape(says)):
        opened(tmp_path, **options)


def test_a_feature_that_came_later_is_empty_before(tmp_path: Path) -> None:
    """And one that went is empty after, in the order of files."""
    first = dataclasses.replace(WIDE, dense=("d",), sparse=WIDE.sparse[::2])
    second = dataclasses.replace(WIDE, sparse=WIDE.sparse[:2])
    write(tmp_path / "t/1.parquet", [wide(20).drop_columns(["huge", "user_ids"])], first)
    write(tmp_path / "t/2.parquet", [wide(20).drop_columns(["old"])], second)
    write(tmp_path / "test.parquet", [wide(20)], WIDE)
    with pytest.raises(DataError, match="lacks column 'old'"):
        opened(tmp_path, "t")
    absent = ("user_*", "old", "huge")
    for table in (
        opened(tmp_path, "t", absent=absent),
        opened(tmp_path, "t", absent=absent, where="d >= 5"),
    ):
        assert table.schema.sparse_names == ("ids", "old", "user_ids")
        found = pa.concat_tables(table.read(stripe) for stripe in table.stripes)
        half = found.num_rows // 2
        assert found["user_ids"].to_pylist()[:half] == [[]] * half
        assert found["old"].to_pylist()[half:] == [[]] * half
        assert all(map(len, found["user_ids"].to_pylist()[half:]))
        assert set(found["huge"].to_pylist()[:half]) == {0.0}
        assert len(batches(table)) == 2 * (found.num_rows // 16)


def test_absent_columns_of_foreign_files_are_nulls(tmp_path: Path) -> None:
    write(tmp_path / "t/1.parquet", [wide(20).drop_columns(["huge", "user_ids"])], None)
    write(tmp_path / "t/2.parquet", [wide(20)], None)
    write(tmp_path / "test.parquet", [wide(20)], None)
    schema = parse(ForeignSchema, json.loads(WIDE.to_json()), "schema")
    with pytest.raises(DataError, match="'user_ids'"):
        opened(tmp_path, "t", schema=schema, absent="huge")
    table = opened(tmp_path, "t", schema=schema, absent=("huge", "user_ids"))
    with pytest.raises(DataError, match="'huge'"):  # the schema says nothing of its nulls
        table.read(table.stripes[0])
    schema = dataclasses.replace(schema, nulls={"huge": Fill(value=7)})
    table = opened(tmp_path, "t", schema=schema, absent=("huge", "user_ids"))
    found = table.read(table.stripes[0])
    assert found["user_ids"].to_pylist() == [[]] * 20
    assert found["huge"].to_pylist() == [7.0] * 20


def test_a_scored_feature_may_be_absent_from_the_first_file(tmp_path: Path) -> None:
    label = pa.array([0.0, 1.0])
    write(tmp_path / "t/1.parquet", [pa.table({"label": label})], None)
    pairs = pa.array([[(3, 0.5)], None], pa.map_(pa.int32(), pa.float32()))
    write(tmp_path / "t/2.parquet", [pa.table({"label": label, "cart": pairs})], None)
    feature = {"name": "cart", "num_ids": 10, "scored": True}
    given = {"session_id": None, "timestamp": None, "sparse": [feature]}
    table = Table.open(tmp_path / "t", parse(ForeignSchema, given, "schema"), absent=["cart"])
    found = [row for one in table.stripes for row in table.read(one).to_pylist()]
    assert [row["cart"] for row in found] == [[], [], [3], []]
    assert [row["cart_weights"] for row in found] == [[], [], [0.5], []]


def test_a_share_of_the_sessions_drops_rows_without_one(tmp_path: Path) -> None:
    users = [f"u{one // 5}" if one % 7 else None for one in range(200)]
    columns = {"label": [0.0] * 200, "ids": [[one] for one in range(200)], "user": users}
    write(tmp_path / "t.parquet", [pa.table(columns)], None)
    sparse = [{"name": "ids", "num_ids": 200}]
    given = {"session_id": "user", "timestamp": None, "sparse": sparse, "nulls": {"user": "drop"}}
    found = {}
    for share in (0.5, 1.0):
        config = ParquetConfig(
            train=tmp_path / "t.parquet",
            test=tmp_path / "t.parquet",
            schema=parse(ForeignSchema, given, "schema"),
            sessions_share=share,
        )
        dataset = build_parquet(config, Context(folder=tmp_path))
        with pytest.warns(NoticeWarning, match="29 in 'user'"):
            chunks = list(dataset.chunks("train"))
        rows = pa.concat_tables(chunks).to_pylist()
        found[share] = {row["ids"][0]: row["user"] for row in rows}
    whole, some = found[1.0], found[0.5]
    assert list(whole) == [one for one in range(200) if one % 7]
    assert 20 < len(some) < 150
    sessions = {*some.values()}
    assert some == {one: session for one, session in whole.items() if session in sessions}


@pytest.mark.parametrize(
    ("kind", "rule", "left"),
    [
        (pa.float16(), "x >= 2", [2, 3]),
        (pa.float16(), "x in [1, 3]", [1, 3]),
        (pa.decimal32(7, 0), "x != 2", [1, 3]),
        (pa.decimal64(15, 1), "x in [2, 3, 5, 6, 7, 8, 9, 10, 11]", [2, 3]),
        (pa.string_view(), 'x in ["1", "2", "b", "c", "d", "e", "f", "g", "h"]', [1, 2]),
        (pa.string_view(), 'x < "3"', [1, 2]),
    ],
)
def test_columns_of_types_that_arrow_hardly_compares_select_rows(
    tmp_path: Path, kind: pa.DataType, rule: str, left: list[int]
) -> None:
    between = pa.decimal128(19, 0) if pa.types.is_decimal(kind) else pa.string()
    x = pa.array(["1", "2", "3"]).cast(between).cast(kind)
    views = pa.array([["a"], ["b"], ["c"]], pa.list_(pa.string_view()))
    columns = {"label": [0.0] * 3, "x": x, "ids": [[1], [2], [3]], "v": views}
    write(tmp_path / "t.parquet", [pa.table(columns)], None)
    sparse = [{"name": "ids", "num_ids": 9}, {"name": "v", "num_ids": 9, "ids": "hash"}]
    given = {"session_id": None, "timestamp": None, "sparse": sparse}
    schema = parse(ForeignSchema, given, "schema")
    table = Table.open(tmp_path / "t.parquet", schema)
    table = table.select(Selection(where=rule, schema=table.schema, source=table.source))
    assert table.read(table.stripes[0])["ids"].to_pylist() == [[one] for one in left]


def test_a_field_of_a_struct_is_not_taken_for_the_column_that_selects(tmp_path: Path) -> None:
    structs = pa.array([{"b": 1}, {"b": 2}], pa.struct([("b", pa.int64())]))
    columns = {"label": [0.0] * 2, "ids": [[1], [2]], "a.b": [7, 8], "a": structs}
    for names in (list(columns), [*columns][::-1]):
        write(tmp_path / "t.parquet", [pa.table(columns).select(names)], None)
        given = {"session_id": None, "timestamp": None}
        sparse = [{"name": "ids", "num_ids": 9}]
        table = Table.open(
            tmp_path / "t.parquet", parse(ForeignSchema, given | {"sparse": sparse}, "schema")
        )
        rule = Selection(where="`a.b` >= 8", schema=table.schema, source=table.source)
        assert table.select(rule).num_rows == 1


def test_a_column_that_no_file_has_is_an_error(tmp_path: Path) -> None:
    write(tmp_path / "all.parquet", [wide(20).drop_columns(["old"])], WIDE)
    write(tmp_path / "test.parquet", [wide(20)], WIDE)
    with pytest.raises(DataError, match=r"none of its files \(1\) has column 'old'"):
        opened(tmp_path, absent="*")
