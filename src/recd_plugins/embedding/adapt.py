"""A user's model, made to train on unique samples: its collections, its poolings and its root."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn
from torchrec.modules.embedding_modules import (
    EmbeddingBagCollection,
    EmbeddingBagCollectionInterface,
    EmbeddingCollection,
    EmbeddingCollectionInterface,
)

from recd_plugins.embedding.dedup import (
    DedupEmbeddingBagCollection,
    DedupEmbeddingCollection,
    Route,
    deduplicated,
)
from recd_plugins.embedding.pooling import DedupPooling, explain_pooling
from recd_plugins.errors import CapabilityError
from recd_plugins.naming.patterns import check_patterns, fitting
from recd_plugins.sparse.groups import Groups

__all__ = ["BatchView", "adapt", "explain", "seeing_all_features"]

OURS = (DedupEmbeddingCollection, DedupEmbeddingBagCollection)


def adapt(
    model: nn.Module,
    groups: Groups,
    *,
    poolings: Sequence[str] = (),
    unique_shares: Sequence[float] | None = None,
    pool_unique: bool = True,
    route: Route = "padded",
) -> nn.Module:
    """Make `model` take batches whose features of `groups` are deduplicated; itself, changed.

    Its EmbeddingCollections and EmbeddingBagCollections look up unique samples, and its poolings
    run on them: modules whose forward is a `Pooling`'s (values, lengths, query), and those that
    `poolings` names by path or glob; none if not `pool_unique`. Names of parameters and states
    stay, and a batch without `dedup` still works.
    By the route `vbe` (CUDA) TorchRec expands what it looked up, so that nothing stays unique.
    `unique_shares` are each group's unique samples over the samples of a batch, as expected.
    """
    modules = dict(model.named_modules())
    _check(modules, poolings)
    for path, module in modules.items():
        if isinstance(module, EmbeddingCollection | EmbeddingBagCollection):
            deduplicated(module, groups, unique_shares, route)
        elif pool_unique and route == "padded" and _is_pooling(path, module, poolings):
            DedupPooling(module)
    seeing_all_features(model)
    return model


def explain(model: nn.Module) -> str:
    """What was adapted in an unsharded model: parts of collections, poolings, and why so."""
    lines = []
    for path, module in model.named_modules():
        where = path or "the model"
        if isinstance(module, OURS):
            lines += [f"  {where}, {', '.join(one.tables)}: {one.why}" for one in module.parts]
        elif isinstance(module, DedupPooling):
            lines.append(f"  {where}: {explain_pooling(module)}")
    return "\n".join(["adapted to unique samples:", *lines])


def _check(modules: Mapping[str, nn.Module], poolings: Sequence[str]) -> None:
    """Refuse what would meet unique samples unprepared, and names of no module.

    That is collections of another kind, and TorchRec's modules that hold a collection and treat
    its features themselves.
    """
    kinds = (*OURS, EmbeddingCollection, EmbeddingBagCollection)
    interfaces = (EmbeddingCollectionInterface, EmbeddingBagCollectionInterface)
    for path, module in modules.items():
        holds = any(isinstance(child, interfaces) for child in module.children())
        if (isinstance(module, interfaces) and type(module) not in kinds) or (
            holds and type(module).__module__.startswith("torchrec.modules.")
        ):
            raise CapabilityError(
                f"dedup: module {path!r} is a {type(module).__name__}, which cannot look up unique "
                "samples: TorchRec's EmbeddingCollection and EmbeddingBagCollection can. Use one "
                "of these, or take `dedup` out of registry.yaml."
            )
    check_patterns(poolings, modules, kind="module of the model", where="adapt")


def _is_pooling(path: str, module: nn.Module, named: Sequence[str]) -> bool:
    if fitting(path, named):
        return True
    try:
        taken = tuple(inspect.signature(module.forward).parameters)
    except (TypeError, ValueError):  # a compiled one has no signature
        return False
    return taken == ("values", "lengths", "query")


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
