"""A user's model, made to train on unique samples: its collections, its poolings and its root."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from torch import nn
from torch.fx import Proxy
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
    for_all_samples,
)
from recd_plugins.embedding.pooling import DedupPooling, explain_pooling
from recd_plugins.embedding.pooling_trial import why_all_samples
from recd_plugins.errors import CapabilityError, RegistryError, listed, shown
from recd_plugins.patterns import check_patterns, fitting
from recd_plugins.sparse.groups import Groups

__all__ = [
    "DEDUP_COLLECTIONS",
    "BatchView",
    "adapt",
    "explain",
    "look_up_all_samples",
    "looked_up_otherwise",
    "not_looked_up",
    "poolings_by_feature",
]

DEDUP_COLLECTIONS = (DedupEmbeddingCollection, DedupEmbeddingBagCollection)


def adapt(
    model: nn.Module,
    groups: Groups,
    *,
    poolings: Sequence[str] = (),
    unique_shares: Sequence[float] | None = None,
    pool_unique: bool = True,
    route: Route = "padded",
    own_batches: bool = False,
) -> nn.Module:
    """Make `model` take batches whose features of `groups` are deduplicated; itself, changed.

    Its EmbeddingCollections and EmbeddingBagCollections look up unique samples, and its poolings
    run on them: modules whose forward is a `Pooling`'s (values, lengths, query), and those that
    `poolings` names by path or glob; none if not `pool_unique`. Names of parameters and states
    stay, and a batch without `dedup` still works. By the route `vbe` (CUDA) TorchRec expands what
    it looked up, so that nothing stays unique. `unique_shares` are each group's unique samples over
    the samples of a batch, as expected. In `own_batches`, which a trainer converts, the
    deduplicated features are in the place of the KJT; in the host's `Batch` they are beside the
    KJT, and the model's root is led to them.
    """
    modules = dict(model.named_modules())
    named = _named(modules, poolings)
    left = _left_as_they_are(modules, groups)
    for path, module in modules.items():
        if path in left:
            continue
        if isinstance(module, EmbeddingCollection | EmbeddingBagCollection):
            deduplicated(module, groups, unique_shares, route)
        elif pool_unique and route == "padded" and (path in named or _is_pooling(module)):
            DedupPooling(module)
    if not own_batches:
        _seeing_all_features(model)
    return model


def look_up_all_samples(model: nn.Module, paths: Collection[str], why: str) -> None:
    """Have these adapted collections, of bags, look up all samples again, each in one part, for
    this reason."""
    for path in paths:
        module = model.get_submodule(path)
        assert isinstance(module, DedupEmbeddingBagCollection)
        module.parts = (for_all_samples(module.embedding_bag_configs(), why),)


def explain(model: nn.Module) -> str:
    """The parts of an unsharded model that were adapted, collections and poolings, each with the
    reason."""
    lines = []
    for path, module in model.named_modules():
        where = path or "the model"
        if isinstance(module, DEDUP_COLLECTIONS):
            lines += [f"  {where}, {', '.join(one.tables)}: {one.why}" for one in module.parts]
        elif isinstance(module, DedupPooling):
            lines.append(f"  {where}: {explain_pooling(module)}")
    return "\n".join(["adapted to unique samples:", *lines])


def poolings_by_feature(model: nn.Module, features: Sequence[str]) -> dict[str, nn.Module]:
    """The module that pools each of these sequences, where that is known, and where `adapt` would
    have it pool unique samples while it trains.

    A module says so by `features` and `poolings`, as many of the one as of the other. Where none
    does, poolings that are all alike stand for all features.
    """
    found = _poolings_by_feature(model, features)
    return {name: pooling for name, pooling in found.items() if not why_all_samples(pooling)}


def _poolings_by_feature(model: nn.Module, features: Sequence[str]) -> dict[str, nn.Module]:
    for part in model.modules():
        names, poolings = getattr(part, "features", None), getattr(part, "poolings", None)
        if isinstance(poolings, nn.ModuleList) and len(names or ()) == len(poolings):
            found = dict(zip(names or (), poolings, strict=True))
            return {name: found[name] for name in features if name in found}
    poolings = [part for part in model.modules() if _is_pooling(part)]
    alike = len({(type(one), repr(one)) for one in poolings}) == 1
    return dict.fromkeys(features, poolings[0]) if alike else {}


def not_looked_up(model: nn.Module, groups: Groups) -> str:
    """The groups, in words, of which no adapted collection of the model looks up a feature."""
    looked_up = {
        key
        for module in model.modules()
        if isinstance(module, DEDUP_COLLECTIONS)
        for part in module.parts
        for key in part.keys
    }
    return " or ".join(", ".join(group) for group in groups if not looked_up & set(group))


def _left_as_they_are(modules: Mapping[str, nn.Module], groups: Groups) -> frozenset[str]:
    """The paths of modules that cannot be adapted and need not be, and of all that is in them.

    These are collections of another kind, and TorchRec's modules that hold a collection and treat
    its features themselves. They read the expansion, and are refused where one of their features is
    deduplicated.
    """
    unique = frozenset(key for group in groups for key in group)
    left: set[str] = set()
    for path, module in _cannot_be_adapted(modules):
        found = _features_of(module)
        if found is None or unique & found:
            which = f" ({', '.join(sorted(unique & found))})" if found else ""
            raise CapabilityError(
                f"dedup: module {path!r} is a {type(module).__name__}, which cannot look up unique "
                f"samples{which}: TorchRec's EmbeddingCollection and EmbeddingBagCollection can. "
                "Use one of these, leave its features out of dedup.groups, or take `dedup` out of "
                "registry.yaml."
            )
        left |= {f"{path}.{name}".strip(".") for name, _ in module.named_modules()}
    return frozenset(left)


def looked_up_otherwise(model: nn.Module, features: Sequence[str]) -> frozenset[str]:
    """The features that are looked up by modules which cannot look up unique samples; all features,
    where it is not known what such a module looks up."""
    found: set[str] = set()
    for _, module in _cannot_be_adapted(dict(model.named_modules())):
        own = _features_of(module)
        found |= {*features} if own is None else own & {*features}
    return frozenset(found)


def _cannot_be_adapted(modules: Mapping[str, nn.Module]) -> Iterator[tuple[str, nn.Module]]:
    """Collections of another kind, and TorchRec's modules that hold a collection and treat its
    features themselves, with their paths."""
    kinds = (*DEDUP_COLLECTIONS, EmbeddingCollection, EmbeddingBagCollection)
    interfaces = (EmbeddingCollectionInterface, EmbeddingBagCollectionInterface)
    for path, module in modules.items():
        holds = any(isinstance(child, interfaces) for child in module.children())
        if (isinstance(module, interfaces) and type(module) not in kinds) or (
            holds and type(module).__module__.startswith("torchrec.modules.")
        ):
            yield path, module


def _features_of(module: nn.Module) -> frozenset[str] | None:
    """The features that a module of TorchRec's, or a module in it, looks up; None where that is not
    known."""
    configs: list[Any] = []
    for part in module.modules():
        for name in ("embedding_bag_configs", "embedding_configs"):
            tables = getattr(part, name, None)
            configs += tables() if callable(tables) else tables or []
    if not configs:
        return None
    return frozenset(key for config in configs for key in config.feature_names)


def _named(modules: Mapping[str, nn.Module], patterns: Sequence[str]) -> frozenset[str]:
    """The paths of the poolings that `patterns` name. A glob may also fit modules inside a pooling,
    which are left out. `RegistryError` where a pattern fits no pooling."""
    check_patterns(patterns, modules, kind="module of the model", where="adapt")
    found: set[str] = set()
    for pattern in patterns:
        fits = [path for path in modules if path and fitting(path, [pattern])]
        pools = [path for path in fits if _takes_rows(modules[path])]
        outermost = {path for path in pools if not any(path.startswith(f"{one}.") for one in pools)}
        if fits and not outermost and pattern != "*":
            kinds = listed(sorted({type(modules[path]).__name__ for path in fits}))
            raise RegistryError(
                f"adapt: poolings: {shown(pattern)} names no pooling: it matches {kinds}, whose "
                "forward does not take values and lengths. Name the modules whose forward takes "
                "(values, lengths) or (values, lengths, query)."
            )
        found |= outermost
    return frozenset(found)


def _takes_rows(module: nn.Module) -> bool:
    """Whether it can be called as a pooling is: with values and lengths, or with a query too."""
    interfaces = (EmbeddingCollectionInterface, EmbeddingBagCollectionInterface)
    if type(module).forward is nn.Module.forward or any(
        isinstance(part, interfaces) for part in module.modules()
    ):
        return False
    try:
        signature = inspect.signature(module.forward)
    except (TypeError, ValueError):  # a compiled one has no signature
        return True
    return _binds(signature, 2) or _binds(signature, 3)


def _binds(signature: inspect.Signature, count: int) -> bool:
    try:
        signature.bind(*range(count))
    except TypeError:
        return False
    return True


def _is_pooling(module: nn.Module) -> bool:
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
        """The argument by which the batch goes into a module that tracing does not enter."""
        return tracer.create_arg(self._batch)


def _seeing_all_features(model: nn.Module) -> None:
    """Have the model's forward see a `BatchView` of its batch, if a batch is all that it needs.

    The model's class becomes a subclass of itself, as with torch's parametrizations: names,
    attributes and `isinstance` stay. A forward that needs more arguments is handed `batch.sparse`
    by its caller.
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

    @functools.wraps(forward)  # torch.fx counts the arguments by it
    def seeing(self: nn.Module, batch: Any, *args: Any, **kwargs: Any) -> Any:
        # While the model is traced the batch is a proxy. A stranger's batch may have attributes of
        # these names.
        ours = isinstance(batch, Proxy) or hasattr(type(batch), "sparse")
        seen = BatchView(batch) if ours else batch  # a KJT, say
        return forward(self, seen, *args, **kwargs)

    body = {"forward": seeing, "sees_all_features": True, "__module__": kind.__module__}
    model.__class__ = type(kind.__name__, (kind,), body)
