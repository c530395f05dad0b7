"""Rung 1 (values, on files): ids take 4 bytes in files where they fit, and nobody notices."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from known_rows import SCHEMA, epoch, open_loader, write

from recd_plugins.data.rewrite import RewriteConfig, rewrite
from recd_plugins.data.schema import IDS, NARROW_IDS, Schema, SparseFeature
from recd_plugins.data.table import Table
from recd_plugins.data.table_writer import write_table
from recd_plugins.errors import DataError

FIT = 2**31
WIDE = Schema(
    session_id=None,
    timestamp=None,
    sparse=(
        SparseFeature(name="fits", num_ids=FIT),
        SparseFeature(name="does_not", num_ids=FIT + 1),
    ),
)


def as_before(table: Table, folder: Path, files: slice = slice(None)) -> Table:
    """The table with ids of 8 bytes in some of its files, as they once were written."""
    folder.mkdir()
    for file in table.files:
        rows = pq.read_table(file)
        if file in table.files[files]:
            rows = rows.cast(table.schema.arrow())
        pq.write_table(rows, folder / file.name, row_group_size=8, use_dictionary=False)
    return Table.open(folder)


def kinds(table: Table, name: str) -> set[str]:
    return {str(pq.read_schema(file).field(name).type.value_type) for file in table.files}


def test_the_largest_id_that_fits_and_the_first_that_does_not(tmp_path):
    ids = {"fits": [[0, FIT - 1], []], "does_not": [[FIT], [0]]}
    rows = pa.table({"label": [0, 1]} | {name: pa.array(one, IDS) for name, one in ids.items()})
    table = write_table(tmp_path / "t", WIDE, [rows])
    (file,) = table.files
    assert pq.read_schema(file).field("fits").type == NARROW_IDS
    assert pq.read_schema(file).field("does_not").type == IDS
    assert pq.read_table(file, columns=[*ids]).to_pydict() == ids
    with pytest.raises(DataError, match="2147483648"):
        write_table(tmp_path / "u", WIDE, [rows.set_column(1, "fits", rows["does_not"])])


def test_plugins_read_ids_of_8_bytes(tmp_path):
    table = write(tmp_path / "t", 20)
    rows = table.read(table.stripes[0])
    assert kinds(table, "row") == {"int32"}
    assert rows.schema.equals(SCHEMA.arrow())
    assert table.read(table.stripes[0], ["history"])["history"].type == IDS
    assert [id_ for (id_,) in rows["row"].to_pylist()] == [*range(8)]


@pytest.mark.parametrize("wide", [slice(None), slice(1, None, 2)], ids=["all", "some"])
@pytest.mark.parametrize("window", [0, 2])
def test_batches_are_those_of_files_with_ids_of_8_bytes(tmp_path, wide, window):
    """Of files of both kinds, too, of which a window may have some each."""
    table = write(tmp_path / "t", 103)
    before = as_before(table, tmp_path / "before", wide)
    assert "int64" in kinds(before, "row") | kinds(before, "history")
    loaders = [open_loader(one, window=window, tail="pad") for one in (table, before)]
    ours, theirs = (epoch(loader) for loader in loaders)
    assert ours == theirs


def test_a_rewrite_makes_ids_narrow_where_files_have_some_of_each(tmp_path):
    before = as_before(write(tmp_path / "t", 103), tmp_path / "before", slice(1, None, 2))
    assert kinds(before, "row") == {"int32", "int64"}
    rewrite(tmp_path / "before", tmp_path / "after", RewriteConfig(rows_per_stripe=10))
    after = Table.open(tmp_path / "after")
    assert kinds(after, "row") == {"int32"}
    made, had = (pa.concat_tables(map(one.read, one.stripes)) for one in (after, before))
    assert made.equals(had)


def test_a_rewrite_refuses_ids_that_no_row_is_of(tmp_path):
    schema = dataclasses.replace(SCHEMA, dense=(), sparse=SCHEMA.sparse[:1])
    arrow = schema.arrow()
    rows = pa.table({"label": pa.array([1], pa.float32()), "row": pa.array([[FIT]], IDS)})
    (tmp_path / "t").mkdir()
    pq.write_table(rows.cast(arrow), tmp_path / "t" / "a.parquet")
    with pytest.raises(DataError, match=r"a\.parquet, row group 0: column 'row' holds ids that"):
        rewrite(tmp_path / "t", tmp_path / "u", RewriteConfig())


def test_a_strangers_rows_are_rewritten_as_they_are(tmp_path):
    (tmp_path / "t").mkdir()
    pq.write_table(pa.table({"row": pa.array([[1]], IDS)}), tmp_path / "t" / "a.parquet")
    rewrite(tmp_path / "t", tmp_path / "u", RewriteConfig())
    assert pq.read_schema(tmp_path / "u" / "part-00000.parquet").field("row").type == IDS
