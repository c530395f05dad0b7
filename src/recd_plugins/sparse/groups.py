"""Feature groups: keys that are deduplicated together, and how many unique samples each group
has. Options are checked by this file before torch is imported."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING

from recd_plugins.errors import DataError, nearest

if TYPE_CHECKING:
    import torch
    from torch import Tensor

__all__ = [
    "Groups",
    "agreed_groups",
    "check_groups",
    "is_padded",
    "real_rows",
    "wrong_if_made",
    "wrong_with_groups",
]

Groups = tuple[tuple[str, ...], ...]
"""The keys of each group; a key is in one group only."""


def wrong_with_groups(groups: Iterable[Sequence[str]]) -> str:
    """What is wrong with feature groups, in words; empty if there are some, each names a feature,
    and none is named twice."""
    groups = list(groups)
    if not groups or not all(groups):
        return "one is empty, or there is none. Name one feature at least in each."
    seen: set[str] = set()
    for name in chain(*groups):
        if name in seen:
            return f"{name!r} is named twice. Keep it in one group."
        seen.add(name)
    return ""


def wrong_if_made(name: str, known: Collection[str], made: Mapping[str, Sequence[str]]) -> str:
    """What is wrong with a group's feature that `preprocess` makes, and how to fix it, in words;
    empty if it is not among those `made`, each of which comes with what it is made of."""
    if name not in made:
        return ""
    of = ", ".join(one for one in made[name] if one in known)
    cure = (
        f"name {of} in one group, which {name} then joins by itself."
        if of
        else f"take {name} out, since what is made of dense columns is not deduplicated."
    )
    return (
        f"`preprocess` makes of {', '.join(made[name])}. Groups are of the features that come to "
        f"`preprocess`: {cure} Known: {', '.join(sorted(known))}."
    )


def check_groups(
    groups: Sequence[Sequence[str]],
    keys: Iterable[str],
    made: Mapping[str, Sequence[str]] | None = None,
) -> Groups:
    """The groups as tuples, checked: each names some of `keys`, and no key is named twice. `made`
    has the features that `preprocess` makes, each with what it is made of, for messages."""
    if wrong := wrong_with_groups(groups):
        raise DataError(f"groups: {wrong}")
    known = frozenset(keys)
    for key in chain(*groups):
        if key not in known:
            wrong = wrong_if_made(key, known, made or {})
            raise DataError(
                f"groups: {key!r} is a feature that {wrong}"
                if wrong
                else f"groups: there is no feature {key!r}; {nearest(key, known)}"
            )
    return tuple(tuple(group) for group in groups)


def agreed_groups(
    lookups: Mapping[str, Tensor], groups: Sequence[Sequence[str]] | None
) -> tuple[Groups, list[Tensor]]:
    """The groups of keys that each come with an inverse lookup [B], and each group's lookup.

    The keys of a group must have equal lookups. By default neighbouring keys with equal lookups are
    a group.
    """
    import torch

    if groups is None:
        bands: list[list[str]] = []
        for key, lookup in lookups.items():
            if bands and torch.equal(lookup, lookups[bands[-1][0]]):
                bands[-1].append(key)
            else:
                bands.append([key])
        groups = bands
    checked = check_groups(groups, lookups)
    for group in checked:
        for key in group[1:]:
            if not torch.equal(lookups[key], lookups[group[0]]):
                raise DataError(
                    f"from_arrow: {key!r} and {group[0]!r} are in one group, but their samples "
                    "share rows in different ways. Give each a group of its own."
                )
    return checked, [lookups[group[0]] for group in checked]


def real_rows(groups: Groups, unique_counts: Sequence[int], device: torch.device | None) -> Tensor:
    """[keys * max(unique_counts)] bool: which rows are those of unique samples, not padding.

    Padding is rows of length 0 that give every key of an IKJT as many rows as the largest group
    has.
    """
    import torch

    by_group = zip(groups, unique_counts, strict=True)
    by_key = torch.tensor([count for group, count in by_group for _ in group], device=device)
    rows = torch.arange(max(unique_counts), device=device)
    return (rows < by_key[:, None]).view(-1)


def is_padded(groups: Groups, unique_counts: Sequence[int], lengths: Tensor) -> bool:
    """Whether all rows after those of unique samples have length 0."""
    if len({*unique_counts}) == 1:
        return True
    rows = lengths.view(-1, max(unique_counts))
    some = rows.numpy() if rows.is_cpu else rows  # small slices take a fifth of torch's time
    stop = 0
    for group, count in zip(groups, unique_counts, strict=True):
        start, stop = stop, stop + len(group)
        if count < rows.shape[1] and some[start:stop, count:].any():
            return False
    return True
