"""The tables that a planner of tiers leaves to TorchRec, and its notices of that."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from recd_plugins.errors import listed, so_many
from recd_plugins.notices import Missed, Notice, Unused
from recd_plugins.planning.embedding_collections import fused_collections
from recd_plugins.planning.model_tables import ambiguous, model_tables
from recd_plugins.planning.sharders import sharded_modules

if TYPE_CHECKING:
    from torch import nn
    from torchrec.distributed.types import ModuleSharder

__all__ = ["OWN", "LeftTables", "in_backticks", "of_weighted_means"]

OWN = "TorchRec's own"
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
OWN_SHARDERS = (
    "Replicas are for tables of an EmbeddingCollection or EmbeddingBagCollection that TorchRec's "
    "own sharders shard."
)


class LeftTables:
    """The tables that a policy is for but tiers cannot stand in front of, each with the reason; and
    the notices of a plan that gives replicas to no table."""

    def __init__(self, what: str, kind: str, *, asked_by: Sequence[str], options_in: str) -> None:
        """`what` names the planner as registry.yaml switches it on, `kind` what it gives replicas
        to. It plans nothing without the slots that it is `asked_by`; the options of its tables and
        memory are those of the slot `options_in`."""
        self.why: Mapping[str, str] = {}
        self._refused: Mapping[str, str] = {}
        self._cures: Mapping[str, str] = CURES
        self._what, self._kind = what, kind
        self._all, self._options_in = in_backticks(asked_by), options_in

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
        self._cures = CURES

    def add(self, names: Collection[str], why: str, cure: str | None = None) -> None:
        """Leave these too; with a cure, a notice says so."""
        self.why = {**self.why, **dict.fromkeys(names, why)}
        if cure is not None:
            self._cures = {**self._cures, why: cure}

    @property
    def reported(self) -> set[str]:
        """The tables of which a notice says that they are left, and what to do."""
        return {name for name, why in self.why.items() if why in self._cures}

    def in_words(self) -> list[str]:
        """A line for each table."""
        return [f"table {name} is left to TorchRec, for {why}" for name, why in self.why.items()]

    def of_the_model(self) -> Iterator[Notice]:
        """Notices, while other tables are planned, of those that are left because of how the model
        uses them, or because another table needs them."""
        for why, cure in self._cures.items():
            if names := [name for name, left in self.why.items() if left == why]:
                yield Missed(what=self._what, why=f"{_left_alone(names)}, for {why}", cure=cure)

    def add_weighted_means(self, names: Collection[str]) -> None:
        """Leave these too, for the weights that their ids come with."""
        self.add(names, WEIGHTED_MEANS)

    def add_fused(self, names: Collection[str]) -> None:
        """Leave these, which are in collections that hold their optimizer themselves."""
        self.add(names, FUSED)

    def add_variable(self, names: Sequence[str], *, others: bool) -> Notice:
        """Leave these too, for the kind of their KJTs; `others` says whether other tables are
        planned."""
        self.add(names, VARIABLE)
        kind = Missed if others else Unused
        return kind(
            what=self._what,
            why=f"{_left_alone(names)}, for {VARIABLE}",
            cure="Hand its collection a KJT of one batch size, or unique samples "
            "(`stack.convert`).",
        )

    def counted_otherwise(self, tables: Sequence[str]) -> Missed:
        """Most ids that were counted of these tables have no row in them."""
        return Missed(
            what=self._what,
            why=f"most ids that were counted of {listed(tables, kind='table')} are of no row, as "
            "where a model maps ids before it looks them up, so that nobody knows which rows are "
            "looked up",
            cure="Have `features` return a KeyedJaggedTensor of the ids that the model looks up; "
            "or map them in the loader.",
        )

    def counted_alike(self) -> Missed:
        """Every rank counted the same batches."""
        return Missed(
            what=self._what,
            why="every rank counted the same batches. If ranks train on these, each sample is "
            "trained on by all of them; if not, ranks together could have counted more",
            cure="Have each rank read samples of its own, as by torch's DistributedSampler, or by "
            "a seed that differs by rank.",
        )

    def no_batches(self, options_in: str) -> Unused:
        """Nothing can be counted. A saved profile would be an option of the slot `options_in`."""
        return Unused(
            what=self._what,
            why="there are no batches to profile",
            cure="Pass the trainer's own, `stack.plan(model, batches=loader, features=lambda "
            "batch: ...)`, where `features` gives a batch's KeyedJaggedTensor; or a saved "
            f"profile: `stack.plan(model, profile=path)`, or `{options_in}.profile`.",
        )

    def no_collections(self, model: nn.Module) -> Unused:
        """The model has no tables that could be planned."""
        if fused := {type(one).__name__ for one, _ in fused_collections(model)}:
            return Unused(
                what=self._what,
                why=f"all tables of the model are in {' and '.join(sorted(fused))}, which "
                "TorchRec plans and trains by itself",
                cure=f"{WITHOUT_FUSED}; or take {self._all} out.",
            )
        return Unused(
            what=self._what,
            why="the model has no EmbeddingCollection or EmbeddingBagCollection",
            cure=f"Plan the model that has them, or take {self._all} out.",
        )

    def to_choose(self, every: Collection[str]) -> list[str]:
        """The tables that are not refused, chosen or not; if there is none, all are left."""
        names = [name for name in every if name not in self._refused]
        if not names:
            self.why = {name: self._refused[name] for name in every}
        return names

    def all_left(self) -> Unused:
        """Every table is left, for these reasons."""
        reasons: dict[str, list[str]] = {}
        for name, why in self.why.items():
            reasons.setdefault(why, []).append(name)
        cures = dict.fromkeys(self._cures.get(why, OWN_SHARDERS) for why in reasons)
        return Unused(
            what=self._what,
            why="; ".join(f"{_left_alone(names)}, for {why}" for why, names in reasons.items()),
            cure=f"{' '.join(cures)} Or take {self._all} out.",
        )

    def constrained(self, tables: Collection[str]) -> Unused:
        """The trainer's constraints leave none of these row-wise."""
        return Unused(
            what=self._what,
            why=f"constraints keep {listed(tables, kind='table')} from being row-wise with "
            f"TorchRec's fused kernel, which a {self._kind} with replicas is",
            cure="Allow it in the constraints: `sharding_types: [row_wise, ...]`, "
            "`compute_kernels: [fused, ...]`.",
        )

    def none_named(self, every: Collection[str]) -> Unused:
        """The policy's options leave all of the model's tables out."""
        return Unused(
            what=self._what,
            why=f"no {self._kind} may have replicas: its `tables` leaves "
            f"{listed(every, kind='table')} out",
            cure=f"Name some under `{self._options_in}.tables`, if it has that option.",
        )

    def all_data_parallel(self) -> Unused:
        """The planner behind has each on every rank."""
        return Unused(
            what=self._what,
            why=f"{OWN} plan has every {self._kind} that may have replicas data-parallel, so that "
            "none of their rows travels",
            cure=f"Take {self._all} out, or name other sharding types in the constraints.",
        )

    def none_pays(
        self,
        tables: Collection[str],
        world_size: int,
        *,
        row_wise: bool,
        over: str,
        links_stated: bool,
    ) -> Unused:
        """The policy has chosen nothing for these tables, or left them plainly `row_wise`; a faster
        plan would be `over` what it may take. The prices are of `links_stated` by a topology."""
        left = "these are plainly row-wise" if row_wise else "all tables are TorchRec's"
        if over:
            return Unused(
                what=self._what,
                why=f"by its prices for {so_many(world_size, 'rank')} replicas or coalescing of "
                f"ids would pay in {listed(tables, kind='table')}, but what is fastest {over}, so "
                f"that {left}",
                cure=f"stack.explain() shows what each way takes. Take {self._all} out, or give "
                f"replicas memory where that is what lacks, by `{self._options_in}.budget_gb`.",
            )
        return Unused(
            what=self._what,
            why=f"by its prices for {so_many(world_size, 'rank')} no replica and no coalescing of "
            f"ids pays in {listed(tables, kind='table')}, so that {left}",
            cure=f"stack.explain() and `recd explain` show the prices. Take {self._all} out, or "
            + (
                "correct `topology`, if the links are slower than it says: `recd topology measure`."
                if links_stated
                else "say what the network is: `topology` in registry.yaml."
            ),
        )


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


def in_backticks(slots: Sequence[str]) -> str:
    """Slots of registry.yaml, in a sentence."""
    return " and ".join(f"`{slot}`" for slot in slots)


def _left_alone(tables: Sequence[str]) -> str:
    return f"{listed(tables, kind='table')} {'are' if len(tables) > 1 else 'is'} left to TorchRec"
