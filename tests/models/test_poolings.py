"""Value and property tests of the poolings, each against a plain loop over the rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from drawn import at_most
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from recd_dlrm import recd_pooling
from recd_dlrm.poolings.attention import (
    Attention,
    AttentionConfig,
    Histories,
    build_attention,
    dot_products,
    weighted_sums,
)
from recd_dlrm.poolings.jagged_attention import chunk_values
from recd_dlrm.poolings.reduce import ReduceConfig, build_max, build_mean, build_sum
from recd_dlrm.poolings.transformer import Transformer, TransformerConfig, build_transformer
from recd_plugins.errors import RegistryError
from recd_plugins.slots import Context, PoolingRecord
from recd_plugins.testing.conformance import check_record

D = 8
Row = Callable[[nn.Module, Tensor, Tensor], Tensor]
"""What a pooling makes of one row: (module, keys [n, D], query [D]) -> [D], for n > 0."""


def attend(pooling: nn.Module, keys: Tensor, query: Tensor) -> Tensor:
    """DIN's eq. 3 as it stands: the activation unit on [q, k, q - k, q * k]."""
    assert isinstance(pooling, Attention)
    q = query.expand_as(keys)
    weights = pooling.rest(pooling.first(torch.cat([q, keys, q - keys, q * keys], dim=1)))
    if pooling.weights == "sigmoid":
        weights = weights.sigmoid()
    if pooling.weights == "softmax":
        weights = weights.softmax(dim=0)
    return (weights * keys).sum(0)


def encode(pooling: nn.Module, keys: Tensor, query: Tensor) -> Tensor:
    """The encoder on one row by itself, without padding."""
    assert isinstance(pooling, Transformer)
    if pooling.positions is not None:
        ages = torch.arange(len(keys)).flip(0).clamp(max=pooling.positions.num_embeddings - 1)
        keys = keys + pooling.positions(ages)
    encoded = pooling.encoder(keys.unsqueeze(0)).squeeze(0)
    return encoded[-1] if pooling.output == "last" else encoded.mean(0)


CASES: dict[str, tuple[Callable[[int], nn.Module], Row]] = {
    "sum": (build_sum(ReduceConfig(), Context()), lambda _, keys, q: keys.sum(0)),
    "mean": (build_mean(ReduceConfig(), Context()), lambda _, keys, q: keys.mean(0)),
    "max": (build_max(ReduceConfig(), Context()), lambda _, keys, q: keys.amax(0)),
    "attention": (build_attention(AttentionConfig(), Context()), attend),
    "attention, sigmoid": (
        build_attention(AttentionConfig(weights="sigmoid", hidden=(12, 6)), Context()),
        attend,
    ),
    "attention, softmax": (build_attention(AttentionConfig(weights="softmax"), Context()), attend),
    "transformer": (build_transformer(TransformerConfig(), Context()), encode),
    "transformer, last of few positions": (
        build_transformer(
            TransformerConfig(heads=4, layers=2, expansion=2, positions=5, output="last"),
            Context(),
        ),
        encode,
    ),
    "transformer, no positions": (
        build_transformer(TransformerConfig(positions=0), Context()),
        encode,
    ),
}


def build(name: str) -> nn.Module:
    torch.manual_seed(1)
    return CASES[name][0](D).double()


def rows(lengths: list[int]) -> tuple[Tensor, Tensor, Tensor]:
    """Random values [N, D] and queries [B, D] that ask for gradients, and the lengths [B]."""
    generator = torch.Generator().manual_seed(sum(lengths))
    shapes = [(sum(lengths), D), (len(lengths), D)]
    values, query = (
        torch.randn(*shape, generator=generator, dtype=torch.double).requires_grad_()
        for shape in shapes
    )
    return values, torch.tensor(lengths), query


