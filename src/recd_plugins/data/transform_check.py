"""Holds a transform to its contract on batches of a job: it leaves what it is given as it is, and a
row's result depends on that row alone."""

from __future__ import annotations

from collections.abc import Callable, Collection

import torch
from torch import Tensor
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recd_plugins.errors import PluginError
from recd_plugins.sparse.jagged import WeightedJagged, without
from recd_plugins.sparse.row_wise import RowWise

__all__ = ["check_dense_rows", "check_rows"]

ROUNDING = 1e-3
"""The relative difference that floats may have: kernels round otherwise where a row is elsewhere in
memory."""
ROWS_PER_FLIP = 100
"""One of so many rows may differ in its ids: rounding may move a number over the bound of a bucket.
A transform that looks at other rows changes more of them."""


def check_rows(step: RowWise, features: KeyedJaggedTensor, names: Collection[str]) -> None:
    """Raises `PluginError` if the step changes the features that it is given, or makes of some rows
    of `names` something else where these rows come alone."""
    plain = features.values().is_cpu and not features.variable_stride_per_key()
    others = [key for key in features.keys() if key not in names]  # noqa: SIM118  # no mapping
    if not plain or len(others) == len(features.keys()):
        return
    given = without(features, others)
    before = WeightedJagged.of(given)
    ids, lengths = before.values.clone(), before.lengths.clone()
    made = WeightedJagged.of(step(given))
    if not (torch.equal(ids, given.values()) and torch.equal(lengths, before.lengths)):
        raise PluginError(
            f"{step.who} changes the features that it is given, which are the batch's own: it "
            "would change them once more where a batch comes again. Have it work on a copy."
        )
    chosen = _half(features.stride())
    if not step.row_wise or not len(chosen):
        return
    some = before.select(_in_all_keys(chosen, features.stride(), len(given.keys())))
    part = KeyedJaggedTensor(
        keys=given.keys(),
        values=some.values,
        lengths=some.lengths,
        weights=some.weights,
        stride=len(chosen),
    )
    of_some = step(part)
    keys = of_some.keys()
    alone = WeightedJagged.of(of_some)
    among = made.select(_in_all_keys(chosen, features.stride(), len(keys)))
    differ = _rows_that_differ(alone, among)
    if int(differ.sum()) <= len(differ) // ROWS_PER_FLIP:
        return
    first = int(differ.nonzero()[0])
    whose = f"{keys[first // len(chosen)]!r} of sample {int(chosen[first % len(chosen)])}"
    raise _of_other_rows(
        step.who,
        f"{whose} of a batch became {_ids(among, first)}, and {_ids(alone, first)} where half of "
        "the batch came",
        repeats=not bool(_rows_that_differ(WeightedJagged.of(step(given)), made).any()),
    )


def check_dense_rows(transform: Callable[[Tensor], Tensor], columns: Tensor, who: str) -> None:
    """Raises `PluginError` if the transform makes of some rows of [B, W] columns something else
    where these rows come alone."""
    chosen = _half(len(columns))
    if not columns.is_cpu or not len(chosen):
        return
    made, alone = transform(columns), transform(columns[chosen])
    among = made[chosen]
    differ = ~torch.isclose(alone, among, rtol=ROUNDING, atol=ROUNDING**2, equal_nan=True)
    rows = differ.any(dim=1)
    if int(rows.sum()) <= len(rows) // ROWS_PER_FLIP:
        return
    row, column = (int(one) for one in differ.nonzero()[0])

    raise _of_other_rows(
        who,
        f"its column {column} of sample {int(chosen[row])} of a batch was "
        f"{float(among[row, column]):g}, and {float(alone[row, column]):g} where half of the batch "
        "came",
        repeats=torch.allclose(transform(columns), made, rtol=ROUNDING, equal_nan=True),
    )


def _of_other_rows(who: str, seen: str, *, repeats: bool) -> PluginError:
    """The error about what was seen, by whether the same batch gives the same result again."""
    if not repeats:
        return PluginError(
            f"{who} makes something else of the same batch each time: {seen}. A run that resumes "
            "makes batches anew: have it draw nothing that it does not seed by the ids, and keep "
            "nothing from batch to batch."
        )
    return PluginError(
        f"{who} makes of a row what depends on the other rows of its batch: {seen}. Have it "
        "transform each row by itself, or say `row_wise = False` where it must look at others."
    )


def _half(rows: int) -> Tensor:
    """Every other of so many rows, the last one first; none if that would be all of them."""
    return torch.arange(rows - 1, 0 if rows % 2 else -1, -2) if rows > 1 else torch.arange(0)


def _in_all_keys(rows: Tensor, stride: int, keys: int) -> Tensor:
    """The places of these rows of each key, among the rows of all keys one after another."""
    return (torch.arange(keys).unsqueeze(1) * stride + rows).reshape(-1)


def _rows_that_differ(one: WeightedJagged, other: WeightedJagged) -> Tensor:
    """[rows] bool."""
    differ = one.lengths != other.lengths
    if bool(differ.any()):
        common = torch.nonzero(~differ).squeeze(1)
        rest = _rows_that_differ(one.select(common), other.select(common))
        differ[common] = rest
        return differ
    ids = one.values != other.values
    if one.weights is not None and other.weights is not None:
        left, right = one.weights.float(), other.weights.float()
        ids |= ~torch.isclose(left, right, rtol=ROUNDING, atol=ROUNDING**2, equal_nan=True)
    row = torch.repeat_interleave(torch.arange(len(one.lengths)), one.lengths)
    differ[row[ids]] = True
    return differ


def _ids(rows: WeightedJagged, row: int) -> str:
    one = rows.select(torch.tensor([row]))
    shown, more = one.values[:8].tolist(), ", ..." if len(one.values) > 8 else ""
    return f"[{', '.join(map(str, shown))}{more}]"
