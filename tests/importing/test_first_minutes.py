"""From a CSV to a trained model without a line of Python: the four commands, one after another."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from strangers_files import write
from typer.testing import CliRunner

from recd_dlrm.models.sequence_dlrm import choose_poolings
from recd_plugins.cli.init import registry_of_table, registry_text, sizes
from recd_plugins.cli.main import app
from recd_plugins.data.dataset import Tables
from recd_plugins.data.parquet_tables import ParquetConfig, ParquetTables
from recd_plugins.data.pins import check_same_meaning, write_pins
from recd_plugins.data.schema import Schema, SparseFeature
from recd_plugins.data.table import Table
from recd_plugins.data.table_writer import write_table
from recd_plugins.errors import DataError
from recd_plugins.registry import Registry
from recd_plugins.stack import load
from recd_plugins.testing.gloo import GlooPool


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == 0, result.output
    return result.stdout


def visits(rows: int = 6_000) -> pa.Table:
    """Visits to a shop: what was seen before is a list in a text; some items are clicked more."""
    draw = np.random.default_rng(3)
    tastes = draw.integers(0, 5, rows // 6).repeat(6)
    items = draw.integers(0, 60, rows)
    odds = np.where(items % 2 == 0, 0.8, 0.1) + np.where(items % 5 == tastes, 0.1, 0.0)
    seen = [" ".join(map(str, draw.integers(0, 12, 4) * 5 + taste)) for taste in tastes[::6]]
    return pa.table(
        {
            "session": np.arange(rows // 6).repeat(6),
            "time": 1_700_000_000 + np.arange(rows) * 5,
            "click": (draw.random(rows) < odds).astype(np.int64),
            "price": np.round(draw.gamma(2, 3, rows), 2),
            "seen": np.array(seen).repeat(6),
            "item": items,
            "shop": [f"shop {one % 7}" for one in items],
        }
    )


def train_on_a_rank(registry: str) -> dict[str, float]:
    import torch

    from recd_plugins.trainer.run import train

    found = train(load(registry), torch.device("cpu"))
    return found["test"]


def test_from_a_csv_to_a_trained_model(
    tmp_path: Path, gloo_pool: GlooPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "visits.csv.gz", visits(), "gzip")
    run("data", "schema", "visits.csv.gz", "--out", "schema.yaml")
    schema = yaml.safe_load((tmp_path / "schema.yaml").read_text())
    (seen,) = (one for one in schema["sparse"] if one["name"] == "seen")
    assert (seen["sequence"], seen["table"]) == (True, "item")  # a history of what is shown
    assert run("data", "check", "visits.csv.gz", "--schema", "schema.yaml").endswith("no problem\n")
    said = run(
        "data", "import", "visits.csv.gz", "table", "--schema", "schema.yaml", "--split-by", "time"
    )
    assert said.startswith("train: 5,400 rows in table/train\ntest: 600 rows in table/test\n")
    said = run("init", "table")
    assert "registry.yaml: sequence_dlrm on 5,400 rows; next: recd train -r registry.yaml" in said
    registry = yaml.safe_load((tmp_path / "registry.yaml").read_text())
    assert registry["pooling"] == {"seen": {"use": "attention"}}
    registry["train"] |= {"run": str(tmp_path / "run"), "steps": 60, "batch_size": 128}
    registry["train"] |= {"device": "cpu", "checkpoint_every": 0}
    registry["folder"] = str(tmp_path / "data")
    registry["sharding"] = {"use": "torchrec", "search": "greedy"}
    for split in ("train", "test"):
        registry["dataset"][split] = str(tmp_path / registry["dataset"][split])
    (tmp_path / "registry.yaml").write_text(json.dumps(registry))
    for found in gloo_pool.run(train_on_a_rank, str(tmp_path / "registry.yaml")):
        assert found["auc"] > 0.7


def test_a_registry_is_written_for_what_the_table_has(tmp_path: Path) -> None:
    """It loads as it is, whatever the table; steps make an epoch."""
    features = (SparseFeature(name="item", num_ids=9), SparseFeature(name="3: no", num_ids=5))
    alone = SparseFeature(name="seen", num_ids=9, sequence=True, kind="user")
    plain = Schema(session_id=None, timestamp=None, sparse=features)
    lonely = Schema(sparse=(*features, alone))
    asks = SparseFeature(name="the\nitem", num_ids=9, table="seen")
    asked = Schema(sparse=(asks, alone))
    for schema, model in ((plain, "dlrm"), (lonely, "dlrm"), (asked, "sequence_dlrm")):
        text = registry_text(tmp_path / "a: b", tmp_path, schema, 10_000)
        (tmp_path / "r.yaml").write_text(text)
        registry = Registry.load(tmp_path / "r.yaml")
        assert registry.one("model").record.name == model
        assert bool(registry.chosen("dedup")) == (schema is not plain)
        if schema is not plain:  # unique samples need the sessions that clustering put together
            assert registry.one("reader").config.sessions == "whole"
        assert re.search(r"steps: \d+  # one epoch of 10,000 rows", text)
    for rows in (1, 100, 1_000, 50_000, 10**9):
        ranks, batch, steps = sizes(rows)
        assert ranks * batch <= max(rows, 1)
        assert steps >= 1


@pytest.mark.parametrize("beside", [False, True], ids=["alone", "beside one of plain ids"])
def test_a_history_of_scored_ids_is_summed(tmp_path: Path, beside: bool) -> None:
    """Attention would refuse its weights."""
    item = SparseFeature(name="item", num_ids=9, table="items")
    seen, rated = (
        SparseFeature(name=name, num_ids=9, table="items", sequence=True, scored=name == "rated")
        for name in ("seen", "rated")
    )
    schema = Schema(dense=("price",), sparse=(item, rated, *([seen] if beside else [])))
    rows: dict[str, list[object]] = {"session_id": [1, 1], "timestamp": [1, 2], "label": [0.0, 1.0]}
    rows |= {"price": [0.5, 1.5], "item": [[1], [2]], "rated": [[3, 4], []], "seen": [[5], [6]]}
    rows |= {"rated_weights": [[0.5, 2.0], []]}
    names = schema.arrow().names
    table = pa.table({name: rows[name] for name in names}, schema=schema.arrow())
    for split in ("train", "test"):
        write_table(tmp_path / "table" / split, schema, [table])
    text, _ = registry_of_table(tmp_path / "table", None, None)
    (tmp_path / "r.yaml").write_text(text)
    stack = load(tmp_path / "r.yaml", ["dedup=null", "etl=null", "reader=local"])
    stack.check()
    assert len([*stack.registry.chosen("pooling")]) == beside
    assert stack.model() is not None


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (
            ["--item", "item"],
            "--item: does nothing here, because it is of the samples that --negatives",
        ),
        (["--by", "uniform"], "Add --negatives, or take --by out."),
        (["--seed", "3"], "Add --negatives, or take --seed out."),
        (
            ["--test-share", "0.2"],
            "--test-share: does nothing here, because rows are parted by --split",
        ),
    ],
)
def test_an_option_that_would_do_nothing_is_refused(
    options: list[str], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "visits.csv", visits(60))
    result = CliRunner().invoke(app, ["data", "import", "visits.csv", "table", *options])
    assert (result.exit_code, says in result.stderr) == (2, True), result.output
    assert not (tmp_path / "table").exists()


def test_what_init_cannot_do_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "visits.csv", visits(60))
    run("data", "import", "visits.csv", "table")
    for arguments, says in (
        (["init", "table"], "table: has no test split. `recd data import --split-by time` makes"),
        (["init", "none", "--test", "none"], "there is no such table"),
        (["init", "table", "--test", "table", "--out", "x.txt"], "must end in one of .yaml"),
    ):
        result = CliRunner().invoke(app, arguments)
        assert (result.exit_code, says in result.stderr) == (2, True), result.output
    flat = Schema(session_id=None, timestamp=None, dense=("price",))
    prices = pa.table({"label": [0.0, 1.0], "price": [1.0, 2.0]}).cast(flat.arrow())
    write_table(tmp_path / "prices", flat, [prices])
    result = CliRunner().invoke(app, ["init", "prices", "--test", "prices"])
    assert (
        "prices: has no sparse feature, but every model here embeds at least one" in result.stderr
    )
    assert not (tmp_path / "registry.yaml").exists()
    run("init", "table", "--test", "table")
    again = CliRunner().invoke(app, ["init", "table", "--test", "table"])
    assert "registry.yaml: is there already. Name another with --out" in again.stderr
    run("init", "table", "--test", "table", "--force")


def test_an_import_without_ids_says_that_no_model_takes_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.csv").write_text("click,price\n" + "0,1.5\n1,2.5\n" * 50)
    asked = ["data", "import", "a.csv", "table", "--accept-doubts"]
    made = CliRunner().invoke(app, asked)
    assert made.exit_code == 0, made.output
    assert "note: the table has no sparse feature, so that `recd init` finds no" in made.stderr
    assert "next: " not in made.stdout


def test_the_label_that_a_schema_lacks_is_looked_for_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the schema that `recd data schema` proposes for a label in texts, unmended, too."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.csv").write_text("clicked,item_id\n" + "yes,1\nno,2\n" * 50)
    run("data", "schema", "a.csv", "--out", "a.yaml")
    for more in ([], ["--schema", "a.yaml"]):
        result = CliRunner().invoke(app, ["data", "import", "a.csv", "table", *more])
        assert result.exit_code == 2
        assert (
            "a.csv: no column is called 'label', the label of the schema. By its name 'clicked' "
            "may be it: name it there, as `label: NAME`. If it holds texts, such as yes and no, "
            "write 1 and 0 for them in the files first."
        ) in result.stderr


@pytest.mark.parametrize("label", [["a", "b", "c"], [[1], [0], [1]]])
def test_a_column_called_label_that_is_none_is_no_feature(
    label: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The schema calls its label so already: it could not name a feature so too. The column's type
    is told before values are counted, and nothing is left behind."""
    monkeypatch.chdir(tmp_path)
    names = [f"v{one % 50}" for one in range(300)]
    pq.write_table(pa.table({"label": label * 100, "brand": names}), "a.parquet")
    run("data", "schema", "a.parquet", "--out", "a.yaml")
    assert "# - label: is called a label, but does not" in Path("a.yaml").read_text()
    result = CliRunner().invoke(app, ["data", "import", "a.parquet", "table"])
    assert result.exit_code == 2
    assert "error: a.parquet: column 'label' is " in result.stderr
    assert "counting" not in result.output
    assert sorted(one.name for one in tmp_path.iterdir()) == ["a.parquet", "a.yaml"]


