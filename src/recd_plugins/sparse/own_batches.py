"""Batches of a trainer's own type: finds their sparse features, and puts others in their place.

A batch is a KJT, or something that holds one: a dataclass, a mapping, a tuple, any object with
attributes, and any nesting of these.
"""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torchrec.sparse.jagged_tensor import JaggedTensor, KeyedJaggedTensor, KeyedTensor

from recd_plugins.errors import DataError
from recd_plugins.sparse.bundle import Bundle
from recd_plugins.sparse.features import SparseFeatures
from recd_plugins.sparse.keyed import marked

__all__ = [
    "FeaturesOf",
    "OwnBatches",
    "Select",
    "all_features_of",
    "features_of",
    "holds_unique",
    "in_own_memory",
    "marked_batch",
    "parts_of",
    "replaced",
    "sample_size",
    "sampled_features",
    "walk",
    "with_parts",
]

FeaturesOf = Callable[[Any], Any]
"""A function from a batch to its sparse features: `lambda batch: batch.sparse_features`."""
Select = Callable[[Sequence[Any], Tensor], Any]
"""A function from some batches, and samples [N] by their place in all of these, to a batch of those
samples."""

CPU = torch.device("cpu")
DEEPEST = 4
"""How many levels deep a batch is searched."""
MOST_BATCHES, MOST_SAMPLES, MOST_IDS = 8, 1 << 16, 1 << 23
"""The batches, samples and ids that show what repeats: whichever comes first is enough."""
SPARSE = (KeyedJaggedTensor, SparseFeatures)
FEATURES = (KeyedJaggedTensor, Bundle)
"""The types of a dataclass's attributes that are parts of it, even if its `__post_init__` made
them."""
COPIED = (JaggedTensor, KeyedJaggedTensor, KeyedTensor)
LEAVES = (Tensor, *COPIED, Bundle)
NO_BATCHES = frozenset(
    ["builtins", "torch", "numpy", "pandas", "pyarrow", "datetime", "pathlib", "enum", "decimal"]
)
"""Packages whose objects are leaves in a batch, and hold no features."""


@dataclass(frozen=True, kw_only=True)
class OwnBatches:
    """A planner's access to the samples of batches of a trainer's own type."""

    features: FeaturesOf | None = None
    """Finds a batch's sparse features; by default the only ones that it holds."""
    select: Select | None = None
    """Makes a batch of samples from several batches; by default everything that a batch holds is
    taken apart."""


def features_of(
    batch: Any, features: FeaturesOf | None = None
) -> KeyedJaggedTensor | SparseFeatures:
    """The sparse features of a batch: what `features` returns, or else the only ones that it holds.
    If `features` returns several, the first: only that one is converted."""
    return all_features_of(batch, features)[0]


def all_features_of(
    batch: Any, features: FeaturesOf | None = None
) -> tuple[KeyedJaggedTensor | SparseFeatures, ...]:
    """All sparse features of a batch, at least one: `features` may return several."""
    if features is not None:
        found = features(batch)
        every = tuple(found) if isinstance(found, list | tuple) else (found,)
        if not every or not all(isinstance(one, SPARSE) for one in every):
            raise DataError(
                f"features: it returns a {type(found).__name__} for a {type(batch).__name__}, but "
                "must return the KeyedJaggedTensor that the batch holds: features=lambda batch: "
                "batch.sparse_features."
            )
        return every
    held = [(path, part) for path, part in walk(batch) if isinstance(part, SPARSE)]
    if len(held) == 1:
        return (held[0][1],)
    kind = type(batch).__name__
    what, place = f"a {kind} holds no KeyedJaggedTensor", "batch.sparse_features"
    if held:
        what = f"a {kind} holds {len(held)} KeyedJaggedTensors ({', '.join(p for p, _ in held)})"
        place = held[0][0]
    raise DataError(
        f"features: {what}, so name the one that is meant: features=lambda batch: {place}."
    )


def sample_size(first: Any, features: FeaturesOf | None) -> int:
    """How many of a loader's batches show what repeats, if all are as large as the first."""
    if first is None:
        return 0
    kjt = features_of(first, features)
    if isinstance(kjt, SparseFeatures):
        return 1
    size = max(_samples(kjt) / MOST_SAMPLES, _ids(kjt) / MOST_IDS, 1 / MOST_BATCHES)
    return math.ceil(1 / size)


