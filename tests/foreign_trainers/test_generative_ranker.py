"""Ladder, two ranks: a trainer after the habits of generative recommenders, by the lines that
docs/own-trainer.md adds, trains what it trains plainly.

A sample is a long history and its candidates, in two KJTs, which are the model's arguments. The
model joins them itself and looks up one table by four of their keys; other keys have labels and
times. A checkpoint has tables alone, rank 0 asks once more for the state that all ranks have asked
for, and loading leaves the optimizer of the tables as it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.stateful import Stateful
from torch.utils.data import DataLoader, IterableDataset
from torchrec.distributed import DistributedModelParallel
from torchrec.distributed.sharding_plan import get_default_sharders
from torchrec.distributed.types import ShardedTensor
from torchrec.modules.embedding_configs import EmbeddingConfig
from torchrec.modules.embedding_modules import EmbeddingCollection
from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward
from torchrec.optim.optimizers import in_backward_optimizer_filter
from torchrec.optim.rowwise_adagrad import RowWiseAdagrad
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

import recd_plugins as rp
from recd_plugins.registry.settings import OptimizerSettings
from recd_plugins.testing.arrange import BySharding
from recd_plugins.testing.gloo import GlooPool
from recd_plugins.testing.parity import assert_alike
from recd_plugins.testing.rounding import plain_of
from recd_plugins.testing.trained import gather_table
from recd_plugins.tiers.planner.tier_planner import TierPlanner
from recd_plugins.trainer.initial_tables import initialise_tables, table_initialisers

CPU = torch.device("cpu")
BATCH, STEPS, DIM = 4, 2, 8
ROWS = {"posts": 400, "viewers": 60}
FEATURES = {"posts": ["seen_post", "seen_owner", "post", "owner"], "viewers": ["viewer"]}
REGISTRY: dict[str, Any] = {
    "plugins": ["recd_flexshard"],
    "sharding": {
        "use": "flexshard",
        "goal": "min_communication",
        "profile_batches": 8,
        "others": {"search": "greedy"},
    },
    "topology": {"ranks_per_node": 1, "inter_node_gbps": 0.02},
}


@dataclass
class Samples:
    history: KeyedJaggedTensor
    candidates: KeyedJaggedTensor

    def to(self, device: torch.device) -> None:
        for name in vars(self):
            setattr(self, name, getattr(self, name).to(device))


class Ranker(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        tables = [
            EmbeddingConfig(
                name=name, embedding_dim=DIM, num_embeddings=rows, feature_names=FEATURES[name]
            )
            for name, rows in ROWS.items()
        ]
        self.embeddings = EmbeddingCollection(tables, device=torch.device("meta"))
        self.user, self.item = nn.Linear(3 * DIM, DIM), nn.Linear(2 * DIM, DIM)

    def forward(self, history: KeyedJaggedTensor, candidates: KeyedJaggedTensor) -> Tensor:
        joined = KeyedJaggedTensor.from_lengths_sync(
            keys=history.keys() + candidates.keys(),
            values=torch.cat([history.values(), candidates.values()]),
            lengths=torch.cat([history.lengths(), candidates.lengths()]),
        )
        found = self.embeddings(joined)
        ages = history["age"].values()[:, None].float()
        seen = torch.cat([found[key].values() for key in ("seen_post", "seen_owner")], dim=1)
        lengths = history["seen_post"].lengths()
        rows = torch.repeat_interleave(lengths)
        pooled = seen.new_zeros(len(lengths), 2 * DIM).index_add(0, rows, seen / (1 + ages))
        users = self.user(torch.cat([pooled, found["viewer"].values()], dim=1))
        items = self.item(torch.cat([found[key].values() for key in ("post", "owner")], dim=1))
        scores = (items * users.repeat_interleave(found["post"].lengths(), dim=0)).sum(dim=1)
        clicked = candidates["clicked"].values().float()
        return nn.functional.binary_cross_entropy_with_logits(scores, clicked)


class Histories(IterableDataset[Samples]):
    """Of up to 300 posts; ids follow a steep law, another one on each rank."""

    def __iter__(self) -> Iterator[Samples]:
        draw = torch.Generator().manual_seed(dist.get_rank())

        def ids(rows: int, count: int) -> Tensor:
            return (rows ** torch.rand(count, generator=draw)).long() - 1

        while True:
            seen, shown = (torch.randint(1, most, (BATCH,), generator=draw) for most in (300, 6))
            count, offered = int(seen.sum()), int(shown.sum())
            history = {
                "viewer": (ids(ROWS["viewers"], BATCH), torch.ones_like(seen)),
                "age": (torch.randint(0, 50, (count,), generator=draw), seen),
                "seen_post": (ids(ROWS["posts"], count), seen),
                "seen_owner": (ids(ROWS["posts"], count), seen),
            }
            candidates = {
                "post": (ids(ROWS["posts"], offered), shown),
                "clicked": (torch.randint(0, 2, (offered,), generator=draw), shown),
                "owner": (ids(ROWS["posts"], offered), shown),
            }
            yield Samples(kjt(history), kjt(candidates))


def kjt(columns: Mapping[str, tuple[Tensor, Tensor]]) -> KeyedJaggedTensor:
    values, lengths = (torch.cat(parts) for parts in zip(*columns.values(), strict=True))
    return KeyedJaggedTensor(list(columns), values, lengths=lengths)


@dataclass
class Tables(Stateful):
    """The tables of a model, as a checkpoint has them."""

    model: nn.Module
    keys: set[str]

    def state_dict(self) -> dict[str, Any]:
        return {key: one for key, one in self.model.state_dict().items() if key in self.keys}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        assert not self.model.load_state_dict(state_dict, strict=False).unexpected_keys


@dataclass
class Job:
    model: DistributedModelParallel
    optimizer: torch.optim.Optimizer
    loader: DataLoader[Samples]
    replicas: int

    def trained(self, folder: Path) -> dict[str, Tensor]:
        """Train, evaluate, save, train on, load, and train once more; all weights at the end."""
        batches = iter(self.loader)
        self._train(batches)
        with torch.no_grad():
            losses = [self.model.eval()(one.history, one.candidates) for one in self._next(batches)]
        self._save(folder)
        self._train(batches)
        self._load(folder)
        self._train(batches)
        found = {name: gather_table(value) for name, value in self.model.state_dict().items()}
        return found | {"held out": torch.stack(losses)}

    def _next(self, batches: Iterator[Samples]) -> Iterator[Samples]:
        for _ in range(STEPS):
            one = next(batches)
            one.to(CPU)
            yield one

    def _train(self, batches: Iterator[Samples]) -> None:
        self.model.train()
        for one in self._next(batches):
            self.optimizer.zero_grad()
            self.model(one.history, one.candidates).backward()
            self.optimizer.step()

    def _tables(self) -> set[str]:
        state = self.model.state_dict()
        return {name for name, value in state.items() if isinstance(value, ShardedTensor)}

    def _save(self, folder: Path) -> None:
        tables = self._tables()
        if dist.get_rank() == 0:  # alone: all ranks have just asked for it
            state = self.model.state_dict()
            dense = {name: value for name, value in state.items() if name not in tables}
            torch.save(dense, folder / "dense.pt")
        dist.barrier()
        dcp.save({"tables": Tables(self.model, tables)}, checkpoint_id=folder / "tables")

    def _load(self, folder: Path) -> None:
        tables = {"tables": Tables(self.model, self._tables())}
        dcp.load(tables, checkpoint_id=folder / "tables")
        state = self.model.state_dict()
        for name, value in torch.load(folder / "dense.pt").items():
            state[name].copy_(value)


def job(*, ours: bool) -> Job:
    torch.manual_seed(0)
    net, loader = Ranker(), DataLoader(Histories(), batch_size=None)
    initialisers = table_initialisers(net)
    # What these kernels have no use for, fbgemm takes and leaves alone.
    options = {"lr": 0.1, "eps": 1e-4, "beta1": 0.95, "beta2": 0.999, "weight_decay": 0}
    apply_optimizer_in_backward(RowWiseAdagrad, net.embeddings.parameters(), options)
    sharders: Any = get_default_sharders()
    replicas = 0
    if ours:
        stack = rp.load(REGISTRY)
        plan = stack.plan(
            net,
            batches=loader,
            features=lambda batch: [batch.history, batch.candidates],
            sharders=sharders,
        )
        sharders = stack.sharders()
        planner = stack.planner()
        assert isinstance(planner, TierPlanner)
        assert planner.tier_plan is not None
        replicas = sum(len(one.replicated) for one in planner.tier_plan.tables.values())
    else:
        plan = BySharding("row_wise")(net, OptimizerSettings()).plan
    model = DistributedModelParallel(net, device=CPU, plan=plan, sharders=sharders)
    initialise_tables(model, initialisers, 0)
    dense = dict(in_backward_optimizer_filter(model.named_parameters()))
    return Job(model, torch.optim.SGD(dense.values(), lr=0.1), loader, replicas)


def trains_alike(folder: Path) -> int:
    def plain(rounding: AbstractContextManager[Any]) -> dict[str, Tensor]:
        own = job(ours=False)
        with rounding:
            return own.trained(folder)

    expected, bounds = plain_of(plain)
    own = job(ours=True)
    assert_alike(own.trained(folder), expected, bounds)
    return own.replicas


def test_a_generative_ranker_trains_what_it_trains_plainly(
    gloo_pool: GlooPool, tmp_path: Path
) -> None:
    assert all(replicas > 0 for replicas in gloo_pool.run(trains_alike, tmp_path))
