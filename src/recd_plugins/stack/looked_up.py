"""What a trainer's model looks up, checked against what the registry reads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from recd_plugins.data.schema import Schema
from recd_plugins.errors import CapabilityError, so_many
from recd_plugins.planning.tables.embedding_collections import embedding_collections
from recd_plugins.planning.tables.model_tables import model_tables
from recd_plugins.registry.registry import Registry
from recd_plugins.stack.usage import Usage

if TYPE_CHECKING:
    from torch import nn

    from recd_plugins.registry.feature_steps import FeatureSteps

__all__ = ["behind_collisions", "check_read", "compare_features", "too_small"]


def check_read(model: nn.Module, steps: FeatureSteps) -> None:
    """`CapabilityError` where a model looks up what is not read, since it is not the registry's
    model."""
    asked = set() if steps.columns is None else _looked_up(model)
    lacking = asked & {*steps.schema_from_whole.sparse_names} - {*steps.schema.sparse_names}
    if lacking:
        names = ", ".join(sorted(lacking))
        raise CapabilityError(
            f"stack.plan: the model looks up {names}, which is not read, because the model of "
            "registry.yaml does not take it. Take `model` out of registry.yaml if yours is another "
            "one; or let its record's `takes` (`model.features` of the built-in ones) name it."
        )


def compare_features(
    model: nn.Module, registry: Registry, steps: FeatureSteps, usage: Usage, *, own: bool
) -> None:
    """Give notices of features that are read and that the model does not look up, and of
    transforms that give weights to ids where it takes none. `own`: whether the plan is made of
    what the trainer brought."""
    names = _looked_up(model)
    can_leave_out = registry.has_dataset and hasattr(registry.one("dataset").config, "without")
    knows = steps.says_what_it_takes and steps.columns is not None
    if can_leave_out and not knows and usage.asks_for("model"):
        usage.unneeded(steps.unneeded(names))
    bare = _unweighed(model)
    for choice, weighed in steps.weighing(names, own=own or not registry.has_dataset):
        usage.unweighed(choice, [name for name in weighed if name in bare])


def too_small(model: nn.Module, schema: Schema) -> list[str]:
    """The tables that have fewer rows than one of their features has ids, in words; without those
    behind a managed collision, which gives each id a row."""
    num_ids = {one.name: one.num_ids for one in schema.sparse}
    collided = behind_collisions(model)
    return [
        f"table {table.name} has {so_many(table.num_rows, 'row')}, and {feature} "
        f"{so_many(num_ids[feature], 'id')}"
        for table in model_tables(model).values()
        for feature in table.features
        if num_ids.get(feature, 0) > table.num_rows and table.name not in collided
    ]


def behind_collisions(model: nn.Module) -> list[str]:
    """The tables behind a managed collision."""
    maps = [path for path, one in model.named_modules() if "ManagedCollision" in type(one).__name__]
    return [
        table.name
        for table in model_tables(model).values()
        if any(table.module.startswith(path) for path in maps)
    ]


def _unweighed(model: nn.Module) -> set[str]:
    """The features that only bags without weights of ids look up."""
    from torchrec.modules.embedding_modules import EmbeddingBagCollection

    found: dict[bool, set[str]] = {True: set(), False: set()}
    for _, module, configs in embedding_collections(model):
        bare = isinstance(module, EmbeddingBagCollection) and not module.is_weighted()
        found[bare].update(name for config in configs for name in config.feature_names)
    return found[True] - found[False]


def _looked_up(model: nn.Module) -> set[str]:
    """The features of all tables of a model."""
    return {name for table in model_tables(model).values() for name in table.features}
