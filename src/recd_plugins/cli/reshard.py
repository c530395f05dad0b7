"""`recd reshard`: a checkpoint for another number of ranks."""

from __future__ import annotations

import json
import shlex
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from recd_plugins.cli.ended_by_signals import ended_by_signals
from recd_plugins.cli.options import REGISTRY, AsJson, Debug, RegistryFile
from recd_plugins.cli.output_paths import check_writable
from recd_plugins.cli.progress import progress
from recd_plugins.cli.reported import reported
from recd_plugins.errors import so_many
from recd_plugins.notices import NoticeWarning

if TYPE_CHECKING:
    from recd_plugins.trainer.checkpoints.other_ranks import OtherRanks

__all__ = ["reshard"]

Source = Annotated[
    Path,
    typer.Argument(help="A run's folder, or one of its checkpoints/step-...", metavar="FROM"),
]
Target = Annotated[Path, typer.Argument(help="The run's folder to write.", metavar="TO")]
Ranks = Annotated[
    int, typer.Option("--ranks", min=1, help="The number of ranks that will resume the run.")
]
BatchSize = Annotated[
    int | None,
    typer.Option(
        "--batch-size",
        min=1,
        help="The samples of a rank and step from then on; by default as many as now.",
    ),
]


def reshard(
    source: Source,
    target: Target,
    ranks: Ranks,
    batch_size: BatchSize = None,
    registry: RegistryFile = REGISTRY,
    debug: Debug = False,
    as_json: AsJson = False,
) -> None:
    """Write a run's checkpoint so that `recd train --resume` goes on at another number of ranks.

    Tables, dense parameters and optimizer states stay the same, under any plan. Batches go on
    where they were if the ranks and the samples of each stay as many, or if reader.streams is set
    and a step has as many samples. Otherwise the next epoch begins, in other streams if the ranks
    cannot share those evenly. The printed command has the overrides that turn the registry that
    is read into the run's.
    """
    with reported(debug), ended_by_signals():
        from recd_plugins.trainer.checkpoints.reshard import reshard as write
        from recd_plugins.trainer.run_folder import check_is_run, check_not_among_checkpoints
        from recd_plugins.trainer.run_lock import check_free

        check_is_run(target, "TO")
        check_not_among_checkpoints(target)
        check_free(target, "TO")
        check_writable(target / "checkpoints" / "job.json", "TO")
        values = _values(registry)
        with progress() as show:
            found = write(source, target, ranks, batch_size, show)
    command = shlex.join(_command(found, target, registry, values))
    if as_json:
        names = ("step", "ranks_before", "ranks", "batch_size", "streams", "exact", "begins_epoch")
        shown = {name: getattr(found, name) for name in names}
        print(json.dumps({"path": str(found.checkpoint), **shown, "command": command}))
        return
    print(
        f"{found.checkpoint}: step {found.step}, for {so_many(found.ranks, 'rank')} "
        f"({found.ranks_before} before) of "
        f"{so_many(found.batch_size, 'sample')}\n{found.goes_on()}\n{command}"
    )


def _values(registry: Path) -> dict[str, Any] | None:
    """The values of the registry with which training goes on; None if it is not here."""
    from recd_plugins.registry.source import Source

    if registry == REGISTRY and not registry.exists():
        warnings.warn(
            f"the command below names no registry, since no {registry} is here, and has none of "
            "the overrides of the run. Give `--registry FILE`, the registry by which the run was "
            "trained, for a command that has them.",
            NoticeWarning,
            stacklevel=2,
        )
        return None
    values: dict[str, Any] = json.loads(json.dumps(Source.read(registry, ()).values, default=str))
    return values


def _command(
    found: OtherRanks, target: Path, registry: Path, values: dict[str, Any] | None
) -> list[str]:
    """The command that goes on with what was written, by that run's registry; if the run had
    finished, for as many steps as the registry that is read has."""
    from recd_plugins.registry.source import overrides_between

    begins = ["recd", "train", "--resume", "--ranks", str(found.ranks)]
    begins += [] if registry == REGISTRY else ["--registry", str(registry)]
    ends = [f"train.run={target}", f"train.batch_size={found.batch_size}"]
    ends += [] if found.streams is None else [f"reader.streams={found.streams}"]
    if values is None:
        return [*begins, *ends]
    given = _without(values, "run", "ranks", "batch_size")
    asked = _without(found.job["registry"], "run", "ranks", "batch_size")
    if asked["train"].get("steps", 0) <= found.step:
        given, asked = _without(given, "steps"), _without(asked, "steps")
    if found.streams is not None and isinstance(reader := given.get("reader") or {}, Mapping):
        given = {**given, "reader": {**reader, "streams": found.streams}}
    return [*begins, *overrides_between(given, asked), *ends]


def _without(values: dict[str, Any], *names: str) -> dict[str, Any]:
    """A registry's values without some of `train`."""
    train = values.get("train")
    kept = train.items() if isinstance(train, Mapping) else ()
    return {**values, "train": {name: one for name, one in kept if name not in names}}
