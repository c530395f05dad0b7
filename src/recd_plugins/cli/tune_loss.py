"""`recd tune loss`: the batch size that learns fastest, with and without the registry's cache."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from recd_plugins.cli.ended_by_signals import ended_by_signals
from recd_plugins.cli.loaded import ready, server_of_ranks
from recd_plugins.cli.options import REGISTRY, AsJson, Debug, Overrides, RegistryFile
from recd_plugins.cli.progress import progress
from recd_plugins.cli.reported import reported, reported_trial
from recd_plugins.errors import DataError, listed, so_many
from recd_plugins.trainer.tuning.trial_rank import WARM_UP

if TYPE_CHECKING:
    from recd_plugins.launch.rank_server import RankServer
    from recd_plugins.stack import Stack
    from recd_plugins.trainer.tuning.learning import Learning

__all__ = ["loss"]

FEWEST_STEPS = WARM_UP + 1

Trainings = Mapping[str, Mapping[int, "Learning | None"]]

BatchSizes = Annotated[
    list[int] | None,
    typer.Option(
        "--batch-size",
        help="A batch size of a rank to try; by default train.batch_size, and 1/4, 4 and 16 "
        "times it.",
        min=1,
    ),
]
Samples = Annotated[
    int | None,
    typer.Option(
        "--samples", help="The most samples to train on; by default those of an epoch.", min=1
    ),
]
Loss = Annotated[
    float | None,
    typer.Option("--loss", help="The loss to reach; by default the least that all reach."),
]
WindowOf = Annotated[
    int | None,
    typer.Option(
        "--window",
        help="The number of samples whose mean loss counts; by default those of the largest step.",
        min=1,
    ),
]
MemoryBudget = Annotated[
    float,
    typer.Option(
        "--budget", help="The MiB that a rank may take over what it has at its start.", min=1
    ),
]


def loss(
    overrides: Overrides = None,
    registry: RegistryFile = REGISTRY,
    batch_sizes: BatchSizes = None,
    samples: Samples = None,
    target: Loss = None,
    window: WindowOf = None,
    budget: MemoryBudget = 65_536.0,
    debug: Debug = False,
    as_json: AsJson = False,
) -> None:
    """Train batch sizes to one loss: memory, steps and time of each, with and without the cache.

    A larger batch moves fewer bytes per sample but needs more samples to learn as much: only
    training shows which is best. All of them use the registry's learning rates.
    """
    with reported(debug), ended_by_signals(), server_of_ranks(registry, overrides) as server:
        changes = list(overrides or ())
        stack = ready(registry, changes)
        own, ranks = stack.registry.train.batch_size, stack.registry.train.ranks
        rows = stack.prepare().train.num_rows
        most = samples or rows
        sizes = (
            _asked(batch_sizes, ranks, rows, samples)
            if batch_sizes
            else _around(own, ranks, min(rows, most))
        )
        if window is not None and window > most:
            raise DataError(
                f"--window: so many samples are {window:,}, but {most:,} are trained, so that no "
                f"loss would be of as many. Lower it, or {_raise(samples)}."
            )
        sides = {"without cache": [*changes, "cache=null"]}
        if stack.registry.chosen("cache"):
            sides["with cache"] = changes
        counted = window or sizes[-1] * ranks
        trainings: dict[str, dict[int, Learning | None]] = {name: {} for name in sides}
        with progress() as show:
            total = len(sides) * len(sizes)
            show("trainings", 0, total)
            for done, (name, size) in enumerate(product(sides, sizes), start=1):
                trainings[name][size] = _train(
                    stack, registry, sides[name], size, most, target, counted, budget, server
                )
                show("trainings", done, total)
    found = _found(trainings, target, counted, ranks, rows)
    if found["epochs"] > 1:
        print(_repeated(found["epochs"], rows), file=sys.stderr)
    if note := _other_windows(sizes, ranks, counted, most):
        print(note, file=sys.stderr)
    if as_json:
        print(json.dumps(found))
    else:
        _show(found)


def _around(own: int, ranks: int, samples: int) -> list[int]:
    """The registry's batch size and some around it: those for which so many samples make enough
    steps, or the smallest."""
    sizes = sorted({max(1, own // 4), own, 4 * own, 16 * own})
    return [size for size in sizes if FEWEST_STEPS * size * ranks <= samples] or sizes[:1]


def _asked(sizes: Sequence[int], ranks: int, rows: int, samples: int | None) -> list[int]:
    """The batch sizes of the command line, each once; `DataError` for one that cannot be tried."""
    most = rows if samples is None else min(rows, samples)
    largest, at_once = max(sizes), FEWEST_STEPS * ranks
    if largest * at_once > most:
        raise DataError(
            f"--batch-size: {FEWEST_STEPS} steps, the fewest of a trial, of "
            f"{so_many(largest, 'sample')} on {so_many(ranks, 'rank')} take {largest * at_once:,}, "
            f"but there are {most:,}. Name {max(1, most // at_once):,} at most, or "
            f"{_raise(samples if most < rows else None)}."
        )
    return sorted(set(sizes))


def _raise(samples: int | None) -> str:
    return "give the train split more rows" if samples is None else "raise --samples"


def _train(
    stack: Stack,
    registry: Path,
    overrides: Sequence[str],
    size: int,
    samples: int,
    until: float | None,
    window: int,
    budget: float,
    server: RankServer | None,
) -> Learning | None:
    from recd_plugins.trainer.tuning.trials import run_learning

    settings = stack.registry.train
    with reported_trial():
        return run_learning(
            registry,
            overrides,
            batch_size=size,
            budget_mib=budget,
            samples=samples,
            until=until,
            window=window,
            ranks=settings.ranks,
            threads=settings.threads_of_each(settings.ranks),
            server=server,
        )


def _found(
    trainings: Trainings, target: float | None, window: int, ranks: int, train_rows: int
) -> dict[str, Any]:
    from recd_plugins.trainer.tuning.learning import loss_of_all

    done = [one for side in trainings.values() for one in side.values() if one is not None]
    reached = target if target is not None else loss_of_all(done, window)
    rows = {
        name: [_row(size, one, reached, window) for size, one in side.items()]
        for name, side in trainings.items()
    }
    most = max((len(one.losses) * one.samples_per_step for one in done), default=0)
    epochs = most / train_rows
    return {"loss": reached, "window": window, "ranks": ranks, "epochs": epochs, "sides": rows}


def _repeated(epochs: float, rows: int) -> str:
    """Until an epoch ends, a loss is of rows before the model learns from them, so it holds for new
    ones; behind that it does not."""
    return (
        f"note: the longest training went {epochs:.1f} times through the {so_many(rows, 'row')} of "
        "the train split. From the second time on, its losses are of rows that the model had "
        "learnt from: they may fall while those of new rows rise. To compare by new rows, pass "
        f"--samples {rows} or fewer."
    )


def _other_windows(sizes: Sequence[int], ranks: int, window: int, samples: int) -> str | None:
    """The note on batch sizes whose losses are means of another number of samples than `window`,
    since a mean is of whole steps; None if there are none."""
    others = {
        size: max(1, window // (size * ranks)) * size * ranks
        for size in sizes
        if window % (size * ranks)
    }
    if not others:
        return None
    each = listed([f"{so_many(real, 'sample')} at {size:,}" for size, real in others.items()], 6)
    whole = math.lcm(*sizes) * ranks
    cure = f"pass --window {whole}, or a multiple of it"
    if whole > samples:
        cure = "name batch sizes each of which divides the next"
    return (
        f"note: a loss is the mean of whole steps. The window is {so_many(window, 'sample')}, but "
        f"by batch size it is of {each}, and means of fewer samples vary more. For one window at "
        f"all sizes {cure}."
    )


def _row(size: int, one: Learning | None, loss: float | None, window: int) -> dict[str, Any]:
    if one is None:
        return {"batch_size": size, "memory_mib": None, "steps": None, "seconds": None}
    return {
        "batch_size": size,
        "memory_mib": one.memory_mib,
        "least_loss": one.least(window),
        "steps": one.steps_to(loss, window),
        "seconds": one.seconds_to(loss, window),
    }


def _show(found: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    from recd_plugins.cli.printed_tables import print_table

    console = Console(highlight=False)
    rows = [(name, row) for name, side in found["sides"].items() for row in side]
    if found["loss"] is None:
        fits = any(row["memory_mib"] is not None for _, row in rows)
        why = "learns: every loss is infinite, or no number. Lower train.optimizer's rates"
        console.print(f"no batch size {why if fits else 'fits'}", soft_wrap=True)
        return
    console.print(
        f"to a loss of {found['loss']:.5f}, the mean of {so_many(found['window'], 'sample')}, on "
        f"{so_many(found['ranks'], 'rank')}",
        soft_wrap=True,
    )
    table = Table("", "batch per rank", "MiB", "steps", "seconds", "")
    times = [row["seconds"] for _, row in rows if row["seconds"] is not None]
    for name, row in rows:
        table.add_row(
            name,
            f"{row['batch_size']:,}",
            "out of memory" if row["memory_mib"] is None else f"{row['memory_mib']:,.0f}",
            "" if row["steps"] is None else f"{row['steps']:,}",
            _seconds(row),
            "best" if times and row["seconds"] == min(times) else "",
        )
    print_table(table, console)


def _seconds(row: Mapping[str, Any]) -> str:
    if row["seconds"] is not None:
        return f"{row['seconds']:,.2f}"
    if row["memory_mib"] is None:
        return "not reached"
    least = row["least_loss"]
    return "diverges" if least is None else f"not reached, only {least:.5f}"
