"""The difference that rounding alone makes to results, found by rounding otherwise.

Another instruction set, number of threads or order of a sum rounds other results up and others
down. `Rounding` does that at random, operator by operator; what a few trainings under it differ
by is the bound that a comparison is held to. Most rows then have a few units in the last place.
A row whose gradients cancel, where Adagrad divides what is left by its own size, has what its
noise comes to, and no other row gets a bound that hides mistakes.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from recd_plugins.compat.pytorch import EagerDispatchMode, schema_of

__all__ = [
    "FACTOR",
    "RUNS",
    "BoundsOnDemand",
    "Rounding",
    "bounds_of",
    "least_bounds",
    "plain_of",
    "spreads_of",
]

DRAWN = 1 << 18
"""Sides, up or down, that are drawn for all operators of a training."""
EXACT = frozenset(
    f"aten::{name}"
    for name in [
        *("arange", "cat", "clone", "copy_", "embedding", "empty", "empty_like", "fill_", "full"),
        *("full_like", "gather", "index", "index_select", "new_empty", "new_zeros", "ones"),
        *("ones_like", "repeat", "set_", "slice_backward", "stack", "where", "zero_", "zeros"),
        *("zeros_like", "_to_copy", "masked_fill", "relu", "threshold_backward"),
    ]
)
"""Operators that move values or make them, and round none."""
POOLED = "fbgemm::split_embedding_codegen_forward"
"""What fbgemm's lookups that sum are called; the others copy rows."""
UPDATED = (
    "fbgemm::split_embedding_backward_codegen",
    "fbgemm::split_embedding_nobag_backward_codegen",
)
"""What the backward passes of fbgemm's lookups are called, whatever the optimizer fused to them."""
COMPUTED = frozenset({torch.float32, torch.float64})
"""Kinds of numbers that optimizers compute in."""
RUNS = 3
"""Trainings with rounding at random that a spread is taken from."""
FACTOR = 4.0
"""How many spreads two right trainings may be apart. A spread, the largest of a few dozen draws,
is about two standard deviations, and eight of them are not met by chance."""
FEW = 8
"""Elements of a row below which its own spread says too little."""


