"""Rung 1 (values): a chain of transforms as one text gives what its registry gives, or is named."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import recd_plugins as rp
from recd_plugins.api.batch import TransformProgram
from recd_plugins.data.schema import Schema, SparseFeature
from recd_plugins.errors import DataError
from recd_plugins.testing.batches import random_batch, random_table, to_lists

SCHEMA = Schema(
    session_id=None,
    timestamp=None,
    dense=("x", "y"),
    sparse=tuple(SparseFeature(name=name, num_ids=50) for name in "ab"),
)
STEPS = [
    {"use": "map_id", "features": "a", "ids": {3: 1, 4: 2}, "other": 9},
    {"use": "n_gram", "of": ["b"], "modulo": 100, "into": "pairs"},
    {"use": "sigrid_hash", "features": ["pairs", "b"], "modulo": 17},
    {"use": "bucketize", "features": "x", "borders": [0.0], "keep": False},
    {"use": "logit", "features": "y"},
]


@pytest.fixture
def registry(tmp_path: Path) -> dict[str, Any]:
    table = random_table(tmp_path / "table", SCHEMA, 64)
    pq.write_table(pa.table({"id": [5], "becomes": [7]}), tmp_path / "map.parquet")
    file = {"use": "map_id", "features": "b", "file": str(tmp_path / "map.parquet"), "other": 2}
    path = str(table.path)
    return {
        "plugins": ["recd_dsi"],
        "dataset": {"use": "parquet", "train": path, "test": path},
        "preprocess": [*STEPS, file],
        "train": {"batch_size": 8, "device": "cpu"},
    }


def test_it_does_what_the_registry_does_wherever_it_is_read(registry: dict[str, Any]) -> None:
    stack = rp.load(registry)
    program = TransformProgram.from_json(stack.program().to_json())
    assert program == stack.program()
    transform, theirs = program.transform(SCHEMA), stack._features.transform
    assert theirs is not None
    batch = random_batch(SCHEMA, 9, seed=3)
    one, other = transform(batch), theirs(batch)
    assert to_lists(one.features) == to_lists(other.features)
    assert torch.equal(one.dense, other.dense)
    assert set(to_lists(one.features)) == {"a", "b", "pairs", "x_bucket"}


def test_another_table_is_refused_before_it_is_read(registry: dict[str, Any]) -> None:
    program = rp.load(registry).program()
    wider = SCHEMA.replace([SparseFeature(name="b", num_ids=60)])
    with pytest.raises(DataError, match=r"of 50 ids, but here it has 60\. Write the program"):
        program.transform(wider)
    with pytest.raises(DataError, match="no sparse feature 'a'"):
        program.check(SCHEMA.drop(["a"]))
    with pytest.raises(DataError, match=re.escape("dense column 'x' of width 1")):
        program.check(Schema(dense=("y",), sparse=SCHEMA.sparse))


def test_what_was_altered_is_refused(registry: dict[str, Any], tmp_path: Path) -> None:
    text = rp.load(registry).program().to_json()
    with pytest.raises(DataError, match="was changed after it was written"):
        TransformProgram.from_json(text.replace('"modulo": 17', '"modulo": 18'))
    for other in (1, 3):
        with pytest.raises(DataError, match=rf"format {other}, but 2 is read here\. Write it"):
            TransformProgram.from_json(json.dumps(json.loads(text) | {"format": other}))
    for odd in ("", "[]", "{}", '{"digest": 1}'):
        with pytest.raises(DataError, match="is no program of transforms"):
            TransformProgram.from_json(odd)
    pq.write_table(pa.table({"id": [5], "becomes": [8]}), tmp_path / "map.parquet")
    with pytest.raises(DataError, match="is not the file with which"):
        TransformProgram.from_json(text)


@pytest.mark.parametrize(
    "text",
    ["[" * 100_000, "{}", "[]", '{"digest": "", "format": 2, "plugins": 1}'],
)
def test_what_is_no_program_is_refused(text: str) -> None:
    with pytest.raises(DataError, match=r"is no program .* Give the text that"):
        TransformProgram.from_json(text)


@pytest.mark.parametrize("pairs", [1, None, [[1, 2, 3]], [0.5]])
def test_mappings_that_are_no_pairs_are_refused(registry: dict[str, Any], pairs: Any) -> None:
    content = json.loads(rp.load(registry).program().to_json())
    content["steps"][0]["ids"] = {"__items__": pairs}
    with pytest.raises(DataError, match="is no program"):
        TransformProgram.from_json(json.dumps(content))


def test_a_mapping_of_pairs_is_itself() -> None:
    step = {"use": "recd_dsi:map_id", "ids": {"pairs": [[3, 1]]}}
    program = TransformProgram(plugins=("recd_dsi",), steps=(step,), schema=SCHEMA, files={})
    assert TransformProgram.from_json(program.to_json()).steps == (step,)
