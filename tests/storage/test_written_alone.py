"""Rung 1 (values, on files): of two processes that write one table, the second is refused."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from filelock import FileLock

import recd_plugins as rp
from recd_plugins.config import parse
from recd_plugins.data.foreign import ForeignSchema
from recd_plugins.data.importing.surveying.survey import survey
from recd_plugins.data.importing.table_files import foreign_files
from recd_plugins.data.importing.table_import import TableImport
from recd_plugins.data.rewrite import RewriteConfig, rewrite
from recd_plugins.errors import DataError
from recd_plugins.storage.lock_file import written_alone
from recd_plugins.testing.batches import random_table
from recd_plugins.testing.probe import SCHEMA

HOLDER = """
import sys, time
from pathlib import Path
from recd_plugins.storage.lock_file import written_alone
with written_alone(Path(sys.argv[1]), Path("table")):
    print("holds", flush=True)
    time.sleep(600)
"""


@contextmanager
def another_process_writes(part: Path) -> Iterator[int]:
    command = [sys.executable, "-c", HOLDER, str(part)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"holds\n"
        yield holder.pid
        holder.kill()


def import_into(folder: Path) -> Path:
    (folder / "rows.csv").write_text("click,item\n" + "1,7\n0,8\n" * 50)
    item = {"name": "item", "num_ids": 9}
    columns = {"label": "click", "session_id": None, "timestamp": None, "sparse": [item]}
    schema = parse(ForeignSchema, columns, "schema")
    found = survey(foreign_files([folder / "rows.csv"]))
    TableImport(found.files, folder / "table", schema, found.read_as, workers=1).run()
    return folder / "table"


def rewrite_into(folder: Path) -> Path:
    if not (folder / "source").exists():
        random_table(folder / "source", SCHEMA, 50)
    rewrite(folder / "source", folder / "table", RewriteConfig())
    return folder / "table"


@pytest.mark.parametrize("write", [import_into, rewrite_into])
def test_the_second_writer_of_a_table_is_refused(
    write: Callable[[Path], Path], tmp_path: Path
) -> None:
    """It neither removes what the first has done, nor adds to it; the lock goes with its process,
    and the next one leaves none behind."""
    (tmp_path / "table.part").mkdir()
    (tmp_path / "table.part" / "of-the-first").touch()
    with another_process_writes(tmp_path / "table.part") as pid:
        with pytest.raises(DataError, match=rf"table: is being written by process {pid} of .* si"):
            write(tmp_path)
        assert [one.name for one in (tmp_path / "table.part").iterdir()] == ["of-the-first"]
    table = write(tmp_path)
    assert any(table.rglob("*.parquet"))
    assert not [one.name for one in tmp_path.iterdir() if one.name.startswith(".")]
    assert not (tmp_path / "table.part").exists()


def test_a_lock_that_was_removed_meanwhile_is_taken_anew(tmp_path: Path) -> None:
    """Whoever opened the file of one that ends must not have a lock that nobody else sees."""
    lock = tmp_path / ".table.part.lock"
    stat = os.fstat
    removed = []

    def another_ends_now(descriptor: int) -> os.stat_result:
        if not removed:
            lock.unlink()
            removed.append(True)
        return stat(descriptor)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(os, "fstat", another_ends_now)
        with written_alone(tmp_path / "table.part", tmp_path / "table"):
            assert lock.exists()
    assert removed
    assert not lock.exists()


def test_who_waits_for_tables_of_another_process_says_so(tmp_path: Path) -> None:
    rows = {"use": "random", "samples": 64, "test_samples": 64, "dense": 1, "num_ids": [9]}
    stack = rp.load({"plugins": ["recd_dlrm"], "dataset": rows, "folder": str(tmp_path)})
    said: list[str] = []
    with FileLock(tmp_path / ".lock") as another:

        def told(what: str, done: int, total: int | None) -> None:
            if not said:
                another.release()
            said.append(what)

        tables = stack.prepare(told)
    assert said[0] == f"waiting for another process, which writes tables in {tmp_path}"
    assert tables.train.num_rows == 64
