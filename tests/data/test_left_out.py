"""Rungs 1 and 2 (values and properties, on files): lists that repeat are left out of files, and
all that reads them has the rows as they are."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from known_rows import open_loader

from recd_dedup.dedup.converters import Exact
from recd_dedup.etl.cluster import ClusterConfig, build_cluster
from recd_dedup.etl.scan import decoded_bytes, scan
from recd_dedup.etl.spark import check_that_files_are_rows
from recd_plugins.data.importing.surveying.survey import survey
from recd_plugins.data.importing.table_files import foreign_files
from recd_plugins.data.kept_stripes import keeping_stripes
from recd_plugins.data.parquet.left_out import LEFT_OUT
from recd_plugins.data.preprocess.batch_transform import BatchTransform
from recd_plugins.data.rewrite import RewriteConfig, rewrite
from recd_plugins.data.schema import Schema, SparseFeature
from recd_plugins.data.selection import Selection
from recd_plugins.data.table import Table
from recd_plugins.data.table_writer import TableWriter
from recd_plugins.errors import DataError
from recd_plugins.slots import Context
from recd_plugins.testing.resume import assert_same_batch, check_resume

SCHEMA = Schema(
    dense=("row",),
    sparse=(
        SparseFeature(name="history", num_ids=1_000, kind="user", sequence=True),
        SparseFeature(name="tags", num_ids=2**31 + 1, kind="user"),
        SparseFeature(name="item", num_ids=5_000),
        SparseFeature(name="scored", num_ids=9, scored=True),
    ),
)
LEFT = ("history", "tags", "item")
GROUPS = (("history",), ("tags",))


def rows_of(seed: int, num_rows: int = 500) -> pa.Table:
    """Rows of sessions, whose lists repeat for some rows: of length 0 too, and beyond stripes."""
    draw = np.random.default_rng(seed)

    def repeated(num_ids: int, share: float) -> list[list[int]]:
        lists: list[list[int]] = []
        for _ in range(num_rows):
            again = lists and draw.random() < share
            lists.append(
                lists[-1] if again else draw.integers(0, num_ids, draw.integers(0, 6)).tolist()
            )
        return lists

    scored = repeated(9, 0.5)
    made = pa.table(
        {
            "session_id": np.arange(num_rows) // 9,
            "timestamp": np.arange(num_rows),
            "label": draw.integers(0, 2, num_rows),
            "row": np.arange(num_rows, dtype=np.float32),
            "history": repeated(1_000, 0.9),
            "tags": repeated(2**31, 0.5),
            "item": [[row % 5_000] for row in range(num_rows)],
            "scored": scored,
            SCHEMA.weights_names[0]: [[0.5] * len(one) for one in scored],
        }
    )
    return made.cast(SCHEMA.arrow())


def written(folder: Path, rows: pa.Table, leave_out: tuple[str, ...] = ()) -> Table:
    with TableWriter(
        folder, SCHEMA, rows_per_stripe=64, stripes_per_file=3, leave_out=leave_out
    ) as writer:
        for start in range(0, rows.num_rows, 101):
            writer.write(rows.slice(start, 101))
    return Table.open(folder)


@pytest.fixture(scope="module")
def tables(tmp_path_factory) -> tuple[Table, Table]:
    """Whole, and with lists left out."""
    folder, rows = tmp_path_factory.mktemp("tables"), rows_of(0)
    return written(folder / "whole", rows), written(folder / "left_out", rows, LEFT)


def rows_in(table: Table) -> pa.Table:
    return pa.concat_tables(map(table.read, table.stripes))


def same_epochs(one: Table, other: Table, transform=None, **options) -> int:
    """The number of batches, which are equal to the bit."""
    batches = [open_loader(table, transform=transform, **options) for table in (one, other)]
    count = 0
    for left, right in zip(*batches, strict=True):
        assert_same_batch(left, right)
        count += 1
    return count


def test_other_readers_see_a_null_for_each_list_that_repeats(tables):
    whole, left = tables
    for had, has in zip(whole.files, left.files, strict=True):
        before, after = pq.read_table(had), pq.ParquetFile(has)
        assert LEFT_OUT in after.metadata.metadata
        for group in range(after.num_row_groups):
            lists = after.read_row_group(group)
            first = 64 * group
            for name in (*SCHEMA.sparse_names, *SCHEMA.weights_names):
                were = before[name].slice(first, lists.num_rows).to_pylist()
                expected = [
                    None if name in LEFT and at and one == were[at - 1] else one
                    for at, one in enumerate(were)
                ]
                assert lists[name].to_pylist() == expected
                assert (name != "history") or lists[name].null_count > 20


@pytest.mark.parametrize("seed", range(6))
def test_rows_are_read_as_they_were_written(tmp_path, seed):
    rows = rows_of(seed, num_rows=1 + 97 * seed)
    table = written(tmp_path / "t", rows, LEFT)
    assert rows_in(table).equals(rows)
    assert rows_in(table).schema.equals(SCHEMA.arrow())


@pytest.mark.parametrize("size", [1, 7, 64, 1000])
def test_rows_that_are_read_in_parts_have_the_lists_of_the_part_before(tables, size):
    whole, left = tables
    for had, has in zip(whole.files, left.files, strict=True):
        with left.opened(has) as file, whole.opened(had) as before:
            columns = ["history", "row", "tags"]
            ours, theirs = (
                pa.Table.from_batches(source.iter_batches(size, columns=columns))
                for source in (file, before)
            )
            assert ours.equals(theirs)
    chunks = pa.concat_tables(scan(left, 2_000))
    assert chunks.equals(rows_in(whole))


@pytest.mark.parametrize("sessions", ["split", "together", "whole"])
@pytest.mark.parametrize("transform", [None, BatchTransform([], Exact(GROUPS, validate=True))])
@pytest.mark.parametrize("options", [{}, {"shuffle": False, "window": 0}, {"window": 3}])
def test_batches_are_those_of_whole_files(tables, sessions, transform, options):
    assert same_epochs(*tables, transform, sessions=sessions, tail="pad", **options) > 40


def test_ranks_and_streams_that_begin_within_a_stripe_have_its_lists(tables):
    for rank in range(3):
        options = {"rank": rank, "world_size": 3, "batch_size": 7, "window": 1}
        assert same_epochs(*tables, BatchTransform([], Exact(GROUPS)), **options) > 20


def test_a_resume_within_a_stripe_has_its_lists(tables):
    check_resume(lambda: open_loader(tables[1], transform=BatchTransform([], Exact(GROUPS))))


@pytest.mark.parametrize(
    ("where", "share"),
    [
        ("row > 70", 1.0),
        ("history is not null and row > 70", 1.0),
        (None, 0.5),
    ],
)
def test_rows_that_are_selected_have_the_lists_of_rows_that_are_not(tables, where, share):
    selected = [
        table.select(Selection(where=where, sessions_share=share, schema=table.schema))
        for table in tables
    ]
    assert selected[0].num_rows < tables[0].num_rows
    assert rows_in(selected[0]).equals(rows_in(selected[1]))
    assert same_epochs(*selected, BatchTransform([], Exact(GROUPS, validate=True))) > 10


def test_a_file_may_lack_a_column_of_which_others_leave_out_lists(tmp_path):
    rows = rows_of(1)
    some = dataclasses.replace(SCHEMA, sparse=tuple(f for f in SCHEMA.sparse if f.name != "tags"))
    tables = []
    for folder, left in (tmp_path / "whole", ()), (tmp_path / "left_out", LEFT):
        written(folder / "a", rows.slice(0, 250), left)
        leave_out = [name for name in left if name != "tags"]
        with TableWriter(folder / "b", some, rows_per_stripe=64, leave_out=leave_out) as writer:
            writer.write(rows.slice(250).drop_columns(["tags"]))
        tables.append(Table.open([folder / "a", folder / "b"], SCHEMA, absent=["tags"]))
    assert same_epochs(*tables, BatchTransform([], Exact(GROUPS, validate=True))) > 40


def test_kept_stripes_are_read_both_ways(tables):
    with keeping_stripes():
        assert same_epochs(*tables) > 40
        assert rows_in(tables[1]).equals(rows_in(tables[0]))
        assert same_epochs(*tables, BatchTransform([], Exact(GROUPS))) > 40


def test_a_rewrite_has_all_lists(tables, tmp_path):
    whole, left = tables
    rewrite(left.path, tmp_path / "t", RewriteConfig(rows_per_stripe=100))
    (file,) = (tmp_path / "t").glob("*.parquet")
    assert LEFT_OUT not in pq.read_metadata(file).metadata
    assert (
        pq.read_table(file, columns=[*LEFT]).to_pydict() == rows_in(whole).select(LEFT).to_pydict()
    )
    assert not pq.read_schema(file).field("history").nullable
    assert rows_in(Table.open(tmp_path / "t")).equals(rows_in(whole))


def test_a_rewrite_leaves_out_lists(tables, tmp_path):
    whole, left = tables
    config = RewriteConfig(rows_per_stripe=64, stripes_per_file=3, leave_out_repeats=True)
    rewrite(whole.path, tmp_path / "t", config)
    for file in left.files:
        again = tmp_path / "t" / file.name
        assert pq.read_table(again).equals(pq.read_table(file))
        assert (
            pq.read_metadata(again).metadata[LEFT_OUT] == pq.read_metadata(file).metadata[LEFT_OUT]
        )
    assert same_epochs(whole, Table.open(tmp_path / "t")) > 40


def test_a_strangers_files_keep_their_lists(tmp_path):
    (tmp_path / "t").mkdir()
    pq.write_table(pa.table({"ids": [[1], [1]]}), tmp_path / "t" / "a.parquet")
    with pytest.raises(DataError, match=r"a\.parquet: is not a table of `recd`"):
        rewrite(tmp_path / "t", tmp_path / "u", RewriteConfig(leave_out_repeats=True))
    assert not (tmp_path / "u").exists()


def test_memory_is_counted_with_the_lists_that_are_left_out(tables):
    whole, left = (decoded_bytes(table) for table in tables)
    assert whole * 0.9 <= left <= whole * 1.2


def test_clustering_leaves_out_lists_and_clusters_what_lacks_some(tables, tmp_path):
    def cluster(table: Table, name: str, leave_out_repeats: bool) -> Table:
        config = ClusterConfig(memory_gb=1e-3, leave_out_repeats=leave_out_repeats)
        return build_cluster(config, Context()).run(table, tmp_path / name)

    whole, left = cluster(tables[0], "whole", False), cluster(tables[0], "left", True)
    again = cluster(left, "again", False)
    assert rows_in(left).equals(rows_in(whole))
    assert rows_in(again).equals(rows_in(whole))
    raw = [
        pq.read_table(list(table.files), columns=["history", "scored"]) for table in (left, again)
    ]
    assert [one["history"].null_count > 300 for one in raw] == [True, False]
    assert raw[0]["scored"].null_count == 0


def test_a_first_list_that_is_missing_is_an_error_with_its_place(tables, tmp_path):
    shutil.copytree(tables[1].path, tmp_path / "t")
    file = min((tmp_path / "t").glob("*.parquet"))
    source = pq.ParquetFile(file)
    rows = source.read_row_group(0).slice(1)
    start = next(at for at, one in enumerate(rows["history"].to_pylist()) if one is None)
    metadata = {**source.schema_arrow.metadata, LEFT_OUT: source.metadata.metadata[LEFT_OUT]}
    pq.write_table(rows.slice(start).replace_schema_metadata(metadata), file)
    table = Table.open(tmp_path / "t")
    match = r"part-00000\.parquet, row group 0: 'history': its first list is left out, but no row"
    with pytest.raises(DataError, match=match):
        table.read(table.stripes[0])
    with pytest.raises(DataError, match=match):
        [*open_loader(table)]


def test_a_note_that_cannot_be_read_is_an_error(tables, tmp_path):
    rows = pq.read_table(tables[0].files[0])
    (tmp_path / "t").mkdir()
    noted = {**rows.schema.metadata, LEFT_OUT: b"[7"}
    pq.write_table(rows.replace_schema_metadata(noted), tmp_path / "t" / "a.parquet")
    with pytest.raises(
        DataError, match=r"a\.parquet: its footer's 'recd_left_out'.* cannot be read"
    ):
        Table.open(tmp_path / "t")


def test_spark_refuses_them(tables):
    with pytest.raises(DataError, match="lists that its files leave out"):
        check_that_files_are_rows(tables[1])
    check_that_files_are_rows(tables[0])


def test_who_looks_at_files_by_itself_sees_all_lists(tables):
    shown = [survey(foreign_files([table.path])) for table in tables]
    whole, left = (
        [(one.name, one.nulls, one.values, one.distinct, one.lengths) for one in each.columns]
        for each in shown
    )
    assert left == whole
