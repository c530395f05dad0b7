"""Value tests, one on two ranks: a stack builds what its registry chose, tables only once."""

from __future__ import annotations

import json
import os
import shutil
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
import torch.distributed as dist
from forked import run_module
from stack_plugin import SCHEMA, Counting
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.sharding_plan import get_default_sharders

import recd_plugins as rp
from recd_plugins.data.schema import Schema
from recd_plugins.data.table import Table
from recd_plugins.errors import CapabilityError, PluginError, RecdError, RegistryError
from recd_plugins.notices import NoticeWarning
from recd_plugins.slots import Context
from recd_plugins.testing.batches import random_table, to_lists
from recd_plugins.testing.gloo import GlooPool

PLUGIN = str(Path(__file__).with_name("stack_plugin.py"))


@pytest.fixture
def registry(tmp_path: Path) -> dict[str, Any]:
    """The smallest that the tests add to; it writes into the test's folder."""
    return {
        "plugins": [PLUGIN],
        "folder": str(tmp_path / "data"),
        "dataset": {"use": "counting", "log": str(tmp_path / "log")},
        "reader": {"use": "local", "shuffle": False, "prefetch": False},
        "model": "keeper",
        "train": {"batch_size": 4, "device": "cpu", "seed": 7},
    }


def written(registry: Mapping[str, Any]) -> list[str]:
    """What the plugin says it wrote so far."""
    log = Path(registry["dataset"]["log"])
    return [line.rsplit(" ", 1)[0] for line in log.read_text().splitlines()]


def files(registry: Mapping[str, Any]) -> dict[str, int]:
    """Each file below the registry's folder, and when it was written."""
    folder = Path(registry["folder"])
    found = (path for path in folder.rglob("*") if path.is_file() and path.name != ".lock")
    return {str(path.relative_to(folder)): path.stat().st_mtime_ns for path in found}


def ids(table: Table, feature: str) -> list[int]:
    """The ids of a feature with one a row."""
    import pyarrow.parquet as pq

    return [row[0] for row in pq.read_table(list(table.files))[feature].to_pylist()]


def test_tables_are_made_once_and_reused(registry: dict[str, Any]) -> None:
    stack = rp.load(registry)
    tables = stack.prepare()
    assert ids(tables.train, "item") == list(range(1, 41))
    assert tables.test.num_rows == 8
    assert written(registry) == ["train", "test"]
    before = files(registry)
    assert len(before) == 3  # two tables, and the digest of the code that wrote them
    assert stack.prepare() is tables
    assert rp.load(registry).prepare() == tables  # another stack, as in another process
    assert files(registry) == before
    assert written(registry) == ["train", "test"]


def test_tables_that_are_there_are_read_without_a_lock(registry: dict[str, Any]) -> None:
    """As in a folder of another's, into which nothing can be written."""
    tables = rp.load(registry).prepare()
    lock = Path(registry["folder"]) / ".lock"
    lock.unlink()
    lock.mkdir()  # now nobody, be it root, can open it
    assert rp.load(registry).prepare() == tables
    with pytest.raises(IsADirectoryError):
        rp.load(registry, ["dataset.n=5"]).prepare()


def test_progress_is_reported_while_tables_are_made(registry: dict[str, Any]) -> None:
    calls: list[tuple[str, int, int | None]] = []
    rp.load(registry).prepare(lambda *what: calls.append(what))
    assert ("writing train", 40, 40) in calls
    assert ("writing test", 8, 8) in calls


def test_other_options_make_other_tables_and_leave_the_first(registry: dict[str, Any]) -> None:
    first = rp.load(registry).prepare()
    other = rp.load(registry, ["dataset.n=5"]).prepare()
    assert ids(other.train, "item")[0] == 5
    assert first.train.path != other.train.path
    assert ids(rp.load(registry).prepare().train, "item")[0] == 1
    assert written(registry) == ["train", "test"] * 2


def test_what_does_not_concern_a_table_leaves_it(registry: dict[str, Any]) -> None:
    first = rp.load(registry).prepare()
    again = rp.load(registry, ["train.seed=8", "train.batch_size=2", "reader.shuffle=true"])
    assert again.prepare() == first
    (batch, *_) = again.loader(0, 1)
    assert batch.dense.tolist() == [[0.0], [0.0]]  # runs of any seed share it, so it sees none


