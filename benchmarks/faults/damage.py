"""Files that a disk or a copy damaged: a bit turned, an end cut off, a stretch zeroed, a file gone.

What is read of them is what was written, or the damage is named: in this process, for that is where
it would go unnoticed.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch
import torch.distributed.checkpoint as dcp

from benchmarks.faults.cases import Breach, Case, Kind
from benchmarks.faults.programs import Place
from recd_dedup.log.shards import ZstdShards, ZstdShardsConfig
from recd_plugins.api.data import MESSAGES
from recd_plugins.errors import DataError
from recd_plugins.planning.access.access_profile import Profile
from recd_plugins.planning.access.distribution import RowDistribution
from recd_plugins.planning.tier_plans.tier_plan import TablePlan, TierPlan
from recd_plugins.trainer.checkpoints.files import (
    check_whole,
    digest_of,
    write_digest,
    write_json,
)
from recd_plugins.trainer.checkpoints.storage import JsonReader, JsonWriter

__all__ = ["DAMAGE"]

ROWS = np.arange(64, dtype=np.int64)[::-1].copy()


def _log(folder: Path) -> None:
    with ZstdShards(ZstdShardsConfig(shards=2, block_bytes=2000), folder) as log:
        rows = [{"session_id": n % 7, "timestamp": n, "message": b"%d" % n} for n in range(500)]
        log.append(pa.RecordBatch.from_pylist(rows, schema=MESSAGES))


def _read_log(folder: Path) -> str:
    log = ZstdShards(ZstdShardsConfig(shards=2, block_bytes=2000), folder)
    found = [batch.to_pydict() for shard in range(2) for batch in log.read(shard)]
    unsealed = sum(one.tail for one in log.unsealed.values())
    if unsealed:
        raise DataError(f"{unsealed} bytes are no sealed block")  # it is counted, and so named
    return repr(found)


def _checkpoint(folder: Path) -> None:
    path = folder / "step-00000004"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of one process
        dcp.save({"w": torch.arange(999.0)}, storage_writer=JsonWriter(path), no_dist=True)
    write_json(path / "job.json", {"step": 4, "world_size": 1, "registry": {}})
    write_json(path / "rank-0.json", {"loader": {"epoch": 0, "batches": 4}})
    write_digest(path, {file.name: digest_of(file) for file in path.iterdir()})


def _read_checkpoint(folder: Path) -> str:
    path = folder / "step-00000004"
    check_whole(path)
    weights = {"w": torch.zeros(999)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.load(weights, storage_reader=JsonReader(path), no_dist=True)
    texts = [(path / name).read_text() for name in ("job.json", "rank-0.json")]
    return repr((weights["w"].tolist(), texts))


def _plan(folder: Path) -> None:
    table = TablePlan(table="t", replicated=ROWS[:9].copy(), per_node=ROWS[9:].copy(), num_rows=64)
    TierPlan(tables={"t": table}, n_nodes=2, ranks_per_node=2).save(folder / "plan.arrow")


def _read_plan(folder: Path) -> str:
    plan = TierPlan.load(folder / "plan.arrow")
    table = plan.tables["t"]
    return repr((plan.version, table.coalesce, table.num_rows))


def _profile(folder: Path) -> None:
    rows = RowDistribution.of([4, 60], [0.5, 0.01], ids=ROWS)
    Profile(rows={"t": rows}, samples=99).save(folder / "profile.arrow")


def _read_profile(folder: Path) -> str:
    profile = Profile.load(folder / "profile.arrow")
    rows = profile.rows["t"]
    return repr((profile.samples, rows.hottest(64).tolist(), float(rows.coverage(4))))


KEPT: dict[str, tuple[Callable[[Path], None], Callable[[Path], str]]] = {
    "a log": (_log, _read_log),
    "a checkpoint": (_checkpoint, _read_checkpoint),
    "a tier plan": (_plan, _read_plan),
    "a profile": (_profile, _read_profile),
}
"""What is written, and how it is read: as text of all that it holds."""

DAMAGES = ("a bit turned", "the end cut off", "a stretch zeroed", "gone")


def _draw(draw: random.Random) -> Iterator[Case]:
    while True:
        kept, damage = draw.choice(sorted(KEPT)), draw.choice(DAMAGES)
        file, at = draw.random(), draw.random()
        what = f"{kept}, file {file:.3f} of its files, {damage} at {at:.6f} of it"
        yield Case(what=what, run=partial(_run, kept, damage, file, at))


def _run(kept: str, damage: str, file: float, at: float, place: Place) -> Iterator[Breach]:
    write, read = KEPT[kept]
    write(place.folder)
    written = read(place.folder)
    files = sorted(path for path in place.folder.rglob("*") if path.is_file())
    path = files[int(file * len(files))]
    whole = bytearray(path.read_bytes())
    first = int(at * len(whole))
    match damage:
        case "a bit turned":
            whole[first] ^= 1 << int(at * 997) % 8
        case "the end cut off":
            del whole[first:]
        case "a stretch zeroed":
            whole[first : first + 64] = bytes(len(whole[first : first + 64]))
    path.unlink() if damage == "gone" else path.write_bytes(whole)
    name = path.relative_to(place.folder)
    try:
        found = read(place.folder)
    except DataError:
        return
    except Exception as error:
        yield Breach("traceback", f"{name}: {type(error).__name__}: {error}")
        return
    if found != written:
        yield Breach("silent change", f"{name}: other things are read than were written")


DAMAGE = Kind(name="damage", draw=_draw, quick=100, full=600)
