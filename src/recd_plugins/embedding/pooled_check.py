"""The check of the vectors that a pooling makes, against its rows. An error names who brought the
pooling."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from recd_plugins.compat.pytorch import writes_to
from recd_plugins.embedding.unexpanded import Unexpanded
from recd_plugins.errors import PluginError

__all__ = ["PooledCheck", "check_unique", "who_pools"]

CHECK = "recd_pooled_check"
"""The attribute of a pooling that has its check."""
VERSION = "recd_version_of_lengths"
"""The attribute of a pooling that has torch's count of changes to the lengths that it was given."""


@dataclass(frozen=True)
class PooledCheck:
    """A forward hook of a pooling: values [N, D] in B rows became [B, D], of a type of floats.

    A model that pools several features names them by an attribute `of_features` of their pooling.
    """

    who: str
    """The record whose pooling it is, as messages name it."""

    @classmethod
    def watch(cls, pooling: nn.Module, who: str, *, takes_query: bool = True) -> None:
        """Check all that a pooling makes, whoever calls it; and, if it takes no query, that nobody
        hands it one."""
        if _check_of(pooling) is None:
            pooling.register_forward_hook(check := cls(who), with_kwargs=True)
            pooling.register_forward_pre_hook(check.note_lengths, with_kwargs=True)
            if not takes_query:
                pooling.register_forward_pre_hook(check.refuse_query, with_kwargs=True)
            vars(pooling)[CHECK] = check

    def __call__(
        self, pooling: nn.Module, given: Sequence[Any], named: Mapping[str, Any], made: Any
    ) -> None:
        arguments = {**dict(zip(("values", "lengths"), given, strict=False)), **named}
        values, lengths = arguments.get("values"), arguments.get("lengths")
        if not isinstance(values, Tensor) or not isinstance(lengths, Tensor):
            if made is None or isinstance(made, list | tuple | dict):
                self._refuse(pooling, f"a {type(made).__name__}", "")
            return  # a tracer's
        if _version_of(lengths) != vars(pooling).pop(VERSION, None):
            self._refuse_changed(pooling)
        if (
            isinstance(made, Unexpanded)
            and isinstance(values, Unexpanded)
            and isinstance(lengths, Unexpanded)
            and made.shares_lookup(values)
        ):  # a vector for each unique sample, which is far faster to ask than what stands for all
            values, lengths, made = values.of_unique, lengths.of_unique, made.of_unique
        self.hold(pooling, values, lengths, made)

    def note_lengths(
        self, pooling: nn.Module, given: Sequence[Any], named: Mapping[str, Any]
    ) -> None:
        """Note how often the lengths have been changed, to see whether the pooling does."""
        lengths = named.get("lengths", given[1] if len(given) > 1 else None)
        vars(pooling)[VERSION] = _version_of(lengths)

    def refuse_query(
        self, pooling: nn.Module, given: Sequence[Any], named: Mapping[str, Any]
    ) -> None:
        """`PluginError` where a model hands a query to a forward of values and lengths alone."""
        if len(given) + len(named) > 2:
            kind = type(pooling).__name__.removeprefix("Dedup")
            raise PluginError(
                f"{self.who}: the model passes a query to {kind}, whose forward takes none. Write "
                "`forward(self, values, lengths, query=None)`; with `needs_query = False` it is "
                "ignored."
            )

    def hold(self, pooling: nn.Module, values: Tensor, lengths: Tensor, made: Any) -> None:
        """`PluginError` where the pooling did not make what it must."""
        shape = (lengths.shape[0], *values.shape[1:])
        if isinstance(made, Tensor) and made.shape == shape and _fits(made.dtype, values.dtype):
            if values.requires_grad and not made.requires_grad and torch.is_grad_enabled():
                self._refuse_detached(pooling)
            return
        found = f"a {type(made).__name__}"
        if isinstance(made, Tensor):
            found = f"{list(made.shape)} of {made.dtype}"
        self._refuse(
            pooling,
            found,
            f", whose values {list(values.shape)} of {values.dtype} in {shape[0]} rows must become "
            f"{list(shape)} of {values.dtype}",
        )

    def _refuse(self, pooling: nn.Module, made: str, must: str) -> None:
        raise PluginError(
            f"{self._of(pooling)} made {made} of {_features_of(pooling)}{must}. Return one vector "
            "for each row of `lengths`, of zeros where that is 0."
        )

    def _refuse_detached(self, pooling: nn.Module) -> None:
        raise PluginError(
            f"{self._of(pooling)} lets no gradient through to {_features_of(pooling)}, whose table "
            "would never be trained. Make the vectors of `values`, not of `values.detach()` or "
            "under torch.no_grad()."
        )

    def _refuse_changed(self, pooling: nn.Module) -> None:
        raise PluginError(
            f"{self._of(pooling)} changes the `lengths` of {_features_of(pooling)} in place, which "
            "are the batch's. Make new ones: `lengths.clamp(min=1)`, not `lengths.clamp_(min=1)`."
        )

    def _of(self, pooling: nn.Module) -> str:
        return f"{self.who}: {type(pooling).__name__.removeprefix('Dedup')}"


def check_unique(pooling: nn.Module, values: Tensor, lengths: Tensor, made: Any) -> None:
    """Check what a pooling made of unique samples alone against their rows, if it is watched."""
    if (check := _check_of(pooling)) is not None:
        check.hold(pooling, values, lengths, made)


def who_pools(pooling: nn.Module) -> str:
    """The record whose pooling it is, as messages name it; "" where it is watched for none."""
    check = _check_of(pooling)
    return "" if check is None else check.who


def _check_of(pooling: nn.Module) -> PooledCheck | None:
    return getattr(pooling, CHECK, None)


def _fits(made: torch.dtype, given: torch.dtype) -> bool:
    """Whether a model can put it beside other vectors: float64 and whole numbers would change the
    type of the others, or lose the gradient; a smaller type of floats is cast to theirs."""
    return made == given or (made.is_floating_point and made.itemsize <= max(4, given.itemsize))


def _features_of(pooling: nn.Module) -> str:
    return ", ".join(getattr(pooling, "of_features", ())) or "its feature"


def _version_of(lengths: Any) -> int | None:
    """How often torch has seen the lengths change in place; None where that is not counted."""
    if isinstance(lengths, Unexpanded):
        lengths = lengths.of_unique
    if not isinstance(lengths, Tensor) or torch.compiler.is_compiling():
        return None
    return writes_to(lengths)