def test_a_source_that_changed_makes_the_table_anew(
    registry: dict[str, Any], tmp_path: Path
) -> None:
    stamp = tmp_path / "stamp"
    registry["dataset"]["stamp"] = str(stamp)
    for content, times in (("one", 1), ("two", 2), ("one", 2)):
        stamp.write_text(content)
        rp.load(registry).prepare()
        assert written(registry) == ["train", "test"] * times


@pytest.mark.parametrize("slot", ["dataset", "etl"])
def test_an_error_in_writing_tables_names_the_plugin(
    registry: dict[str, Any], slot: str, tmp_path: Path
) -> None:
    options = {"log": str(tmp_path / "absent" / "log")}
    if slot == "dataset":
        registry["dataset"].update(options)
    else:
        registry["etl"] = [{"use": "every", "n": 2, **options}]
    with pytest.raises(PluginError, match=rf"{slot}.* of .*stack_plugin.* raised FileNotFoundErr"):
        rp.load(registry).prepare()


STRANGERS = """
import pyarrow as pa
from recd_plugins.api import Config, DatasetRecord, EtlRecord, hookimpl
from recd_plugins.api.data import Dataset, Schema, SparseFeature, write_table

class Rows(Dataset):
    schema = Schema(session_id=None, timestamp=None, sparse=(SparseFeature(name="a", num_ids=9),))
    def chunks(self, split):
        yield pa.table({"label": [0.0, 1.0], "a": [[1], [2]]})

class Same:
    def run(self, table, folder, progress):
        return write_table(folder, table.schema, map(table.read, table.stripes))

@hookimpl
def recd_dataset():
    return [DatasetRecord(name="rows", summary="Rows.", config=Config, build=lambda *_: Rows())]

@hookimpl
def recd_etl():
    return [EtlRecord(name="same", summary="Same.", config=Config, build=lambda *_: Same())]
"""


def test_columns_that_a_dataset_yields_and_its_schema_lacks_are_named(tmp_path: Path) -> None:
    plugin = tmp_path / "strangers_wide.py"
    plugin.write_text(STRANGERS.replace('"a": [[1], [2]]', '"a": [[1], [2]], "b": [3, 4]'))
    stack = rp.load({"plugins": [str(plugin)], "folder": str(tmp_path), "dataset": "rows"})
    with pytest.warns(NoticeWarning) as notices:
        tables = stack.prepare()
    found = [str(one.message) for one in notices]
    assert ["Rows yields column b in split" in one for one in found] == [True, True]
    assert tables.train.schema.columns == ("label", "a")


def test_tables_of_a_plugin_that_has_changed_since_are_told(tmp_path: Path) -> None:
    plugin = tmp_path / "strangers_rows.py"
    plugin.write_text(STRANGERS)
    values = {"plugins": [str(plugin)], "folder": str(tmp_path), "dataset": "rows"}
    rp.load({**values, "etl": ["same"]}).prepare()
    rp.load({**values, "etl": ["same"]}).prepare()  # a warning would be an error
    plugin.write_text(f"{STRANGERS}# changed\n")
    changed = "dataset: rows may be outdated: the code of .*strangers_rows.py has changed since"
    with pytest.warns(NoticeWarning, match=changed) as found:
        rp.load({**values, "etl": ["same"]}).prepare()
    made = sorted(tmp_path.glob("*-*"))
    (says,) = (str(one.message) for one in found)
    assert f"`rm -r {made[0]} {made[1]}`" in says
    (made[0] / "code.sha256").unlink()
    with pytest.warns(NoticeWarning, match=r"etl\[0\]: same may be outdated"):
        rp.load({**values, "etl": ["same"]}).prepare()
    shutil.rmtree(made[1])
    rp.load({**values, "etl": ["same"]}).prepare()


