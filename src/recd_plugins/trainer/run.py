"""The training job of one rank: what `recd train` runs and a user's trainer may copy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from recd_plugins.data.pins import check_pins, check_same_meaning, write_pins
from recd_plugins.errors import RegistryError, listed, so_many
from recd_plugins.notices import Notices, Unchecked
from recd_plugins.planning.together import agreed
from recd_plugins.registry.option_files import files_of_steps
from recd_plugins.registry.plugin_code import code_of
from recd_plugins.stack import Stack
from recd_plugins.storage.whole_file import of_path
from recd_plugins.trainer.assemble import Job, assemble
from recd_plugins.trainer.checkpoints.checkpoint import Checkpoints, ReachedState
from recd_plugins.trainer.checkpoints.files import checkpoint_of, read_job
from recd_plugins.trainer.checkpoints.other_ranks import (
    OtherRanks,
    resumed_position,
    shared_streams,
)
from recd_plugins.trainer.checkpoints.positions import Positions, closing
from recd_plugins.trainer.checkpoints.registry_before import new_places
from recd_plugins.trainer.checkpoints.step_folders import checkpoints_in
from recd_plugins.trainer.checkpoints.version_before import naming_version
from recd_plugins.trainer.elastic import (
    Launchers,
    restarted_batch_size,
    samples_of_step,
    taken_over,
)
from recd_plugins.trainer.loop import Loop, evaluates_again
from recd_plugins.trainer.run_folder import check_resumable, naming_lost_folder, set_aside
from recd_plugins.trainer.run_lock import RunLock
from recd_plugins.trainer.run_provenance import keep_provenance
from recd_plugins.trainer.run_report import RunReport
from recd_plugins.trainer.stop_signal import StopSignal, answers_as_before
from recd_plugins.trainer.watchdog import Watchdog

__all__ = ["train"]


def train(
    stack: Stack, device: torch.device, *, resume: bool = False, or_begin: bool = False
) -> dict[str, Any]:
    """Train the registry's model over the current process group; returns the summary.

    With `or_begin`, a run that is to be resumed but has no checkpoint begins. A job that torchrun
    restarted goes on as with `resume`, on as many ranks as there are by now.
    """
    run = stack.registry.train.run
    # Until a new run takes the name of one before, no stacks come into its folder.
    watchdog = Watchdog(stack.registry.train.hang_after, run.with_name(f"{run.name}.stacks"))
    with answers_as_before(), watchdog, of_path(run), RunLock(run) as lock:
        launchers = Launchers.found()
        agreed(lock.take)
        if or_begin:  # as rank 0 sees it: a folder that nodes share may show another a bit later
            resume = agreed(lambda: bool(checkpoints_in(run / "checkpoints")))
        restarted = launchers.restarted(run)
        if resume or restarted:
            watchdog.folder = run / "stacks"
            return _resumed(stack, device, launchers, watchdog, restarted)
        return _begun(stack, device, launchers, watchdog)


def _begun(
    stack: Stack, device: torch.device, launchers: Launchers, watchdog: Watchdog
) -> dict[str, Any]:
    settings = stack.registry.train
    callbacks = stack.callbacks()
    stack.waiting = partial(watchdog.mark, starting=True)
    watchdog.mark("the data", starting=True)
    with closing(stack.loader(dist.get_rank(), dist.get_world_size())) as loader:
        watchdog.mark("the tables", starting=True)
        job = assemble(stack, device)
        Checkpoints.check(job)
        checkpoints = _checkpoints(stack, settings.batch_size * dist.get_world_size())
        begun = [*_begun_from(stack, job, checkpoints)]
        moved = set_aside(settings.run) if dist.get_rank() == 0 else None
        watchdog.folder = settings.run / "stacks"
        report = _report(stack, None)
        keep_provenance(report, stack, job)
        if moved:
            report.say(f"the run before is now {moved}")
        report.say(f"a new run: {settings.run}")
        for line in begun:
            report.say(line)
        if dist.get_rank() == 0:
            for line in _rows_in_words(stack, settings.batch_size * dist.get_world_size()):
                report.say(line)
            write_pins(settings.run, stack.prepare(), files_of_steps(stack.registry))
        positions = Positions(loader, settings.steps)
        loop = Loop(stack, job, checkpoints, report, positions, watchdog, None, callbacks)
        return _finished(loop, report, launchers, settings.run)


def _resumed(
    stack: Stack,
    device: torch.device,
    launchers: Launchers,
    watchdog: Watchdog,
    restarted: bool,
) -> dict[str, Any]:
    settings = stack.registry.train
    check_resumable(settings.run)
    watchdog.mark("the digest of the checkpoint", starting=True)
    kept = _checkpoints(stack, None)
    latest, lost = kept.whole(settings.on_damaged)
    kept.tidy()
    saved = read_job(latest)
    stack, other = _on_ranks_there_are(stack, latest) if restarted else (stack, None)
    settings = stack.registry.train
    # Another registry may name other files: it is what differs. Whether files of other places are
    # the same shows once they are there.
    anywhere = _checkpoints(stack, None, stack.registry.one("dataset").places)
    with naming_version(saved):
        anywhere.check_same_job(latest, other)
    callbacks = stack.callbacks()
    stack.waiting = partial(watchdog.mark, starting=True)
    watchdog.mark("the data", starting=True)
    tables = stack.prepare()
    with naming_version(saved):
        same = check_pins(settings.run, tables, files_of_steps(stack.registry))
    places = stack.registry.one("dataset").places if same else ()
    checkpoints = _checkpoints(stack, samples_of_step(latest), places)
    with closing(stack.loader(dist.get_rank(), dist.get_world_size())) as loader:
        watchdog.mark("the tables", starting=True)
        job = assemble(stack, device)
        watchdog.mark(f"loading {latest.name}", starting=True)
        with naming_version(saved):
            reached = checkpoints.load(job, latest, other)
        if reached.step > settings.steps:
            raise RegistryError(
                f"train.steps: {latest} is past step {settings.steps} already; raise "
                "train.steps to train on."
            )
        with naming_version(saved):
            loader.load_state_dict(resumed_position(loader.state_dict(), reached.loader))
        report = _report(stack, reached)
        keep_provenance(report, stack, job)
        for one in lost:
            report.say(f"a damaged checkpoint is passed over: {one}")
        for line in _resumed_in_words(reached, other, restarted, settings.run):
            report.say(line)
        for line in new_places(saved["registry"], stack.registry.source.values, places):
            report.say(line)
        positions = Positions(loader, settings.steps - reached.step)
        loop = Loop(stack, job, checkpoints, report, positions, watchdog, reached, callbacks)
        return _finished(loop, report, launchers, settings.run)


def _begun_from(stack: Stack, job: Job, checkpoints: Checkpoints) -> Iterator[str]:
    """Fill the job with what `train.begin_from` names; lines that say so."""
    run = stack.registry.train.begin_from
    if run is not None:
        path = agreed(lambda: checkpoint_of(run))
        unknown = agreed(lambda: check_same_meaning(path.parent.parent, stack.prepare()))
        before = checkpoints.begin_from(job, path)
        if unknown:
            notice = Unchecked(
                what="train.begin_from",
                why=f"the table, or that of {path}, has no schema of an import, which says what "
                f"the ids and numbers of {listed(unknown, kind='column')} mean",
                cure="Make sure that both tables mean the same: an id is an embedding's row.",
            )
            Notices(strict=stack.registry.strict).give([notice], dist.get_rank())
        yield f"begins with weights and optimizer states of step {before.step} of {run}"
        yield from _anew_in_words(before)


def _rows_in_words(stack: Stack, samples: int) -> Iterator[str]:
    """A line that says how many rows are not trained on, if steps of so many samples end before the
    first epoch does."""
    steps, rows = stack.registry.train.steps, stack.prepare()["train"].num_rows
    if stack.periods is None and steps * samples < rows:
        yield (
            f"{so_many(steps, 'step')} train {steps * samples:,} of {rows:,} rows: an epoch is "
            f"train.steps={-(-rows // samples)}"
        )


def _on_ranks_there_are(stack: Stack, latest: Path) -> tuple[Stack, OtherRanks | None]:
    """The stack of a restarted job, with the batch size and the streams for the ranks that there
    are by now; and the checkpoint as those ranks see it, None if they are the same."""
    registry = stack.registry
    size = restarted_batch_size(latest, registry.train)
    streams = shared_streams(registry.source.values, dist.get_world_size(), size)
    other = taken_over(latest, size, streams)
    if size != registry.train.batch_size:
        registry = registry.with_batch_size(size)
    registry = registry.with_streams(streams)
    return stack if registry is stack.registry else Stack(registry), other


def _resumed_in_words(
    reached: ReachedState, other: OtherRanks | None, restarted: bool, run: Path
) -> Iterator[str]:
    """Lines that say from where a job goes on, and what has changed since."""
    if other:
        yield (
            f"restarted on {so_many(other.ranks, 'rank')} ({other.ranks_before} before) of "
            f"{so_many(other.batch_size, 'sample')}: {other.goes_on()}"
        )
    again = "restarted and " if restarted else ""
    yield f"{again}resumed after step {reached.step}: {run}"
    yield from (*reached.new_code, *reached.new_rates)
    yield from _anew_in_words(reached)
    if reached.no_taker:
        yield f"the checkpoint's {listed(reached.no_taker)} have no taker now"


def _anew_in_words(reached: ReachedState) -> Iterator[str]:
    if reached.begun_anew:
        yield (
            f"another optimizer steps {listed(reached.begun_anew)} by this plan, and its "
            "states of that begin anew: data-parallel tables are the dense one's"
        )


def _checkpoints(
    stack: Stack, samples_of_step: int | None, places: Sequence[str] = ()
) -> Checkpoints:
    """The run's checkpoints; of the dataset's options, a resumed job may change those that say in
    what `places` the same files lie."""
    settings = stack.registry.train
    return Checkpoints(
        settings.run / "checkpoints",
        keep=settings.keep_checkpoints,
        registry=stack.registry.source.values,
        free=(*stack.registry.one("dataset").free, *places),
        code=code_of(stack.registry),
        samples_of_step=samples_of_step,
    )


def _report(stack: Stack, reached: ReachedState | None) -> RunReport:
    settings = stack.registry.train
    report = RunReport(
        settings.run,
        speaks=dist.get_rank() == 0,
        steps=settings.steps,
        reached=reached,
        again=reached is not None and evaluates_again(reached, settings),
        on_full=settings.on_full,
    )
    report.say(stack.in_short(stack.explain(), "plan.json of the run's folder has them all"))
    return report


def _finished(loop: Loop, report: RunReport, launchers: Launchers, run: Path) -> dict[str, Any]:
    """Train to the end; the summary."""
    if dist.get_rank() == 0:
        launchers.keep(run)
    dist.barrier()
    stop, saved = StopSignal(), False
    try:
        with naming_lost_folder(run):
            summary = loop.run(stop)
            report.close(summary)  # a signal that comes now is late: it takes no report
        saved = True
    finally:
        stop.close(saved=saved)
    return summary
