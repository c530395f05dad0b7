"""Rung 3 (two gloo ranks): trainers of TorchRec's own make train on unique samples as on all.

Its models, datasets, batches and pipelines stay as they are; only their batches are converted.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import DataLoader
from torchrec.datasets.random import RandomRecDataset
from torchrec.distributed import DistributedModelParallel, TrainPipelineSparseDist
from torchrec.distributed.embedding import EmbeddingCollectionSharder
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.train_pipeline import TrainPipelineBase
from torchrec.distributed.types import ShardedModule
from torchrec.models.dlrm import DLRM, DLRMTrain
from torchrec.modules.embedding_configs import EmbeddingBagConfig, EmbeddingConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection
from torchrec.modules.feature_processor_ import PositionWeightedModuleCollection
from torchrec.modules.fp_embedding_modules import FeatureProcessedEmbeddingBagCollection
from torchrec.optim import RowWiseAdagrad
from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward
from torchrec.optim.optimizers import in_backward_optimizer_filter
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recd_plugins.errors import CapabilityError
from recd_plugins.notices import NoticeWarning
from recd_plugins.sparse.keyed import mark_of
from recd_plugins.stack import load
from recd_plugins.testing.gloo import GlooPool
from recd_plugins.testing.parity import assert_alike
from recd_plugins.testing.rounding import plain_of
from recd_plugins.testing.trained import Trained
from recd_plugins.trainer.initial_tables import initialise_tables, table_initialisers

CPU, META = torch.device("cpu"), torch.device("meta")
KEYS = ["user", "item", "history", "shop"]
ROWS = 11
DIM = 8
STEPS = 5


def bags_of(keys: list[str]) -> EmbeddingBagCollection:
    tables = [
        EmbeddingBagConfig(
            name=f"t_{key}", embedding_dim=DIM, num_embeddings=ROWS, feature_names=[key]
        )
        for key in keys
    ]
    return EmbeddingBagCollection(tables=tables, device=META)


def dlrm() -> nn.Module:
    """As in TorchRec's examples."""
    return DLRMTrain(
        DLRM(bags_of(KEYS), 3, dense_arch_layer_sizes=[8, DIM], over_arch_layer_sizes=[8, 1])
    )


class Sequences(nn.Module):
    """A batch is a KJT: histories are averaged, and scored against the item; ids are read too."""

    def __init__(self) -> None:
        super().__init__()
        tables = [
            EmbeddingConfig(
                name="t_item",
                embedding_dim=DIM,
                num_embeddings=ROWS,
                feature_names=["history", "item"],
            )
        ]
        self.embeddings = EmbeddingCollection(tables=tables, device=META)
        self.score = nn.Linear(DIM, DIM)
        self.head = Head()

    def forward(self, kjt: KeyedJaggedTensor) -> tuple[Tensor, Tensor]:
        found = self.embeddings(kjt)
        return self.head(self.score(found["history"].values()), found["history"].lengths(), kjt)


class Processed(nn.Module):
    """Bags of items and histories are weighted by learned positions, and then users' are summed."""

    def __init__(self) -> None:
        super().__init__()
        bags = EmbeddingBagCollection(
            tables=bags_of(["item", "history"]).embedding_bag_configs(),
            is_weighted=True,
            device=META,
        )
        positions = PositionWeightedModuleCollection({"item": 3, "history": 3}, device=CPU)
        self.users = bags_of(["user"])
        self.processed = FeatureProcessedEmbeddingBagCollection(bags, positions)
        self.over = nn.Linear(3 * DIM, 1)

    def forward(self, kjt: KeyedJaggedTensor) -> tuple[Tensor, Tensor]:
        bags, users = self.processed(kjt), self.users(kjt)
        logits = self.over(torch.cat([bags["item"], bags["history"], users["user"]], 1))
        loss = (logits - 1).square().mean()
        return loss, loss.detach()


class Head(nn.Module):
    """A leaf: TorchRec's tracer does not look inside."""

    def forward(self, values: Tensor, lengths: Tensor, kjt: KeyedJaggedTensor) -> Any:
        rows = torch.repeat_interleave(torch.arange(kjt.stride()), lengths.long())
        means = values.new_zeros(kjt.stride(), DIM).index_add(0, rows, values.tanh())
        jagged = kjt["item"]
        first = jagged.values()[jagged.offsets()[:-1]].float() / ROWS
        loss = (means.sum(1) - first).square().mean()
        return loss, loss.detach()


def loader(collate: Any) -> DataLoader[Any]:
    """Few ids, so that samples repeat; each batch is another's again."""
    dataset = RandomRecDataset(
        KEYS,
        batch_size=24,
        hash_size=ROWS,
        ids_per_features=[1, 1, 2, 2],
        min_ids_per_features=[1, 1, 0, 0],
        num_dense=3,
        manual_seed=dist.get_rank(),
        num_batches=STEPS,
        num_generated_batches=3,
    )
    return DataLoader(dataset, batch_size=None, collate_fn=collate)


