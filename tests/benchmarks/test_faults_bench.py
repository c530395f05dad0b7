"""Rung 4 (whole programs): faults are drawn from a seed; a sample of them breaks no promise."""

from __future__ import annotations

import json
import random
from itertools import islice
from pathlib import Path

from forked import run_module

from benchmarks.faults.__main__ import KINDS

TYPED = ("registries", "command-lines", "topology-files", "damage", "json-texts")


def test_a_seed_draws_the_same_cases() -> None:
    for kind in KINDS:
        first, again, other = (
            [case.what for case in islice(kind.draw(random.Random(seed)), 20)]
            for seed in ("a", "a", "b")
        )
        assert first == again != other, kind.name


def test_what_a_user_types_breaks_no_promise() -> None:
    kinds = [option for kind in TYPED for option in ("--kind", kind)]
    command = ["benchmarks.faults", *kinds, "--sample", "5", "--json"]
    done = run_module(*command, folder=Path(__file__).parents[2])
    assert done.code == 0, done.err
    figures = {one["name"]: one for one in json.loads(done.out)["figures"]}
    assert figures["cases"]["value"] == 5 * len(TYPED)
    assert not [name for name, one in figures.items() if one["met"] is False], done.err
