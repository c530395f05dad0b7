"""A method of a stack that DistributedModelParallel is handed itself, in place of what it returns.

An error names the option, where TorchRec would fail deep below. It cannot ask a method for what it
asks of a plan, a wrapper or sharders, unless the method has that too.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn

from recd_plugins.errors import RegistryError

__all__ = ["refuse_uncalled"]


def refuse_uncalled(stack: Any) -> None:
    """Have those methods of the class `Stack` that return an option of DistributedModelParallel
    refuse to be that option."""
    stack.sharders = _OfEachStack(stack.sharders)
    stack.data_parallel.wrap = _uncalled("data_parallel_wrapper", "data_parallel()")
    stack.plan.get_plan_for_module = _uncalled("plan", "plan(model, batches=loader)")


def _uncalled(option: str, method: str) -> Callable[..., NoReturn]:
    """What DistributedModelParallel calls on the option; it raises `RegistryError`."""

    def refuse(*_: object) -> NoReturn:
        raise RegistryError(
            f"{option}: is the method stack.{method.partition('(')[0]} itself, but must be what it "
            f"returns. Write `{option}=stack.{method}`."
        )

    return refuse


class _Sharders(partial[Any]):
    """`stack.sharders` of one stack, which returns a list, and is none."""

    __iter__ = _uncalled("sharders", "sharders()")


class _OfEachStack:
    """A method of `Stack` that is a `_Sharders`, as DistributedModelParallel iterates over what it
    is given, for which attributes of a function are of no use."""

    def __init__(self, method: Callable[..., Any]) -> None:
        self._method = method

    def __get__(self, stack: object, owner: type) -> Any:
        if stack is None:
            return self._method
        sharders: Any = _Sharders(self._method, stack)
        sharders.__name__, sharders.__doc__ = self._method.__name__, self._method.__doc__
        return sharders
