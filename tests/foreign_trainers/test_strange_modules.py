"""Rung 3 (two gloo ranks): modules of TorchRec and habits of models that none here has train, by
registries of replicas, coalescing and unique samples, what they train plainly; or it is told."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import pytest
import torch
import torch.distributed as dist
from foreign import CPU, RowWiseBags, Summed
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torchrec.distributed import DistributedModelParallel
from torchrec.distributed.embedding import EmbeddingCollectionSharder
from torchrec.distributed.model_parallel import DefaultDataParallelWrapper
from torchrec.modules.embedding_configs import EmbeddingBagConfig, EmbeddingConfig, PoolingType
from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection
from torchrec.modules.embedding_tower import EmbeddingTower, EmbeddingTowerCollection
from torchrec.modules.feature_processor_ import PositionWeightedModuleCollection
from torchrec.modules.regroup import KTRegroupAsDict
from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward
from torchrec.optim.optimizers import in_backward_optimizer_filter
from torchrec.optim.rowwise_adagrad import RowWiseAdagrad
from torchrec.sparse.jagged_tensor import JaggedTensor, KeyedJaggedTensor

import recd_plugins as rp
from recd_plugins.notices import NoticeWarning
from recd_plugins.registry.settings import OptimizerSettings
from recd_plugins.testing.arrange import BySharding
from recd_plugins.testing.gloo import GlooPool
from recd_plugins.testing.parity import assert_alike
from recd_plugins.testing.rounding import plain_of
from recd_plugins.testing.trained import gather_table
from recd_plugins.trainer.initial_tables import initialise_tables, table_initialisers

ROWS = {"user": 37, "item": 23, "shop": 41, "tags": 29}
GROUPS = [["user", "item"]]
SIZE, STEPS, DIM = 6, 3, 8


@dataclass
class Step:
    """A batch, and the number of its step."""

    sparse: Any
    number: int
    labels: Tensor


def drawn(number: int) -> Step:
    """This rank's batch of a step; two of three samples are alike in user and item."""
    draw = torch.Generator().manual_seed(2 * number + dist.get_rank())
    rows: list[Tensor] = []
    for key, num_rows in ROWS.items():
        unique = key in GROUPS[0]
        lengths = torch.randint(0, 4, (2 if unique else SIZE,), generator=draw).tolist()
        own = [torch.randint(0, num_rows, (length,), generator=draw) for length in lengths]
        rows += [own[n % 2] for n in range(SIZE)] if unique else own
    sparse = KeyedJaggedTensor(
        keys=[*ROWS], values=torch.cat(rows), lengths=torch.tensor([len(row) for row in rows])
    )
    return Step(sparse, number, torch.rand(SIZE, generator=draw))


def bags(*tables: Mapping[str, Any], **options: Any) -> EmbeddingBagCollection:
    configs = [EmbeddingBagConfig(**table) for table in tables]
    return EmbeddingBagCollection(configs, device=torch.device("meta"), **options)


def rows_of(*tables: Mapping[str, Any]) -> EmbeddingCollection:
    return EmbeddingCollection(
        [EmbeddingConfig(**table) for table in tables], device=torch.device("meta")
    )


def table(name: str, *features: str, dim: int = DIM, **options: Any) -> dict[str, Any]:
    """By default, of the feature that it is named after."""
    names = list(features) or [name]
    return {
        "name": name,
        "embedding_dim": dim,
        "num_embeddings": ROWS[names[0]],
        "feature_names": names,
        **options,
    }


