"""Full disks: what is written to a disk that has too little room, of a size drawn from a seed.

What is refused says so, leaves no part behind, and what was there before is as it was; what is not
refused is whole. The disks are in memory (tmpfs), which takes the rights of root to mount; nobody
but the suite sees them, and they go with it.
"""

from __future__ import annotations

import contextlib
import ctypes
import random
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from benchmarks.faults.cases import Breach, Case, Kind, breaches_of
from benchmarks.faults.jobs import furnish
from benchmarks.faults.programs import Place
from recd_dedup.log.shards import ZstdShards, ZstdShardsConfig
from recd_plugins.api.data import MESSAGES
from recd_plugins.errors import DataError
from recd_plugins.planning.access.access_profile import Profile
from recd_plugins.planning.tier_plans.tier_plan import TierPlan
from recd_plugins.trainer.checkpoints.files import check_whole
from recd_plugins.trainer.checkpoints.step_folders import checkpoints_in

__all__ = ["FULL_DISKS", "take_own_mounts"]

LIMIT = 90.0
DISK = "disk"
"""The folder of a case that a disk of its own is mounted at."""
SMALLEST, LARGEST = 12, 22
"""Of a disk, as powers of 2."""
OWN_MOUNTS = 0x00020000
"""CLONE_NEWNS of unshare(2)."""
NAMES_THE_DISK = ("No space left", "no room", "space on its disk")
"""One of these is in the message of a full disk."""

ROWS = "user,item,when,clicked\n" + "".join(
    f"{n % 97},{n * 7919 % 1_009},{1_700_000_000 + n},{n % 5 == 0:d}\n" for n in range(20_000)
)
FLEXSHARD = (
    "sharding={use: flexshard, goal: min_communication, coalesce: rank, others: {search: greedy}, "
    "tables: [t_cat_0, t_cat_1, t_cat_2]}"
)
SLOW_LINKS = "topology={ranks_per_node: 1, inter_node_gbps: 0.01}"
PLAN = ("plan", FLEXSHARD, SLOW_LINKS, "train.ranks=2")


def take_own_mounts() -> None:
    """From here on this process, and what it starts, mount for themselves alone, if they may."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(OWN_MOUNTS) == 0:
        subprocess.run(["mount", "--make-rprivate", "/"], check=False, capture_output=True)


def lacks() -> str:
    """Why no disk can be mounted here; nothing where one can."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            with mounted(Path(folder), 1 << SMALLEST):
                return ""
        except (OSError, subprocess.CalledProcessError) as error:
            reason = getattr(error, "stderr", None) or str(error)
            return f"a disk in memory cannot be mounted ({reason.strip()}); run it as root"


@contextlib.contextmanager
def mounted(folder: Path, size: int) -> Iterator[None]:
    """A disk of so many bytes, for as long as it lasts."""
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "recd-faults", str(folder)]
    subprocess.run(command, check=True, capture_output=True, text=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True, capture_output=True)


@dataclass(frozen=True, kw_only=True)
class Written:
    """Something that a command writes, and how it is seen that all of it is there."""

    command: tuple[str, ...]
    whole: Callable[[Path], object]
    """Reads what the command wrote to the disk; raises where it is not whole."""
    file: str = ""
    """A file of somebody's that the command replaces, if it is one."""
    kept: str = ""
    """What it keeps to go on with, where it could not end."""


def _run_is_whole(disk: Path) -> None:
    for step in checkpoints_in(disk / "job/checkpoints"):
        check_whole(step)


def _table_is_whole(disk: Path) -> None:
    from recd_plugins.data.table import Table

    table = Table.open(disk / "table")
    if (found := sum(1 for _ in ROWS.splitlines()) - 1) != table.num_rows:
        raise DataError(f"{table.num_rows} rows of {found}")


