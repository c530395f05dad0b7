"""`recd advise`: which additions would pay for a registry, how much, and the registry with
them."""

from __future__ import annotations

import json
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from recd_plugins.cli.ended_by_signals import ended_by_signals
from recd_plugins.cli.init import SchemaFile, Test, registry_of_table
from recd_plugins.cli.loaded import server_of_ranks
from recd_plugins.cli.loss_curve import steps_to_loss
from recd_plugins.cli.options import REGISTRY, AsJson, Debug, Overrides, RegistryFile, check_of_use
from recd_plugins.cli.output_paths import YAML, check_new_file, check_writable
from recd_plugins.cli.progress import progress
from recd_plugins.cli.reported import reported
from recd_plugins.errors import DataError, RegistryError
from recd_plugins.notices import hide_other_warnings
from recd_plugins.storage.whole_file import write_whole

if TYPE_CHECKING:
    from recd_plugins.registry import Registry

__all__ = ["advise"]

OfTable = Annotated[
    Path | None,
    typer.Option(
        "--table",
        help="A table to advise on; the registry is then the one that `recd init` would write for "
        "it.",
        metavar="TABLE",
        show_default=False,
    ),
]
OwnTrainer = Annotated[
    str | None,
    typer.Option(
        "--trainer",
        help="A function of your own trainer that returns its model and its loader, to advise on "
        "in place of the registry's model and dataset.",
        metavar="FILE.py:FUNCTION",
        show_default=False,
    ),
]
Budget = Annotated[
    float,
    typer.Option(
        "--budget-gb", help="The memory in GB that a rank may take over TorchRec's own plan.", min=0
    ),
]
For = Annotated[
    Literal["samples_per_second", "memory", "time_to_loss"],
    typer.Option("--objective", help="What the advice is to improve; time_to_loss needs --curve."),
]
Curve = Annotated[
    Path | None,
    typer.Option(
        "--curve",
        help="The file with what `recd tune loss --json` printed, for the steps that each batch "
        "size takes.",
        metavar="FILE",
        show_default=False,
    ),
]
Ranks = Annotated[
    int | None,
    typer.Option(
        "--ranks", help="The number of ranks to advise for; by default train.ranks.", min=1
    ),
]
BatchSizes = Annotated[
    list[int] | None,
    typer.Option(
        "--batch-size",
        help="A batch size of a rank to choose among; by default there is only train.batch_size.",
        min=1,
        show_default=False,
    ),
]
Out = Annotated[
    Path | None,
    typer.Option("--out", "-o", help="The registry.yaml to write.", metavar="FILE"),
]
Replace = Annotated[bool, typer.Option("--force", help="Replace the file where it is there.")]
WhatIfs = Annotated[
    bool,
    typer.Option("--what-ifs/--no-what-ifs", help="Whether to say what would change the advice."),
]
Tries = Annotated[
    int,
    typer.Option(
        "--try",
        help="Train so many of the best registries and the baseline on ranks of this machine, "
        "and take the one that wins.",
        min=0,
    ),
]
Rounds = Annotated[
    int, typer.Option("--rounds", help="The number of turns that each of them takes.", min=1)
]
Steps = Annotated[int, typer.Option("--steps", help="The number of steps of a turn.", min=1)]


def advise(
    context: typer.Context,
    overrides: Overrides = None,
    registry: RegistryFile = REGISTRY,
    table: OfTable = None,
    test: Test = None,
    schema: SchemaFile = None,
    trainer: OwnTrainer = None,
    budget_gb: Budget = 0.0,
    objective: For = "samples_per_second",
    curve: Curve = None,
    ranks: Ranks = None,
    batch_size: BatchSizes = None,
    out: Out = None,
    force: Replace = False,
    what_ifs: WhatIfs = True,
    tries: Tries = 0,
    rounds: Rounds = 3,
    steps: Steps = 10,
    debug: Debug = False,
    as_json: AsJson = False,
) -> None:
    """Forecast the step of plain TorchRec and of each addition that plugins propose; keep what
    pays.

    Nothing is trained without --try. --out writes the advised registry, which `recd train -r
    FILE` runs as it is, or which your own --trainer loads. Tables are prepared first if they are
    not there.
    """
    with reported(debug), ended_by_signals(), ExitStack() as ranks_to_try:
        server = ranks_to_try.enter_context(server_of_ranks()) if tries else None
        from recd_plugins.advise.advice import advise as advice_on
        from recd_plugins.advise.advice_text import advice_lines, advised_registry, next_step
        from recd_plugins.advise.goal import AdviceGoal
        from recd_plugins.advise.model_and_batches import ModelOfTrainer
        from recd_plugins.registry import Registry

        check_writable(out, "--out", YAML)
        if out is not None:
            check_new_file(out, "--out", replaces=force)
        if not tries:
            check_of_use(
                {"--rounds": rounds != 3, "--steps": steps != 10},
                "nothing is trained without --try",
                "Add --try",
            )
        if trainer is not None and table is not None:
            raise DataError("--trainer has a loader of its own: leave --table out.")
        if table is not None:
            source = context.get_parameter_source("registry")
            check_of_use(
                {"--registry": source is not None and source.name != "DEFAULT"},
                "--table is advised on in place of a registry",
                "Leave --table out",
            )
        if table is None and (test is not None or schema is not None):
            raise DataError("--test and --schema are for a --table.")
        if trainer is not None and registry == REGISTRY and not registry.exists():
            chosen = Registry.load({}, overrides or ())  # it need not say anything
        else:
            chosen = _registry(registry, overrides, table, test, schema)
        if (objective == "time_to_loss") != (curve is not None):
            raise RegistryError(
                "--objective time_to_loss and --curve go together: `recd tune loss --json > FILE` "
                "measures how many steps a batch size takes."
            )
        learned = {} if curve is None else steps_to_loss(curve, ranks or chosen.train.ranks)
        sizes = list(batch_size or learned)
        if missing := [size for size in sizes if learned and size not in learned]:
            raise DataError(
                f"{curve}: with batches of {missing[0]:,} samples it does not reach its loss."
            )
        goal = AdviceGoal(objective=objective, budget_gb=budget_gb, steps_to_loss=learned)
        hide_other_warnings()
        with progress() as show:
            own = None if trainer is None else ModelOfTrainer.named(trainer)
            advice = advice_on(
                chosen,
                goal,
                ranks=ranks,
                batch_sizes=sizes,
                with_what_ifs=what_ifs,
                most_tried=tries,
                rounds=rounds,
                steps=steps,
                server=server,
                trainer=own,
                progress=show,
                met=lambda what: print(f"weighing {what}", file=sys.stderr, flush=True),
            )
        if out is not None:
            write_whole(out, advised_registry(advice))
        if as_json:
            print(json.dumps({**advice.summary(), "out": None if out is None else str(out)}))
            return
        print("\n".join(advice_lines(advice)))
        if out is not None:
            print(f"\n{out}: next: {next_step(advice, out)}")


def _registry(
    file: Path,
    overrides: list[str] | None,
    table: Path | None,
    test: Path | None,
    schema: Path | None,
) -> Registry:
    """The registry, or the one that `recd init` would write for a table."""
    from recd_plugins.config.yaml_text import read_yaml
    from recd_plugins.registry import Registry

    if table is None:
        return Registry.load(file, overrides or ())
    text, _ = registry_of_table(table, test, schema, "--table")
    values = read_yaml(text, str(table)).values
    return Registry.load(values, overrides or ())