class Head(nn.Module):
    """No tracer looks inside."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(width, 4), nn.Tanh(), nn.Linear(4, 1))

    def forward(self, columns: list[Tensor], labels: Tensor) -> Tensor:
        logits = self.layers(torch.cat(columns, 1)).squeeze(1)
        return nn.functional.binary_cross_entropy_with_logits(logits, labels)


class Regrouped(nn.Module):
    """Bags of two collections, put in order by TorchRec's module, which keeps the first batch's."""

    def __init__(self) -> None:
        super().__init__()
        self.one = bags(table("user"), table("shop", dim=16))
        self.other = bags(table("item", dim=4), table("tags", pooling=PoolingType.MEAN))
        self.regroup = KTRegroupAsDict([["user", "item"], ["shop", "tags"]], ["left", "right"])
        self.head = Head(12 + 24)

    def forward(self, step: Step) -> Tensor:
        found = self.regroup([self.one(step.sparse), self.other(step.sparse)])
        return self.head([found["left"], found["right"]], step.labels)


class OfBags(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(DIM, 3)

    def forward(self, bags: Any) -> Tensor:
        return self.layer(bags["shop"])


class OfRows(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.summed = nn.Linear(DIM, 3), Summed()

    def forward(self, rows: Mapping[str, JaggedTensor]) -> Tensor:
        return self.layer(self.summed(rows["tags"].values(), rows["tags"].lengths()))


class Towers(nn.Module):
    """TorchRec's towers, which none of the trainer's sharders is for, beside unique samples."""

    def __init__(self) -> None:
        super().__init__()
        towers = [
            EmbeddingTower(bags(table("shop")), OfBags()),
            EmbeddingTower(rows_of(table("tags")), OfRows()),
        ]
        self.towers = EmbeddingTowerCollection(towers)
        self.bags = bags(table("user"), table("item"))
        self.head = Head(6 + 2 * DIM)

    def forward(self, step: Step) -> Tensor:
        found = self.bags(step.sparse)
        columns = [self.towers(step.sparse), found["user"], found["item"]]
        return self.head(columns, step.labels)


class Shared(nn.Module):
    """A feature of bags and of rows; of each, two tables share one, and one has several."""

    def __init__(self) -> None:
        super().__init__()
        self.bags = bags(table("user"), table("both", "user", "tags", dim=4), table("shop"))
        self.rows = rows_of(table("of_user", "user"), table("of_both", "user", "item"))
        self.summed, self.head = Summed(), Head(DIM + 4 + 4 + DIM + 3 * DIM)

    def forward(self, step: Step) -> Tensor:
        found, rows = self.bags(step.sparse), self.rows(step.sparse)
        columns = [found[key] for key in ("user@user", "user@both", "tags", "shop")]
        each = [rows[key] for key in ("user@of_user", "user@of_both", "item")]
        columns += [self.summed(one.values(), one.lengths()) for one in each]
        return self.head(columns, step.labels)


class Skipping(nn.Module):
    """Of the steps, one returns before any lookup, and one reads nothing of a lookup."""

    def __init__(self) -> None:
        super().__init__()
        self.bags, self.rows = bags(table("user"), table("shop")), rows_of(table("tags"))
        self.other = bags(table("item"))
        self.summed, self.bias = Summed(), nn.Parameter(torch.zeros(()))
        self.head = Head(4 * DIM)

    def forward(self, step: Step) -> Tensor:
        if step.number == 0:
            return (self.bias - step.labels).square().mean()
        found, rows, other = self.bags(step.sparse), self.rows(step.sparse), self.other(step.sparse)
        columns = [found["user"], found["shop"]]
        if step.number == 1:
            zeros = torch.zeros_like(found["user"])
            return self.head([*columns, zeros, zeros], step.labels)
        columns.append(self.summed(rows["tags"].values(), rows["tags"].lengths()))
        return self.head([*columns, other["item"]], step.labels)


class Changing(nn.Module):
    """What bags yield is changed in place, as a whole and then of a key."""

    def __init__(self) -> None:
        super().__init__()
        self.bags, self.head = bags(table("user"), table("shop")), Head(2 * DIM)

    def forward(self, step: Step) -> Tensor:
        found = self.bags(step.sparse)
        whole = found.values()
        whole.mul_(2)
        found["shop"].tanh_()
        return self.head([found["user"], found["shop"]], step.labels)


class ChangingOne(nn.Module):
    """What bags yield of a key is changed in place."""

    def __init__(self) -> None:
        super().__init__()
        self.bags, self.head = bags(table("user"), table("shop"), table("tags")), Head(3 * DIM)

    def forward(self, step: Step) -> Tensor:
        found = self.bags(step.sparse)
        found["shop"].mul_(3)
        found["user"].add_(1)
        return self.head([found["user"], found["shop"], found["tags"]], step.labels)


class OfARank(nn.Module):
    """Of bags, each rank reads what the other does not."""

    def __init__(self) -> None:
        super().__init__()
        self.bags, self.head = bags(table("user"), table("shop")), Head(DIM)

    def forward(self, step: Step) -> Tensor:
        found = self.bags(step.sparse)
        mine = ("user", "shop")[(dist.get_rank() + step.number) % 2]
        return self.head([found[mine]], step.labels)


class Twice(nn.Module):
    """Two forwards of each collection, of which the second is read first: both have the first
    step of Adagrad, which is as long whatever the gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.bags, self.rows = bags(table("user"), table("shop")), rows_of(table("tags"))
        self.summed, self.head = Summed(), Head(6 * DIM)

    def forward(self, step: Step) -> Tensor:
        first, rows = self.bags(step.sparse), self.rows(step.sparse)
        second, others = self.bags(step.sparse), self.rows(step.sparse)
        columns = [second["shop"].tanh(), second["user"] * 3]
        for one in (others["tags"], rows["tags"]):
            columns.append(self.summed(one.values(), one.lengths()) * len(columns))
        return self.head([*columns, first["shop"], first["user"]], step.labels)


