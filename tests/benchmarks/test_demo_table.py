"""Value tests: the table of `make demo` says why a plugin that sends less may be slower there."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.demo import BY_HAND, RM1_SCALE, SIDES, shown

SUMMARY: dict[str, Any] = {
    "samples_per_second": 1000.0,
    "rates": [900.0, 1100.0],
    "cost": {"traffic": {"all_to_all": {"ids": 1_500_000}}},
    "peak_memory_mib": 600.0,
    "train": {"loss": 0.5},
    "test": {"ne": 0.8, "auc": 0.77},
}
RM1 = ("RM1, plain", "RM1, RecD")


@pytest.mark.parametrize("quick", [False, True])
def test_the_caption_names_the_sides_that_send_less_if_they_ran(quick: bool) -> None:
    sides = SIDES[:1] if quick else SIDES
    names = (BY_HAND, *(side.name for side in sides), *RM1)
    table = shown(dict.fromkeys(names, SUMMARY), quick)
    assert table.row_count == len(names)
    assert f"RM1 at 1/{1 / RM1_SCALE:.0f}" in str(table.title)
    assert "on the small model 900 and 1,100" in str(table.caption)
    assert ("FlexShard and SCARS send less" in str(table.caption)) is not quick
