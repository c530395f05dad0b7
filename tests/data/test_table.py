"""Rung 1 (values, on files): tables written by stripes, opened and checked by their footers."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from recd_plugins.data.reader.order import Piece
from recd_plugins.data.reader.stripe_reader import StripeReader
from recd_plugins.data.schema import METADATA_KEY, Schema, SparseFeature
from recd_plugins.data.table import Table, id_ranges
from recd_plugins.data.table_writer import TableWriter, write_table
from recd_plugins.errors import DataError

SCHEMA = Schema(
    session_id=None,
    timestamp=None,
    dense=("price",),
    sparse=(SparseFeature(name="item", num_ids=100), SparseFeature(name="user.tags", num_ids=9)),
)


def chunk(num_rows: int, first: int = 0, **columns: object) -> pa.Table:
    rows = range(first, first + num_rows)
    ids = pa.list_(pa.int64())
    return pa.table(
        {
            "label": pa.array([row % 2 for row in rows], pa.int64()),
            "price": pa.array([row / 2 for row in rows], pa.float64()),
            "item": pa.array([[row] for row in rows], ids),
            "user.tags": pa.array([[row % 9] * (row % 3) for row in rows], ids),
        }
        | columns
    )


def written(folder: Path, *chunks: pa.Table) -> Table:
    return write_table(folder, SCHEMA, chunks)


def test_chunks_of_any_size_become_even_stripes(tmp_path):
    with TableWriter(tmp_path / "t", SCHEMA, rows_per_stripe=8, stripes_per_file=2) as writer:
        for first, num_rows in ((0, 3), (3, 20), (23, 0), (23, 2)):
            writer.write(chunk(num_rows, first))
    table = Table.open(tmp_path / "t")
    assert [stripe.num_rows for stripe in table.stripes] == [8, 8, 8, 1]
    assert [file.name for file in table.files] == ["part-00000.parquet", "part-00001.parquet"]
    assert table.num_rows == writer.num_rows == 25
    assert table.schema == SCHEMA
    rows = pa.concat_tables(pq.read_table(file) for file in table.files)
    assert rows.equals(chunk(25).cast(SCHEMA.in_files()))


def test_chunks_may_be_record_batches_and_nothing_else(tmp_path):
    table = write_table(tmp_path / "t", SCHEMA, (one for one in chunk(3).to_batches()))
    assert table.num_rows == 3
    for wrong, says in ((None, "None"), ({"label": [1]}, "a dict"), (3, "the int 3")):
        with pytest.raises(DataError, match=rf"a chunk for .* is {says}, where it must be a pyarr"):
            written(tmp_path / "u", wrong)


def test_a_table_that_the_disk_has_no_room_for_leaves_nothing(tmp_path, monkeypatch):
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(TableWriter, "_close_file", full)  # a disk tells when it is written to
    with pytest.raises(OSError, match="No space left"):
        written(tmp_path / "t", chunk(3))
    assert list(tmp_path.iterdir()) == []


def test_a_name_with_a_colon_is_a_path(tmp_path, monkeypatch):
    """And no URI, for which pyarrow takes it where it is relative."""
    monkeypatch.chdir(tmp_path)
    assert written(Path("day:1"), chunk(3)).num_rows == 3
    assert Table.open(Path("day:1")).num_rows == 3


def test_a_table_without_rows_has_no_stripes(tmp_path):
    table = written(tmp_path / "t", chunk(0))
    assert table.stripes == ()
    assert table.schema == SCHEMA


def test_pages_carry_statistics_and_checksums_and_lists_no_dictionary(tmp_path):
    footer = pq.read_metadata(written(tmp_path / "t", chunk(50)).files[0])
    assert id_ranges(footer, 0) == {"item": (0, 49), "user.tags": (1, 8)}
    assert footer.row_group(0).column(2).compression == "ZSTD"
    assert footer.row_group(0).column(2).dictionary_page_offset is None


def test_nothing_is_there_before_the_writer_closes_nor_after_an_error(tmp_path):
    folder = tmp_path / "t"
    with pytest.raises(ZeroDivisionError), TableWriter(folder, SCHEMA) as writer:  # noqa: PT012
        writer.write(chunk(5))
        assert not folder.exists()
        raise ZeroDivisionError
    assert list(tmp_path.iterdir()) == []


def test_a_table_replaces_the_one_before(tmp_path):
    written(tmp_path / "t", chunk(50))
    assert written(tmp_path / "t", chunk(3)).num_rows == 3


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        ({"item": [[1], [100]]}, r"feature 'item' holds id 100, outside \[0, 100\)"),
        ({"item": [[-1], [2]]}, r"feature 'item' holds id -1, outside \[0, 100\)"),
        ({"label": [0, None]}, "column 'label' holds 1 null"),
        ({"item": [None, [1]]}, "column 'item' holds 1 null"),
        ({"item": [[1], [None]]}, "column 'item' holds 1 null"),
        ({"item": [1, 2]}, "column 'item' is int64, but must be a list of integers. Write"),
        ({"price": ["1", "2"]}, "column 'price' is string, but must be a number"),
    ],
)
def test_rows_that_do_not_fit_are_named_and_not_written(tmp_path, columns, reason):
    with pytest.raises(DataError, match=reason):
        written(tmp_path / "t", chunk(5), chunk(2, **columns))
    assert list(tmp_path.iterdir()) == []


KEYED = Schema(sample_weight="weight")
GOOD = {"session_id": [1, 2], "timestamp": [5, 6], "label": [0.0, 1.0], "weight": [1.0, 0.0]}


@pytest.mark.parametrize(
    ("column", "values", "reason"),
    [
        ("label", [1.0, 2.0], "'label' is a click label and holds 2, outside .* in row 3"),
        ("label", [-1.0, 0.0], "'label' is a click label and holds -1, outside .* in row 2"),
        ("weight", [1.0, -2.0], "'weight' is the sample weight and holds -2 in row 3"),
        ("session_id", [1.0, 2.5], "'session_id' holds 2.5, which is no integer, in row 3"),
        ("timestamp", [5.0, float("nan")], "'timestamp' holds nan, which is no integer, in row 3"),
        ("timestamp", [1e300, 0.0], "'timestamp' holds 1e.300, which is no integer, in row 2"),
        ("session_id", ["a", "b"], "'session_id' is string, but must be integers"),
        ("timestamp", pa.array([5, 6], pa.timestamp("us")), "'timestamp' is .*, but must be"),
    ],
)
def test_labels_weights_sessions_and_times_are_refused_by_their_row(
    tmp_path, column, values, reason
):
    with TableWriter(tmp_path / "t", KEYED) as to:
        to.write(pa.table(GOOD))
        with pytest.raises(DataError, match=f"column {reason}"):
            to.write(pa.table({**GOOD, column: values}))
    # The same in a file of somebody who wrote our schema into it.
    rows = pa.table({**GOOD, column: values})
    rows = rows.replace_schema_metadata({METADATA_KEY: KEYED.to_json().encode()})
    pq.write_table(rows, tmp_path / "theirs.parquet")
    reason = reason.replace("in row 3", "in row 1").replace("in row 2", "in row 0")
    if column in KEYED.key_columns:
        reason = f"'{column}' is .*, but must be integers"
        if not isinstance(values, list) or isinstance(values[0], str):
            return  # refused where a session or a time is asked for
    with pytest.raises(DataError, match=rf"theirs.parquet.*column {reason}"):
        StripeReader(Table.open(tmp_path / "theirs.parquet")).decode(Piece(0, 0, 2))


def test_whole_floats_are_sessions_and_times(tmp_path):
    with TableWriter(tmp_path / "t", KEYED) as to:
        to.write(pa.table({**GOOD, "session_id": [1.0, 2.0], "timestamp": [5.0, 6.0]}))
    assert Table.open(tmp_path / "t").read(Table.open(tmp_path / "t").stripes[0])[
        "session_id"
    ].to_pylist() == [1, 2]


def test_a_column_that_is_missing(tmp_path):
    with pytest.raises(DataError, match=r"lacks column 'user\.tags'.*"):
        written(tmp_path / "t", chunk(2).drop_columns("user.tags"))
    pq.write_table(chunk(2).rename_columns(["label", "prise", "item", "user.tags"]), tmp_path / "f")
    with pytest.raises(DataError, match=r"lacks column 'price'.*did you mean 'prise'"):
        Table.open(tmp_path / "f", SCHEMA)


def test_a_column_that_is_there_twice(tmp_path):
    rows = chunk(2)
    with pytest.raises(DataError, match=r"has column 'item' 2 times\. Give each column a name of"):
        written(tmp_path / "t", rows.append_column("item", rows["item"]))


@pytest.mark.parametrize("name", ["item", "user.tags"])
@pytest.mark.parametrize("worst", [-3, 1000])
def test_statistics_tell_ids_out_of_range(tmp_path, name, worst):
    rows = chunk(4, **{name: [[0], [1], [worst], [2]]})
    pq.write_table(rows, tmp_path / "f.parquet", row_group_size=2)
    with pytest.raises(DataError, match=rf"f\.parquet, row group 1: feature '{name}' .* {worst},"):
        Table.open(tmp_path, SCHEMA)


def test_wide_ids_and_numbers_are_cast(tmp_path):
    columns = {"item": pa.array([[1], [2]], pa.large_list(pa.uint64())), "price": [2**40, 0]}
    rows = pq.read_table(written(tmp_path / "t", chunk(2, **columns)).files[0])
    assert rows["item"].to_pylist() == [[1], [2]]
    assert rows["price"].to_pylist() == [2.0**40, 0]


@pytest.mark.parametrize("kept", [0, 3, 200, -1])
def test_a_file_that_was_cut_short(tmp_path, kept):
    (file,) = written(tmp_path / "t", chunk(50)).files
    file.write_bytes(file.read_bytes()[:kept])
    with pytest.raises(DataError, match=r"part-00000\.parquet: not a whole Parquet file"):
        Table.open(tmp_path / "t")


def test_a_foreign_file_needs_a_schema(tmp_path):
    pq.write_table(chunk(2), tmp_path / "f.parquet")
    with pytest.raises(DataError, match=r"carries no 'recd_schema'.*dataset"):
        Table.open(tmp_path)
    assert Table.open(tmp_path, SCHEMA).num_rows == 2
    assert Table.open(tmp_path / "f.parquet", SCHEMA).num_rows == 2


def test_a_path_that_is_no_table(tmp_path):
    with pytest.raises(DataError, match="there is no such table"):
        Table.open(tmp_path / "nowhere")
    with pytest.raises(DataError, match=r"holds no \.parquet file"):
        Table.open(tmp_path)


def test_progress_is_reported_in_rows(tmp_path):
    calls = []
    write_table(
        tmp_path / "t",
        SCHEMA,
        [chunk(3), chunk(4)],
        progress=lambda *step: calls.append(step),
        total=7,
    )
    assert calls == [("writing t", done, 7) for done in (0, 3, 7, 7)]


def test_a_table_that_the_disk_could_never_hold_is_refused_by_its_first_file(tmp_path):
    ids = pa.list_(pa.int64())
    rows = pa.table(
        {
            "label": pa.array([0] * 50_000, pa.int64()),
            "price": pa.array(range(50_000), pa.float64()),
            "item": pa.array([[1]] * 50_000, ids),
            "user.tags": pa.array([[]] * 50_000, ids),
        }
    )
    made = []

    def chunks():
        for number in range(20):
            made.append(number)
            yield rows

    with pytest.raises(DataError, match=r"1,000,000,000,000,000 rows need about .* GB are free"):
        write_table(tmp_path / "t", SCHEMA, chunks(), total=10**15)
    assert len(made) == 6  # the first that fill a file of 262,144 rows
    assert not any(tmp_path.iterdir())
    assert write_table(tmp_path / "t", SCHEMA, chunks(), total=10**6).num_rows == 10**6