def sampled_features(
    batches: Iterable[Any], features: FeaturesOf | None
) -> tuple[KeyedJaggedTensor, ...]:
    """The KJTs of a loader's first batches, each copied before the next one is read: only as many
    as show what repeats. Batches without samples are skipped."""
    found: list[KeyedJaggedTensor] = []
    for batch in batches:
        kjt = features_of(batch, features)
        if isinstance(kjt, SparseFeatures):
            raise DataError(
                "batches: these are already converted, so their repetition can no longer be seen. "
                "Pass a loader of batches that are not."
            )
        if not _samples(kjt):
            continue
        found.append(in_own_memory(kjt).to(CPU))
        samples, ids = (sum(map(count, found)) for count in (_samples, _ids))
        if len(found) >= MOST_BATCHES or samples >= MOST_SAMPLES or ids >= MOST_IDS:
            break
    if not found:
        raise DataError(
            "batches: there are no batches to look at: the loader is empty, or no batch has a "
            "sample."
        )
    return tuple(found)


def _samples(kjt: KeyedJaggedTensor) -> int:
    return int(kjt.stride())


def _ids(kjt: KeyedJaggedTensor) -> int:
    return int(kjt.values().numel())


def replaced(batch: Any, old: Any, new: Any) -> Any:
    """A copy of the batch with `new` wherever it holds `old`; everything else is shared, and the
    batch itself stays as it is."""
    if old is new:
        return batch
    made = _changed(batch, lambda part: new if part is old else part, DEEPEST)
    if made is batch:
        raise DataError(
            f"features: what it returns is not in the {type(batch).__name__} itself, so nothing "
            "can take its place there. Let it return the KeyedJaggedTensor that the batch holds; "
            "if the model makes one of the batch's tensors, make it in the collate function, put "
            "it into the batch, and have the model look up that one."
        )
    return made


def marked_batch(batch: Any, features: Any, hot_under: str | None) -> Any:
    """The batch with the mark of a hot batch, or none, on its `features`."""
    if isinstance(features, SparseFeatures):
        return replaced(batch, features, features.marked(hot_under))
    return replaced(batch, features, marked(features, hot_under))


def in_own_memory(batch: Any) -> Any:
    """The batch with copies of all tensors that it holds, because a loader may write its next batch
    into the same memory."""
    copies: dict[int, Any] = {}

    def copied(part: Any) -> Any:
        if id(part) not in copies:
            copies[id(part)] = _copy_of(part)
        return copies[id(part)]

    return _changed(batch, copied, DEEPEST)


def _copy_of(part: Any) -> Any:
    """A copy of a leaf that has memory; anything else is returned as it is."""
    if isinstance(part, Tensor):
        return part.detach().clone()
    if isinstance(part, np.ndarray):
        return part.copy()
    return copy.deepcopy(part) if isinstance(part, COPIED) else part


def _changed(value: Any, change: Callable[[Any], Any], depth: int) -> Any:
    """The value with `change` applied to its parts; the value itself if that changes nothing."""
    if (made := change(value)) is not value:
        return made
    parts = parts_of(value) if depth else None
    if parts is None:
        return value
    made = {name: _changed(part, change, depth - 1) for name, part in parts.items()}
    if all(made[name] is part for name, part in parts.items()):
        return value
    held = _attributes(value) if _is_dataclass(value) else {}
    return _holding(value, held | made) if made.keys() <= held.keys() else with_parts(value, made)


def walk(
    batch: Any,
    depth: int = DEEPEST,
    path: str = "batch",
    *,
    whole: Callable[[Any], bool] = lambda part: False,
) -> Iterator[tuple[str, Any]]:
    """Each leaf that a batch holds, with the path to it: `batch.labels`.

    Anything that is `whole` counts as a leaf.
    """
    parts = parts_of(batch) if depth and not whole(batch) else None
    if parts is None:
        yield path, batch
        return
    for name, part in parts.items():
        step = f"[{name!r}]" if _by_item(batch) else f".{name}"
        yield from walk(part, depth - 1, path + step, whole=whole)


