"""Value tests: replicas' rows are stepped as fbgemm's kernels on the CPU do, and where it has none,
as torch's optimizers do, or formulas written out row by row."""

from __future__ import annotations

import itertools
import math
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import pytest
import torch
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation, PoolingMode
from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
    ComputeDevice,
    SplitTableBatchedEmbeddingBagsCodegen,
    WeightDecayMode,
)
from torch import Tensor

from recd_plugins.errors import DataError
from recd_plugins.testing.parity import assert_alike
from recd_plugins.testing.rounding import plain_of
from recd_plugins.tiers.row_optimizer import Decay, OptimizerKind, RowOptimizer

ROWS, DIM, STEPS = 12, 8, 6
ULPS = {"rtol": 1e-6, "atol": 1e-7}
"""One step, of which a sum over a row may be added up in another order."""


def drawn(seed: int) -> Tensor:
    return torch.randn(ROWS, DIM, generator=torch.Generator().manual_seed(seed))


def kernel_of(
    kind: EmbOptimType, pooling: PoolingMode, features: int, **options: Any
) -> SplitTableBatchedEmbeddingBagsCodegen:
    kernel = SplitTableBatchedEmbeddingBagsCodegen(
        [(ROWS, DIM, EmbeddingLocation.HOST, ComputeDevice.CPU)],
        feature_table_map=[0] * features,
        optimizer=kind,
        learning_rate=0.1,
        eps=1e-3,
        pooling_mode=pooling,
        **options,
    )
    kernel.split_embedding_weights()[0].copy_(drawn(0))
    return kernel


def by_kernel(
    kind: EmbOptimType,
    pooling: PoolingMode,
    features: int,
    rounding: AbstractContextManager[object],
    **options: Any,
) -> dict[str, Tensor]:
    """Rows and state after some steps, each row looked up once by one of the features."""
    kernel = kernel_of(kind, pooling, features, **options)
    offsets = torch.cat([torch.arange(ROWS + 1), torch.full([(features - 1) * ROWS], ROWS)])
    steps = [drawn(step + 1) for step in range(STEPS)]
    with rounding:
        for step in steps:
            out = kernel(torch.arange(ROWS), offsets)
            gradient = torch.zeros_like(out)
            gradient[:ROWS, :DIM] = step
            out.backward(gradient)
    states = kernel.split_optimizer_states()
    state = states[0][0].reshape(ROWS, -1) if states else torch.empty(ROWS, 0)
    return {"rows": kernel.split_embedding_weights()[0].detach(), "state": state}


def by_replicas(optimizer: RowOptimizer) -> dict[str, Tensor]:
    """Every second row of a table, and their state."""
    rows, state = torch.empty(2 * ROWS, DIM)[::2], torch.zeros(ROWS, optimizer.state_width(DIM))
    rows.copy_(drawn(0))
    for step in range(STEPS):
        optimizer.update(rows, state, torch.arange(ROWS), drawn(step + 1))
    return {"rows": rows, "state": state}


DECAYS: list[tuple[Decay, WeightDecayMode]] = [
    ("none", WeightDecayMode.NONE),
    ("l2", WeightDecayMode.L2),
    ("decoupled", WeightDecayMode.DECOUPLE),
]


@pytest.mark.parametrize(("decay", "mode"), DECAYS)
@pytest.mark.parametrize("pooling", [PoolingMode.NONE, PoolingMode.SUM])
def test_rowwise_adagrad_decays_weights_as_fbgemm_does(
    decay: Decay, mode: WeightDecayMode, pooling: PoolingMode
) -> None:
    """Rows, and bags of a table that two features look up."""
    options = {"weight_decay": 0.3, "weight_decay_mode": mode, "max_norm": 0.5}
    features = 2 if pooling is PoolingMode.SUM else 1
    fbgemms = partial(by_kernel, EmbOptimType.EXACT_ROWWISE_ADAGRAD, pooling, features, **options)
    ours = by_replicas(
        RowOptimizer(
            kind="rowwise_adagrad", learning_rate=0.1, eps=1e-3, weight_decay=0.3, decay=decay
        )
    )
    expected, bounds = plain_of(fbgemms)
    assert_alike(ours, expected, bounds)
    assert bounds["rows"].max() < 1e-5  # far below what decay makes of rows, and of their steps
    assert (ours["rows"].norm(dim=1) > 0.5).any()  # on the CPU, max_norm is never read


