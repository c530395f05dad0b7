"""All rows of RecD's data side, on a generated table like the paper's RM1.

    python -m benchmarks.recd_data [--quick] [--json]

A quick run has fewer sessions than a partition of an hour, so it measures files on a sixth of the
features: then a page of the time-ordered baseline repeats sessions as rarely.
"""

from __future__ import annotations

import dataclasses
import tempfile
from pathlib import Path

import torch

from benchmarks.harness import Report, main
from benchmarks.models import SMALL, sessions
from benchmarks.recd_data.batches import conversions, preprocessing, wire
from benchmarks.recd_data.reading import conversion, reader
from benchmarks.recd_data.storage import clustering, file_sizes, logs
from benchmarks.wide_ids import with_wide_ids
from recd_dedup.dedup.advisor import advise
from recd_dedup.etl.cluster import ClusterBySession, ClusterConfig
from recd_dlrm.datasets.sessions.dataset import Sessions, SessionsConfig
from recd_plugins.data.table import Table
from recd_plugins.data.table_writer import write_table

SEED = 0
BATCH_SIZE = 4096
QUICK_SAMPLES, SAMPLES = 65_536, 655_360
QUICK_SHARE = 6
"""A quick run measures files on every sixth feature, and on six times the samples."""


def measure(quick: bool) -> Report:
    samples = QUICK_SAMPLES if quick else SAMPLES
    config = sessions("rm1", SMALL, samples=samples, seed=SEED)
    with tempfile.TemporaryDirectory(prefix="recd-bench-") as name:
        return compare(
            config,
            narrow(config) if quick else config,
            Path(name),
            rounds=4 if quick else 5,
        )


def compare(
    config: SessionsConfig,
    stored: SessionsConfig,
    folder: Path,
    rounds: int,
    batch_size: int = BATCH_SIZE,
) -> Report:
    """All figures on the table of `config`, except file sizes, which are on that of `stored`.

    For both sides torch runs on one thread, as in a reader's worker.
    """
    torch.set_num_threads(1)
    by_time = _generated(config, folder / "by_time")
    by_session = _clustered(by_time, folder / "by_session")
    left_out = _clustered(by_time, folder / "left_out", leave_out_repeats=True)
    wide = with_wide_ids(by_time, folder / "wide")
    files = by_time, by_session, left_out
    if stored != config:
        files = _stored(stored, folder)
    figures = [
        *file_sizes(*files, folder / "stored_wide"),
        *logs(by_time),
        *clustering(by_time, folder, rounds),
    ]
    advice = advise(by_session, batch_size=batch_size)
    groups = advice.groups
    figures += reader(wide, by_time, by_session, left_out, groups, batch_size, rounds)
    figures += conversions(by_session, groups, batch_size, rounds)
    figures += conversion(by_session, left_out, groups, batch_size, rounds)
    figures += preprocessing(by_session, groups, batch_size, rounds)
    figures += wire(by_session, groups, batch_size)
    settings = {
        "table": "RM1-like: 16 sequence features in 5 groups, 24 user and 12 item features",
        "samples": config.samples,
        "samples, for file sizes": stored.samples,
        "features, for file sizes": len(stored.features),
        "samples_per_session": config.samples_per_session,
        "batch_size": batch_size,
        "groups": f"{len(groups)} of {sum(map(len, groups))} features, as advised",
        "files": "1 MiB pages; by time zstd 1, ids of 8 bytes where no figure says 4; clustered as "
        "by default; in the page cache",
        "rounds": rounds,
        "torch_threads": torch.get_num_threads(),
    }
    return Report(figures=figures, settings=settings, seed=SEED)


def narrow(config: SessionsConfig) -> SessionsConfig:
    """Every sixth feature, also of the dense ones, and six times the samples: equally many
    bytes."""
    return dataclasses.replace(
        config,
        samples=config.samples * QUICK_SHARE,
        features=config.features[::QUICK_SHARE],
        dense=config.dense // QUICK_SHARE,
    )


def _generated(config: SessionsConfig, folder: Path) -> Table:
    dataset = Sessions(config)
    return write_table(folder, dataset.schema, dataset.chunks("train"))


def _clustered(table: Table, folder: Path, *, leave_out_repeats: bool = False) -> Table:
    config = ClusterConfig(leave_out_repeats=leave_out_repeats)
    return ClusterBySession(config).run(table, folder)


def _stored(config: SessionsConfig, folder: Path) -> tuple[Table, Table, Table]:
    """The tables whose files are measured: by time, by session, and by session with repeats left
    out."""
    by_time = _generated(config, folder / "stored_by_time")
    return (
        by_time,
        _clustered(by_time, folder / "stored_by_session"),
        _clustered(by_time, folder / "stored_left_out", leave_out_repeats=True),
    )


if __name__ == "__main__":
    main("recd_data", measure)