class Frozen(nn.Module):
    """What is looked up without gradients is first read where there are some."""

    def __init__(self) -> None:
        super().__init__()
        self.bags, self.rows = bags(table("user"), table("shop")), rows_of(table("tags"))
        self.other = bags(table("item"))
        self.summed, self.head = Summed(), Head(4 * DIM)

    def forward(self, step: Step) -> Tensor:
        with torch.no_grad():
            found, rows = self.bags(step.sparse), self.rows(step.sparse)
        other = self.other(step.sparse)
        tags = self.summed(rows["tags"].values(), rows["tags"].lengths())
        return self.head([found["user"], found["shop"], tags, other["item"]], step.labels)


class Checkpointed(nn.Module):
    """A checkpoint is the first to read what bags yield."""

    def __init__(self) -> None:
        super().__init__()
        self.bags, self.head = bags(table("user"), table("shop"), table("item")), Head(3 * DIM)
        self.layer = nn.Linear(3 * DIM, 3 * DIM)

    def forward(self, step: Step) -> Tensor:
        found = self.bags(step.sparse)
        columns = [found["user"], found["shop"], found["item"]]
        seen = checkpoint(self._seen, *columns, use_reentrant=False)
        return self.head([seen], step.labels)

    def _seen(self, *columns: Tensor) -> Tensor:
        seen: Tensor = self.layer(torch.cat(columns, 1)).tanh()
        return seen


class Doubles(nn.Module):
    """Weights of ids are of the type that numpy has for floats."""

    def __init__(self) -> None:
        super().__init__()
        self.bags = bags(table("shop"), table("tags"), is_weighted=True)
        self.head = Head(2 * DIM)

    def forward(self, step: Step) -> Tensor:
        each = [step.sparse[key] for key in ("shop", "tags")]
        ids = torch.cat([one.values() for one in each])
        kjt = KeyedJaggedTensor(
            keys=["shop", "tags"],
            values=ids,
            lengths=torch.cat([one.lengths() for one in each]),
            weights=1 + (ids % 4).double() / 3,
        )
        found = self.bags(kjt)
        return self.head([found["shop"], found["tags"]], step.labels)