def test_rowwise_adagrad_in_one_pass_is_that_of_torch() -> None:
    """Some rows, of a length that is no multiple of four."""
    optimizer = RowOptimizer(kind="rowwise_adagrad", learning_rate=0.1, eps=1e-3)
    rows, state, which = drawn(0)[:, :7].contiguous(), torch.ones(ROWS, 1), torch.tensor([9, 0, 4])
    expected, states = rows.clone(), state.clone()
    gradients = drawn(1)[:3, :7].contiguous()
    stepped, own = expected[which], states[which]
    optimizer.step(stepped, own, gradients)
    expected[which], states[which] = stepped, own
    optimizer.update(rows, state, which, gradients)
    torch.testing.assert_close((rows, state), (expected, states), **ULPS)


@pytest.mark.parametrize(
    ("which", "gradients", "states"),
    [([0, -1], 2, 12), ([12], 1, 12), ([0, 1], 1, 12), ([0], 1, 11)],
)
def test_rows_that_are_not_there_are_refused(which: list[int], gradients: int, states: int) -> None:
    optimizer = RowOptimizer(kind="rowwise_adagrad", learning_rate=0.1)
    rows, state = drawn(0), torch.zeros(states, 1)
    with pytest.raises(DataError, match=r"none of 12, or .* give all ranks the same plan"):
        optimizer.update(rows, state, torch.tensor(which), drawn(1)[:gradients])
    assert torch.equal(rows, drawn(0))
    assert not state.any()


def test_fbgemm_leaves_decay_out_of_bags_of_one_feature_on_the_cpu() -> None:
    found = [
        by_kernel(
            EmbOptimType.EXACT_ROWWISE_ADAGRAD,
            PoolingMode.SUM,
            1,
            nullcontext(),
            weight_decay=decay,
            weight_decay_mode=WeightDecayMode.L2,
        )
        for decay in (0.3, 0.0)
    ]
    assert torch.equal(found[0]["rows"], found[1]["rows"])
    assert torch.equal(found[0]["state"], found[1]["state"])


@pytest.mark.parametrize("kind", ["sgd", "adagrad"])
def test_options_that_kernels_never_read_change_nothing(kind: OptimizerKind) -> None:
    options = {"weight_decay": 0.3, "weight_decay_mode": WeightDecayMode.L2, "max_norm": 0.5}
    fbgemms = partial(by_kernel, EmbOptimType(f"exact_{kind}"), PoolingMode.NONE, 1, **options)
    ours = by_replicas(RowOptimizer(kind=kind, learning_rate=0.1, eps=1e-3))
    assert_alike(ours, *plain_of(fbgemms))


@pytest.mark.parametrize("decay", [0.0, 0.2])
def test_adam_is_torchs(decay: float) -> None:
    """With weight decay AdamW: fbgemm decays beside the moments."""
    weights = torch.nn.Parameter(drawn(0))
    adam = torch.optim.AdamW([weights], lr=0.1, eps=1e-3, betas=(0.8, 0.95), weight_decay=decay)
    rows, state = drawn(0), torch.zeros(ROWS, 2 * DIM)
    for step in range(STEPS):
        weights.grad = drawn(step + 1)
        adam.step()
        ours = RowOptimizer(
            kind="adam",
            learning_rate=0.1,
            eps=1e-3,
            weight_decay=decay,
            beta1=0.8,
            beta2=0.95,
            forwards=step + 1,
        )
        ours.step(rows, state, drawn(step + 1))
    torch.testing.assert_close(rows, weights.detach(), rtol=1e-5, atol=1e-6)
    found = adam.state[weights]
    torch.testing.assert_close(state, torch.cat([found["exp_avg"], found["exp_avg_sq"]], dim=1))


