"""Sharders whose modules look the rows of sequences up as bags of one, on a CPU."""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn
from torchrec.distributed.types import ModuleSharder

from recd_plugins.compat.bags_of_one import look_up_as_bags
from recd_plugins.embedding.wrapped_sharder import ShownSharder

__all__ = ["with_bags_of_one"]


def with_bags_of_one(
    sharders: Iterable[ModuleSharder[nn.Module]],
) -> list[ModuleSharder[nn.Module]]:
    """The sharders, whose kernels for the CPU do so where weights are the same."""
    return [ShownSharder(one, look_up_as_bags) for one in sharders]