class Kinds(nn.Module):
    """Each table of a collection has an optimizer of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.bags = bags(*map(table, ROWS))
        self.head = Head(4 * DIM)

    def forward(self, step: Step) -> Tensor:
        found = self.bags(step.sparse)
        return self.head([found[key] for key in ROWS], step.labels)


KINDS: Mapping[str, tuple[type[torch.optim.Optimizer], dict[str, float]]] = {
    "user": (torch.optim.SGD, {"lr": 0.3}),
    "item": (torch.optim.Adagrad, {"lr": 0.1, "eps": 1e-4}),
    "shop": (RowWiseAdagrad, {"lr": 0.2, "eps": 1e-4}),
    "tags": (RowWiseAdagrad, {"lr": 0.05, "eps": 1e-4}),
}


class Positioned(nn.Module):
    """Ids are weighted by their positions, which the model learns, before the bags have them."""

    def __init__(self) -> None:
        super().__init__()
        self.positions = PositionWeightedModuleCollection({"shop": 4, "tags": 4}, device=CPU)
        self.scored = bags(table("shop"), table("tags"), is_weighted=True)
        self.bags = bags(table("user"), table("item"))
        self.head = Head(4 * DIM)

    def forward(self, step: Step) -> Tensor:
        found = self.bags(step.sparse)
        keys = ["shop", "tags"]
        each = [step.sparse[key] for key in keys]
        some = KeyedJaggedTensor(
            keys=keys,
            values=torch.cat([one.values() for one in each]),
            lengths=torch.cat([one.lengths() for one in each]),
        )
        scored = self.scored(self.positions(some))
        columns = [found["user"], found["item"], scored["shop"], scored["tags"]]
        return self.head(columns, step.labels)


class Waiting(nn.Module):
    """It waits by itself for what its sharded collections yield, rows and sums, and goes through
    the features in the order of the dict, as trainers do that take over NVIDIA's examples."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = rows_of(table("user"), table("tags"))
        self.sums = bags(table("item"), table("shop", pooling=PoolingType.MEAN))
        self.head = Head(4 * DIM)

    def forward(self, step: Step) -> Tensor:
        rows, sums = self.rows(step.sparse).wait(), self.sums(step.sparse).wait()
        columns = [sums["item"], sums["shop"]]
        for key in rows.keys():  # noqa: SIM118  # as they write it
            values, ends = rows[key].values(), rows[key].offsets().tolist()
            parts = [values[at:to].sum(0) for at, to in pairwise(ends)]
            columns.append(torch.stack(parts))
        return self.head(columns, step.labels)


def registry(**options: Any) -> dict[str, Any]:
    return {
        "plugins": ["recd_dedup", "recd_flexshard"],
        "dedup": {"use": "exact", "groups": GROUPS},
        "sharding": {
            "use": "flexshard",
            "goal": "min_communication",
            "profile_batches": STEPS,
            "others": {"search": "greedy"},
            **options,
        },
        "topology": {"ranks_per_node": 1, "inter_node_gbps": 0.02},
    }


CACHED: dict[str, Any] = {
    "plugins": ["recd_dedup", "recd_scars"],
    "dedup": {"use": "exact", "groups": GROUPS},
    "sharding": {"use": "torchrec", "search": "greedy"},
    "cache": {
        "use": "scars",
        "size": "hit_rate",
        "hit_rate": 0.6,
        "coalesce": "none",
        "hot_batches": False,
    },
}
REGISTRIES = (CACHED, registry(tables=["?*"], coalesce="rank"))
"""Both give rows of bags replicas; then sums of bags travel, or rows."""


