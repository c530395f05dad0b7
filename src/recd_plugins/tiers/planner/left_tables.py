"""The tables that a planner of tiers leaves to TorchRec, and the reason for each."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from recd_plugins.planning.sharders import sharded_modules
from recd_plugins.planning.tables.model_tables import ambiguous, model_tables

if TYPE_CHECKING:
    from torch import nn
    from torchrec.distributed.types import ModuleSharder

__all__ = ["VARIABLE", "WITHOUT_FUSED", "LeftTables", "of_weighted_means"]

VARIABLE = "keys of the KJT differ in batch size (variable batch per feature) there"
ONE_NAME = "other collections have tables of this name, and tier plans know tables by it alone"
FUSED = "TorchRec plans and trains by itself what its `fuse_embedding_optimizer` made"
WITHOUT_FUSED = (
    "Leave TorchRec's `fuse_embedding_optimizer` out, and name the tables' optimizer by "
    "`apply_optimizer_in_backward(...)`"
)
WEIGHTED_MEANS = (
    "what TorchRec divides means of weighted ids by is the plan's: the sum of the weights where a "
    "table is row-wise, as one with replicas is, and the number of ids elsewhere"
)
CURES = {
    FUSED: f"{WITHOUT_FUSED}.",
    ONE_NAME: "Give each collection's tables names of their own.",
    WEIGHTED_MEANS: "Pool weighted ids by the sum, and have the model divide.",
}
"""What to do about a table that is left for a reason in the model."""


class LeftTables:
    """The tables that a policy is for but tiers cannot stand in front of, each with the reason."""

    def __init__(self) -> None:
        self.why: Mapping[str, str] = {}
        self._refused: Mapping[str, str] = {}
        self.cures: Mapping[str, str] = CURES
        """What to do about some of the reasons."""

    def begin(
        self,
        model: nn.Module,
        chosen: Collection[str],
        fused: Mapping[str, Mapping[str, Any]],
        sharders: Sequence[ModuleSharder[nn.Module]],
    ) -> None:
        """Begin with the chosen tables that the trainer's sharders do not shard, or in ways that
        tiers cannot stand in front of. `fused` has the tables whose optimizer the sharders name."""
        self._refused = dict(_refused(model, fused, sharders))
        self.why = {name: why for name, why in self._refused.items() if name in chosen}
        self.cures = CURES

    def add(self, names: Collection[str], why: str, cure: str | None = None) -> None:
        """Leave these too; with a cure, a notice says so."""
        self.why = {**self.why, **dict.fromkeys(names, why)}
        if cure is not None:
            self.cures = {**self.cures, why: cure}

    def add_weighted_means(self, names: Collection[str]) -> None:
        """Leave these too, for the weights that their ids come with."""
        self.add(names, WEIGHTED_MEANS)

    def add_fused(self, names: Collection[str]) -> None:
        """Leave these, which are in collections that hold their optimizer themselves."""
        self.add(names, FUSED)

    def add_variable(self, names: Collection[str]) -> None:
        """Leave these too, for the kind of their KJTs."""
        self.add(names, VARIABLE)

    def to_choose(self, every: Collection[str]) -> list[str]:
        """The tables of all that are not refused, chosen or not."""
        return [name for name in every if name not in self._refused]

    def add_refused(self, names: Collection[str]) -> None:
        """Leave these, all of which are refused, also those that were not chosen."""
        self.why = {name: self._refused[name] for name in names}

    @property
    def reported(self) -> set[str]:
        """The tables of which a notice says that they are left, and what to do."""
        return {name for name, why in self.why.items() if why in self.cures}

    @property
    def by_reason(self) -> dict[str, list[str]]:
        """The tables that are left for each reason."""
        reasons: dict[str, list[str]] = {}
        for name, why in self.why.items():
            reasons.setdefault(why, []).append(name)
        return reasons

    def in_words(self) -> list[str]:
        """A line for each table."""
        return [f"table {name} is left to TorchRec, for {why}" for name, why in self.why.items()]


def _refused(
    model: nn.Module,
    fused: Mapping[str, Mapping[str, Any]],
    sharders: Sequence[ModuleSharder[nn.Module]],
) -> Iterator[tuple[str, str]]:
    """The tables that these sharders do not shard, or in ways that tiers cannot stand in front of,
    and why."""
    from recd_plugins.tiers.sharder import why_no_tiers

    for name in ambiguous(model):
        yield name, ONE_NAME
    for name in of_weighted_means(model):
        yield name, WEIGHTED_MEANS
    for name in model_tables(model).keys() - fused.keys():
        yield name, "no sharder of the trainer's is for the module that it is in"
    for _, module, sharder in sharded_modules(model, sharders):
        if why := why_no_tiers(sharder):
            for table in sharder.shardable_parameters(module):
                yield table, why


def of_weighted_means(model: nn.Module, weighted: Collection[str] = ()) -> Iterator[str]:
    """The tables of bags that take means of weighted ids: those of weighted bags, and those that
    look up these features, for TorchRec weights ids wherever a KJT has weights."""
    from torchrec.modules.embedding_configs import PoolingType
    from torchrec.modules.embedding_modules import EmbeddingBagCollection

    for module in model.modules():
        if isinstance(module, EmbeddingBagCollection):
            for one in module.embedding_bag_configs():
                given = module.is_weighted() or not {*weighted}.isdisjoint(one.feature_names)
                if given and one.pooling is PoolingType.MEAN:
                    yield one.name
