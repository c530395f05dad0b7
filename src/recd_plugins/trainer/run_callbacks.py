"""The callbacks of a run, called one after another, and checked for what they leave behind."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, Any

import torch

from recd_plugins.data.batch import Batch
from recd_plugins.errors import PluginError, shown
from recd_plugins.registry import Choice
from recd_plugins.slots import Callback
from recd_plugins.slots.batch_check import BatchCheck
from recd_plugins.trainer.checkpoints.callback_states import names_of_states
from recd_plugins.trainer.training import Training

if TYPE_CHECKING:
    from recd_plugins.data.dataset import Split
    from recd_plugins.data.schema import Schema

__all__ = ["Callbacks"]

LEFT = ("on_metrics", "on_evaluation", "at_end")
"""The events whose last argument callbacks may add to."""
KEPT = ("loss", "ne", "auc", "samples")
"""The metrics that a run prints."""


class Callbacks:
    """A run's callbacks: the host's own, and those that registry.yaml chose.

    Each is an instance and its choice in registry.yaml, which is None for the host's own.
    """

    def __init__(
        self, callbacks: Sequence[tuple[Callback, Choice | None]], schema: Schema | None = None
    ) -> None:
        """With a `schema`, the batches that callbacks make are checked against it."""
        for callback, choice in callbacks:
            saves, loads = (_has_own(callback, f"{word}state_dict") for word in ("", "load_"))
            if choice is not None and saves and not loads:
                raise PluginError(
                    f"{choice.who}: {type(callback).__name__} has a state_dict and no "
                    "load_state_dict, so a resumed run would lose its state. Give it one."
                )
        self._callbacks = callbacks
        self._running = ""
        """The callback that runs now, and its method; empty while none does."""
        self._checks = [
            None
            if schema is None or choice is None or not _has_own(callback, "on_batch")
            else BatchCheck(schema, f"{choice.who}: its `on_batch` returned")
            for callback, choice in callbacks
        ]

    def call(self, event: str, *args: Any) -> None:
        """Call the method `event` of each, with these arguments."""
        for callback, choice in self._callbacks[:: -1 if event == "after_step" else 1]:
            before = _run_state(*args) if choice is not None else ()
            with _named(choice, event), self._runs(choice, event):
                returned = getattr(callback, event)(*args)
            if choice is not None:
                _check_run_state(before, _run_state(*args), f"{choice.who}: {event}")
            if choice is not None and event in LEFT:
                if isinstance(returned, Mapping) and returned is not args[-1]:
                    raise PluginError(
                        f"{choice.who}: {event} returned {shown(returned)}, which nobody takes. "
                        "Add to the mapping that it is given instead."
                    )
                _check_left(args[-1], f"{choice.who}: {event}", numbers=event != "at_end")

    def on_batch(self, training: Training, batch: Batch, split: Split) -> Batch:
        """The batch after each callback in turn has changed it."""
        for (callback, choice), check in zip(self._callbacks, self._checks, strict=True):
            with _named(choice, "on_batch"), self._runs(choice, "on_batch"):
                batch = callback.on_batch(training, batch, split)
            if not isinstance(batch, Batch):
                raise PluginError(
                    f"{choice.where if choice else callback}: on_batch of "
                    f"{type(callback).__name__} returned {shown(batch)}. Return the batch to train."
                )
            if check is not None:  # the batch that it was given may be another one now
                check(batch)
        return batch

    def refuse_forward(self, *_: object) -> None:
        """A hook of the model's forward: `PluginError` if a callback calls it."""
        if self._running:
            raise PluginError(
                f"{self._running} calls the model. TorchRec's pipeline has already sent the next "
                "batches, and the call would take what it has of one of them. Read "
                "`training.outputs`; `train.eval_every` evaluates."
            )

    @contextmanager
    def _runs(self, choice: Choice | None, event: str) -> Iterator[None]:
        """Inside, a callback of registry.yaml runs, when there is a pipeline already."""
        if choice is not None and event != "at_start":
            self._running = f"{choice.who}: {event}"
        try:
            yield
        finally:
            self._running = ""

    def state_dict(self) -> dict[str, Any]:
        """The states of those that registry.yaml chose, by name; callbacks without a state are left
        out."""
        states = {}
        for name, callback, choice in self._chosen():
            with choice.named("in state_dict"):
                state: object = callback.state_dict()
            if not isinstance(state, dict):
                raise PluginError(
                    f"{choice.where}: state_dict of {type(callback).__name__} returned "
                    f"{shown(state)}. Return what it keeps as a dict, an empty one for nothing."
                )
            try:
                json.dumps(state)
            except (TypeError, ValueError) as error:
                raise PluginError(
                    f"{choice.where}: the state of {type(callback).__name__} cannot be written as "
                    f"JSON ({error}), as a checkpoint does. Keep numbers, texts, lists and "
                    "mappings in it."
                ) from error
            if state:
                states[name] = state
        return states

    def load_state_dict(self, states: Mapping[str, Any]) -> list[str]:
        """Go on from a checkpoint's states; returns the names of those that no callback takes."""
        left = dict(states)
        for name, callback, choice in self._chosen():
            if name in left:
                with choice.named("in load_state_dict"):
                    callback.load_state_dict(left.pop(name))
        return sorted(left)

    def _chosen(self) -> Iterator[tuple[str, Callback, Choice]]:
        """The callbacks of registry.yaml, each with the name of its state."""
        chosen = [(callback, choice) for callback, choice in self._callbacks if choice is not None]
        names = names_of_states(choice.record.name for _, choice in chosen)
        for name, (callback, choice) in zip(names, chosen, strict=True):
            yield name, callback, choice


