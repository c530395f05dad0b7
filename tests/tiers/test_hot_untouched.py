"""Hot steps leave the tables' home alone: two gloo ranks, whose kernels and pages are counted."""

from __future__ import annotations

import ctypes
import dataclasses
import mmap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed as dist
from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
    SplitTableBatchedEmbeddingBagsCodegen,
)
from on_disk import on_disk
from tiered import Bags, ByTiers, Sequences, batch_of, confined, tier_plan
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torchrec.distributed import DistributedModelParallel
from trio import in_mapped_files

from recd_plugins.data.batch import Batch
from recd_plugins.registry.settings import OptimizerSettings
from recd_plugins.testing.gloo import GlooPool
from recd_plugins.tiers.mapped_tables import mapped
from recd_plugins.trainer.initial_tables import initialise_tables, table_initialisers


class KernelCalls(TorchDispatchMode):
    """While it is entered, counts fbgemm's lookups in tables and updates of them."""

    def __init__(self) -> None:
        super().__init__()
        self.lookups = self.updates = 0

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        name: str = func._schema.name
        if name.startswith("fbgemm::split_embedding"):
            if "backward" in name:
                self.updates += 1
            else:
                self.lookups += 1
        return func(*args, **(kwargs or {}))


class AtHome(NamedTuple):
    """What steps did to the tables at home, on a rank."""

    lookups: int
    updates: int
    pages: int
    """Kilobytes of their files that this process reached for; 0 where they are in memory."""
    changed: bool
    """Whether a weight or an optimizer state is another."""


def homes(model: nn.Module) -> list[Tensor]:
    """Where kernels keep this rank's rows and their states."""
    lookups = [one for module in model.modules() for one in getattr(module, "_lookups", [])]
    kernels = [
        module
        for lookup in lookups
        for module in lookup.modules()
        if isinstance(module, SplitTableBatchedEmbeddingBagsCodegen)
    ]
    assert kernels
    return [tensor for one in kernels for tensor in (one.weights_host, one.momentum1_host)]


def forget(tensor: Tensor) -> None:
    """Have the system unmap the pages of a file; they stay in its cache."""
    place = ctypes.c_void_p(tensor.data_ptr()), ctypes.c_size_t(tensor.nbytes)
    assert ctypes.CDLL(None).madvise(*place, mmap.MADV_DONTNEED) == 0


def mapped_kilobytes(tensor: Tensor) -> int:
    """Of the file that a tensor lies in, what this process has mapped by reading or writing it."""
    within = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        head = line.split()[0]
        if not head.endswith(":"):
            first, last = (int(end, 16) for end in head.split("-"))
            within = first <= tensor.data_ptr() < last
        elif within and head == "Rss:":
            return int(line.split()[1])
    raise AssertionError("the tensor is in no mapping of this process")


def touched_by(model: nn.Module, batches: Sequence[Batch], in_files: bool) -> AtHome:
    tables = homes(model)
    before = [table.clone() for table in tables]
    if in_files:
        for table in tables:
            forget(table)
        assert not any(map(mapped_kilobytes, tables))
    with KernelCalls() as calls:
        for batch in batches:
            model(batch)[0].backward()
    pages = sum(map(mapped_kilobytes, tables)) if in_files else 0
    changed = not all(map(torch.equal, before, tables))
    return AtHome(calls.lookups, calls.updates, pages, changed)


def steps(
    kind: Callable[[], nn.Module], drawn: ByTiers, folder: Path | None
) -> tuple[AtHome, AtHome]:
    """On a rank: five hot steps, and a normal one."""
    torch.manual_seed(0)
    model = kind()
    optimizer = OptimizerSettings(tables="rowwise_adagrad", tables_lr=0.1)
    initialisers = table_initialisers(model)
    arranged = drawn(model, optimizer)
    sharders = arranged.sharders if folder is None else mapped(arranged.sharders, folder)
    sharded = DistributedModelParallel(
        model, device=torch.device("cpu"), plan=arranged.plan, sharders=sharders
    )
    initialise_tables(sharded, initialisers, 0)
    plan, rank = tier_plan(drawn, n_nodes=1), dist.get_rank()
    replicated = {name: table.replicated for name, table in plan.tables.items()}
    sharded(batch_of(rank, 6))[0].backward()  # replicas take their rows from home
    hot = [confined(batch_of(2 * step + rank, 6), replicated) for step in range(5)]
    marked = [dataclasses.replace(batch, hot_under=plan.version) for batch in hot]
    return (
        touched_by(sharded, marked, folder is not None),
        touched_by(sharded, [batch_of(100 + rank, 6)], folder is not None),
    )


@pytest.mark.parametrize(
    ("model", "coalesce", "in_files"),
    [
        (Sequences, "none", False),
        pytest.param(Sequences, "rank", True, marks=in_mapped_files),
        pytest.param(Bags, "none", True, marks=in_mapped_files),
        pytest.param(Bags, "rank", True, marks=in_mapped_files),
    ],
    ids=["sequences", "sequences in files", "bags in files", "row bags in files"],
)
def test_no_kernel_runs_and_no_page_is_reached_for(
    gloo_pool: GlooPool, tmp_path: Path, model: Any, coalesce: Any, in_files: bool
) -> None:
    if in_files:
        on_disk(tmp_path)
    drawn = ByTiers(ranks_per_node=2, seed=3, coalesce=coalesce)
    for hot, normal in gloo_pool.run(steps, model, drawn, tmp_path if in_files else None):
        assert hot == AtHome(lookups=0, updates=0, pages=0, changed=False)
        # As the same counts see it.
        assert normal.lookups == normal.updates > 0
        assert (normal.pages > 0) == in_files
        assert normal.changed
