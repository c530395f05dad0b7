"""Rung 1 and 3 (values, two gloo ranks): what `adapt` makes of a model, and what it leaves."""

from __future__ import annotations

import copy
import logging
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from mixed import GROUPS, SHARES, Mixed, Sharded, batch_of, deduplicated
from torch import Tensor, nn
from torchrec.distributed import DistributedModelParallel, TrainPipelineSparseDist
from torchrec.distributed.types import ShardedModule
from torchrec.modules.embedding_configs import EmbeddingBagConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection
from torchrec.modules.feature_processor_ import PositionWeightedModuleCollection
from torchrec.modules.fp_embedding_modules import FeatureProcessedEmbeddingBagCollection

from recd_plugins.embedding.adapt import adapt, explain
from recd_plugins.embedding.dedup import DedupEmbeddingBagCollection, DedupEmbeddingCollection
from recd_plugins.embedding.pooling import DedupPooling
from recd_plugins.embedding.sharded import evened
from recd_plugins.errors import CapabilityError, RegistryError
from recd_plugins.registry.settings import OptimizerSettings
from recd_plugins.testing.gloo import GlooPool
from recd_plugins.testing.parity import assert_alike
from recd_plugins.testing.reference import unsharded
from recd_plugins.testing.rounding import plain_of

SGD = OptimizerSettings(tables="sgd", tables_lr=0.1, dense="sgd", dense_lr=0.1)
CPU = torch.device("cpu")


def names(model: nn.Module) -> list[str]:
    return [name for name, _ in model.named_parameters()]


def test_a_model_stays_itself() -> None:
    model, plain = Mixed(), Mixed()
    bags, parameters = model.bags, list(model.parameters())
    assert adapt(model, GROUPS) is model
    assert isinstance(model, Mixed)
    assert type(model).__name__ == "Mixed"
    assert model.bags is bags
    assert isinstance(bags, EmbeddingBagCollection)
    assert isinstance(model.sequences, EmbeddingCollection)
    assert all(a is b for a, b in zip(model.parameters(), parameters, strict=True))
    assert names(model) == names(plain)
    assert list(model.state_dict()) == list(plain.state_dict())
    assert [name for name, _ in model.named_modules()] == [n for n, _ in plain.named_modules()]


def test_collections_poolings_and_root() -> None:
    model = adapt(Mixed(), GROUPS, unique_shares=SHARES)
    assert type(model.bags) is DedupEmbeddingBagCollection
    assert type(model.sequences) is DedupEmbeddingCollection
    assert isinstance(model.summed, DedupPooling)
    assert explain(model).splitlines() == [
        "adapted to unique samples:",
        "  bags, t_region: unique samples, up to 90% of the batch",
        "  bags, t_profile, t_again: unique samples, up to 20% of the batch",
        "  bags, t_shop, t_seller: all samples; visited share tables with features that are not "
        "deduplicated",
        "  sequences, t_item, t_page, t_word, t_event: 3 of 5 features on unique samples",
        "  summed: Summed runs on unique samples",
    ]


def test_poolings_may_be_left_as_they_are() -> None:
    model = adapt(Mixed(), GROUPS, pool_unique=False)
    assert not isinstance(model.summed, DedupPooling)


def test_what_was_adapted_is_adapted_anew() -> None:
    model = adapt(adapt(Mixed(), GROUPS), (("region",),))
    kind = type(model)
    assert [part.tables for part in model.bags.parts] == [
        ("t_region",),
        ("t_profile", "t_again", "t_shop", "t_seller"),
    ]
    assert type(adapt(model, GROUPS)) is kind


def test_a_copy_is_adapted_too() -> None:
    model = copy.deepcopy(adapt(Mixed(), GROUPS))
    assert type(model.bags) is DedupEmbeddingBagCollection
    assert model.bags.parts


class Mean(nn.Module):
    """Pools under names of its own."""

    def forward(self, embeddings: Tensor, counts: Tensor) -> Tensor:
        return torch.segment_reduce(embeddings, "mean", lengths=counts)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.pool = nn.ModuleList([Mean(), Mean()])

    def forward(self, dense: Tensor, features: Any) -> Tensor:
        return dense


def test_other_poolings_are_named() -> None:
    net = adapt(Net(), GROUPS, poolings=["pool.1"])
    assert [isinstance(pool, DedupPooling) for pool in net.pool] == [False, True]
    with pytest.raises(RegistryError, match=r"no module of the model matches 'pools.\*'"):
        adapt(Net(), GROUPS, poolings=["pools.*"])


