"""How much rounding alone changes results, found by rounding differently.

With another instruction set, number of threads or order of a sum, different results are rounded up
and down. `Rounding` does that at random, operator by operator. The differences between a few
trainings under it are the bound of a comparison. For most rows that is a few units in the last
place. If the gradients of a row cancel and Adagrad divides the remainder by its own size, that row
gets a bound as large as its noise, and no other row gets a bound that hides mistakes.
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
"""How many directions, up or down, are drawn for all operators of a training."""
EXACT = frozenset(
    f"aten::{name}"
    for name in [
        *("arange", "cat", "clone", "copy_", "embedding", "empty", "empty_like", "fill_", "full"),
        *("full_like", "gather", "index", "index_select", "new_empty", "new_zeros", "ones"),
        *("ones_like", "repeat", "set_", "slice_backward", "stack", "where", "zero_", "zeros"),
        *("zeros_like", "_to_copy", "masked_fill", "relu", "threshold_backward"),
    ]
)
"""The operators that move or create values and do not round."""
POOLED = "fbgemm::split_embedding_codegen_forward"
"""The beginning of the names of fbgemm's lookups that sum; the others copy rows."""
UPDATED = (
    "fbgemm::split_embedding_backward_codegen",
    "fbgemm::split_embedding_nobag_backward_codegen",
)
"""The beginnings of the names of backward passes of fbgemm's lookups, for all fused optimizers."""
COMPUTED = frozenset({torch.float32, torch.float64})
"""The number types in which optimizers compute."""
RUNS = 3
"""The number of trainings with random rounding from which a spread is computed."""
FACTOR = 4.0
"""How many spreads two correct trainings may be apart. A spread, the largest of a few dozen draws,
is about two standard deviations, and a distance of eight does not occur by chance."""
FEW = 8
"""A row with fewer elements than this has a spread that says too little."""


class Rounding(EagerDispatchMode):
    """Inside, each operator's results are off by one unit in the last place, up or down.

    This includes the backward pass, so the terms of a sum are off before they cancel. Where an
    operator changes values in place, the changed ones are off. fbgemm's embedding lookups round
    their sums, the gradients that reach them, and what their fused optimizers change. All this
    happens only on the CPU, and collectives do not round at random.

        with Rounding(seed):
            train(model)
    """

    def __init__(self, seed: int) -> None:
        super().__init__()
        # Drawn once: each operator takes its factors from a random place in it.
        draw = torch.Generator().manual_seed(seed)
        self._sides = (
            torch.randint(0, 2, (DRAWN,), generator=draw, dtype=torch.int8, device="cpu") * 2 - 1
        )
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
        """Run fbgemm's backward pass, which is also the fused optimizer's step, and return its
        result.

        The incoming gradients are off, and so are the rows and states that it changes.
        """
        gradient, *rest = args
        # 16-bit rows are left out: fbgemm rounds them from what it computes in float32.
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
        """A factor for each element of `value`: 1 plus or minus a unit in its last place."""
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
    """Whether the operator rounds what it writes into its first argument, and whether it rounds
    each of its return values."""
    schema: Any = schema_of(operator)
    if schema.name.startswith(POOLED):
        return False, (True,)
    if operator.namespace != "aten" or schema.name in EXACT:
        return False, ()
    first = schema.arguments[0].alias_info if schema.arguments else None
    # A value with alias information is a view, or was written in place.
    made = tuple(one.alias_info is None for one in schema.returns)
    return first is not None and first.is_write, made


def _rounds(value: Tensor) -> bool:
    return value.is_floating_point() and value.device.type == "cpu"


