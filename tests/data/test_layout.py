"""Rung 1 and 2 (values, properties): what a layout says of a table, what a rewrite makes of it."""

from __future__ import annotations

import itertools
import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

import recd_plugins as rp
from recd_plugins.cli.main import app
from recd_plugins.data import rewrite as rewriting
from recd_plugins.data.layout import layout_of
from recd_plugins.data.parquet.coalesced_reads import coalesced_ios
from recd_plugins.data.reader.read_log import note_reading, popularity, with_digest
from recd_plugins.data.rewrite import RewriteConfig, columns_after, flattened, rewrite
from recd_plugins.errors import DataError
from recd_plugins.notices import NoticeWarning
from recd_plugins.testing.batches import random_table
from recd_plugins.testing.probe import SCHEMA

LISTS = pa.list_(pa.int64())


def maps(rows: list[dict[Any, Any]], key: pa.DataType, item: pa.DataType) -> pa.Array:
    return pa.array([list(row.items()) for row in rows], pa.map_(key, item))


def wide(folder: Path, rows: int = 50, columns: int = 12, group: int = 20) -> Path:
    """Columns c0, c1, ... of lists, and a map `m` of lists by key."""
    folder.mkdir()
    made = {
        f"c{n}": pa.array([[row * n, row] * (row % 3) for row in range(rows)], LISTS)
        for n in range(columns)
    }
    each = [{key: [row, key] for key in (1, 7, 12) if row % key == 0} for row in range(rows)]
    made["m"] = maps(each, pa.int64(), LISTS)
    table = pa.table(made)
    table = table.cast(table.schema.set(3, pa.field("c3", LISTS, nullable=False)))
    for number in range(2):
        part = table.slice(number * rows // 2, rows // 2)
        pq.write_table(
            part, folder / f"f{number}.parquet", row_group_size=group, use_dictionary=False
        )
    return folder


SPANS = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 10)), max_size=12)


@given(spans=SPANS, hole=st.integers(-1, 12), most=st.integers(5, 80))
def test_coalesced_reads_hold_every_span_and_no_gap_beyond_the_hole(
    spans: list[tuple[int, int]], hole: int, most: int
) -> None:
    apart, at = [], 0
    for gap, size in spans:
        apart.append((at + gap, size))
        at += gap + size
    ios = coalesced_ios(apart, hole=hole, most=most)
    for first, size in apart:
        assert sum(begin <= first and first + size <= end for begin, end in ios) == 1
    for (_, end), (begin, _) in itertools.pairwise(ios):
        assert begin >= end
    for begin, end in ios:
        inside = sorted((first, size) for first, size in apart if begin <= first < end)
        assert len(inside) == 1 or end - begin <= most
        gaps = [b - (a + n) for (a, n), (b, _) in itertools.pairwise(inside)]
        assert all(gap <= hole for gap in gaps)


def test_a_layout_is_what_the_footers_say(tmp_path: Path) -> None:
    found = layout_of(wide(tmp_path / "t"))
    assert (found.files, found.stripes, found.num_rows) == (2, 4, 50)
    assert [one.name for one in found.columns] == [*(f"c{n}" for n in range(12)), "m"]
    every = found.reading([one.name for one in found.columns])
    assert every.ios == 4  # columns of a stripe lie side by side
    assert every.read == every.wanted == sum(one.compressed for one in found.columns)
    some = found.reading(["c0", "c5"], hole=0)
    assert some.ios == 8
    assert some.read == some.wanted == sum(found.columns[n].compressed for n in (0, 5))
    over = found.reading(["c0", "c5"])
    assert over.ios == 4
    assert over.read > over.wanted == some.wanted
    assert over.seconds["HDD"] == pytest.approx(4 * 8e-3 + over.read / 150e6)


