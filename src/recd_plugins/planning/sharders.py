"""The sharders of a trainer, and which modules they shard.

TorchRec is imported inside of functions, since that takes seconds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from recd_plugins.errors import CapabilityError

if TYPE_CHECKING:
    from torch import nn
    from torchrec.distributed.types import ModuleSharder, ShardingPlan

__all__ = ["check_planned", "default_sharders", "left_whole", "sharded_modules"]


def default_sharders(
    fused: Mapping[str, Any] | None = None, codecs: Mapping[str, Any] | None = None
) -> list[ModuleSharder[nn.Module]]:
    """TorchRec's `get_default_sharders()`, those of tables that train with these fused params, and
    exchange by these codecs."""
    from torchrec.distributed.embedding_types import BaseEmbeddingSharder
    from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
    from torchrec.distributed.fp_embeddingbag import FeatureProcessedEmbeddingBagCollectionSharder
    from torchrec.distributed.fused_embeddingbag import FusedEmbeddingBagCollectionSharder
    from torchrec.distributed.sharding_plan import get_default_sharders

    given: list[ModuleSharder[nn.Module]] = get_default_sharders()
    if not fused and not codecs:
        return given
    found: list[Any] = []
    for sharder in given:
        kind: Any = type(sharder)
        if not issubclass(kind, BaseEmbeddingSharder):  # for inference
            found.append(sharder)
            continue
        # Sharding mutates the mapping that it is given, so each sharder has its own.
        options = {"fused_params": dict(fused) if fused else None, "qcomm_codecs_registry": codecs}
        if kind is FeatureProcessedEmbeddingBagCollectionSharder:
            own = EmbeddingBagCollectionSharder(**options)
            found.append(kind(own, qcomm_codecs_registry=codecs))
        elif kind is FusedEmbeddingBagCollectionSharder:  # whose modules have their own optimizers
            found.append(kind(qcomm_codecs_registry=codecs))
        else:
            found.append(kind(**options))
    return found


def sharded_modules(
    model: nn.Module, sharders: Sequence[ModuleSharder[Any]]
) -> Iterator[tuple[str, nn.Module, ModuleSharder[Any]]]:
    """The modules that DistributedModelParallel shards by these sharders: path, module, sharder.

    It goes by a module's exact class, and does not look inside a module that it shards: the
    collection in a ManagedCollisionEmbeddingCollection belongs to that module's sharder. A
    collection of an adapted model is sharded as the one that it was.
    """
    by_type = {sharder.module_type: sharder for sharder in sharders}

    def under(path: str, module: nn.Module) -> Iterator[tuple[str, nn.Module, ModuleSharder[Any]]]:
        kind = type(module)
        sharder = by_type.get(kind) or by_type.get(getattr(kind, "ADAPTED_FROM", kind))
        if sharder is not None:
            yield path, module, sharder
            return
        for name, child in module.named_children():
            yield from under(f"{path}.{name}" if path else name, child)

    return under("", model)


def left_whole(
    model: nn.Module, sharders: Sequence[ModuleSharder[Any]], plan: ShardingPlan
) -> list[str]:
    """The modules with tables that have a sharder but no place in the plan:
    DistributedModelParallel leaves them whole on every rank."""
    return [
        path
        for path, module, sharder in sharded_modules(model, sharders)
        if path not in plan.plan and sharder.shardable_parameters(module)
    ]


def check_planned(
    model: nn.Module,
    planned: Sequence[ModuleSharder[nn.Module]],
    given: Sequence[ModuleSharder[nn.Module]],
) -> None:
    """`CapabilityError` where a module was planned and none of the sharders that are given now
    shards it."""
    ours = {path for path, _, _ in sharded_modules(model, given)}
    for path, module, _ in sharded_modules(model, planned):
        if path not in ours:
            raise CapabilityError(
                f"stack.sharders: the plan places the tables of {path!r}, a "
                f"{type(module).__name__}, but none of these sharders shards that. Pass your "
                "sharders to the plan too: stack.plan(model, sharders=mine)."
            )