class Rounding(EagerDispatchMode):
    """Within it, each operator's results are off by one unit in the last place, up or down.

    That holds in the backward pass too, so the terms of a sum are off before they cancel. What
    an operator writes in place is off where it changed it. Of fbgemm's, the embedding lookups
    round what they sum, the gradients that reach them, and what their fused optimizers change.
    All that holds on the CPU alone, and collectives do not round at random.

        with Rounding(seed):
            train(model)
    """

    def __init__(self, seed: int) -> None:
        super().__init__()
        # Drawn once: operators take turns in it, each from a place of its own.
        draw = torch.Generator().manual_seed(seed)
        self._sides = torch.randint(0, 2, (DRAWN,), generator=draw, dtype=torch.int8) * 2 - 1
        self._places = random.Random(seed)
        self._factors: dict[torch.dtype, Tensor] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if schema_of(func).name.startswith(UPDATED):
            return self._updated(func, args, kwargs or {})
        written, made = _results_of(func)
        if not written and not any(made):
            return func(*args, **(kwargs or {}))
        written = written and isinstance(args[0], Tensor) and _rounds(args[0])
        before = args[0].clone() if written else None
        result = func(*args, **(kwargs or {}))
        if before is not None:
            args[0].copy_(torch.where(args[0] == before, before, args[0] * self._like(args[0])))
        returned = result if isinstance(result, tuple | list) else (result,)
        for value, new in zip(returned, made, strict=False):
            if new and isinstance(value, Tensor) and _rounds(value):
                value.mul_(self._like(value))
        return result

    def _updated(self, func: Any, args: Any, kwargs: Any) -> Any:
        """What fbgemm's backward pass returns, which is the fused optimizer's step too.

        Gradients are off as they come, and rows and states where it changes them."""
        gradient, *rest = args
        # Rows of 16 bits are rounded to them from what is computed in float32.
        written = [
            value
            for one, value in zip(schema_of(func).arguments[1:], rest, strict=False)
            if one.alias_info is not None
            and isinstance(value, Tensor)
            and value.dtype in COMPUTED
            and _rounds(value)
        ]
        before = [value.clone() for value in written]
        result = func(gradient * self._like(gradient), *rest, **kwargs)
        for value, old in zip(written, before, strict=True):
            value.copy_(torch.where(value == old, old, value * self._like(value)))
        return result

    def _like(self, value: Tensor) -> Tensor:
        """A factor for each element of `value`: 1, and a unit in its last place more or less."""
        count, kind = value.numel(), value.dtype
        factors = self._factors.get(kind)
        if factors is None:
            factors = self._factors[kind] = 1 + self._sides.to(kind) * torch.finfo(kind).eps
        while count > len(factors) // 2:
            factors = self._factors[kind] = factors.repeat(2)
        start = self._places.randrange(len(factors) // 2)
        return factors[start : start + count].view(value.shape)


@cache
def _results_of(operator: Any) -> tuple[bool, tuple[bool, ...]]:
    """Whether the operator rounds what it writes into its first argument, and each of the values
    that it returns."""
    schema: Any = schema_of(operator)
    if schema.name.startswith(POOLED):
        return False, (True,)
    if operator.namespace != "aten" or schema.name in EXACT:
        return False, ()
    first = schema.arguments[0].alias_info if schema.arguments else None
    # What has alias information is a view, or was written in place.
    made = tuple(one.alias_info is None for one in schema.returns)
    return first is not None and first.is_write, made


def _rounds(value: Tensor) -> bool:
    return value.is_floating_point() and value.device.type == "cpu"


def plain_of(
    train: Callable[[AbstractContextManager[Any]], Mapping[str, Tensor]], *, runs: int = RUNS
) -> tuple[Mapping[str, Tensor], Mapping[str, Tensor]]:
    """The result of the plain side of a comparison, and the bounds by which others may differ from
    it: they are found once something differs by more than they are at least.

        def plain(rounding):
            model = build()
            with rounding:
                train(model)
            return tables_of(model)

        assert_alike(ours, *plain_of(plain))

    On ranks, all of them call it, and hold their results to it in the same order.
    """
    expected = train(nullcontext())

    def find() -> dict[str, Tensor]:
        return bounds_of(spreads_of(train, expected, runs=runs), expected)

    return expected, BoundsOnDemand(find, expected, on_ranks=dist.is_initialized())


class BoundsOnDemand(Mapping[str, Tensor]):
    """`bounds_of` of spreads that more trainings are needed for, which nobody runs before a bound
    is asked for.

    No bound is less than without any spread, so that what is within those is within these.
    """

    def __init__(
        self,
        find: Callable[[], Mapping[str, Tensor]],
        expected: Mapping[str, Tensor],
        *,
        on_ranks: bool,
    ) -> None:
        """`on_ranks`: `find` trains on all ranks together."""
        self._find: Callable[[], Mapping[str, Tensor]] | None = find
        self.least = least_bounds(expected)
        self._on_ranks = on_ranks
        self._found: Mapping[str, Tensor] = {}

    def __getitem__(self, name: str) -> Tensor:
        if self._find is not None:
            self._found, self._find = self._find(), None  # which holds what it trains
        return self._found[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.least)

    def __len__(self) -> int:
        return len(self.least)

    def __reduce__(self) -> Any:
        return dict, (dict(self.items()),)

    def are_needed(self, *, here: bool) -> bool:
        """Whether any rank needs more than the least bounds, which all then find; every rank says
        whether it does."""
        if not self._on_ranks:
            return here
        needed = torch.tensor(here, dtype=torch.int32)
        dist.all_reduce(needed, dist.ReduceOp.MAX)
        return bool(needed)


def least_bounds(expected: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The bounds where nothing spreads: a few units in the last place of a row."""
    return bounds_of({name: torch.zeros_like(one) for name, one in expected.items()}, expected)


def spreads_of(
    train: Callable[[AbstractContextManager[Any]], Mapping[str, Tensor]],
    expected: Mapping[str, Tensor],
    *,
    runs: int = RUNS,
) -> dict[str, Tensor]:
    """The distance that `train`, rounding at random, goes from what it found without: by name,
    elementwise.

    `train(rounding)` is the plain side of the comparison, which trains within `rounding` and
    has its model and tables start outside of it; `expected` is what it returns without.
    """
    spreads = {name: torch.zeros_like(value) for name, value in expected.items()}
    for seed in range(runs):
        found = train(Rounding(seed))
        for name, value in expected.items():
            spreads[name] = torch.maximum(spreads[name], (found[name] - value).abs())
    return spreads


def bounds_of(spreads: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The bound of each element, [R, 1] for a tensor of R rows, from its row's spread.

        FACTOR * (spread of the row + unit in the last place of the row)

    Both are those of the row's widest element, since a few runs say little of one element alone.
    Rows of few elements, as losses and row-wise states have, share the widest spread of all. The
    unit in the last place stands for the operators that do not round at random.
    """
    return {name: _bound(spreads[name], value) for name, value in expected.items()}


def _bound(spread: Tensor, expected: Tensor) -> Tensor:
    rows, values = (_widest(one.double().abs()) for one in (spread, expected))
    if rows.numel() and (not rows.dim() or expected[0].numel() < FEW):
        rows = rows.clamp(min=rows.max().item())
    if not expected.is_floating_point():
        return rows
    return FACTOR * (rows + values * torch.finfo(expected.dtype).eps)


def _widest(values: Tensor) -> Tensor:
    """The largest element of each row, [R, 1, ...]; of what has no columns each is its own row."""
    if values.dim() < 2 or not values.numel():
        return values
    return values.amax(dim=tuple(range(1, values.dim())), keepdim=True)
