"""All suites, one after another; what they find is kept, and RESULTS.md is drawn anew.

    python -m benchmarks [--quick] [--only SUITE...] [--limits] [--list] [--draw] [-- ARGUMENT...]

Each suite is a process of its own, in a quick run a copy of this one. Its figures go to
`benchmarks/results/`, a dated file with the conditions that they were measured in; nothing is
overwritten. A suite that fails is named at the end, and the others are kept. A run ends with how
long each suite took: `--quick` takes all of them within 15 minutes on two cores. `--limits` takes
the suites that give figures their limits, and at its end prints every limit that is kept; with
`--draw` it prints them alone. What follows `--` is for the suites themselves: a run of some of a
suite's settings renews their figures alone.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time

import torch

from benchmarks.copied_process import import_for_all, run_in_a_copy
from benchmarks.kept import keep, kept_results
from benchmarks.pages import draw, limit_rows
from benchmarks.suites import SUITES, Suite
from recd_plugins.launch.fork_server import torch_is_for_cpu


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks")
    parser.add_argument("--quick", action="store_true", help="less data and fewer rounds")
    parser.add_argument("--only", nargs="+", metavar="SUITE", help="these suites alone")
    parser.add_argument("--limits", action="store_true", help="suites with limits; prints these")
    parser.add_argument("--list", action="store_true", help="which suites there are")
    parser.add_argument("--draw", action="store_true", help="draw the pages and measure nothing")
    parser.add_argument("arguments", nargs="*", metavar="ARGUMENT", help="for the suites")
    options = parser.parse_args()
    if options.list:
        for suite in SUITES:
            print(f"{suite.name:20} {suite.minutes:3.0f} min  {suite.about}")
        return
    if not options.draw:
        chosen = [one for one in _chosen(options.only) if one.limits or not options.limits]
        failed = measured(chosen, options.quick, options.arguments)
    draw()
    if options.limits:
        print(*limit_rows(kept_results()), sep="\n")
    if not options.draw and failed:
        raise SystemExit(f"error: {', '.join(failed)} failed; what it printed is above.")


def measured(suites: list[Suite], quick: bool, arguments: list[str]) -> list[str]:
    """Run and keep them, and say how long each took; the names of those that failed."""
    failed: list[str] = []
    seconds: dict[str, float] = {}
    begun = time.monotonic()
    if copied := quick and torch_is_for_cpu():
        import_for_all()
    for number, suite in enumerate(suites, 1):
        if suite.needs_cuda and not torch.cuda.is_available():
            print(f"{number} of {len(suites)}: {suite.name} is left out, for there is no GPU here")
            continue
        print(f"{number} of {len(suites)}: {suite.name}, {suite.about}", flush=True)
        began = time.monotonic()
        command = [f"benchmarks.{suite.module}", *suite.arguments, "--json"]
        command += [*(["--quick"] if quick else []), *arguments]
        code, text = run_in_a_copy(command) if copied else _run(command)
        seconds[suite.name] = time.monotonic() - began
        if code:
            failed.append(suite.name)
            continue
        printed = json.loads(text.splitlines()[-1])
        path = keep(suite.name, printed["conditions"], printed["figures"])
        print(f"  {seconds[suite.name]:,.0f} s; kept as {path.name}", flush=True)
    for name, took in {**seconds, "all": time.monotonic() - begun}.items():
        print(f"{took:6,.0f} s  {name}{', failed' if name in failed else ''}", flush=True)
    return failed


def _run(command: list[str]) -> tuple[int, str]:
    run = subprocess.run([sys.executable, "-m", *command], stdout=subprocess.PIPE, text=True)
    return run.returncode, run.stdout


def _chosen(names: list[str] | None) -> list[Suite]:
    if unknown := sorted(set(names or ()) - {suite.name for suite in SUITES}):
        have = ", ".join(suite.name for suite in SUITES)
        raise SystemExit(f"error: no suite is named {', '.join(unknown)}: there are {have}.")
    return [suite for suite in SUITES if names is None or suite.name in names]


if __name__ == "__main__":
    main()
