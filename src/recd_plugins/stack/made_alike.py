"""What a rank has made of registry.yaml, which every rank must make alike."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from recd_plugins.data.dataset import Tables
from recd_plugins.data.schema import Schema
from recd_plugins.planning.plan_check import check_alike
from recd_plugins.registry.choices import Registry
from recd_plugins.registry.feature_steps import FeatureSteps

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

__all__ = ["check_made_alike"]

CURE = "Make the same on every rank: let no rank, no time and no random number decide."


def check_made_alike(
    registry: Registry,
    features: FeatureSteps,
    group: ProcessGroup,
    *,
    tables: Tables | None,
    schema: Schema | None,
) -> None:
    """`PluginError` on every rank of a group where one has made other tables, groups of features or
    another schema, as far as it has made any by now; all of them call it."""
    made = {whose: (what, cure) for whose, what, cure in _made(registry, features, tables, schema)}
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
