"""The conversion of a trainer's own batches: of a KJT, of batches when they are made, or of those
that a loader yields."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recd_plugins.compat.tracing import outside_of_graphs
from recd_plugins.data.preprocess.batch_transform import BatchTransform, row_wise
from recd_plugins.data.preprocess.steps import ChosenTransform, schema_of_keys, steps_of
from recd_plugins.errors import CapabilityError, DataError
from recd_plugins.sparse.features import SparseFeatures
from recd_plugins.sparse.keyed import with_ids
from recd_plugins.sparse.own_batches import FeaturesOf, features_of, replaced
from recd_plugins.sparse.wrapped_loader import WrappedLoader

if TYPE_CHECKING:
    from recd_plugins.slots import DedupConverter

__all__ = ["Conversion", "ConvertedLoader", "Converting", "check_own"]

SMALL = (torch.bool, torch.uint8, torch.int8, torch.int16)
"""Types of ids that a TorchRec table takes but no kernel that gathers unique rows does."""


class Conversion:
    """Converts the KJT of a trainer's own batch to what an adapted model takes in its place.

    That is `SparseFeatures` where features are deduplicated, else a KJT. Every worker of a loader
    may have a copy of this object, pickled or forked: it holds only the converter and the
    transforms.
    """

    def __init__(
        self,
        transforms: Sequence[ChosenTransform],
        dedup: DedupConverter | None = None,
        who: str = "dedup",
    ) -> None:
        """`who` opens the messages of the converter."""
        self._transforms = tuple(transforms)
        self._dedup, self._who = dedup, who
        self._by_keys: dict[tuple[str, ...], BatchTransform] = {}
        self._order: dict[tuple[str, ...], tuple[str, ...]] = {}
        """The keys that come out, by a batch's keys; in order where nothing is deduplicated."""

    @outside_of_graphs
    def __call__(
        self, features: KeyedJaggedTensor | SparseFeatures
    ) -> KeyedJaggedTensor | SparseFeatures:
        """The features of all samples, with unchanged ids; what is already converted is returned as
        it is."""
        if isinstance(features, SparseFeatures):
            return features
        if not isinstance(features, KeyedJaggedTensor):
            raise DataError(
                f"convert: takes a KeyedJaggedTensor, but was given a {type(features).__name__}. "
                "If your batch holds one, pass that, or use stack.converting(collate) or "
                "stack.converted(loader)."
            )
        if features.variable_stride_per_key():
            raise DataError(
                "convert: the keys of this KeyedJaggedTensor differ in batch size (variable "
                "stride, VBE), so some samples lack a row under some key. Convert the features "
                "before they get different batch sizes, or take `dedup` and `preprocess` out of "
                "registry.yaml."
            )
        if self._dedup is not None and features.values().dtype in SMALL:
            features = with_ids(features, features.values().long())
        keys = tuple(features.keys())
        if keys not in self._by_keys:
            self._by_keys[keys] = self._transform(keys)
        plain, dedup = self._by_keys[keys].of(features)
        if plain is not features:
            _check_each_once(keys)
        if dedup is None:
            return plain
        made, order = SparseFeatures.of(plain, dedup), self._order[keys]
        return dataclasses.replace(made, order=order) if {*made.keys()} == {*order} else made

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_by_keys": {}, "_order": {}}

    def _transform(self, keys: Sequence[str]) -> BatchTransform:
        check_own(self._transforms)
        steps = steps_of(self._transforms, schema_of_keys(keys)) if self._transforms else []
        groups, order = getattr(self._dedup, "groups", ()), tuple(keys)
        for step in steps:
            groups = step.groups(groups)  # it refuses what cannot be done on unique samples
            if step.changes_keys:
                taken = tuple(name for name in order if name in step.takes)
                order = (*(name for name in order if name not in taken), *step.names(taken))
        self._order[tuple(keys)] = order
        return BatchTransform(row_wise(steps), self._dedup, who=self._who)


def _check_each_once(keys: Sequence[str]) -> None:
    """Raises `DataError` for a key that comes twice: converted features are found by their keys."""
    if len(set(keys)) < len(keys):
        twice = next(key for key in keys if keys.count(key) > 1)
        raise DataError(
            f"convert: this KeyedJaggedTensor has the key {twice!r} {keys.count(twice)} times, and "
            "only one of these columns would be kept. Give each column a key of its own where the "
            "batch is made, or take `dedup` and `preprocess` out of registry.yaml."
        )


def check_own(transforms: Sequence[ChosenTransform]) -> None:
    """Raises `CapabilityError` for a transform of dense columns: only the KJT of a trainer's own
    batch is converted."""
    for one in transforms:
        if one.dense:
            raise CapabilityError(
                f"{one.who} takes dense columns, but `stack.convert` gets only the "
                "KeyedJaggedTensor of a batch of your own. Apply it to your dense floats yourself, "
                "or read the table by `stack.loader`."
            )


class Converting:
    """Makes batches as `make_batch` does, with converted features in place of their KJT.

    The batch that was made stays as it is: a dataset may yield it again.
    """

    def __init__(
        self,
        convert: Conversion,
        make_batch: Callable[..., Any] | None,
        features: FeaturesOf | None,
    ) -> None:
        self._convert = convert
        self._make_batch = make_batch
        self._features = features

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        batch = args[0] if self._make_batch is None else self._make_batch(*args, **kwargs)
        features = features_of(batch, self._features)
        return replaced(batch, features, self._convert(features))


class ConvertedLoader(WrappedLoader):
    """A loader whose batches are converted; everything else is the wrapped loader's."""

    def __init__(self, loader: Iterable[Any], convert: Callable[[Any], Any]) -> None:
        # Frameworks use protocols to ask whether a loader has a state. Since Python 3.12 these see
        # only the attributes of the object itself.
        states = (name for name in ("state_dict", "load_state_dict") if hasattr(loader, name))
        self.__dict__.update({name: getattr(loader, name) for name in states})
        self._loader, self._convert = loader, convert

    def __iter__(self) -> Iterator[Any]:
        return map(self._convert, self._loader)