def plain_of(
    train: Callable[[AbstractContextManager[Any]], Mapping[str, Tensor]],
) -> tuple[Mapping[str, Tensor], BoundsOnDemand]:
    """The result of the plain side of a comparison, and the bounds within which others may differ
    from it. They are widened, training by training, only while something differs by more.

        def plain(rounding):
            model = build()
            with rounding:
                train(model)
            return tables_of(model)

        assert_alike(ours, *plain_of(plain))

    On ranks, all of them call this, and compare their results with it in the same order.
    """
    expected = train(nullcontext())
    wider = (bounds_of(spreads, expected) for spreads in spreads_of(train, expected))
    least = least_bounds(expected)
    return expected, BoundsOnDemand(wider, least, on_ranks=dist.is_initialized())


class BoundsOnDemand(Mapping[str, Tensor]):
    """`bounds_of` of spreads that need more trainings. All of them run when a bound is read.

    Each training only widens the bounds, so what is within those of fewer is within these: a
    comparison begins with the least, and has them widened while something is beyond.
    """

    def __init__(
        self,
        wider: Iterator[Mapping[str, Tensor]],
        least: Mapping[str, Tensor],
        *,
        on_ranks: bool,
    ) -> None:
        """`wider` yields the bounds after each training; `on_ranks`: it trains on all ranks
        together."""
        self.so_far = least
        self._wider = wider
        self._on_ranks = on_ranks

    def plus(self, more: Mapping[str, Tensor]) -> BoundsOnDemand:
        """The same, each wider by `more`, for a side that does not compute quite the same. Take
        these in place of the others: what they run, the others do not see."""
        first = {name: one + more[name] for name, one in self.so_far.items()}
        wider = ({name: one + more[name] for name, one in each.items()} for each in self._wider)
        return BoundsOnDemand(wider, first, on_ranks=self._on_ranks)

    def widen(self) -> bool:
        """Run one more training and take its spread into `so_far`. Returns False if all have
        run."""
        wider = next(self._wider, None)
        if wider is None:
            return False
        self.so_far = wider
        return True

    def __getitem__(self, name: str) -> Tensor:
        while self.widen():
            pass
        return self.so_far[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.so_far)

    def __len__(self) -> int:
        return len(self.so_far)

    def __reduce__(self) -> Any:
        return dict, (dict(self.items()),)

    def are_needed(self, *, here: bool) -> bool:
        """Whether any rank needs wider bounds than those so far; then all ranks widen them. `here`
        says whether this rank does."""
        if not self._on_ranks:
            return here
        needed = torch.tensor(here, dtype=torch.int32, device="cpu")
        dist.all_reduce(needed, dist.ReduceOp.MAX)
        return bool(needed)


def least_bounds(expected: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The bounds without any spread: a few units in the last place of a row."""
    return bounds_of({name: torch.zeros_like(one) for name, one in expected.items()}, expected)


def spreads_of(
    train: Callable[[AbstractContextManager[Any]], Mapping[str, Tensor]],
    expected: Mapping[str, Tensor],
) -> Iterator[dict[str, Tensor]]:
    """How far the results of `train` move when it rounds at random: by name, elementwise, after one
    training, after two, and at last after all `RUNS`.

    `train(rounding)` is the plain side of the comparison. It makes its model and tables outside
    `rounding`, and trains inside it. `expected` is what it returns without random rounding.
    """
    spreads = {name: torch.zeros_like(value) for name, value in expected.items()}
    for seed in range(RUNS):
        found = train(Rounding(seed))
        spreads = {
            name: torch.maximum(spreads[name], (found[name] - value).abs())
            for name, value in expected.items()
        }
        yield spreads


def bounds_of(spreads: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The bound of each element, [R, 1] for a tensor of R rows, from its row's spread.

        FACTOR * (spread of the row + unit in the last place of the row)

    Both are those of the row's widest element, since a few runs say little about a single element.
    Rows of few elements, as in losses and row-wise states, share the widest spread of all rows. The
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
    """The largest element of each row, [R, 1, ...]; without columns, each element is a row."""
    if values.dim() < 2 or not values.numel():
        return values
    return values.amax(dim=tuple(range(1, values.dim())), keepdim=True)
