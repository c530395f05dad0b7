"""Rung 4 (whole programs): faults are drawn from a seed; a sample of them breaks no promise."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from itertools import islice

from benchmarks.faults.__main__ import KINDS

TYPED = ("registries", "command-lines", "topology-files", "damage")


def test_a_seed_draws_the_same_cases() -> None:
    for kind in KINDS:
        first, again, other = (
            [case.what for case in islice(kind.draw(random.Random(seed)), 20)]
            for seed in ("a", "a", "b")
        )
        assert first == again != other, kind.name


def test_what_a_user_types_breaks_no_promise() -> None:
    kinds = [option for kind in TYPED for option in ("--kind", kind)]
    command = [sys.executable, "-m", "benchmarks.faults", *kinds, "--sample", "5", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    figures = {one["name"]: one for one in json.loads(done.stdout)["figures"]}
    assert figures["cases"]["value"] == 5 * len(TYPED)
    assert not [name for name, one in figures.items() if one["met"] is False], done.stderr
