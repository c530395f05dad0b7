"""`python -m recd_plugins.advise.trial_rank`: one rank of registries that train in turns, for
`recd advise --try` and for a trainer's demand."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Sequence
from itertools import chain, cycle, islice, repeat
from pathlib import Path
from typing import TYPE_CHECKING

from recd_plugins.trainer.tuning.trial_rank import write_found

if TYPE_CHECKING:
    import torch

    from recd_plugins.data.batch import Batch
    from recd_plugins.stack import Stack

__all__ = ["in_turns", "turns"]

WARM_UP = 3
"""Steps of each side before the first round: pipelines fill, kernels compile."""


def turns(
    sides: Sequence[tuple[str, Sequence[str]]], rounds: int, steps: int, held: int
) -> list[list[float]]:
    """`in_turns` of files with overrides, over the launcher's group."""
    from recd_plugins.stack import load
    from recd_plugins.trainer.run import process_group

    stacks = [load(path, overrides) for path, overrides in sides]
    with process_group(stacks[0]) as device:
        return in_turns(stacks, device, rounds, steps, held)


def in_turns(
    stacks: Sequence[Stack], device: torch.device, rounds: int, steps: int, held: int = 0
) -> list[list[float]]:
    """Seconds of a step of each registry, in each round, of the slowest rank of the group. Sides
    take turns of `steps` steps, in an order that is turned round each time: reading included, or
    fed over and over from so many batches that are `held` in memory."""
    import torch
    import torch.distributed as dist

    from recd_plugins.trainer.assemble import assemble

    sides = []
    for stack in stacks:
        loader = stack.loader(dist.get_rank(), dist.get_world_size())
        batches: Iterator[Batch] = chain.from_iterable(repeat(loader))
        if held:
            batches = cycle([*islice(loader, held)])
            loader.close()
        sides.append((assemble(stack, device).pipeline, batches))

    def seconds(side: int, count: int) -> float:
        pipeline, batches = sides[side]
        dist.barrier()
        begun = time.perf_counter()
        for _ in range(count):
            pipeline.progress(batches)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return (time.perf_counter() - begun) / count

    for side in range(len(sides)):
        seconds(side, WARM_UP)
    found = torch.zeros(len(sides), rounds, device=device)
    for number in range(rounds):
        order = range(len(sides)) if number % 2 else reversed(range(len(sides)))
        for side in order:
            found[side, number] = seconds(side, steps)
    dist.all_reduce(found, op=dist.ReduceOp.MAX)
    each: list[list[float]] = found.tolist()
    return each


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--held", type=int, required=True)
    parser.add_argument("--into", type=Path, required=True)
    parser.add_argument("sides", type=json.loads)
    options = vars(parser.parse_args())
    into = options.pop("into")
    write_found(lambda: turns(**options), into)


if __name__ == "__main__":
    main()
