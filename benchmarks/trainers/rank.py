"""One rank of a foreign trainer: its ids by Zipf's law, its collectives counted, its weights known.

The program is run as it stands. Around it, TorchRec's random dataset draws skewed ids, and a
DistributedModelParallel is watched once it is made: its tables get weights that are a function
of table, row and column alone, so that two shardings begin alike, and its steps are counted.
"""

from __future__ import annotations

import importlib.util
import json
import os
import random
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torchrec.datasets.random
from torch import Tensor, nn
from torchrec import KeyedJaggedTensor
from torchrec.datasets.utils import Batch
from torchrec.distributed.model_parallel import DistributedModelParallel

from benchmarks.trainers.foreign import ZIPF
from recd_plugins.launch.environment import die_with_parent
from recd_plugins.trainer.measure.traffic import Traffic, TrafficCounter

KEPT = 2_000
"""Rows of each table that are compared at the end: by Zipf's law those that are trained most."""


class Enough(Exception):
    """All steps are done: what ends a program that trains for longer."""


class Watch:
    """Counts the steps of the model that the program makes, and ends it."""

    def __init__(self, skipped: int, steps: int, *, off: bool) -> None:
        self.skipped, self.steps, self.off = skipped, steps, off
        self.counter = TrafficCounter()
        self.losses: list[float] = []
        self.times: list[float] = []
        self.before: Traffic = {}
        self.dense = 0
        """Bytes of one all-reduce of the dense parameters' gradients."""
        self.model: DistributedModelParallel | None = None
        self.rows: dict[str, Tensor] = {}
        """The trained weights, as `weights` takes them."""
        self.found: dict[str, Any] = {}
        """What is reported: bytes a step of all ranks, steps' losses, the time of one."""

    def made(self, model: DistributedModelParallel, sizes: dict[str, int]) -> None:
        """A model was wrapped, whose parameters took so many bytes: have it begin alike, and watch
        its forward passes."""
        self.model = model
        sharded = tuple(f"{path}." for path in model.plan.plan)
        self.dense = sum(size for name, size in sizes.items() if not name.startswith(sharded))
        fill(model)
        if self.off:
            put_off(model)
        random.seed(2)
        np.random.seed(2)
        torch.manual_seed(2 + dist.get_rank())
        model.register_forward_hook(self.stepped)
        self.counter.__enter__()

    def stepped(self, model: nn.Module, inputs: Any, output: Any) -> None:
        assert self.model is not None
        if not model.training:
            return
        if len(self.losses) == self.skipped:
            self.before = self.counter.traffic
        if len(self.losses) == self.skipped + self.steps:
            self.counter.__exit__(None, None, None)
            # Now: a program may leave its process group on the way out.
            self.rows, self.found = weights(self.model), self._found()
            raise Enough
        first = next(tensors(output)).detach()
        self.losses.append(float(first if first.dim() == 0 else first.double().norm()))
        self.times.append(time.perf_counter())

    def _found(self) -> dict[str, Any]:
        after = self.counter.traffic
        sent = {
            collective: {
                phase: (size - self.before.get(collective, {}).get(phase, 0.0)) / self.steps
                for phase, size in phases.items()
            }
            for collective, phases in after.items()
        }
        everyone: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(everyone, (sent, self.dense, self.losses))
        waits = np.diff(self.times[self.skipped :])
        return {
            "sent": [one[0] for one in everyone],
            "dense": [one[1] for one in everyone],
            "losses": [one[2] for one in everyone],
            "ms": float(np.median(waits)) * 1e3,
        }


def tensors(output: Any) -> Iterator[Tensor]:
    if isinstance(output, Tensor):
        yield output
    elif isinstance(output, Sequence):
        for one in output:
            yield from tensors(one)


def is_table(value: Any) -> bool:
    """Whether it has rows; what a table knows beside of its ids, one by one, has not."""
    return hasattr(value, "local_shards") and len(value.size()) == 2


def shards(state: dict[str, Any]) -> Iterator[tuple[str, Tensor, int, int]]:
    """Each part of a table that lies here, with its first row and column."""
    for name, value in state.items():
        if is_table(value):
            for shard in value.local_shards():
                row, column = shard.metadata.shard_offsets
                yield name, shard.tensor, row, column


def fill(model: DistributedModelParallel) -> None:
    """Weights of the tables as functions of table, row and column."""
    state = model.state_dict()
    for name, tensor, row, column in shards(state):
        rows = torch.arange(row, row + tensor.shape[0], dtype=torch.float64)[:, None]
        columns = torch.arange(column, column + tensor.shape[1], dtype=torch.float64)
        phase = float(sum(name.rsplit(".", 2)[-2].encode()))
        scale = state[name].size(0) ** -0.5
        tensor.copy_(torch.sin(rows * 12.9898 + columns * 78.233 + phase) * scale)
    model.load_state_dict(state)


