"""`recd tune`: settings found by trying them."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from recd_plugins.cli.commands import Commands
from recd_plugins.cli.ended_by_signals import ended_by_signals
from recd_plugins.cli.loaded import ready, server_of_ranks
from recd_plugins.cli.options import REGISTRY, AsJson, Debug, Overrides, RegistryFile
from recd_plugins.cli.reported import reported, reported_trial
from recd_plugins.cli.tune_loss import loss
from recd_plugins.errors import RecdError, so_many

if TYPE_CHECKING:
    from recd_plugins.data.stripes import Stripe
    from recd_plugins.launch.rank_server import RankServer
    from recd_plugins.stack import Stack
    from recd_plugins.trainer.tuning.trials import Search, Trial

__all__ = ["tune"]

tune = Commands(help="Find settings by trying them.", no_args_is_help=True)
tune.command()(loss)

Budget = Annotated[
    float | None,
    typer.Option(
        "--budget",
        help="The memory of a rank, in MiB; by default 0.9 of the GPU, or 0.8 of what the "
        "machine has free, shared by the ranks.",
        min=1,
    ),
]
Ranks = Annotated[
    int | None, typer.Option("--ranks", help="The number of ranks; by default train.ranks.")
]
Steps = Annotated[
    int, typer.Option("--steps", help="The number of steps of a trial that are timed.", min=1)
]
Precision = Annotated[
    float,
    typer.Option(
        "--precision",
        help="How close to the largest batch the answer must be, as a share of it.",
        min=0.001,
    ),
]

MORE = 1.25
"""How many times the ids of a tried sample another may have: by chance batches differ by less."""
MALLOC = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "MALLOC_TOP_PAD_", "LD_PRELOAD")


@tune.callback()
def group() -> None:
    """Find settings by trying them."""


@tune.command()
def batch(
    overrides: Overrides = None,
    registry: RegistryFile = REGISTRY,
    budget: Budget = None,
    ranks: Ranks = None,
    steps: Steps = 4,
    precision: Precision = 0.05,
    debug: Debug = False,
    as_json: AsJson = False,
) -> None:
    """Find the largest batch per rank that fits a memory budget, with and without dedup.

    Each trial trains some steps on fresh ranks. Memory is on CUDA all that torch has allocated,
    on the CPU how far a rank's resident set peaks above its level before the first step.
    """
    with reported(debug), ended_by_signals(), server_of_ranks(registry, overrides) as server:
        changes = list(overrides or ())
        if ranks is not None:
            changes.append(f"train.ranks={ranks}")
        stack = ready(registry, changes)
        allowed = budget or _available(stack)
        sides = {"plain": [*changes, "dedup=null"]}
        if stack.registry.chosen("dedup"):
            sides["dedup"] = changes
        searches = {
            name: _search(stack, registry, side, name, allowed, steps, precision, server)
            for name, side in sides.items()
        }
        heaviest = _heaviest(stack, searches["plain"], steps)
    found = _found(stack, allowed, searches, heaviest)
    if as_json:
        print(json.dumps(found))
    else:
        _show(found)


def _search(
    stack: Stack,
    registry: Path,
    overrides: list[str],
    name: str,
    budget: float,
    steps: int,
    precision: float,
    server: RankServer | None,
) -> Search:
    from rich.console import Console

    from recd_plugins.trainer.tuning.trials import largest_batch, run_trial

    settings = stack.registry.train
    console = Console(stderr=True, highlight=False)
    consumers = settings.ranks * getattr(stack.registry.one("reader").config, "consumers", 1)

    def attempt(size: int) -> Trial:
        with console.status(f"{name}: {so_many(size, 'sample')} a rank"):
            trial = run_trial(
                registry,
                overrides,
                batch_size=size,
                budget_mib=budget,
                steps=steps,
                ranks=settings.ranks,
                threads=settings.threads_of_each(settings.ranks),
                server=server,
            )
        console.print(f"{name:<5} {_line(trial, budget)}", soft_wrap=True)
        return trial

    with reported_trial():
        return largest_batch(
            attempt,
            start=settings.batch_size,
            # Two batches an epoch, so that every rank fills one however rows are dealt out.
            limit=max(1, stack.prepare().train.num_rows // (2 * consumers)),
            precision=precision,
        )


def _line(trial: Trial, budget: float) -> str:
    if trial.memory_mib is None:
        return f"{trial.batch_size:>8,}  out of memory"
    return (
        f"{trial.batch_size:>8,}  {trial.memory_mib:>9,.0f} of {budget:,.0f} MiB  "
        f"{trial.samples_per_second:>10,.0f} samples/s  {'' if trial.fits else 'does not fit'}"
    ).rstrip()


def _available(stack: Stack) -> float:
    """MiB a rank may have by default."""
    if stack.device == "cuda":
        import torch

        return float(0.9 * torch.cuda.get_device_properties(0).total_memory / 2**20)
    pages = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return 0.8 * pages / 2**20 / stack.registry.train.ranks


def _heaviest(stack: Stack, plain: Search, steps: int) -> dict[str, Any] | None:
    """Rows of which batches need more memory than those that were tried; None if there are none, if
    all rows were tried, or if it is not known."""
    from recd_plugins.data.heaviest import heaviest_stripe

    best = plain.best
    if best is None or best.ids_per_sample is None:
        return None
    train = stack.tables_read.train
    epoch = -(-train.num_rows // (best.batch_size * stack.registry.train.ranks))
    if steps >= epoch:
        return None
    changed = stack.registry.chosen("preprocess")
    try:
        found = heaviest_stripe(train, _ids_behind_preprocess(stack) if changed else None)
    except RecdError:  # the trials did train: what was found of them is told anyway
        return None
    if found.ids_per_row <= MORE * best.ids_per_sample:
        return None
    return {
        "stripe": str(found.stripe),
        "ids_per_sample": found.ids_per_row,
        "tried_ids_per_sample": best.ids_per_sample,
        "steps_of_epoch": epoch,
    }


def _ids_behind_preprocess(stack: Stack) -> Callable[[Stripe], int]:
    """Counts the ids of a stripe's rows as the model gets them."""
    from recd_plugins.data.request import batch_of

    train = stack.prepare().train
    transform = stack.program().transform(train.schema)

    def count(stripe: Stripe) -> int:
        features = transform(batch_of(train.read(stripe), train.schema, str(stripe))).features
        return sum(features[name].values().numel() for name in stack.schema.sparse_names)

    return count


