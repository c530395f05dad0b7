"""Holds a transform to what unique samples take for granted: that a row's result depends on that
row alone; and to what shared values do, that an id's depends on that id alone. Where nothing is
deduplicated, a transform may look at what it likes."""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import Tensor
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recd_plugins.errors import PluginError
from recd_plugins.sparse.jagged import WeightedJagged, without
from recd_plugins.sparse.joined import JoinedFeatures
from recd_plugins.sparse.row_wise import RowWise

__all__ = ["check_ids", "check_rows"]

ROUNDING = 1e-3
"""The relative difference that weights may have: kernels round otherwise where a row is elsewhere
in memory."""
ROWS_PER_FLIP = 100
"""One of so many rows may differ in its ids: rounding may move a number over the bound of a bucket.
A transform that looks at other rows changes more of them."""


def check_rows(step: RowWise, features: KeyedJaggedTensor, names: Collection[str]) -> None:
    """Raises `PluginError` if the step makes of some rows of `names` something else where these
    rows come alone. The features stay as they are, also if the step works in place."""
    given = _taken(features, names)
    if not step.row_wise or given is None:
        return
    rows = _half(features.stride())
    made = _made(step, given)
    alone = step(_select(given, rows))
    keys = alone.keys()
    expected, found = (WeightedJagged.of(one) for one in (_select(made, rows), alone))
    differ = _rows_that_differ(found, expected)
    if int(differ.sum()) <= len(differ) // ROWS_PER_FLIP:
        return
    first = int(differ.nonzero()[0])
    seen = (
        f"{keys[first // len(rows)]!r} of sample {int(rows[first % len(rows)])} of a batch became "
        f"{_ids(expected, first)}, and {_ids(found, first)} where half of the batch came"
    )
    again = WeightedJagged.of(_made(step, given))
    if bool(_rows_that_differ(again, WeightedJagged.of(made)).any()):
        raise PluginError(
            f"{step.who} makes something else of the same batch each time: {seen}. All samples "
            "that share a unique sample would share what it draws: seed it by the ids, or leave "
            "these features out of dedup.groups."
        )
    raise PluginError(
        f"{step.who} makes of a row what depends on the other rows of its batch: {seen}. Of unique "
        "samples it would make something else than of all: have it transform each row by itself, "
        "or say `row_wise = False` and leave these features out of dedup.groups."
    )


def check_ids(step: RowWise, features: KeyedJaggedTensor, names: Collection[str]) -> None:
    """Raises `PluginError` if the step, which says `elementwise = True`, makes of some ids of
    `names` something else where each comes in a row of its own. The features stay as they are."""
    given = _taken(features, names)
    if given is None or not len(given.values()):
        return
    made, alone = _made(step, given), step(_rows_of_one(given))
    expected, found = WeightedJagged.of(made), WeightedJagged.of(alone)
    if len(found.values) != len(expected.values):
        return  # it changes how many ids a row has, which `RowWise` refuses
    found = WeightedJagged(found.values, expected.lengths, found.weights)
    differ = _rows_that_differ(found, expected)
    if int(differ.sum()) <= len(differ) // ROWS_PER_FLIP:
        return
    first, stride = int(differ.nonzero()[0]), given.stride()
    raise PluginError(
        f"{step.who} says `elementwise = True`, but makes of an id what depends on the others of "
        f"its row: {made.keys()[first // stride]!r} of sample {first % stride} of a batch became "
        f"{_ids(expected, first)}, and {_ids(found, first)} where each id came alone. Of values "
        "that samples share it would make something else than of all: take that attribute away."
    )


def _taken(features: KeyedJaggedTensor, names: Collection[str]) -> KeyedJaggedTensor | None:
    """Those of `names`, if they can be checked."""
    others = [key for key in features.keys() if key not in names]  # noqa: SIM118  # no mapping
    some = len(others) < len(features.keys()) and not features.variable_stride_per_key()
    checked = some and features.values().is_cpu and features.stride() > 1
    return without(features, others) if checked else None


def _rows_of_one(features: KeyedJaggedTensor) -> KeyedJaggedTensor:
    """Each id in a row of its own; keys with fewer ids than others end in rows without any."""
    numels = torch.tensor(features.length_per_key(), device="cpu")
    stride = int(numels.max())
    lengths = torch.arange(stride, device="cpu") < numels.unsqueeze(1)
    weights = features.weights_or_none()
    return KeyedJaggedTensor(
        keys=features.keys(),
        values=features.values().clone(),
        lengths=lengths.flatten().to(features.lengths().dtype),
        weights=None if weights is None else weights.clone(),
        stride=stride,
    )


def _made(step: RowWise, features: KeyedJaggedTensor) -> KeyedJaggedTensor:
    """What the step makes of a copy."""
    rows = WeightedJagged.of(features)
    weights = None if rows.weights is None else rows.weights.clone()
    copied = KeyedJaggedTensor(
        keys=features.keys(),
        values=rows.values.clone(),
        lengths=rows.lengths.clone(),
        weights=weights,
        stride=features.stride(),
    )
    return step(copied)


def _select(features: KeyedJaggedTensor, rows: Tensor) -> KeyedJaggedTensor:
    """These rows of each key."""
    return JoinedFeatures([features]).take(rows.numpy())


def _half(rows: int) -> Tensor:
    """Half of so many rows, in an order without any symmetry that a transform may have, too."""
    return torch.randperm(rows, generator=torch.Generator().manual_seed(0), device="cpu")[
        : rows // 2
    ]


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
    row = torch.repeat_interleave(torch.arange(len(one.lengths), device="cpu"), one.lengths)
    differ[row[ids]] = True
    return differ


def _ids(rows: WeightedJagged, row: int) -> str:
    one = rows.select(torch.tensor([row], device="cpu"))
    shown, more = one.values[:8].tolist(), ", ..." if len(one.values) > 8 else ""
    return f"[{', '.join(map(str, shown))}{more}]"
