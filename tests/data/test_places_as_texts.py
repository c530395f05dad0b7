"""Rung 1 (values): public functions take the text of a place, as `rp.load` does, and a URI's."""

from __future__ import annotations

from pathlib import Path
from uuid import uuid4

import pytest

from recd_plugins.api.data import Table, TableWriter, load_schema, write_table, write_whole
from recd_plugins.api.planning import Profile, TierPlan, zipf
from recd_plugins.testing.batches import random_table
from recd_plugins.testing.probe import SCHEMA


def test_a_table_is_written_and_opened_by_texts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = random_table(tmp_path / "given", SCHEMA, 20)
    chunks = [rows.read(stripe) for stripe in rows.stripes]
    assert write_table("one", SCHEMA, chunks).num_rows == 20
    with TableWriter("two", SCHEMA) as writer:
        writer.write(chunks[0])
    assert Table.open("one").paths == (Path("one"),)
    assert Table.open(["one", tmp_path / "two"], SCHEMA).num_rows == 20 + chunks[0].num_rows
    assert Table.open("*e/*.parquet", SCHEMA).num_rows == 20


def test_a_table_on_a_store_is_written_and_opened_by_its_uri(tmp_path: Path) -> None:
    pytest.importorskip("fsspec", reason="needs fsspec")
    rows = random_table(tmp_path / "given", SCHEMA, 20)
    uri = f"memory://{uuid4().hex}/table"
    assert write_table(uri, SCHEMA, (rows.read(stripe) for stripe in rows.stripes)).num_rows == 20
    assert Table.open(uri).num_rows == 20


def test_what_is_saved_is_loaded_by_texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Profile(rows={"t": zipf(10, 1)}).save("profile.arrow")
    assert [*Profile.load("profile.arrow").rows] == ["t"]
    TierPlan(tables={}, n_nodes=1, ranks_per_node=2).save("plan.arrow")
    assert TierPlan.load("plan.arrow").ranks_per_node == 2
    write_whole("schema.yaml", "{session_id: null, timestamp: null, label: click}")
    assert load_schema("schema.yaml").label == "click"
