"""A stranger's trainer: a batch, a model of three collections and optimizers of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from operator import attrgetter
from typing import Any, Literal

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torchrec.distributed import DistributedModelParallel
from torchrec.distributed.embedding import EmbeddingCollectionSharder
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.planner.types import ParameterConstraints
from torchrec.distributed.types import ShardingPlan
from torchrec.modules.embedding_configs import EmbeddingBagConfig, EmbeddingConfig, PoolingType
from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection
from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward
from torchrec.optim.keyed import CombinedOptimizer, KeyedOptimizer, KeyedOptimizerWrapper
from torchrec.optim.optimizers import in_backward_optimizer_filter
from torchrec.optim.rowwise_adagrad import RowWiseAdagrad
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor
from torchrec.streamable import Pipelineable

import recd_plugins as rp
from recd_plugins.embedding.adapt import adapt
from recd_plugins.embedding.sharded import with_dedup
from recd_plugins.planning.tier_plans.tier_plan import TablePlan, TierPlan
from recd_plugins.registry.settings import OptimizerSettings
from recd_plugins.sparse.features import SparseFeatures
from recd_plugins.sparse.ikjt import InverseKeyedJaggedTensor
from recd_plugins.sparse.jagged import without
from recd_plugins.testing.arrange import BySharding
from recd_plugins.testing.trained import gather_table
from recd_plugins.tiers.sharder import ShardedTiers, tier_sharders
from recd_plugins.trainer.initial_tables import initialise_tables, table_initialisers

ShardingKind = Literal["row_wise", "table_wise", "column_wise"]
Side = Literal["plain", "tiers", "tiers and dedup", "registry"]
"""Plain TorchRec row-wise; behind tiers; behind tiers, and on unique samples; and so, of tables
that a registry's planner gives replicas, by the lines of docs/own-trainer.md."""

SIDES: tuple[Side, ...] = ("plain", "tiers", "tiers and dedup")
REGISTRY: dict[str, Any] = {
    "plugins": ["recd_dedup", "recd_flexshard"],
    "dedup": {"use": "exact", "groups": [["heard", "tags"], ["user"]]},
    "sharding": {
        "use": "flexshard",
        "goal": "min_communication",
        "profile_batches": 2,
        "others": {"search": "greedy"},
    },
    "topology": {"ranks_per_node": 1, "inter_node_gbps": 0.02},
}
CPU = torch.device("cpu")
ROWS = {"songs": 31, "users": 23, "tags": 17, "shops": 29}
FEATURES = {"heard": "songs", "seen": "songs", "user": "users", "tags": "tags"}
GROUPS = (("heard", "tags"), ("user",))
"""Features that repeat from sample to sample; `seen` and the weighted `shops` do not."""


@dataclass
class Clicks(Pipelineable):
    """B samples, as nobody here calls them."""

    dense: Tensor
    sparse: KeyedJaggedTensor | SparseFeatures
    scored: KeyedJaggedTensor
    clicked: Tensor

    def to(self, device: torch.device, non_blocking: bool = False) -> Clicks:
        given = {one.name: getattr(self, one.name) for one in fields(self)}
        return Clicks(
            **{
                name: one.to(device=device, non_blocking=non_blocking)
                for name, one in given.items()
            }
        )

    def record_stream(self, stream: torch.Stream) -> None:
        for one in fields(self):
            getattr(self, one.name).record_stream(stream)

    def pin_memory(self) -> Clicks:
        return Clicks(*(getattr(self, one.name).pin_memory() for one in fields(self)))


class Net(nn.Module):
    """Sequences, bags with a mean, and weighted bags, of four tables."""

    def __init__(self) -> None:
        super().__init__()
        meta = torch.device("meta")
        self.history = EmbeddingCollection([table(EmbeddingConfig, "songs", 8)], device=meta)
        self.bags = EmbeddingBagCollection(
            [
                table(EmbeddingBagConfig, "users", 8),
                table(EmbeddingBagConfig, "tags", 16, pooling=PoolingType.MEAN),
            ],
            device=meta,
        )
        shops = EmbeddingBagConfig(
            name="shops", embedding_dim=8, num_embeddings=ROWS["shops"], feature_names=["shops"]
        )
        self.scored = EmbeddingBagCollection([shops], is_weighted=True, device=meta)
        self.summed = Summed()
        self.over = nn.Sequential(nn.Linear(2 + 8 * 3 + 16 + 8, 8), nn.ReLU(), nn.Linear(8, 1))

    def forward(self, batch: Clicks) -> tuple[Tensor, Tensor]:
        history, bags = self.history(batch.sparse), self.bags(batch.sparse)
        heard, seen = history["heard"], history["seen"]
        scored = self.scored(batch.scored)
        inputs = [
            batch.dense,
            *(self.summed(one.values(), one.lengths()) for one in (heard, seen)),
            bags["user"],
            bags["tags"],
            scored["shops"],
        ]
        logits = self.over(torch.cat(inputs, dim=1)).squeeze(1)
        return nn.functional.binary_cross_entropy_with_logits(
            logits, batch.clicked
        ), logits.detach()


