"""The local reader beside what else reads Parquet for training, each as its docs say, as a table.

    python -m benchmarks.readers_beside [--quick] [--json]

All read the same files and columns and hand over batches of the same size with a KeyedJaggedTensor,
dense floats and labels. A figure is of whole epochs, the first of each side left out: in it Ray
starts its workers. A side that is slow is measured over fewer of them, as its note says. What is
not installed is left out, and `settings` names it.
"""

from __future__ import annotations

import logging
import statistics
import tempfile
from collections.abc import Callable
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import torch
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from benchmarks.harness import Figure, Report, alternate, main, spread
from benchmarks.limits import decoding
from benchmarks.reader import BATCH_SIZE, CHUNK_ROWS, SCHEMA, chunks, epoch_of
from recd_plugins.data.reader.local_reader import LocalReaderConfig
from recd_plugins.data.table import Table
from recd_plugins.data.table_writer import write_table

SECONDS = 30.0
"""A side that has been measured for so long begins no further epoch, so that the suite ends."""
COLUMNS = [SCHEMA.label, *SCHEMA.dense, *SCHEMA.sparse_names]


def measure(quick: bool) -> Report:
    rows, rounds = (50_000, 1) if quick else (200_000, 3)
    with tempfile.TemporaryDirectory(prefix="recd-bench-") as folder:
        table = write_table(Path(folder) / "table", SCHEMA, chunks(rows))
        return beside(table, rounds, Path(folder) / "cache")


def beside(table: Table, rounds: int, cache: Path) -> Report:
    sides: dict[str, Callable[[], int]] = {
        "pyarrow alone, no batches": decoding(table, COLUMNS),
        "local reader, shuffled": epoch_of(table, LocalReaderConfig()),
        "pyarrow.dataset loop, in order": lambda: _dataset_loop(table),
    }
    installed = {one.name for one in distributions()}
    rays = ("ray", "pandas", "aiohttp")  # Ray Data needs all of them
    missing = [name for name in (*rays, "datasets") if name not in installed]
    if missing in ([], ["datasets"]):
        sides["Ray Data, local shuffle"] = lambda: _ray(table)
    if "datasets" not in missing:
        sides["Hugging Face datasets, cached, shuffled"] = _hugging_face(table, cache)
        sides["Hugging Face datasets, streaming"] = lambda: _hugging_face_stream(table)
    measured = alternate(sides, rounds, of="readers", seconds=SECONDS)
    rate = {name: [one.result / one.wall for one in side] for name, side in measured.items()}
    reader = statistics.median(rate["local reader, shuffled"])
    figures = [
        Figure(
            name=name,
            value=statistics.median(each),
            unit="rows/s",
            baseline=reader,
            spread=spread(each),
            note=f"epochs measured: {len(each)}",
        )
        for name, each in rate.items()
    ]
    settings = {
        "rows": table.num_rows,
        "batch_size": BATCH_SIZE,
        "rounds": rounds,
        "seconds after which a side begins no epoch": SECONDS,
        "not installed": missing,
    }
    return Report(figures=figures, settings=settings)


def _dataset_loop(table: Table) -> int:
    """A hand loop over pyarrow.dataset, as torchdata's docs wrap one."""
    files = ds.dataset([str(file) for file in table.files])
    batches = files.to_batches(columns=COLUMNS, batch_size=BATCH_SIZE)
    return sum(_kjt(batch) for batch in batches)


def _kjt(batch: pa.RecordBatch) -> int:
    columns = [batch[name] for name in SCHEMA.sparse_names]
    lengths = np.concatenate([np.diff(one.offsets.to_numpy()) for one in columns])
    values = np.concatenate([one.flatten().to_numpy() for one in columns])
    dense = np.stack([batch[name].to_numpy() for name in SCHEMA.dense], axis=1)
    return _handed(dense, batch[SCHEMA.label].to_numpy(), values, lengths)


def _handed(dense: Any, labels: Any, values: Any, lengths: Any) -> int:
    KeyedJaggedTensor(
        keys=list(SCHEMA.sparse_names),
        values=torch.from_numpy(np.array(values)),
        lengths=torch.from_numpy(lengths.astype(np.int32)),
    )
    torch.from_numpy(np.array(dense)), torch.from_numpy(np.array(labels))
    return len(labels)


def _of_lists(batch: Any) -> int:
    """Of a column of arrays a feature, as Ray Data and Hugging Face hand them over."""
    lists = [one for name in SCHEMA.sparse_names for one in batch[name]]
    lengths = np.array([len(one) for one in lists])
    dense = np.stack([np.asarray(batch[name]) for name in SCHEMA.dense], axis=1)
    return _handed(dense, np.asarray(batch[SCHEMA.label]), np.concatenate(lists), lengths)


def _ray(table: Table) -> int:
    import ray

    if not ray.is_initialized():  # in the round that does not count
        ray.init("local", log_to_driver=False, include_dashboard=False, logging_level=logging.ERROR)
        ray.data.DataContext.get_current().enable_progress_bars = False
    files = [str(file) for file in table.files]
    batches = (
        ray.data.read_parquet(files)
        .select_columns(COLUMNS)
        .iter_batches(
            batch_size=BATCH_SIZE, local_shuffle_buffer_size=2 * CHUNK_ROWS, batch_format="numpy"
        )
    )
    return sum(_of_lists(batch) for batch in batches)


def _hugging_face(table: Table, cache: Path) -> Callable[[], int]:
    """Its own cache of Arrow files is made beforehand."""
    from datasets import Dataset

    found = Dataset.from_parquet(
        [str(file) for file in table.files], cache_dir=str(cache), columns=COLUMNS
    )

    def epoch() -> int:
        shuffled = found.shuffle(seed=0).with_format("numpy")
        return sum(_of_lists(batch) for batch in shuffled.iter(batch_size=BATCH_SIZE))

    return epoch


def _hugging_face_stream(table: Table) -> int:
    from datasets import load_dataset

    files = [str(file) for file in table.files]
    stream = load_dataset("parquet", data_files=files, split="train", streaming=True)
    shuffled = stream.select_columns(COLUMNS).shuffle(seed=0, buffer_size=2 * CHUNK_ROWS)
    batches = shuffled.with_format("numpy").iter(batch_size=BATCH_SIZE)
    return sum(_of_lists(batch) for batch in batches)


if __name__ == "__main__":
    main("readers_beside", measure)
