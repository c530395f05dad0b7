"""Compares a checkpoint's registry with that of the job that resumes it: what may differ."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from recd_plugins.errors import RegistryError, so_many
from recd_plugins.registry.settings import OptimizerSettings, TrainSettings
from recd_plugins.trainer.checkpoints.optimizer_numbers import RateOf

__all__ = [
    "check_ranks",
    "check_registry",
    "have_same_end",
    "have_same_planner",
    "new_places",
    "new_rates",
    "rates_of",
]

SAME = ("dataset", "etl", "preprocess", "dedup", "reader", "model", "pooling", "optimizer")
"""Registry keys that a resumed job may not change."""

LEARNT = ("preprocess", "model", "pooling", "optimizer")
"""Registry keys on which the meaning of weights and of optimizer states depends."""

TO_RESUME = "resume, or start a new run in another folder (train.run=...)"
"""What one does who has changed a registry back, or does not want to."""

RATES = ("tables_lr", "dense_lr")
"""Options of train.optimizer that a resumed job may change, since no state depends on them."""


def check_ranks(path: Path, before: int, now: int) -> None:
    """`RegistryError` if `before` ranks made the checkpoint, and this job has another number."""
    if before != now:
        raise RegistryError(
            f"{path}: was made by {so_many(before, 'rank')}, this job has {now}: resume with "
            f"--ranks {before}, or let the launcher that starts the ranks, such as torchrun, start "
            "as many; or let `recd reshard` write the checkpoint for another number of ranks."
        )


def check_registry(
    path: Path,
    before: Mapping[str, Any],
    now: Mapping[str, Any],
    free: Collection[str],
    *,
    begins: bool = False,
) -> None:
    """`RegistryError` if the registry has changed something on which the checkpoint's state
    depends; if a new run `begins` with it, on which its weights and optimizer states do. The
    dataset's options in `free` may change; those in lists have a path, as `join.table`."""
    resume = "begin with it, or leave out train.begin_from" if begins else TO_RESUME
    for key in LEARNT if begins else SAME:
        if _decides(key, before, free) != _decides(key, now, free):
            cure = "Change it back" if now.get(key) is not None else "Put it back"
            cure = "Take it out" if before.get(key) is None else cure
            raise RegistryError(
                f"{path}: was made with {_named(key, before)}, but the registry now has "
                f"{_named(key, now)}. {cure} to {resume}."
            )
    held, holds = _held(before), _held(now)
    for key in held | holds:
        if held.get(key) != holds.get(key) and not (begins and "." not in key):
            raise RegistryError(
                f"{path}: was made with train.{key}={json.dumps(held.get(key))}, now it is "
                f"{json.dumps(holds.get(key))}. Change it back to {resume}."
            )


def _named(key: str, registry: Mapping[str, Any]) -> str:
    """A key of a registry with its value, in words."""
    value = registry.get(key)
    return f"no `{key}`" if value is None else f"`{key}: {json.dumps(value)}`"


def _held(registry: Mapping[str, Any]) -> dict[str, Any]:
    """The options of `train` that may not change, with the defaults of those that are not named."""
    settings = TrainSettings()
    named = registry.get("train") or {}
    optimizer = asdict(settings.optimizer) | dict(named.get("optimizer") or {})
    return {
        **{name: named.get(name, getattr(settings, name)) for name in ("batch_size", "seed")},
        **{f"optimizer.{name}": one for name, one in optimizer.items() if name not in RATES},
    }


def _decides(key: str, registry: Mapping[str, Any], free: Collection[str]) -> Any:
    """The part of a key's value in a registry that may not change."""
    value = registry.get(key)
    if key == "dataset" and isinstance(value, Mapping):
        for option in free:
            value = _without(value, option.split("."))
    return value


def _without(value: Any, path: Sequence[str]) -> Any:
    """The value without an option that lies in mappings, or in each mapping of a list."""
    if isinstance(value, list | tuple):
        return [_without(one, path) for one in value]
    if not isinstance(value, Mapping) or path[0] not in value:
        return value
    others = {name: one for name, one in value.items() if name != path[0]}
    if len(path) == 1:
        return others
    return {**others, path[0]: _without(value[path[0]], path[1:])}


def new_places(
    before: Mapping[str, Any], now: Mapping[str, Any], places: Collection[str]
) -> Iterator[str]:
    """The dataset's options among `places` that have changed, in words."""
    old, new = (one.get("dataset") for one in (before, now))
    for option in places:
        path = option.split(".")
        if _without(old, path) != old and (was := _at(old, path)) != (is_ := _at(new, path)):
            yield (
                f"dataset.{option} is {json.dumps(is_)} from here on; it was {json.dumps(was)}. "
                "The files are the same by their digests in pins.json"
            )


def _at(value: Any, path: Sequence[str]) -> Any:
    """The option's value, or a list of them."""
    if not path:
        return value
    if isinstance(value, list | tuple):
        return [_at(one, path) for one in value]
    return _at(value.get(path[0]), path[1:]) if isinstance(value, Mapping) else None


def new_rates(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    """The rates that have changed, in words."""
    for name in RATES:
        old, new = (_rate(name, one) for one in (before, now))
        if old != new:
            yield f"train.optimizer.{name} is {new} from here on; it was {old}"


def rates_of(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, RateOf]:
    """Where the rates of each optimizer begin."""
    same = before.get("callbacks") == now.get("callbacks")
    return {
        name.removesuffix("_lr"): "registry"
        if _rate(name, before) != _rate(name, now)
        else "before"
        if same
        else "callbacks"
        for name in RATES
    }


def _rate(name: str, registry: Mapping[str, Any]) -> Any:
    """The rate that a registry names, or the default."""
    named = registry.get("train", {}).get("optimizer") or {}
    return named.get(name, getattr(OptimizerSettings(), name))


def have_same_end(before: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Whether a run ends when it would have ended before."""
    return _end(before) == _end(now)


def have_same_planner(before: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Whether the same planner, with the same options, places replicas."""
    return all(before.get(slot) == now.get(slot) for slot in ("sharding", "cache"))


def _end(registry: Mapping[str, Any]) -> tuple[Any, Any]:
    """The values that decide when a run ends."""
    return registry.get("callbacks"), registry.get("train", {}).get("steps")