def check(name: str, lengths: list[int]) -> None:
    """Values and all gradients equal the loop's; 1e-9 is double's rounding, amplified."""
    values, of_rows, query = rows(lengths)
    pooling, row = build(name), CASES[name][1]
    leaves = [values, query, *pooling.parameters()]

    def gradients(pooled: Tensor) -> list[Tensor]:
        loss = (pooled * torch.arange(1.0, D + 1)).square().sum()
        return list(torch.autograd.grad(loss, leaves, allow_unused=True, materialize_grads=True))

    pooled = pooling(values, of_rows, query)
    wanted = torch.stack(
        [
            row(pooling, keys, q) if len(keys) else q * 0.0
            for keys, q in zip(values.split(lengths), query, strict=True)
        ]
    )
    torch.testing.assert_close(pooled, wanted, rtol=1e-9, atol=1e-9)
    for ours, theirs in zip(gradients(pooled), gradients(wanted), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize(
    "lengths", [[3], [1], [0], [0, 0, 0], [5, 0, 2, 2, 0, 9, 1]], ids=lambda lengths: str(lengths)
)
def test_a_pooling_of_few_rows_equals_a_loop(name: str, lengths: list[int]) -> None:
    check(name, lengths)


def test_a_batch_of_more_values_than_a_chunk_holds() -> None:
    lengths = [200 - row // 4 for row in range(90 * torch.get_num_threads())]
    limit = chunk_values(torch.empty(1, D, dtype=torch.double))
    assert limit is not None
    assert sum(lengths) > limit
    check("transformer", lengths)


@pytest.mark.parametrize("name", CASES)
@settings(deadline=None, max_examples=at_most(15), derandomize=True)
@given(lengths=st.lists(st.integers(0, 30), min_size=1, max_size=20))
def test_a_pooling_equals_a_loop(name: str, lengths: list[int]) -> None:
    check(name, lengths)


@pytest.mark.parametrize("name", CASES)
@settings(deadline=None, max_examples=10, derandomize=True)
@given(lengths=st.lists(st.integers(0, 12), min_size=2, max_size=12), data=st.data())
def test_follows_the_order_of_the_batch(name: str, lengths: list[int], data: st.DataObject) -> None:
    order = data.draw(st.permutations(range(len(lengths))))
    values, of_rows, query = rows(lengths)
    parts = values.split(lengths)
    pooling = build(name)
    pooled = pooling(values, of_rows, query)
    shuffled = pooling(torch.cat([parts[i] for i in order]), of_rows[order], query[order])
    torch.testing.assert_close(shuffled, pooled[order], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", CASES)
def test_every_parameter_has_a_gradient_without_a_value(name: str) -> None:
    """DDP waits for all of them, also on a rank whose histories are all empty."""
    pooling = build(name)
    pooling(*rows([0, 0])).sum().backward()
    assert all(parameter.grad is not None for parameter in pooling.parameters())


@pytest.mark.parametrize("name", CASES)
def test_gradients_reach_values_that_are_none(name: str) -> None:
    """The exchange of a table's gradients waits for all ranks, also for one without an id."""
    values, lengths, query = rows([0, 0])
    build(name)(values, lengths, query).sum().backward()
    assert values.grad is not None


@pytest.mark.parametrize("name", CASES)
def test_evaluation_and_int32_lengths_change_nothing(name: str) -> None:
    values, lengths, query = rows([4, 0, 7, 2, 7])
    pooling = build(name)
    trained = pooling(values, lengths, query)
    with torch.no_grad():
        evaluated = pooling.eval()(values, lengths.int(), query)
    torch.testing.assert_close(evaluated, trained, rtol=1e-9, atol=1e-9)


class Widens(nn.Module):
    """What CUDA's autocast makes of a norm, or of an exponential."""

    def forward(self, numbers: Tensor) -> Tensor:
        return numbers.float()


@pytest.mark.parametrize("name", ["transformer, no positions", "attention"])
def test_values_of_16_bits_may_be_pooled_in_32(name: str) -> None:
    values, lengths, query = (
        one.bfloat16() if one.is_floating_point() else one for one in rows([4, 0, 7, 2, 7])
    )
    pooling = build(name).bfloat16()
    narrow = pooling(values, lengths, query)
    if isinstance(pooling, Transformer):
        pooling.encoder.norm = nn.Sequential(pooling.encoder.norm, Widens())
    else:
        assert isinstance(pooling, Attention)
        pooling.rest.append(Widens())
    wide = pooling(values, lengths, query)
    assert (narrow.dtype, wide.dtype) == (torch.bfloat16, torch.float32)
    torch.testing.assert_close(narrow.float(), wide, rtol=2e-2, atol=2e-2)  # of 8 bits
    wide.sum().backward()


def test_max_sends_the_gradient_of_equal_values_once() -> None:
    values = torch.ones(3, D, requires_grad=True)
    build("max")(values, torch.tensor([3])).sum().backward()
    assert values.grad is not None
    assert values.grad.sum(0).tolist() == [1.0] * D


def test_positions_tell_orders_apart() -> None:
    values, lengths, _ = rows([4])
    for name, differs in [("transformer", True), ("transformer, no positions", False)]:
        pooling = build(name)
        there, back = pooling(values, lengths), pooling(values.flip(0), lengths)
        assert torch.allclose(there, back) is not differs


def test_attention_without_a_query() -> None:
    values, lengths, _ = rows([2])
    with pytest.raises(RegistryError, match="needs a query"):
        build("attention")(values, lengths)


@given(
    lengths=st.lists(st.integers(0, 5), min_size=1, max_size=6),
    width=st.integers(1, 3),
    data=st.data(),
)
def test_products_of_histories_equal_a_loop(
    lengths: list[int], width: int, data: st.DataObject
) -> None:
    counts = data.draw(st.lists(st.integers(0, 4), min_size=len(lengths), max_size=len(lengths)))
    histories = Histories(lengths, counts)
    torch.manual_seed(0)
    keys = torch.randn(sum(lengths), 4, dtype=torch.double, requires_grad=True)
    vectors = torch.randn(sum(counts), width, 4, dtype=torch.double, requires_grad=True)
    pairs, sums = [keys.new_zeros(0, width)], [keys.new_zeros(0, width, 4)]
    weights = torch.randn(histories.num_pairs, width, dtype=torch.double, requires_grad=True)
    parts = weights.split([n * count for n, count in zip(lengths, counts, strict=True)])
    for k, v, w in zip(keys.split(lengths), vectors.split(counts), parts, strict=True):
        pairs.append(torch.einsum("ld,swd->lsw", k, v).flatten(0, 1))
        sums.append(torch.einsum("lsw,ld->swd", w.view(len(k), len(v), width), k))
    for ours, wanted, leaves in [
        (dot_products(keys, vectors, histories), torch.cat(pairs), (keys, vectors)),
        (weighted_sums(keys, weights, histories), torch.cat(sums), (keys, weights)),
    ]:
        torch.testing.assert_close(ours, wanted)
        gradient = torch.randn_like(wanted)
        for one, other in zip(
            torch.autograd.grad(ours, leaves, gradient),
            torch.autograd.grad(wanted, leaves, gradient, materialize_grads=True),
            strict=True,
        ):
            torch.testing.assert_close(one, other)


@pytest.mark.parametrize("record", recd_pooling(), ids=lambda record: record.name)
def test_poolings_keep_the_contract_of_their_slot(record: PoolingRecord[Any]) -> None:
    check_record(record)


def test_options_that_cannot_be() -> None:
    with pytest.raises(RegistryError, match="3 heads cannot share embedding_dim 8"):
        build_transformer(TransformerConfig(heads=3), Context())(D)
    with pytest.raises(RegistryError, match="hidden: must have a layer"):
        AttentionConfig(hidden=())
