"""The lookups that a batch of any trainer makes: the ids of each feature, found by type or by a
function."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, ValuesView
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from recd_plugins.errors import DataError, nearest
from recd_plugins.planning.access.distribution import Integers

if TYPE_CHECKING:
    from torch import Tensor
    from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

    from recd_plugins.sparse.deduplicated import DeduplicatedFeatures
    from recd_plugins.sparse.jagged import WeightedJagged
    from recd_plugins.sparse.own_batches import FeaturesOf

__all__ = ["BatchLookups", "batch_lookups", "deduplicated_parts", "is_hot", "sparse_parts"]


@dataclass(frozen=True)
class BatchLookups:
    """The lookups that one batch makes."""

    samples: int
    ids: Mapping[str, Integers]
    """The ids of each feature, bag after bag; if the feature is deduplicated, those of its unique
    samples."""
    lengths: Mapping[str, Integers]
    """The number of ids in each bag."""
    variable: frozenset[str] = frozenset()
    """The features of KJTs whose keys differ in batch size."""
    weighted: frozenset[str] = frozenset()
    """The features whose ids each have a weight."""

    def __getitem__(self, feature: str) -> Integers:
        if feature not in self.ids:
            raise DataError(
                f"profile: the batches have no feature {feature!r}; {nearest(feature, self.ids)}"
            )
        return self.ids[feature]


def batch_lookups(batch: Any, features: FeaturesOf | None = None) -> BatchLookups:
    """The lookups that a model makes for the batch.

    `features` returns the batch's KeyedJaggedTensor, something that TorchRec takes instead, an
    IKJT, or a list or mapping of these; lookups add up if they share a key. By default that is the
    batch itself, or what it contains, if that is one of these; for a `data.Batch`, its fields.
    """
    each = [_lookups(part) for part in sparse_parts(batch, features)]
    if not each:
        raise DataError(
            f"features: of a batch ({type(batch).__name__}) it gives nothing. Let it give the "
            "batch's KeyedJaggedTensor, or a list of several; and let the loader leave out batches "
            "that have none."
        )
    return BatchLookups(
        max(one.samples for one in each),
        _joined([one.ids for one in each]),
        _joined([one.lengths for one in each]),
        frozenset().union(*(one.variable for one in each)),
        frozenset().union(*(one.weighted for one in each)),
    )


def _joined(parts: Sequence[Mapping[str, Integers]]) -> dict[str, Integers]:
    """The numbers of each key; if several KJTs have a key, theirs one after another."""
    found: dict[str, list[Integers]] = {}
    for part in parts:
        for key, numbers in part.items():
            found.setdefault(key, []).append(numbers)
    return {key: each[0] if len(each) == 1 else np.concatenate(each) for key, each in found.items()}


def deduplicated_parts(parts: Sequence[Any]) -> list[DeduplicatedFeatures]:
    """The deduplicated features of a batch's `sparse_parts`."""
    from recd_plugins.sparse.deduplicated import DeduplicatedFeatures
    from recd_plugins.sparse.features import SparseFeatures

    found = [part.dedup if isinstance(part, SparseFeatures) else part for part in parts]
    return [part for part in found if isinstance(part, DeduplicatedFeatures)]


def is_hot(parts: Sequence[Any]) -> bool:
    """Whether a batch's `sparse_parts` are marked as those of a hot batch."""
    from recd_plugins.sparse.features import SparseFeatures
    from recd_plugins.sparse.keyed import mark_of

    kjts = [part.plain if isinstance(part, SparseFeatures) else part for part in parts]
    return any(mark_of(kjt) is not None for kjt in kjts)


def sparse_parts(batch: Any, features: FeaturesOf | None) -> list[Any]:
    """The sparse features of a batch, found by type or by a function."""
    if features is None:
        return _found(batch)
    found = features(batch)
    if isinstance(found, Mapping) and not _is_features(found):  # of KJTs, by whatever names
        found = found.values()
    parts = list(found) if isinstance(found, list | tuple | ValuesView) else [found]
    for part in parts:
        if not _is_features(part):
            raise DataError(
                f"features: of a batch ({type(batch).__name__}) it gives a "
                f"{type(part).__name__}, which has no sparse features. Let it give the "
                "batch's KeyedJaggedTensor, or a list of several."
            )
    return parts