class Summed(nn.Module):
    """[N, D] in rows of `lengths` [B] become their sums [B, D]; no tracer looks inside."""

    def forward(self, values: Tensor, lengths: Tensor) -> Tensor:
        rows = torch.repeat_interleave(lengths.long())
        return values.new_zeros(len(lengths), values.shape[1]).index_add(0, rows, values)


def table(kind: type[Any], name: str, dim: int, **options: Any) -> Any:
    features = [feature for feature, of in FEATURES.items() if of == name]
    return kind(
        name=name,
        embedding_dim=dim,
        num_embeddings=ROWS[name],
        feature_names=features,
        **options,
    )


def clicks(steps: int, side: Side) -> Iterator[Clicks]:
    """This rank's batches, the same on every side; some are deduplicated on one."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    for step in range(steps):
        batch = drawn(step * world_size + rank)
        yield deduplicated(batch) if side == "tiers and dedup" else batch


def drawn(seed: int) -> Clicks:
    """A batch of 6 samples, of which 3 are unique in what repeats."""
    draw = torch.Generator().manual_seed(seed)
    size, unique = 6, 3
    which = torch.randint(0, unique, (size,), generator=draw, device="cpu")
    keys = [*FEATURES, "shops"]
    rows: dict[str, list[Tensor]] = {}
    for key in keys:
        repeats = any(key in group for group in GROUPS)
        num_rows = ROWS[FEATURES.get(key, "shops")]
        lengths = torch.randint(
            0, 4, (unique if repeats else size,), generator=draw, device="cpu"
        ).tolist()
        own = [torch.randint(0, num_rows, (n,), generator=draw, device="cpu") for n in lengths]
        rows[key] = [own[i] for i in which.tolist()] if repeats else own
    sparse = kjt({key: rows[key] for key in FEATURES})
    shops = kjt({"shops": rows["shops"]})
    scored = KeyedJaggedTensor(
        keys=["shops"],
        values=shops.values(),
        lengths=shops.lengths(),
        weights=0.5 + torch.rand(len(shops.values()), generator=draw, device="cpu"),
    )
    return Clicks(
        dense=torch.randn(size, 2, generator=draw, device="cpu"),
        sparse=sparse,
        scored=scored,
        clicked=torch.randint(0, 2, (size,), generator=draw, device="cpu").float(),
    )


def kjt(rows: Mapping[str, list[Tensor]]) -> KeyedJaggedTensor:
    every = [row for own in rows.values() for row in own]
    return KeyedJaggedTensor(
        keys=list(rows),
        values=torch.cat(every),
        lengths=torch.tensor([len(row) for row in every], dtype=torch.int32, device="cpu"),
    )


def deduplicated(batch: Clicks) -> Clicks:
    assert isinstance(batch.sparse, KeyedJaggedTensor)
    unique = InverseKeyedJaggedTensor.from_kjt(batch.sparse, GROUPS)
    plain = without(batch.sparse, frozenset(key for group in GROUPS for key in group))
    return replace(batch, sparse=SparseFeatures.of(plain, unique))


class RowWiseBags(EmbeddingBagCollectionSharder):
    """Offers what TorchRec's own offers on CUDA alone."""

    def sharding_types(self, compute_device_type: str) -> list[str]:
        return ["row_wise"]


Change = Callable[[Net], None]
Shard = Callable[[nn.Module, ShardingPlan, list[Any]], tuple[nn.Module, KeyedOptimizer]]
"""Shards a model by a plan and sharders, and collects the optimizers of its tables."""
Collate = Callable[[Any], Any]
MakeLoader = Callable[[Collate | None], Iterable[Clicks]]
"""Makes a trainer's loader, by the `collate_fn` that makes its batches, if there is one."""


def same_batches(collate: Collate | None) -> Iterable[Clicks]:
    """As many as are counted; `Job.batches` are what is trained."""
    batches = clicks(2, "plain")
    return list(batches if collate is None else map(collate, batches))


@dataclass
class Job:
    """A model as a stranger's trainer has it, sharded, the optimizer of all that it steps, its
    loader, and what it has of a registry."""

    side: Side
    model: nn.Module
    optimizer: KeyedOptimizer
    loader: Iterable[Clicks]
    stack: rp.Stack | None = None
    collate: Collate | None = None
    given: list[Clicks] | None = None
    """Batches to train in the place of those of every side."""

    def batches(self, steps: int) -> Iterator[Clicks]:
        if self.given is not None:
            return iter(self.given[:steps])
        batches = clicks(steps, self.side)
        return batches if self.collate is None else map(self.collate, batches)

    def trained(self) -> dict[str, Tensor]:
        return all_that_is_trained(self.model, self.optimizer)


