"""Tables written to a store: whole, or refused; rewritten, the layout shown before and after."""

from __future__ import annotations

import json
import uuid

import pyarrow as pa
import pytest
from stored import SCHEMA, put, rows
from typer.testing import CliRunner

from recd_plugins.cli.main import app
from recd_plugins.data.files import UNFINISHED
from recd_plugins.data.rewrite import RewriteConfig, rewrite
from recd_plugins.data.table import Table, TableWriter, write_table
from recd_plugins.errors import DataError
from recd_plugins.storage.uri import location_of


@pytest.fixture(params=["s3://tables", "memory://tables"])
def target(request, store):
    return location_of(f"{request.param}/{uuid.uuid4().hex}")


def everything(table):
    return pa.concat_tables(table.read(stripe) for stripe in table.stripes)


def test_a_table_is_there_once_its_writer_closes(target):
    with TableWriter(target, SCHEMA, rows_per_stripe=50, stripes_per_file=2) as writer:
        writer.write(rows(230))
        with pytest.raises(DataError, match="is not whole"):
            Table.open(target)
    table = Table.open(target)
    assert len(table.files) == 3
    assert everything(table).equals(rows(230).cast(SCHEMA.arrow()))
    write_table(target, SCHEMA, [rows(20)])  # as on disk, it takes the place of the one before
    assert Table.open(target).num_rows == 20


def test_an_error_leaves_no_table(target):
    def half():
        with TableWriter(target, SCHEMA, rows_per_stripe=10, stripes_per_file=1) as writer:
            writer.write(rows(30))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        half()
    with pytest.raises(DataError, match=r"there is no such table|holds no \.parquet"):
        Table.open(target)


def test_a_rewrite_that_was_ended_goes_on(target, tmp_path, monkeypatch):
    with TableWriter(tmp_path / "t", SCHEMA, rows_per_stripe=40) as writer:
        writer.write(rows(400))
    config = RewriteConfig(first=("f5", "f1"), rows_per_stripe=50, stripes_per_file=2)

    def stop(what, done, total):
        if done >= 200:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        rewrite(tmp_path / "t", target, config, stop)
    with pytest.raises(DataError, match="is not whole"):
        Table.open(target)
    before = {file.name: stat for file, stat in target.listed().items() if "part" in file.name}
    assert len(before) == 2
    with TableWriter(tmp_path / "short", SCHEMA) as writer:
        writer.write(rows(30))
    cut = (tmp_path / "short" / "part-00000.parquet").read_bytes()
    (target / "part-00002.parquet").write_bytes(cut)  # as an error within a file leaves it
    rewrite(tmp_path / "t", target, config)
    after = {file.name: stat for file, stat in target.listed().items()}
    assert UNFINISHED not in after
    assert {name: after[name] for name in before} == before  # not written again
    there, here = everything(Table.open(target)), everything(Table.open(tmp_path / "t"))
    assert there.to_pydict() == here.to_pydict()
    with pytest.raises(DataError, match="is there already"):
        rewrite(tmp_path / "t", target, config)


def test_layout_before_and_after_a_rewrite_by_the_command(store, tmp_path):
    top = location_of(f"s3://tables/{uuid.uuid4().hex}")
    with TableWriter(tmp_path / "t", SCHEMA, rows_per_stripe=100) as writer:
        writer.write(rows(400))
    put(tmp_path / "t", top / "before")
    wanted = [word for name in ("f1", "f5") for word in ("--column", name)]
    found = {}
    for name in ("before", "after"):
        told = CliRunner().invoke(
            app, ["data", "layout", f"{top}/{name}", "--json", "--hole", "0", *wanted]
        )
        assert told.exit_code == 0, told.output
        found[name] = json.loads(told.stdout)["reading"]["what is read"]
        if name == "before":
            done = CliRunner().invoke(
                app,
                f"data rewrite {top}/before {top}/after --first f5 --first f1 "
                "--rows-per-stripe 200".split(),
            )
            assert done.exit_code == 0, done.output
    assert (found["before"]["ios"], found["after"]["ios"]) == (8, 2)


def test_commands_that_take_paths_refuse_uris():
    done = CliRunner().invoke(app, ["data", "import", "s3://b/x.csv", "s3://b/table"])
    assert done.exit_code == 2
    assert "is on a store" in done.output.replace("\n", " ")