def holds_unique(batch: Any) -> bool:
    """Whether a batch holds unique samples, that is, was converted."""
    return any(isinstance(part, Bundle) for _, part in walk(batch))


def parts_of(value: Any) -> Mapping[Any, Any] | None:
    """The parts of a batch, or of a part of one; None for a leaf, such as a tensor."""
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, list | tuple):
        if names := _names(value):
            return dict(zip(names, value, strict=True))
        return dict(enumerate(value))
    if _is_dataclass(value):
        fields = ((one, getattr(value, one.name, None)) for one in dataclasses.fields(value))
        return {one.name: part for one, part in fields if one.init or isinstance(part, FEATURES)}
    return _attributes(value) if _by_attribute(value) else None


def with_parts(value: Any, parts: Mapping[Any, Any]) -> Any:
    """A copy of what `parts_of` took apart, with other parts."""
    if _is_dataclass(value):
        given = {one.name for one in dataclasses.fields(value) if one.init}
        made = dataclasses.replace(
            value, **{name: part for name, part in parts.items() if name in given}
        )
        if hasattr(made, "__post_init__"):
            for name, part in parts.items():  # its constructor may have changed these once more
                object.__setattr__(made, name, part)
        return made
    if isinstance(value, tuple):
        return _renewed(_tuple_of(value, parts.values()), value, parts)
    made = copy.copy(value)
    if isinstance(value, Mapping | list):
        for name, part in parts.items():
            made[name] = part
        return _renewed(made, value, parts)
    for name, part in parts.items():
        object.__setattr__(made, name, part)  # as stored, whatever the class makes of it
    return made


def _tuple_of(value: tuple[Any, ...], parts: Collection[Any]) -> Any:
    """A tuple of the same type with these parts and the same attributes. Its class's constructor is
    not called if that can be avoided: it may take something other than parts, or change them a
    second time."""
    kind: Any = type(value)
    try:
        made = tuple.__new__(kind, parts)
    except TypeError:  # a class in C, such as torch.Size, has its own __new__
        return kind(parts)
    if hasattr(value, "__dict__"):
        made.__dict__.update(value.__dict__)
    return made


def _renewed(made: Any, value: Any, parts: Mapping[Any, Any]) -> Any:
    """The copy of a tuple, a list or a mapping: an attribute that is also one of its parts becomes
    the new part, and caches are left out."""
    held = parts_of(value) or {}
    new = {id(held[name]): part for name, part in parts.items() if name in held}
    for name, attribute in getattr(value, "__dict__", {}).items():
        if isinstance(getattr(type(value), name, None), cached_property):
            made.__dict__.pop(name, None)
        elif id(attribute) in new:
            made.__dict__[name] = new[id(attribute)]
    return made


def _holding(value: Any, attributes: Mapping[str, Any]) -> Any:
    """A dataclass of the same type with these attributes. Its constructor is not called, because
    its `__post_init__` would change them a second time; caches are left out."""
    kind, made = type(value), object.__new__(type(value))
    for name, part in attributes.items():
        if not isinstance(getattr(kind, name, None), cached_property):
            object.__setattr__(made, name, part)  # it may be frozen
    return made


def _is_dataclass(value: Any) -> bool:
    others = (type, Mapping, list, tuple, *LEAVES)
    return dataclasses.is_dataclass(value) and not isinstance(value, others)


def _names(value: Any) -> tuple[str, ...]:
    """The names of a named tuple's fields; empty for any other tuple."""
    names = getattr(type(value), "__match_args__", ()) if isinstance(value, tuple) else ()
    return names if len(names) == len(value) else ()


def _by_item(value: Any) -> bool:
    return isinstance(value, Mapping | list | tuple) and not _names(value)


def _by_attribute(value: Any) -> bool:
    """Whether it is an object of a stranger's class that holds its parts as attributes."""
    if isinstance(value, (type, *LEAVES)) or callable(value):
        return False
    return type(value).__module__.partition(".")[0] not in NO_BATCHES and bool(_attributes(value))


def _attributes(value: Any) -> dict[str, Any]:
    found: dict[str, Any] = dict(getattr(value, "__dict__", {}))
    for kind in type(value).__mro__:
        slots = getattr(kind, "__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name not in ("__dict__", "__weakref__") and hasattr(value, name):
                found[name] = getattr(value, name)
    return found
