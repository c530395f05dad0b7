"""Rung 1 (values, on files): the schema that a registry names is a file's, and its tables' own."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from recd_plugins.data.foreign import ForeignFeature, ForeignSchema
from recd_plugins.data.table import Table
from recd_plugins.errors import DataError, RegistryError
from recd_plugins.notices import NoticeWarning
from recd_plugins.stack import load
from recd_plugins.testing.batches import random_table
from recd_plugins.testing.probe import SCHEMA

SCHEMA_FILE = """
session_id: null
timestamp: at
timestamp_unit: s
sparse: [{name: item, num_ids: 9, ids: hash}]
text: {delimiter: ','}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rows = pa.table({"at": [1, 2], "label": [0, 1], "item": ["a", "b"]})
    pq.write_table(rows, tmp_path / "rows.parquet")
    (tmp_path / "schema.yaml").write_text(SCHEMA_FILE)
    text = "dataset: {use: parquet, train: ROWS, test: ROWS, schema: schema.yaml}\n"
    (tmp_path / "registry.yaml").write_text(text.replace("ROWS", str(tmp_path / "rows.parquet")))
    return tmp_path


def test_a_file_is_as_what_it_holds(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/")  # a path starts from registry.yaml
    stack = load(folder / "registry.yaml")
    table = stack.prepare().train
    assert table.read(table.stripes[0])["at"].to_pylist() == [1000, 2000]
    whole = stack.registry.source.values["dataset"]["schema"]
    assert whole["sparse"] == [{"name": "item", "num_ids": 9, "ids": "hash"}]
    again = {**stack.registry.source.values, "folder": str(folder / "data")}
    before = stack.delivery().digest
    assert load(again).delivery().digest == before
    (folder / "schema.yaml").write_text(SCHEMA_FILE.replace("9", "8"))
    assert load(folder / "registry.yaml").delivery().digest != before


@pytest.mark.parametrize(
    ("named", "says"),
    [
        ("none.yaml", r"none.yaml: there is no such schema to read\. `recd data schema FILE"),
        ("registry.yaml", r"registry.yaml: dataset: unknown option|unknown option 'dataset'"),
        (".", "is a folder, not a file"),
    ],
)
def test_a_file_that_is_none_is_named_with_its_line(folder: Path, named: str, says: str) -> None:
    file = folder / "registry.yaml"
    file.write_text(file.read_text().replace("schema: schema.yaml", f"schema: {named}"))
    with pytest.raises(RegistryError, match=rf"registry.yaml:1: dataset.schema: .*({says})"):
        load(file)


def test_the_schema_of_what_a_table_was_made_of_is_not_its_own(tmp_path: Path) -> None:
    own = dataclasses.replace(SCHEMA, timestamp="at")
    random_table(tmp_path, own, 20)
    feature = next(one for one in SCHEMA.sparse if not one.scored)
    asked = ForeignFeature(name=feature.name, num_ids=feature.num_ids)
    schema = ForeignSchema(session_id=None, timestamp="at", label=SCHEMA.label, sparse=(asked,))
    assert Table.open(tmp_path, schema).num_rows == 20
    hashed = ForeignFeature(name=feature.name, num_ids=7, ids="hash")
    once_more = ForeignSchema(session_id=None, timestamp=None, label=SCHEMA.label, sparse=(hashed,))
    with pytest.warns(NoticeWarning, match=f"converts those of {feature.name}"):
        Table.open(tmp_path, once_more)
    seconds = ForeignSchema(
        session_id=None,
        timestamp="at",
        timestamp_unit="s",
        label=SCHEMA.label,
        sparse=(asked,),
    )
    with pytest.raises(DataError, match=r"times are in ms.*schema expects s\. Take the schema out"):
        Table.open(tmp_path, seconds)
