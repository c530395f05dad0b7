"""The demand of a trainer: how fast its ranks take batches that lie in memory.

`python -m recd_plugins.advise.demand` is one of these ranks.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from recd_plugins.advise.trial_rank import in_turns
from recd_plugins.config.whole_file import write_whole
from recd_plugins.errors import CapabilityError, RecdError
from recd_plugins.launch.command import launch
from recd_plugins.launch.environment import die_with_parent
from recd_plugins.notices import hide_warnings

__all__ = ["step_seconds"]


def step_seconds(
    registry: Path, sides: Sequence[Sequence[str]], *, rounds: int, steps: int, held: int
) -> list[list[float]]:
    """Seconds of a step of each side in each round, of the slowest rank, which is fed over and over
    from so many batches that it has `held` in memory.

    A side is the registry with overrides. All of them train in turns, on the same fresh ranks.
    """
    from recd_plugins.stack import load

    settings = load(registry, sides[0]).registry.train
    with tempfile.TemporaryDirectory(prefix="recd-demand-") as folder:
        into = Path(folder) / "found.json"
        numbers = [f"--rounds={rounds}", f"--steps={steps}", f"--held={held}", f"--into={into}"]
        failure = launch(
            [
                "recd_plugins.advise.demand",
                *numbers,
                str(registry),
                json.dumps([*map(list, sides)]),
            ],
            settings.ranks,
            threads=settings.threads or max(1, (os.cpu_count() or 1) // settings.ranks),
            quiet=True,
            stopping="stopping",
        )
        if failure is not None:
            raise CapabilityError(
                f"the trainer's demand: {failure}\nMeasure where `recd train` trains this registry."
            )
        found: list[list[float]] = json.loads(into.read_text(encoding="utf-8"))
        return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--held", type=int, required=True)
    parser.add_argument("--into", type=Path, required=True)
    parser.add_argument("registry", type=Path)
    parser.add_argument("sides")
    arguments = parser.parse_args()
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # there is nothing to save
    hide_warnings()
    from recd_plugins.stack import load
    from recd_plugins.trainer.run import process_group

    try:
        stacks = [load(arguments.registry, side) for side in json.loads(arguments.sides)]
        with process_group(stacks[0]) as device:
            found = in_turns(stacks, device, arguments.rounds, arguments.steps, arguments.held)
    except RecdError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    if os.environ["RANK"] == "0":
        write_whole(arguments.into, json.dumps(found))


if __name__ == "__main__":
    main()
