"""Ladder: pure values, then two and three gloo ranks against an unsharded reference."""

from __future__ import annotations

import dataclasses
import pickle
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Literal

import pytest
import torch
import torch.distributed as dist
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation, PoolingMode
from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
    ComputeDevice,
    SplitTableBatchedEmbeddingBagsCodegen,
)
from torch import Tensor, nn

from recd_plugins.data.batch import Batch
from recd_plugins.registry.settings import OptimizerSettings
from recd_plugins.testing import reference
from recd_plugins.testing.arrange import Arranged, ByRegistry, BySharding
from recd_plugins.testing.batches import random_batch, random_batches
from recd_plugins.testing.gloo import GlooPool, RanksFailed
from recd_plugins.testing.parity import (
    TABLE_OPTIMIZERS,
    TableOptimizerName,
    assert_alike,
    assert_parity,
    check_parity,
    reference_of,
    train_on,
)
from recd_plugins.testing.probe import SCHEMA, Probe
from recd_plugins.testing.reference import TableOptimizer, train_reference
from recd_plugins.testing.rounding import FACTOR, RUNS, Rounding, bounds_of, plain_of
from recd_plugins.testing.trained import Trained


@dataclass(frozen=True)
class OtherRate:
    """Row-wise with a multiple of the tables' learning rate: a scale that is wrong."""

    times: float

    def __call__(self, model: nn.Module, optimizer: OptimizerSettings) -> Arranged:
        wrong = dataclasses.replace(optimizer, tables_lr=self.times * optimizer.tables_lr)
        return BySharding("row_wise")(model, wrong)


class TwiceTheLoss(Probe):
    def forward(self, batch: Batch) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor, Tensor]]:
        loss, others = super().forward(batch)
        return 2 * loss, others


def trained(**tables: list[list[float]]) -> Trained:
    full = {name: torch.tensor(rows) for name, rows in tables.items()}
    start = {name: torch.zeros_like(table) for name, table in full.items()}
    return Trained(losses=torch.tensor([[0.5, 0.5]]), tables=full, dense={}, start=start)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        # Two steps with g = (3, 4), lr 0.5, eps 1, from (10, 20).
        ("sgd", [10 - 2 * 1.5, 20 - 2 * 2.0]),
        (
            "adagrad",
            [10 - 1.5 / (3 + 1) - 1.5 / (18**0.5 + 1), 20 - 2 / (4 + 1) - 2 / (32**0.5 + 1)],
        ),
        (
            "rowwise_adagrad",  # s = 12.5, then 25
            [
                10 - 1.5 / (12.5**0.5 + 1) - 1.5 / (5 + 1),
                20 - 2 / (12.5**0.5 + 1) - 2 / (5 + 1),
            ],
        ),
    ],
)
def test_the_reference_optimizers_compute_their_formulas(
    kind: Literal["sgd", "adagrad", "rowwise_adagrad"], expected: list[float]
) -> None:
    table = nn.Parameter(torch.tensor([[10.0, 20.0], [1.0, 2.0]]))
    settings = OptimizerSettings(tables=kind, tables_lr=0.5, tables_eps=1.0)
    optimizer = TableOptimizer(table, settings)
    for _ in range(2):
        table.grad = torch.tensor([[3.0, 4.0], [0.0, 0.0]])
        optimizer.step()
    torch.testing.assert_close(table.data, torch.tensor([expected, [1.0, 2.0]]))


def test_equal_trainings_are_at_parity() -> None:
    assert_parity(trained(items=[[1.0, 2.0]]), trained(items=[[1.0, 2.0 + 1e-7]]))


def test_the_worst_table_row_and_difference_are_named() -> None:
    left = trained(items=[[1.0, 2.0], [3.0, 4.0]], shops=[[1.0, 1.0]])
    right = trained(items=[[1.0, 2.0], [3.0, 4.5]], shops=[[1.0, 1.1]])
    with pytest.raises(AssertionError) as caught:
        assert_parity(left, right)
    assert (
        "table 'items' at row 1, column 1: 4 is not 4.5 (difference 0.5, rounding explains "
        "2.15e-06); 1 of 2 rows differ, in 2 of 2"
    ) in str(caught.value)


def test_a_number_alone_has_a_bound_of_its_own() -> None:
    """As the steps that Adam counts have."""
    bounds = bounds_of({"step": torch.tensor(1.0)}, {"step": torch.tensor(2.0)})
    assert bounds["step"] == FACTOR * (1 + 2 * torch.finfo(torch.float32).eps)


class WithAnEmptyLayer(Probe):
    def __init__(self) -> None:
        super().__init__()
        self.register_parameter("nothing", nn.Parameter(torch.empty(3, 0)))


