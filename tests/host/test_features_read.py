"""Value tests: what a model and its transforms need is read, and no more."""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor
from typer.testing import CliRunner

import recd_plugins as rp
from recd_plugins.cli.main import app
from recd_plugins.data.batch import Batch
from recd_plugins.data.preprocess.steps import ChosenTransform, narrowed, steps_of
from recd_plugins.data.schema import Schema, SparseFeature, Vector
from recd_plugins.errors import CapabilityError, PluginError, RegistryError
from recd_plugins.notices import NoticeWarning
from recd_plugins.planning.tables.model_tables import model_tables
from recd_plugins.registry.delivery import Delivery
from recd_plugins.stack import Stack
from recd_plugins.stack.looked_up import check_read
from recd_plugins.testing.batches import from_lists, random_table, to_lists
from recd_plugins.testing.reference import unsharded
from recd_plugins.testing.resume import assert_same_batch

SCHEMA = Schema(
    dense=("price", "age", "place"),
    vectors=(Vector(name="place", width=2),),
    sparse=(
        SparseFeature(name="user", num_ids=40, kind="user"),
        SparseFeature(name="history", num_ids=900, kind="user", sequence=True),
        SparseFeature(name="beta", num_ids=70, kind="user"),
        SparseFeature(name="scored", num_ids=30, scored=True),
        SparseFeature(name="item", num_ids=50),
    ),
)
COLUMNS = (*SCHEMA.dense, *SCHEMA.sparse_names)
TAKEN = ["crossed", "history", "scored", "price", "age"]
READ = ["price", "age", "user", "history", "scored", "item"]


@pytest.fixture
def registry(tmp_path: Path) -> dict[str, Any]:
    """A model that takes neither `place` nor `beta`, which dedup and a transform name."""
    for split in ("train", "test"):
        random_table(tmp_path / split, SCHEMA, 200, rows_per_stripe=40, row="session")
    return {
        "plugins": ["recd_dlrm", "recd_dedup", "recd_dsi"],
        "folder": str(tmp_path / "data"),
        "dataset": {
            "use": "parquet",
            "train": str(tmp_path / "train"),
            "test": str(tmp_path / "test"),
        },
        "reader": {"use": "local", "read_log": str(tmp_path / "reads.jsonl")},
        "preprocess": [
            {
                "use": "cartesian",
                "left": "user",
                "right": "item",
                "into": "crossed",
                "modulo": 60,
            },
            {"use": "first_x", "features": ["history", "beta"], "n": 3},
            {"use": "logit", "features": ["price", "age"]},
        ],
        "model": {
            "use": "dlrm",
            "embedding_dim": 4,
            "bottom": [4],
            "top": [4],
            "features": TAKEN,
        },
        "train": {"batch_size": 16, "device": "cpu"},
    }


def reading_all(registry: dict[str, Any], *more: str) -> Stack:
    """The same, where `dataset.features` names every column, so that all are read."""
    return rp.load({**registry, "dataset": {**registry["dataset"], "features": [*COLUMNS, *more]}})


def rows_of(batch: Batch) -> KeyedJaggedTensor:
    """All of its features, expanded."""
    found = to_lists(batch.features)
    return found if batch.dedup is None else found | to_lists(batch.dedup.to_kjt())


def trained(stack: Stack, batches: Sequence[Batch]) -> dict[str, torch.Tensor]:
    """The weights after a step of each batch."""
    torch.manual_seed(0)
    model = stack.adapt(stack.model())
    unsharded(model, seed=0)
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.1)
    for batch in batches:
        optimizer.zero_grad()
        model(batch)[0].backward()
        optimizer.step()
    return model.state_dict()


def test_what_is_named_is_not_called_needless(registry: dict[str, Any]) -> None:
    """Nobody looks it up, and `dataset.features` has it: a callback may look at it."""
    looked_up = {"crossed", "history", "scored"}
    assert reading_all(registry)._features.unneeded(looked_up) == ()
    del registry["model"]["features"]
    assert rp.load(registry)._features.unneeded(looked_up) == ("beta",)


