"""Ladder: one process against TorchRec's fused tables, then two and three gloo ranks. What a bug
would do is found where the plain side is TorchRec itself, whose rounding makes the bounds."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
import torch
from fbgemm_gpu.split_table_batched_embeddings_ops_training import WeightDecayMode
from torch import Tensor, nn
from torchrec.modules.embedding_configs import EmbeddingBagConfig, PoolingType
from torchrec.modules.fused_embedding_modules import FusedEmbeddingBagCollection
from torchrec.optim import RowWiseAdagrad
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recd_plugins.data.batch import Batch
from recd_plugins.registry.settings import OptimizerSettings
from recd_plugins.testing.arrange import Arranged, BySharding
from recd_plugins.testing.batches import from_lists, random_batches, to_lists
from recd_plugins.testing.gloo import GlooPool
from recd_plugins.testing.parity import (
    TABLE_OPTIMIZERS,
    Bounds,
    TableOptimizerName,
    assert_alike,
    check_parity,
)
from recd_plugins.testing.probe import SCHEMA, Probe
from recd_plugins.testing.rounding import plain_of

TABLES = {"songs": (60, ["heard", "seen"]), "artists": (20, ["liked", "played"])}
"""Rows and features. Songs are summed; of artists the mean is taken."""
FEATURES = {feature: name for name, (_, features) in TABLES.items() for feature in features}
RATE, EPS, DECAY = 0.1, 1e-4, 0.01
RANKS = 4
"""Ranks whose batches a step has, one after another, as one batch."""
SAMPLES = 16 * RANKS
STEPS = 12
WRONG = 5
"""The step at which what goes wrong once does."""
ROW = 7
"""The row of songs that it happens to."""
OPTIMIZERS = {
    "sgd": torch.optim.SGD,
    "adagrad": torch.optim.Adagrad,
    "rowwise_adagrad": RowWiseAdagrad,
}
WIDTHS = (4, 16, 64)
"""Rows of fewer than eight elements share a bound, others have their own."""


@dataclass(frozen=True, kw_only=True)
class Fault:
    """What goes wrong in a training; as it stands, nothing does."""

    rate: float = 1.0
    """What the learning rate is multiplied by."""
    means: tuple[str, ...] = ("liked", "played")
    """Features whose ids have their mean taken."""
    ranks: int = RANKS
    """Ranks over which gradients of tables are averaged."""
    eps_within: bool = False
    """Whether Adagrad's eps is added below the root."""
    decays: bool = True
    """Whether weights decay, where they should."""
    applied: int = 1
    """Times that the row takes its step, once."""
    state: float = 1.0
    """What the row's state is multiplied by, once."""
    drops: bool = False
    """Whether a bag loses one of two ids that are the same, once."""


RIGHT = Fault()
FAULTS = {
    "the learning rate is a hundredth too high": Fault(rate=1.01),
    "a row's gradient is applied twice": Fault(applied=2),
    "one feature has its sum for its mean": Fault(means=("liked",)),
    "gradients are averaged over a rank too few": Fault(ranks=RANKS - 1),
    "one of two equal ids is dropped": Fault(drops=True),
}
WITH_STATES = {
    "the learning rate is a ten-thousandth too high": Fault(rate=1.0001),
    "a row's state is a hundredth too large": Fault(state=1.01),
    "a row's state is lost": Fault(state=0.0),
    "eps is below the root": Fault(eps_within=True),
}


@cache
def steps_of() -> list[tuple[dict[str, tuple[Tensor, Tensor]], Tensor]]:
    """Ids and lengths of each feature, and the labels, by step; one bag of the step that goes wrong
    has the row twice."""
    draw = torch.Generator().manual_seed(0)
    found = []
    for step in range(STEPS):
        features = {}
        for feature, name in FEATURES.items():
            lengths = torch.randint(1, 5, (SAMPLES,), generator=draw)
            ids = torch.randint(0, TABLES[name][0], (int(lengths.sum()),), generator=draw)
            if (step, feature) == (WRONG, "heard"):
                ids = torch.cat([torch.tensor([ROW, ROW]), ids[int(lengths[0]) :]])
                lengths[0] = 2
            features[feature] = ids, lengths
        found.append((features, torch.randint(0, 2, (SAMPLES,), generator=draw).float()))
    return found


