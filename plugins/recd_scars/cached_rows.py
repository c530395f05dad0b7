"""The rows of each table that SCARS caches: how many the rule of `size` takes, and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from recd_plugins.api import CapabilityError, so_many
from recd_plugins.api.planning import (
    GB,
    ChosenSizes,
    Integers,
    Ledger,
    MergedRows,
    PlanReport,
    Prices,
    ProfiledTable,
    TableSizes,
)
from recd_scars.config import ScarsConfig
from recd_scars.device_memory import DeviceMemory
from recd_scars.hot_set import covering, optimum, within, worth
from recd_scars.theory import Memory
from recd_scars.traffic_report import lines

__all__ = ["cached_rows", "sample_bytes"]


def cached_rows(
    config: ScarsConfig,
    tables: Mapping[str, ProfiledTable],
    prices: Prices,
    memory: DeviceMemory,
) -> ChosenSizes:
    """The number of rows of each table that are cached, by the rule of the config; and why."""
    k = prices.k
    if config.home == "host" and config.size == "optimum" and prices.cluster.world_size == 1:
        return _none_on_one_rank(tables, prices)
    merged = MergedRows.of(tables)
    taken, why = _taken(config, merged, memory, prices)
    reasons = [f"scars: size {config.size}, coalesce {config.coalesce}, k = {k:.3g}", *why]
    hot = merged.per_table(taken)
    sizes = merged.sizes(hot, np.zeros_like(hot), dict.fromkeys(tables, config.coalesce))
    report = PlanReport(
        ledger=Ledger.of(tables, sizes, prices),
        goal=f"scars, {config.size}",
        budget=_budget(config) if config.size == "budget" else None,
    )
    if not merged.rows.lookups:
        reasons.append("nothing is cached until train.retier_every knows which rows are hot")
        return ChosenSizes(sizes=sizes, report=report, reason="\n".join(reasons))
    reasons += lines(tables, sizes, batch_size=prices.batch_size, k=k)
    return ChosenSizes(
        sizes={name: size for name, size in sizes.items() if size != TableSizes()},
        report=report,
        reason="\n".join([*reasons, *report.lines()]),
        forced=config.force or config.size != "optimum" or config.home != "memory",
    )


def _taken(
    config: ScarsConfig,
    merged: MergedRows,
    memory: DeviceMemory,
    prices: Prices,
) -> tuple[Integers, Sequence[str]]:
    """[R] rows of each band; and why, where that takes more words than the rule's."""
    if not merged.rows.lookups:
        return np.zeros_like(merged.table), ()
    if config.size == "budget":
        return within(merged, _budget(config) / prices.k), ()
    if config.size == "hit_rate":
        return covering(merged, config.hit_rate or 0.0), ()
    return _optimum(config, merged, memory, prices)


def _optimum(
    config: ScarsConfig,
    merged: MergedRows,
    memory: DeviceMemory,
    prices: Prices,
) -> tuple[Integers, Sequence[str]]:
    """[R] the paper's |C|, without rows that cost more than they save here; and what it took."""
    batch_size = prices.batch_size
    sample, whose = sample_bytes(config, merged)
    left = memory.capacity / GB
    if memory.capacity < batch_size * sample:
        raise CapabilityError(
            f"cache: {memory.reason} leave {left:.3g} GB, which does not hold a batch of "
            f"{batch_size:,} samples of {sample:,.0f} bytes. Set cache.memory_gb to what a "
            "rank has, lower train.batch_size, or choose `size: budget`."
        )
    found = optimum(
        merged,
        Memory(
            capacity=memory.capacity / prices.k,
            per_sample=max(sample, 1.0) / prices.k,
            width=1,
            least=batch_size,
        ),
    )
    kept = found.taken
    if config.home != "mapped":
        kept = worth(merged, kept, prices, config.coalesce)
    reasons = [
        f"M = {memory.reason}: {left:.3g} GB; a = {sample:,.0f} bytes ({whose}); |C| = "
        f"{so_many(found.taken.sum(), 'row')}, beside which "
        f"{so_many(found.size.batch_size, 'sample')} fit (train.batch_size is {batch_size:,})"
    ]
    dropped = found.taken.sum() - kept.sum()
    if dropped:
        reasons.append(
            f"{dropped:,} of these rows are not cached: to reduce their gradients over all "
            "ranks would take longer than to fetch them"
        )
    return kept, reasons


def sample_bytes(config: ScarsConfig, merged: MergedRows) -> tuple[float, str]:
    """a: bytes of a sample's activations, and where that number comes from."""
    if config.activation_bytes is not None:
        return config.activation_bytes, "cache.activation_bytes"
    looked_up = float((merged.rows.counts * merged.rows.p) @ merged.width)
    return 2 * looked_up, "the rows that it looks up, and their gradients"


def _budget(config: ScarsConfig) -> float:
    return (config.budget_gb or 0.0) * GB


def _none_on_one_rank(tables: Mapping[str, ProfiledTable], prices: Prices) -> ChosenSizes:
    """No replica: where no row travels, a copy saves what a kernel's own cache saves, for more
    work. An H100 took 43 ms for a step with both, and 17 with caches alone."""
    sizes = dict.fromkeys(tables, TableSizes())
    return ChosenSizes(
        sizes=sizes,
        report=PlanReport(
            ledger=Ledger.of(tables, sizes, prices), goal="scars, optimum", budget=None
        ),
        reason="scars: on one rank no row travels, so no row has a copy: all memory of the device "
        "is for the kernels' own caches, and for tables that fit completely",
        forced=True,
    )