def only_features(batch: Any) -> KeyedJaggedTensor:
    """A trainer whose batch is a KJT alone."""
    features: KeyedJaggedTensor = batch.sparse_features
    return features


def train(
    kind: str, dedup: bool, pipeline: str, rounding: AbstractContextManager[object]
) -> dict[str, Tensor]:
    """On a rank, by TorchRec's own parts and ours; losses and all that was trained."""
    settings = {"optimizer": {"tables": "sgd", "tables_lr": 0.1}}
    slots = {"dedup": {"use": "exact", "groups": [["user", "history"], ["shop"]]}} if dedup else {}
    if dedup and kind == "sequences":
        slots["dedup"]["groups"] = [["history"]]
    if dedup and kind == "processed":
        slots["dedup"]["groups"] = [["user"]]
    # A feature processor writes into what it is given where a table of it is row-wise.
    types = {"sharding_types": ["row_wise" if dedup else "table_wise"]}
    held = {"constraints": {"t_item": types, "t_history": types}}
    plain = {"use": "torchrec", **(held if kind == "processed" else {})}
    stack = load({"plugins": ["recd_dedup"], "train": settings, "sharding": plain, **slots})
    torch.manual_seed(0)
    model = {"dlrm": dlrm, "sequences": Sequences, "processed": Processed}[kind]()
    initialisers = table_initialisers(model)
    collate = None if kind == "dlrm" else only_features
    batches = loader(stack.converting(collate))
    model = stack.adapt(model)
    plan = stack.plan(model)
    sharded = DistributedModelParallel(model, device=CPU, plan=plan, sharders=stack.sharders())
    initialise_tables(sharded, initialisers, 0)
    dense = dict(in_backward_optimizer_filter(sharded.named_parameters()))
    optimizer = torch.optim.SGD(dense.values(), lr=0.1)
    kinds = {"ahead": TrainPipelineSparseDist, "base": TrainPipelineBase}
    losses = []
    with rounding:
        if pipeline == "loop":
            for batch in batches:
                optimizer.zero_grad()
                loss, _ = sharded(batch)
                loss.backward()
                optimizer.step()
                losses.append(loss.detach())
        else:
            stages, stream = kinds[pipeline](sharded, optimizer, CPU), iter(batches)
            for _ in range(STEPS):
                out = stages.progress(stream)
                losses.append((out[0] if isinstance(out, tuple) else out).detach())
            if pipeline == "ahead":
                count = sum(isinstance(module, ShardedModule) for module in sharded.modules())
                count -= kind == "processed"  # which holds another one
                assert len(stages._pipelined_modules) == count
    everyones = [torch.empty(STEPS) for _ in range(dist.get_world_size())]
    dist.all_gather(everyones, torch.stack(losses))
    left = Trained.of(sharded, initialisers, losses=torch.stack(everyones, 1).tolist())
    return left.tensors()


def dedup_and_not(kind: str) -> None:
    """On a rank: alike, in every pipeline."""
    plain = plain_of(partial(train, kind, False, "ahead"))
    for pipeline in ("ahead", "base", "loop"):
        assert_alike(train(kind, True, pipeline, nullcontext()), *plain)


@pytest.mark.parametrize("kind", ["dlrm", "sequences", "processed"])
def test_torchrecs_own_trainers(gloo_pool: GlooPool, kind: str) -> None:
    gloo_pool.run(dedup_and_not, kind)


def groups_of_ranks() -> tuple[Any, Any]:
    """On a rank: `groups: auto` by its own batches, of which rank 0's alone repeat."""
    keys = ["a", "b"]

    def batches() -> Iterator[KeyedJaggedTensor]:
        repeated = dist.get_rank() == 0
        for seed in range(3):
            draw = torch.Generator().manual_seed(seed)
            rows = torch.randint(0, 10**6, (8 if repeated else 64, 2), generator=draw)
            values = rows.repeat(8 if repeated else 1, 1)
            ids = torch.cat([values.flatten(), torch.arange(64)])
            yield KeyedJaggedTensor(
                keys=keys, values=ids, lengths=torch.tensor([2] * 64 + [1] * 64)
            )

    stack = load(
        {"plugins": ["recd_dedup"], "dedup": {"use": "exact", "groups": "auto", "weigh": "bytes"}}
    )
    stack.adapt(bags_of(keys), batches=list(batches()))
    return stack.convert(next(batches())).dedup.groups, stack._features.unique_shares


def clipped(kind: str, groups: list[list[str]], *, by_sharder: bool) -> str:
    """On a rank: what is said where a table's kernel clips gradients, in registry.yaml's groups."""
    model = dlrm() if kind == "dlrm" else Sequences()
    clips = {"gradient_clipping": True, "max_gradient": 0.1}
    fused = clips if by_sharder else {}
    if not by_sharder:
        weights = next(one for name, one in model.named_parameters() if "t_item" in name)
        apply_optimizer_in_backward(RowWiseAdagrad, [weights], {"lr": 0.1, **clips})
    stack = load({"plugins": ["recd_dedup"], "dedup": {"use": "exact", "groups": groups}})
    stack.adapt(model)
    sharders = [EmbeddingBagCollectionSharder(fused), EmbeddingCollectionSharder(fused)]
    plan = stack.plan(model, sharders=sharders)
    try:
        DistributedModelParallel(model, device=CPU, plan=plan, sharders=stack.sharders())
    except CapabilityError as error:
        return str(error)
    return ""


