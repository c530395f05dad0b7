"""The demo's baseline, one rank of it: the same job written by hand, with TorchRec alone.

Same table, model class, planner, optimizers and steps as the registry's; its own reading
(pyarrow to KeyedJaggedTensor, row groups dealt out to ranks, no shuffling) and loop.
"""

from __future__ import annotations

import dataclasses
import json
import os
import statistics
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import nullcontext
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
import torch.distributed as dist
from torchrec import KeyedJaggedTensor
from torchrec.distributed import DistributedModelParallel, TrainPipelineSparseDist
from torchrec.optim.keyed import CombinedOptimizer, KeyedOptimizerWrapper
from torchrec.optim.optimizers import in_backward_optimizer_filter

import recd_plugins as rp
from benchmarks.peak_memory import peak_memory
from recd_plugins.data.batch import Batch
from recd_plugins.data.table import Table
from recd_plugins.launch.environment import die_with_parent
from recd_plugins.trainer.measure.metrics import MetricsWindow
from recd_plugins.trainer.measure.traffic import TrafficCounter


def batches(table: Table, batch_size: int, *, train: bool) -> Iterator[Batch]:
    """This rank's row groups, `batch_size` rows at a time; endless for training."""
    rank, world_size, schema = dist.get_rank(), dist.get_world_size(), table.schema
    while True:
        for stripe in table.stripes[rank::world_size] if train else table.stripes:
            file = pq.ParquetFile(stripe.file)
            for rows in file.iter_batches(batch_size, [stripe.group], list(schema.columns)):
                if not train:
                    rows = rows.take(pa.array(np.arange(rank, len(rows), world_size)))
                if len(rows) == batch_size or not train:
                    yield to_batch(rows, schema)
        if not train:
            return


def to_batch(rows: pa.RecordBatch, schema: Any) -> Batch:
    def tensor(array: pa.Array) -> torch.Tensor:
        return torch.from_numpy(array.to_numpy(zero_copy_only=False).copy())

    lists = [rows.column(name) for name in schema.sparse_names]
    labels = tensor(rows.column(schema.label))
    return Batch(
        dense=torch.stack([tensor(rows.column(name)) for name in schema.dense], dim=1),
        features=KeyedJaggedTensor.from_lengths_sync(
            keys=list(schema.sparse_names),
            values=torch.cat([tensor(column.flatten()) for column in lists]),
            lengths=torch.cat([tensor(column.value_lengths()) for column in lists]),
        ),
        labels=labels,
        weights=torch.ones_like(labels),
    )


def joined(kind: str) -> torch.device:
    """This rank's device, once its group is there."""
    if kind == "cpu":
        dist.init_process_group("gloo")
        return torch.device("cpu")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")
    return device


def main(registry: str, result: str, *overrides: str) -> None:
    stack = rp.load(registry, overrides)
    settings, tables, device = stack.registry.train, stack.prepare(), joined(stack.device)
    torch.manual_seed(settings.seed)
    model = stack.model()
    plan = stack.plan(model, sharders=stack.default_sharders())
    model = DistributedModelParallel(
        model, device=device, plan=plan, sharders=stack.default_sharders()
    )
    dense = dict(in_backward_optimizer_filter(model.named_parameters()))
    lr = settings.optimizer.dense_lr
    adam = KeyedOptimizerWrapper(dense, lambda params: torch.optim.Adam(params, lr=lr))
    optimizer = CombinedOptimizer([model.fused_optimizer, adam])
    pipeline = TrainPipelineSparseDist(model, optimizer, device)
    source: Iterator[Batch] = islice(
        batches(tables.train, settings.batch_size, train=True), settings.steps
    )
    on_cuda = device.type == "cuda"
    if on_cuda:
        source = map(Batch.pin_memory, source)
    counter = TrafficCounter()
    window, rates, began = MetricsWindow(device), [], time.perf_counter()
    for step in range(1, settings.steps + 1):
        with counter if step == settings.log_every // 2 else nullcontext():
            window.add(*pipeline.progress(source))
        if step % settings.log_every == 0:
            metrics = window.metrics()
            rates.append(metrics.samples / (time.perf_counter() - began))
            began = time.perf_counter()
            if dist.get_rank() == 0:
                print(f"step {step:>3}/{settings.steps}  loss {metrics.loss:.4f}", flush=True)
    pipeline.detach()
    model.eval()
    window = MetricsWindow(device, auc_samples=None)
    with torch.no_grad():
        for batch in batches(tables.test, settings.batch_size, train=False):
            window.add(*model(batch.to(device))[1])
    test = window.metrics()
    peak = torch.cuda.max_memory_allocated(device) if on_cuda else peak_memory()
    if dist.get_rank() == 0:
        summary = {
            "train": dataclasses.asdict(metrics),
            "test": dataclasses.asdict(test),
            "samples_per_second": statistics.median(rates),
            "cost": {"traffic": counter.traffic},
            "peak_memory_mib": peak / 2**20,
        }
        Path(result).write_text(json.dumps(summary))
    dist.destroy_process_group()


if __name__ == "__main__":
    die_with_parent()
    warnings.filterwarnings("ignore")
    main(*sys.argv[1:])