def starts_of(dim: int) -> tuple[dict[str, Tensor], nn.Linear]:
    """The tables and the layer over them, alike in every call."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        tables = {name: torch.rand(rows, dim) - 0.5 for name, (rows, _) in TABLES.items()}
        return tables, nn.Linear(dim * len(FEATURES), 1)


def loss_of(over: nn.Linear, pooled: Tensor, labels: Tensor) -> Tensor:
    return nn.functional.binary_cross_entropy_with_logits(over(pooled).squeeze(1), labels)


@cache
def torchrecs(kind: TableOptimizerName, dim: int, decay: float) -> tuple[dict[str, Tensor], Bounds]:
    """TorchRec's training, fused tables and all, and what rounding can do to it."""

    def train(rounding: AbstractContextManager[object]) -> dict[str, Tensor]:
        starts, over = starts_of(dim)
        options: dict[str, Any] = {"lr": RATE, "eps": EPS}
        if decay:
            options |= {"weight_decay": decay, "weight_decay_mode": WeightDecayMode.L2}
        collection = FusedEmbeddingBagCollection(
            tables=[
                EmbeddingBagConfig(
                    name=name,
                    embedding_dim=dim,
                    num_embeddings=rows,
                    feature_names=features,
                    pooling=PoolingType.SUM if name == "songs" else PoolingType.MEAN,
                )
                for name, (rows, features) in TABLES.items()
            ],
            optimizer_type=OPTIMIZERS[kind],
            optimizer_kwargs=options,
            device=torch.device("cpu"),
        )
        weights = {name.split(".")[1]: table for name, table in collection.named_parameters()}
        for name, table in weights.items():
            table.data.copy_(starts[name])
        dense = torch.optim.SGD(over.parameters(), RATE)
        losses = []
        with rounding:
            for features, labels in steps_of():
                dense.zero_grad()
                keyed = KeyedJaggedTensor(
                    keys=list(features),
                    values=torch.cat([ids for ids, _ in features.values()]),
                    lengths=torch.cat([lengths for _, lengths in features.values()]),
                )
                pooled = collection(keyed)
                loss = loss_of(over, torch.cat([pooled[key] for key in FEATURES], 1), labels)
                loss.backward()
                dense.step()
                losses.append(loss.item())
        states = {
            name.split(".")[0]: state.reshape(len(state), -1)
            for name, each in collection.fused_optimizer().state_dict()["state"].items()
            for state in each.values()
        }
        return outcome(losses, weights, states, over)

    expected, bounds = plain_of(train)
    return dict(expected), bounds


def ours(kind: TableOptimizerName, dim: int, decay: float, fault: Fault) -> dict[str, Tensor]:
    """The same training in plain torch, with what goes wrong in it."""
    starts, over = starts_of(dim)
    tables = {name: nn.Parameter(start) for name, start in starts.items()}
    width = 1 if kind == "rowwise_adagrad" else dim
    states = {name: torch.zeros(len(table), width) for name, table in tables.items()}
    dense = torch.optim.SGD(over.parameters(), RATE)
    losses = []
    for step, (features, labels) in enumerate(steps_of()):
        dense.zero_grad()
        pooled = []
        for feature, (ids, lengths) in features.items():
            if fault.drops and (step, feature) == (WRONG, "heard"):
                ids, lengths = ids[1:], torch.cat([torch.tensor([1]), lengths[1:]])
            pooled.append(
                nn.functional.embedding_bag(
                    ids,
                    tables[FEATURES[feature]],
                    lengths.cumsum(0) - lengths,
                    mode="mean" if feature in fault.means else "sum",
                )
            )
        loss = loss_of(over, torch.cat(pooled, 1), labels)
        loss.backward()
        dense.step()
        losses.append(loss.item())
        for name, table in tables.items():
            assert table.grad is not None
            gradient, table.grad = table.grad * RANKS / fault.ranks, None
            hit = (step, name) == (WRONG, "songs")
            if hit:
                states[name][ROW] *= fault.state
            with torch.no_grad():
                moved = change(kind, table, gradient, states[name], decay, fault)
                if hit:
                    moved[ROW] *= fault.applied
                table += moved
    return outcome(losses, tables, states if kind != "sgd" else {}, over)


def change(
    kind: TableOptimizerName,
    table: Tensor,
    gradient: Tensor,
    state: Tensor,
    decay: float,
    fault: Fault,
) -> Tensor:
    """What a step adds to the table; rows that were not looked up stay, and do not decay."""
    rate = RATE * fault.rate
    if kind == "sgd":
        return -rate * gradient
    touched = gradient.ne(0).any(dim=1, keepdim=True)
    whole = gradient + (decay if fault.decays else 0) * table * touched
    squares = whole.square()
    state += squares if kind == "adagrad" else squares.mean(dim=1, keepdim=True)
    scales = (state + EPS).sqrt() if fault.eps_within else state.sqrt() + EPS
    return -rate * whole / scales