def _found(batch: Any) -> list[Any]:
    from recd_plugins.sparse.features import SparseFeatures
    from recd_plugins.sparse.own_batches import walk

    if hasattr(batch, "features") and hasattr(batch, "dedup"):
        return [SparseFeatures.of(batch.features, batch.dedup)]
    within = {path: part for path, part in walk(batch, whole=_is_features) if _is_features(part)}
    if len(within) == 1:
        return list(within.values())
    kind = type(batch).__name__
    if not within:
        raise DataError(
            f"batches: a {kind} has no KeyedJaggedTensor that could be found, so its lookups "
            "cannot be counted. Give the place of its sparse features, or make the "
            "KeyedJaggedTensor that the model makes itself: stack.plan(model, batches=loader, "
            "features=lambda batch: ...)."
        )
    raise DataError(
        f"batches: a {kind} has {len(within)} sets of sparse features ({', '.join(within)}). Name "
        "those that the model looks up: stack.plan(model, batches=loader, features=lambda batch: "
        f"[{', '.join(within)}])."
    )


def _is_features(part: Any) -> bool:
    from tensordict import TensorDict
    from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

    from recd_plugins.sparse.deduplicated import DeduplicatedFeatures
    from recd_plugins.sparse.features import SparseFeatures

    if isinstance(part, TensorDict):  # one with dense floats has no sparse features
        return bool(part.keys()) and all(_is_jagged(part[key]) for key in part.keys())  # noqa: SIM118
    return isinstance(part, KeyedJaggedTensor | SparseFeatures | DeduplicatedFeatures)


def _is_jagged(part: Any) -> bool:
    """Whether TorchRec takes this as a feature: a nested tensor, or a JaggedTensor."""
    from torchrec.sparse.jagged_tensor import JaggedTensor

    return isinstance(part, JaggedTensor) or bool(getattr(part, "is_nested", False))


def _lookups(part: Any) -> BatchLookups:
    from torchrec.sparse.tensor_dict import maybe_td_to_kjt

    from recd_plugins.sparse.deduplicated import DeduplicatedFeatures
    from recd_plugins.sparse.features import SparseFeatures

    if isinstance(part, DeduplicatedFeatures):
        return _of_rows(part.batch_size, part.to_ikjt().parts())
    if isinstance(part, SparseFeatures):
        return _of_rows(part.stride(), part.rows)
    kjt: KeyedJaggedTensor = maybe_td_to_kjt(part)
    ids, offsets = _ids(kjt.values()), kjt.offset_per_key()
    ends = zip(kjt.keys(), offsets, offsets[1:], strict=False)
    bags = np.cumsum([0, *kjt.stride_per_key()]).tolist()
    lengths = _ids(kjt.lengths().reshape(-1))  # TorchRec takes [K, B] too
    return BatchLookups(
        _samples(kjt),
        {key: ids[start:end] for key, start, end in ends},
        {key: lengths[a:b] for key, a, b in zip(kjt.keys(), bags, bags[1:], strict=False)},
        frozenset(kjt.keys() if kjt.variable_stride_per_key() else ()),
        frozenset(kjt.keys() if _weigh(kjt.weights_or_none()) else ()),
    )


def _of_rows(samples: int, rows: Mapping[str, WeightedJagged]) -> BatchLookups:
    return BatchLookups(
        samples,
        {key: _ids(one.values) for key, one in rows.items()},
        {key: _ids(one.lengths) for key, one in rows.items()},
        weighted=frozenset(key for key, one in rows.items() if _weigh(one.weights)),
    )


def _weigh(weights: Tensor | None) -> bool:
    """Whether TorchRec would use these as weights of ids: it does not take integers."""
    return weights is not None and weights.is_floating_point()


def _samples(kjt: KeyedJaggedTensor) -> int:
    """B; for a KJT whose keys differ in batch size, the number of samples after its expansion."""
    indices = kjt.inverse_indices_or_none()
    return int(kjt.stride() if indices is None else indices[1].shape[-1])


def _ids(values: Tensor) -> Integers:
    return values.detach().cpu().numpy().astype(np.int64, copy=False)