def test_a_rewrite_keeps_rows_and_footers_and_lays_columns_out_anew(tmp_path: Path) -> None:
    source = wide(tmp_path / "t")
    config = RewriteConfig(
        flatten=("m",), first=("c9", "m_7", "c3"), rows_per_stripe=8, stripes_per_file=3
    )
    assert rewrite(source, tmp_path / "r", config) == 50
    before, after = pq.read_table(source), pq.read_table(tmp_path / "r")
    names = ["c9", "m_7", "c3", *(f"c{n}" for n in range(12) if n not in (3, 9)), "m_1", "m_12"]
    assert after.column_names == names
    assert [one.name for one in after.schema if not one.nullable] == ["c3"]
    for n in range(12):
        assert after[f"c{n}"].to_pylist() == before[f"c{n}"].to_pylist()
    for key in (1, 7, 12):
        wanted = [dict(row).get(key, []) for row in before["m"].to_pylist()]
        assert after[f"m_{key}"].to_pylist() == wanted
    found = layout_of(tmp_path / "r")
    assert (found.files, found.stripes) == (3, 7)
    scattered, together = (
        layout_of(path).reading(["c9", "c3"], hole=0) for path in (source, tmp_path / "r")
    )
    assert scattered.ios == 2 * 4
    assert together.ios == 2 * 7
    near = layout_of(tmp_path / "r").reading(["c9", "m_7", "c3"], hole=0)
    assert near.ios == 7
    with pytest.raises(DataError, match="is there already"):
        rewrite(source, tmp_path / "r", config)


def test_an_ended_rewrite_goes_on_behind_its_last_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = wide(tmp_path / "t"), tmp_path / "r"
    config = RewriteConfig(flatten=("m",), rows_per_stripe=7, stripes_per_file=2)
    rewrite(source, tmp_path / "whole", config)
    write, written = rewriting._write, []

    def ended(file: Path, *rest: Any) -> int:
        if len(written) == 2:
            raise KeyboardInterrupt
        written.append(file.name)
        return write(file, *rest)

    monkeypatch.setattr(rewriting, "_write", ended)
    with pytest.raises(KeyboardInterrupt):
        rewrite(source, target, config)
    assert not target.exists()
    monkeypatch.undo()

    def counted(file: Path, *rest: Any) -> int:
        written.append(file.name)
        return write(file, *rest)

    monkeypatch.setattr(rewriting, "_write", counted)
    rewrite(source, target, config)
    assert len(written) == 4  # of 50 rows in files of 14
    assert pq.read_table(target).equals(pq.read_table(tmp_path / "whole"))
    assert sorted(file.name for file in target.iterdir()) == sorted(
        file.name for file in (tmp_path / "whole").iterdir()
    )


