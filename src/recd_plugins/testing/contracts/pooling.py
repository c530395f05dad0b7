"""The `pooling` slot: sequences to vectors, each row by itself."""

from __future__ import annotations

import copy
from typing import NamedTuple

import torch
from torch import Tensor, nn

from recd_plugins.embedding.pooling import DedupPooling, PoolsUnique
from recd_plugins.embedding.unexpanded import Unexpanded
from recd_plugins.testing.contracts.subject import Subject

__all__ = ["check_pooling"]

DIM = 16
TOLERANCE = 1e-5
"""How much float32 sums of about a hundred terms near 1 differ in another order."""
SHARED_TOLERANCE = 1e-4
"""How much gradients of squares, of size about ten, differ in another order."""
LENGTHS = (3, 0, 1, 7, 2, 0, 40, 5)
"""Rows without values, with one value, and with many."""
LOOKUP = (6, 6, 0, 1, 3, 6, 3)
"""Samples that share such rows."""


class _Rows(NamedTuple):
    """The arguments of a pooling: values [N, D] in rows of lengths [B], queries [B, D]."""

    values: Tensor
    lengths: Tensor
    query: Tensor

    @classmethod
    def draw(cls, lengths: tuple[int, ...], seed: int) -> _Rows:
        generator = torch.Generator().manual_seed(seed)
        return cls(
            values=torch.randn(sum(lengths), DIM, generator=generator, device="cpu"),
            lengths=torch.tensor(lengths, dtype=torch.int64, device="cpu"),
            query=torch.randn(len(lengths), DIM, generator=generator, device="cpu"),
        )

    def take(self, rows: Tensor) -> _Rows:
        parts = self.values.split(self.lengths.tolist())
        chosen = [parts[row] for row in rows.tolist()]
        values = torch.cat([*chosen, self.values.new_empty(0, DIM)])
        return _Rows(values, self.lengths[rows], self.query[rows])


def check_pooling(subject: Subject) -> None:
    factory = subject.build()
    torch.manual_seed(0)
    module = factory(DIM)
    subject.hold(
        isinstance(module, nn.Module),
        "its factory must make an nn.Module of an embedding dimension",
        "Return `lambda dim: MyPooling(dim)`.",
    )
    module.eval()
    for seed in range(3):
        rows = _Rows.draw(LENGTHS, seed)
        pooled = _pool(subject, module, rows)
        empty = pooled[rows.lengths == 0]
        subject.hold(
            bool((empty == 0).all()),
            f"a row of length 0 must become zeros, but became {empty.flatten()[:4].tolist()}...",
            "Mask the rows whose length is 0.",
        )
        _check_independence(subject, module, rows, pooled, seed)
    nothing = _pool(subject, module, _Rows.draw((0, 0, 0), 0))
    subject.hold(
        bool((nothing == 0).all()), "a batch without a value must become zeros", "Mask the rows."
    )
    for lengths in (LENGTHS, (0, 0)):
        _check_gradients(subject, module, _Rows.draw(lengths, 7))
    _check_sharing(subject, module, _Rows.draw(LENGTHS, 8))


def _pool(subject: Subject, module: nn.Module, rows: _Rows) -> Tensor:
    before = [part.clone() for part in rows]
    pooled: Tensor = module(*rows)
    shape = (len(rows.lengths), DIM)
    subject.hold(
        isinstance(pooled, Tensor) and pooled.shape == shape and pooled.dtype == torch.float32,
        f"values {list(rows.values.shape)} in {shape[0]} rows must become float32 {list(shape)}, "
        f"but became {getattr(pooled, 'dtype', type(pooled))} {list(getattr(pooled, 'shape', []))}",
        "Return one vector of the embedding dimension a row.",
    )
    subject.hold(
        all(torch.equal(left, right) for left, right in zip(before, rows, strict=True)),
        "forward must leave its arguments as they are",
        "Do not work in place on values, lengths or query.",
    )
    subject.hold(bool(pooled.isfinite().all()), "the result must be finite", "Look for 0 / 0.")
    return pooled


def _check_independence(
    subject: Subject, module: nn.Module, rows: _Rows, pooled: Tensor, seed: int
) -> None:
    """Some rows, in another order and among other rows, give the same results as before."""
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(rows.lengths), generator=generator, device="cpu")
    among = _Rows.draw((2, 9), seed + 100)
    for chosen in (order, order[:3], order[:1]):
        part = rows.take(chosen)
        mixed = _Rows(*(torch.cat(pair) for pair in zip(part, among, strict=True)))
        for there in (part, mixed):
            result = _pool(subject, module, there)[: len(chosen)]
            gap = (result - pooled[chosen]).abs().max().item()
            subject.hold(
                gap <= TOLERANCE,
                "a row's result must not depend on the other rows, but with other rows around it "
                f"it changed by {gap:.3g}",
                "Reduce over each row alone (no statistics over the batch; mask the padding).",
            )


def _check_gradients(subject: Subject, module: nn.Module, rows: _Rows) -> None:
    values = rows.values.requires_grad_()
    module.zero_grad()
    result = _pool(subject, module, _Rows(values, rows.lengths, rows.query))
    parameters = dict(module.named_parameters())
    if result.requires_grad:
        result.square().sum().backward()
    gradients = {name: value.grad for name, value in parameters.items() if value.requires_grad}
    gradients["values"] = values.grad
    for name, gradient in gradients.items():
        waits = "DDP waits" if name in parameters else "other ranks wait"
        subject.hold(
            gradient is not None and bool(gradient.isfinite().all()),
            f"{name} must get a finite gradient"
            f"{'' if len(values) else f' even of a batch without a value, or {waits} for it'}",
            "Compute with torch's operators throughout; for an empty batch add 0 * parameter, and "
            "values.sum(0).",
        )


def _check_sharing(subject: Subject, module: nn.Module, rows: _Rows) -> None:
    """Samples that share a row give the same results as samples with a row each."""
    lookup = torch.tensor(LOOKUP, device="cpu")
    samples = rows.take(lookup)._replace(query=_Rows.draw((1,) * len(LOOKUP), 9).query)
    if getattr(module, "needs_query", None) is False:
        other = _pool(subject, module, samples._replace(query=samples.query + 1))
        gap = (other - _pool(subject, module, samples)).abs().max().item()
        subject.hold(
            gap == 0,
            "needs_query = False says that it ignores its query, but on another query its result "
            f"changed by {gap:.3g}",
            "Say needs_query = True, or leave it out if it can do without.",
        )
    values = rows.values.requires_grad_()
    expanded = rows.take(lookup)._replace(query=samples.query)
    unique = (
        Unexpanded.values(values, rows.lengths, lookup),
        Unexpanded.rows(rows.lengths, lookup),
        samples.query,
    )
    found = []
    for pooling, given in ((module, expanded), (DedupPooling(copy.deepcopy(module)), unique)):
        pooled: Tensor = pooling(*given)
        (gradient,) = torch.autograd.grad(pooled.square().sum(), values)
        found.append((pooled.detach() + 0, gradient))
    gaps = [(one - other).abs().max().item() for one, other in zip(*found, strict=True)]
    ours = "pool_unique" if isinstance(module, PoolsUnique) else "the pooling of shared rows"
    subject.hold(
        max(gaps) <= SHARED_TOLERANCE,
        f"{ours} must give each sample what the pooling gives it by itself, but its values and "
        f"their gradients differ by {gaps[0]:.3g} and {gaps[1]:.3g}",
        "Compare with forward on values expanded by inverse_lookup; keep no state between rows.",
    )
