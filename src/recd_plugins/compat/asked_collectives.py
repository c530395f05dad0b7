"""The collectives that TorchRec's modules ask torch.distributed for; as of TorchRec 1.5 to 1.9.

TorchRec has no option for how its modules exchange. Two of its files do so, through `dist`. Their
`dist` is replaced as soon as another function stands in for one of its collectives.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch.distributed as dist
from torchrec.distributed import comm_ops, dist_data

__all__ = ["answer"]


def answer(name: str, function: Callable[..., Any]) -> None:
    """From now on TorchRec's modules call this function instead of torch.distributed's of that
    name."""
    _ANSWERS[name] = function
    for module in (comm_ops, dist_data):
        cast("Any", module).dist = _ASKED


class _AskedOfTorch:
    """torch.distributed, except for the functions that `answer` has replaced."""

    def __getattr__(self, name: str) -> Any:
        return _ANSWERS.get(name) or getattr(dist, name)


_ANSWERS: dict[str, Callable[..., Any]] = {}
_ASKED = _AskedOfTorch()
