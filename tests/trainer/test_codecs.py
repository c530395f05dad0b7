"""Rung 3 (two and four gloo ranks): floats that travel in fewer bits, as registry.yaml says.

Embeddings travel by TorchRec's codecs: a job is equal to the bit to one that is written by hand
with the same codecs. Dense gradients cross nodes as 16 bits: by their rounding of the largest
gradient, for each of two nodes and for their sum, dense parameters may differ.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from probe_plugin import probe_registry
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torchrec.distributed import DistributedModelParallel, TrainPipelineSparseDist
from torchrec.distributed.embedding import EmbeddingCollectionSharder
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.fbgemm_qcomm_codec import (
    CommType,
    QCommsConfig,
    get_qcomm_codecs_registry,
)
from torchrec.optim.keyed import KeyedOptimizerWrapper
from torchrec.optim.optimizers import in_backward_optimizer_filter

from recd_plugins.data.batch import Batch
from recd_plugins.dense_gradients.data_parallel import DenseGradients
from recd_plugins.dense_gradients.once_a_node import OnceANode
from recd_plugins.errors import RegistryError
from recd_plugins.notices import NoticeWarning
from recd_plugins.planning.cluster.topology import Link, Topology
from recd_plugins.planning.prices.codecs import carried, codecs_in_words
from recd_plugins.planning.sharders import default_sharders
from recd_plugins.registry.settings import CodecSettings, OptimizerSettings
from recd_plugins.stack import load
from recd_plugins.testing.batches import random_batches
from recd_plugins.testing.gloo import GlooPool
from recd_plugins.testing.probe import SCHEMA, Probe
from recd_plugins.testing.trained import Trained, dense_optimizer
from recd_plugins.trainer.assemble import assemble
from recd_plugins.trainer.initial_tables import initialise_tables, table_initialisers
from recd_plugins.trainer.measure.traffic import TrafficCounter

CPU = torch.device("cpu")
TABLES = ("item", "shop", "history")
SGD: dict[str, Any] = {"tables": "sgd", "tables_lr": 0.1, "dense": "sgd", "dense_lr": 0.1}
HALF: dict[str, Any] = {"forward": "fp16", "backward": "fp16", "backward_scale": 256.0}


def train(model: nn.Module, pipeline: Any, batches: list[list[Batch]]) -> Trained:
    mine = iter([step[dist.get_rank()] for step in batches])
    losses = [[float(pipeline.progress(mine)[0])] for _ in batches]
    return Trained.of(model, TABLES, losses=losses)


def by_registry(
    registry: dict[str, Any], batches: list[list[Batch]]
) -> tuple[Trained, dict[str, float], str]:
    """On a rank: a job of registry.yaml; the bytes of floats that it hands to all-to-alls, and what
    is explained of it."""
    stack = load(registry)
    job = assemble(stack, CPU)
    with TrafficCounter() as counter:
        found = train(job.model, job.pipeline, batches)
    handed = dict(counter.traffic["all_to_all"])
    del handed["ids"]
    return found, handed, stack.explain()


def by_hand(registry: dict[str, Any], batches: list[list[Batch]]) -> Trained:
    """On a rank: the same by TorchRec alone, where the registry's plan has its tables."""
    torch.manual_seed(0)
    model = Probe()
    initialisers = table_initialisers(model)
    settings = OptimizerSettings(**SGD)
    codecs = get_qcomm_codecs_registry(
        QCommsConfig(
            forward_precision=CommType.FP16,
            backward_precision=CommType.FP16,
            backward_loss_scale=256.0,
        ),
        device=CPU,
    )
    sharders: list[Any] = [
        kind(fused_params=settings.fused_params(), qcomm_codecs_registry=codecs)
        for kind in (EmbeddingBagCollectionSharder, EmbeddingCollectionSharder)
    ]
    plan = load(registry).plan(model, sharders=sharders)
    sharded = DistributedModelParallel(model, device=CPU, plan=plan, sharders=sharders)
    initialise_tables(sharded, initialisers, 0)
    parameters = dict(in_backward_optimizer_filter(sharded.named_parameters()))
    optimizer = KeyedOptimizerWrapper(parameters, lambda each: dense_optimizer(each, settings))
    return train(sharded, TrainPipelineSparseDist(sharded, optimizer, CPU), batches)