WRITTEN = {
    "checkpoints": Written(command=("train", "train.run=disk/job"), whole=_run_is_whole),
    "checkpoints, with on_full=go_on": Written(
        command=("train", "train.run=disk/job", "train.on_full=go_on"), whole=_run_is_whole
    ),
    "prepared tables": Written(command=("train", "folder=disk/data"), whole=_run_is_whole),
    "an import": Written(
        command=("data", "import", "rows.csv", "disk/table"),
        whole=_table_is_whole,
        kept="table.part",
    ),
    "a tier plan": Written(
        command=(*PLAN, "--save", "disk/plan.arrow"),
        whole=lambda disk: TierPlan.load(disk / "plan.arrow"),
        file="plan.arrow",
    ),
    "a profile": Written(
        command=("data", "profile", "--batches", "2", "--save", "disk/profile.arrow"),
        whole=lambda disk: Profile.load(disk / "profile.arrow"),
        file="profile.arrow",
    ),
    "a figure": Written(
        command=(*PLAN, "--figure", "disk/plan.svg"),
        whole=lambda disk: (disk / "plan.svg").read_text().index("</svg>"),
        file="plan.svg",
    ),
    "a page": Written(
        command=("report", "runs/job", "--out", "disk/report.html"),
        whole=lambda disk: (disk / "report.html").read_text().index("</html>"),
        file="report.html",
    ),
    "a resharded run": Written(
        command=("reshard", "runs/job", "disk/job", "--ranks", "2"), whole=_run_is_whole
    ),
}


def draw(generator: random.Random) -> Iterator[Case]:
    names = [*WRITTEN, "a log"]
    while True:
        name = generator.choice(names)
        size = int(2 ** generator.uniform(SMALLEST, LARGEST))
        yield _log(size) if name == "a log" else _command(name, size)


def _command(name: str, size: int) -> Case:
    written = WRITTEN[name]

    def run(place: Place) -> Iterator[Breach]:
        furnish(place)
        place.write("rows.csv", ROWS)
        (disk := place.folder / DISK).mkdir()
        with mounted(disk, size):
            before = disk / written.file
            if written.file:
                before.write_text("somebody's")
            ended = place.recd(*written.command, limit=LIMIT)
            yield from breaches_of(ended)
            if ended.code == 2 and not any(one in ended.output for one in NAMES_THE_DISK):
                yield Breach("unclear", f"no word of the disk: {ended.output[-500:]}")
            if ended.code and written.file and before.read_text() != "somebody's":
                yield Breach("silent change", f"{written.file} is neither old nor new")
            if parts := [one.name for one in disk.rglob("*.part*") if one.name != written.kept]:
                yield Breach("left behind", f"{', '.join(parts)}")
            if ended.code == 0 or name.startswith("checkpoints"):
                try:
                    written.whole(disk)
                except Exception as error:
                    yield Breach("silent change", f"not whole: {type(error).__name__}: {error}")

    return Case(what=f"{name}: recd {' '.join(written.command)}, {size:,} bytes of disk", run=run)


def _log(size: int) -> Case:
    """Messages are appended until there is no room: what is read back is what was written before,
    or an error says what is lacking."""

    def run(place: Place) -> Iterator[Breach]:
        (disk := place.folder / DISK).mkdir()
        config = ZstdShardsConfig(shards=2, block_bytes=2_000)
        sent: list[int] = []
        with mounted(disk, size):
            full = False
            try:
                with ZstdShards(config, disk / "log") as log:
                    for first in range(0, 40_000, 100):
                        rows = [
                            {"session_id": n % 7, "timestamp": n, "message": b"%d" % (n * n)}
                            for n in range(first, first + 100)
                        ]
                        log.append(pa.RecordBatch.from_pylist(rows, schema=MESSAGES))
                        sent += range(first, first + 100)
            except OSError:
                full = True
            read: list[int] = []
            log = ZstdShards(config, disk / "log")
            try:
                for shard in range(config.shards):
                    for batch in log.read(shard):
                        read += batch.column("timestamp").to_pylist()
            except DataError:
                return  # which names what is damaged
            lost = set(sent) - set(read)
            if not full and lost:
                yield Breach("silent change", f"{len(lost)} of {len(sent)} messages are not read")
            if wrong := [n for n in read if n not in set(range(len(sent) + 100))]:
                yield Breach("silent change", f"messages that nobody sent: {wrong[:5]}")

    return Case(what=f"a log, {size:,} bytes of disk", run=run)


FULL_DISKS = Kind(name="full-disks", draw=draw, quick=20, full=200, lacks=lacks)
