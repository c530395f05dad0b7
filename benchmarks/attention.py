"""Jagged attention in padding-budget buckets against padding and nested tensors; and expanding.

    python -m benchmarks.attention [--quick] [--json]

Forward and backward of one pooling, the same weights on the same rows, whose lengths have a
heavy tail: our blocks; TorchRec's way, one padded tensor with a mask through
`nn.TransformerEncoder`; nested tensors (jagged layout) through SDPA, all else unpadded. Then
what unique samples save a pooling (O7), and what expanding costs (O6), S samples a session.

One thread, as each of a machine's ranks has, and CPU time: the same as time where the machine
is idle, and little changed where it is not.
"""

from __future__ import annotations

import statistics
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import fbgemm_gpu  # noqa: F401  # registers torch.ops.fbgemm
import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.harness import Figure, Limit, Report, Round, alternate, dropped, main, spread
from benchmarks.limits import copies, one_after_another, reads
from recd_dlrm.poolings.attention import Attention, AttentionConfig
from recd_dlrm.poolings.transformer import Transformer, TransformerConfig
from recd_plugins.embedding.expand import expand_values
from recd_plugins.embedding.pooling import DedupPooling
from recd_plugins.embedding.unexpanded import Unexpanded

TARGET = 6.0
SEED = 0
DIM = 64
LONGEST = 512
SAMPLES_PER_SESSION = 16
NO_LOSS = 0.98
"""What unique samples must keep of the speed of all samples: a cell's timings differ by 2%."""


def heavy_tailed(rows: int) -> Tensor:
    """[rows] lengths from a Pareto distribution of index 1.2, from 1 to `LONGEST`."""
    drawn = np.random.default_rng(SEED).pareto(1.2, rows) * 10
    return torch.from_numpy(np.clip(drawn, 1, LONGEST).astype(np.int64))


class Padded(nn.Module):
    """One block as long as the longest row, and a mask."""

    def __init__(self, pooling: Transformer) -> None:
        super().__init__()
        self.pooling = pooling

    def forward(self, values: Tensor, lengths: Tensor) -> Tensor:
        assert self.pooling.positions is not None
        longest = int(lengths.max())
        offsets = F.pad(lengths.cumsum(0), (1, 0))
        x: Tensor = torch.ops.fbgemm.jagged_to_padded_dense(values, [offsets], [longest])
        column = torch.arange(longest)
        x = x + self.pooling.positions((lengths.unsqueeze(1) - 1 - column).clamp(min=0))
        padding = column >= lengths.unsqueeze(1)
        x = self.pooling.encoder(x, src_key_padding_mask=padding)
        return x.masked_fill(padding.unsqueeze(2), 0.0).sum(1) / lengths.unsqueeze(1)


class Nested(nn.Module):
    """SDPA on nested tensors; norms and linear layers on the jagged values, unpadded."""

    def __init__(self, pooling: Transformer) -> None:
        super().__init__()
        self.pooling = pooling

    def forward(self, values: Tensor, lengths: Tensor) -> Tensor:
        assert self.pooling.positions is not None
        offsets = F.pad(lengths.cumsum(0), (1, 0))
        ages = torch.repeat_interleave(offsets[1:], lengths) - 1 - torch.arange(len(values))
        x: Tensor = values + self.pooling.positions(ages)
        for layer in self.pooling.encoder.layers:
            attention = layer.self_attn
            packed = F.linear(layer.norm1(x), attention.in_proj_weight, attention.in_proj_bias)
            heads = packed.view(-1, 3, attention.num_heads, attention.head_dim).unbind(1)
            q, k, v = (
                torch.nested.nested_tensor_from_jagged(part.contiguous(), offsets).transpose(1, 2)
                for part in heads
            )
            seen = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).values()
            x = x + attention.out_proj(seen.reshape(x.shape))
            x = x + layer.linear2(layer.activation(layer.linear1(layer.norm2(x))))
        rows = torch.repeat_interleave(torch.arange(len(lengths)), lengths)
        assert self.pooling.encoder.norm is not None
        x = self.pooling.encoder.norm(x)
        return x.new_zeros(len(lengths), DIM).index_add(0, rows, x) / lengths.unsqueeze(1)


