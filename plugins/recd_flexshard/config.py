"""Options of `sharding: flexshard`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from recd_flexshard.policy.goals import Goal
from recd_plugins.api import Config, Range, RegistryError
from recd_plugins.api.planning import Coalesce, Pricing

__all__ = ["BUDGETED", "FlexShardConfig"]

BUDGETED: tuple[Goal, ...] = ("budget", "auto")
"""The goals that `budget_gb` is for."""


@dataclass(frozen=True, kw_only=True)
class FlexShardConfig(Config):
    """Options of FlexShard's planner."""

    goal: Goal = "auto"
    """memory_neutral (the paper's), max_memory_saving, min_communication, budget (the least time
    within budget_gb) or auto (that, over coalescing and TorchRec's own plan too; never slower than
    that plan by the prices)."""
    tiers: Literal[1, 2, 3] = 3
    """1: row-wise alone, so that no row has a replica; 2: replicated rows and those at home;
    3: rows per_node between them."""
    budget_gb: float | None = None
    """Extra memory per rank, GB, for the goals budget and auto; negative: to be saved; by default
    0. Buffers in which coalesced ids travel count only where memory is to be saved."""
    coalesce: Coalesce | None = None
    """The way in which ids travel: as they are, once per rank, once per node; by default as they
    are, but for the goal auto, which chooses itself."""
    k: Annotated[float, Range(ge=1)] | None = None
    """Bytes that a replicated row takes with all that goes with it, over its own; by default 1,
    its optimizer state, and 0.64 for gradients under way; or 6.25, for the paper's prices."""
    prices: Pricing = "ours"
    """The prices: ours, or those of the paper, where a row is sent once per access, all replicas'
    gradients are all-reduced in every step, and its framework has k = 6.25. With `goal:
    memory_neutral` that is FlexShard as published, to compare with: training is as ours either
    way."""
    tables: tuple[str, ...] = ("*",)
    """Names or globs of the tables that may have replicas; others are left to TorchRec. But for the
    goal auto, `*` means those of sequences, and pooled tables are named, with `coalesce: rank` or
    `node`."""
    profile: Path | None = None
    """A saved profile to plan with; by default batches of training are counted."""
    profile_batches: Annotated[int | None, Range(ge=1, le=1_000_000_000)] = None
    """The number of batches of each rank to count; by default of a table as many as it takes, from
    all over it, and of a trainer's own loader the first 100."""
    plan: Path | None = None
    """A tier plan that `recd plan --save` wrote, to be taken as it is, for the same number of
    ranks and nodes; nothing is counted or chosen then."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.plan is not None:
            self._check_plan_alone()
        if self.budget_gb is not None and self.goal not in BUDGETED:
            raise RegistryError(
                f"is for `goal: {' or '.join(BUDGETED)}`, but goal is {self.goal}.", "budget_gb"
            )
        if self.coalesce is not None and self.goal == "auto":
            raise RegistryError(
                f"is {self.coalesce}, but goal auto chooses how ids travel itself. Leave it out, "
                "or say `goal: budget`.",
                "coalesce",
            )

    def idle_options(self) -> Mapping[str, str]:
        if self.profile is None:
            return {}
        why = "it is how many batches are counted, and `profile` names what was counted before"
        return dict.fromkeys(self.set_among("profile_batches"), why)

    def _check_plan_alone(self) -> None:
        """Refuse options that size a plan beside a saved plan."""
        for option in dataclasses.fields(self):
            sizes = option.name not in ("plan", "tables")
            if sizes and getattr(self, option.name) != option.default:
                raise RegistryError(
                    f"sizes a plan, but `plan: {self.plan}` is one. Leave out either.", option.name
                )
