"""Rung 1: a batch as head and body, and what is said of one that is damaged."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
import torch

from recd_plugins.data.batch import Batch
from recd_plugins.data.wired_batch import WIRED_SCHEMA, batch_from_record, batch_to_record
from recd_plugins.errors import DataError
from recd_plugins.sparse.ikjt import InverseKeyedJaggedTensor
from recd_plugins.testing.batches import from_lists
from recd_plugins.testing.resume import assert_same_batch

LISTS = {"a": [[1, 2], [3], [1, 2]], "b": [[], [4], []], "c": [[5], [5], [6]]}


def batch() -> Batch:
    ikjt = InverseKeyedJaggedTensor.from_kjt(from_lists(LISTS), [["a", "b"], ["c"]])
    ikjt = InverseKeyedJaggedTensor.from_bytes(ikjt.to_bytes())  # of 32-bit lengths, as batches are
    return Batch(
        dense=torch.arange(6.0).view(3, 2),
        features=from_lists({"item": [[7], [8], [9]]}),
        labels=torch.tensor([0.0, 1.0, 1.0]),
        weights=torch.ones(3),
        dedup=ikjt,
    )


def sent(record: pa.RecordBatch, head: Any) -> pa.RecordBatch:
    text = head if isinstance(head, bytes) else json.dumps(head).encode()
    column = pa.array([text], pa.large_binary())
    return pa.RecordBatch.from_arrays([column, record.column(1)], schema=WIRED_SCHEMA)


def test_a_batch_is_the_same_at_any_address() -> None:
    ours, record = batch(), batch_to_record(batch())
    assert_same_batch(batch_from_record(record), ours)
    assert batch_to_record(batch()).equals(record)
    size = len(record.column(1)[0].as_buffer())
    for first in range(9):
        body = torch.zeros(size + 16, dtype=torch.uint8)[first : first + size]
        body.copy_(torch.from_dlpack(pa.array(list(record.column(1)[0].as_py()), pa.uint8())))
        found = batch_from_record(record, body)
        assert_same_batch(found, ours)
        found.dense[0, 0] = 9.0  # its own, to be written to


TENSORS = {
    "dense": ["<f4", [1 << 62, 2], 0],
    "labels": ["<f4", [-1], 0],
    "weights": ["O", [3], 0],
    "features.values": ["<i8", [3], 1 << 40],
    "features.lengths": ["<i8", [3], 0],
    "dedup.values": ["<f4", [5], 0],
    "dedup.lengths": ["|u1", [3], 0],
    "dedup.unique_counts": ["<i8", [2, 2], 0],
    "dedup.codes": ["|u1", [3], 0],
}


@pytest.mark.parametrize("name", TENSORS)
def test_sizes_are_checked_before_they_are_used(name: str) -> None:
    record = batch_to_record(batch())
    head = json.loads(record.column(0)[0].as_py())
    head["tensors"][name] = TENSORS[name]
    with pytest.raises(DataError, match=r"damaged|InverseKeyedJaggedTensor"):
        batch_from_record(sent(record, head))


def test_no_lookup_reaches_beyond_its_rows() -> None:
    record = batch_to_record(batch())
    head = json.loads(record.column(0)[0].as_py())
    for name in ("dedup.codes", "dedup.lengths", "features.lengths"):
        body = torch.tensor(list(record.column(1)[0].as_py()), dtype=torch.uint8)
        body[head["tensors"][name][2]] = 200
        with pytest.raises(DataError, match=r"outside of|add up|lengths of"):
            batch_from_record(record, body)


def test_what_is_no_batch_is_said_to_be_none() -> None:
    record = batch_to_record(batch())
    for text in (b"", b"{", b"[]", b"{}", b'{"tensors": 1}'):
        with pytest.raises(DataError, match="damaged batch"):
            batch_from_record(sent(record, text))
    for other in (pa.record_batch({"a": [1]}), pa.RecordBatch.from_pylist([], WIRED_SCHEMA)):
        with pytest.raises(DataError, match="so it is no batch"):
            batch_from_record(other)
    with pytest.raises(DataError, match="damaged"):
        batch_from_record(record, torch.zeros(8, dtype=torch.uint8))