LENGTHS = (1, 2, 5, 10, 20, 50, 100, 200, 500)
FACTORS = (1, 2, 4, 8, 16, 30)
"""Of the grid: mean lengths, and samples of a history."""
GRID_VALUES = 1 << 16
"""Values of all samples of one of its cells, at most, but for a batch of the least size."""
LEAST_SAMPLES = 60
LONGER = 5
"""Times the rounds of a cell that seems slower, when it is timed again."""

Side = Callable[[], Tensor]


@dataclass(frozen=True)
class Least:
    """The work that no side can leave out, which is measured beside the sides."""

    run: Callable[[], None]
    of: str
    """What it is, and what it leaves out."""


def step(pooling: nn.Module, values: Tensor, pool: Callable[[], Tensor]) -> Side:
    """Forward and backward; the gradient of the values."""

    def run() -> Tensor:
        pooling.zero_grad()
        (pool() + 0).square().sum().backward()
        gradient, values.grad = values.grad, None
        assert gradient is not None
        return gradient

    return run


def attention(rows: int) -> dict[str, Side]:
    lengths = heavy_tailed(rows)
    values = torch.randn(int(lengths.sum()), DIM, requires_grad=True)
    ours = Transformer(DIM, TransformerConfig())
    sides = {"ours": ours, "padded + mask": Padded(ours), "nested SDPA": Nested(ours)}
    return {
        name: step(ours, values, lambda side=side: side(values, lengths))  # type: ignore[misc]
        for name, side in sides.items()
    }


def products(rows: int) -> Least:
    """Of the layers, on the values of so many rows."""
    num_values = int(heavy_tailed(rows).sum())
    layers = []
    for width, wider in ((DIM, 3 * DIM), (DIM, DIM), (DIM, 4 * DIM), (4 * DIM, DIM)):
        x, weight = torch.randn(num_values, width), torch.randn(wider, width)
        layers.append((x, weight, x @ weight.t()))
    into = [(y.clone(), x.clone(), weight.clone()) for x, weight, y in layers]

    def run() -> None:
        for (x, weight, y), (forward, of_x, of_weight) in zip(layers, into, strict=True):
            torch.mm(x, weight.t(), out=forward)
            torch.mm(y, weight, out=of_x)
            torch.mm(y.t(), x, out=of_weight)

    return Least(
        run,
        "the matrix products of the layers, forward and backward, on the values alone; attention "
        "within rows, norms and activations are left out",
    )


def sharing(
    rows: int, pooling: nn.Module, length: int = 50, samples: int = SAMPLES_PER_SESSION
) -> dict[str, Side]:
    """A pooling of `rows` samples in sessions, and of their unique samples."""
    lengths, lookup = sessions(rows, length, samples)
    values = torch.randn(int(lengths.sum()), DIM, requires_grad=True)
    query = torch.randn(rows, DIM)
    lengths_of_all = lengths[lookup]
    numel = int(lengths_of_all.sum())  # which lookups know too
    adapted = DedupPooling(pooling)

    def all_samples() -> Tensor:
        pooled: Tensor = adapted(expand_values(values, lengths, lookup), lengths_of_all, query)
        return pooled

    def unique_samples() -> Tensor:
        jagged = Unexpanded.values(values, lengths, lookup, numel)
        pooled: Tensor = adapted(jagged, Unexpanded.rows(lengths, lookup), query)
        return pooled

    return {
        "all samples": step(adapted, values, all_samples),
        "unique samples": step(adapted, values, unique_samples),
    }


