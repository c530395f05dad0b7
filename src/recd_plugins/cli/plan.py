"""`recd plan`: what the sharding planner would do, and why."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from recd_plugins.cli.ended_by_signals import ended_by_signals
from recd_plugins.cli.loaded import loaded
from recd_plugins.cli.options import REGISTRY, AsJson, Debug, Overrides, RegistryFile
from recd_plugins.cli.output_paths import (
    DPI,
    PICTURES,
    check_apart,
    check_not_read,
    check_writable,
)
from recd_plugins.cli.progress import progress
from recd_plugins.cli.reported import reported
from recd_plugins.errors import so_many
from recd_plugins.notices import hide_other_warnings
from recd_plugins.storage.whole_file import whole_file

if TYPE_CHECKING:
    from recd_plugins.planning.access.access_profile import Profile
    from recd_plugins.planning.access.distribution import Drift
    from recd_plugins.planning.explain.plan_report import PlanReport
    from recd_plugins.planning.tier_plans.plan_changes import TableChange
    from recd_plugins.planning.tier_plans.tier_plan import TierPlan
    from recd_plugins.registry.registry import Registry
    from recd_plugins.slots import Planner
    from recd_plugins.stack import Stack

__all__ = ["Ranks", "overrides_with_ranks", "plan"]

Ranks = Annotated[
    int | None,
    typer.Option("--ranks", help="The number of ranks to plan for; by default train.ranks."),
]
SavePlan = Annotated[
    Path | None, typer.Option("--save", help="A file for the tier plan (Arrow).", metavar="FILE")
]
SaveProfile = Annotated[
    Path | None,
    typer.Option("--save-profile", help="A file for the access distributions.", metavar="FILE"),
]
FigureFile = Annotated[
    Path | None,
    typer.Option("--figure", help="A picture of the frontier: .png, .pdf or .svg.", metavar="FILE"),
]
Before = Annotated[
    Path | None,
    typer.Option(
        "--drift",
        help="An earlier profile; the plan then says what share of lookups the rows that were hot "
        "in it would serve now.",
        metavar="FILE",
    ),
]
Against = Annotated[
    Path | None,
    typer.Option(
        "--against",
        help="A tier plan that was saved; the plan then says how many rows have entered or left "
        "each tier since.",
        metavar="FILE",
    ),
]

Whole = Annotated[
    bool,
    typer.Option(
        "--all", help="Print every line, even if the model has very many tables that are alike."
    ),
]


def plan(
    overrides: Overrides = None,
    registry: RegistryFile = REGISTRY,
    ranks: Ranks = None,
    save: SavePlan = None,
    save_profile: SaveProfile = None,
    figure: FigureFile = None,
    drift: Before = None,
    against: Against = None,
    whole: Whole = False,
    debug: Debug = False,
    as_json: AsJson = False,
) -> None:
    """Plan a registry's model without training it, for any number of ranks, and say why.

    Tables are profiled on the train split, which is prepared first if it does not exist.
    """
    with reported(debug), ended_by_signals():
        given = overrides_with_ranks(overrides, ranks)
        stack = loaded(registry, given)
        if ranks is not None and (misfit := _streams_misfit(stack)):
            stack = loaded(registry, [*given, "reader.streams=null"])
            print(f"note: {misfit} Planned with a stream for each.", file=sys.stderr)
        check_writable(save, "--save")
        check_writable(save_profile, "--save-profile")
        check_writable(figure, "--figure", PICTURES)
        before, saved = _of_before(drift, against)
        files = {"--save": save, "--save-profile": save_profile, "--figure": figure}
        check_apart(files)
        for option, file in files.items():
            check_not_read(file, option, [registry])
        _check_dense_optimizer(stack)
        with progress() as show:
            stack.check_planner()
            stack.prepare(show)
            hide_other_warnings()
            planner = stack.planned_for(stack.adapt(stack.model()), stack.registry.train.ranks)
            drifted = {} if before is None else _drifted(planner, before, f"--drift: {drift}")
            changed = {} if saved is None else _changed(planner, saved)
            report = _write(planner, stack.registry, save, save_profile, figure)
            explained = planner.explain()
        if as_json:
            values = None if report is None else report.values()
            changes = {
                what: {name: dataclasses.asdict(one) for name, one in each.items()}
                for what, each in (("drift", drifted), ("against", changed))
            }
            print(json.dumps({"plan": explained, "tiers": values, **changes}))
            return
        print(explained if whole else stack.in_short(explained, "`--all` prints them"))
        for name, one in drifted.items():
            print(
                f"{name}: the {so_many(one.rows, 'hottest row')} of before took {one.then:.1%} of "
                f"lookups then and take {one.now:.1%} now; re-tiering would give {one.best:.1%}"
            )
        for name, change in changed.items():
            print(f"{name}: against {against}: {change}")


def overrides_with_ranks(overrides: list[str] | None, ranks: int | None) -> list[str]:
    """The overrides of a command line, and its --ranks."""
    return [*(overrides or ()), *([f"train.ranks={ranks}"] if ranks is not None else [])]


def _check_dense_optimizer(stack: Stack) -> None:
    from recd_plugins.trainer.dense_optimizer import check_dense_optimizer

    check_dense_optimizer(stack)


def _streams_misfit(stack: Stack) -> str:
    """Why the registry's `reader.streams` cannot be divided among the ranks of a plan, which need
    not be those that train; empty if it can."""
    from recd_plugins.data.reader.order import Shares
    from recd_plugins.errors import RegistryError

    config, train = stack.registry.one("reader").config, stack.registry.train
    streams, workers = getattr(config, "streams", None), getattr(config, "consumers", 1)
    if streams is None:
        return ""
    try:
        shares = Shares(world_size=train.ranks, workers=workers, streams=streams)
        shares.rows_per_batch(train.batch_size)
    except RegistryError as error:
        return str(error)
    return ""


def _write(
    planner: Planner,
    registry: Registry,
    plan: Path | None,
    profile: Path | None,
    figure: Path | None,
) -> PlanReport | None:
    """Write the files that were asked for, if the planner has what goes into them; returns its
    report."""
    from recd_plugins.errors import CapabilityError
    from recd_plugins.planning.cluster.cluster import Cluster
    from recd_plugins.planning.planner_bases import Tiered
    from recd_plugins.planning.tier_plans.tier_plan import TierPlan

    tiered = planner if isinstance(planner, Tiered) else Tiered()
    for option, path, what in (
        ("--save", plan, tiered.profile),
        ("--save-profile", profile, tiered.profile),
        ("--figure", figure, tiered.report),
    ):
        if path is not None and what is None:
            raise CapabilityError(
                f"{option}: this planner weighed no tiers, so there is nothing to write. "
                "Choose `sharding: flexshard` without `plan`, for a model with tables of "
                "sequences."
            )
    if plan is not None:
        cluster = Cluster.of(registry.topology, registry.train.ranks)
        found = tiered.tier_plan or TierPlan(
            tables={},
            n_nodes=cluster.n_nodes,
            ranks_per_node=cluster.ranks_per_node,
            mapped=tiered.mapped,
        )
        if not found.tables and not found.mapped:
            raise CapabilityError(
                "--save: no row has a replica in this plan, and no table has left memory, so there "
                "is no tier plan. `recd plan` says why."
            )
        found.save(plan)
    if profile is not None and tiered.profile is not None:
        tiered.profile.save(profile)
    if figure is not None and tiered.report is not None:
        _draw(tiered.report, figure)
    return tiered.report


def _of_before(drift: Path | None, against: Path | None) -> tuple[Profile | None, TierPlan | None]:
    """The earlier profile and tier plan: read before any work, and before anything is written,
    since that may go to the same files."""
    from recd_plugins.planning.access.access_profile import Profile
    from recd_plugins.planning.tier_plans.tier_plan import TierPlan

    return (
        None if drift is None else Profile.load(drift),
        None if against is None else TierPlan.load(against),
    )


def _drifted(planner: Planner, old: Profile, where: str) -> dict[str, Drift]:
    """The drift of each table's hottest rows: of as many as it has replicas."""
    from recd_plugins.errors import CapabilityError, DataError
    from recd_plugins.planning.access.distribution import drift
    from recd_plugins.planning.planner_bases import Tiered

    if not isinstance(planner, Tiered) or planner.tier_plan is None or planner.profile is None:
        raise CapabilityError(
            "--drift: no row has a replica in this plan, or nothing was counted for it. `recd "
            "plan` says why."
        )
    new = planner.profile
    sizes = {
        name: len(one.replicated) + len(one.per_node)
        for name, one in planner.tier_plan.tables.items()
    }
    found = {}
    for name, rows in sizes.items():
        try:
            found[name] = drift(old[name], new[name], rows)
        except DataError as error:
            raise DataError(f"{where}: table {name!r} {error}") from error
    return found


def _changed(planner: Planner, old: TierPlan) -> Mapping[str, TableChange]:
    """The changes of each table of either plan; a table without replicas has no tiers."""
    from recd_plugins.planning.planner_bases import Tiered
    from recd_plugins.planning.tier_plans.plan_changes import plan_changes

    tiered = planner if isinstance(planner, Tiered) else Tiered()
    if not tiered.homes_by_table:
        old = dataclasses.replace(old, mapped=())
    none = dataclasses.replace(old, tables={}, mapped=tiered.mapped)
    return plan_changes(old, tiered.tier_plan or none)


def _draw(report: PlanReport, path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(layout="constrained")
    report.draw(figure)
    with whole_file(path) as part:
        figure.savefig(part, dpi=DPI)