def test_parameters_without_elements_are_at_parity() -> None:
    batches = random_batches(SCHEMA, steps=2)
    reference = reference_of(WithAnEmptyLayer, batches, optimizer=settings("sgd"))
    assert reference.bounds["dense parameter 'nothing'"].shape == (3, 0)
    assert_parity(reference.trained, *reference)


def test_a_wrong_loss_is_named_by_step_and_rank() -> None:
    left = trained(items=[[1.0]])
    right = dataclasses.replace(left, losses=torch.tensor([[0.5, 0.75]]))
    with pytest.raises(AssertionError, match=r"losses at step 0, rank 1: 0.5 is not 0.75"):
        assert_parity(left, right)


def test_nan_is_no_parity() -> None:
    both = trained(items=[[float("nan")]])
    with pytest.raises(AssertionError, match="difference inf"):
        assert_parity(both, both)


def test_a_table_on_one_side_alone_and_another_shape_are_named() -> None:
    with pytest.raises(AssertionError, match="only one side has table 'shops'"):
        assert_parity(trained(items=[[1.0]], shops=[[1.0]]), trained(items=[[1.0]]))
    with pytest.raises(AssertionError, match=r"shapes \[1, 1\] and \[1, 2\] differ"):
        assert_parity(trained(items=[[1.0]]), trained(items=[[1.0, 2.0]]))


def test_a_table_that_did_not_move_proves_nothing() -> None:
    idle = trained(items=[[0.0]])
    with pytest.raises(AssertionError, match="'items' has not changed"):
        assert_parity(idle, idle)
    assert_parity(idle, idle, unmoved=["items"])


def test_sgd_must_be_among_the_optimizers(gloo_pool: GlooPool) -> None:
    with pytest.raises(ValueError, match="must include 'sgd'"):
        check_parity(gloo_pool, Probe, [], tables=["adagrad"])


@pytest.mark.parametrize("kind", ["row_wise", "table_wise"])
def test_sharded_training_equals_the_reference(
    gloo_pool: GlooPool, kind: Literal["row_wise", "table_wise"]
) -> None:
    check_parity(gloo_pool, Probe, random_batches(SCHEMA, steps=3), arrange=BySharding(kind))


def test_column_shards_are_put_together(gloo_pool: GlooPool) -> None:
    """Without row-wise Adagrad, of which TorchRec keeps one state for each column shard."""
    batches = random_batches(SCHEMA, steps=3)
    arrange = BySharding("column_wise")
    check_parity(gloo_pool, Probe, batches, arrange=arrange, tables=["sgd", "adagrad"])


def test_three_ranks_with_batches_of_uneven_size_equal_the_reference(gloo_pool: GlooPool) -> None:
    """Table-wise: row-wise bags need batches of one size on all ranks (TorchRec 1.8, gloo)."""
    batches = [
        [random_batch(SCHEMA, 5 + 7 * rank, seed=10 * step + rank) for rank in range(3)]
        for step in range(3)
    ]
    check_parity(gloo_pool, Probe, batches, arrange=BySharding("table_wise"), tables=["sgd"])


def test_a_registry_arranges_and_another_arrangement_can_be_the_reference(
    gloo_pool: GlooPool,
) -> None:
    check_parity(
        gloo_pool,
        Probe,
        random_batches(SCHEMA, steps=2),
        arrange=ByRegistry({"plugins": []}),
        reference=BySharding("row_wise"),
        tables=["sgd"],
    )


def test_a_registry_is_an_arrangement(gloo_pool: GlooPool) -> None:
    """As an author of a plugin writes it: by the public names alone."""
    check_parity(
        gloo_pool,
        Probe,
        random_batches(Probe.schema, steps=2),
        arrange={
            "plugins": ["recd_dedup", "recd_scars"],
            "dedup": {"use": "exact", "groups": [["history"], ["seen"]]},
            "cache": {"use": "scars", "size": "hit_rate", "hit_rate": 0.5, "hot_batches": False},
        },
        tables=["sgd"],
    )


def made_by_registry(registry: Mapping[str, object]) -> str:
    """On a rank: the kind of features that a batch comes to have."""
    batches = random_batches(SCHEMA, steps=2)
    arranged = ByRegistry(registry, batches)(Probe(), settings("sgd"))
    return type(arranged.convert(batches[0][dist.get_rank()]).features).__name__


def test_a_registry_converts_batches(gloo_pool: GlooPool) -> None:
    dedup = {"use": "exact", "groups": [["history"]]}
    registry = {"plugins": ["recd_dedup"], "dedup": dedup}
    assert gloo_pool.run(made_by_registry, registry) == ["SparseFeatures"] * 2
    assert gloo_pool.run(made_by_registry, {}) == ["KeyedJaggedTensor"] * 2


