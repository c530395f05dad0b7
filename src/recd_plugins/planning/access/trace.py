"""Index traces in fbgemm's format: which rows the samples of a day looked up, table after table."""

from __future__ import annotations

import gzip
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from recd_plugins.errors import DataError
from recd_plugins.planning.access.access_profile import Profile
from recd_plugins.planning.access.counting import EXACT_ROWS, counters, distribution
from recd_plugins.planning.access.distribution import Integers
from recd_plugins.storage.no_file import no_file

__all__ = ["Trace", "profile_trace"]

FORM = (
    "A trace is a .npz of `indices` [N] and `lengths` [T, B] (or `offsets` [T * B + 1], for one "
    "table), or a .pt or .pt.gz of the tensors (indices, offsets, lengths)."
)

UNREADABLE = (OSError, EOFError, ValueError, RuntimeError, zipfile.BadZipFile, zlib.error)
"""What NumPy, torch and their unpackers raise for files that are damaged or are not traces."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Trace:
    """T tables of B samples each, one table after the other."""

    indices: Integers
    """[N] row ids."""
    lengths: Integers
    """[T, B] how many ids each sample has."""

    def __post_init__(self) -> None:
        if self.lengths.ndim != 2 or self.indices.ndim != 1 or not self.lengths.size:
            shapes = f"{list(self.indices.shape)} and {list(self.lengths.shape)}"
            raise DataError(f"trace: indices and lengths are {shapes}. {FORM}")
        if np.any(self.lengths < 0) or self.lengths.sum() != len(self.indices):
            raise DataError(
                f"trace: lengths of {self.lengths.sum():,} ids in all are not those of "
                f"{len(self.indices):,} indices. {FORM}"
            )

    @property
    def num_tables(self) -> int:
        """T."""
        return len(self.lengths)

    @property
    def samples(self) -> int:
        """B."""
        return int(self.lengths.shape[1])

    @classmethod
    def load(cls, path: Path) -> Trace:
        """The trace in a .npz, .pt or .pt.gz. Raises `DataError` for anything else."""
        if what := no_file(path):
            raise DataError(f"{path}: is {what}, not a file. {FORM}")
        try:
            if path.suffix == ".npz":
                with np.load(path, allow_pickle=False) as file:
                    arrays = {name: file[name] for name in file.files}
            else:
                with _opened(path) as file:
                    arrays = _tensors(file)
        except FileNotFoundError:
            raise DataError(f"{path}: there is no such file.") from None
        except UNREADABLE as error:
            raise DataError(f"{path}: cannot be read as a trace. {FORM}") from error
        try:
            return cls._of(arrays)
        except DataError as error:
            raise DataError(f"{path}: {error}") from error

    @classmethod
    def _of(cls, arrays: Mapping[str, NDArray[Any]]) -> Trace:
        """Lengths give the number of tables; offsets without lengths are those of one table."""
        if "indices" not in arrays or not {"lengths", "offsets"} & arrays.keys():
            raise DataError(f"trace: has {', '.join(sorted(arrays)) or 'nothing'}. {FORM}")
        wrong = [name for name, array in arrays.items() if array.dtype.kind not in "iu"]
        if wrong:
            raise DataError(f"trace: {wrong[0]} are no integers. {FORM}")
        lengths = arrays.get("lengths")
        if lengths is None:
            offsets = arrays["offsets"]
            if offsets.ndim != 1 or not offsets.size or offsets[0] != 0:
                shape = f"are {list(offsets.shape)}"
                what = f"begin at {offsets[0]}" if offsets.ndim == 1 and offsets.size else shape
                raise DataError(
                    f"trace: offsets {what}, where each row of offsets begins at 0. {FORM}"
                )
            lengths = np.diff(offsets.astype(np.int64, copy=False))[None]
        return cls(
            indices=arrays["indices"].astype(np.int64, copy=False),
            lengths=lengths.astype(np.int64, copy=False),
        )


def profile_trace(
    trace: Trace,
    tables: Mapping[str, tuple[int, int]],
    *,
    batch_size: int,
    exact_rows: int = EXACT_ROWS,
) -> Profile:
    """The distributions of tables; `tables` gives the place in the trace and the rows of each.

    `batch_size` samples make a batch; the remaining samples are left out.
    """
    size = min(batch_size, trace.samples)
    whole = trace.samples - trace.samples % size
    starts = np.concatenate([[0], np.cumsum(trace.lengths.sum(axis=1))])
    counted = counters({name: rows for name, (_, rows) in tables.items()}, exact_rows=exact_rows)
    found = {}
    for name, (place, rows) in tables.items():
        ends = starts[place] + np.concatenate([[0], np.cumsum(trace.lengths[place])])
        try:
            for start in range(0, whole, size):
                counted[name].add(trace.indices[ends[start] : ends[start + size]], size)
            found[name] = distribution(counted.pop(name), rows, sample=False)
        except DataError as error:
            raise DataError(
                f"table {name!r}, the trace's number {place}: {error} Tables are numbered from 0 "
                "in the trace's order."
            ) from error
    return Profile(rows=found, samples=whole)


def _opened(path: Path) -> BinaryIO | gzip.GzipFile:
    return gzip.open(path) if path.suffix == ".gz" else path.open("rb")


def _tensors(file: Any) -> dict[str, NDArray[Any]]:
    """The tensors of a file that torch saved, without running other code that it may contain."""
    import pickle

    import torch

    try:
        found = torch.load(file, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise ValueError("holds more than tensors") from error
    names = ("indices", "offsets", "lengths")
    if not isinstance(found, tuple | list) or not all(isinstance(t, torch.Tensor) for t in found):
        raise ValueError("holds no tuple of tensors")
    return {name: tensor.numpy() for name, tensor in zip(names, found, strict=False)}
