"""Rung 4 (an example run): FlexShard sends less and learns the same as row-wise."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest


def test_replicas_send_less_and_learn_alike(run_example: Callable[..., str]) -> None:
    printed = run_example("flexshard.py", "8")
    assert re.search(r"lookups of the hottest rows: .*1000: '\d\d%'", printed)
    assert "tier plan: goal auto; 2 nodes of 2 ranks" in printed
    rows = re.findall(r"^│ (row-wise|FlexShard) +│(.*)│$", printed, re.MULTILINE)
    assert [name for name, _ in rows] == ["row-wise", "FlexShard"], printed
    plain, ours = ([float(cell.replace(",", "")) for cell in row.split("│")] for _, row in rows)
    assert plain[1] > 3 * ours[1]  # MB through all-to-alls
    assert sum(plain[1:3]) > 2 * sum(ours[1:3])  # and with the replicas' gradients
    # Equal but for the order in which floats are added, over 8 steps; six digits are shown.
    assert ours[3:] == pytest.approx(plain[3:], abs=2e-6)


@pytest.mark.parametrize("steps", ["7", "x", "-1"])
@pytest.mark.parametrize("name", ["flexshard.py", "scars.py"])
def test_too_few_steps_are_one_message(
    name: str, steps: str, run_example: Callable[..., str]
) -> None:
    # Python prints such a message on stderr, and ends with 1.
    with pytest.raises(SystemExit, match=rf"^{steps}: say 8 steps at least"):
        run_example(name, steps)
