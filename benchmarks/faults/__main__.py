"""Faults of every kind, drawn from a seed: what is promised of each must hold.

    python -m benchmarks.faults [--quick] [--json] [--seed N] [--kind NAME]...
        [--sample N | --cases N] [--jobs N]

What fails is printed with the line that does it again (`--case NAME:NUMBER`).
"""

from __future__ import annotations

import argparse
import math
import os
import random
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from functools import partial
from itertools import islice
from operator import itemgetter

from benchmarks.faults.cases import PROMISES, Breach, Case, Kind, Promise
from benchmarks.faults.command_lines import COMMAND_LINES
from benchmarks.faults.damage import DAMAGE
from benchmarks.faults.full_disks import FULL_DISKS, take_own_mounts
from benchmarks.faults.interruptions import INTERRUPTIONS
from benchmarks.faults.json_texts import JSON_TEXTS
from benchmarks.faults.programs import Place, Programs, programs
from benchmarks.faults.registries import REGISTRIES
from benchmarks.faults.topology_files import TOPOLOGY_FILES
from benchmarks.harness import Figure, Report, main

KINDS: tuple[Kind, ...] = (
    DAMAGE,
    JSON_TEXTS,
    FULL_DISKS,
    TOPOLOGY_FILES,
    REGISTRIES,
    COMMAND_LINES,
    INTERRUPTIONS,
)


@dataclass(frozen=True, kw_only=True)
class Tried:
    """What became of a case."""

    kind: str
    number: int
    what: str
    breaches: Sequence[Breach]
    seconds: float


def measure(
    quick: bool,
    *,
    seed: int = 0,
    kinds: Sequence[str] = (),
    only: str = "",
    sample: int | None = None,
    most: int | None = None,
    jobs: int = 1,
) -> Report:
    chosen = [kind for kind in KINDS if kind.name in kinds] if kinds else KINDS
    begun = time.monotonic()
    share = most / sum(kind.full for kind in chosen) if most else 0.0
    counts = {
        kind.name: sample or math.ceil(share * kind.full) or (kind.quick if quick else kind.full)
        for kind in chosen
    }
    lacks = {kind.name: why for kind in chosen if (why := kind.lacks())}
    able = [kind for kind in chosen if kind.name not in lacks]
    tried: list[Tried] = []
    with programs() as started, ThreadPoolExecutor(jobs) as pool:
        cases = _cases(able, counts, seed, only)
        trying = [pool.submit(_try, started, seed, case) for case in cases]
        try:
            for one in as_completed(trying):
                tried.append(one.result())
                if len(tried) % 100 == 0:
                    print(f"{len(tried):,} cases tried", file=sys.stderr, flush=True)
        except KeyboardInterrupt:  # what is known by now is not lost
            pool.shutdown(cancel_futures=True)
    figures = [
        Figure(
            name="cases",
            value=len(tried),
            unit="",
            target=len(cases),
            note="".join(f"no {kind}: {why}; " for kind, why in lacks.items()).rstrip("; "),
        ),
        *(_broken(tried, kind, promise) for kind in able for promise in PROMISES),
        Figure(name="time", value=time.monotonic() - begun, unit="s"),
    ]
    return Report(figures=figures, settings={"jobs": jobs}, seed=seed)


def _broken(tried: Sequence[Tried], kind: Kind, promise: Promise) -> Figure:
    """How many cases of a kind broke a promise: none is the target."""
    of_it = [one for one in tried if one.kind == kind.name]
    broke = sum(any(breach.promise == promise for breach in one.breaches) for one in of_it)
    note = f"of {len(of_it):,} cases: {PROMISES[promise]}"
    return Figure(
        name=f"{kind.name}: {promise}", value=broke, unit="", target=0, at_most=True, note=note
    )


def _cases(
    kinds: Sequence[Kind], counts: Mapping[str, int], seed: int, only: str
) -> list[tuple[str, int, Case]]:
    """The cases to try, with their kinds and numbers; wherever a run is interrupted, it has tried
    as large a part of each kind."""
    found = []
    wanted, _, number = only.partition(":")
    for kind in kinds:
        if only and kind.name != wanted:
            continue
        drawn = kind.draw(random.Random(f"{seed} {kind.name}"))
        first, last = (int(number), int(number) + 1) if number else (0, counts[kind.name])
        some = list(islice(enumerate(drawn), first, last))
        found += [(place / len(some), kind.name, *one) for place, one in enumerate(some)]
    return [(kind, number, case) for _, kind, number, case in sorted(found, key=itemgetter(0))]


def _try(started: Programs, seed: int, drawn: tuple[str, int, Case]) -> Tried:
    kind, number, case = drawn
    place = Place(folder=started.folder / f"{kind}-{number}", programs=started)
    begun = time.monotonic()
    breaches: list[Breach] = []
    try:
        place.folder.mkdir()
        breaches += case.run(place)
    except Exception:  # of the suite's own: the other cases go on, and this one is named
        breaches.append(Breach("untried", traceback.format_exc()))
    for path in (place.folder, *started.folder.glob(f"{place.folder.name}.*")):
        shutil.rmtree(path, ignore_errors=True)
    if breaches:
        lines = [
            f"FAILED {kind}:{number}: {case.what[:300]}",
            *(f"  {one.promise}: {one.what}" for one in breaches),
            f"  python -m benchmarks.faults --seed {seed} --case {kind}:{number}",
        ]
        print("\n".join(lines), file=sys.stderr, flush=True)
    return Tried(
        kind=kind,
        number=number,
        what=case.what,
        breaches=breaches,
        seconds=time.monotonic() - begun,
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kind", action="append", choices=[kind.name for kind in KINDS])
    parser.add_argument("--case", default="")
    parser.add_argument("--sample", type=int, help="so many cases of each kind")
    parser.add_argument("--cases", type=int, help="so many, of each kind its part of a full run")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    chosen, rest = parser.parse_known_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    take_own_mounts()
    main(
        "faults",
        partial(
            measure,
            seed=chosen.seed,
            kinds=chosen.kind or (),
            only=chosen.case,
            sample=chosen.sample,
            most=chosen.cases,
            jobs=chosen.jobs,
        ),
        rest,
        keeps_memory=False,
    )