@pytest.mark.parametrize("groups", [[], [["history", "beta"], ["user", "item"]]])
def test_what_nobody_needs_is_left_out_and_the_rest_is_as_ever(
    registry: dict[str, Any], groups: list[list[str]], tmp_path: Path
) -> None:
    if groups:
        registry["dedup"] = {"use": "exact", "groups": groups}
    sessions, beside = [*range(67)], ("late", "later")
    lists = {name: [[one % 9] for one in sessions] for name in beside}
    pq.write_table(pa.table({"session_id": sessions, **lists}), tmp_path / "side.parquet")
    sparse = [{"name": name, "num_ids": 9, "nulls": "empty"} for name in beside]
    side = {"table": str(tmp_path / "side.parquet"), "key": "session_id", "sparse": sparse}
    registry["dataset"]["join"] = [side]
    registry["model"]["features"] = [*TAKEN, "late"]
    some, every = rp.load(registry), reading_all(registry, *beside)
    first, second = some.loader(0, 1), every.loader(0, 1)
    lines = (tmp_path / "reads.jsonl").read_text().splitlines()
    for line, columns in zip(lines, (READ, COLUMNS), strict=True):
        assert {*json.loads(line)["columns"]} == {"label", "scored_weights", *columns}
    assert some.schema.dense == ("price", "age")
    assert some.schema.sparse_names == ("user", "history", "scored", "item", "late", "crossed")
    assert [side.features for side in some.tables_read.train.joins] == [("late",)]

    batches, wholes = [*first], [*second]
    for batch, whole in zip(batches, wholes, strict=True):
        found, expected = rows_of(batch), rows_of(whole)
        assert found == {name: expected[name] for name in some.schema.sparse_names}
        assert torch.equal(batch.dense, whole.dense[:, :2])
        assert torch.equal(batch.labels, whole.labels)
    ours, theirs = trained(some, batches), trained(every, wholes)
    assert ours.keys() == theirs.keys()
    if not groups:  # else other unique samples are summed in another order
        assert all(torch.equal(weight, theirs[name]) for name, weight in ours.items())


def test_what_is_done_to_features_that_nobody_needs_is_told(registry: dict[str, Any]) -> None:
    steps = registry["preprocess"]
    steps += [{"use": "first_x", "features": "beta", "n": 2}]
    registry["dedup"] = {"use": "exact", "groups": [["beta"]]}
    stack = rp.load(registry)
    with pytest.warns(NoticeWarning) as found:
        assert len([stack.loader(0, 1), stack.loader(0, 1, "test")]) == 2
    assert [str(one.message) for one in found] == [
        "dedup: groups is not used: none of their features is read, because the model takes none "
        "of them. Name features that the model takes, or take `dedup` out.",
        "preprocess[3]: first_x is not used: nothing reads feature beta, because the model takes "
        "neither that nor what is made of it. Take it out, or let the model take the result: "
        "models of recd_dlrm do by `model.features`.",
    ]
    registry["dedup"]["groups"] += [["history"]]
    del steps[3:]
    with warnings.catch_warnings():
        warnings.simplefilter("error", NoticeWarning)
        rp.load(registry).loader(0, 1)


def test_what_a_transform_takes_away_is_in_no_batch_either(registry: dict[str, Any]) -> None:
    grams = {"use": "n_gram", "of": ["user"], "n": 1, "into": "user2", "modulo": 40}
    crossed = {**registry["preprocess"][0], "keep": False}
    registry["preprocess"] = [grams, crossed]
    registry["model"]["features"] = ["user*"]
    stack = rp.load(registry)
    assert [*stack.tables_read.train.schema.sparse_names] == ["user", "item"]
    assert next(iter(stack.loader(0, 1))).features.keys() == ["user2", "crossed"]
    (table,) = model_tables(stack.model()).values()
    assert table.features == ("user2",)


def test_what_a_trainer_looks_at_is_all_that_is_there(registry: dict[str, Any]) -> None:
    registry["dedup"] = {"use": "exact", "groups": [["history", "beta"]]}
    del registry["preprocess"]
    registry["model"]["features"] = ["history", "price"]
    stack = rp.load(registry)
    model = stack.model()
    rows = {name: [[0], [0]] for name in SCHEMA.sparse_names}
    stack.adapt(model, batches=[from_lists(rows)])
    assert stack.groups == (("history", "beta"),)


