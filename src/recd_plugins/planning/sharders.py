"""The sharders of a trainer: which modules they shard, and which optimizer they give to tables.

A trainer says how tables are trained in two places, which TorchRec merges when it shards them:
`apply_optimizer_in_backward` of a table's parameter, and the `fused_params` of its sharder. Both
are read here, so that nobody has to say it twice. TorchRec is imported inside of functions, since
that takes seconds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from recd_plugins.errors import CapabilityError, PluginError, RegistryError

if TYPE_CHECKING:
    from torch import nn
    from torchrec.distributed.types import ModuleSharder, ShardingPlan

__all__ = [
    "check_planned",
    "check_registry_agrees",
    "completed",
    "default_sharders",
    "fused_by_table",
    "fused_in_words",
    "left_whole",
    "sharded_modules",
]

DEFAULTS: Mapping[str, float] = {"learning_rate": 0.01, "eps": 1e-8}
"""What fbgemm's kernels take where nobody says it; the optimizer is then EXACT_SGD."""

SAYS = {"tables": "optimizer", "tables_lr": "learning_rate", "tables_eps": "eps"}
"""What an option of `train.optimizer` is called in fused params."""


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


def fused_by_table(
    model: nn.Module, sharders: Sequence[ModuleSharder[Any]]
) -> dict[str, dict[str, Any]]:
    """The fused params of each table that is sharded: its sharder's, under those of its own."""
    from recd_plugins.compat.torchrec import own_fused_params

    return {
        table: {**(getattr(sharder, "fused_params", None) or {}), **own_fused_params(parameter)}
        for _, module, sharder in sharded_modules(model, sharders)
        for table, parameter in sharder.shardable_parameters(module).items()
    }


class TablesOptimizer(Protocol):
    """`train.optimizer` of registry.yaml."""

    def fused_params(self) -> dict[str, Any]:
        """The options of tables, as TorchRec's `fused_params`."""


def check_registry_agrees(
    model: nn.Module,
    sharders: Sequence[ModuleSharder[Any]],
    named: Sequence[str],
    settings: TablesOptimizer,
) -> None:
    """`RegistryError` where registry.yaml says another optimizer of tables than they have.

    `named` are those of the `settings` that registry.yaml has.
    """
    if not named:
        return
    wanted = settings.fused_params()
    for table, own in fused_by_table(model, sharders).items():
        has = {"optimizer": type(wanted["optimizer"]).EXACT_SGD, **DEFAULTS, **own}
        wrong = [name for name in named if has[SAYS[name]] != wanted[SAYS[name]]]
        if has["optimizer"].name == "EXACT_SGD":  # it has no epsilon
            wrong = [name for name in wrong if name != "tables_eps"]
        if wrong:
            raise RegistryError(
                f"registry.yaml says {fused_in_words(wanted)}, but the trainer's table {table!r} "
                f"has {fused_in_words(own)}, by apply_optimizer_in_backward or by the fused_params "
                f"of its sharder. Set it in one place: take {', '.join(wrong)} out, or let the "
                "trainer set the same.",
                "train.optimizer",
            )


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


def completed(
    found: Sequence[ModuleSharder[nn.Module]], given: Sequence[ModuleSharder[nn.Module]], who: str
) -> list[ModuleSharder[nn.Module]]:
    """The sharders that a planner brings, with those that the trainer has `given` for other
    modules.

    `PluginError`, which names the planner as `who`, where it replaces a sharder of the trainer's by
    one that trains or exchanges otherwise.
    """
    by_type = {one.module_type: one for one in found}
    for own in given:
        other = by_type.get(own.module_type, own)
        theirs, ours = (getattr(one, "fused_params", None) or {} for one in (other, own))
        codecs = other.qcomm_codecs_registry is own.qcomm_codecs_registry
        if theirs == ours and codecs:
            continue
        what = (
            f"trains tables with {fused_in_words(theirs)}, where the trainer's have "
            f"{fused_in_words(ours)}"
            if theirs != ours
            else "leaves out the trainer's qcomm_codecs_registry"
        )
        raise PluginError(
            f"{who} brings a {type(other).__name__} of its own for {own.module_type.__name__}, "
            f"which {what}. Have its `sharders` return those of `context.sharders()`, wrapped "
            "where its plan changes modules."
        )
    return [*found, *(own for own in given if own.module_type not in by_type)]


def fused_in_words(fused: Mapping[str, Any]) -> str:
    """The optimizer that fused params name, in words: `EXACT_SGD, learning_rate 0.2`."""
    kind: str = getattr(fused.get("optimizer"), "name", "EXACT_SGD")
    named = [f"learning_rate {fused.get('learning_rate', DEFAULTS['learning_rate']):g}"]
    if kind not in ("EXACT_SGD", "SGD"):
        named.append(f"eps {fused.get('eps', DEFAULTS['eps']):g}")
    others = ("weight_decay", "weight_decay_mode", "max_norm", "max_gradient", "beta1", "beta2")
    named += [f"{name} {fused[name]}" for name in others if fused.get(name)]
    return ", ".join([kind, *named])
