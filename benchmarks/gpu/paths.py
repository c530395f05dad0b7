"""Parity: each path trains some steps on the device, and is held to an unsharded model on the CPU.

The row says how far the worst element of losses, tables and dense weights is off, as a share of
what rounding explains (`recd_plugins.testing.parity`).
"""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from benchmarks.gpu.parts import Part, Setting
from benchmarks.harness import Figure
from recd_plugins.data.batch import Batch
from recd_plugins.registry.settings import OptimizerSettings
from recd_plugins.stack import Stack, load
from recd_plugins.testing.parity import Reference, reference_of
from recd_plugins.testing.trained import Trained
from recd_plugins.trainer.assemble import assemble
from recd_plugins.trainer.initial_tables import table_initialisers

__all__ = ["PARITY", "Routed", "TrainedPath"]

Route = Literal["padded", "vbe"]

STEPS, QUICK_STEPS = 8, 4
ITEM = {"name": "item", "num_ids": 500, "table": "items", "skew": 1.2}
HISTORY = {**ITEM, "name": "history", "kind": "user", "sequence": True, "length": 4, "stay": 0.9}
SGD = OptimizerSettings(tables="sgd", tables_lr=0.1, dense="sgd", dense_lr=0.1)
"""Adagrad hides a wrong scale of gradients."""
ADAGRAD = dataclasses.replace(SGD, tables="rowwise_adagrad", tables_eps=1e-4)
BASE: dict[str, Any] = {
    "plugins": ["recd_dlrm", "recd_dedup", "recd_flexshard", "recd_scars"],
    "dataset": {
        "use": "sessions",
        "samples": 2048,
        "test_fraction": 0.0625,
        "samples_per_session": 8,
        "features": [HISTORY, ITEM],
    },
    "etl": [{"use": "cluster_by_session"}],
    "reader": {"use": "local", "prefetch": False},
    "topology": {"ranks_per_node": 1, "inter_node_gbps": 0.01},
}
SMALL = {"embedding_dim": 8, "bottom": [8], "top": [8]}
SEQUENCES, POOLED = {"use": "sequence_dlrm", **SMALL}, {"use": "dlrm", **SMALL}
GROUPS = [["history"]]
FLEXSHARD = {
    "use": "flexshard",
    "goal": "budget",
    "budget_gb": 8e-6,
    "coalesce": "rank",
    "tables": ["t_items"],
    "others": {"use": "torchrec", "search": "greedy"},
}
SCARS = {"use": "scars", "size": "hit_rate", "hit_rate": 0.8, "window": 4}


@dataclass(frozen=True, kw_only=True)
class TrainedPath:
    """A registry's training, of which `slots` are what it has beside the others'."""

    slots: Mapping[str, Any] = field(default_factory=dict)
    model: Mapping[str, Any] = field(default_factory=lambda: SEQUENCES)
    ranks: int = 1
    ranks_per_node: int = 1
    route: Route = "padded"
    moves: bool = False
    """Whether replicas move halfway to the rows that the latest batches look up."""
    optimizer: OptimizerSettings = SGD
    hot: bool = False
    """Whether some batches must be hot."""

    def registry(self, device: str, folder: str, steps: int = STEPS) -> dict[str, Any]:
        topology = {**BASE["topology"], "ranks_per_node": self.ranks_per_node}
        train = {
            "device": device,
            "batch_size": 32,
            "steps": steps,
            "optimizer": self.optimizer.options,
        }
        own = {"folder": folder, "model": dict(self.model), "topology": topology, "train": train}
        return {**BASE, **own, **self.slots}

    def __call__(self, setting: Setting, name: str) -> Iterator[Figure]:
        steps = QUICK_STEPS if setting.quick else STEPS
        with tempfile.TemporaryDirectory(prefix="recd-gpu-") as folder:
            values = self.registry(setting.device, folder, steps)
            load(values | {"train": {**values["train"], "device": "cpu"}}).prepare()
            ranks = setting.on_ranks(_trained, self, values, ranks=self.ranks)
            batches = [*zip(*(given for _, given, _ in ranks), strict=True)]
            if self.hot and not any(batch.hot for step in batches for batch in step):
                raise AssertionError("no batch was hot, so parity says nothing about hot batches")
            plain = [[_plain(batch) for batch in step] for step in batches]
            reference = reference_of(
                partial(_model, self.registry("cpu", folder)), plain, optimizer=self.optimizer
            )
            trained, _, backend = ranks[0]
            yield Figure(
                name=f"{name}: parity",
                value=off_by(trained, reference),
                unit="of what rounding explains",
                target=1,
                at_most=True,
                note=f"{steps} steps, {self.ranks} ranks of {backend}, {self.optimizer.tables}",
            )


class Routed(Stack):
    """A stack whose models take unique samples by the route that it is given."""

    route: Route = "padded"

    def adapt(self, model: nn.Module, poolings: Sequence[str] = (), **options: Any) -> nn.Module:
        return super().adapt(model, poolings, **{**options, "route": self.route})


