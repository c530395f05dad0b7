"""An IKJT as an Arrow record batch of one row: what travels.

A list column for each of its tensors: the values of all keys where they lie, and lengths and
inverse lookups in as few bytes as their numbers need. Samples of a session lie side by side,
so a lookup goes as its runs of equal samples wherever that is shorter.
"""

from __future__ import annotations

import json
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from torch import Tensor

from recd_plugins.errors import DataError
from recd_plugins.sparse.groups import Groups, check_groups
from recd_plugins.sparse.jagged import MAX_INT32
from recd_plugins.sparse.padding import real_rows
from recd_plugins.sparse.rows.weighted import Weighted

__all__ = ["Unwired", "from_record_batch", "to_record_batch"]

METADATA_KEY = b"recd_plugins.ikjt"
COLUMNS = ("values", "lengths", "unique_counts", "codes", "runs")

Numbers = NDArray[Any]


class Unwired(NamedTuple):
    """What came over the wire, not yet checked."""

    groups: Groups
    rows: Weighted
    """The unique rows of all keys, in the order of the groups, padded to the largest group's."""
    inverse_lookup: Tensor
    """[G, B] int64."""
    unique_counts: tuple[int, ...]
    """[G]."""


def to_record_batch(
    groups: Groups, rows: Weighted, inverse_lookup: Tensor, unique_counts: tuple[int, ...]
) -> pa.RecordBatch:
    """Of what `Unwired` has, on CPU."""
    codes, runs = _as_runs(inverse_lookup.numpy())
    columns = {
        "values": rows.values.numpy(),
        "lengths": _narrow(rows.lengths[real_rows(groups, unique_counts)].numpy()),
        "unique_counts": np.array(unique_counts, np.int64),
        "codes": codes,
        "runs": runs,
    }
    if rows.weights is not None:
        columns["weights"] = rows.weights.numpy()
    said = json.dumps({"groups": groups, "batch_size": inverse_lookup.shape[1]})
    arrays = [_one_list(numbers) for numbers in columns.values()]
    fields = [pa.field(name, one.type) for name, one in zip(columns, arrays, strict=True)]
    schema = pa.schema(fields, metadata={METADATA_KEY: said.encode()})
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def from_record_batch(batch: pa.RecordBatch) -> Unwired:
    """What `to_record_batch` was given, values on the same memory."""
    said = (batch.schema.metadata or {}).get(METADATA_KEY)
    if said is None:
        raise DataError(
            f"a record batch has no {METADATA_KEY.decode()!r} in its metadata, so it is no IKJT. "
            "Make it by to_record_batch."
        )
    try:
        batch.validate(full=True)
        told = json.loads(said)
        groups = check_groups(told["groups"], list(chain(*told["groups"])))
        values, lengths, counts, codes, runs = (_numbers(batch, name) for name in COLUMNS)
        weights = _numbers(batch, "weights") if "weights" in batch.schema.names else None
        unique_counts = tuple(counts.to_pylist())
        rows = Weighted(
            torch.from_dlpack(values),
            _padded(lengths, groups, unique_counts, many=len(values) > MAX_INT32),
            None if weights is None else torch.from_dlpack(weights),
        )
        lookup = _lookup(codes, runs, (len(groups), int(told["batch_size"])))
        return Unwired(groups, rows, torch.from_numpy(lookup), unique_counts)
    except (pa.ArrowException, ValueError, KeyError, TypeError) as error:
        raise DataError(f"a record batch is a damaged IKJT ({error}). Send it again.") from error


def _one_list(numbers: Numbers) -> pa.LargeListArray:
    """All of them as the one row of a column, on the same memory."""
    return pa.LargeListArray.from_arrays(np.array([0, len(numbers)]), pa.array(numbers))


def _numbers(batch: pa.RecordBatch, name: str) -> pa.Array:
    column = batch.column(name)
    numbers = column.flatten()
    if len(column) != 1 or column.null_count or numbers.null_count:
        raise ValueError(f"{name} has nulls, or {len(column)} rows in place of one")
    if name != "weights" and not pa.types.is_integer(numbers.type):
        raise ValueError(f"{name} are {numbers.type}, not integers")
    return numbers


def _padded(
    lengths: pa.Array, groups: Groups, unique_counts: tuple[int, ...], many: bool
) -> Tensor:
    if min(unique_counts) < 0:
        raise ValueError(f"its unique counts are {unique_counts}")
    real = real_rows(groups, unique_counts)
    padded = np.zeros(real.numel(), np.int64 if many else np.int32)
    padded[real.numpy()] = lengths.to_numpy()
    return torch.from_numpy(padded)


def _as_runs(lookup: NDArray[np.int64]) -> tuple[Numbers, Numbers]:
    """(codes, runs): code i for `runs[i]` samples, group after group; no runs: each for one."""
    begins = np.ones(lookup.shape, bool)
    begins[:, 1:] = lookup[:, 1:] != lookup[:, :-1]
    starts = np.flatnonzero(begins)
    every = _narrow(lookup.reshape(-1))
    codes, runs = every[starts], _narrow(np.diff(starts, append=lookup.size))
    if codes.nbytes + runs.nbytes < every.nbytes:
        return codes, runs
    return every, runs[:0]


def _lookup(codes: pa.Array, runs: pa.Array, shape: tuple[int, int]) -> NDArray[np.int64]:
    """What `_as_runs` was given."""
    lookup: NDArray[np.int64] = codes.to_numpy().astype(np.int64)
    if len(runs):
        counts = runs.to_numpy().astype(np.int64)
        if counts.sum() != shape[0] * shape[1]:  # before memory is taken for them
            raise ValueError(f"its runs have {counts.sum()} samples, not {shape} of them")
        lookup = np.repeat(lookup, counts)
    return lookup.reshape(shape)


def _narrow(numbers: Numbers) -> Numbers:
    """The same, none of them negative, in as few bytes each as the largest needs."""
    return numbers.astype(np.min_scalar_type(numbers.max(initial=0)))