def test_what_clips_the_gradients_of_samples_takes_no_unique_ones(gloo_pool: GlooPool) -> None:
    """A kernel sees the sum over the samples of a unique one, and would clip that."""
    says = "dedup: table 't_item' clips the gradient of each sample"
    (told, _) = gloo_pool.run(clipped, "sequences", [["history"]], by_sharder=True)
    assert says in told
    assert "Name dedup.groups without history" in told
    (told, _) = gloo_pool.run(clipped, "dlrm", [["user"], ["item"]], by_sharder=False)
    assert says in told
    assert not any(gloo_pool.run(clipped, "dlrm", [["user"]], by_sharder=False))


def moved() -> str:
    """On a rank: the answer to who moves a table that is looked up on unique samples."""
    stack = load({"plugins": ["recd_dedup"], "dedup": {"use": "exact", "groups": [["user"]]}})
    model = stack.adapt(dlrm())
    plan = stack.plan(model)
    sharded = DistributedModelParallel(model, device=CPU, plan=plan, sharders=stack.sharders())
    ((path, tables),) = plan.plan.items()
    with pytest.raises(CapabilityError) as raised:
        sharded.reshard({path: (0.0, {"t_user": tables["t_user"]})}, path)
    return str(raised.value)


def test_tables_of_unique_samples_do_not_move(gloo_pool: GlooPool) -> None:
    for said in gloo_pool.run(moved):
        assert said.startswith("DistributedModelParallel.reshard moves tables of TorchRec's own")


def test_ranks_agree_on_groups(gloo_pool: GlooPool) -> None:
    assert gloo_pool.run(groups_of_ranks) == [((("a",),), (1 / 8,))] * 2


def hot_and_not() -> list[bool]:
    """On a rank: converted batches, in hot and normal ones, behind replicas; the same, plainly."""
    torch.manual_seed(0)
    settings = {"optimizer": {"tables": "sgd", "tables_lr": 0.1}}
    dedup = {"use": "exact", "groups": [["user", "history"], ["shop"]]}
    cache = {"use": "scars", "size": "hit_rate", "hit_rate": 0.8, "window": 4, "force": True}
    plugins = ["recd_dedup", "recd_scars"]
    stack = load({"plugins": plugins, "train": settings, "dedup": dedup, "cache": cache})
    batches = stack.order(loader(stack.converting()))
    seen: list[Any] = []

    def watched() -> Iterator[Any]:
        for batch in batches:
            seen.append(batch)
            yield batch

    def trained(given: Any, stream: Any, rounding: AbstractContextManager[object]) -> Any:
        torch.manual_seed(0)
        model = dlrm()
        initialisers = table_initialisers(model)
        model = given.adapt(model)
        counted = {"batches": loader(given.converting())} if given is stack else {}
        plan = given.plan(model, **counted)
        sharded = DistributedModelParallel(model, device=CPU, plan=plan, sharders=given.sharders())
        initialise_tables(sharded, initialisers, 0)
        dense = dict(in_backward_optimizer_filter(sharded.named_parameters()))
        pipeline = TrainPipelineSparseDist(sharded, torch.optim.SGD(dense.values(), lr=0.1), CPU)
        with rounding:
            losses = [pipeline.progress(stream)[0].item() for _ in range(STEPS)]
        return Trained.of(sharded, initialisers, losses=[losses]).tensors()

    def plain(rounding: AbstractContextManager[object]) -> Any:
        given = load({"train": settings})
        unconverted = [
            dataclasses.replace(batch, sparse_features=batch.sparse_features.marked(None).to_kjt())
            for batch in seen
        ]
        return trained(given, iter(unconverted), rounding)

    ours = trained(stack, watched(), nullcontext())
    assert_alike(ours, *plain_of(plain))
    return [mark_of(batch.sparse_features.plain) is not None for batch in seen]


def test_hot_batches_of_converted_ones(gloo_pool: GlooPool) -> None:
    marks, others = gloo_pool.run(hot_and_not)
    assert marks == others
    assert set(marks) == {False, True}


def never_converted() -> list[str]:
    """On a rank: what is warned of where a model is adapted and its batches stay as they are."""
    dedup = {"use": "exact", "groups": [["history"]]}
    stack = load({"plugins": ["recd_dedup"], "dedup": dedup})
    model = stack.adapt(dlrm())
    plan = stack.plan(model)
    sharded = DistributedModelParallel(model, device=CPU, plan=plan, sharders=stack.sharders())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        sharded(next(iter(loader(None))))
    return [str(one.message) for one in caught if one.category is NoticeWarning]


def test_batches_that_are_not_converted_are_said(gloo_pool: GlooPool) -> None:
    first, other = gloo_pool.run(never_converted)
    assert "dedup: exact is not used" in first[0]
    assert "stack.converting" in first[0]
    assert not other
