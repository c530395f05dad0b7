"""The `callbacks` slot: objects that a run calls while it trains."""

from __future__ import annotations

import json

from recd_plugins.errors import PluginError
from recd_plugins.slots import Callback, check_callback
from recd_plugins.storage.json_mappings import as_items, from_items
from recd_plugins.testing.contracts.subject import Subject

__all__ = ["check_callbacks"]


def check_callbacks(subject: Subject) -> None:
    callback, other = subject.build(), subject.build()
    subject.hold(
        isinstance(callback, Callback),
        f"it must build a Callback, not {callback!r}",
        "Inherit from recd_plugins.api.Callback, and write the methods that you need.",
    )
    try:
        check_callback(callback, "")
    except PluginError as error:
        subject.hold(
            False, str(error).removeprefix(": "), "The protocol's methods are in docs/slots.md."
        )
    subject.hold(callback is not other, "each build must make one of its own", "Keep no global.")
    state = callback.state_dict()
    try:
        through = json.loads(json.dumps(as_items(state)), object_hook=from_items)
    except (TypeError, ValueError):
        through = None
    subject.hold(
        isinstance(state, dict) and through == state,
        f"its state must come back from JSON as it was, but is {state!r}",
        "Keep numbers, texts, lists and mappings in it.",
    )
    other.load_state_dict(through)
    subject.hold(
        other.state_dict() == state,
        "a new one that loads a state must then have that state",
        "Write state_dict and load_state_dict together.",
    )
    callback.close()  # a run may fail before it has begun
