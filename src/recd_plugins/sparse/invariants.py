"""What holds of every IKJT, checked where one comes from outside."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from recd_plugins.errors import DataError
from recd_plugins.sparse.groups import check_groups
from recd_plugins.sparse.padding import real_rows

if TYPE_CHECKING:
    from recd_plugins.sparse.ikjt import InverseKeyedJaggedTensor

__all__ = ["check_ikjt", "check_lookup"]

FIX = "Build it by one of InverseKeyedJaggedTensor's from_..., or send it again."


def check_ikjt(ikjt: InverseKeyedJaggedTensor) -> None:
    """`DataError` for the first invariant that does not hold."""
    kjt, counts, lookup = ikjt.kjt, ikjt.unique_counts, ikjt.inverse_lookup
    keys = [key for group in ikjt.groups for key in group]
    check_groups(ikjt.groups, kjt.keys())
    _hold(kjt.keys() == keys, f"its keys are {kjt.keys()}, but those of its groups {keys}")
    _hold(
        lookup.dim() == 2 and len(lookup) == len(ikjt.groups) == len(counts),
        f"it has {len(ikjt.groups)} groups, {len(counts)} unique counts and an inverse lookup of "
        f"shape {list(lookup.shape)}, which must be [groups, batch size]",
    )
    _hold(lookup.dtype == torch.int64, f"its inverse lookup is {lookup.dtype}, not int64")
    _hold(min(counts) >= 0, f"its unique counts are {counts}")
    _check_rows(ikjt, keys)
    wanted = torch.tensor(counts, device=lookup.device)
    outside = ((lookup < 0) | (lookup >= wanted[:, None])).any(1)
    for index in outside.nonzero().flatten().tolist():
        check_lookup(lookup[index], counts[index], ikjt.groups[index])
    # Numbered in order of first appearance: each may exceed all before it by 1, no more.
    steps = lookup.cummax(1).values.diff(dim=1, prepend=lookup.new_full((len(lookup), 1), -1))
    unordered = (steps > 1).any(1) | (steps.sum(1) != wanted)
    for index in unordered.nonzero().flatten().tolist():
        raise _broken(
            f"the inverse lookup of group {ikjt.groups[index]} does not number its "
            f"{counts[index]} unique samples in the order in which they first appear"
        )


def check_lookup(lookup: Tensor, count: int, group: Sequence[str]) -> None:
    """Each of `lookup` [B] is one of `count` unique samples; or `DataError`."""
    if lookup.numel():
        low, high = (int(bound) for bound in lookup.aminmax())
        _hold(
            low >= 0 and high < count,
            f"the inverse lookup of group {tuple(group)} reaches from {low} to {high}, outside "
            f"of its {count} unique samples",
        )


def _check_rows(ikjt: InverseKeyedJaggedTensor, keys: Sequence[str]) -> None:
    kjt, stride = ikjt.kjt, max(ikjt.unique_counts)
    lengths, weights = kjt.lengths(), kjt.weights_or_none()
    _hold(
        kjt.stride() == stride and lengths.numel() == len(keys) * stride,
        f"it has {lengths.numel()} lengths and stride {kjt.stride()}, but {len(keys)} keys with "
        f"{stride} unique samples in the largest group",
    )
    _hold(not lengths.numel() or int(lengths.min()) >= 0, "one of its lengths is negative")
    total = int(lengths.sum())
    _hold(
        kjt.values().numel() == total and (weights is None or weights.numel() == total),
        f"its lengths add up to {total}, but it has {kjt.values().numel()} values"
        + ("" if weights is None else f" and {weights.numel()} weights"),
    )
    behind = lengths.bool() & ~real_rows(ikjt.groups, ikjt.unique_counts, lengths.device)
    for place in behind.nonzero().flatten().tolist():
        key = keys[place // stride]
        count = ikjt.unique_counts[ikjt.group_of[key]]
        raise _broken(f"{key!r} has ids after the {count} unique samples of its group")


def _hold(kept: bool, what: str) -> None:
    if not kept:
        raise _broken(what)


def _broken(what: str) -> DataError:
    return DataError(f"an InverseKeyedJaggedTensor breaks its rules: {what}. {FIX}")
