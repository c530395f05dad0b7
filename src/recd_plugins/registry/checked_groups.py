"""What a converter says of its groups, checked: `PluginError` says what is wrong and how its author
mends it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from numbers import Real
from typing import TYPE_CHECKING, Any

from recd_plugins.errors import PluginError, nearest, shown
from recd_plugins.sparse.groups import wrong_if_made

if TYPE_CHECKING:
    from recd_plugins.sparse.groups import Groups

__all__ = ["check_converter_groups", "check_group_features", "check_unique_shares"]


def check_converter_groups(groups: Any, who: str) -> None:
    """Check that these are groups of features, each feature in one of them."""
    if not _is_groups(groups):
        raise PluginError(
            f"{who}: its `groups` are {shown(groups)}, where they must be a tuple of tuples of "
            "features, as (('history', 'history_category'), ('user_id',))."
        )
    named = [name for group in groups for name in group]
    if twice := [name for name in named if named.count(name) > 1]:
        raise PluginError(
            f"{who}: its `groups` name {shown(twice[0])} twice. Keep it in one of them."
        )


def check_group_features(
    groups: Groups, known: Collection[str], made: Mapping[str, Sequence[str]], who: str
) -> None:
    """Check that the features of groups exist; `made` has those that steps make, with what they
    make each of."""
    for name in (name for group in groups for name in group if name not in known):
        wrong = wrong_if_made(name, known, made)
        raise PluginError(
            f"{who}: its `groups` name {shown(name)}, which "
            f"{wrong or f'does not exist; {nearest(name, known)}'}"
        )


def check_unique_shares(shares: Any, groups: Groups, who: str) -> None:
    """Check that there is a share of unique samples for each group."""
    whose = f"{who}: its `unique_shares`"
    if not isinstance(shares, Sequence) or len(shares) != len(groups):
        raise PluginError(
            f"{whose} are {shown(shares)}, where they must be one for each group, of which "
            f"it has {len(groups)}. Give as many, or have no such attribute."
        )
    if not all(isinstance(one, Real) and 0 < float(one) <= 1 for one in shares):
        raise PluginError(
            f"{whose} are {shown(shares)}, where each must be a share > 0 and <= 1 of a batch's "
            "samples: the unique ones of a group."
        )


def _is_groups(groups: Any) -> bool:
    return isinstance(groups, Sequence) and all(
        isinstance(group, Sequence)
        and not isinstance(group, str)
        and all(isinstance(name, str) for name in group)
        for group in groups
    )
