"""What a rank has made of registry.yaml, which every rank must make alike."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from recd_plugins.data.dataset import Tables
from recd_plugins.data.schema import Schema
from recd_plugins.planning.tables.embedding_collections import embedding_collections
from recd_plugins.planning.together import check_alike
from recd_plugins.registry.feature_steps import FeatureSteps
from recd_plugins.registry.registry import Registry

if TYPE_CHECKING:
    from torch import nn
    from torch.distributed import ProcessGroup

__all__ = ["check_made_alike"]

CURE = "Make the same on every rank: let no rank, no time and no random number decide."
ORDER = "Make them in the same order on every rank: a set has another in each process; sort it."


def check_made_alike(
    registry: Registry,
    features: FeatureSteps,
    group: ProcessGroup,
    *,
    tables: Tables | None,
    schema: Schema | None,
    model: nn.Module | None,
    planned: nn.Module,
) -> None:
    """`PluginError` on every rank of a group where one has made other tables, groups of features,
    another schema or other parameters of the registry's model, as far as it has made any by now, or
    plans for other embedding tables; all of them call it."""
    every = chain(
        _made(registry, features, tables, schema), _parameters(registry, model), _tables(planned)
    )
    made = {whose: (what, cure) for whose, what, cure in every}
    check_alike(
        {whose: what for whose, (what, _) in made.items()},
        group,
        {whose: cure for whose, (_, cure) in made.items()},
    )


def _made(
    registry: Registry, features: FeatureSteps, tables: Tables | None, schema: Schema | None
) -> Iterator[tuple[str, str, str]]:
    """By whose it is, what it is in words, and what to do where it differs."""
    path = None if tables is None else tables.train.path
    if isinstance(path, Path) and path.resolve().is_relative_to(registry.folder.resolve()):
        yield (
            f"{registry.one('dataset').who}: its tables",
            path.parent.name,
            "Let its `fingerprint` change with its source alone, and have nobody write to that "
            "while a job starts.",
        )
    if "groups" in vars(features) and features.converter is not None:
        groups = str([list(group) for group in features.groups])
        yield f"{registry.one('dedup').who}: its `groups`", groups, CURE
    if schema is not None:
        names = ", ".join((*schema.dense, *schema.sparse_names))
        yield "the features and dense columns behind `preprocess`", names, CURE
        for one in schema.sparse:
            whose = f"the num_ids of feature {one.name!r} behind `preprocess`"
            yield whose, f"{one.num_ids:,}", CURE


def _parameters(registry: Registry, model: nn.Module | None) -> Iterator[tuple[str, str, str]]:
    """The same of the parameters of the registry's model, each by whose part of it has them."""
    from torch.nn.parameter import is_lazy

    from recd_plugins.embedding.pooled_check import who_pools

    if model is None:
        return
    pools = {path: who for path, part in model.named_modules() if (who := who_pools(part))}
    numbers: Counter[str] = Counter()
    for name, parameter in model.named_parameters():
        of = [who for path, who in pools.items() if name.startswith(f"{path}.")]
        who = of[0] if of else registry.one("model").who
        numbers[who] += 1
        if not is_lazy(parameter):
            yield f"{who}: the shapes of its parameter {name!r}", str([*parameter.shape]), CURE
    for who, number in numbers.items():
        yield f"{who}: the numbers of its parameters", str(number), CURE


def _tables(model: nn.Module) -> Iterator[tuple[str, str, str]]:
    """The same of the tables of each collection, which take their features in this order."""
    for path, _, tables in embedding_collections(model):
        for place, table in enumerate(tables, 1):
            yield f"model: the tables of {path!r} at place {place}", table.name, ORDER
            names = ", ".join(table.feature_names)
            yield f"model: the features of table {table.name!r} in {path!r}", names, ORDER
