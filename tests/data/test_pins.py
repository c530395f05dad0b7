"""Value tests: the names of files that a run pins, whichever files are there, and what was in
them."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from recd_plugins.data.dataset import Tables
from recd_plugins.data.foreign import ForeignFeature, ForeignSchema
from recd_plugins.data.pins import check_pins, copy_pins, write_pins
from recd_plugins.data.table import Table
from recd_plugins.errors import DataError


def test_a_file_that_came_later_to_one_of_several_globs_is_named(tmp_path: Path) -> None:
    schema = ForeignSchema(session_id=None, timestamp=None)

    def tables() -> Tables:
        globs = [tmp_path / "log" / "a" / "*" / "p.parquet", tmp_path / "log" / "*" / "q.parquet"]
        table = Table.open(globs, schema)
        return Tables(train=table, test=table)

    def written(*parts: str) -> None:
        path = tmp_path.joinpath("log", *parts)
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table({"label": [0, 1]}), path)

    written("a", "1", "p.parquet")
    written("a", "q.parquet")
    write_pins(tmp_path, tables())
    check_pins(tmp_path, tables())
    pinned = json.loads((tmp_path / "pins.json").read_text())["train"]["files"]
    assert [*pinned] == ["a/1/p.parquet", "a/q.parquet"]
    written("b", "q.parquet")
    with pytest.raises(DataError, match=r"log/b/q\.parquet: was not there when the run began"):
        check_pins(tmp_path, tables())


def test_a_vocabulary_that_was_written_anew_is_named(tmp_path: Path) -> None:
    path = tmp_path / "brand.parquet"
    brand = ForeignFeature(name="brand", num_ids=9, ids="vocabulary", vocabulary=path)
    schema = ForeignSchema(session_id=None, timestamp=None, sparse=(brand,))
    pq.write_table(pa.table({"label": [0, 1], "brand": ["a", "b"]}), tmp_path / "rows.parquet")

    def tables(*values: str) -> Tables:
        pq.write_table(pa.table({"value": values}), path)
        os.utime(path, (now := len(values), now))
        table = Table.open(tmp_path / "rows.parquet", schema)
        return Tables(train=table, test=table)

    write_pins(tmp_path, tables("a", "b"))
    pinned = json.loads((tmp_path / "pins.json").read_text())["train"]["files"]
    assert [*pinned] == ["rows.parquet", "vocabularies/brand.parquet"]
    check_pins(tmp_path, tables("a", "b"))
    with pytest.raises(DataError, match=r"brand\.parquet: is not what it was when the run began"):
        check_pins(tmp_path, tables("b", "a", "c"))


def test_a_file_that_a_transform_reads_and_that_was_written_anew_is_named(tmp_path: Path) -> None:
    schema = ForeignSchema(session_id=None, timestamp=None)
    pq.write_table(pa.table({"label": [0, 1]}), tmp_path / "rows.parquet")
    table = Table.open(tmp_path / "rows.parquet", schema)
    tables, ids = Tables(train=table, test=table), tmp_path / "ids.parquet"
    ids.write_text("1 becomes 2")
    write_pins(tmp_path, tables, {"preprocess[0].file": ids})
    check_pins(tmp_path, tables, {"preprocess[0].file": ids})
    ids.write_text("1 becomes 3")
    says = r"ids\.parquet: is not what it was when the run began \(preprocess\[0\]\.file\)"
    with pytest.raises(DataError, match=says):
        check_pins(tmp_path, tables, {"preprocess[0].file": ids})
    check_pins(tmp_path, tables, {"preprocess[1].file": ids})  # the registry says another thing
    copy_pins(tmp_path, tmp_path / "copy")
    with pytest.raises(DataError, match=says):
        check_pins(tmp_path / "copy", tables, {"preprocess[0].file": ids})
    (tmp_path / "pins.json").write_bytes(b"\xa2")
    copy_pins(tmp_path, tmp_path / "damaged")
    with pytest.raises(DataError, match=r"damaged.pins\.json: lists the files .* cannot be read"):
        check_pins(tmp_path / "damaged", tables, {"preprocess[0].file": ids})
    (tmp_path / "pins.json").unlink()  # as of a run of before there were any
    copy_pins(tmp_path, tmp_path / "older")
    check_pins(tmp_path / "older", tables, {"preprocess[0].file": ids})
