"""The notices of a planner of tiers, in words."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING

from recd_plugins.errors import listed, so_many
from recd_plugins.notices import Missed, Notice, Unused
from recd_plugins.planning.tables.embedding_collections import fused_collections
from recd_plugins.tiers.planner.left_tables import VARIABLE, WITHOUT_FUSED, LeftTables

if TYPE_CHECKING:
    from torch import nn

__all__ = ["OWN", "PlanNotices", "in_backticks"]

OWN = "TorchRec's own"
OWN_SHARDERS = (
    "Replicas are for tables of an EmbeddingCollection or EmbeddingBagCollection that TorchRec's "
    "own sharders shard."
)


class PlanNotices:
    """The notices of a planner of tiers: which tables it leaves to TorchRec, what is strange about
    the batches that it counted, and why a plan gives replicas to no table."""

    def __init__(self, what: str, kind: str, *, asked_by: Sequence[str], options_in: str) -> None:
        """`what` names the planner as registry.yaml switches it on, `kind` what it gives replicas
        to. It plans nothing without the slots that it is `asked_by`; the options of its tables and
        memory are those of the slot `options_in`."""
        self._what, self._kind = what, kind
        self._all, self._options_in = in_backticks(asked_by), options_in

    def of_the_model(self, left: LeftTables) -> Iterator[Notice]:
        """Notices, while other tables are planned, of those that are left because of how the model
        uses them, or because another table needs them."""
        by_reason = left.by_reason
        for why, cure in left.cures.items():
            if names := by_reason.get(why):
                yield Missed(what=self._what, why=f"{_left_alone(names)}, for {why}", cure=cure)

    def variable(self, names: Sequence[str], *, others: bool) -> Notice:
        """These are left for the kind of their KJTs; `others` says whether other tables are
        planned."""
        kind = Missed if others else Unused
        return kind(
            what=self._what,
            why=f"{_left_alone(names)}, for {VARIABLE}",
            cure="Hand its collection a KJT of one batch size, or unique samples "
            "(`stack.convert`).",
        )

    def counted_otherwise(self, tables: Sequence[str]) -> Missed:
        """Most ids that were counted of these tables have no row in them."""
        return Missed(
            what=self._what,
            why=f"most ids that were counted of {listed(tables, kind='table')} are of no row, as "
            "where a model maps ids before it looks them up, so that nobody knows which rows are "
            "looked up",
            cure="Have `features` return a KeyedJaggedTensor of the ids that the model looks up; "
            "or map them in the loader.",
        )

    def counted_alike(self) -> Missed:
        """Every rank counted the same batches."""
        return Missed(
            what=self._what,
            why="every rank counted the same batches. If ranks train on these, each sample is "
            "trained on by all of them; if not, ranks together could have counted more",
            cure="Have each rank read samples of its own, as by torch's DistributedSampler, or by "
            "a seed that differs by rank.",
        )

    def no_batches(self) -> Unused:
        """Nothing can be counted."""
        return Unused(
            what=self._what,
            why="there are no batches to profile",
            cure="Pass the trainer's own, `stack.plan(model, batches=loader, features=lambda "
            "batch: ...)`, where `features` gives a batch's KeyedJaggedTensor; or a saved "
            f"profile: `stack.plan(model, profile=path)`, or `{self._options_in}.profile`.",
        )

    def no_collections(self, model: nn.Module) -> Unused:
        """The model has no tables that could be planned."""
        if fused := {type(one).__name__ for one, _ in fused_collections(model)}:
            return Unused(
                what=self._what,
                why=f"all tables of the model are in {' and '.join(sorted(fused))}, which "
                "TorchRec plans and trains by itself",
                cure=f"{WITHOUT_FUSED}; or take {self._all} out.",
            )
        return Unused(
            what=self._what,
            why="the model has no EmbeddingCollection or EmbeddingBagCollection",
            cure=f"Plan the model that has them, or take {self._all} out.",
        )

    def all_left(self, left: LeftTables) -> Unused:
        """Every table is left, for these reasons."""
        by_reason = left.by_reason
        cures = dict.fromkeys(left.cures.get(why, OWN_SHARDERS) for why in by_reason)
        return Unused(
            what=self._what,
            why="; ".join(f"{_left_alone(names)}, for {why}" for why, names in by_reason.items()),
            cure=f"{' '.join(cures)} Or take {self._all} out.",
        )

    def constrained(self, tables: Collection[str]) -> Unused:
        """The trainer's constraints leave none of these row-wise."""
        return Unused(
            what=self._what,
            why=f"constraints keep {listed(tables, kind='table')} from being row-wise with "
            f"TorchRec's fused kernel, which a {self._kind} with replicas is",
            cure="Allow it in the constraints: `sharding_types: [row_wise, ...]`, "
            "`compute_kernels: [fused, ...]`.",
        )

    def none_named(self, every: Collection[str]) -> Unused:
        """The policy's options leave all of the model's tables out."""
        return Unused(
            what=self._what,
            why=f"no {self._kind} may have replicas: its `tables` leaves "
            f"{listed(every, kind='table')} out",
            cure=f"Name some under `{self._options_in}.tables`, if it has that option.",
        )

    def all_data_parallel(self) -> Unused:
        """The planner behind has each on every rank."""
        return Unused(
            what=self._what,
            why=f"{OWN} plan has every {self._kind} that may have replicas data-parallel, so that "
            "none of their rows travels",
            cure=f"Take {self._all} out, or name other sharding types in the constraints.",
        )

    def none_pays(
        self,
        tables: Collection[str],
        world_size: int,
        *,
        row_wise: bool,
        over: str,
        needs_gb: float,
        links_stated: bool,
    ) -> Unused:
        """The policy has chosen nothing for these tables, or left them plainly `row_wise`; a faster
        plan would be `over` what it may take, and fit a budget of `needs_gb` if that is what it
        lacks. The prices are of `links_stated` by a topology."""
        left = "these are plainly row-wise" if row_wise else "all tables are TorchRec's"
        if over:
            budget = (
                f"{self._options_in}.budget_gb: {_rounded_up(needs_gb)}" if needs_gb > 0 else ""
            )
            take = f"Allow it, by `{budget}`; or take" if budget else "Take"
            return Unused(
                what=self._what,
                why=f"by its prices for {so_many(world_size, 'rank')} replicas or coalescing of "
                f"ids would pay in {listed(tables, kind='table')}, but what is fastest {over}, so "
                f"that {left}",
                cure=f"{take} {self._all} out. stack.explain() shows what each way takes.",
            )
        return Unused(
            what=self._what,
            why=f"by its prices for {so_many(world_size, 'rank')} no replica and no coalescing of "
            f"ids pays in {listed(tables, kind='table')}, so that {left}",
            cure=f"stack.explain() and `recd explain` show the prices. Take {self._all} out, or "
            + (
                "correct `topology`, if the links are slower than it says: `recd topology measure`."
                if links_stated
                else "say what the network is: `topology` in registry.yaml."
            ),
        )


def _rounded_up(number: float) -> str:
    """It, or a little more, in two digits."""
    digits = max(1 - math.floor(math.log10(number)), 0)
    return f"{math.ceil(number * 10**digits) / 10**digits:.{digits}f}"


def in_backticks(slots: Sequence[str]) -> str:
    """Slots of registry.yaml, in a sentence."""
    return " and ".join(f"`{slot}`" for slot in slots)


def _left_alone(tables: Sequence[str]) -> str:
    return f"{listed(tables, kind='table')} {'are' if len(tables) > 1 else 'is'} left to TorchRec"
