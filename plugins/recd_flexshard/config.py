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
    """What the plan optimises: memory_neutral (the paper's), max_memory_saving, min_communication,
    budget (the least time within budget_gb), or auto. `auto` is budget, also with coalescing and
    TorchRec's own plan to choose from, and by the prices never slower than that plan."""
    tiers: Literal[1, 2, 3] = 3
    """The tiers that rows may be in: home alone, so that no row has a replica (1); also replicated
    (2); also per_node, between them (3). Fewer tiers are for comparisons."""
    budget_gb: float | None = None
    """The extra memory of a rank in GB, for the goals budget and auto, by default 0; a negative
    number is to be saved. It is for the memory that stays from step to step, or for all of it where
    that is less; all of it is to be saved."""
    coalesce: Coalesce | None = None
    """How ids travel: as they are (`none`), once per rank (`rank`), or once per node (`node`). By
    default they travel as they are; the goal auto always chooses itself."""
    k: Annotated[float, Range(ge=1)] | None = None
    """The memory of a replicated row, with all that goes with it, divided by the row's own bytes.
    By default it is 1, the row's optimizer state, and 0.64 for gradients under way; with the
    paper's prices 6.25."""
    prices: Pricing = "ours"
    """The prices: `ours`, or `paper`, where a row is sent once per access, the gradients of all
    replicas are all-reduced in every step, and k is 6.25. With `goal: memory_neutral`, `paper`
    plans as FlexShard was published, for comparisons; training is ours with either."""
    tables: tuple[str, ...] = ("*",)
    """Names or globs of the tables that may have replicas; TorchRec plans the others. Except for
    the goal auto, `*` takes tables of sequences alone: name pooled tables, and set `coalesce` to
    `rank` or `node`."""
    profile: Path | None = None
    """A saved profile to plan with, as `recd data profile` writes it. By default batches of
    training are counted."""
    profile_batches: Annotated[int | None, Range(ge=1, le=1_000_000_000)] = None
    """The number of batches of each rank that are counted. By default it is as many as are needed,
    from all over a table, and the first 100 of a trainer's own loader."""
    plan: Path | None = None
    """A tier plan that `recd plan --save` wrote, for the same number of ranks and nodes. It is
    taken as it is: nothing is counted or chosen."""

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
                f"is {self.coalesce}, but goal auto itself chooses how ids travel. Leave it out, "
                "or write `goal: budget`.",
                "coalesce",
            )

    def idle_options(self) -> Mapping[str, str]:
        if self.profile is None:
            return {}
        why = "it is the number of batches to count, and `profile` was counted before"
        return dict.fromkeys(self.set_among("profile_batches"), why)

    def _check_plan_alone(self) -> None:
        """Refuse options that size a plan beside a saved plan."""
        for option in dataclasses.fields(self):
            sizes = option.name not in ("plan", "tables")
            if sizes and getattr(self, option.name) != option.default:
                raise RegistryError(
                    f"sizes a plan, but `plan: {self.plan}` is a complete one. Leave out one of "
                    "the two.",
                    option.name,
                )
