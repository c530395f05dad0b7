"""What `recd advise` takes on a hundred large tables, and its regret over a search.

    python -m benchmarks.advise [--quick] [--json] [--only PART... [--folder DIR] [--minutes M]]

Parts are `large` and the numbers of the settings, which `--help` lists. With `--folder` a setting
keeps what it has timed, and a later run of the same sizes goes on from there; after `--minutes` no
more registries are begun, so that a long search is made in runs as long as one has.

The search: 40 registries and more, of clustering, deduplication, plans and hot batches, on an
emulated cluster of 2 x 2 ranks (needs root), each trained beside what is advised, in turns: all for
a few steps, the faster half for more, five finalists for ten rounds. Regret is how much longer a
step of what is advised takes than the best of these, in those rounds.
"""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from benchmarks.advise.large import large
from benchmarks.advise.regret import BUDGET_GB, SETTINGS, regrets
from benchmarks.cluster.ranks import EMULATED
from benchmarks.harness import Figure, Report, main

PARTS = ["large", *map(str, range(len(SETTINGS)))]


def measure(
    quick: bool,
    only: Sequence[str] = (),
    folder: Path | None = None,
    seconds: float = math.inf,
) -> Report:
    parts = only or (PARTS[:2] if quick else PARTS)
    chosen = [setting for number, setting in enumerate(SETTINGS) if str(number) in parts]
    figures: list[Figure] = []
    if "large" in parts:
        figures += large(20, 10**6, 8_192) if quick else large(100, 10**7, 32_768)
    if chosen:
        figures += regrets(
            chosen,
            samples=8_192 if quick else 32_768,
            quick=quick,
            most=6 if quick else None,
            kept=folder,
            seconds=seconds,
        )
    settings = {
        "cluster": f"2 nodes of 2 ranks: {EMULATED}",
        "budget": f"{BUDGET_GB} GB a rank",
        "load": f"{os.getloadavg()[0]:.1f}",
    }
    return Report(figures=figures, settings=settings)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--only", nargs="+", default=(), choices=PARTS, metavar="PART")
    parser.add_argument("--folder", type=Path, default=None)
    parser.add_argument("--minutes", type=float, default=math.inf)
    arguments, rest = parser.parse_known_args()
    run = partial(
        measure,
        only=arguments.only,
        folder=arguments.folder,
        seconds=60 * arguments.minutes,
    )
    each = "; ".join(f"{number}: {setting.name}" for number, setting in enumerate(SETTINGS))
    main("advise", run, rest, about=f"settings: {each}")