def _run_state(training: Any = None, *_: Any) -> tuple[object, ...]:
    """What a callback must leave as it finds it: the model's mode, whether torch computes
    gradients, the run's step, how many parameters each group of the dense optimizer has, and the
    folder that the process works in."""
    mode, folder = getattr(getattr(training, "model", None), "training", None), ""
    groups = getattr(getattr(training, "dense", None), "param_groups", ())
    counts = [len(group["params"]) for group in groups]
    with suppress(OSError):  # it was removed
        folder = os.getcwd()
    return mode, torch.is_grad_enabled(), getattr(training, "step", None), counts, folder


def _check_run_state(before: Sequence[object], after: Sequence[object], whose: str) -> None:
    """`PluginError` if a callback has changed any of what it must leave as it finds it."""
    parts = (
        ("the model in another mode", "Put it back by `training.model.train(mode)`."),
        ("gradients computed otherwise", "Write `with torch.no_grad():` around what needs none."),
        ("`training.step` at another step", "Read it; `training.stop(reason)` ends a run."),
        (
            "other parameters in the groups of `training.dense`",
            "Set rates alone there; an `optimizer` record makes the groups.",
        ),
        ("the process in another folder", "Put it back by `os.chdir`, or name whole paths."),
    )
    for (what, fix), was, now in zip(parts, before, after, strict=True):
        if now != was:
            raise PluginError(f"{whose} left {what} than it found: {now} instead of {was}. {fix}")


def _check_left(left: Mapping[str, Any], whose: str, *, numbers: bool) -> None:
    """`PluginError` unless the metrics, or the summary, can be written after a callback changed
    them."""
    if numbers:
        gone = [name for name in KEPT if name not in left]
        if gone:
            raise PluginError(
                f"{whose} removed {gone[0]!r}, which a run prints. Add metrics, but do not remove "
                "any."
            )
        for name, value in left.items():
            if not isinstance(value, int | float) and (value is not None or name in KEPT):
                raise PluginError(
                    f"{whose} left {shown(value)} as the metric {name!r}. Give a number of Python, "
                    "as `float(...)` makes from a tensor."
                )
    try:
        json.dumps(left)
    except (TypeError, ValueError) as error:
        raise PluginError(
            f"{whose} left a value that cannot be written as JSON ({error}). Keep numbers, texts, "
            "lists and mappings in it."
        ) from error


def _has_own(callback: Callback, method: str) -> bool:
    """Whether it has a method of its own in place of `Callback`'s."""
    return getattr(getattr(callback, method), "__func__", None) is not vars(Callback)[method]


def _named(choice: Choice | None, event: str) -> AbstractContextManager[None]:
    return choice.named(f"in {event}") if choice else nullcontext()
