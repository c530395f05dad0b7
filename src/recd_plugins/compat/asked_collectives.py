"""The collectives that TorchRec's modules ask torch.distributed for; as of TorchRec 1.5 to 1.9.

TorchRec has no option for how its modules exchange. Its two files that do it ask `dist`, which is
replaced in them once another function answers for one of its collectives.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch.distributed as dist
from torchrec.distributed import comm_ops, dist_data

__all__ = ["answer"]


def answer(name: str, function: Callable[..., Any]) -> None:
    """From now on TorchRec's modules ask this function where they asked torch.distributed's of that
    name."""
    _ANSWERS[name] = function
    for module in (comm_ops, dist_data):
        cast("Any", module).dist = _ASKED


class _AskedOfTorch:
    """torch.distributed, but for what others answer."""

    def __getattr__(self, name: str) -> Any:
        return _ANSWERS.get(name) or getattr(dist, name)


_ANSWERS: dict[str, Callable[..., Any]] = {}
_ASKED = _AskedOfTorch()