def trained(
    make: type[nn.Module], registry: Mapping[str, Any] | None, rounding: Any
) -> dict[str, Tensor]:
    """On a rank: losses and all that is trained, plainly or by a registry."""
    torch.manual_seed(0)
    net = make()
    initialisers = table_initialisers(net)
    for name, parameter in net.named_parameters():
        if parameter.is_meta:
            kind, options = KINDS.get(name.split(".")[-2], KINDS["shop"])
            apply_optimizer_in_backward(kind, [parameter], dict(options))
    batches = [drawn(number) for number in range(STEPS)]
    sharders: list[Any] = [RowWiseBags(), EmbeddingCollectionSharder()]
    if registry is None:
        plan = BySharding("row_wise")(net, OptimizerSettings()).plan
    else:
        stack = rp.load(registry)
        net = stack.adapt(net)
        batches = [replace(one, sparse=stack.convert(one.sparse)) for one in batches]
        plan = stack.plan(
            net, batches=batches, features=lambda step: step.sparse, sharders=sharders
        )
        sharders = stack.sharders()
        tables = stack.planner().tier_plan.tables.values()
        assert any(len(table.replicated) for table in tables)
    model = DistributedModelParallel(
        net,
        device=CPU,
        plan=plan,
        sharders=sharders,
        data_parallel_wrapper=DefaultDataParallelWrapper(
            static_graph=False, find_unused_parameters=True
        ),
    )
    initialise_tables(model, initialisers, 0)
    dense = dict(in_backward_optimizer_filter(model.named_parameters()))
    optimizer = torch.optim.SGD(dense.values(), lr=0.1)
    losses = []
    with rounding:
        for batch in batches:
            optimizer.zero_grad()
            loss = model(batch)
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
    found = {name: gather_table(value) for name, value in model.state_dict().items()}
    return {**found, "losses": torch.stack(losses)}


def alike(make: type[nn.Module]) -> None:
    """On a rank."""

    def plain(rounding: AbstractContextManager[object]) -> dict[str, Tensor]:
        return trained(make, None, rounding)

    expected = plain_of(plain)
    for own in REGISTRIES:
        assert_alike(trained(make, own, nullcontext()), *expected)


MODELS = (
    *(Regrouped, Towers, Shared, Skipping, Changing, ChangingOne, OfARank, Twice, Frozen),
    *(Checkpointed, Doubles, Kinds, Waiting),
)


@pytest.mark.parametrize("make", MODELS)
@pytest.mark.filterwarnings("ignore::recd_plugins.notices.NoticeWarning")
def test_it_trains_as_plainly(gloo_pool: GlooPool, make: type[nn.Module]) -> None:
    gloo_pool.run(alike, make)


class Unread(nn.Module):
    """An evaluation returns on one rank behind the lookups, of which it reads nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.bags, self.rows = bags(table("user"), table("shop")), rows_of(table("tags"))
        self.summed, self.head = Summed(), Head(3 * DIM)

    def forward(self, step: Step) -> Tensor:
        found, rows = self.bags(step.sparse), self.rows(step.sparse)
        if not self.training and dist.get_rank() == 1:
            return step.labels.sum()
        tags = self.summed(rows["tags"].values(), rows["tags"].lengths())
        return self.head([found["user"], found["shop"], tags], step.labels)


def evaluated(make: type[nn.Module]) -> None:
    """On a rank: what comes behind an evaluation comes on both."""
    coalesced = registry(tables=["?*"], coalesce="node")
    nodes = {**coalesced["topology"], "ranks_per_node": 2, "intra_node_gbps": 1.0}
    stack = rp.load({**coalesced, "topology": nodes})
    net = stack.adapt(make())
    batches = [drawn(number) for number in range(2)]
    plan = stack.plan(
        net,
        batches=batches,
        features=lambda step: step.sparse,
        sharders=[RowWiseBags(), EmbeddingCollectionSharder()],
    )
    model = DistributedModelParallel(net, device=CPU, plan=plan, sharders=stack.sharders()).eval()
    with torch.no_grad():
        for batch in batches:
            model(batch)
    dist.barrier()


@pytest.mark.filterwarnings("ignore::recd_plugins.notices.NoticeWarning")
def test_a_rank_may_read_nothing_of_an_evaluation(gloo_pool: GlooPool) -> None:
    gloo_pool.run(evaluated, Unread)


def told(make: type[nn.Module]) -> list[str]:
    """On a rank: what is warned of."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", NoticeWarning)
        trained(make, REGISTRIES[0], nullcontext())
    return [str(one.message) for one in caught if one.category is NoticeWarning]


def test_weights_of_ids_that_nothing_can_learn_are_told(gloo_pool: GlooPool) -> None:
    """Plain TorchRec learns them where tables are data-parallel alone."""
    first, other = gloo_pool.run(told, Positioned)
    assert any(
        "the weights of the ids of shop, tags may train otherwise: they are to be learnt" in one
        for one in first
    )
    assert not other
