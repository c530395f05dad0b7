"""Callbacks that a trainer of its own calls, or does not."""

from __future__ import annotations

from typing import Any

from recd_plugins.api import Callback, CallbackRecord, Config, hookimpl


class Stepping:
    """No callback, but a part of one."""

    def after_step(self, training: Any) -> None:
        """A step is trained."""


class Mixed(Stepping, Callback):
    pass


class Steps(Callback):
    def before_step(self, training: Any) -> None:
        """A step begins."""

    def after_step(self, training: Any) -> None:
        """A step is trained."""


class Ends(Callback):
    def at_end(self, training: Any, summary: dict[str, Any]) -> None:
        """All is trained."""


class Assigned(Callback):
    def __init__(self) -> None:
        self.after_step = print  # of which nobody sees calls


@hookimpl
def recd_callbacks() -> list[CallbackRecord[Config]]:
    kinds: dict[str, type[Callback]] = {
        "mixed": Mixed,
        "steps": Steps,
        "ends": Ends,
        "assigned": Assigned,
    }
    return [
        CallbackRecord(
            name=name, summary="It counts.", config=Config, build=lambda _, __, kind=kind: kind()
        )
        for name, kind in kinds.items()
    ]