def expanding(rows: int) -> dict[str, Side]:
    """Embeddings of unique samples to all, and the gradient back."""
    lengths, lookup = sessions(rows)
    values = torch.randn(int(lengths.sum()), DIM, requires_grad=True)
    numel = int(lengths[lookup].sum())
    gradient = torch.randn(numel, DIM)

    def gathered() -> Tensor:
        starts, expanded = (lengths.cumsum(0) - lengths)[lookup], lengths[lookup]
        shift = starts - (expanded.cumsum(0) - expanded)
        where = torch.repeat_interleave(shift, expanded, output_size=numel)
        return values.index_select(0, where + torch.arange(numel))

    def padded() -> Tensor:
        offsets = F.pad(lengths.cumsum(0), (1, 0))
        dense = torch.ops.fbgemm.jagged_to_padded_dense(values, [offsets], [int(lengths.max())])
        chosen: Tensor = dense.index_select(0, lookup)
        return chosen[torch.arange(chosen.shape[1]) < lengths[lookup].unsqueeze(1)]

    ways: dict[str, Side] = {
        "ours": lambda: expand_values(values, lengths, lookup),
        "jagged_index_select": lambda: torch.ops.fbgemm.jagged_index_select(
            values, lengths, lookup
        )[0],
        "index_select": gathered,
        "padded": padded,
    }
    return {
        name: lambda way=way: torch.autograd.grad(way(), values, gradient)[0]  # type: ignore[misc]
        for name, way in ways.items()
    }


def writing(rows: int) -> Least:
    """The embeddings of all samples, and reading their gradients."""
    lengths, lookup = sessions(rows)
    every = np.ones((int(lengths[lookup].sum()), DIM), dtype=np.float32)
    return Least(
        one_after_another(copies([every]), reads([every])),
        "writing the embeddings of all samples, and reading their gradients, each once, by numpy",
    )


def sessions(
    rows: int, length: int = 50, samples: int = SAMPLES_PER_SESSION
) -> tuple[Tensor, Tensor]:
    """Lengths [U] of `length` in the mean, from 1 on, of `rows` samples' lookup, session by
    session."""
    unique = rows // samples
    lengths = torch.from_numpy(np.random.default_rng(SEED).integers(1, 2 * length, unique))
    return lengths, torch.arange(unique).repeat_interleave(samples)


def repeated(side: Side, times: int) -> Side:
    """So many steps of a side; what the last one computed."""

    def run() -> Tensor:
        for _ in range(times - 1):
            side()
        return side()

    return run