def outcome(
    losses: list[float], tables: dict[str, Any], states: dict[str, Tensor], over: nn.Linear
) -> dict[str, Tensor]:
    return {
        "losses": torch.tensor(losses),
        **{f"table {name!r}": table.detach().clone() for name, table in tables.items()},
        **{f"state {name!r}": state.clone() for name, state in states.items()},
        **{f"dense {name!r}": value.detach().clone() for name, value in over.named_parameters()},
    }


CASES: list[tuple[TableOptimizerName, str]] = [
    (kind, what)
    for kind in TABLE_OPTIMIZERS
    for what in [*FAULTS, *([] if kind == "sgd" else WITH_STATES)]
]


@pytest.mark.parametrize("dim", WIDTHS)
@pytest.mark.parametrize("kind", TABLE_OPTIMIZERS)
def test_plain_torch_is_at_parity_with_torchrec(kind: TableOptimizerName, dim: int) -> None:
    assert_alike(ours(kind, dim, 0.0, RIGHT), *torchrecs(kind, dim, 0.0))


@pytest.mark.parametrize("dim", WIDTHS)
@pytest.mark.parametrize(("kind", "what"), CASES)
def test_a_fault_is_found(kind: TableOptimizerName, what: str, dim: int) -> None:
    """In a table: that a loss or a state shows it besides does not count."""
    wrong = ours(kind, dim, 0.0, (FAULTS | WITH_STATES)[what])
    with pytest.raises(AssertionError, match="table '"):
        assert_alike(wrong, *torchrecs(kind, dim, 0.0))


@pytest.mark.parametrize("dim", WIDTHS)
def test_weights_that_do_not_decay_are_found(dim: int) -> None:
    expected = torchrecs("rowwise_adagrad", dim, DECAY)
    assert_alike(ours("rowwise_adagrad", dim, DECAY, RIGHT), *expected)
    with pytest.raises(AssertionError, match="table '"):
        assert_alike(ours("rowwise_adagrad", dim, DECAY, Fault(decays=False)), *expected)


ROW_WISE = BySharding("row_wise")


@dataclass(frozen=True, kw_only=True)
class Wrong:
    """Row-wise TorchRec with something wrong in it."""

    rate: float = 1.0
    """What the tables' learning rate is multiplied by."""
    mean: str = ""
    """A table whose ids have their mean taken, for their sum."""

    def __call__(self, model: nn.Module, optimizer: OptimizerSettings) -> Arranged:
        assert isinstance(model, Probe)
        for config in model.bags.embedding_bag_configs():
            if config.name == self.mean:
                config.pooling = PoolingType.MEAN
        wrong = dataclasses.replace(optimizer, tables_lr=self.rate * optimizer.tables_lr)
        return ROW_WISE(model, wrong)


@pytest.mark.parametrize(
    ("wrong", "ranks"),
    [
        (Wrong(rate=1.01), 2),
        (Wrong(mean="shop"), 2),
        (Wrong(rate=3 / 2), 3),  # as when gradients of three ranks are averaged over two
    ],
    ids=["rate", "mean", "ranks"],
)
def test_a_fault_on_ranks_is_found_beside_torchrec(
    gloo_pool: GlooPool, wrong: Wrong, ranks: int
) -> None:
    batches = random_batches(SCHEMA, steps=3, world_size=ranks)
    with pytest.raises(AssertionError, match=r"(?s)with sgd on the tables: .*table '"):
        check_parity(gloo_pool, Probe, batches, arrange=wrong, reference=ROW_WISE, tables=["sgd"])


def test_a_dropped_id_is_found_beside_torchrec(gloo_pool: GlooPool) -> None:
    """One of two that are the same, of one bag of 96."""
    batches = random_batches(SCHEMA, steps=3)
    whole, dropped = (with_first_bag(batches, ids) for ids in ([3, 3, 5], [3, 5]))
    with pytest.raises(
        AssertionError, match=r"(?s)with sgd on the tables: .*table 'item' at row 3"
    ):
        check_parity(
            gloo_pool,
            Probe,
            dropped,
            arrange=ROW_WISE,
            reference=ROW_WISE,
            reference_batches=whole,
            tables=["sgd"],
        )


def with_first_bag(batches: Sequence[Sequence[Batch]], ids: list[int]) -> list[Sequence[Batch]]:
    """The batches, of which the last of the first rank has these ids in its first bag of items."""
    *others, (first, *rest) = batches
    lists = to_lists(first.features)
    lists["item"][0] = ids
    return [*others, [dataclasses.replace(first, features=from_lists(lists)), *rest]]
