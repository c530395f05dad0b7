"""Rung 1 (values, on files): a batch that was kept comes back, deduplicated or not, or is named."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pyarrow as pa
import pytest
import torch
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recd_plugins.data.batch import Batch
from recd_plugins.data.kept_batch import read_batch, write_batch
from recd_plugins.errors import DataError
from recd_plugins.sparse.ikjt import InverseKeyedJaggedTensor
from recd_plugins.sparse.partial import PartialInverseKeyedJaggedTensor
from recd_plugins.testing.resume import assert_same_batch

IDS = KeyedJaggedTensor(
    keys=["a", "b"],
    values=torch.tensor([5, 2**40, 5, 7, 7, 7]),
    lengths=torch.tensor([2, 0, 2, 1, 0, 1], dtype=torch.int32),
)
SCORED = KeyedJaggedTensor(
    keys=["s"],
    values=torch.tensor([3, 3]),
    lengths=torch.tensor([1, 0, 1], dtype=torch.int32),
    weights=torch.tensor([0.5, -1.0]),
)
BATCH = Batch(
    dense=torch.tensor([[1.0, float("nan")], [2.0, -0.0], [3.0, float("inf")]]),
    features=IDS,
    labels=torch.tensor([0.0, 1.0, 0.5]),
    weights=torch.tensor([1.0, 0.0, 2.0]),
)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"dense": torch.empty(3, 0)},
        {"labels": torch.arange(6.0).view(3, 2)},
        {"features": SCORED},
    ],
)
def test_a_batch_comes_back_to_the_bit(tmp_path: Path, changes: dict[str, object]) -> None:
    batch = dataclasses.replace(BATCH, **changes)
    write_batch(tmp_path / "of/batch.arrow", batch)
    found = read_batch(tmp_path / "of/batch.arrow")
    for one in (batch, found):  # equal to the bit: what is not a number, too
        one.dense = one.dense.contiguous().view(torch.int32)
    assert_same_batch(found, batch)


@pytest.mark.parametrize("kind", [InverseKeyedJaggedTensor, PartialInverseKeyedJaggedTensor])
def test_unique_samples_are_laid_out(tmp_path: Path, kind: type) -> None:
    write_batch(
        tmp_path / "batch", dataclasses.replace(BATCH, features=SCORED, dedup=kind.from_kjt(IDS))
    )
    found = read_batch(tmp_path / "batch").features
    assert found.keys() == ["s", "a", "b"]
    for key in ("a", "b"):
        assert torch.equal(found[key].values(), IDS[key].values())
        assert torch.equal(found[key].lengths(), IDS[key].lengths())
    assert torch.equal(found["s"].weights(), SCORED.weights())


def test_what_is_no_batch_is_named(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no")
    others = pa.table({"a": [1]})
    with (
        pa.OSFile(str(tmp_path / "other"), "wb") as file,
        pa.ipc.new_file(file, others.schema) as to,
    ):
        to.write_table(others)
    wrong = {"text": "is no Arrow file", "other": "is an Arrow file, but not of a batch"}
    for name, what in wrong.items():
        with pytest.raises(DataError, match=f"{name}: {what}.*the folder `diverged` of the run"):
            read_batch(tmp_path / name)