def _trained(
    device: torch.device, path: TrainedPath, values: Mapping[str, Any]
) -> tuple[Trained, list[Batch], str]:
    """On a rank: what training left, this rank's batches, and the backend."""
    stack = Routed(load(values).registry)
    stack.route = path.route
    tables = table_initialisers(stack.model())
    loader = stack.loader(dist.get_rank(), dist.get_world_size())
    job = assemble(stack, device)
    start = Trained.of(job.model, tables, losses=[])
    seen: list[Batch] = []

    def noted() -> Iterator[Batch]:
        for batch in loader:
            seen.append(batch)
            yield batch

    batches, losses, steps = noted(), [], stack.registry.train.steps
    for step in range(steps):
        if path.moves and step == steps // 2:
            world = dist.group.WORLD
            assert world is not None
            stack.retiering_planner().retier(seen[step - 2 : step], world)
        losses.append(job.pipeline.progress(batches)[0].item())
    everyones: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyones, losses)
    trained = Trained.of(
        job.model, tables, losses=torch.tensor(everyones).T.tolist(), start=start.tables
    )
    return trained, seen[:steps], dist.get_backend()


def _model(values: Mapping[str, Any]) -> nn.Module:
    return load(values).model()


def _plain(batch: Batch) -> Batch:
    """The same samples without what is known of them: a KJT of all, and no mark."""
    batch = dataclasses.replace(batch, hot_under=None)
    if batch.dedup is None:
        return batch
    whole = KeyedJaggedTensor.concat([batch.features, batch.dedup.to_kjt()])
    return dataclasses.replace(batch, features=whole, dedup=None)


def off_by(trained: Trained, reference: Reference) -> float:
    """How far the worst element is off, in bounds; `AssertionError` where a table did not move."""
    for name, before in trained.start.items():
        if torch.equal(before, trained.tables[name]):
            raise AssertionError(f"table {name!r} is where it started")
    ours, theirs = trained.tensors(), reference.trained.tensors()
    if ours.keys() != theirs.keys():
        raise AssertionError(f"only one side has {sorted(ours.keys() ^ theirs.keys())}")
    return max(
        _times(one, theirs[name], reference.bounds[name])
        for name, one in ours.items()
        if one.numel()
    )


def _times(ours: Tensor, theirs: Tensor, bound: Tensor) -> float:
    gap = (ours.double() - theirs.double()).abs()
    return (gap / bound).where(gap > 0, 0).nan_to_num(nan=torch.inf).max().item()


def _dedup(use: str = "exact") -> dict[str, Any]:
    return {"dedup": {"use": use, "groups": GROUPS}}


def _kernel(kernel: str) -> dict[str, Any]:
    constraint = {"sharding_types": ["row_wise"], "compute_kernels": [kernel]}
    return {"sharding": {"use": "torchrec", "constraints": {"*": constraint}}}


PATHS = {
    "plain": (TrainedPath(), "plain TorchRec on this device, by the same measure", ""),
    "ikjt": (TrainedPath(slots=_dedup()), "unique samples, padded", ""),
    "partial-ikjt": (TrainedPath(slots=_dedup("partial")), "partial IKJTs", ""),
    "vbe": (
        TrainedPath(slots=_dedup(), route="vbe"),
        "unique samples in TorchRec's variable-batch form",
        "fbgemm has no backward of it",
    ),
    "tiers": (
        TrainedPath(slots={"sharding": FLEXSHARD} | _dedup(), ranks=2, optimizer=ADAGRAD),
        "replicas of hot rows, two ranks on one device, with unique samples",
        "",
    ),
    "tiers-per-node": (
        TrainedPath(
            slots={"sharding": {**FLEXSHARD, "coalesce": "node"}}, ranks=4, ranks_per_node=2
        ),
        "both tiers, coalesced over nodes of two ranks",
        "",
    ),
    "tiers-pooled": (
        TrainedPath(slots={"sharding": FLEXSHARD}, model=POOLED, ranks=2),
        "pooled tables whose rows travel",
        "",
    ),
    "retiering": (
        TrainedPath(slots={"sharding": FLEXSHARD}, ranks=2, moves=True),
        "replicas that move to other rows between two steps",
        "",
    ),
    "hot-batches": (
        TrainedPath(slots={"cache": SCARS}, ranks=2, hot=True),
        "SCARS: batches of cached rows alone among others",
        "",
    ),
    "uvm": (
        TrainedPath(slots=_kernel("fused_uvm")),
        "tables in host memory",
        "fbgemm has no UVM",
    ),
    "uvm-caching": (
        TrainedPath(slots=_kernel("fused_uvm_caching"), optimizer=ADAGRAD),
        "tables in host memory behind a cache",
        "fbgemm has no UVM",
    ),
}

PARITY = tuple(
    Part(name=name, about=about, run=partial(path, name=name), needs_cuda=why, timed=False)
    for name, (path, about, why) in PATHS.items()
)
