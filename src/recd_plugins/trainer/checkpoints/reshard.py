"""Writes a checkpoint for another number of ranks (`recd reshard`). Tables, dense parameters and
optimizer states load under any plan and world size, so their files are copied unchanged."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from recd_plugins.data.pins import copy_pins
from recd_plugins.data.progress import Progress, silent
from recd_plugins.errors import RegistryError
from recd_plugins.storage.json_mappings import as_items
from recd_plugins.storage.lock_file import written_alone
from recd_plugins.trainer.checkpoints.files import (
    check_whole,
    checkpoint_of,
    digest_of,
    read_digest,
    read_job,
    read_rank,
    write_digest,
    write_json,
)
from recd_plugins.trainer.checkpoints.other_ranks import (
    OtherRanks,
    batch_size_in,
    for_ranks,
    shared_streams,
)
from recd_plugins.trainer.checkpoints.step_folders import checkpoints_in

__all__ = ["reshard"]


def reshard(
    source: Path,
    target: Path,
    ranks: int,
    batch_size: int | None = None,
    progress: Progress = silent,
) -> OtherRanks:
    """Write a checkpoint of the run `source`, the latest or the one named, into the run `target`,
    for `ranks` ranks of `batch_size` samples; returns what was written, as these ranks see it."""
    checkpoint = checkpoint_of(source)
    check_whole(checkpoint)
    for rank in range(read_job(checkpoint)["world_size"]):
        read_rank(checkpoint, rank)
    registry = read_job(checkpoint)["registry"]
    streams = shared_streams(registry, ranks, batch_size or batch_size_in(registry))
    found = for_ranks(checkpoint, ranks, batch_size, streams)
    written = target / "checkpoints" / checkpoint.name
    part = written.with_suffix(".part")
    with _oserror_of(written), written_alone(part, written):
        _check_has_no_run(target)
        shutil.rmtree(part, ignore_errors=True)
        try:
            part.mkdir(parents=True)
            _write(checkpoint, part, found, progress)
            if checkpoint.parent.name == written.parent.name:
                copy_pins(checkpoint.parent.parent, target)
            part.rename(written)
        except BaseException:
            shutil.rmtree(part, ignore_errors=True)
            raise
    return replace(found, checkpoint=written)


def _check_has_no_run(target: Path) -> None:
    """`RegistryError` if a folder has files of a run already, be it the one that is read."""
    held = [target / name for name in ("metrics.jsonl", "summary.json")]
    held += reversed(checkpoints_in(target / "checkpoints"))
    if there := next((one for one in held if one.exists()), None):
        raise RegistryError(
            f"TO: {target} has a run already, since {there} is there: what is written would be "
            "mixed with that run's metrics and checkpoints. Name another folder."
        )


@contextmanager
def _oserror_of(written: Path) -> Iterator[None]:
    """Inside, errors of the system name the file that is written, even if they named the file that
    was read."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(written)) from error


def _write(checkpoint: Path, part: Path, found: OtherRanks, progress: Progress) -> None:
    anew = ("rank-*.json", "job.json", "digest.json")
    kept = [file for file in checkpoint.iterdir() if not any(map(file.match, anew))]
    copied, size = 0, sum(file.stat().st_size for file in kept)
    for file in kept:
        shutil.copyfile(file, part / file.name)
        copied += file.stat().st_size
        progress("bytes of the checkpoint", copied, size)
    for rank in range(found.ranks):
        write_json(part / f"rank-{rank}.json", as_items(found.rank(rank)))
    write_json(part / "job.json", {**found.job, "samples_of_step": found.ranks * found.batch_size})
    # A copied file keeps its first digest, so a bad copy is found when it is read.
    every = {file.name: digest_of(file) for name in anew for file in part.glob(name)}
    as_before = {
        name: one for name, one in read_digest(checkpoint).items() if (part / name).exists()
    }
    write_digest(part, as_before | every)
