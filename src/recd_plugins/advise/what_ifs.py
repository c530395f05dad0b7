"""What could differ from the registry that advice is on, and how the advice would differ then."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from recd_plugins.additions import Values
from recd_plugins.advise.added_values import answer_of, with_batch_size, with_plugin
from recd_plugins.advise.goal import AdviceGoal
from recd_plugins.advise.walk import Walk
from recd_plugins.errors import RecdError
from recd_plugins.hooks.catalog import ClaimedAddition
from recd_plugins.planning.cluster.cluster import INTER_NODE_GBPS, INTRA_NODE_GBPS
from recd_plugins.planning.cluster.topology import Topology, stated
from recd_plugins.registry import Registry

__all__ = ["WhatIf", "what_may_differ"]

FASTER = 2.0
"""The factor by which links are faster in a what-if."""


@dataclass(frozen=True, kw_only=True)
class WhatIf:
    """The advice that would be given if something were different."""

    name: str
    walk: Walk | None
    """None if it could not be weighed; `why` has the reason."""
    why: str = ""

    @classmethod
    def of(cls, name: str, weighed: Callable[[], Walk]) -> WhatIf:
        """The advice if something were different, or why there is none."""
        try:
            return cls(name=name, walk=weighed())
        except RecdError as error:
            return cls(name=name, walk=None, why=str(error))
        except MemoryError as error:
            why = f"memory here has no room to weigh it ({error})"
            return cls(name=name, walk=None, why=why)

    def changes(self, advised: Sequence[str]) -> str:
        """How the advice would differ from what is `advised`, in words."""
        if self.walk is None:
            return self.why
        more = [f"+ {name}" for name in self.walk.kept if name not in advised]
        less = [f"- {name}" for name in advised if name not in self.walk.kept]
        return ", ".join([*more, *less]) or "the same"


def what_may_differ(
    registry: Registry,
    claims: Sequence[ClaimedAddition],
    goal: AdviceGoal,
    batch_size: int,
    walk: Walk,
    *,
    its_batches: bool = False,
) -> Iterator[tuple[str, Callable[[Values], Values], AdviceGoal]]:
    """What may be different: the links, the batch size, the budget, and what plugins name. The
    batch size stays if they are a trainer's own batches (`its_batches`)."""
    topology = registry.topology

    def faster(values: Values) -> Values:
        return {**values, "topology": _faster(topology, FASTER)}

    if walk.base.ledger.prices.cluster.world_size > 1:
        yield "links twice as fast", faster, goal
        if not registry.written("train", "codecs"):
            yield "floats that travel in 16 bits (train.codecs)", _in_16_bits, goal
    if goal.objective != "time_to_loss" and not its_batches:  # there is no curve for another size
        double = 2 * batch_size
        yield "the batch doubled", lambda values: with_batch_size(values, double), goal
    not_here = {one.name for one in walk.weighed if one.verdict == "not here"}
    for claim in (one for one in claims if one.addition.name not in not_here):
        for name, otherwise in claim.addition.what_ifs.items():
            yield name, partial(_otherwise, otherwise, claim), goal
    more = 2 * goal.budget_gb if goal.budget_gb > 0 else walk.base.memory / 10 / 2**30
    words = f"a budget of {more:.2g} GB a rank"
    yield words, lambda values: values, dataclasses.replace(goal, budget_gb=more)


def _otherwise(
    otherwise: Callable[[Values], Values], claim: ClaimedAddition, values: Values
) -> Values:
    return with_plugin(answer_of(claim, "what_ifs", otherwise, values), claim)


def _faster(topology: Topology, times: float) -> dict[str, Any]:
    """The same cluster with links that carry `times` times the bytes."""
    values = stated(topology)
    for name, value in values.items():
        if isinstance(value, dict):  # a link
            values[name] = {**value, "gbps": times * value["gbps"]}
    values["intra_node_gbps"] = times * (topology.intra_node_gbps or INTRA_NODE_GBPS)
    values["inter_node_gbps"] = times * (topology.inter_node_gbps or INTER_NODE_GBPS)
    return values


def _in_16_bits(values: Values) -> Values:
    codecs = {"forward": "fp16", "backward": "bf16", "dense": "bf16"}
    return {**values, "train": {**(values.get("train") or {}), "codecs": codecs}}