def _found(
    stack: Stack,
    budget: float,
    searches: Mapping[str, Search],
    heaviest: Mapping[str, Any] | None,
) -> dict[str, Any]:
    settings = stack.registry.train
    sides = {
        name: {
            "best": search.best and dataclasses.asdict(search.best),
            "exhausted": search.exhausted,
            "trials": [dataclasses.asdict(trial) for trial in search.trials],
        }
        for name, search in searches.items()
    }
    best = [search.best for search in searches.values()]
    plain, dedup = best if len(best) == 2 else (None, None)
    return {
        "budget_mib": budget,
        "device": stack.device,
        "ranks": settings.ranks,
        "malloc": {name: os.environ[name] for name in MALLOC if name in os.environ},
        "sides": sides,
        "gain": dedup.batch_size / plain.batch_size if plain and dedup else None,
        "heaviest": heaviest,
    }


def _show(found: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    from recd_plugins.cli.printed_tables import print_table

    what = (
        "all that torch allocates"
        if found["device"] == "cuda"
        else "peak resident set above its level before the first step; "
        + (", ".join(f"{k}={v}" for k, v in found["malloc"].items()) or "malloc as it comes")
    )
    console = Console(highlight=False)
    console.print(
        f"the largest batch of each of {so_many(found['ranks'], 'rank')} on {found['device']} "
        f"within {found['budget_mib']:,.0f} MiB ({what})",
        soft_wrap=True,
    )
    table = Table()
    names = {"plain": "without dedup", "dedup": "with dedup"}
    table.add_column("")
    for name in found["sides"]:
        table.add_column(names[name], justify="right")
    best = [side["best"] for side in found["sides"].values()]
    sizes = [
        "not one sample"
        if one is None
        else f"{'≥ ' if side['exhausted'] else ''}{one['batch_size']:,}"
        for one, side in zip(best, found["sides"].values(), strict=True)
    ]
    table.add_row("batch per rank", *sizes)
    for key, label in (("memory_mib", "MiB"), ("samples_per_second", "samples/s")):
        table.add_row(label, *("" if one is None else f"{one[key]:,.0f}" for one in best))
    print_table(table, console)
    if found["gain"] is not None:
        console.print(f"dedup fits batches {found['gain']:.2f} times as large")
    if any(side["exhausted"] for side in found["sides"].values()):
        console.print("≥: half of a rank's share of the train split; larger ones were not tried")
    if found["heaviest"] is not None:
        console.print(_beyond(found["heaviest"]), soft_wrap=True)


def _beyond(heaviest: Mapping[str, Any]) -> str:
    tried, there = heaviest["tried_ids_per_sample"], heaviest["ids_per_sample"]
    return (
        f"note: samples of the batches that were tried have {tried:,.1f} ids, but those of "
        f"{heaviest['stripe']} have {there:,.1f}: batches of these would need more memory. To try "
        f"an epoch's batches of the size found, pass --steps {heaviest['steps_of_epoch']}."
    )