def put_off(model: DistributedModelParallel) -> None:
    """Have each weight off by one unit in the last place, or not, at random."""
    draw = torch.Generator().manual_seed(3)
    state = model.state_dict()
    parts = [tensor for _, tensor, _, _ in shards(state)]
    dense = [value for value in state.values() if type(value) is Tensor]
    for tensor in (*parts, *dense):
        if tensor.is_floating_point():
            units = torch.randint(-1, 2, tensor.shape, generator=draw)
            tensor.mul_(1 + units * torch.finfo(torch.float32).eps)
    model.load_state_dict(state)


def weights(model: DistributedModelParallel) -> dict[str, Tensor]:
    """The first rows of each table, and the dense parameters, alike on every rank."""
    state = model.state_dict()
    found = {}
    for name, value in state.items():
        if is_table(value):
            rows, columns = value.size()
            found[name] = torch.zeros(min(rows, KEPT), columns)
        elif isinstance(value, Tensor) and not hasattr(value, "local_shards"):
            found[name] = value.detach().clone()
    for name, tensor, row, column in shards(state):
        part = tensor[: max(KEPT - row, 0)].detach()
        found[name][row : row + part.shape[0], column : column + part.shape[1]] = part
    for name in sorted(found):
        if is_table(state[name]):
            dist.all_reduce(found[name])
    return found


def skewed(dataset: Any) -> Batch:
    """What TorchRec's random dataset yields, but for ids, which follow Zipf's law."""
    if not hasattr(dataset, "drawn"):
        rank = dist.get_rank() if dist.is_initialized() else 0
        dataset.drawn = np.random.default_rng([1, rank])
        dataset.laws = {
            rows: np.cumsum(np.arange(1, rows + 1) ** -ZIPF) for rows in set(dataset.hash_sizes)
        }
    draw, size = dataset.drawn, dataset.batch_size
    values = []
    for rows, count in zip(dataset.hash_sizes, dataset.ids_per_features, strict=True):
        law = dataset.laws[rows]
        values.append(np.searchsorted(law, draw.random(size * count) * law[-1]))
    lengths = np.repeat(np.array(dataset.ids_per_features, np.int32), size)
    return Batch(
        dense_features=torch.from_numpy(draw.normal(size=(size, dataset.num_dense))).float(),
        sparse_features=KeyedJaggedTensor.from_lengths_sync(
            keys=dataset.keys,
            values=torch.from_numpy(np.concatenate(values)),
            lengths=torch.from_numpy(lengths),
        ),
        labels=torch.from_numpy(draw.integers(0, 2, size)),
    )


def main(job: str) -> None:
    settings = json.loads(Path(job).read_text())
    watch = Watch(settings["skipped"], settings["steps"], off=settings["off"])
    wrap = DistributedModelParallel.__init__

    def wrapped(self: Any, module: nn.Module, *args: Any, **kwargs: Any) -> None:
        sizes = {
            name: parameter.numel() * parameter.element_size()
            for name, parameter in module.named_parameters()
            if parameter.requires_grad
        }
        wrap(self, module, *args, **kwargs)
        if watch.model is None:
            watch.made(self, sizes)

    DistributedModelParallel.__init__ = wrapped
    torchrec.datasets.random._RandomRecBatch._generate_batch = skewed
    if importlib.util.find_spec("faiss"):
        import faiss

        # Annotations name it, and the build for CPUs lacks it.
        faiss.GpuIndexIVFPQ = getattr(faiss, "GpuIndexIVFPQ", faiss.IndexIVFPQ)
    torch.set_num_threads(1)
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
    program = Path(settings["program"])
    sys.argv[:] = [str(program), *settings["flags"]]
    sys.path[:0] = [str(program.parent), settings["beside"]]
    spec = importlib.util.spec_from_file_location("foreign_trainer", program)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    train = getattr(module, settings["call"])
    try:
        if settings["arguments"] is None:
            train(**settings["options"])
        else:
            train(list(settings["arguments"]))
    except Enough:
        pass
    if int(os.environ["RANK"]) == 0:
        torch.save(watch.rows, settings["weights"])
        Path(settings["found"]).write_text(json.dumps(watch.found))
    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    die_with_parent()
    warnings.filterwarnings("ignore")
    main(sys.argv[1])
    sys.stdout.flush()
    sys.stderr.flush()
    # A pipeline of TorchRec's leaves a thread, over which a process that ends by itself may abort.
    os._exit(0)
