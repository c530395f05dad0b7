"""The root of an adapted model: what it calls a batch's features are all of them."""

from __future__ import annotations

import functools
import inspect
from typing import Any

from torch import nn

__all__ = ["BatchView", "seeing_all_features"]


class BatchView:
    """A batch whose `features` are its `sparse`; all else is the batch's.

    Plain Python around a batch, or around the proxy that stands for it while TorchRec's
    pipeline traces the model: the trace then holds `batch.sparse`, which the pipeline follows.
    """

    def __init__(self, batch: Any) -> None:
        self._batch = batch

    @property
    def features(self) -> Any:
        return self._batch.sparse

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batch, name)

    def __len__(self) -> int:
        return len(self._batch)

    def __fx_create_arg__(self, tracer: Any) -> Any:
        """Where the batch goes into a module that tracing does not enter."""
        return tracer.create_arg(self._batch)


def seeing_all_features(model: nn.Module) -> None:
    """Have the model's forward, if a batch is all that it must be given, see a `BatchView` of it.

    The model becomes one of a subclass of its class, as torch's parametrizations do it: names,
    attributes and `isinstance` stay. What needs more arguments is handed `batch.sparse` by its
    caller.
    """
    kind = type(model)
    forward = kind.forward
    taken = [
        one
        for one in inspect.signature(forward).parameters.values()
        if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD) and one.default is one.empty
    ]
    if hasattr(kind, "sees_all_features") or len(taken) != 2:
        return

    @functools.wraps(forward)  # by which torch.fx finds how many arguments there are
    def seeing(self: nn.Module, batch: Any, *args: Any, **kwargs: Any) -> Any:
        seen = BatchView(batch) if hasattr(batch, "sparse") else batch  # a KJT, say
        return forward(self, seen, *args, **kwargs)

    body = {"forward": seeing, "sees_all_features": True, "__module__": kind.__module__}
    model.__class__ = type(kind.__name__, (kind,), body)
