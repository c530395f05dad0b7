"""Tables of 16 bits behind tiers: rows alone, then two gloo ranks, held to row-wise TorchRec."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import product

import pytest
import torch
from fbgemm_gpu.split_embedding_configs import EmbOptimType, SparseType
from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation, PoolingMode
from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
    ComputeDevice,
    SplitTableBatchedEmbeddingBagsCodegen,
)
from tiered import Bags, ByTiers, Sequences, batch_of
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torchrec.modules.embedding_configs import DataType

from recd_plugins.errors import CapabilityError
from recd_plugins.planning.tier_plans.tier_plan import Coalesce
from recd_plugins.registry.settings import OptimizerSettings
from recd_plugins.testing.arrange import BySharding
from recd_plugins.testing.gloo import GlooPool
from recd_plugins.testing.parity import TABLE_OPTIMIZERS, train_on
from recd_plugins.tiers.replicas.tier_rows import Share
from recd_plugins.tiers.row_optimizer import OptimizerKind, RowOptimizer
from recd_plugins.tiers.tables import check_rounding

UNIT = 2.0**-11
"""Of the last place of an FP16 number from ½ to 1: all weights are below 1."""
FEW = 0.03
"""Sums of gradients in another order differ by 1e-7: now and then that rounds a weight to the
number next to it. All other weights are equal bit by bit."""


@pytest.mark.parametrize(
    ("model", "coalesce", "kind"),
    [
        *product([Sequences, Bags], ["none"], TABLE_OPTIMIZERS),
        (Bags, "rank", "sgd"),  # row bags
    ],
)
def test_they_train_as_row_wise_torchrec(
    gloo_pool: GlooPool, model: Callable[..., nn.Module], coalesce: Coalesce, kind: OptimizerKind
) -> None:
    optimizer = OptimizerSettings(
        tables=kind, tables_lr=0.1, tables_eps=1e-4, dense="sgd", dense_lr=0.1
    )
    batches = [[batch_of(2 * step + rank, 6) for rank in range(2)] for step in range(20)]
    ours, theirs = (
        train_on(gloo_pool, partial(model, data_type=DataType.FP16), batches, arrange, optimizer)
        for arrange in (ByTiers(2, seed=3, coalesce=coalesce), BySharding("row_wise"))
    )
    for name, table in ours.tables.items():
        moved = (theirs.tables[name] - theirs.start[name]).abs().max()
        assert moved > 8 * UNIT
        assert table.abs().max() < 1
        torch.testing.assert_close(table, theirs.tables[name], atol=UNIT, rtol=0)
        assert (table != theirs.tables[name]).float().mean() < FEW
    # As the few weights that differ are looked up.
    torch.testing.assert_close(ours.losses, theirs.losses, atol=1e-5, rtol=0)


def kernel_of(kind: EmbOptimType, weights: SparseType) -> SplitTableBatchedEmbeddingBagsCodegen:
    """fbgemm's, of a table of 50 rows."""
    return SplitTableBatchedEmbeddingBagsCodegen(
        [(50, 8, EmbeddingLocation.HOST, ComputeDevice.CPU)],
        optimizer=kind,
        learning_rate=0.1,
        eps=1e-4,
        pooling_mode=PoolingMode.NONE,
        weights_precision=weights,
        output_dtype=SparseType.FP32,
    )


@pytest.mark.parametrize("kind", TABLE_OPTIMIZERS)
def test_fp16_rows_are_stepped_bit_by_bit_as_fbgemm_does(kind: OptimizerKind) -> None:
    draw = torch.Generator().manual_seed(0)
    kernel = kernel_of(
        EmbOptimType(f"exact_{kind}".replace("rowwise", "row_wise")), SparseType.FP16
    )
    (rows,) = kernel.split_embedding_weights()
    rows.copy_(torch.rand(50, 8, generator=draw) - 0.5)
    optimizer = RowOptimizer(kind=kind, learning_rate=0.1, eps=1e-4)
    share = Share(rows.clone(), optimizer.state_width(8))
    every = torch.arange(50)
    for _ in range(5):
        gradients = torch.randn(50, 8, generator=draw)
        kernel(every, torch.arange(51)).backward(gradients)
        share.update(every, gradients, optimizer)
    assert torch.equal(share.rows, rows)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("kind", TABLE_OPTIMIZERS)
def test_rows_are_rounded_and_their_state_is_not(kind: OptimizerKind, dtype: torch.dtype) -> None:
    draw = torch.Generator().manual_seed(1)
    before = torch.rand(5, 8, generator=draw).to(dtype)
    gradients = torch.randn(3, 8, generator=draw)
    optimizer = RowOptimizer(kind=kind, learning_rate=0.1, eps=1e-4)
    share, which = Share(before.clone(), optimizer.state_width(8)), torch.tensor([4, 0, 2])
    share.update(which, gradients, optimizer)
    squares = gradients.square()
    if kind == "rowwise_adagrad":
        squares = squares.mean(1, keepdim=True)
    steps = 0.1 * gradients if kind == "sgd" else 0.1 * gradients / (squares.sqrt() + 1e-4)
    close = {"atol": 2 * torch.finfo(dtype).eps, "rtol": 0}
    torch.testing.assert_close(share.rows[which].float(), before[which].float() - steps, **close)
    assert torch.equal(share.rows[[1, 3]], before[[1, 3]])
    assert share.state.dtype == torch.float32
    if kind != "sgd":
        expected = squares.expand(3, share.state.shape[1])
        torch.testing.assert_close(share.state[which], expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_rows_that_cuda_rounds_at_random_are_refused(dtype: torch.dtype) -> None:
    on_cuda = FakeTensorMode()
    with on_cuda:
        halves = torch.empty(0, 8, dtype=dtype, device="cuda")
        floats = torch.empty(0, 8, device="cuda")
    with pytest.raises(CapabilityError, match=r"songs are .* stochastic_rounding: false"):
        check_rounding(["songs"], halves, stochastic=True)
    check_rounding(["songs"], halves, stochastic=False)
    check_rounding(["songs"], floats, stochastic=True)
    check_rounding(["songs"], torch.empty(0, 8, dtype=dtype), stochastic=True)


def test_fbgemm_has_no_kernel_for_bf16_on_the_cpu() -> None:
    """Why BF16 is not held to TorchRec above: there is nothing to hold it to."""
    kernel = kernel_of(EmbOptimType.EXACT_SGD, SparseType.BF16)
    with pytest.raises(NotImplementedError, match="not implemented for 'BFloat16'"):
        kernel(torch.tensor([0]), torch.tensor([0, 1]))