def test_modules_that_a_plugin_imports_from_beside_it_are_its_code(tmp_path: Path) -> None:
    """They are known from what is written, not from what has been imported so far."""
    beside = tmp_path / "plugins"
    (beside / "strangers_parts").mkdir(parents=True)
    built = "build=lambda *_: Rows()"
    code = {
        "strangers_plugin.py": "from functools import partial\nfrom strangers_beside import late\n"
        + STRANGERS.replace(built, "build=partial(late, Rows)"),
        "strangers_beside.py": "def late(made, *_):\n"
        "    from strangers_parts import deep\n"
        "    return made()\n",
        "strangers_parts/__init__.py": "",
        "strangers_parts/deep.py": "from . import deeper\n",
        "strangers_parts/deeper.py": "",
        "strangers_parts/other.py": "",
        "strangers_trainer.py": "import strangers_plugin\n",
        "json.py": "",
    }
    for name, text in code.items():
        (beside / name).write_text(text)
    plugin = str(beside / "strangers_plugin.py")
    values = {"plugins": [plugin], "folder": str(tmp_path), "dataset": "rows"}
    first = rp.load(values).delivery().digest
    rp.load(values).prepare()
    counted = []
    for name, text in code.items():
        (beside / name).write_text(f"{text}# changed\n")
        if rp.load(values).delivery().digest != first:
            counted.append(name)
        (beside / name).write_text(text)
    assert counted == [
        "strangers_plugin.py",
        "strangers_beside.py",
        "strangers_parts/__init__.py",
        "strangers_parts/deep.py",
        "strangers_parts/deeper.py",
    ]
    rp.load(values).prepare()  # a warning would be an error
    (beside / "strangers_parts/deeper.py").write_text("# changed\n")
    changed = "dataset: rows may be outdated: the code of .*strangers_plugin.py has changed since"
    with pytest.warns(NoticeWarning, match=changed):
        rp.load(values).prepare()


