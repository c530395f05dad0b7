"""Tables written to a store: whole, or refused; rewritten, the layout shown before and after."""

from __future__ import annotations

import json
import uuid

import pytest
from stored import SCHEMA, everything, put, rows
from typer.testing import CliRunner

from benchmarks.s3_endpoint import seeded
from recd_plugins.cli.main import app
from recd_plugins.data.files.paths import UNFINISHED
from recd_plugins.data.importing.foreign_file import num_bytes
from recd_plugins.data.importing.table_files import foreign_files
from recd_plugins.data.rewrite import RewriteConfig, rewrite
from recd_plugins.data.table import Table
from recd_plugins.data.table_writer import TableWriter, write_table
from recd_plugins.errors import DataError
from recd_plugins.storage.uri import location_of


@pytest.fixture(params=["s3://tables", "memory://tables"])
def target(request, store):
    return location_of(f"{request.param}/{uuid.uuid4().hex}")


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


def test_what_is_unfinished_is_refused_on_a_disk_too(tmp_path):
    """Somebody may have copied it from a store."""
    write_table(tmp_path / "copied", SCHEMA, [rows(20)])
    (tmp_path / "copied" / UNFINISHED).write_text("")
    for path in (tmp_path / "copied", tmp_path / "copied" / "*.parquet", tmp_path / "c*"):
        with pytest.raises(DataError, match=r"copied: is not whole: its writer has not finished"):
            Table.open(path)


def test_what_is_unfinished_on_a_store_is_refused_by_a_glob_too(target):
    write_table(target, SCHEMA, [rows(20)])
    assert Table.open(target / "*.parquet").num_rows == 20
    (target / UNFINISHED).write_bytes(b"")
    with pytest.raises(DataError, match="is not whole: its writer has not finished"):
        Table.open(target / "*.parquet")


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


CLICKS = "user,time,click,item\n" + "".join(
    f"u{row // 4},{1_700_000_000 + row},{row % 2},i{row % 17}\n" for row in range(400)
)


def recd(*arguments, code=0):
    done = CliRunner().invoke(app, [str(one) for one in arguments])
    assert done.exit_code == code, done.output
    return done.output


@pytest.mark.slow
def test_files_of_a_store_become_a_table_of_a_store(store, tmp_path, monkeypatch):
    """The same as on disk: schema, vocabulary, check, import, registry."""
    made = {}
    for name, top in (
        ("disk", tmp_path / "disk"),
        ("store", location_of(f"s3://tables/{uuid.uuid4().hex}")),
    ):
        monkeypatch.chdir(tmp_path)
        top.mkdir()
        (top / "clicks.csv").write_bytes(CLICKS.encode())
        rows = (top / "clicks.csv",)
        if name == "store":
            store.faults = seeded(7, 0.1, ("503", "cut", "half"), most=8)
        recd("data", "vocabulary", *rows, "--column", "item", "--save", top / "items.parquet")
        recd("data", "schema", *rows, "--out", top / "schema.yaml")
        text = (top / "schema.yaml").read_text().replace("ids: hash", "ids: vocabulary")
        (top / "schema.yaml").write_bytes(text.encode())
        schema = ("--schema", top / "schema.yaml")
        assert "no problem" in recd("data", "check", *rows, *schema)
        recd("data", "import", *rows, top / "table", *schema, "--split-by", "time")
        recd("init", top / "table", "--out", tmp_path / f"{name}.yaml")
        assert "is there already" in recd("data", "import", *rows, top / "table", code=2)
        made[name] = {
            split: everything(Table.open(top / "table" / split)).to_pydict()
            for split in ("train", "test")
        }
        made[name]["schema"] = (top / "table" / "schema.yaml").read_text()
        made[name]["items"] = (top / "items.parquet").read_bytes()
    assert made["store"] == made["disk"]
    assert "ids: vocabulary" in made["disk"]["schema"]
    assert f"train: {top}/table/train" in (tmp_path / "store.yaml").read_text()
    assert not (tmp_path / "table.part").exists()


@pytest.mark.slow
def test_files_of_a_store_are_looked_at_once(store):
    """A listing says their sizes: nobody asks for each one's again."""
    top = location_of(f"s3://tables/{uuid.uuid4().hex}")
    for day in range(5):
        (top / f"day={day}" / "clicks.csv").write_bytes(CLICKS.encode())
    store.requests.clear()
    files = foreign_files([top])
    assert num_bytes(files) == 5 * len(CLICKS)
    heads = [one.path for one in store.requests if one.method == "HEAD" and "clicks" in one.path]
    assert len(heads) == len({*heads}) == 5
    some = foreign_files([top / "day=[12]" / "*.csv"])
    assert [(one.path, one.partitions) for one in some] == [
        (one.path, one.partitions) for one in files[1:3]
    ]
    with pytest.raises(DataError, match="no file fits this glob"):
        foreign_files([top / "day=7*" / "*.csv"])


@pytest.mark.slow
def test_an_import_that_ends_while_it_is_copied_goes_on(store, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "clicks.csv").write_text(CLICKS)
    # Arrow waits longer before each attempt: seconds before the fourth and the fifth.
    target = f"s3://tables/{uuid.uuid4().hex}?attempts=2"
    store.faults = lambda number, method, path: (
        "503" if method in ("PUT", "POST") and "part-00000" in path else "none"
    )
    assert "attempts" in recd("data", "import", "clicks.csv", target, code=2)
    with pytest.raises(DataError, match="is not whole"):
        Table.open(location_of(target))
    store.forget()
    recd("data", "import", "clicks.csv", target)
    assert Table.open(location_of(target)).num_rows == 400


def test_commands_that_take_paths_refuse_uris():
    done = CliRunner().invoke(app, ["data", "rewrite", "a", "b", "--read-log", "s3://b/reads.log"])
    assert done.exit_code == 2
