"""The context that the `build` of each slot's record gets, with what its neighbour slots
built."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from inspect import signature
from typing import TYPE_CHECKING, Any, Literal

from recd_plugins.data.dataset import Tables
from recd_plugins.data.schema import Schema
from recd_plugins.errors import PluginError, check_made
from recd_plugins.registry.choice import Choice
from recd_plugins.registry.registry import Registry
from recd_plugins.slots import SLOTS, Context, Planner, PoolingFactory

if TYPE_CHECKING:
    from torch import nn
    from torchrec.distributed.types import ModuleSharder

__all__ = ["Contexts"]

PLANNING = ("sharding", "cache")
"""The slots whose records build planners."""


@dataclass(frozen=True, kw_only=True)
class Contexts:
    """The contexts of one registry's records, on one device."""

    registry: Registry
    device: Literal["cpu", "cuda"]
    sharders: Callable[[], Sequence[ModuleSharder[nn.Module]]]
    """The trainer's own."""
    known: Callable[[], Mapping[str, Any]] = dict
    """What planners should know by now in addition to registry.yaml: fields of `Context`."""

    def of(self, slot: str, schema: Schema | None = None, tables: Tables | None = None) -> Context:
        """The context of a slot; its neighbours are built for it, with the same schema."""
        return self._context(slot, self.registry.chosen(slot), schema, tables)

    def planner(self, choice: Choice, schema: Schema | None = None) -> Planner:
        """The planner that a choice of `sharding` or `cache` builds, including the planner that
        it stands in front of."""
        others = None if choice.others is None else self.planner(choice.others, schema)
        context = self._context(choice.record.slot, [choice], schema)
        context = dataclasses.replace(context, others=others, **self.known())
        planner: Planner = choice.build(context)
        return planner

    def planning(self, choice: Choice) -> Context:
        """The context with which an already built planner of a choice plans from now on."""
        return dataclasses.replace(self._context(choice.record.slot, (), None), **self.known())

    def _context(
        self,
        slot: str,
        choices: Sequence[Choice],
        schema: Schema | None,
        tables: Tables | None = None,
    ) -> Context:
        train = self.registry.train
        return Context(
            device=self.device,
            seed=0 if slot in ("dataset", "etl") else train.seed,
            folder=self.registry.folder,
            batch_size=train.batch_size,
            fused=train.optimizer.fused_params(),
            codecs=train.codecs.of_tables(self.device),
            own_sharders=self.sharders if slot in PLANNING else None,
            schema=schema,
            tables=tables,
            neighbours=self._neighbours(choices, schema),
        )

    def _neighbours(self, choices: Sequence[Choice], schema: Schema | None) -> dict[str, Any]:
        """The products of the slots that the records of these choices use."""
        built: dict[str, Any] = {}
        uses = {use for choice in choices for use in choice.record.uses}
        for use in sorted(uses):
            used = self.registry.chosen(use)
            parts = [self._built(choice, schema) for choice in used]
            match SLOTS[use].fills:
                case "one":
                    built[use] = parts[0] if parts else None
                case "many":
                    built[use] = parts
                case "by feature":
                    built[use] = {
                        choice.features[0]: part for choice, part in zip(used, parts, strict=True)
                    }
        return built

    def _built(self, choice: Choice, schema: Schema | None) -> Any:
        if choice.record.slot in PLANNING:
            return self.planner(choice, schema)
        built = choice.build(self.of(choice.record.slot, schema))
        return _watched(built, choice) if choice.record.slot == "pooling" else built


def _watched(factory: PoolingFactory, choice: Choice) -> PoolingFactory:
    """The factory of a choice's poolings; if one of them returns what no pooling may, the error
    names the choice."""

    @wraps(factory, updated=())
    def make(dim: int) -> nn.Module:
        from torch import nn

        from recd_plugins.embedding.pooled_check import PooledCheck

        with choice.named(f"when asked for a pooling of {dim} columns"):
            pooling = factory(dim)
        whose = f"{choice.who}: its factory made"
        check_made(pooling, nn.Module, whose, "Return `lambda dim: MyPooling(dim)`.")
        PooledCheck.watch(pooling, choice.who, takes_query=_takes_query(pooling, whose))
        return pooling

    return make


def _takes_query(pooling: nn.Module, whose: str) -> bool:
    """Whether the pooling can be called with a query. `PluginError` unless a model can call it as
    it calls poolings; only for a trainer's own model may it lack the query."""
    try:
        takes = signature(pooling.forward)
        try:
            takes.bind("values", "lengths", "query")
        except TypeError:
            takes.bind("values", "lengths")
            return False
    except TypeError as error:
        raise PluginError(
            f"{whose} a {type(pooling).__name__} whose forward cannot be called with values, "
            f"lengths and a query ({error}). Write `forward(self, values, lengths, query=None)`."
        ) from error
    except ValueError:  # code that Python did not compile has no signature
        pass
    return True