def test_adam_may_count_the_steps_of_each_row() -> None:
    """Row r is stepped r + 1 times: each as by a torch.optim.Adam of its own."""
    weights = [torch.nn.Parameter(row) for row in drawn(0)]
    adams = [torch.optim.Adam([one], lr=0.1, eps=1e-3, betas=(0.8, 0.95)) for one in weights]
    ours = RowOptimizer(
        kind="adam",
        learning_rate=0.1,
        eps=1e-3,
        beta1=0.8,
        beta2=0.95,
        forwards=99,
        counts_rows=True,
    )
    rows, state = drawn(0), torch.zeros(ROWS, ours.state_width(DIM))
    for step in range(ROWS):
        which = torch.arange(step, ROWS)
        for row in which.tolist():
            weights[row].grad = drawn(step + 1)[row]
            adams[row].step()
        own_rows, own_state = rows[which], state[which]
        ours.step(own_rows, own_state, drawn(step + 1)[which])
        rows[which], state[which] = own_rows, own_state
    expected = torch.stack([one.detach() for one in weights])
    torch.testing.assert_close(rows, expected, rtol=1e-5, atol=1e-6)
    assert state[:, -1].tolist() == list(range(1, ROWS + 1))


@pytest.mark.parametrize("kind", ["partial_rowwise_adam", "lamb", "partial_rowwise_lamb"])
def test_the_others_are_their_formulas_row_by_row(kind: OptimizerKind) -> None:
    """As fbgemm writes them: partial ones have one second moment a row, and LAMB steps by
    |w| / |r|."""
    b1, b2, rate, eps, decay = 0.8, 0.95, 0.1, 1e-3, 0.2
    partial = kind.startswith("partial")
    rows = drawn(0)
    state = torch.zeros(ROWS, RowOptimizer(kind=kind).state_width(DIM))
    assert state.shape[1] == (DIM + 1 if partial else 2 * DIM)
    weights = [[float(w) for w in row] for row in rows]
    first = [[0.0] * DIM for _ in range(ROWS)]
    second = [[0.0] * DIM for _ in range(ROWS)]
    for t in range(1, STEPS + 1):
        gradients = drawn(t)
        ours = RowOptimizer(
            kind=kind,
            learning_rate=rate,
            eps=eps,
            weight_decay=decay,
            beta1=b1,
            beta2=b2,
            forwards=t,
        )
        ours.step(rows, state, gradients)
        for row in range(ROWS):
            g = [float(x) for x in gradients[row]]
            mean = sum(x * x for x in g) / DIM
            for d in range(DIM):
                square = mean if partial else g[d] * g[d]
                first[row][d] = b1 * first[row][d] + (1 - b1) * g[d]
                second[row][d] = b2 * second[row][d] + (1 - b2) * square
            r = [
                m / (1 - b1**t) / (math.sqrt(v / (1 - b2**t)) + eps) + decay * w
                for m, v, w in zip(first[row], second[row], weights[row], strict=True)
            ]
            ratio = 1.0
            if "lamb" in kind:
                ratio = math.hypot(*weights[row]) / math.hypot(*r)
            weights[row] = [w - rate * ratio * x for w, x in zip(weights[row], r, strict=True)]
    torch.testing.assert_close(rows, torch.tensor(weights), rtol=1e-5, atol=1e-6)
    kept = [
        list(itertools.chain(m, v[:1] if partial else v))
        for m, v in zip(first, second, strict=True)
    ]
    torch.testing.assert_close(state, torch.tensor(kept), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_rows_longer_than_max_norm_are_cut(dtype: torch.dtype) -> None:
    """After each step of row-wise Adagrad, by the rows as they are stored."""
    plain = RowOptimizer(kind="rowwise_adagrad", learning_rate=0.1)
    cutting = RowOptimizer(kind="rowwise_adagrad", learning_rate=0.1, max_norm=2.5)
    before = drawn(0)
    expected, rows = before.clone(), before.clone()
    for optimizer, own in ((plain, expected), (cutting, rows)):
        optimizer.step(own, torch.zeros(ROWS, 1), drawn(1), dtype)
    expected = expected.to(dtype).float()
    norms = expected.norm(dim=1, keepdim=True)
    assert 0 < (norms > 2.5).sum() < ROWS
    torch.testing.assert_close(rows, expected * (2.5 / norms).clamp(max=1))
    assert torch.equal(rows[norms.squeeze(1) < 2.5], expected[norms.squeeze(1) < 2.5])
