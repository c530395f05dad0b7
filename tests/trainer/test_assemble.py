"""Ladder: one gloo rank, then two, against the kit's plain reference."""

from __future__ import annotations

import warnings
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from probe_plugin import probe_registry
from torch import nn
from torchrec.distributed import DistributedModelParallel, TrainPipelineSparseDist
from torchrec.distributed.types import ShardingPlan
from torchrec.optim.keyed import KeyedOptimizerWrapper

from recd_plugins.compat.pytorch import TorchDispatchMode, first_step_in_parts
from recd_plugins.data.batch import Batch
from recd_plugins.errors import CapabilityError, RecdError, RegistryError
from recd_plugins.notices import NoticeWarning
from recd_plugins.registry.settings import OptimizerSettings
from recd_plugins.stack import load
from recd_plugins.testing.batches import random_batches
from recd_plugins.testing.gloo import GlooPool
from recd_plugins.testing.parity import TABLE_OPTIMIZERS, assert_parity, reference_of
from recd_plugins.testing.probe import SCHEMA, Probe
from recd_plugins.testing.trained import Trained
from recd_plugins.trainer.assemble import assemble, with_sync_batch_norm
from recd_plugins.trainer.dense_optimizer import dense_optimizer

TABLES = ("item", "shop", "history")
CPU = torch.device("cpu")


def train_assembled(registry: dict[str, Any], batches: list[list[Batch]]) -> Trained:
    """On a rank: what the assembled job makes of this rank's batches."""
    job = assemble(load(registry), CPU)
    start = Trained.of(job.model, TABLES, losses=[])
    mine = iter([step[dist.get_rank()] for step in batches])
    losses = torch.tensor([float(job.pipeline.progress(mine)[0]) for _ in batches])
    everyones = [torch.empty_like(losses) for _ in range(dist.get_world_size())]
    dist.all_gather(everyones, losses)
    return Trained.of(
        job.model, TABLES, losses=torch.stack(everyones, dim=1).tolist(), start=start.tables
    )


class AllReduces(TorchDispatchMode):
    """Has the sizes of all-reduces, DDP's among them, while it is entered."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if "allreduce" in str(func):
            self.sizes += [tensor.numel() for tensor in args[0]]
        return func(*args, **(kwargs or {}))


def train_in_parts(
    registry: dict[str, Any], batches: list[list[Batch]]
) -> tuple[Trained, list[list[int]]]:
    """On a rank: what comes of dense gradients of which each parameter's travel by themselves; and
    the sizes of the all-reduces of each step."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("recd_plugins.dense_gradients.data_parallel.LEAST_PART", 1)
        patch.setattr("recd_plugins.dense_gradients.data_parallel.PARTS", 1000)
        trained = train_assembled(registry, batches)
        job = assemble(load(registry), CPU)
    mine = iter([step[dist.get_rank()] for step in batches])
    sizes = []
    for _ in batches:
        with AllReduces() as counted:
            job.pipeline.progress(mine)
        sizes.append(sorted(counted.sizes))
    return trained, sizes


def optimizer(**options: Any) -> dict[str, Any]:
    # An eps well above the noise of float32 sums, which Adagrad would turn into steps.
    return {"tables_lr": 0.1, "tables_eps": 1e-4, "dense": "sgd", "dense_lr": 0.1, **options}


@pytest.mark.parametrize("world_size", [1, 2])
@pytest.mark.parametrize("tables", TABLE_OPTIMIZERS)
def test_the_tables_optimizer_reaches_fbgemm(
    tables: str, world_size: int, tmp_path: Path, gloo_pool: GlooPool
) -> None:
    options = optimizer(tables=tables)
    registry = probe_registry(tmp_path, optimizer=options, seed=3)
    batches = random_batches(SCHEMA, steps=3, world_size=world_size)
    (ours, *_) = gloo_pool.run(train_assembled, registry, batches, world_size=world_size)
    settings = OptimizerSettings(**options)
    assert_parity(ours, *reference_of(Probe, batches, optimizer=settings, seed=3))