class Projected(nn.Module):
    """A pooling whose parts a glob of it fits, too."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.inner = nn.Linear(4, 4), Mean()

    def forward(self, values: Tensor, lengths: Tensor) -> Tensor:
        return self.inner(self.layer(values), lengths)


def test_a_glob_names_poolings_and_not_what_is_in_them() -> None:
    for glob in ("pool.*", "pool*", "*"):
        net = Net()
        net.pool = nn.ModuleList([Projected(), Projected()])
        adapted = list(adapt(net, GROUPS, poolings=[glob]).modules())
        assert [one for one in adapted if isinstance(one, DedupPooling)] == [*net.pool]
    for pattern in ("pool", "pool.*.layer"):
        with pytest.raises(RegistryError, match="names no pooling: it matches"):
            adapt(net, GROUPS, poolings=[pattern])


def test_a_forward_of_several_arguments_is_left() -> None:
    assert type(adapt(Net(), GROUPS)) is Net


class Scaled(Mixed):
    """Takes more than a batch, if it is given more."""

    def forward(self, batch: Any, scale: float = 1.0, *, shift: float = 0.0) -> Any:
        loss, _ = super().forward(batch)
        return scale * loss + shift


def test_a_forward_may_take_more_than_a_batch() -> None:
    model = adapt(Scaled(), GROUPS)
    unsharded(model, seed=0)
    batch = deduplicated(batch_of(4, 2, seed=0))
    assert model(batch, 2.0, shift=1.0) == 2 * model(batch) + 1


def test_other_collections_are_refused() -> None:
    bags = EmbeddingBagCollection(
        tables=[
            EmbeddingBagConfig(
                name="t", num_embeddings=4, embedding_dim=4, feature_names=["region"]
            )
        ],
        is_weighted=True,
    )
    positions = PositionWeightedModuleCollection({"region": 3})
    model = nn.ModuleDict({"bags": FeatureProcessedEmbeddingBagCollection(bags, positions)})
    with pytest.raises(CapabilityError, match="'bags' is a FeatureProcessedEmbeddingBagCollection"):
        adapt(model, GROUPS)


class Whole(nn.Module):
    """Hands the batch on whole, to a module that tracing enters and to one that it does not."""

    class Looks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Mixed()

        def forward(self, batch: Any) -> Any:
            return self.inner(batch)

    class Weighs(nn.Module):
        def forward(self, loss: Tensor, batch: Any) -> Tensor:
            return loss * len(batch) / batch.labels.numel()

    def __init__(self) -> None:
        super().__init__()
        self.looks, self.weighs = self.Looks(), self.Weighs()

    def forward(self, batch: Any) -> Any:
        loss, rest = self.looks(batch)
        return self.weighs(loss, batch), rest


def pipelined(kind: type[nn.Module]) -> tuple[int, list[str], list[float]]:
    """Train three steps; sharded modules that run ahead, warnings, losses."""
    warnings: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: warnings.append(record.getMessage())
    logging.getLogger("torchrec").addHandler(handler)
    torch.manual_seed(0)
    arranged = Sharded("row_wise")(kind(), SGD)
    if kind is Whole:
        adapt(arranged.model, GROUPS)
    model = DistributedModelParallel(
        arranged.model, device=CPU, plan=arranged.plan, sharders=arranged.sharders
    )
    pipeline = TrainPipelineSparseDist(
        model, torch.optim.SGD(arranged.model.parameters(), lr=0.1), CPU
    )
    rank = dist.get_rank()
    batches = iter([deduplicated(batch_of(5 + rank, 3, seed=step)) for step in range(3)])
    losses = [pipeline.progress(batches)[0].item() for _ in range(3)]
    sharded = sum(isinstance(module, ShardedModule) for module in model.modules())
    logging.getLogger("torchrec").removeHandler(handler)
    assert len(pipeline._pipelined_modules) == sharded
    return sharded, [text for text in warnings if "NOT be pipelined" in text], losses


@pytest.mark.parametrize("kind", [Mixed, Whole])
def test_every_exchange_runs_ahead(gloo_pool: GlooPool, kind: type[nn.Module]) -> None:
    """Also where the batch goes whole from module to module."""
    sharded, warnings, _ = gloo_pool.run(pipelined, kind)[0]
    assert (sharded, warnings) == (2, [])


def twice_then_backward(
    adapted: bool, rounding: AbstractContextManager[object]
) -> dict[str, Tensor]:
    """Without a pipeline: two forwards, one backward; then once without gradients."""
    torch.manual_seed(0)
    arranged = Sharded("row_wise", adapted=adapted)(Mixed(), SGD)
    model = DistributedModelParallel(
        arranged.model, device=CPU, plan=arranged.plan, sharders=arranged.sharders
    )
    with torch.no_grad():
        for index, value in enumerate(model.parameters()):
            value.copy_(torch.linspace(-1, 1, value.numel()).view(value.shape).roll(index))
    batches = [batch_of(6, 2 + dist.get_rank(), seed=seed) for seed in (1, 2, 3)]
    first, second, third = [deduplicated(b) if adapted else b for b in batches]
    with rounding:
        losses = [model(first)[0], model(second)[0]]
        sum(losses).backward()
        model.eval()
        with torch.no_grad():
            losses.append(model(third)[0])
    left = {name: value.detach().clone() for name, value in model.named_parameters()}
    return left | {"losses": torch.stack(losses).detach()}


def adapted_and_not() -> None:
    """On a rank: alike."""
    ours = twice_then_backward(True, nullcontext())
    assert_alike(ours, *plain_of(partial(twice_then_backward, False)))


def test_two_forwards_before_a_backward(gloo_pool: GlooPool) -> None:
    gloo_pool.run(adapted_and_not)


def in_stages() -> tuple[dict[str, Tensor], dict[str, Tensor], list[bool]]:
    """What bags yield at once, and lookup and exchange apart; modes of all parts in evaluation."""
    torch.manual_seed(0)
    arranged = Sharded("row_wise")(Mixed(), SGD)
    model = DistributedModelParallel(
        arranged.model, device=CPU, plan=arranged.plan, sharders=arranged.sharders
    )
    bags = model.module.bags
    features = deduplicated(batch_of(4 + dist.get_rank(), 3, seed=dist.get_rank())).sparse
    context = bags.create_context()
    received = bags.input_dist(context, features).wait().wait()
    bags.prefetch(received, ctx=context)
    staged = bags.output_dist(context, bags.compute(context, received)).wait()
    model.eval()
    modes = [lookup.training for part in bags.parts for lookup in part._lookups]
    return (
        {name: tensor + 0 for name, tensor in bags(features).to_dict().items()},
        {name: tensor + 0 for name, tensor in staged.to_dict().items()},
        modes,
    )


def test_lookup_and_exchange_in_stages(gloo_pool: GlooPool) -> None:
    for whole, staged, modes in gloo_pool.run(in_stages):
        torch.testing.assert_close(staged, whole, rtol=0, atol=0)
        assert modes == [False] * 3


class Exchange:
    """What TorchRec keeps of an exchange."""

    def __init__(self, *strides: int) -> None:
        self.batch_size_per_rank = list(strides)


class Context:
    """What TorchRec keeps of a batch."""

    def __init__(self, *exchanges: Exchange) -> None:
        self.sharding_contexts = list(exchanges)
        self.divisor = torch.full((2, 4), 3.0)


def test_rows_of_ranks_are_evened() -> None:
    from torchrec.distributed.embedding_types import KJTList
    from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

    # Rank 0 sent 2 rows of each key, rank 1 sent 3.
    kjt = KeyedJaggedTensor(
        keys=["a", "b"],
        values=torch.arange(12),
        lengths=torch.tensor([1, 2, 0, 1, 1, 2, 0, 3, 1, 1]),
        stride=5,
    )
    context = Context(Exchange(2, 3))
    (even,) = evened(KJTList([kjt]), context, ["row_wise"])
    assert even.lengths().tolist() == [1, 2, 0, 0, 1, 1, 2, 0, 0, 3, 1, 1]
    assert even.values() is kjt.values()
    assert (even.stride(), context.sharding_contexts[0].batch_size_per_rank) == (6, [3, 3])
    assert context.divisor.tolist() == [[3.0] * 4] * 2 + [[1.0] * 4]
    for untouched, kind in ((Exchange(2, 3), "table_wise"), (Exchange(3, 3), "row_wise")):
        assert evened(KJTList([kjt]), Context(untouched), [kind]).features == [kjt]
