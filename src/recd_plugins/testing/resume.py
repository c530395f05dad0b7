"""Does a loader continue exactly where its state says?"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recd_plugins.data.batch import Batch
from recd_plugins.errors import so_many
from recd_plugins.slots import Loader

__all__ = ["assert_same_batch", "check_resume"]

MOST = 12
"""The most positions that are tried by default: each one needs a loader."""


def check_resume(
    make_loader: Callable[[], Loader],
    *,
    positions: Iterable[int] | None = None,
    same: Callable[[Batch, Batch], None] | None = None,
) -> None:
    """Check that a state taken at any position of an epoch makes a new loader continue exactly from
    there.

    `make_loader` makes a loader at its start, always the same. Positions count the batches yielded.
    By default all positions of a short epoch are tried; of a longer one some, always with its
    edges. The rest of that epoch and all of the next are compared, batch by batch with `same`, by
    default every tensor. States go through JSON, as in a checkpoint.
    """
    same = same or assert_same_batch
    loader = make_loader()
    states = [_through_json(loader.state_dict())]
    first = []
    for batch in loader:
        first.append(batch)
        states.append(_through_json(loader.state_dict()))  # as a trainer: after the batch
    after = _through_json(loader.state_dict())
    second = list(loader)
    if not first:
        raise AssertionError("the loader yields no batch, so resuming it shows nothing")
    if len(loader) != len(first):
        raise AssertionError(
            f"len(loader) is {len(loader)}, but it yields {so_many(len(first), 'batch')}"
        )
    _compare(first, list(make_loader()), same, "a second loader, from the start")
    if positions is None:
        count = min(MOST, len(states))
        positions = sorted({round(i * len(first) / (count - 1)) for i in range(count)})
    for position in positions:
        where = f"resumed after {position} of {so_many(len(first), 'batch')}"
        resumed = make_loader()
        resumed.load_state_dict(states[position])
        rest = list(resumed)
        if position == len(first) and rest:
            # The epoch was over, though its loop had not ended yet: `rest` is the next epoch.
            _compare(second, rest, same, f"{where}, the next epoch")
            continue
        _compare(first[position:], rest, same, where)
        _compare(second, list(resumed), same, f"{where}, the next epoch")
    resumed = make_loader()
    resumed.load_state_dict(after)
    _compare(second, list(resumed), same, "resumed after the epoch's loop had ended")


def _through_json(state: dict[str, Any]) -> dict[str, Any]:
    try:
        loaded: dict[str, Any] = json.loads(json.dumps(state))
    except (TypeError, ValueError) as error:
        raise AssertionError(
            f"the loader's state cannot be written as JSON ({error}), as a checkpoint needs. Keep "
            "numbers, texts, lists and mappings in it."
        ) from error
    return loaded


def _compare(
    expected: Sequence[Batch],
    found: Sequence[Batch],
    same: Callable[[Batch, Batch], None],
    where: str,
) -> None:
    for index, (ours, theirs) in enumerate(zip(expected, found, strict=False)):
        try:
            same(ours, theirs)
        except AssertionError as error:
            raise AssertionError(f"{where}: batch {index} differs: {error}") from None
    if len(expected) != len(found):
        raise AssertionError(
            f"{where}: {len(found)} batches came where {len(expected)} were left in the epoch"
        )


def assert_same_batch(ours: Batch, theirs: Batch) -> None:
    """Every field is equal, tensor by tensor: values, shapes, types and keys' order."""
    for field in dataclasses.fields(ours):
        _same(getattr(ours, field.name), getattr(theirs, field.name), field.name)


def _same(ours: Any, theirs: Any, where: str) -> None:
    if type(ours) is not type(theirs):
        raise AssertionError(f"{where} is a {type(ours).__name__}, then a {type(theirs).__name__}")
    match ours:
        case Tensor():
            if ours.dtype != theirs.dtype or not torch.equal(ours, theirs):
                raise AssertionError(f"{where} is {ours}, then {theirs}")
        case KeyedJaggedTensor():
            for part in ("keys", "values", "lengths", "weights_or_none"):
                _same(getattr(ours, part)(), getattr(theirs, part)(), f"{where}.{part}()")
        case Mapping():
            _same(list(ours), list(theirs), f"keys of {where}")
            for key, value in ours.items():
                _same(value, theirs[key], f"{where}[{key!r}]")
        case list() | tuple():
            _same(len(ours), len(theirs), f"len({where})")
            for index, (left, right) in enumerate(zip(ours, theirs, strict=True)):
                _same(left, right, f"{where}[{index}]")
        case _ if hasattr(ours, "__dict__"):  # a plugin's own class: compared by what it holds
            _same(vars(ours), vars(theirs), where)
        case _:
            if ours != theirs:
                raise AssertionError(f"{where} is {ours!r}, then {theirs!r}")
