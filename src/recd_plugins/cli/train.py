"""`recd train`: the registry's job on N ranks of this machine, or one rank under torchrun."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from recd_plugins.cli.loaded import loaded, server_of_ranks
from recd_plugins.cli.options import REGISTRY, AsJson, Debug, Overrides, RegistryFile, check_of_use
from recd_plugins.cli.progress import progress
from recd_plugins.cli.reported import reported
from recd_plugins.errors import RecdError, RegistryError, shown, so_many

if TYPE_CHECKING:
    from recd_plugins.launch.rank_server import RankServer
    from recd_plugins.stack import Stack

__all__ = ["train"]

Ranks = Annotated[
    int | None, typer.Option("--ranks", help="The number of ranks; by default train.ranks.")
]
ProfileSteps = Annotated[
    bool, typer.Option("--profile", help="Say where a step's time goes (train.profile_steps=5).")
]
Resume = Annotated[bool, typer.Option("--resume", help="Go on from the run's latest checkpoint.")]
ResumeOrBegin = Annotated[
    bool,
    typer.Option(
        "--resume-or-begin",
        help="Go on from the run's latest checkpoint, or begin where it has none: for schedulers "
        "that start the same command again.",
    ),
]


def train(
    overrides: Overrides = None,
    registry: RegistryFile = REGISTRY,
    ranks: Ranks = None,
    resume: Resume = False,
    resume_or_begin: ResumeOrBegin = False,
    profile: ProfileSteps = False,
    debug: Debug = False,
    as_json: AsJson = False,
) -> None:
    """Train the model of a registry through DistributedModelParallel and TrainPipelineSparseDist.

    Starts its ranks itself; under torchrun (`torchrun -m recd_plugins train`) it is one rank.
    Ctrl-C saves a checkpoint and ends; --resume goes on from there.
    """
    changes = list(overrides or ())
    with reported(debug), server_of_ranks(registry, overrides) as server:
        _check_read(changes)
        check_of_use(
            {"--resume-or-begin": resume and resume_or_begin},
            "--resume goes on from a checkpoint or ends",
            "Take --resume out to begin where there is none",
        )
        if ranks is not None:
            changes.append(f"train.ranks={ranks}")
        if profile:
            changes.append("train.profile_steps=5")
        stack = loaded(registry, changes)
        if "RANK" in os.environ:
            _check_started(ranks)
            _be_a_rank(stack, resume or resume_or_begin, resume_or_begin)
            return
        command = ["recd_plugins", "train", *changes, "--registry", str(registry)]
        command += ["--resume"] if resume else []
        command += ["--resume-or-begin"] if resume_or_begin else []
        command += ["--debug"] if debug else []
        summary = _lead(stack, command, resume, server, quiet=as_json)
    if as_json:
        print(json.dumps(summary))
    else:
        _show(summary)


def _check_read(overrides: Sequence[str]) -> None:
    """Raises `RegistryError` for an override of what only another command reads."""
    for one in overrides:
        if one.partition("=")[0].partition(".")[0] == "stats":
            raise RegistryError(
                f"override {shown(one)}: training measures no table. Take it out, or hand it to "
                "`recd data stats`."
            )


def _lead(
    stack: Stack, command: list[str], resume: bool, server: RankServer | None, *, quiet: bool
) -> dict[str, Any]:
    """Prepare the data, start the ranks, wait for them; the summary that rank 0 wrote."""
    from recd_plugins.launch.launcher import launch
    from recd_plugins.registry.capability import check_gpus
    from recd_plugins.trainer.dense_optimizer import check_dense_optimizer
    from recd_plugins.trainer.run_folder import check_is_run, check_resumable
    from recd_plugins.trainer.run_lock import check_free

    settings = stack.registry.train
    check_is_run(settings.run)
    check_free(settings.run)
    stack.check_topology()
    check_dense_optimizer(stack)
    if stack.device != "cpu":
        check_gpus(settings.ranks)
    if resume:
        check_resumable(settings.run)
    with redirect_stdout(sys.stderr):  # what plugins print is no part of what the command says
        stack.check_planner()
        stack.check_features()
        with progress() as show:
            stack.prepare(show)
        stack.check()
    failure = launch(
        command,
        settings.ranks,
        threads=settings.threads_of_each(settings.ranks),
        quiet=quiet,
        server=server,
        # A run that has begun ends by its own watchdog, which takes a while and knows more.
        stopped_for=settings.hang_after and 1.1 * settings.hang_after + 20,
        variables=stack.notices_for_ranks(),
    )
    if failure is not None:
        print(failure.output if failure.explained else f"error: {failure}", file=sys.stderr)
        raise typer.Exit(2 if failure.code == 2 else 1)
    return _summary(settings.run)


def _summary(run: Path) -> dict[str, Any]:
    """The summary that rank 0 wrote; `RecdError` if it ended without an error and left none."""
    try:
        summary: dict[str, Any] = json.loads((run / "summary.json").read_text())
    except FileNotFoundError:
        raise RecdError(
            f"{run}: all ranks ended with exit code 0, but none left a summary, so the run did not "
            "come to its end. Some code ends the processes (sys.exit, os._exit): a plugin, or what "
            "it calls. Let it raise an error instead."
        ) from None
    return summary


def _check_started(ranks: int | None) -> None:
    """`RegistryError` if `--ranks` differs from the number of ranks that the job's launcher
    started."""
    started = os.environ.get("WORLD_SIZE", "")
    if ranks is not None and started.isdigit() and ranks != int(started):
        raise RegistryError(
            f"--ranks {ranks}: this is one of {so_many(int(started), 'rank')} that a launcher, as "
            "torchrun, has started, so --ranks cannot start others. Let the launcher start as many "
            "(torchrun's --nnodes and --nproc-per-node), or take --ranks out."
        )


def _be_a_rank(stack: Stack, resume: bool, or_begin: bool) -> None:
    from recd_plugins.cli.standard_streams import stop_when_unread
    from recd_plugins.compat.copied_server import copy_as_fork_server
    from recd_plugins.launch.environment import STOPS, die_with_parent
    from recd_plugins.notices import hide_other_warnings, notices_as_lines

    if getattr(stack.registry.one("reader").config, "forks", False):
        copy_as_fork_server()  # before there is a second thread
    die_with_parent()
    stop_when_unread()
    hide_other_warnings()  # a rank's output is for people
    notices_as_lines()
    from recd_plugins.trainer.process_group import process_group
    from recd_plugins.trainer.run import train as train_rank
    from recd_plugins.trainer.threads_left import name_threads_left

    with process_group(stack) as device:
        train_rank(stack, device, resume=resume, or_begin=or_begin)
        for number in STOPS:  # all is saved and reported
            signal.signal(number, signal.SIG_IGN)
    name_threads_left(int(os.environ["RANK"]))


def _show(summary: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    from recd_plugins.cli.printed_tables import print_table

    title = f"{summary['run']}: {so_many(summary['step'], 'step')}"
    table = Table(title=title, title_justify="left")
    for column in ("split", "loss", "NE", "AUC", "samples"):
        table.add_column(column, justify="left" if column == "split" else "right")
    first, last = summary["train_steps"]
    # Metrics of training are those of the last window; the test's are of its whole split.
    names = {"train": f"train, steps {first:,} to {last:,}", "test": "test"}
    for split, name in names.items():
        metrics = summary[split]
        if metrics:
            table.add_row(
                name,
                *(_shown(metrics[name]) for name in ("loss", "ne", "auc")),
                f"{metrics['samples']:,}",
            )
    console = Console()
    print_table(table, console)
    console.print(
        f"{summary['samples_per_second']:,.0f} samples/s on "
        f"{so_many(summary['world_size'], 'rank')} of "
        f"{summary['batch_size']}; "
        f"tensorboard --logdir {summary['run']}",
        highlight=False,
        soft_wrap=True,
    )


def _shown(value: float | None) -> str:
    return "undefined" if value is None else f"{value:.4f}"