def notices_of(registry: dict[str, Any]) -> list[str]:
    """On a rank: of the job that is assembled."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", NoticeWarning)
        assemble(load(registry), CPU)
    return [str(one.message) for one in caught if one.category is NoticeWarning]


def test_an_optimizer_of_tables_that_are_all_data_parallel_is_named(
    tmp_path: Path, gloo_pool: GlooPool
) -> None:
    """The dense optimizer steps them."""
    constraints = {"t_cat_0": {"sharding_types": ["data_parallel"]}}
    registry: dict[str, Any] = {
        "plugins": ["recd_dlrm"],
        "folder": str(tmp_path),
        "dataset": {"use": "random", "samples": 64, "test_samples": 8, "num_ids": [30, 40]},
        "model": {"use": "dlrm", "embedding_dim": 4, "bottom": [4], "top": [4]},
        "sharding": {"use": "torchrec", "search": "greedy", "constraints": constraints},
        "train": {"batch_size": 8, "optimizer": {"tables": "adagrad", "dense_lr": 0.1}},
    }
    (some,) = gloo_pool.run(notices_of, registry, world_size=1)
    assert not some
    constraints["t_cat_1"] = constraints["t_cat_0"]
    ((every,),) = gloo_pool.run(notices_of, registry, world_size=1)
    assert every.startswith("train: optimizer.tables is not used: the plan has every table data-")
    del registry["train"]["optimizer"]["tables"]
    (default,) = gloo_pool.run(notices_of, registry, world_size=1)
    assert not default


def test_dense_gradients_travel_in_parts(tmp_path: Path, gloo_pool: GlooPool) -> None:
    options = optimizer(tables="sgd")
    registry = probe_registry(tmp_path, optimizer=options, seed=3)
    batches = random_batches(SCHEMA, steps=3, world_size=2)
    settings = OptimizerSettings(**options)
    expected = reference_of(Probe, batches, optimizer=settings, seed=3)
    for ours, sizes in gloo_pool.run(train_in_parts, registry, batches):
        assert_parity(ours, *expected)
        # A bias and a weight; in the first step ranks agree on the parts, too.
        assert sizes[1:] == ([[1, 34]] * 2 if first_step_in_parts(1.0) else [[35], [1, 34]])


def test_parity_would_tell_another_rate_or_seed(tmp_path: Path, gloo_pool: GlooPool) -> None:
    batches = random_batches(SCHEMA, steps=3, world_size=1)
    registry = probe_registry(tmp_path, optimizer=optimizer(tables="sgd"), seed=3)
    (ours,) = gloo_pool.run(train_assembled, registry, batches, world_size=1)
    for changed in ({"tables_lr": 0.101}, {"dense_lr": 0.101}, {"tables": "adagrad"}):
        settings = OptimizerSettings(**optimizer(**{"tables": "sgd", **changed}))
        with pytest.raises(AssertionError):
            assert_parity(ours, *reference_of(Probe, batches, optimizer=settings, seed=3))
    settings = OptimizerSettings(**optimizer(tables="sgd"))
    with pytest.raises(AssertionError):
        assert_parity(ours, *reference_of(Probe, batches, optimizer=settings, seed=4))


@pytest.mark.parametrize(
    ("dense", "options"),
    [
        ("adam", {}),
        ("AdamW", {"weight_decay": 0.5}),
        ("sgd", {"momentum": 0.9}),
        ("adagrad", {"initial_accumulator_value": 0.1}),
        ("rmsprop", {"alpha": 0.5}),
    ],
)
def test_any_of_torchs_optimizers_trains_the_dense_parameters(
    dense: str, options: dict[str, float], tmp_path: Path, gloo_pool: GlooPool
) -> None:
    values = optimizer(tables="sgd", dense=dense, dense_options=options)
    batches = random_batches(SCHEMA, steps=3, world_size=1)
    registry = probe_registry(tmp_path, optimizer=values)
    (ours,) = gloo_pool.run(train_assembled, registry, batches, world_size=1)
    assert_parity(ours, *reference_of(Probe, batches, optimizer=OptimizerSettings(**values)))
    without = OptimizerSettings(**{**values, "dense_options": {}})
    if options:
        with pytest.raises(AssertionError):
            assert_parity(ours, *reference_of(Probe, batches, optimizer=without))


@pytest.mark.parametrize(
    ("options", "fused"), [({}, True), ({"foreach": True}, None), ({"fused": False}, False)]
)
def test_adam_steps_all_parameters_by_one_call(
    options: dict[str, bool], fused: bool | None, tmp_path: Path
) -> None:
    registry = probe_registry(tmp_path, optimizer={"dense_options": options, "dense_lr": 0.1})
    found = []
    for make in (partial(dense_optimizer, load(registry)), partial(torch.optim.Adam, lr=0.1)):
        weights = nn.Parameter(torch.linspace(-1, 1, 7))
        made = make([weights])
        for _ in range(5):
            weights.grad = weights.detach() + 0.3
            made.step()
        found.append((made.defaults["fused"], weights.detach()))
    (ours, stepped), (theirs, expected) = found
    assert (ours, theirs) == (fused, None)
    torch.testing.assert_close(stepped, expected, rtol=0, atol=1e-6)


def assembled(registry: dict[str, Any]) -> list[str] | str:
    """On a rank: what a job is made of, or why there is none."""
    try:
        job = assemble(load(registry), CPU)
    except RecdError as error:
        return f"{type(error).__name__}: {error}"
    assert isinstance(job.model, DistributedModelParallel)
    assert isinstance(job.pipeline, TrainPipelineSparseDist)
    assert isinstance(job.plan, ShardingPlan)
    fused, dense = (part for _, part in job.optimizer.optimizers)
    assert isinstance(dense, KeyedOptimizerWrapper)
    assert sorted(dense.params) == ["over.bias", "over.weight"]
    return sorted(fused.params)


def test_every_parameter_has_one_optimizer(tmp_path: Path, gloo_pool: GlooPool) -> None:
    (fused,) = gloo_pool.run(assembled, probe_registry(tmp_path), world_size=1)
    assert fused == [
        "bags.embedding_bags.item.weight",
        "bags.embedding_bags.shop.weight",
        "sequences.embeddings.history.weight",
    ]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"dense": "adamm"}, "train.optimizer.dense: torch.optim has no 'adamm' that takes dense"),
        ({"dense": "adamm"}, "did you mean 'adam'?"),
        ({"dense": "lbfgs"}, "has no 'lbfgs' that takes dense gradients step by step"),
        ({"dense": "sparseadam"}, "has no 'sparseadam'"),
        ({"dense": "optimizer"}, "has no 'optimizer'"),
        ({"dense_options": {"betas": [2, 3]}}, "Invalid beta parameter at index 0: 2. Change dens"),
        ({"dense_options": {"weight": 1}}, "unexpected keyword argument 'weight'. Change dense_op"),
        ({"dense_options": {"capturable": True}}, "If capturable=True, params"),
        ({"dense_options": {"eps": "x"}}, "Change dense_options, or choose another"),
        ({"dense_options": {"betas": 3}}, "Change dense_options, or choose another"),
        ({"dense_options": {"lr": 1}}, "multiple values for keyword argument 'lr'"),
        (
            {"dense": "muon"},
            "torch.optim's muon refuses the dense parameters with lr=0.001",
        ),
    ],
)
def test_a_dense_optimizer_that_cannot_be_is_reported(
    options: dict[str, Any], says: str, tmp_path: Path, gloo_pool: GlooPool
) -> None:
    (found,) = gloo_pool.run(assembled, probe_registry(tmp_path, optimizer=options), world_size=1)
    assert isinstance(found, str)
    assert found.startswith("RegistryError: train.optimizer")
    assert says in found


def drawn(registry: dict[str, Any]) -> list[float]:
    """On a rank: what dropout and the like would draw after assembling."""
    assemble(load(registry), CPU)
    return torch.rand(2).tolist()


def test_ranks_start_alike_and_draw_differently(tmp_path: Path, gloo_pool: GlooPool) -> None:
    registry = probe_registry(tmp_path, seed=3)
    one, other = gloo_pool.run(drawn, registry)
    assert one != other
    assert gloo_pool.run(drawn, registry) == [one, other]
    registry["train"]["seed"] = 5
    assert gloo_pool.run(drawn, registry)[0] not in (one, other)


class Normalised(nn.Module):
    """A batch normalisation and no table."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)


def test_batch_normalisation_over_all_ranks_needs_cuda() -> None:
    says = r"train\.sync_batch_norm: torch's SyncBatchNorm runs on CUDA alone, and this job"
    with pytest.raises(CapabilityError, match=says):
        with_sync_batch_norm(Normalised(), CPU)
    with pytest.raises(RegistryError, match=r"train\.sync_batch_norm: the model has no BatchNorm"):
        with_sync_batch_norm(nn.Linear(1, 1), CPU)
    converted = with_sync_batch_norm(Normalised(), torch.device("cuda"))
    assert isinstance(converted.norm, nn.SyncBatchNorm)
    assert converted.state_dict().keys() == Normalised().state_dict().keys()


def test_the_setting_reaches_the_model(tmp_path: Path, gloo_pool: GlooPool) -> None:
    (found,) = gloo_pool.run(
        assembled, probe_registry(tmp_path, sync_batch_norm=True), world_size=1
    )
    assert isinstance(found, str)
    assert found.startswith("RegistryError: train.sync_batch_norm: the model has no BatchNorm")