def test_what_is_left_of_a_rewrite_that_was_being_removed_is_not_gone_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another one begins, which removes it, and is ended as it has removed a file."""
    source, target, part = wide(tmp_path / "t"), tmp_path / "r", tmp_path / "r.part"
    config = RewriteConfig(rows_per_stripe=7, stripes_per_file=2)
    rewrite(source, tmp_path / "whole", config)
    write = rewriting._write

    def ends(file: Path, *rest: Any) -> int:
        if len(list(part.glob("part-*"))) == 2:
            raise KeyboardInterrupt
        return write(file, *rest)

    def half(folder: Path, **options: Any) -> None:
        min(folder.glob("part-*")).unlink()
        raise KeyboardInterrupt

    for place, name, ending, asked in (
        (rewriting, "_write", ends, config),
        (shutil, "rmtree", half, RewriteConfig(rows_per_stripe=9)),
    ):
        with monkeypatch.context() as within:
            within.setattr(place, name, ending)
            with pytest.raises(KeyboardInterrupt):
                rewrite(source, target, asked)
    rewrite(source, target, config)
    assert pq.read_table(target).equals(pq.read_table(tmp_path / "whole"))


VALUES = st.dictionaries(st.sampled_from("abc"), st.lists(st.integers(0, 3), max_size=3))


@given(rows=st.lists(VALUES, max_size=6), skipped=st.integers(0, 2))
def test_flattened_maps_have_each_keys_item(rows: list[dict[str, list[int]]], skipped: int) -> None:
    for kind in (LISTS, pa.large_list(pa.int64())):
        lists = maps(rows, pa.large_string(), kind).slice(skipped)
        made = flattened(lists, ["c", "a", "none"])
        assert [one.to_pylist() for one in made] == [
            [row.get(key, []) for row in rows[skipped:]] for key in ("c", "a", "none")
        ]
        assert {one.type for one in made} == {kind}
    sums = [{key: float(sum(ids)) for key, ids in row.items()} for row in rows]
    (floats,) = flattened(maps(sums, pa.string(), pa.float64()).slice(skipped), ["b"])
    assert floats.to_pylist() == [row.get("b") for row in sums[skipped:]]


def test_a_table_without_rows_keeps_its_columns(tmp_path: Path) -> None:
    made = pa.table({"label": pa.array([], pa.float32()), "m": maps([], pa.large_string(), LISTS)})
    pq.write_table(made, tmp_path / "none.parquet")
    assert rewrite(tmp_path / "none.parquet", tmp_path / "r", RewriteConfig(flatten=("m",))) == 0
    assert pq.read_table(tmp_path / "r").schema.equals(made.select(["label"]).schema)


def test_what_cannot_be_rewritten_is_named(tmp_path: Path) -> None:
    source = wide(tmp_path / "t")
    for config, message in (
        (RewriteConfig(flatten=("n",)), "no column 'n' to flatten; .*'m'|Known"),
        (RewriteConfig(flatten=("c1",)), "only a map from .*Name another column"),
        (RewriteConfig(first=("c99",)), "no column 'c99' to come first"),
    ):
        with pytest.raises(DataError, match=message):
            rewrite(source, tmp_path / "r", config)
        if config.flatten:
            with pytest.raises(DataError, match=message):
                columns_after(source, config, lambda *_: None)


def test_popularity_counts_jobs_of_the_latest_days(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "reads.jsonl"
    note_reading(log, tmp_path, ["a", "b"], now=1e9)
    note_reading(log, tmp_path, ["b"], now=1e9 + 86_400)
    note_reading(log, tmp_path, ["c"], now=1e9 - 30 * 86_400)
    assert popularity(log, now=1e9 + 86_400) == {"b": 2, "a": 1}
    assert popularity(log, days=0.5, now=1e9 + 86_400) == {"b": 1}
    whole = log.read_text()
    log.write_text(whole + '{"time": 1')  # a job writes it now
    with pytest.warns(NoticeWarning, match=r"reads\.jsonl:4: is incomplete and does not count"):
        assert popularity(log, now=1e9 + 86_400) == {"b": 2, "a": 1}
    for altered in (whole.replace('"a"', '"c"'), whole.replace('"c"', '"a"'), whole + "{}\n"):
        log.write_text(altered)
        with pytest.raises(
            DataError, match=r"reads\.jsonl:\d: is not a line of a read log, or was"
        ):
            popularity(log)


@pytest.mark.parametrize(
    "line",
    ['{"time": 1e9, "columns": "ab"}', '{"time": 1e9, "columns": [1]}', "[" * 100_000, "null"],
)
def test_a_line_that_is_none_of_a_read_log_is_named(tmp_path: Path, line: str) -> None:
    """A text is a sequence too: of letters, which are no columns."""
    log = tmp_path / "reads.jsonl"
    note_reading(log, Path("t"), ["a"], now=1e9)
    log.write_text(line + "\n" + log.read_text())
    with pytest.raises(DataError, match=r"reads\.jsonl:1: is not a line of a read log"):
        popularity(log)


def test_a_read_log_that_cannot_be_reached_is_named_with_a_remedy(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(DataError, match=r"folder: .* be written .*`reader\.read_log`"):
        note_reading(tmp_path / "folder", Path("t"), ["a"])
    with pytest.raises(DataError, match=r"folder: .* be read .*`reader\.read_log`"):
        popularity(tmp_path / "folder")


def test_a_read_log_of_which_nothing_counts_is_refused(tmp_path: Path) -> None:
    """Else all would be written anew, in the order that it had."""
    table, log = random_table(tmp_path / "t", SCHEMA, 20).path, tmp_path / "old.jsonl"
    log.write_text(with_digest({"time": 0.0, "columns": ["history"]}))
    rewrite = ["data", "rewrite", str(table), str(tmp_path / "r"), "--read-log", str(log)]
    refused = CliRunner().invoke(app, rewrite)
    assert refused.exit_code == 2
    assert "no job of the latest 7 days read a column of this table" in refused.stderr
    assert not (tmp_path / "r").exists()


def test_the_commands_explain_and_rewrite_by_what_readers_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    table = str(random_table(tmp_path / "t", SCHEMA, 200).path)
    registry = {
        "dataset": {"use": "parquet", "train": table, "test": table},
        "reader": {"use": "local", "read_log": "reads.jsonl"},
        "train": {"batch_size": 8, "device": "cpu"},
    }
    assert len(rp.load(registry).loader(0, 1))
    read = popularity(Path("reads.jsonl"))
    assert read == dict.fromkeys(("label", *SCHEMA.dense, *SCHEMA.sparse_names), 1)
    note_reading(Path("reads.jsonl"), Path(table), ["history", "shop"])

    done = json.loads(shown("rewrite", table, "r", "--read-log", "reads.jsonl", "--json"))
    assert done["rows"] == 200
    assert set(done["first"][:2]) == {"history", "shop"}
    wanted = ("--column", "history", "--column", "sh*")
    found = json.loads(shown("layout", "r", "--json", *wanted))
    reading = found["reading"]["what is read"]
    assert set(reading["columns"]) == {"history", "shop"}
    assert (reading["ios"], reading["read"]) == (1, reading["wanted"])
    assert found["reading"]["one by one"]["ios"] == 2
    registry["dataset"] = {"use": "parquet", "train": "r", "test": "r"}  # its footers say it all
    assert rp.load(registry).schema == SCHEMA
    assert "200 rows in 1 file" in shown("layout", "r")
    assert "makes larger ones" not in shown("layout", "r")
    assert "20 stripes (row groups) of 10 rows: each is" in shown("layout", small_stripes(tmp_path))


def test_a_rewrite_into_the_table_itself_is_refused(tmp_path: Path) -> None:
    table = random_table(tmp_path / "t", SCHEMA, 20).path
    target = tmp_path / "other" / ".." / "t" / "deep" / "anew"
    done = CliRunner().invoke(app, ["data", "rewrite", str(table), str(target)])
    assert done.exit_code == 2
    assert f"TARGET: {target} is inside the table {table}" in done.stderr
    assert not (tmp_path / "t" / "deep").exists()


def small_stripes(folder: Path) -> str:
    """A table of somebody who writes a row group for each few rows."""
    pq.write_table(pa.table({"label": [0, 1] * 100}), folder / "s.parquet", row_group_size=10)
    return str(folder / "s.parquet")


def shown(*arguments: str) -> str:
    """What `recd data` prints."""
    done = CliRunner().invoke(app, ["data", *arguments])
    assert done.exit_code == 0, done.output
    return done.stdout


def test_chunks_are_of_their_columns_whatever_dots_names_have(tmp_path: Path) -> None:
    """A field of a struct becomes a column `user.city` by an import."""
    kinds = {
        "user": pa.struct({"city": pa.int64(), "tags": pa.list_(pa.struct({"x": pa.int8()}))}),
        "user.city": pa.int64(),
        "user.seen": LISTS,
        "a.b.c": pa.map_(pa.string(), pa.float32()),
        "day": pa.dictionary(pa.int8(), pa.string()),
    }
    rows: dict[str, list[Any]] = {
        "user": [{"city": 1, "tags": [{"x": 2}]}] * 3,
        "user.city": [1, 2, 3],
        "user.seen": [[1, 2], [], None],
        "a.b.c": [[("k", 1.0)]] * 3,
        "day": ["mon", "tue", "mon"],
    }
    made = pa.table({name: pa.array(rows[name], kind) for name, kind in kinds.items()})
    pq.write_table(made, tmp_path / "a.parquet", compression="snappy")
    found = layout_of(tmp_path)
    group = pq.read_metadata(tmp_path / "a.parquet").row_group(0)
    sizes = [group.column(number).total_compressed_size for number in range(group.num_columns)]
    each = {one.name: (one.compressed, one.codec) for one in found.columns}
    assert each == {
        "user": (sum(sizes[:2]), "snappy"),
        "user.city": (sizes[2], "snappy"),
        "user.seen": (sizes[3], "snappy"),
        "a.b.c": (sum(sizes[4:6]), "snappy"),
        "day": (sizes[6], "snappy"),
    }
    assert found.reading(["user.seen"]).wanted == sizes[3]


def test_a_table_without_columns_is_named_with_a_remedy(tmp_path: Path) -> None:
    pq.write_table(pa.table({}), tmp_path / "a.parquet")
    with pytest.raises(DataError, match=r"a\.parquet: has no columns\. Name another table"):
        layout_of(tmp_path / "a.parquet")