def target_grid(
    lengths: Sequence[int],
    factors: Sequence[int],
    samples: int,
    rounds: int,
    values: int = GRID_VALUES,
) -> dict[tuple[int, int], float]:
    """By mean length and samples of a history: how many times faster unique samples are; each
    round of a side computes on some `values`. A cell that seems slower is timed again, longer, and
    that counts."""
    found = {}
    for length, factor in product(lengths, factors):
        rows = max(LEAST_SAMPLES, min(samples, values // length)) // factor * factor
        sides = sharing(rows, Attention(DIM, AttentionConfig()), length, factor)
        # Each round has as many values: of a step of some milliseconds alone a clock says little.
        steps = max(1, values // (rows * length))
        sides = {name: repeated(one, steps) for name, one in sides.items()}
        what = f"attention, length {length}, {factor} samples"
        ratio = _times_as_fast(sides, rounds, what)
        if ratio < NO_LOSS:  # of so many cells the least is low by its bad luck
            ratio = _times_as_fast(sides, LONGER * rounds, f"{what}, again")
        found[length, factor] = ratio
    return found


def _times_as_fast(sides: Mapping[str, Side], rounds: int, what: str) -> float:
    """How many times as fast unique samples are."""
    measured = alternate(sides, rounds, of=what)
    pairs = zip(measured["unique samples"], measured["all samples"], strict=True)
    return statistics.median(theirs.cpu / ours.cpu for ours, theirs in pairs)


def grid_figures(found: Mapping[tuple[int, int], float]) -> list[Figure]:
    """The least of all cells, which is to lose nothing, and their median."""
    (length, factor), least = min(found.items(), key=lambda cell: cell[1])
    every = ", ".join(f"{cell[0]}x{cell[1]} {ratio:.2f}" for cell, ratio in found.items())
    return [
        Figure(
            name="target attention on unique samples, the least of the grid",
            value=least,
            unit="times as fast",
            baseline=1.0,
            target=NO_LOSS,
            limit=_of_sharing(factor),
            note=f"mean length {length}, {factor} samples a history; length x samples: {every}",
        ),
        Figure(
            name="target attention on unique samples, the median of the grid",
            value=statistics.median(found.values()),
            unit="times as fast",
            baseline=1.0,
        ),
    ]


def measure(quick: bool) -> Report:
    torch.manual_seed(SEED)
    torch.set_num_threads(1)
    rounds = 3 if quick else 7
    rows, samples = (128, 512) if quick else (256, 2048)
    lengths, factors = (LENGTHS[::4], FACTORS[::2]) if quick else (LENGTHS, FACTORS)
    return compare_all(rows, samples, rounds, target_grid(lengths, factors, samples, rounds))


def compare_all(
    rows: int, samples: int, rounds: int, grid: Mapping[tuple[int, int], float]
) -> Report:
    lengths = heavy_tailed(rows)
    figures = [
        figure
        for suite in (
            compare(
                "jagged attention", attention(rows), rounds, "ours", TARGET, least=products(rows)
            ),
            *(
                compare(
                    f"{name} of S = {SAMPLES_PER_SESSION}",
                    sharing(samples, pooling),
                    rounds,
                    limit=_of_sharing(SAMPLES_PER_SESSION),
                )
                for name, pooling in (
                    ("transformer", Transformer(DIM, TransformerConfig())),
                    ("target attention", Attention(DIM, AttentionConfig())),
                )
            ),
            compare(
                "expanding embeddings",
                expanding(samples),
                rounds,
                "ours",
                least=writing(samples),
            ),
        )
        for figure in suite
    ]
    figures += grid_figures(grid)
    settings = {
        "dim": DIM,
        "transformer": "1 layer, 2 heads, feed-forward 4 D, float32, forward and backward",
        "rows": rows,
        "lengths": f"Pareto 1.2, mean {lengths.double().mean():.1f}, longest {lengths.max()}",
        "padded_cells_per_value": round(float(rows * lengths.max() / lengths.sum()), 1),
        "samples": f"{samples}, {SAMPLES_PER_SESSION} a session, lengths 1 to 99",
        "threads": torch.get_num_threads(),
        "rounds": rounds,
    }
    return Report(figures=figures, settings=settings, seed=SEED)


def compare(
    name: str,
    sides: Mapping[str, Side],
    rounds: int,
    ours: str = "unique samples",
    target: float | None = None,
    limit: Limit | None = None,
    least: Least | None = None,
) -> list[Figure]:
    """How many times faster `ours` is than each other side, which must compute the same; `limit`
    is that of all of these figures, and `least` gives each its own."""
    every = {**sides, **({"least": dropped(least.run)} if least else {})}
    measured = alternate(every, rounds, of=name)
    wanted = measured[ours][0].result
    for other in sides:
        # In float32 some of the units that are near their kink fall on its other side.
        gap = float((measured[other][0].result - wanted).norm() / wanted.norm())
        assert gap < 1e-4, f"{name}: {other}'s gradient differs by {gap:.1e} of its norm"
    return [
        _ratio(name, ours, other, measured, target, _limit(measured, other, least) or limit)
        for other in sides
        if other != ours
    ]


def _ratio(
    name: str,
    ours: str,
    other: str,
    measured: Mapping[str, list[Round]],
    target: float | None,
    limit: Limit | None,
) -> Figure:
    us, them = measured[ours], measured[other]
    ratios = [theirs.cpu / our.cpu for our, theirs in zip(us, them, strict=True)]
    times = [1e3 * _median(side) for side in (us, them)]
    return Figure(
        name=f"{name}: {ours} against {other}",
        value=statistics.median(ratios),
        unit="times as fast",
        baseline=1.0,
        target=target,
        limit=limit,
        spread=spread(ratios),
        note=f"{times[0]:,.1f} ms against {times[1]:,.1f} ms",
    )


def _limit(measured: Mapping[str, list[Round]], other: str, least: Least | None) -> Limit | None:
    """How many times faster than `other` the least work is."""
    if least is None:
        return None
    return Limit(value=_median(measured[other]) / _median(measured["least"]), of=least.of)


def _of_sharing(factor: int) -> Limit:
    return Limit(
        value=factor,
        of="the samples of a history: as much work a unique sample as a sample; what the query of "
        "each sample takes is left out",
    )


def _median(rounds: Sequence[Round]) -> float:
    return statistics.median(one.cpu for one in rounds)


if __name__ == "__main__":
    # torch says of nested tensors that they are a prototype.
    warnings.filterwarnings("ignore", message="The PyTorch API of nested tensors")
    main("attention", measure)