def test_a_job_is_torchrecs_own_with_the_same_codecs(tmp_path: Path, gloo_pool: GlooPool) -> None:
    registry = probe_registry(tmp_path, optimizer=SGD, seed=0)
    half = {**registry, "train": {**registry["train"], "codecs": HALF}}
    batches = random_batches(SCHEMA, steps=3, world_size=2)
    coded = gloo_pool.run(by_registry, half, batches)
    plain = gloo_pool.run(by_registry, registry, batches)
    theirs = gloo_pool.run(by_hand, half, batches)
    for (ours, handed, says), (exact, whole, _), other in zip(coded, plain, theirs, strict=True):
        for name, tensor in ours.tensors().items():
            assert torch.equal(tensor, other.tensors()[name]), name
            # 3 steps, each of which rounds rows and gradients to 11 bits.
            assert (tensor - exact.tensors()[name]).abs().max() < 3 * 2 * 2**-11
        assert any(not torch.equal(ours.tables[name], exact.tables[name]) for name in TABLES)
        assert handed == {phase: size / 2 for phase, size in whole.items()}
        assert "codecs: rows and sums travel as float16, their gradients as float16" in says


class Sums(nn.Module):
    """Parameters whose gradients differ by rank, of sizes that no number of ranks divides."""

    def __init__(self) -> None:
        super().__init__()
        draw = torch.Generator().manual_seed(0)
        self.each = nn.ParameterList(torch.rand(size, generator=draw) for size in (1, 513, 30))

    def forward(self, scale: float) -> Tensor:
        return torch.stack([scale * (one**3).sum() for one in self.each]).sum()


def stepped(kind: torch.dtype | None) -> Tensor:
    """On a rank: the parameters after a step on gradients that cross nodes as this kind."""
    ddp = DistributedDataParallel(Sums(), bucket_cap_mb=1e-3)
    ddp.register_comm_hook(None, OnceANode(dist.group.WORLD, 2, kind).hook)
    ddp(1 + dist.get_rank() / 3).backward()
    torch.optim.SGD(ddp.parameters(), lr=1.0).step()
    return torch.cat([one.detach().flatten() for one in ddp.parameters()])


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
def test_gradients_cross_nodes_in_16_bits(kind: torch.dtype, gloo_pool: GlooPool) -> None:
    exact, *_ = gloo_pool.run(stepped, None, world_size=4)
    found = gloo_pool.run(stepped, kind, world_size=4)
    for other in found[1:]:
        assert torch.equal(other, found[0])  # all ranks step alike
    off = (found[0] - exact).abs().max()
    largest = 3 * 1.5  # the gradient's: 3 x^2 times the mean of the scales
    assert 0 < off <= 3 * torch.finfo(kind).eps / 2 * largest


def wrapped(options: dict[str, Any]) -> tuple[str, float]:
    """On a rank: what is said of a layer's gradients, and what of them collectives are handed."""
    links = {"ar_global": Link(gbps=0.01), "a2a_intra": Link(gbps=1.0)}
    topology = Topology(ranks_per_node=2, **links, ar_cross=Link(gbps=0.01))
    wrapper = DenseGradients(4 * 9, topology, **options)
    dmp = DistributedModelParallel(
        nn.Linear(8, 1),
        plan=load({}).plan(nn.Linear(1, 1)),
        sharders=[],
        data_parallel_wrapper=wrapper,
    )
    for _ in range(2):  # in the first step ranks agree on its parts, too
        with TrafficCounter() as counter:
            dmp(torch.ones(1, 8)).sum().backward()
    handed = sum(counter.traffic["all_reduce"].values())
    assert wrapper.handed == handed
    return wrapper.explained, handed


