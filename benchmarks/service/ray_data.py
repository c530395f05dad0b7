"""The same job by Ray Data: `read_parquet → map_batches → streaming_split`, beside one worker.

Ray's batches have the same columns, hashed in the same way, in KJTs with the same number of rows.
Rows are shuffled among as many as a worker's window holds. Ray may use all cores.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from benchmarks.harness import Figure, alternate, spread
from benchmarks.service.processes import begin_anew
from benchmarks.service.rates import ONE, rows_of
from benchmarks.service.registries import MODULO, service, stack_of
from recd_dsi.service.loader import ServiceLoader
from recd_dsi.service.process_fleets import end_workers
from recd_dsi.transforms import SigridHash
from recd_plugins.data.table import Table
from recd_plugins.testing.resume import assert_same_batch

__all__ = ["MISSING", "beside_ray_data"]

MISSING = [name for name in ("ray", "pandas") if find_spec(name) is None]
"""The packages that Ray Data needs and that are not installed."""


def beside_ray_data(folder: Path, rounds: int, *, samples: int, batch_size: int) -> Figure:
    """The rows a second of both, with epochs in turn. Ours goes on from the middle of an epoch."""
    import ray

    stack = stack_of(folder, "KJT", ONE, samples=samples, batch_size=batch_size)
    loader, table = service(stack), stack.prepare().train
    assert_it_resumes(loader, service(stack))
    sides = {"ours": lambda: rows_of(loader), "Ray Data": _epochs(table, batch_size)}
    before = partial(begin_anew, loader)
    measured = alternate(sides, rounds, of="beside Ray Data", before=before)
    end_workers()
    ray.shutdown()  # so that what is measured next has nothing beside it
    pairs = list(zip(measured["ours"], measured["Ray Data"], strict=True))
    if any(ours.result != theirs.result for ours, theirs in pairs):
        raise AssertionError("an epoch of Ray Data has other rows than one of ours")
    times = [theirs.wall / ours.wall for ours, theirs in pairs]
    ours, theirs = (
        statistics.median(one.result / one.wall for one in side) for side in measured.values()
    )
    return Figure(
        name="one worker, KJT batches by shared memory: rows/s, of Ray Data's",
        value=statistics.median(times),
        unit="x",
        baseline=1.0,
        target=1.5,
        spread=spread(times),
        note=f"{ours:,.0f} and {theirs:,.0f} rows/s; read_parquet, map_batches, streaming_split; "
        "ours went on from the midst of an epoch to the bit, for which theirs has no state",
    )


def assert_it_resumes(loader: ServiceLoader, other: ServiceLoader) -> None:
    """Check that a loader with the state of another yields the same rest of the epoch."""
    batches = iter(loader)
    list(islice(batches, len(loader) // 2))
    other.load_state_dict(loader.state_dict())
    for theirs, ours in zip(batches, other, strict=True):
        assert_same_batch(theirs, ours)


def _epochs(table: Table, batch_size: int) -> Callable[[], int]:
    import ray

    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if not ray.is_initialized():
        ray.init("local", log_to_driver=False, include_dashboard=False)
    schema = table.schema
    columns = [schema.label, *schema.dense, *schema.sparse_names]
    hashed = Hashed(list(schema.sparse_names))
    read = ray.data.read_parquet([str(file) for file in table.files], columns=columns)
    mapped = read.map_batches(hashed, batch_format="pyarrow", zero_copy_batch=True)
    (split,) = mapped.streaming_split(1)
    window = 2 * max(stripe.num_rows for stripe in table.stripes)

    def epoch() -> int:
        batches = split.iter_batches(
            batch_size=batch_size,
            batch_format="pyarrow",
            local_shuffle_buffer_size=window,
            drop_last=True,
        )
        return sum(_taken(batch, schema.label, schema.dense, hashed.names) for batch in batches)

    return epoch


class Hashed:
    """The function for map_batches: SigridHash of all features at once."""

    def __init__(self, names: list[str]) -> None:
        self.names = names

    def __call__(self, batch: pa.Table) -> pa.Table:
        torch.set_num_threads(1)
        features = _kjt(batch, self.names)
        ids = SigridHash(MODULO)(features).values().numpy()
        lengths = features.lengths().view(len(self.names), -1).numpy()
        ends = np.cumsum(lengths, axis=1)
        parts = np.split(ids, np.cumsum(ends[:-1, -1]))
        for name, end, own in zip(self.names, ends, parts, strict=True):
            offsets = pa.array(np.concatenate([[0], end]), pa.int32())
            column = pa.ListArray.from_arrays(offsets, pa.array(own))
            batch = batch.set_column(batch.schema.get_field_index(name), name, column)
        return batch


def _kjt(batch: pa.Table, names: list[str]) -> KeyedJaggedTensor:
    lists: list[Any] = [pa.concat_arrays(batch[name].chunks) for name in names]
    offsets = [one.offsets.to_numpy() for one in lists]
    values = [one.values.to_numpy()[at[0] : at[-1]] for one, at in zip(lists, offsets, strict=True)]
    lengths = np.concatenate([np.diff(at) for at in offsets]).astype(np.int32)
    return KeyedJaggedTensor(
        keys=names,
        values=torch.from_numpy(np.concatenate(values)),
        lengths=torch.from_numpy(lengths),
    )


def _taken(batch: pa.Table, label: str, dense: tuple[str, ...], names: list[str]) -> int:
    """The rows of a batch; every id is read, as by a trainer."""
    features = _kjt(batch, names)
    torch.from_numpy(np.stack([batch[name].to_numpy() for name in dense], axis=1))
    torch.from_numpy(np.array(batch[label].to_numpy()))
    features.values().sum()
    return len(batch)
