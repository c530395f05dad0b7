"""Checks what a record builds, and what that makes in turn, against what its slot takes: an error
names the record."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Coroutine, Generator, Mapping, Sequence
from inspect import Parameter, getattr_static, signature
from typing import TYPE_CHECKING, Any

from recd_plugins.errors import PluginError, called, check_made, listed

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

__all__ = ["LOADER", "check_built", "check_parts", "check_steps"]

PARTS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "log": ("LogStore", ("shards", "route", "read", "fingerprint")),
    "dataset": ("Dataset", ("in_place", "prepare")),
    "etl": ("Etl", ("run",)),
    "stats": ("TableStats", ("measure",)),
    "reader": ("Reader", ("loader",)),
    "dedup": ("DedupConverter", ("convert",)),
    "preprocess": ("Preprocess", ("__call__", "schema")),
    "sharding": ("Planner", ()),
    "cache": ("Planner", ()),
}
"""By slot, the protocol of its builds, and what each of them is asked for in every job: a planner
may be there to propose alone."""
FACTORIES = {
    "pooling": "`lambda dim: MyPooling(dim)`",
    "optimizer": "`lambda params: MyOptimizer(params)`",
}
"""The slots that build functions, by which the host makes what it needs, and an example of each."""
LOADER = ("__iter__", "__len__", "state_dict")
"""What every `Loader` is asked for; only a resumed job needs more."""


def check_built(slot: str, built: Any, who: str) -> None:
    """`PluginError` if `who`, a record of the slot, built something that its slot cannot take."""
    if built is None:
        raise PluginError(
            f"{who} built nothing: its `build` returned None. Return what the slot takes "
            "(docs/slots.md)."
        )
    if isinstance(built, Generator | Coroutine | AsyncGenerator):
        if isinstance(built, Coroutine):
            built.close()
        raise PluginError(
            f"{who} built {called(built)}, whose code is never run. Let its `build` return what "
            "the slot takes, without `yield` and `async`."
        )
    if slot in FACTORIES:
        _check_factory(slot, built, who)
    elif slot == "model":
        from torch import nn

        check_made(built, nn.Module, f"{who} built", "Return a module (docs/slots.md).")
    elif slot in PARTS:
        protocol, parts = PARTS[slot]
        if isinstance(built, type):
            raise PluginError(
                f"{who} built the class {built.__name__} itself, and not a {protocol}: let its "
                f"`build` return `{built.__name__}(...)`."
            )
        check_parts(built, protocol, parts, f"{who} built")


def check_parts(made: Any, protocol: str, parts: tuple[str, ...], whose: str) -> None:
    """`PluginError` if something that was made lacks a part of its protocol; `whose` opens the
    message."""
    lacks = [part for part in parts if not _has(made, part)]
    if lacks:
        raise PluginError(
            f"{whose} {called(made)}, which is no {protocol}: it lacks {listed(lacks)}. "
            "docs/slots.md says what each of them does."
        )


def check_steps(optimizer: Optimizer, params: Sequence[nn.Parameter], whose: str) -> None:
    """`PluginError` if an optimizer cannot step these parameters once a step; `whose` opens the
    message."""
    given = {id(one) for one in params}
    held = [one for group in optimizer.param_groups for one in group["params"]]
    if foreign := sum(id(one) not in given for one in held):
        raise PluginError(
            f"{whose} steps {foreign} parameters that it was not given, and for which a checkpoint "
            "has no name. Make it from the parameters with which the factory is called."
        )
    if type(optimizer).__name__ == "SparseAdam":
        raise PluginError(
            f"{whose} takes only sparse gradients, but those of dense parameters are dense. Choose "
            "Adam instead."
        )
    closure = signature(optimizer.step).parameters.get("closure")
    if closure is not None and closure.default is Parameter.empty:
        raise PluginError(
            f"{whose} evaluates the loss several times a step: {type(optimizer).__name__}.step "
            "needs a closure. Choose an optimizer that does not need one."
        )


def _check_factory(slot: str, built: Any, who: str) -> None:
    from torch import nn
    from torch.optim import Optimizer

    if isinstance(built, nn.Module | Optimizer) or not callable(built):
        raise PluginError(
            f"{who} built {called(built)}, where it must build a function that makes one. Return "
            f"{FACTORIES[slot]}."
        )


def _has(made: Any, part: str) -> bool:
    """Whether it has the part; if possible, without reading a property."""
    lacking = object()
    return getattr_static(made, part, lacking) is not lacking or hasattr(made, part)
