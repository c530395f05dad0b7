"""Rung 1 (values): the poolings that have a way of their own on CUDA, held to the CPU's."""

from __future__ import annotations

import pytest
import torch
from emulated import EmulatedCuda, held, on_device
from emulated_attention import Calls, attention_of_cuda
from torch import Tensor

from recd_dlrm.poolings import whole_rows
from recd_dlrm.poolings.transformer import Transformer, TransformerConfig
from recd_plugins.compat.pytorch import attends_rows


def pooled(pooling: Transformer, values: Tensor, lengths: Tensor) -> list[Tensor]:
    """What it makes of the rows, and its gradients."""
    values = values.detach().requires_grad_()
    found = pooling(values, lengths)
    weights = torch.arange(1.0, 1 + found.numel()).view_as(found) / found.numel()
    wanted = [values, *pooling.parameters()]
    loss = (found * weights.to(found.device)).sum()
    return [held(one) for one in (found, *torch.autograd.grad(loss, wanted))]


def same_on_both(lengths: list[int], dim: int, config: TransformerConfig) -> Calls:
    """The calls of attention of a step on CUDA, whose values and gradients are the CPU's."""
    torch.manual_seed(0)
    pooling = Transformer(dim, config)
    values, rows = torch.randn(sum(lengths), dim), torch.tensor(lengths).int()
    here = pooled(pooling, values, rows)
    with attention_of_cuda() as calls, EmulatedCuda():
        for module in pooling.modules():
            for name, parameter in module.named_parameters(recurse=False):
                there = torch.nn.Parameter(on_device(parameter))
                setattr(module, name, there)
        found = pooled(pooling, on_device(values), on_device(rows))
    for one, its in zip(found, here, strict=True):
        torch.testing.assert_close(one, its, rtol=1e-4, atol=1e-5)
    return calls


@pytest.mark.parametrize("output", ["mean", "last"])
@pytest.mark.parametrize("dim", [6, 8, 20, 64])
def test_heads_of_any_width_are_attended_to(dim: int, output: str) -> None:
    """CUDA's kernels take those of whole 16 bytes: 4 numbers of float32."""
    config = TransformerConfig(layers=2, positions=5, output=output)  # type: ignore[arg-type]
    assert len(same_on_both([3, 0, 1, 70, 0], dim, config)) == 2


@pytest.mark.parametrize("output", ["mean", "last"])
def test_a_few_long_rows_cost_their_own_memory_alone(
    monkeypatch: pytest.MonkeyPatch, output: str
) -> None:
    """One call would keep 8 blocks of queries for each row."""
    config = TransformerConfig(output=output)  # type: ignore[arg-type]
    monkeypatch.setattr(whole_rows, "CALL_BYTES", 20 * 2 * 64 * 64 * 4)
    lengths = [5, 0, 500, 64, 65, 3, 120, 0, *[1] * 25]
    calls = same_on_both(lengths, 8, config)
    assert len(calls) == 4
    assert max(calls) <= 20


def test_more_rows_than_cuda_launches_are_several_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(whole_rows, "MOST_ROWS", 4)
    assert len(same_on_both([2, 1, 0, 3, 1, 2, 2, 9, 1, 1], 8, TransformerConfig())) == 3


@pytest.mark.parametrize(("capability", "taken"), [((7, 5), False), ((8, 0), True)])
def test_bfloat16_is_for_gpus_that_have_kernels_for_it(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], taken: bool
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    values = torch.zeros(3, 8)
    with attention_of_cuda(), EmulatedCuda():
        assert attends_rows(on_device(values.bfloat16())) is taken
        assert attends_rows(on_device(values))
        assert not attends_rows(on_device(values.double()))
    assert not attends_rows(values)