@pytest.mark.parametrize("name", ["zipped_package/__init__.py", "zipped_module.py"])
def test_a_plugin_in_an_archive_has_the_archives_digest(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = tmp_path / "strangers.zip"

    def write(code: str) -> None:
        with zipfile.ZipFile(archive, "w") as into:
            into.writestr(name, code)

    write(STRANGERS)
    monkeypatch.syspath_prepend(str(archive))
    plugin = name.partition("/")[0].removesuffix(".py")
    values = {"plugins": [plugin], "folder": str(tmp_path / "tables"), "dataset": "rows"}
    rp.load(values).prepare()
    rp.load(values).prepare()  # a warning would be an error
    write(f"{STRANGERS}# changed\n")
    with pytest.warns(NoticeWarning, match=f"dataset: rows may be outdated: the code of {plugin}"):
        rp.load(values).prepare()


OF_FILES = """
from dataclasses import dataclass
from pathlib import Path

@dataclass(frozen=True, kw_only=True)
class Files(Config):
    ids: Path
    \"""The ids to keep.\"""
    log: Path | None = None
    \"""The file that counts runs.\"""

class Keep(Same):
    def __init__(self, files):
        self.files = files
    def run(self, table, folder, progress):
        with self.files.log.open("a") as log:
            log.write("ran")
        return super().run(table, folder, progress)

@hookimpl
def recd_etl():
    build = lambda files, _: Keep(files)
    return [EtlRecord(name="keep", summary="Kept.", config=Files, build=build)]

@hookimpl
def recd_dataset():
    build = lambda *_: Rows()
    return [
        DatasetRecord(name="rows", summary="Rows.", config=Config, build=build),
        DatasetRecord(name="of_file", summary="Rows.", config=Files, build=build),
    ]
"""


@pytest.mark.parametrize("whose", ["dataset", "etl"])
def test_tables_made_of_a_file_that_has_changed_since_are_told(whose: str, tmp_path: Path) -> None:
    plugin, ids, log = (tmp_path / name for name in (f"keeps_{whose}.py", "ids", "log"))
    plugin.write_text(STRANGERS + OF_FILES)
    values = {
        "plugins": [str(plugin)],
        "folder": str(tmp_path / "tables"),
        "dataset": {"use": "of_file", "ids": str(ids)} if whose == "dataset" else "rows",
        "etl": [{"use": "keep", "ids": str(ids), "log": str(log)}],
    }
    ids.write_text("1 2")
    log.write_text("another run")
    rp.load(values).prepare()
    log.write_text("")  # it is written by the step, and not read
    os.utime(ids, (1, 1))
    rp.load(values).prepare()  # a warning would be an error
    ids.write_text("1 3")
    says = rf"{whose}\S*: \w+ may be outdated: {ids} has changed since .* was written"
    with pytest.warns(NoticeWarning, match=says) as found:
        rp.load(values).prepare()
    assert len(found) == 1
    shutil.rmtree(values["folder"])
    rp.load(values).prepare()


ENDING = """
import os

class Numbered(Rows):
    def __init__(self, files):
        self.files = files
    def chunks(self, split):
        if split == "test":
            end("in_test")
        number = int(self.files.ids.read_text())
        yield pa.table({"label": [0.0, 1.0], "a": [[CODE], [number]]})

class Ending(Same):
    def run(self, table, folder, progress):
        end("in_step")
        return super().run(table, folder, progress)

def end(where):
    if os.environ.get("KILLED") == where:
        os._exit(9)
    if os.environ.get("FAILS") == where:
        raise KeyError(where)

@hookimpl
def recd_etl():
    return [EtlRecord(name="ending", summary="Same.", config=Config, build=lambda *_: Ending())]

@hookimpl
def recd_dataset():
    build = lambda files, _: Numbered(files)
    return [DatasetRecord(name="numbered", summary="Rows.", config=Files, build=build)]
"""


@pytest.mark.parametrize("how", ["KILLED", "FAILS"])
@pytest.mark.parametrize("where", ["in_test", "in_step"])
@pytest.mark.parametrize("changed", ["code", "file"])
def test_tables_that_were_left_half_are_of_one_code_and_one_file(
    how: str, where: str, changed: str, tmp_path: Path
) -> None:
    """Those of a dataset that are whole, as where its step ended, are told as ever."""
    plugin, number = tmp_path / f"ending_{how}_{where}_{changed}.py", tmp_path / "number"
    values = {
        "plugins": [str(plugin)],
        "folder": str(tmp_path / "tables"),
        "dataset": {"use": "numbered", "ids": str(number)},
        "etl": ["ending"],
    }
    (tmp_path / "registry.yaml").write_text(json.dumps(values))

    def write(code: int, file: int) -> None:
        # Python tells code that changes within a second by its length alone.
        plugin.write_text(f"CODE = {code}{' ' * code}{STRANGERS}{OF_FILES}{ENDING}")
        number.write_text(str(file))

    write(1, 3)
    program = ("recd_plugins", "data", "prepare")
    assert run_module(*program, folder=tmp_path, environment={how: where}).code
    now = (2, 3) if changed == "code" else (1, 4)
    write(*now)
    said = run_module(*program, folder=tmp_path)
    assert said.code == 0, said.err
    made = {
        split: [row for (row,) in pq.read_table(folder)["a"].to_pylist()]
        for split in ("train", "test")
        for folder in tmp_path.glob(f"tables/ending-*/{split}")
    }
    if where == "in_test":
        assert made == {"train": [*now], "test": [*now]}
        assert "outdated" not in said.err
    else:
        assert made == {"train": [1, 3], "test": [1, 3]}
        assert "dataset: numbered may be outdated" in said.err
    again = run_module(*program, folder=tmp_path)
    assert ("outdated" in again.err) == ("outdated" in said.err)


def test_batches_of_a_plugin_that_has_changed_since_are_others(tmp_path: Path) -> None:
    plugin = tmp_path / "strangers_batches.py"
    plugin.write_text(STRANGERS)
    values = {"plugins": [str(plugin)], "folder": str(tmp_path), "dataset": "rows"}
    before = rp.load(values).delivery()
    assert rp.load(values).delivery().digest == before.digest
    before.open()
    plugin.write_text(f"{STRANGERS}# changed\n")
    assert rp.load(values).delivery().digest != before.digest  # no cache has its batches
    with pytest.raises(
        RegistryError, match=r"has it from .* \(code .*, but here it is from .* \(code "
    ):
        before.open()  # as a worker whose file is another


@pytest.mark.parametrize(
    ("part", "made", "says"),
    [
        ("schema", None, "`schema` of Counting is None, whose type must be Schema."),
        ("chunks", lambda *_: None, "`chunks` of Counting is None"),
        ("chunks", lambda *_: [{}], "a chunk of Counting is a dict, whose type must be Table."),
        ("num_rows", lambda *_: "many", "`num_rows` of Counting is the str 'many'"),
    ],
)
def test_a_dataset_that_yields_no_tables_is_told(
    registry: dict[str, Any], monkeypatch: pytest.MonkeyPatch, part: str, made: Any, says: str
) -> None:
    monkeypatch.setattr(Counting, part, made)
    with pytest.raises(PluginError, match=f"dataset: {says}"):
        rp.load(registry).prepare()


def prepare_at_once(registry: dict[str, Any]) -> str:
    """On a rank, at the same time as the others: where the train split is."""
    stack = rp.load(registry)
    dist.barrier()
    return str(stack.prepare().train.path)


def test_processes_that_prepare_together_make_a_table_once(
    registry: dict[str, Any], tmp_path: Path, gloo_pool: GlooPool
) -> None:
    chosen = etl(registry, 2)
    paths = gloo_pool.run(prepare_at_once, chosen)
    assert paths[0] == paths[1]
    assert written(registry) == ["train", "test", "every 2", "every 2"]
    assert not list(tmp_path.rglob("*.part"))


def etl(registry: dict[str, Any], *steps: int) -> dict[str, Any]:
    log = registry["dataset"]["log"]
    return {**registry, "etl": [{"use": "every", "n": n, "log": log} for n in steps]}


def test_etl_steps_run_in_order_once_each(registry: dict[str, Any]) -> None:
    chosen = etl(registry, 2, 3)
    tables = rp.load(chosen).prepare()
    assert ids(tables.train, "user_a") == list(range(0, 40, 6))
    assert tables.test.num_rows == 2  # rows 0 and 6 of 8
    lines = ["train", "test", "every 2", "every 2", "every 3", "every 3"]
    assert written(registry) == lines
    assert (Path(registry["dataset"]["log"]).read_text()).count("every 3 20\n") == 1  # of 40 / 2
    before = files(registry)
    assert rp.load(chosen).prepare() == tables
    assert files(registry) == before
    assert written(registry) == lines


def test_etl_is_run_again_from_what_changed_on(registry: dict[str, Any]) -> None:
    rp.load(etl(registry, 2, 3)).prepare()
    done = len(written(registry))
    tables = rp.load(etl(registry, 2, 4)).prepare()  # the first step's table is there
    assert ids(tables.train, "user_a") == list(range(0, 40, 8))
    assert written(registry)[done:] == ["every 4"] * 2
    tables = rp.load(etl(registry, 4, 3)).prepare()  # step two is another after another one
    assert ids(tables.train, "user_a") == list(range(0, 40, 12))
    assert written(registry)[done + 2 :] == ["every 4"] * 2 + ["every 3"] * 2
    tables = rp.load({**etl(registry, 2, 3), "dataset": {**registry["dataset"], "n": 9}}).prepare()
    assert ids(tables.train, "item") == [i + 9 for i in range(0, 40, 6)]


@pytest.fixture
def in_place(registry: dict[str, Any], tmp_path: Path) -> dict[str, Any]:
    for split, rows in (("train", 40), ("test", 8)):
        random_table(tmp_path / "mine" / split, SCHEMA, rows, row="user_a")
    where = {split: str(tmp_path / "mine" / split) for split in ("train", "test")}
    return {**registry, "dataset": {"use": "parquet", **where}}


def test_tables_in_place_are_read_where_they_are(in_place: dict[str, Any], tmp_path: Path) -> None:
    tables = rp.load(in_place).prepare()
    assert tables.train.path == tmp_path / "mine/train"
    assert not Path(in_place["folder"]).exists()


def test_etl_of_tables_in_place_follows_their_content(
    in_place: dict[str, Any], tmp_path: Path
) -> None:
    chosen = {**in_place, "etl": [{"use": "every", "n": 2, "log": str(tmp_path / "log")}]}
    tables = rp.load(chosen).prepare()
    assert ids(tables.train, "user_a") == list(range(0, 40, 2))
    assert rp.load(chosen).prepare() == tables
    random_table(tmp_path / "mine/train", SCHEMA, 60, row="user_a")
    assert rp.load(chosen).prepare().train.num_rows == 30


def test_a_transform_changes_its_features_and_their_schema(registry: dict[str, Any]) -> None:
    registry["preprocess"] = [
        {"use": "modulo", "n": 10, "features": "user_*"},
        {"use": "plus", "n": 100, "features": ["user_b", "item"]},
    ]
    stack = rp.load(registry)
    assert [(f.name, f.num_ids) for f in stack.schema.sparse] == [
        ("user_a", 10),
        ("item", 600),
        ("user_b", 110),
    ]
    assert stack.schema.feature("user_b").kind == "user"
    assert stack.prepare().schema == SCHEMA  # the table is as it was
    (first, *_) = stack.loader(0, 1)
    assert first.features.keys() == ["user_a", "item", "user_b"]
    assert to_lists(first.features) == {
        "user_a": [[i % 10] for i in range(4)],
        "item": [[i + 1 + 100] for i in range(4)],
        "user_b": [[2 * i % 10 + 100] for i in range(4)],
    }
    for batch, start in zip(stack.loader(0, 1, "test"), (0, 4), strict=True):
        assert to_lists(batch.features)["user_a"] == [[i % 10] for i in range(start, start + 4)]
    model = stack.model()
    assert isinstance(model.context, Context)
    assert model.context.schema == stack.schema


def test_transforms_are_applied_in_their_order(registry: dict[str, Any]) -> None:
    registry["preprocess"] = [{"use": "plus", "n": 7}, {"use": "modulo", "n": 5}]
    (first, *_) = rp.load(registry).loader(0, 1)
    assert to_lists(first.features)["user_a"] == [[(i + 7) % 5] for i in range(4)]
    assert {f.num_ids for f in rp.load(registry).schema.sparse} == {5}


def test_without_transforms_batches_are_the_tables(registry: dict[str, Any]) -> None:
    stack = rp.load(registry)
    assert stack.schema == SCHEMA
    (first, *_) = stack.loader(0, 1)
    assert to_lists(first.features)["item"] == [[i + 1] for i in range(4)]
    assert first.dedup is None


@pytest.mark.parametrize(
    ("key", "line"),
    [
        ("preprocess: [{use: plus, features: item},\n  {use: plus, features: [item, itm]}]", 7),
        ("preprocess: [{use: plus, features: 'usr_*'}]", 6),
        ("pooling:\n  item: pool\n  itm: {use: pool}", 8),
    ],
)
@pytest.mark.parametrize(
    "call",
    [
        lambda stack: stack.schema,
        lambda stack: stack.loader(0, 1),
        lambda stack: stack.model(),
        lambda stack: stack.check(),
    ],
    ids=["schema", "loader", "model", "check"],
)
def test_a_feature_that_is_not_there_is_named_with_its_line(
    call: Callable[[rp.Stack], object],
    key: str,
    line: int,
    registry: dict[str, Any],
    tmp_path: Path,
) -> None:
    registry["model"] = "uses"
    names = ("plugins", "folder", "dataset", "reader", "model")
    text = "".join(f"{name}: {json.dumps(registry[name])}\n" for name in names)
    file = tmp_path / "registry.yaml"
    file.write_text(f"{text}{key}\n")
    stack = rp.load(file)
    with pytest.raises(RegistryError) as caught:
        call(stack)
    message = str(caught.value)
    assert message.startswith(f"{file}:{line}: ")
    assert "no feature matches" in message
    assert "Known: item, user_a, user_b." in message
    assert ("did you mean 'item'?" in message) == ("itm" in key)


def test_a_converter_without_groups_is_refused(registry: dict[str, Any]) -> None:
    registry["dedup"] = "moves"
    stack = rp.load(registry)
    with pytest.raises(
        PluginError, match=r"dedup 'moves' of .*: Moves does not say .*attribute `groups`"
    ):
        stack.loader(0, 1)
    with pytest.raises(CapabilityError) as caught:
        stack.adapt(stack.model())
    assert str(caught.value) == (
        f"dedup: dedup 'moves' of {PLUGIN}: Moves does not name the features that it deduplicates, "
        "so no model can be adapted to its batches. Give the converter an attribute `groups`, a "
        "tuple of tuples of features."
    )


def test_a_model_for_plain_batches_is_left_as_it_is(registry: dict[str, Any]) -> None:
    stack = rp.load(registry)
    model = stack.model()
    assert stack.adapt(model) is model


def test_a_record_gets_what_it_uses(registry: dict[str, Any]) -> None:
    registry |= {
        "model": {"use": "uses", "n": 1},
        "pooling": {"item": {"use": "pool", "n": 2}, "*": {"use": "pool", "n": 3}},
        "stats": [{"use": "stats", "n": 4}, {"use": "stats", "n": 5}],
        "cache": {"use": "cache", "n": 6},
    }
    context = rp.load(registry).model().context
    assert isinstance(context, Context)
    neighbours = context.neighbours
    assert neighbours.keys() == {"pooling", "stats", "cache"}
    poolings = {name: made.__wrapped__ for name, made in neighbours["pooling"].items()}
    assert {name: config.n for name, (config, _) in poolings.items()} == {
        "item": 2,
        "*": 3,
    }
    assert [config.n for config, _ in neighbours["stats"]] == [4, 5]
    config, of_cache = neighbours["cache"]
    assert config.n == 6
    assert of_cache.neighbours == {}
    assert of_cache.schema == SCHEMA
    for _, of_pooling in poolings.values():  # neighbours have neighbours
        assert of_pooling.neighbours["cache"][0].n == 6


def test_a_neighbour_that_is_not_set_is_nothing(registry: dict[str, Any]) -> None:
    context = rp.load(registry, ["model=uses"]).model().context
    assert isinstance(context, Context)
    assert context.neighbours == {"pooling": {}, "stats": [], "cache": None}
    context = rp.load(registry).model().context
    assert isinstance(context, Context)
    assert context.neighbours == {}


def test_a_context_tells_what_the_registry_says(registry: dict[str, Any]) -> None:
    registry["train"]["optimizer"] = {"tables": "adagrad", "tables_lr": 0.5}
    context = rp.load(registry).model().context
    assert isinstance(context, Context)
    assert context.device == "cpu"
    assert context.seed == 7
    assert context.batch_size == 4
    assert context.folder == Path(registry["folder"])
    assert context.fused["learning_rate"] == 0.5
    assert str(context.fused["optimizer"].value) == "exact_adagrad"


def test_a_plan_needs_a_process_group(registry: dict[str, Any]) -> None:
    stack = rp.load(registry)
    with pytest.raises(
        CapabilityError, match=r"stack.plan needs a process group: call torch\.dist"
    ):
        stack.plan(torch.nn.Linear(1, 1))
    assert stack.explain() == "No plan has been made yet."


def test_sharders_carry_the_fused_optimizer_each_its_own(registry: dict[str, Any]) -> None:
    registry["train"]["optimizer"] = {"tables": "sgd", "tables_lr": 0.25}
    registry["train"]["bags_of_one"] = False  # which wraps those of sequences
    sharders = rp.load(registry).sharders()
    assert [type(one) for one in sharders] == [type(one) for one in get_default_sharders()]
    params = {
        type(one).__name__: one.fused_params
        for one in sharders
        if "Quant" not in type(one).__name__
    }
    fused = params.pop("FusedEmbeddingBagCollectionSharder")  # the module has its optimizer itself
    assert not fused
    since_1_9 = {"PECEmbedding"}
    assert {name.removesuffix("CollectionSharder") for name in params} - since_1_9 == {
        "EmbeddingBag",
        "Embedding",
        "FeatureProcessedEmbeddingBag",
        "ManagedCollisionEmbedding",
        "ManagedCollisionEmbeddingBag",
    }
    for param in params.values():
        assert param["learning_rate"] == 0.25
        assert param["optimizer"].value == "exact_sgd"
    assert len({id(param) for param in params.values()}) == len(params)


def test_tables_train_as_torchrec_has_it_where_nobody_says_otherwise(
    registry: dict[str, Any],
) -> None:
    for one in rp.load(registry).sharders():
        assert not getattr(one, "fused_params", None)
    mine = [EmbeddingBagCollectionSharder(fused_params={"learning_rate": 0.2})]
    stack = rp.load(registry)
    assert stack.sharders(mine) == mine
    assert stack.sharders() == mine


def test_a_mistake_in_a_mapping_is_reported_by_its_place(registry: dict[str, Any]) -> None:
    with pytest.raises(RecdError, match=r"^dataset.nn: unknown option 'nn'; did you mean 'n'\?"):
        rp.load({**registry, "dataset": {"use": "counting", "nn": 1}})
    with pytest.raises(RecdError, match=r"^override 'dataset.nn=1': dataset.nn: unknown option"):
        rp.load(registry, ["dataset.nn=1"])
    given = json.dumps(registry)
    rp.load(registry, ["dataset.n=3"])
    assert json.dumps(registry) == given


def test_a_schema_of_a_parquet_table_may_be_given(in_place: dict[str, Any]) -> None:
    narrow = Schema(
        session_id=None, timestamp=None, sparse=tuple(f for f in SCHEMA.sparse if f.name == "item")
    )
    in_place["dataset"]["schema"] = json.loads(narrow.to_json())
    stack = rp.load(in_place)
    assert stack.schema == narrow
    (first, *_) = stack.loader(0, 1)
    assert first.features.keys() == ["item"]
    assert first.dense.shape == (4, 0)
