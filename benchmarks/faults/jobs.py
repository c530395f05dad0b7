"""A small job that works, for cases to break: its registry, tables, a run, files of every kind."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from benchmarks.faults.programs import Place
from recd_plugins.data.reader.read_log import with_digest

__all__ = ["JOB", "RUN", "furnish", "written"]

JOB: Mapping[str, Any] = {
    "plugins": ["recd_dlrm", "recd_dedup", "recd_flexshard", "recd_scars"],
    "dataset": {
        "use": "random",
        "samples": 256,
        "test_samples": 64,
        "dense": 4,
        "num_ids": [100, 50, 20],
    },
    "model": {"use": "dlrm", "embedding_dim": 8},
    "train": {
        "ranks": 1,
        "batch_size": 32,
        "steps": 4,
        "checkpoint_every": 2,
        "device": "cpu",
        "run": "runs/job",
        "log_every": 2,
    },
}
RUN = "runs/job"


def written(job: Mapping[str, object]) -> str:
    """A registry as text."""
    return yaml.safe_dump(dict(job), sort_keys=False)


ROWS = "session,time,click,user,item\n" + "".join(
    f"{row // 4},{1_700_000_000 + row},{row % 2},{row // 4 % 9},{row % 17}\n" for row in range(256)
)
"""A log of clicks, of which a table is made."""
READ = with_digest({"time": 1.7e9, "table": "table/train", "columns": ["click", "item"]})
"""A read log: a job that read two columns of it."""


def furnish(place: Place) -> None:
    """Put the job into a case's folder, trained once, and odd files beside it."""
    source = place.made("job", _train)
    shutil.copytree(source, place.folder, dirs_exist_ok=True)
    (place.folder / "a_folder").mkdir()
    place.write("a_folder/kept", "somebody's")
    place.write("a_file", "somebody's")
    os.mkfifo(place.folder / "a_fifo")
    (place.folder / "a_loop").symlink_to("a_loop")


def _train(place: Place) -> None:
    place.write("registry.yaml", written(JOB))
    ended = place.recd("train", limit=300)
    if ended.code != 0:
        raise SystemExit(f"the job that faults are done to does not train: {ended.output}")
    lock = Path(place.folder, "runs/.job.lock")
    lock.unlink(missing_ok=True)
    place.write("rows.csv", ROWS)
    place.write("read.log", READ)
    schema = ("--schema", "schema.yaml")
    for arguments in (
        ("data", "schema", "rows.csv", "--out", "schema.yaml"),
        ("data", "import", "rows.csv", "table", *schema, "--split-by", "time"),
        ("topology", "measure", "--ranks", "1", "--rounds", "1", "--save", "topology.yaml"),
    ):
        ended = place.recd(*arguments, limit=300)
        if ended.code != 0:
            raise SystemExit(f"recd {' '.join(arguments)}, before all faults: {ended.output}")
