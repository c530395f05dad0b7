"""`recd reshard`: a checkpoint for another number of ranks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from recd_plugins.cli.options import AsJson, Debug, progress, reported
from recd_plugins.cli.output_paths import check_writable
from recd_plugins.errors import so_many

__all__ = ["reshard"]

Source = Annotated[
    Path,
    typer.Argument(help="A run's folder, or one of its checkpoints/step-...", metavar="FROM"),
]
Target = Annotated[Path, typer.Argument(help="The run's folder to write.", metavar="TO")]
Ranks = Annotated[int, typer.Option("--ranks", min=1, help="How many ranks will resume the run.")]
BatchSize = Annotated[
    int | None,
    typer.Option("--batch-size", min=1, help="Samples per rank from then on; by default as is."),
]


def reshard(
    source: Source,
    target: Target,
    ranks: Ranks,
    batch_size: BatchSize = None,
    debug: Debug = False,
    as_json: AsJson = False,
) -> None:
    """Write a run's checkpoint so that `recd train --resume` goes on at another number of ranks.

    Tables, dense parameters and optimizer states are what they were, under any plan. Batches go
    on where they were if reader.streams is set and the samples of a step stay as many; else
    with the next epoch, in other streams where the ranks cannot share those.
    """
    with reported(debug):
        from recd_plugins.trainer.checkpoints.other_ranks import reshard as write
        from recd_plugins.trainer.run_folder import check_free, check_is_run

        check_is_run(target, "TO")
        check_free(target, "TO")
        check_writable(target / "checkpoints" / "job.json", "TO")
        with progress() as show:
            found = write(source, target, ranks, batch_size, show)
    if as_json:
        names = ("step", "ranks_before", "ranks", "batch_size", "streams", "exact", "begins_epoch")
        values = {name: getattr(found, name) for name in names}
        print(json.dumps({"path": str(found.checkpoint), **values}))
        return
    print(
        f"{found.checkpoint}: step {found.step}, for {so_many(found.ranks, 'rank')} "
        f"({found.ranks_before} before) of "
        f"{so_many(found.batch_size, 'sample')}\n{found.goes_on()}\nrecd train --resume --ranks "
        f"{found.ranks} train.run={target} train.batch_size={found.batch_size}"
        + ("" if found.streams is None else f" reader.streams={found.streams}")
    )
