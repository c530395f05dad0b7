"""What a policy answers, and the check of it: its tables, and the sizes that it chooses."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from recd_plugins.errors import DataError, PluginError, check_made, nearest, shown
from recd_plugins.notices import Notice
from recd_plugins.planning.explain.plan_report import PlanReport
from recd_plugins.planning.prices.ledger import Ledger
from recd_plugins.planning.tables.model_tables import ModelTable
from recd_plugins.planning.tables.profiled_table import ProfiledTable
from recd_plugins.planning.tier_plans.table_sizes import AS_TORCHREC, TableSizes

__all__ = ["ChosenSizes", "check_choice", "check_tables", "naming_whose"]


@dataclass(frozen=True, kw_only=True)
class ChosenSizes:
    """The sizes that a policy makes of the tables' distributions."""

    sizes: Mapping[str, TableSizes]
    """The sizes of each table. Tables without an entry, or with `AS_TORCHREC`, are left to the
    planner behind."""
    report: PlanReport
    reason: str
    """Why the sizes are what they are, in words."""
    forced: bool = True
    """Whether they are taken even where the planner behind has a faster plan by the prices."""
    notices: tuple[Notice, ...] = ()
    """Notices of options that are not used, or are used at a loss. Where no table has a size and
    there are no notices, the planner itself says that it has chosen nothing."""

    @property
    def planned(self) -> dict[str, TableSizes]:
        """The sizes of the tables that are not left to the planner behind."""
        return {name: one for name, one in self.sizes.items() if not one.as_torchrec}

    def without(self, names: Collection[str], tables: Mapping[str, ProfiledTable]) -> ChosenSizes:
        """The choice, with the tables of these `names` as TorchRec has them; `tables` are all of
        them."""
        sizes = {**self.sizes, **dict.fromkeys(names, AS_TORCHREC)}
        ledger = Ledger.of(tables, sizes, self.report.ledger.prices)
        report = dataclasses.replace(self.report, ledger=ledger)
        return dataclasses.replace(self, sizes=sizes, report=report)


def check_tables(chosen: object, every: Mapping[str, ModelTable], whose: str) -> None:
    """`PluginError`, which begins with `whose`, where a policy returned tables that are none of the
    model's, which are `every` one."""
    if not isinstance(chosen, Mapping):
        raise PluginError(
            f"{whose} a {type(chosen).__name__}, where it must return a mapping from names to some "
            "of model_tables(model)."
        )
    for name, table in chosen.items():
        of_table = f"{whose} as table {shown(name)}"
        check_made(table, ModelTable, of_table, "Take those of model_tables(model).")
        if name not in every:
            raise PluginError(f"{of_table}, which the model does not have; {nearest(name, every)}")


def check_choice(chosen: object, tables: Collection[str], whose: str) -> None:
    """`PluginError`, which begins with `whose`, where a policy returned no choice, or one of other
    tables than these."""
    if not isinstance(chosen, ChosenSizes):
        raise PluginError(
            f"{whose} a {type(chosen).__name__}, where it must return "
            "ChosenSizes(sizes=..., report=..., reason=...)."
        )
    check_made(chosen.sizes, Mapping, f"{whose} as `sizes`", "Give a TableSizes by table.")
    for name, size in chosen.sizes.items():
        if name not in tables:
            raise PluginError(
                f"{whose} a size of table {shown(name)}; {nearest(str(name), tables)}"
            )
        of_table = f"{whose} as the size of table {name!r}"
        check_made(size, TableSizes, of_table, "Give AS_TORCHREC to one that is left alone.")
    fix = "Give the PlanReport of its ledger."
    check_made(chosen.report, PlanReport, f"{whose} as `report`", fix)
    check_made(chosen.notices, Sequence, f"{whose} as `notices`", "Give a tuple of them.")
    for notice in chosen.notices:
        check_made(notice, Notice, f"{whose} among `notices`", "Give Unused(...) and the like.")
    if not isinstance(chosen.reason, str):
        raise PluginError(
            f"{whose} a `reason` of {shown(chosen.reason)}, where it must give the reason for the "
            "sizes in words."
        )


@contextmanager
def naming_whose(who: str) -> Iterator[None]:
    """Inside, an error of sizes or rows says whose they are."""
    try:
        yield
    except DataError as error:
        raise DataError(f"{who}: {error}") from error