def test_whose_schema_needs_all_features_is_named() -> None:
    class Both:
        def __call__(self, features: KeyedJaggedTensor) -> KeyedJaggedTensor:
            return features

        def schema(self, schema: Schema) -> Schema:
            names = {feature.name: feature for feature in schema.sparse}
            return schema.replace([names["user"], names["item"]])

    whole = SCHEMA.having(["user", "item"])
    chosen = ChosenTransform(who="preprocess 'both'", where="", features=("*",), transform=Both())
    with pytest.raises(PluginError, match=r"'both' raised KeyError .* schema of user: 'item'"):
        narrowed(steps_of([chosen], whole), whole.having(["user"]))


def test_a_worker_reads_and_makes_the_same(registry: dict[str, Any]) -> None:
    registry["dedup"] = {"use": "exact", "groups": [["history", "beta"]]}
    stack = rp.load(registry)
    delivery = stack.delivery()
    assert delivery.columns == READ
    assert delivery.digest != reading_all(registry).delivery().digest
    opened = type(delivery).from_text(delivery.text()).open()
    assert opened.tables == stack.tables_read
    reader = stack.registry.one("reader").build(stack._contexts.of("reader"))
    settings = {"rank": 0, "world_size": 1, "batch_size": 16, "split": "train"}
    theirs = reader.loader(opened.tables.train, **settings, transform=opened.transform)
    every = [*stack.loader(0, 1)]
    for ours, made in zip(every, theirs, strict=True):
        assert_same_batch(ours, made)

    # A position is one of rows: this goes on where a run that read all columns was.
    resumed, half = rp.load(registry).loader(0, 1), reading_all(registry).loader(0, 1)
    assert len([*islice(half, 5)]) == 5
    resumed.load_state_dict(half.state_dict())
    for ours, made in zip(resumed, every[5:], strict=True):
        assert_same_batch(ours, made)


def test_the_command_shows_what_the_registry_reads(
    registry: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("registry.yaml").write_text(json.dumps(registry))

    def read(table: str) -> set[str]:
        done = CliRunner().invoke(app, ["data", "layout", table, "--json"])
        assert done.exit_code == 0, done.output
        return {*json.loads(done.stdout)["reading"]["what is read"]["columns"]}

    assert read("train") == {"label", *READ, "scored_weights"}

    # Tables that the reader does not read are another's, whatever the registry says.
    other = SCHEMA.drop(["history"])
    random_table(tmp_path / "data" / "other", other, 20, rows_per_stripe=20, row="session")
    assert read("data/other") >= {*other.dense, *other.sparse_names}

    # So is what a step of `etl` reads; nothing is written to find out.
    clustered = {**registry, "etl": [{"use": "cluster_by_session"}]}
    Path("registry.yaml").write_text(json.dumps(clustered))
    assert read("train") >= {*COLUMNS}
    assert [one.name for one in Path("data").iterdir()] == ["other"]
    made = rp.load(clustered).prepare().train.path
    assert read(str(made)) == {"label", *READ, "scored_weights"}

    Path("registry.yaml").write_text(json.dumps({**registry, "plugins": "none"}))
    done = CliRunner().invoke(app, ["data", "layout", "data/other"])
    assert done.exit_code == 0, done.output
    assert "registry.yaml is left aside" in done.stderr


def test_who_asks_for_what_there_is_not_is_told(registry: dict[str, Any]) -> None:
    other = rp.load({**registry, "model": {**registry["model"], "features": ["history", "ag"]}})
    with pytest.raises(RegistryError, match=r"model\.features: no feature .*'ag'.*'age'"):
        other.loader(0, 1)
    mine = rp.load({**registry, "model": {**registry["model"], "features": "*"}}).model()
    with pytest.raises(CapabilityError, match=r"looks up beta, which is not read"):
        check_read(mine, rp.load(registry)._features)


def test_a_delivery_of_another_version_says_what_to_install() -> None:
    with pytest.raises(RegistryError, match=r"a delivery has .* Install the same version"):
        Delivery.from_text('{"values": {}}')