def test_an_import_that_fails_at_once_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.csv").write_text("click,item_id\n" + "0,1\n1,2\n" * 50 + '1,"3\n' + "0,1\n" * 50)
    run("data", "schema", "a.csv", "--out", "a.yaml")
    result = CliRunner().invoke(app, ["data", "import", "a.csv", "table", "--schema", "a.yaml"])
    assert result.exit_code == 2, result.output
    assert "a.csv:102: opens a quote that is never closed" in result.stderr
    assert sorted(one.name for one in tmp_path.iterdir()) == ["a.csv", "a.yaml"]


ITEM = "{name: item, num_ids: 100, ids: %s}"
PRICE = "{name: price, scale: %s}"


@pytest.mark.parametrize(
    ("item", "price", "says"),
    [
        ("vocabulary", "as_is", "the ids of 'item' are made by another vocabulary than in train"),
        ("hash", "as_is", "ids of 'item' are made by `ids: hash`, and in train by `ids: vocab"),
        ("kept", "log", "'price' has `scale: log`, and in train `scale: as_is`"),
    ],
)
def test_a_test_table_that_was_made_otherwise_is_refused(
    item: str, price: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its metrics would be of other items, or of other numbers, than those that were trained on;
    in a registry it is told, and checked. The next line of an import leads to one made alike."""
    monkeypatch.chdir(tmp_path)
    table = visits(600)
    write(tmp_path / "a.parquet", table)
    write(tmp_path / "b.parquet", table.slice(300))
    base = "session_id: session\ntimestamp: time\ntimestamp_unit: s\nlabel: click\n"

    def schema(item: str, price: str) -> str:
        return f"{base}dense: [{PRICE % price}]\nsparse: [{ITEM % item}]\n"

    Path("a.yaml").write_text(schema("vocabulary", "as_is"))
    made = run("data", "import", "a.parquet", "a", "--schema", "a.yaml")
    assert "names a table to test on, imported with --schema a/schema.yaml" in made
    run("data", "import", "b.parquet", "alike", "--schema", "a/schema.yaml")
    run("init", "a", "--test", "alike", "--out", "alike.yaml")
    kept = Path("a/schema.yaml").read_text().replace("vocabularies/", "a/vocabularies/")
    text = kept.replace("{name: price}", PRICE % price) if item == "kept" else schema(item, price)
    Path("b.yaml").write_text(text)
    run("data", "import", "b.parquet", "b", "--schema", "b.yaml")
    cure = "Import it again, by `recd data import FILE TABLE --schema a/schema.yaml`."
    refused = CliRunner().invoke(app, ["init", "a", "--test", "b"])
    assert refused.exit_code == 2
    assert says in refused.stderr
    assert cure in refused.stderr
    Path("b.registry.yaml").write_text(
        Path("alike.yaml").read_text().replace("test: alike", "test: b")
    )
    assert "no problem" in run("data", "check", "alike.yaml")
    checked = CliRunner().invoke(app, ["data", "check", "b.registry.yaml"])
    assert checked.exit_code == 1
    assert says in checked.output
    assert build_notices("alike.yaml") == []
    kept = Path("alike/schema.yaml").read_text()
    Path("alike/schema.yaml").write_text("version: 2\nmodels: []\n")  # of another tool
    assert build_notices("alike.yaml") == []
    Path("alike/schema.yaml").write_text(kept)
    (told,) = build_notices("b.registry.yaml")
    assert told.startswith("dataset.test has other ids or numbers than dataset.train: its metrics")
    assert told.endswith(cure)


@pytest.mark.parametrize("train", ["[days/day=1, days/day=2]", "days/day=*", "days/day=*/*"])
def test_days_that_were_made_otherwise_are_told(
    train: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their ids would mean one thing in one day and another in the next, and those of a day to test
    on a third, however the days are named."""
    monkeypatch.chdir(tmp_path)
    Path("own.yaml").write_text(
        "session_id: session\ntimestamp: time\ntimestamp_unit: s\nlabel: click\n"
        f"sparse: [{ITEM % 'vocabulary'}]\n"
    )
    for day in range(1, 4):
        write(tmp_path / f"{day}.parquet", visits(300).slice(100 - 40 * (day > 1), 200))
        schema = "own.yaml" if day < 3 else "days/day=1/schema.yaml"
        day_of_it = f"days/day={day}" if day < 3 else "next/day=3"
        run("data", "import", f"{day}.parquet", day_of_it, "--schema", schema)
    dataset = "dataset: {use: parquet, train: %s, test: %s}\n"
    Path("registry.yaml").write_text(dataset % (train, "'next/day=*'"))
    cure = "Import it again, by `recd data import FILE TABLE --schema days/day=1/schema.yaml`."
    what = "the ids of 'item' are made by another vocabulary than in"
    (told,) = build_notices("registry.yaml")
    assert told == (
        "dataset.train has tables of other ids or numbers than its first: one id or number means "
        f"two things: {what} the first (days/day=2/schema.yaml). {cure}"
    )
    checked = CliRunner().invoke(app, ["data", "check", "registry.yaml"])
    assert checked.exit_code == 1
    assert f"has other ids or numbers than its first table: {what} the first" in checked.output
    Path("registry.yaml").write_text(dataset % ("days/day=1", "'days/day=*'"))
    assert [one for one in build_notices("registry.yaml") if f"{what} train (days/day=2" in one]
    Path("registry.yaml").write_text(dataset % ("days/day=1", "next"))
    assert build_notices("registry.yaml") == []
    first, second, third = (table_of(one) for one in ("days/day=1", "days/day=2", "next/day=3"))
    write_pins(Path("run"), first)
    shutil.rmtree("days/day=1")  # as old days are
    assert check_same_meaning(Path("run"), third) == []
    with pytest.raises(DataError, match=r"day=2: 'item' was made otherwise \(vocabulary .* run"):
        check_same_meaning(Path("run"), second)
    assert "item" in check_same_meaning(Path("another"), third)


def table_of(path: str) -> Tables:
    return Tables(train=Table.open(path), test=Table.open(path))


def build_notices(registry: str) -> list[str]:
    """What the dataset of a registry tells of itself."""
    return [str(one) for one in ParquetTables(parquet_config(registry)).notices()]


def parquet_config(registry: str, text: str | None = None) -> ParquetConfig:
    """The config of a registry's dataset; the registry is written if its text is given."""
    if text is not None:
        Path(registry).write_text(text)
    config = Registry.load(Path(registry)).one("dataset").config
    assert isinstance(config, ParquetConfig)
    return config


def test_a_table_with_a_dot_in_its_name_is_named_before_a_model_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.csv").write_text("user.city,label\n1,0\n2,1\n")
    (tmp_path / "schema.yaml").write_text(
        "session_id: null\ntimestamp: null\nlabel: label\nsparse: [{name: user.city, num_ids: 3}]\n"
    )
    command = ["data", "import", "rows.csv", "table", "--schema", "schema.yaml"]
    made = CliRunner().invoke(app, command)
    assert made.exit_code == 0, made.output
    assert "note: table 'user.city' has a dot in its name" in made.stderr
    assert "next: recd init table --test TABLE, which names a table to test on" in made.stdout
    refused = CliRunner().invoke(app, ["init", "table", "--test", "table"])
    assert (refused.exit_code, "Write `table: user_city`" in refused.stderr) == (2, True)
    assert not (tmp_path / "registry.yaml").exists()


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("empty", "empty: not a whole Parquet file, but empty"),
        ("rows.json", "rows.json: not a Parquet file, but JSON"),
        ("packed", "packed: not a Parquet file, but something else"),
        ("run", "run: holds no .parquet file, so it is not a table"),
        ("nowhere", "TABLE: nowhere: there is no such table"),
    ],
)
def test_init_says_of_what_is_no_table_that_it_is_none(
    path: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before it asks for a test split, or for another file to write."""
    monkeypatch.chdir(tmp_path)
    Path("empty").touch()
    Path("rows.json").write_text('{"a": 1}\n')
    Path("packed").write_bytes(bytes(range(128, 256)) * 9)
    Path("run/checkpoints").mkdir(parents=True)
    Path("run/metrics.jsonl").write_text('{"kind": "train", "step": 1}\n')
    Path("registry.yaml").write_text("strict: true\n")
    refused = CliRunner().invoke(app, ["init", path])
    assert (refused.exit_code, says in refused.stderr) == (2, True), refused.output
    assert Path("registry.yaml").read_text() == "strict: true\n"


def test_parquet_is_read_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a schema that the registry then holds; nothing is copied."""
    monkeypatch.chdir(tmp_path)
    for split in ("train", "test"):
        (tmp_path / "logs" / split).mkdir(parents=True)
        write(tmp_path / "logs" / split / "a.parquet", visits(600))
    run("data", "schema", "logs/train", "--out", "schema.yaml")
    text = (tmp_path / "schema.yaml").read_text().replace("ids: vocabulary", "ids: hash")
    (tmp_path / "schema.yaml").write_text(text)
    bare = CliRunner().invoke(app, ["init", "logs"])
    assert "`recd data schema` suggests one" in bare.stderr
    run("init", "logs", "--schema", "schema.yaml")
    batch = next(iter(load("registry.yaml", ["dedup=null", "etl=null"]).loader(0, 2)))
    assert batch.features.keys() == ["seen", "item", "shop"]
    (tmp_path / "schema.yaml").write_text(f"{text}\nnulls: {{time: drop}}\n")
    assert "on 600 rows" in run("init", "logs", "--schema", "schema.yaml", "--force")


@pytest.mark.parametrize(("features", "model"), [(400, "sequence_dlrm"), (401, "dlrm_dcn")])
def test_so_many_features_are_not_paired_that_pairs_take_all_memory(
    features: int, model: str
) -> None:
    """The top MLP of 2,000 paired features has a thousand million weights."""
    sparse = [
        SparseFeature(name=f"x{one}", num_ids=9, table="x0", sequence=one == 1)
        for one in range(features)
    ]
    schema = Schema(session_id=None, timestamp=None, sparse=tuple(sparse))
    chosen = yaml.safe_load(registry_text(Path("train"), Path("test"), schema, 600))
    assert chosen["model"]["use"] == model
    assert ("pooling" in chosen) == (model == "sequence_dlrm")


def test_columns_that_look_like_globs_are_named_alone() -> None:
    def feature(name: str, table: str, *, sequence: bool = True) -> SparseFeature:
        return SparseFeature(name=name, num_ids=9, table=table, sequence=sequence)

    names = ["x*", "xy", "a[0]", "a0"]
    schema = Schema(
        session_id=None,
        timestamp=None,
        sparse=(
            feature("item", "items", sequence=False),
            *(feature(name, "items" if name in ("x*", "a[0]") else name) for name in names),
        ),
    )
    text = registry_text(Path("train"), Path("test"), schema, 600)
    asked: Any = object()
    chosen = choose_poolings(dict.fromkeys(yaml.safe_load(text)["pooling"], asked), names)
    assert [name for name in names if chosen[name] is asked] == ["x*", "a[0]"]
