"""What a trainer's model looks up, checked against what the registry reads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from recd_plugins.data.schema import Schema
from recd_plugins.errors import CapabilityError, so_many
from recd_plugins.planning.embedding_collections import embedding_collections

if TYPE_CHECKING:
    from torch import nn

    from recd_plugins.registry.feature_steps import FeatureSteps

__all__ = ["behind_collisions", "check_read", "looked_up", "too_small", "unweighed"]


def looked_up(model: nn.Module) -> set[str]:
    """The features of all tables of a model."""
    from recd_plugins.planning.model_tables import model_tables

    return {name for table in model_tables(model).values() for name in table.features}


def check_read(model: nn.Module, steps: FeatureSteps) -> None:
    """`CapabilityError` where a model looks up what is not read, since it is not the registry's
    model."""
    asked = set() if steps.columns is None else looked_up(model)
    lacking = asked & {*steps.schema_from_whole.sparse_names} - {*steps.schema.sparse_names}
    if lacking:
        names = ", ".join(sorted(lacking))
        raise CapabilityError(
            f"stack.plan: the model looks up {names}, which is not read, because the model of "
            "registry.yaml does not take it. Take `model` out of registry.yaml if yours is another "
            "one; or let its record's `takes` (`model.features` of the built-in ones) name it."
        )


def too_small(model: nn.Module, schema: Schema) -> list[str]:
    """The tables that have fewer rows than one of their features has ids, in words; without those
    behind a managed collision, which gives each id a row."""
    from recd_plugins.planning.model_tables import model_tables

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
    from recd_plugins.planning.model_tables import model_tables

    maps = [path for path, one in model.named_modules() if "ManagedCollision" in type(one).__name__]
    return [
        table.name
        for table in model_tables(model).values()
        if any(table.module.startswith(path) for path in maps)
    ]


def unweighed(model: nn.Module) -> set[str]:
    """The features that only bags without weights of ids look up."""
    from torchrec.modules.embedding_modules import EmbeddingBagCollection

    found: dict[bool, set[str]] = {True: set(), False: set()}
    for _, module, configs in embedding_collections(model):
        bare = isinstance(module, EmbeddingBagCollection) and not module.is_weighted()
        found[bare].update(name for config in configs for name in config.feature_names)
    return found[True] - found[False]
