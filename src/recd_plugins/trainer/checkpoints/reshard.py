"""`recd reshard`: a run's checkpoint, written anew for another number of ranks; what does not
depend on the ranks is copied as it is."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

from recd_plugins.data.table import Progress, silent
from recd_plugins.errors import RegistryError
from recd_plugins.trainer.checkpoints.checkpoint import (
    check_whole,
    checkpoint_of,
    read_job,
    read_rank,
    write_json,
)
from recd_plugins.trainer.checkpoints.digest import digest_of, read_digest, write_digest
from recd_plugins.trainer.checkpoints.other_ranks import OtherRanks, for_ranks

__all__ = ["reshard"]


def reshard(
    source: Path,
    target: Path,
    ranks: int,
    batch_size: int | None = None,
    progress: Progress = silent,
) -> OtherRanks:
    """Write a checkpoint of the run `source`, its latest or the one named, into the run `target`,
    for `ranks` ranks of `batch_size` samples; what was written, as they see it."""
    checkpoint = checkpoint_of(source)
    check_whole(checkpoint)
    for rank in range(read_job(checkpoint)["world_size"]):
        read_rank(checkpoint, rank)
    found = for_ranks(checkpoint, ranks, batch_size)
    written = target / "checkpoints" / checkpoint.name
    if written.exists():
        raise RegistryError(f"{written} is there already. Name another folder, or remove it.")
    part = written.with_suffix(".part")
    shutil.rmtree(part, ignore_errors=True)
    try:
        part.mkdir(parents=True)
        _write(checkpoint, part, found, progress)
        part.rename(written)
    except BaseException as error:
        shutil.rmtree(part, ignore_errors=True)
        if isinstance(error, OSError):  # which names the file that was read
            raise OSError(error.errno, error.strerror, str(written)) from error
        raise
    return replace(found, checkpoint=written)


def _write(checkpoint: Path, part: Path, found: OtherRanks, progress: Progress) -> None:
    anew = ("rank-*.json", "job.json", "digest.json")
    kept = [file for file in checkpoint.iterdir() if not any(map(file.match, anew))]
    copied, size = 0, sum(file.stat().st_size for file in kept)
    for file in kept:
        shutil.copyfile(file, part / file.name)
        copied += file.stat().st_size
        progress("bytes of the checkpoint", copied, size)
    for rank in range(found.ranks):
        write_json(part / f"rank-{rank}.json", found.rank(rank))
    write_json(part / "job.json", {**found.job, "samples_of_step": found.ranks * found.batch_size})
    # What was copied keeps the digest that it was written with: a bad copy is found as it is read.
    every = {file.name: digest_of(file) for name in anew for file in part.glob(name)}
    as_before = {
        name: one for name, one in read_digest(checkpoint).items() if (part / name).exists()
    }
    write_digest(part, as_before | every)