def test_what_a_registry_switches_on_in_vain_proves_nothing(gloo_pool: GlooPool) -> None:
    registry = {
        "plugins": ["recd_scars"],
        "cache": {"use": "scars", "size": "hit_rate", "hit_rate": 0.5, "hot_batches": False},
        "callbacks": [{"use": "clipping", "norm": 1.0}],
    }
    with pytest.raises(RanksFailed, match=r"callbacks\[0\]: clipping is not used"):
        check_parity(gloo_pool, Probe, random_batches(SCHEMA, steps=1), arrange=registry)


def test_a_wrong_gradient_scale_is_found_and_named(gloo_pool: GlooPool) -> None:
    """With SGD; with Adagrad alone a scaled gradient would pass."""
    batches = random_batches(SCHEMA, steps=1)
    with pytest.raises(AssertionError, match=r"(?s)with sgd .*moved 2 times as far") as caught:
        check_parity(gloo_pool, Probe, batches, arrange=OtherRate(2))
    assert "losses" not in str(caught.value)  # one step: the forward pass agreed
    adagrad = OptimizerSettings(tables="adagrad", dense="sgd")
    sharded = train_on(gloo_pool, TwiceTheLoss, batches, BySharding("row_wise"), adagrad)
    plain = train_reference(Probe, batches, optimizer=adagrad)
    assert (sharded.tables["item"] - plain.tables["item"]).abs().max() < 1e-4


def test_a_gradient_that_is_a_thousandth_too_large_is_found(gloo_pool: GlooPool) -> None:
    batches = random_batches(SCHEMA, steps=3)
    with pytest.raises(AssertionError, match=r"with sgd on the tables: .*rounding explains"):
        check_parity(gloo_pool, Probe, batches, arrange=OtherRate(1.001))


STEPS = random_batches(SCHEMA, steps=12, batch_size=32)


def settings(kind: TableOptimizerName) -> OptimizerSettings:
    return OptimizerSettings(tables=kind, tables_lr=0.1, tables_eps=1e-4, dense="sgd", dense_lr=0.1)


@pytest.mark.parametrize("kind", TABLE_OPTIMIZERS)
def test_trainings_that_round_otherwise_are_at_parity(kind: TableOptimizerName) -> None:
    reference = reference_of(Probe, STEPS, optimizer=settings(kind))
    for seed in range(100, 105):
        other = train_reference(Probe, STEPS, optimizer=settings(kind), rounding=Rounding(seed))
        assert_parity(other, *reference)


@pytest.mark.parametrize("kind", TABLE_OPTIMIZERS)
def test_one_lost_sample_of_hundreds_is_found(kind: TableOptimizerName) -> None:
    lost = [list(step) for step in STEPS]
    weights = lost[5][1].weights.clone()
    weights[7] = 0
    lost[5][1] = dataclasses.replace(lost[5][1], weights=weights)
    wrong = train_reference(Probe, lost, optimizer=settings(kind))
    with pytest.raises(AssertionError, match="table"):
        assert_parity(wrong, *reference_of(Probe, STEPS, optimizer=settings(kind)))


def test_a_reference_of_equal_batches_is_found_once() -> None:
    first, again, other = (random_batches(SCHEMA, steps=1, batch_size=size) for size in (4, 4, 5))
    found = reference_of(Probe, first, optimizer=settings("sgd"))
    assert reference_of(Probe, again, optimizer=settings("sgd")) is found
    assert reference_of(Probe, other, optimizer=settings("sgd")) is not found


