"""Rung 1: batches as heads and bodies, and what is said of those that are damaged."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from recd_plugins.data.batch import Batch
from recd_plugins.data.wired_batch import (
    WIRED_SCHEMA,
    batch_to_record,
    batches_from_record,
    body_of,
    joined_records,
    without_bodies,
)
from recd_plugins.data.wired_numbers import TYPES
from recd_plugins.errors import DataError, PluginError
from recd_plugins.sparse.ikjt import InverseKeyedJaggedTensor
from recd_plugins.testing.batches import from_lists
from recd_plugins.testing.resume import assert_same_batch

LISTS = {"a": [[1, 2], [3], [1, 2]], "b": [[], [4], []], "c": [[5], [5], [6]]}


def batch(item: int = 9) -> Batch:
    return Batch(
        dense=torch.arange(6.0).view(3, 2),
        features=from_lists({"item": [[7], [8], [item]]}),
        labels=torch.tensor([0.0, 1.0, float("nan")]).nan_to_num(0.5),
        weights=torch.ones(3),
        dedup=InverseKeyedJaggedTensor.from_kjt(from_lists(LISTS), [["a", "b"], ["c"]]),
    )


def clustered(item: int = 0) -> Batch:
    """16 samples, whose lookups go as runs; `item` is the least of their items."""
    lists = {"a": [[1, 2]] * 8 + [[3]] * 8, "b": [[4]] * 16, "c": [[n // 4] for n in range(16)]}
    return Batch(
        dense=torch.arange(32.0).view(16, 2),
        features=from_lists({"item": [[item + n] for n in range(16)]}),
        labels=torch.arange(16.0),
        weights=torch.ones(16),
        dedup=InverseKeyedJaggedTensor.from_kjt(from_lists(lists), [["a", "b"], ["c"]]),
    )


def sent(record: pa.RecordBatch, head: Any = None, body: bytes | None = None) -> pa.RecordBatch:
    text = head if isinstance(head, bytes) else json.dumps(head).encode()
    column = record.column(0) if head is None else pa.array([text], pa.large_binary())
    other = record.column(1) if body is None else pa.array([body], pa.large_binary())
    return pa.RecordBatch.from_arrays([column, other], schema=WIRED_SCHEMA)


def head_of(record: pa.RecordBatch) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(record.column(0)[0].as_py())
    return found


def only(record: pa.RecordBatch, body: torch.Tensor | None = None) -> Batch:
    ((found, size),) = batches_from_record(record, None if body is None else [body])
    assert size > 0
    return found


def test_batches_are_the_same_at_any_address() -> None:
    ours, record = batch(), batch_to_record(batch())
    assert_same_batch(only(record), ours)
    assert batch_to_record(batch()).equals(record)
    whole = body_of(record).to_pybytes()
    for first in range(9):
        body = torch.zeros(len(whole) + 16, dtype=torch.uint8)[first : first + len(whole)]
        body.copy_(torch.frombuffer(bytearray(whole), dtype=torch.uint8))
        found = only(record, body)
        assert_same_batch(found, ours)
        tensors = (found.dense, found.labels, found.weights, found.features.values())
        assert not any(tensor.data_ptr() % 64 for tensor in tensors)  # as torch's own are
        found.dense[0, 0] = 9.0  # its own, to be written to
        found.weights[0] = 9.0


def test_labels_that_a_trainer_keeps_hold_no_body() -> None:
    ours = clustered()
    ours.weights = torch.arange(16.0)
    body = torch.frombuffer(bytearray(body_of(batch_to_record(ours))), dtype=torch.uint8).clone()
    found = only(without_bodies([batch_to_record(ours)]), body)
    assert_same_batch(found, ours)

    def in_body(tensor: torch.Tensor) -> bool:
        return 0 <= tensor.data_ptr() - body.data_ptr() < len(body)

    parts = (found.dense, found.labels, found.weights)
    assert [in_body(part) for part in parts] == [True, False, False]


def test_many_batches_go_in_one_record() -> None:
    ours = [batch(item) for item in (9, 300, 1 << 40, 7)]
    records = [batch_to_record(one) for one in ours]
    bodies = [torch.frombuffer(bytearray(body_of(one)), dtype=torch.uint8) for one in records]
    together = batches_from_record(joined_records(records))
    apart = batches_from_record(without_bodies(records), bodies)
    for one, (left, size), (right, _) in zip(ours, together, apart, strict=True):
        assert_same_batch(left, one)
        assert_same_batch(right, one)
        parts = (left.features, left.dedup.kjt)
        assert size >= sum(part.nbytes for one in parts for part in (one.values(), one.lengths()))
    with pytest.raises(DataError, match="damaged batch"):
        batches_from_record(without_bodies(records), bodies[1:])


def test_a_head_that_is_the_one_before_travels_once() -> None:
    ours = [clustered(item) for item in (9, 7, 300, 400, 9)]
    records = [batch_to_record(one) for one in ours]
    narrow, _, wide, _, again = (record.column(0)[0].as_py() for record in records)
    assert narrow == again != wide
    joined = joined_records(records)
    assert joined.column(0).to_pylist() == [narrow, b"", wide, b"", narrow]
    for one, (found, _) in zip(ours, batches_from_record(joined), strict=True):
        assert_same_batch(found, one)
    # A slice begins amid those that have none.
    with pytest.raises(DataError, match="damaged batch"):
        batches_from_record(joined.slice(1))


@pytest.mark.parametrize(
    "values",
    [
        [],
        [5],
        [0, 255],
        [0, 256],
        [-1, 127],
        [-1, 128],
        [1 << 16, 0],
        [-(1 << 31), (1 << 31) - 1],
        [1 << 32, 1],
        [-(1 << 63), (1 << 63) - 1],
        [-7] * 5,
    ],
)
def test_ids_are_the_same_to_the_bit_in_fewer_bytes(values: list[int]) -> None:
    ours = batch()
    ours.features = from_lists({"item": [values * 20, [], []]})
    ours.dense = torch.tensor([[-0.0, 0.0]] * 3)
    ours.labels = torch.tensor([float("nan"), -0.0, 0.0])
    found = only(batch_to_record(ours))
    assert found.features.values().tolist() == values * 20
    assert found.features.values().dtype == ours.features.values().dtype
    for name in ("dense", "labels"):
        bits = [getattr(one, name).numpy().view(np.int32).tolist() for one in (found, ours)]
        assert bits[0] == bits[1]


@pytest.mark.parametrize("values", [[0, 1], [1, 1], [0, 100]])
@pytest.mark.parametrize("kind", TYPES)
def test_numbers_of_each_type_come_as_they_went(kind: torch.dtype, values: list[int]) -> None:
    ours = batch()
    ours.labels = torch.tensor([values] * 3, dtype=kind).repeat(1, 40)
    found = only(batch_to_record(ours)).labels
    assert found.dtype == kind
    assert torch.equal(found, ours.labels)


def test_what_is_not_in_the_memory_of_the_process_is_refused_by_name() -> None:
    """Nothing is read at an address of another memory."""
    ours = batch()
    ours.labels = ours.labels.to("meta")
    with pytest.raises(PluginError, match=r"labels: is on meta, but .* Pass CPU tensors"):
        batch_to_record(ours)
    ours = batch()
    ours.features = ours.features.to(torch.device("meta"))
    with pytest.raises(PluginError, match=r"features\.values: is on meta"):
        batch_to_record(ours)


def test_tensors_that_are_not_contiguous_come_as_they_are() -> None:
    ours = batch()
    ours.dense = torch.arange(30.0).view(10, 3)[::2].T
    ours.labels = torch.arange(6.0)[::2]
    (found, _), *_ = batches_from_record(batch_to_record(ours))
    assert torch.equal(found.dense, ours.dense)
    assert torch.equal(found.labels, ours.labels)


def test_a_type_without_a_form_is_refused_by_name() -> None:
    ours = batch()
    ours.dense = ours.dense.bfloat16()
    with pytest.raises(PluginError, match=r"torch\.bfloat16 cannot be sent between processes"):
        batch_to_record(ours)


def with_sides(record: pa.RecordBatch, name: str, sides: list[int]) -> bytes:
    """The body, in which a tensor says that it has these sides."""
    body, at = bytearray(body_of(record)), 0
    for one, _, _, dimensions in head_of(record)["tensors"]:
        if one == name:
            body[at : at + 8 * dimensions] = np.array(sides, np.int64).tobytes()
        at += 8 * dimensions
    return bytes(body)


@pytest.mark.parametrize(
    ("name", "sides"),
    [
        ("dense", [1 << 62, 2]),
        ("labels", [-1]),
        ("weights", [1 << 40]),
        ("features.values", [2]),
        ("features.lengths", [3, 1]),
        ("dedup.lengths", [1, 3]),
        ("dedup.unique_counts", [1]),
        ("dedup.codes", [2]),
    ],
)
def test_sizes_are_checked_before_they_are_used(name: str, sides: list[int]) -> None:
    record = batch_to_record(batch())
    assert name in [one for one, *_ in head_of(record)["tensors"]]
    with pytest.raises(DataError, match=r"damaged|InverseKeyedJaggedTensor"):
        only(sent(record, body=with_sides(record, name, sides)))


@pytest.mark.parametrize(
    ("name", "wide", "narrow"),
    [
        ("weights", "O", "O"),
        ("features.lengths", "<f4", None),
        ("dedup.values", "<f4", "|u1"),
        ("dedup.codes", "<f8", "<f8"),
        ("dedup.codes", "|u1", "<i8"),
        ("features.lengths", "<i2", "|i1"),
        ("labels", "<f4", "no type"),
    ],
)
def test_types_are_checked(name: str, wide: str, narrow: str | None) -> None:
    record = batch_to_record(batch())
    head = head_of(record)
    (one,) = (one for one in head["tensors"] if one[0] == name)
    one[1:3] = wide, narrow
    with pytest.raises(DataError, match="damaged"):
        only(sent(record, head))


@pytest.mark.parametrize("make", [batch, clustered])
def test_no_lookup_or_length_reaches_beyond_its_rows(make: Callable[[], Batch]) -> None:
    record, kept = batch_to_record(make()), make()
    assert_same_batch(only(record), kept)
    whole = body_of(record).to_pybytes()
    found = 0
    for at in range(len(whole)):
        body = bytearray(whole)
        body[at] = 200
        try:
            other = only(sent(record, body=bytes(body)))
        except DataError:
            found += 1
            continue
        for kjt, ours in ((other.features, kept.features), (other.dedup.kjt, kept.dedup.kjt)):
            assert int(kjt.lengths().sum()) == kjt.values().numel() == ours.values().numel()
            assert int(kjt.lengths().min()) >= 0
        lookup, counts = other.dedup.inverse_lookup, torch.tensor(other.dedup.unique_counts)
        assert bool((lookup.min() >= 0) & (lookup < counts[:, None]).all())
    assert found > 100  # all sides, lengths, counts, lookups


def test_what_one_number_stands_for_takes_no_more_memory_than_a_batch_may() -> None:
    record = batch_to_record(clustered())
    head, body = head_of(record), bytearray(body_of(record))
    sides = np.frombuffer(body, np.int64, sum(one[3] for one in head["tensors"]))
    more = [*sides.tolist(), 1 << 27, 1 << 27]  # of 4 bytes each: half of what a batch may have
    for name in ("one", "two"):
        head["tensors"].append([name, "<f4", None, 1])
    first, aligned = -(-8 * len(sides) // 64) * 64, -(-8 * len(more) // 64) * 64
    made = np.zeros(aligned, np.uint8)
    made[: 8 * len(more)] = np.array(more, np.int64).view(np.uint8)
    with pytest.raises(DataError, match="with two, of shape"):
        only(sent(record, head, bytes(made) + bytes(body[first:]) + bytes(128)))


def test_what_is_no_batch_is_said_to_be_none() -> None:
    record = batch_to_record(batch())
    for text in (b"", b"{", b"[]", b"{}", b'{"tensors": 1}'):
        with pytest.raises(DataError, match="damaged batch"):
            only(sent(record, text))
    for other in (pa.record_batch({"a": [1]}), pa.RecordBatch.from_pylist([], WIRED_SCHEMA)):
        with pytest.raises(DataError, match="so it is no batch"):
            batches_from_record(other)
    for size in (0, 8, 64):
        with pytest.raises(DataError, match="damaged"):
            only(record, torch.zeros(size, dtype=torch.uint8))