def all_that_is_trained(model: nn.Module, optimizer: KeyedOptimizer) -> dict[str, Tensor]:
    """Tables and their optimizers' states in full, and dense parameters."""
    found = {name: gather_table(value) for name, value in model.state_dict().items()}
    mine = {
        f"{name}/{key}": value
        for name, states in optimizer.state_dict()["state"].items()
        for key, value in states.items()
        if isinstance(value, Tensor) or hasattr(value, "local_shards")
    }
    # A table that lies on one rank has its states there alone: all ranks gather the others,
    # and the rank itself tells this one.
    everyones: list[set[str]] = [set() for _ in range(dist.get_world_size())]
    dist.all_gather_object(everyones, set(mine))
    shared = set.intersection(*everyones)
    found.update({name: gather_table(mine[name]) for name in sorted(shared)})
    own = {name: _whole(value) for name, value in mine.items() if name not in shared}
    told: list[dict[str, Tensor]] = [{} for _ in everyones]
    dist.all_gather_object(told, own)
    for states in told:
        found.update(states)
    return found


def _whole(state: Any) -> Tensor:
    """A state of a table that lies on this rank alone."""
    (shard,) = state.local_shards()
    return shard.tensor.detach().clone()


def as_one(
    net: nn.Module, plan: ShardingPlan, sharders: list[Any]
) -> tuple[nn.Module, KeyedOptimizer]:
    model = DistributedModelParallel(net, device=CPU, plan=plan, sharders=sharders)
    return model, model.fused_optimizer


def job(
    side: Side,
    change: Change | None = None,
    make_loader: MakeLoader = same_batches,
    bags: ShardingKind = "row_wise",
    registry: Mapping[str, Any] = REGISTRY,
    shard: Shard = as_one,
) -> Job:
    """`change` is what the trainer does to its model before it is sharded; `bags` is how it has the
    tables of its bags, none of which has replicas then, unless they are row-wise."""
    torch.manual_seed(0)
    net = Net()
    initialisers = table_initialisers(net)
    # A mapping each, for TorchRec writes the kind of optimizer into the one that it is given.
    apply_optimizer_in_backward(RowWiseAdagrad, net.history.parameters(), {"lr": 0.1, "eps": 1e-4})
    apply_optimizer_in_backward(torch.optim.SGD, net.bags.parameters(), {"lr": 0.2})
    apply_optimizer_in_backward(
        torch.optim.Adagrad, net.scored.parameters(), {"lr": 0.1, "eps": 1e-4}
    )
    if change is not None:
        change(net)
    plan = BySharding("row_wise")(net, OptimizerSettings()).plan
    sharders: list[Any] = [RowWiseBags(), EmbeddingCollectionSharder()]
    constraints = None
    if bags != "row_wise":
        other = BySharding(bags)(net, OptimizerSettings()).plan
        plan = ShardingPlan({**other.plan, "history": plan.plan["history"]})
        sharders[0] = EmbeddingBagCollectionSharder()
        held = ParameterConstraints(
            sharding_types=[bags], compute_kernels=["fused"], min_partition=4
        )
        constraints = dict.fromkeys(("users", "tags", "shops"), held)
    stack, collate = None, None
    if side == "registry":
        stack = rp.load(registry)
        if "dedup" in registry:
            collate = stack.converting(features=attrgetter("sparse"))
            net = stack.adapt(net, poolings=["summed"])
    loader = make_loader(collate)
    if stack is not None:
        plan = stack.plan(
            net,
            batches=loader,
            features=attrgetter("sparse", "scored"),
            sharders=sharders,
            constraints=constraints,
        )
        sharders = stack.sharders()
    elif side != "plain":
        sharders = tier_sharders(ShardedTiers(tier_plan()), sharders)
    if side == "tiers and dedup":
        adapt(net, GROUPS, poolings=["summed"])
        sharders = with_dedup(sharders)
    model, of_tables = shard(net, plan, sharders)
    initialise_tables(model, initialisers, 0)
    dense = KeyedOptimizerWrapper(
        dict(in_backward_optimizer_filter(model.named_parameters())),
        lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.5),
    )
    optimizer = CombinedOptimizer([of_tables, dense])
    return Job(side, model, optimizer, loader, stack, collate)


def tier_plan() -> TierPlan:
    """A third of the rows on every rank, a third in each node, of two nodes of one rank; rows of
    the weighted table travel."""
    tables = {}
    for number, (name, rows) in enumerate(ROWS.items()):
        order = np.random.default_rng(number).permutation(rows)
        tables[name] = TablePlan(
            table=name,
            replicated=order[: rows // 3],
            per_node=order[rows // 3 : 2 * rows // 3],
            coalesce="rank" if name in ("songs", "shops") else "none",
        )
    return TierPlan(tables=tables, n_nodes=1, ranks_per_node=dist.get_world_size())
