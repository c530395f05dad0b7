"""The planner that a registry chose: what it knows, and whose sharders it plans for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any
from weakref import ReferenceType, ref

from recd_plugins.errors import PluginError, RegistryError, called, check_made, so_many
from recd_plugins.planning.answers import completed
from recd_plugins.planning.fused_params import check_registry_agrees
from recd_plugins.planning.planner_bases import OrdersBatches, TakesContext
from recd_plugins.planning.prices.codecs import Codecs, check_codecs_agree
from recd_plugins.planning.sharders import check_planned, default_sharders
from recd_plugins.registry.choice import Choice
from recd_plugins.registry.contexts import Contexts
from recd_plugins.registry.registry import Registry
from recd_plugins.slots import Loader, Planner
from recd_plugins.slots.built import check_parts

if TYPE_CHECKING:
    from torch import nn
    from torchrec.distributed.types import ModuleSharder

    from recd_plugins.planning.access.trainer_batches import TrainerBatches

__all__ = ["RegistryPlanner"]


class RegistryPlanner:
    """A registry's planner, built once, when it is first asked for."""

    def __init__(
        self,
        registry: Registry,
        contexts: Callable[[], Contexts],
        read: Callable[[int, int], Loader],
    ) -> None:
        """`read(rank, world_size)` reads the registry's own dataset."""
        self._registry, self._contexts, self._read = registry, contexts, read
        self._planner: Planner | None = None
        self._sharders: list[ModuleSharder[nn.Module]] | None = None
        """The trainer's own, once it has given them."""
        self._model: ReferenceType[nn.Module] | None = None
        """The model that was planned last."""
        self._known: dict[str, Any] = {}
        self.planned = False
        """Whether there is a plan."""

    @property
    def choice(self) -> Choice:
        """The choice that plans: a cache stands in front of the sharding slot's planner."""
        registry = self._registry
        return registry.one("cache" if registry.chosen("cache") else "sharding")

    @property
    def known(self) -> Mapping[str, Any]:
        """The facts, beside the registry, by which a plan is made; they are fields of `Context`."""
        return self._known

    def planner(self) -> Planner:
        """The planner, which counts as many ranks as are to train, unless it knows other
        batches."""
        if self._planner is None:
            if not self._known:
                self.read_by_registry(0, self._registry.train.ranks)
            self._planner = self._contexts().planner(self.choice)
        return self._planner

    def planner_by_now(self) -> Planner:
        """The planner, with what is known now."""
        planner: object = self._planner
        if isinstance(planner, TakesContext):
            with self.choice.named("when told what it plans for"):
                planner.take(self._contexts().planning(self.choice))
        elif self._of_trainer and not isinstance(planner, OrdersBatches):
            self._planner = None  # the old one was built before this was known
        return self.planner()

    def check_has(self, part: str) -> None:
        """`PluginError` where the planner lacks this part."""
        check_parts(self.planner(), "Planner", (part,), f"{self.choice.who} built")

    def sharders_of_plan(self) -> list[ModuleSharder[nn.Module]]:
        """The planner's sharders: the trainer's own, wrapped where the plan changes their
        modules."""
        self.check_has("sharders")
        planner, choice = self.planner(), self.choice
        with choice.named("when asked for its sharders"):
            found = planner.sharders()
        whose = f"{choice.who}: its `sharders` returned"
        check_made(found, Sequence, whose, "Return context.sharders(), as they are or wrapped.")
        for one in found:
            if isinstance(one, type):
                cure = f"Make one of it: `{one.__name__}(...)`."
                raise PluginError(
                    f"{whose} among others {called(one)}, which is no sharder. {cure}"
                )
            check_parts(one, "ModuleSharder", ("module_type", "shard"), f"{whose} among others")
        return completed(found, self.sharders(), f"{choice.where}: {type(planner).__name__}")

    def explain(self) -> str:
        """Why the plan is as it is, as the planner says it."""
        self.check_has("explain")
        choice, fix = self.choice, "Return why the plan is as it is, in words."
        with choice.named("when asked why the plan is as it is"):
            why = self.planner().explain()
        check_made(why, str, f"{choice.who}: its `explain` returned", fix)
        return why

    @property
    def _of_trainer(self) -> bool:
        """Whether it knows what is in no registry: a trainer's batches or its constraints."""
        return "batch_size" in self._known or bool(self._known.get("constraints"))

    def know(self, **facts: Any) -> None:
        """Add facts to those that are known."""
        self._known.update(facts)

    def read_by_registry(self, rank: int, world_size: int) -> None:
        """From now on the planner counts what this rank reads of the registry's dataset, if there
        is one."""
        reads = self._registry.has_dataset
        self._known = {"batches": (lambda: self._read(rank, world_size)) if reads else None}

    def read_by_trainer(self, brought: TrainerBatches) -> None:
        """From now on the planner counts what the trainer brought."""
        self._known = {
            "batches": brought.batches,
            "features": brought.features,
            "profile": brought.profile,
            "batch_size": self._batch_size(brought),
            "data_parallel": True,
        }

    def plan_for(
        self, model: nn.Module, sharders: Sequence[ModuleSharder[nn.Module]] | None
    ) -> None:
        """Plan `model` next, with these sharders, by default the earlier ones; `RegistryError`
        where registry.yaml names another optimizer of tables."""
        if sharders is not None:
            self._sharders = list(sharders)
        self._check_agrees(model, self.sharders())
        self._model = ref(model)

    @property
    def model(self) -> nn.Module | None:
        """The model that was planned last, while it lives."""
        return None if self._model is None else self._model()

    @property
    def model_is_gone(self) -> bool:
        """Whether the model that was planned last no longer exists: it was a copy that nobody
        trains."""
        return self._model is not None and self._model() is None

    def sharders(self) -> list[ModuleSharder[nn.Module]]:
        """The trainer's own sharders; TorchRec's default ones where it names none."""
        if self._sharders is None:
            named = self._options_of_tables
            fused = self._registry.train.optimizer.fused_params() if named else None
            self._sharders = default_sharders(fused, self._codecs)
        return self._sharders

    def take_sharders(self, mine: list[ModuleSharder[nn.Module]]) -> None:
        """Take the trainer's own sharders; a plan may have been made without them."""
        if (model := self.model) is not None:
            check_planned(model, self.sharders(), mine)
            self._check_agrees(model, mine)
        self._sharders = mine

    def train_by_registry(self) -> None:
        """Where the trainer named no sharders, tables train as `train` says."""
        if self._sharders is None:
            self._sharders = self.default_sharders()

    def default_sharders(self) -> list[ModuleSharder[nn.Module]]:
        """TorchRec's default sharders, by which tables train and exchange as `train.optimizer` and
        `train.codecs` say, even by their defaults."""
        return default_sharders(self._registry.train.optimizer.fused_params(), self._codecs)

    @cached_property
    def _codecs(self) -> Codecs | None:
        """The codecs of registry.yaml, as one object for all sharders: these are compared by
        identity."""
        return self._registry.train.codecs.of_tables(self._contexts().device)

    def _check_agrees(self, model: nn.Module, sharders: Sequence[ModuleSharder[nn.Module]]) -> None:
        settings = self._registry.train.optimizer
        check_registry_agrees(model, sharders, self._options_of_tables, settings)
        check_codecs_agree(model, sharders, self._codecs)

    @property
    def _options_of_tables(self) -> Sequence[str]:
        """The options of `train.optimizer` for tables that registry.yaml names."""
        written = self._registry.written("train", "optimizer")
        return [name for name in written if name.startswith("tables")]

    def _batch_size(self, brought: TrainerBatches) -> int:
        """The samples of a rank and step, by the trainer's batches, or else by the registry, or by
        the profile."""
        chosen, found = self._registry.train.batch_size, brought.batch_size
        if "batch_size" not in self._registry.written("train"):
            return found or chosen
        if brought.batches and found and found != chosen:
            raise RegistryError(
                f"train.batch_size is {chosen}, but the batches that stack.plan was given have "
                f"{so_many(found, 'sample')}. Take it out of registry.yaml, because a trainer's "
                "batches decide it."
            )
        return chosen
