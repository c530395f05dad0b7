"""`python -m recd_plugins.advise.rank_in_turns`: one rank that trains registries in turns, for
`recd advise --try` and for a trainer's demand."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Sequence
from itertools import chain, cycle, islice, repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from recd_plugins.trainer.tuning.trial_rank import write_found

if TYPE_CHECKING:
    import torch
    from torchrec.distributed import TrainPipelineSparseDist

    from recd_plugins.data.batch import Batch
    from recd_plugins.stack import Stack

__all__ = ["TrialSide", "in_turns", "seconds_in_turns", "trial_side", "turns"]

WARM_UP = 3
"""Steps of each side before the first round, in which pipelines fill and kernels compile."""


def turns(
    sides: Sequence[tuple[str, Sequence[str]]], rounds: int, steps: int, held: int
) -> list[list[float]]:
    """`in_turns` for files with overrides, over the launcher's group."""
    from recd_plugins.stack import load
    from recd_plugins.trainer.process_group import process_group

    stacks = [load(path, overrides) for path, overrides in sides]
    with process_group(stacks[0]) as device:
        return in_turns(stacks, device, rounds, steps, held)


class TrialSide(NamedTuple):
    """A registry that takes its turns on this rank."""

    pipeline: TrainPipelineSparseDist[Any, Any]
    batches: Iterator[Batch]

    def seconds(self, steps: int, device: torch.device) -> float:
        """The seconds of a step, as the mean of `steps` steps, which all ranks begin together."""
        import torch
        import torch.distributed as dist

        dist.barrier()
        begun = time.perf_counter()
        for _ in range(steps):
            self.pipeline.progress(self.batches)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return (time.perf_counter() - begun) / steps


def trial_side(stack: Stack, device: torch.device, held: int = 0) -> TrialSide:
    """A side that is assembled and warm. It reads while it trains, or, if `held` is not 0, trains
    over and over on this many batches in memory."""
    import torch.distributed as dist

    from recd_plugins.trainer.assemble import assemble

    loader = stack.loader(dist.get_rank(), dist.get_world_size())
    pipeline = assemble(stack, device).pipeline  # its plan decides which batches are hot
    batches: Iterator[Batch] = chain.from_iterable(repeat(loader))
    if held:
        batches = cycle([*islice(loader, held)])
        loader.close()
    side = TrialSide(pipeline, batches)
    side.seconds(WARM_UP, device)
    return side


def in_turns(
    stacks: Sequence[Stack], device: torch.device, rounds: int, steps: int, held: int = 0
) -> list[list[float]]:
    """`seconds_in_turns` for registries."""
    sides = [trial_side(stack, device, held) for stack in stacks]
    return seconds_in_turns(sides, device, rounds, steps)


def seconds_in_turns(
    sides: Sequence[TrialSide], device: torch.device, rounds: int, steps: int
) -> list[list[float]]:
    """The seconds of a step of each side, in each round, on the slowest rank of the group. Sides
    take turns of `steps` steps, in an order that is reversed each time."""
    import torch
    import torch.distributed as dist

    found = torch.zeros(len(sides), rounds, device=device)
    for number in range(rounds):
        order = range(len(sides)) if number % 2 else reversed(range(len(sides)))
        for side in order:
            found[side, number] = sides[side].seconds(steps, device)
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
