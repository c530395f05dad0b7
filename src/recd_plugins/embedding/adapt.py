"""A user's model, made to train on unique samples: its collections, its poolings and its root."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence

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
    deduplicated,
)
from recd_plugins.embedding.parts import Route
from recd_plugins.embedding.pooling import DedupPooling, explain_pooling
from recd_plugins.embedding.view import seeing_all_features
from recd_plugins.errors import CapabilityError
from recd_plugins.naming.patterns import check_patterns, fitting
from recd_plugins.sparse.groups import Groups

__all__ = ["adapt", "explain"]

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
    except (TypeError, ValueError):  # compiled, it tells no names
        return False
    return taken == ("values", "lengths", "query")