def test_it_says_how_they_travel_and_counts_them(gloo_pool: GlooPool) -> None:
    said, handed = gloo_pool.run(wrapped, {"allreduce_comm_precision": "bf16"}, world_size=4)[0]
    assert said == (
        "they cross nodes once in bfloat16: 18 B leave each node in a step, where gloo's ring over "
        "all ranks has 27 B"
    )
    assert handed == 36
    # On two ranks, which are one node, TorchRec's own hook has them.
    said, handed = gloo_pool.run(wrapped, {"allreduce_comm_precision": "bf16"}, world_size=2)[0]
    assert "over all ranks in bfloat16: they are all on one node" in said
    assert handed == 18
    ((said, handed),) = gloo_pool.run(wrapped, {"allreduce_comm_precision": "bf16"}, world_size=1)
    assert (said, handed) == ("", 36)  # nothing travels, and what DDP is handed stays as it is


def disagreeing() -> str:
    """On a rank: the answer to a trainer whose sharders have no codecs where registry.yaml has."""
    stack = load({"train": {"device": "cpu", "codecs": HALF}})
    with pytest.raises(RegistryError) as raised:
        stack.plan(Probe(), sharders=default_sharders())
    return str(raised.value)


def test_registry_and_sharders_say_the_same(gloo_pool: GlooPool) -> None:
    (said,) = gloo_pool.run(disagreeing, world_size=1)
    assert "train.codecs" in said
    assert "rows, sums and gradients travel as float32" in said
    assert "take `forward` and `backward` out" in said


def without_our_wrapper() -> list[str]:
    """On a rank: what a trainer is told that reduces dense gradients by itself."""
    import warnings

    stack, model = load({"train": {"device": "cpu", "codecs": {"dense": "bf16"}}}), Probe()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", NoticeWarning)
        sharded = DistributedModelParallel(
            model, device=CPU, plan=stack.plan(model), sharders=stack.sharders()
        )
        (batch,) = random_batches(SCHEMA, steps=1, world_size=1)[0]
        sharded(batch)[0].backward()
    return [str(one.message) for one in caught if issubclass(one.category, NoticeWarning)]


def test_dense_codecs_that_nobody_uses_are_told_of(gloo_pool: GlooPool) -> None:
    (said,) = gloo_pool.run(without_our_wrapper, world_size=1)
    assert any("train: codecs.dense" in one and "stack.data_parallel()" in one for one in said)


@pytest.mark.parametrize(
    ("codecs", "share"),
    [({}, 1.0), ({"forward": "fp16"}, 0.75), ({"forward": "bf16", "backward": "bf16"}, 0.5)],
)
def test_settings_and_sharders_say_what_is_carried(codecs: dict[str, Any], share: float) -> None:
    settings = CodecSettings(**codecs)
    sharders = default_sharders(codecs=settings.of_tables("cpu"))
    assert settings.carried == carried(Probe(), sharders) == share
    words = codecs_in_words(Probe(), sharders)
    assert ("float16" in words) == bool(codecs)


def test_a_scale_of_gradients_that_nobody_codes_is_refused() -> None:
    with pytest.raises(RegistryError, match=r"train\.codecs\.backward_scale.*backward is fp32"):
        load({"train": {"codecs": {"forward": "fp16", "backward_scale": 1024}}})


def test_the_sharder_that_has_most_carried_counts() -> None:
    codecs = CodecSettings(**HALF).of_tables("cpu")
    mixed: list[Any] = [
        EmbeddingBagCollectionSharder(qcomm_codecs_registry=codecs),
        EmbeddingCollectionSharder(),
    ]
    assert carried(Probe(), mixed) == 1.0
    assert carried(nn.Linear(1, 1), mixed) == 1.0
