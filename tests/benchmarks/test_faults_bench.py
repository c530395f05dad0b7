"""Rung 1 (values): faults are drawn from a seed."""

from __future__ import annotations

import random
from itertools import islice

from benchmarks.faults.__main__ import KINDS


def test_a_seed_draws_the_same_cases() -> None:
    for kind in KINDS:
        first, again, other = (
            [case.what for case in islice(kind.draw(random.Random(seed)), 20)]
            for seed in ("a", "a", "b")
        )
        assert first == again != other, kind.name