@pytest.mark.parametrize("kind", ["adagrad", "rowwise_adagrad"])
def test_an_optimizer_state_that_stays_behind_is_found(
    kind: TableOptimizerName, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One row's, once: as when replicas are brought home without their states."""
    steps = 0

    class Forgets(TableOptimizer):
        def step(self) -> None:
            nonlocal steps
            steps += 1
            if steps == 20:
                self._state[3] = 0
            super().step()

    expected = reference_of(Probe, STEPS, optimizer=settings(kind))
    with monkeypatch.context() as patched:
        patched.setattr(reference, "TableOptimizer", Forgets)
        wrong = train_reference(Probe, STEPS, optimizer=settings(kind))
    with pytest.raises(AssertionError, match="row 3"):
        assert_parity(wrong, *expected)


def test_rows_that_cancel_have_bounds_of_their_own() -> None:
    """Row-wise Adagrad divides what is left of gradients by its own size: noise with the rest.

    Two terms reach each row: of 1 and 2, or in the rows that cancel of 1 and -1. What rounding
    leaves of the latter, up to two units in the last place, is below Adagrad's eps and divided by
    it; the steps of the other rows are as long whatever rounds.
    """
    terms = torch.ones(2, 6, 8)
    terms[1] = 2
    cancel = torch.tensor([False, True, False, False, True, False])
    terms[1, cancel] = -1

    def train(rounding: AbstractContextManager[object]) -> dict[str, Tensor]:
        table = nn.Parameter(torch.ones(6, 8))
        optimizer = TableOptimizer(table, settings("rowwise_adagrad"))
        with rounding:
            for step in range(4):
                table.grad = (terms * 0.5**step).sum(dim=0)
                optimizer.step()
        return {"table": table.detach()}

    trained, bounds = plain_of(train)
    rows = bounds["table"].squeeze(1)
    assert torch.equal(trained["table"][cancel], torch.ones(2, 8))
    assert rows[cancel].min() > 50 * rows[~cancel].max()
    assert rows[~cancel].max() < 1e-5


class Thirds:
    """A training that counts how often it runs."""

    runs = 0

    def __call__(self, rounding: AbstractContextManager[object]) -> dict[str, Tensor]:
        self.runs += 1
        with rounding:
            return {"table": torch.ones(3, 8).cumsum(0) / 3}


def test_bounds_are_widened_while_something_is_beyond_them() -> None:
    expected, bounds = plain_of(train := Thirds())
    table = expected["table"]
    last = table * torch.finfo(table.dtype).eps
    assert_alike({"table": table + last}, expected, bounds)
    assert train.runs == 1
    assert_alike({"table": table + 5 * last}, expected, bounds)
    assert train.runs == 2
    for _ in range(2):
        with pytest.raises(AssertionError, match="table at row"):
            assert_alike({"table": table + 1e-3}, expected, bounds)
    assert_alike({"table": table + 5 * last}, expected, bounds)
    assert train.runs == 1 + RUNS
    assert pickle.loads(pickle.dumps(bounds))["table"].equal(bounds["table"])


def test_bounds_that_are_wider_by_more_need_fewer_trainings() -> None:
    expected, bounds = plain_of(train := Thirds())
    table, more = expected["table"], {"table": torch.full((3, 8), 1e-3)}
    more_of_them = bounds.plus(more)
    assert_alike({"table": table + 1e-3}, expected, more_of_them)
    assert train.runs == 1
    with pytest.raises(AssertionError, match="table at row"):
        assert_alike({"table": table + 1.1e-3}, expected, more_of_them)
    assert train.runs == 1 + RUNS
    assert more_of_them["table"].min() > 1e-3


def held_on_ranks(off: Sequence[float]) -> tuple[int, str]:
    """How often a rank trained, and what it found, where its result is so far off."""
    runs = 0

    def train(rounding: AbstractContextManager[object]) -> dict[str, Tensor]:
        nonlocal runs
        runs += 1
        whole = torch.ones(8)
        dist.all_reduce(whole)
        return {"table": whole}

    expected, bounds = plain_of(train)
    try:
        assert_alike({"table": expected["table"] + off[dist.get_rank()]}, expected, bounds)
    except AssertionError as error:
        return runs, str(error)
    return runs, ""


def test_what_one_rank_finds_beyond_the_bounds_has_all_widen_them(gloo_pool: GlooPool) -> None:
    assert gloo_pool.run(held_on_ranks, (0, 0)) == [(1, "")] * 2
    (first, nothing), (other, wrong) = gloo_pool.run(held_on_ranks, (0, 0.5))
    assert first == other == 1 + RUNS
    assert nothing == ""
    assert wrong.startswith("table at row 0: 2.5 is not 2 ")


@pytest.mark.parametrize("pooling", [PoolingMode.SUM, PoolingMode.NONE])
def test_fused_tables_round_too(pooling: PoolingMode) -> None:
    """What they sum and what they update; rows that nobody looked up stay as they are."""

    def trained_table(rounding: AbstractContextManager[object]) -> tuple[Tensor, Tensor]:
        place = (5, 8, EmbeddingLocation.HOST, ComputeDevice.CPU)
        table = SplitTableBatchedEmbeddingBagsCodegen(
            [place], optimizer=EmbOptimType.EXACT_SGD, learning_rate=0.1, pooling_mode=pooling
        )
        (weights,) = table.split_embedding_weights()
        weights.fill_(0.3)
        with rounding:
            found = table(torch.tensor([0, 1, 1, 3]), torch.tensor([0, 2, 4]))
            found.backward(torch.full_like(found, 0.7))
        return found.detach(), weights.detach()

    found, weights = trained_table(nullcontext())
    other, others = trained_table(Rounding(0))
    torch.testing.assert_close(others, weights)
    assert torch.equal(other, found) is (pooling is PoolingMode.NONE)
    moved = (others != weights).any(dim=1)
    assert moved.tolist() == [True, True, False, True, False]


def test_bounds_of_a_training_stay_far_below_its_steps() -> None:
    """A step of row-wise Adagrad is of the size of its rate, 0.1."""
    bounds = reference_of(Probe, STEPS, optimizer=settings("rowwise_adagrad")).bounds
    assert bounds["table 'item'"].max() < 1e-4
