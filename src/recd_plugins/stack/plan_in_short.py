"""A plan of very many tables in short: its sums first, and of lines that are alike only a few."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from recd_plugins.errors import so_many
from recd_plugins.planning.explain.plan_report import compared
from recd_plugins.planning.explain.words import in_bytes
from recd_plugins.planning.planner_bases import Tiered
from recd_plugins.planning.tables.model_tables import model_tables
from recd_plugins.planning.tables.planned_shards import planned_shards
from recd_plugins.planning.tables.planned_tables import planned_tables

if TYPE_CHECKING:
    from torch import nn
    from torchrec.distributed.types import ShardingPlan

__all__ = ["MOST_ALIKE", "PlanInShort"]

MOST_ALIKE = 40
"""Lines that are alike, up to which all of them are shown."""
SHOWN = 8
"""Lines that are shown of more."""
FIGURE = re.compile(r"[-+±]?\d[\d.,]*(?:e[-+]?\d+)?(?:±[\d.]+)?%?(?: (?:[KMGT]i)?B\b| [mun]s\b)?")


class PlanInShort:
    """What a plan comes to, kept from when it was made."""

    def __init__(self, plan: ShardingPlan, model: nn.Module, world_size: int) -> None:
        self._kinds = Counter(how.sharding_type for _, _, how in planned_tables(plan))
        self._every_rank = 0
        self._bytes: Counter[int] = Counter()
        """By rank."""
        tables = model_tables(model) if self._kinds.total() > MOST_ALIKE else {}
        for name, planned in planned_shards(plan, tables).items():
            table = tables[name]
            size = table.num_rows * table.dim * table.element_bytes
            for shard in planned.shards:
                self._bytes[shard.rank] += int(size * shard.rows * shard.columns)
            if not planned.shards:
                self._every_rank += size
        self._some_have_none = len(self._bytes) < world_size

    def explained(self, text: str, planner: object, whole: str) -> str:
        """The `planner`'s explanation `text`: as it is, or in short where very many of its lines
        are alike. `whole` says where all of them are."""
        lines = list(_shortened(text.splitlines(), whole))
        if len(lines) >= len(text.splitlines()):
            return text
        return "\n".join([*self._sums(planner), *lines])

    def _sums(self, planner: object) -> Iterator[str]:
        kinds = ", ".join(f"{count:,} {kind}" for kind, count in self._kinds.most_common())
        tiers = planner if isinstance(planner, Tiered) else Tiered()
        if tiers.tier_plan is not None and tiers.tier_plan.tables:
            kinds += f"; {len(tiers.tier_plan.tables):,} of them with replicas"
        parts = [*self._bytes.values(), *([0] if self._some_have_none else ())]
        least, most = (self._every_rank + end(parts) for end in (min, max))
        each = in_bytes(most) if least == most else f"{in_bytes(least)} to {in_bytes(most)}"
        yield f"{so_many(self._kinds.total(), 'table')}: {kinds}; a rank has {each} of their rows"
        if tiers.report is not None:
            step, own = tiers.report.ledger.ms, tiers.report.torchrec.ms
            own_plan = "TorchRec's own plan"
            yield f"expected step: {step:.3g} ms, {compared(step, own, own_plan)}"


def _shortened(lines: list[str], whole: str) -> Iterator[str]:
    """The lines, those left out that are like many before them."""
    looks = [_look(line) for line in lines]
    count, seen, left = Counter(looks), Counter[str](), 0
    for line, look in zip(lines, looks, strict=True):
        seen[look] += 1
        if count[look] > MOST_ALIKE and seen[look] > SHOWN:
            left += 1
            continue
        if left:
            yield _and_more(left, whole)
        left = 0
        yield line
    if left:
        yield _and_more(left, whole)


def _look(line: str) -> str:
    """What is alike in lines of tables that are alike: all but the table's name and figures."""
    return " ".join(FIGURE.sub("0", re.sub(r"^(table )?\S+", r"\1", line)).split())


def _and_more(lines: int, whole: str) -> str:
    return f"... and {so_many(lines, 'line')} more like these: {whole}"
