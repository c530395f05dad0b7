"""A transform that was written for a KJT, run on the unique samples of an IKJT (the paper's O4)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Sequence
from itertools import groupby
from typing import Any, NamedTuple, TypeVar, cast

import torch
from torch import Tensor
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recd_plugins.errors import PluginError, naming, so_many
from recd_plugins.sparse.deduplicated import DeduplicatedFeatures
from recd_plugins.sparse.ikjt import InverseKeyedJaggedTensor
from recd_plugins.sparse.jagged import WeightedJagged
from recd_plugins.sparse.keyed import AddedFeature, KeyedRows, with_features
from recd_plugins.sparse.some_keys import SomeKeys

__all__ = ["KjtTransform", "RowWise"]

KjtTransform = Callable[[KeyedJaggedTensor], KeyedJaggedTensor]
Features = TypeVar("Features", bound="KeyedJaggedTensor | DeduplicatedFeatures")
Shared = TypeVar("Shared", bound=DeduplicatedFeatures)


class RowWise:
    """f: KJT → KJT (a module, a TorchScript module, a function), adapted to take an IKJT too.

    expand(RowWise(f)(ikjt)) = f(expand(ikjt)): f runs, untouched, on `ikjt.kjt`, and the inverse
    lookup stays. That holds if a row of f's result depends only on that row of its input.
    Attributes of f say what else holds (TorchScript modules set them in `__init__`):

    - `row_wise = False`: it does depend on other rows. Deduplicated features are then refused.
    - `changes_keys = True`: other keys come out. f then runs on each group by itself, and what
      comes out is that group.
    - `elementwise = True`: an id's result depends only on that id, and rows keep their lengths.
      Then f runs on a partial IKJT's shared values; otherwise it runs on its unique samples, each
      with values of its own, and shared values are found again.
    - `adds`, a name: the features that f takes stay, and one of this name is appended. The method
      `made(features)` returns its ids, lengths, and weights or None. It finds the features that f
      takes by name among `features`; others may lie between them.
    - `of_rows(ids, lengths, weights)`, a method: f keeps its keys, and treats each row the same,
      whatever its key. The method returns ids, lengths, and weights or None; `lengths` itself if
      rows keep their lengths. If f takes all features, no KJT is made for it.

    If a subclass of the class that has `made` or `of_rows` defines a `forward` of its own, f is
    that `forward`, and the method is not called.
    """

    def __init__(
        self,
        transform: KjtTransform,
        makes: Callable[[Sequence[str]], Sequence[str]] | None = None,
        name: str = "",
        who: str = "",
        weighs: bool = True,
    ) -> None:
        """`makes` maps keys to those that come out, for a transform that changes keys. `name` is
        its name, by default the one that its author gave it; `who` opens its messages. `weighs` is
        False if no feature that comes out is scored: then the transform may make no weights."""
        self.transform = transform
        self._makes = makes
        self._known: dict[tuple[str, ...], list[str]] = {}
        """The results of `makes`, which is called once, not for each batch."""
        self.name = name or _name_of(transform)
        self.who = who or f"preprocess: {self.name}"
        self._has_schema = bool(who)  # as each transform that a registry names has
        self._weighs = weighs
        self.row_wise: bool = getattr(transform, "row_wise", True)
        """Whether a row's result depends on that row alone, as the transform says."""
        adds: str | None = getattr(transform, "adds", None)
        self.adds = None if _is_passed_by(transform, "made") else adds
        """The name of the feature that it adds to those that it takes; None if it does not add
        one."""
        of_rows: Callable[..., Any] | None = getattr(transform, "of_rows", None)
        self.of_rows = None if _is_passed_by(transform, "of_rows") else of_rows
        """What it does to rows, if it can do without a KJT; else None."""
        self._changes_keys: bool = bool(
            makes is not None or adds or getattr(transform, "changes_keys", False)
        )
        elementwise: bool = getattr(transform, "elementwise", False)
        self.elementwise = elementwise and not self._changes_keys
        """Whether an id's result depends on that id alone, as the transform says, so that it runs
        on shared values."""

    def __call__(self, features: Features, keys: Collection[str] | None = None) -> Features:
        """The transformed features; if `keys` are given, only these are transformed, and the others
        stay."""
        plain = isinstance(features, KeyedJaggedTensor)
        held = features.keys() if isinstance(features, KeyedJaggedTensor) else features.kjt.keys()
        wanted = frozenset(held if keys is None else keys)
        chosen = [key for key in held if key in wanted]
        if not chosen:
            return features
        if not plain and not self.row_wise:
            raise PluginError(
                f"{self.who} says `row_wise = False`: its result depends on more than its row, so "
                f"it cannot run on the unique samples of {', '.join(chosen)}. Leave these features "
                "out of dedup.groups, or take the transform off them."
            )
        made: KeyedJaggedTensor | DeduplicatedFeatures
        if isinstance(features, KeyedJaggedTensor):
            made = self._on_kjt(features, chosen)
        elif features.shares_values and self.elementwise:
            made = self._on_shared_values(features, chosen)
        else:
            made = features.from_ikjt(self._on_ikjt(features.to_ikjt(), chosen))
        return cast("Features", made)

    def added(self, features: KeyedJaggedTensor, chosen: list[str]) -> AddedFeature:
        """The feature that it makes of the chosen ones, which come right before it."""
        assert self.adds is not None  # whoever asks has looked
        transform: Any = self.transform
        with naming(self.who, "when asked for what it adds", also_data=True):
            made = transform.made(features)
        if not (isinstance(made, tuple) and len(made) == 3):
            raise PluginError(
                f"{self.who}: `made` gave a {type(made).__name__}, but must give the "
                "ids [n], the lengths [B], and the weights [n] or None of the feature it adds."
            )
        values, lengths, weights = made
        self._check([*chosen, self.adds], lengths.numel(), chosen, features.stride())
        self._check_ids(values, lengths)
        self._check_weights(features.weights_or_none(), weights, values)
        return AddedFeature(self.adds, values, lengths, weights, tuple(chosen))

    def on_rows(self, rows: KeyedRows) -> KeyedRows:
        """The same keys, with what it makes from their rows."""
        assert self.of_rows is not None  # whoever asks has looked
        with naming(self.who, "when it was given rows", also_data=True):
            made = self.of_rows(rows.ids, rows.lengths, rows.weights)
        if not (isinstance(made, tuple) and len(made) == 3):
            raise PluginError(
                f"{self.who}: `of_rows` gave a {type(made).__name__}, but must give "
                "the ids [n], the lengths [B], and the weights [n] or None of the rows."
            )
        ids, lengths, weights = made
        self._check_weights(rows.weights, weights, ids)
        if lengths is rows.lengths:
            self._check_ids(ids, lengths, len(rows.ids))
            return KeyedRows(rows.keys, ids, lengths, weights, rows.length_per_key)
        keys = [*rows.keys]
        self._check(keys, lengths.numel(), keys, rows.lengths.numel())
        self._check_ids(ids, lengths)
        return KeyedRows(rows.keys, ids, lengths, weights, None)

    def runs_on(
        self, features: KeyedJaggedTensor | DeduplicatedFeatures
    ) -> KeyedJaggedTensor | None:
        """The KJT whose rows it takes as they are, or to whose features its new one is appended, if
        that is all that it does; else None."""
        if self.adds is None and self.of_rows is None:
            return None
        if isinstance(features, KeyedJaggedTensor):
            return None if features.variable_stride_per_key() else features
        alone = isinstance(features, InverseKeyedJaggedTensor) and len(features.groups) == 1
        return features.kjt if alone and self.row_wise else None

    def _on_kjt(self, features: KeyedJaggedTensor, chosen: list[str]) -> KeyedJaggedTensor:
        if self.adds is not None and not features.variable_stride_per_key():
            return with_features(features, [self.added(features, chosen)])
        keys = features.keys()
        if len(chosen) == len(keys):
            return self._run(features)
        bands = [
            (taken, len(list(band))) for taken, band in groupby(keys, lambda key: key in chosen)
        ]
        parts = _cut(features, [count for _, count in bands])
        given = [part for part, (taken, _) in zip(parts, bands, strict=True) if taken]
        others = [part for part, (taken, _) in zip(parts, bands, strict=True) if not taken]
        result = self._run(_joined(given, features.stride()))
        if result.keys() == chosen:
            pieces = iter(_cut(result, [count for taken, count in bands if taken]))
            left = iter(others)
            parts = [next(pieces if taken else left) for taken, _ in bands]
        else:
            parts = [*others, *_cut(result, [len(result.keys())])]
        return _joined(parts, features.stride())

    def _on_ikjt(
        self, features: InverseKeyedJaggedTensor, chosen: list[str]
    ) -> InverseKeyedJaggedTensor:
        if not self._changes_keys:
            some = SomeKeys(features, chosen)
            taken = some.take()
            made = self._run(taken)
            kept = made.lengths() is taken.lengths()
            return some.put(made if kept else some.without_padding(made))
        if len(features.groups) == 1:  # it has no padding
            kjt = self._on_kjt(features.kjt, chosen)
            self._check_once(kjt)
            return dataclasses.replace(features, kjt=kjt, groups=(tuple(kjt.keys()),))
        parts = []
        for part in _cut(features.kjt, [len(group) for group in features.groups]):
            ours = [key for key in part.keys if key in chosen]
            if ours:
                made = self._on_kjt(_joined([part], features.kjt.stride()), ours)
                (part,) = _cut(made, [len(made.keys())])
            parts.append(part)
        kjt = _joined(parts, features.kjt.stride())
        self._check_once(kjt)
        groups = tuple(tuple(part.keys) for part in parts)
        result = dataclasses.replace(features, kjt=kjt, groups=groups)
        every = SomeKeys(result, kjt.keys())
        return every.put(every.without_padding(kjt))

    def _check_once(self, kjt: KeyedJaggedTensor) -> None:
        if len(set(kjt.keys())) < len(kjt.keys()):
            raise PluginError(
                f"{self.who} makes the same key from two feature groups: {kjt.keys()}. Name all "
                "that it takes in one group of dedup.groups."
            )

    def _on_shared_values(self, features: Shared, chosen: list[str]) -> Shared:
        kjt = self._on_kjt(features.kjt, chosen)
        if not torch.equal(kjt.lengths(), features.kjt.lengths()):
            raise PluginError(
                f"{self.who} says `elementwise = True`, but changes how many ids "
                "a row has. Take that attribute away."
            )
        return dataclasses.replace(features, kjt=kjt)

    def _run(self, features: KeyedJaggedTensor) -> KeyedJaggedTensor:
        with naming(self.who, "when it was given features", also_data=True):
            result = self.transform(features)
        if not isinstance(result, KeyedJaggedTensor):
            raise PluginError(
                f"{self.who} made a {type(result).__name__} of a KeyedJaggedTensor, but must "
                "return one."
            )
        self._check(result.keys(), result.stride(), features.keys(), features.stride())
        self._check_ids(result.values(), result.lengths())
        given, made = features.weights_or_none(), result.weights_or_none()
        self._check_weights(given, made, result.values())
        return result

    def _check_ids(self, ids: Tensor, lengths: Tensor, total: int | None = None) -> None:
        """Raises `PluginError` if rows would be cut in the wrong places, so that later rows would
        shift. A caller that knows the `total` of the lengths passes it; else lengths on a device
        are not summed."""
        if ids.is_floating_point() or ids.is_complex():
            raise PluginError(
                f"{self.who} made ids of {ids.dtype}, where they must be integers: int64 or int32."
            )
        if total is None and lengths.is_cpu:
            total = int(lengths.sum())
            if lengths.numel() and (least := int(lengths.min())) < 0:
                raise PluginError(
                    f"{self.who} made a row of {least} ids. Give a row without ids the length 0."
                )
        if total is not None and total != len(ids):
            raise PluginError(
                f"{self.who} made {len(ids):,} ids, and lengths that add up to {total:,}. Give "
                "each row the length of what it has."
            )

    def _check_weights(self, given: Tensor | None, made: Tensor | None, ids: Tensor) -> None:
        """Raises `PluginError` for weights that would not be used, or that do not match the ids."""
        if made is not None and len(made) != len(ids):
            raise PluginError(
                f"{self.who} made {len(made):,} weights of {len(ids):,} ids. Give each id its own "
                "weight, also where rows are cut."
            )
        if made is not None and given is None and not self._weighs:
            raise PluginError(
                f"{self.who} made weights, but its `schema` has no scored feature, so they would "
                "not be used. Let it return the feature with `scored=True` "
                "(`dataclasses.replace(feature, scored=True)`), or make no weights."
            )

    def _check(self, made: list[str], num_rows: int, given: list[str], stride: int) -> None:
        """Raises `PluginError` if wrong keys or rows came out."""
        if made != given and not self._changes_keys:
            cure = "let the transform say `changes_keys = True`"
            if self._has_schema:
                cure = "let its `schema` name those that come out, as `schema.add([feature])` does"
            raise PluginError(
                f"{self.who} made the keys {made} of {given}. Keep them and their order, or {cure}."
            )
        if self._makes is not None and made != self._made(tuple(given)):
            raise PluginError(
                f"{self.who} made the keys {made} of {given}, but "
                f"its `schema` says {self._made(tuple(given))}. Let both name the same, "
                "in one order."
            )
        if num_rows != stride:
            raise PluginError(
                f"{self.who} made {so_many(num_rows, 'row')} of {stride}. Keep "
                "one row for each: a row without ids is an empty one."
            )

    def _made(self, keys: tuple[str, ...]) -> list[str]:
        if keys not in self._known and self._makes is not None:
            self._known[keys] = list(self._makes(keys))
        return self._known[keys]


class _Part(NamedTuple):
    """Neighbouring keys of a KJT, as views: a KJT of them takes longer to make."""

    keys: list[str]
    rows: WeightedJagged
    numels: list[int]
    """The number of ids of each key."""
    strides: list[list[int]] | None
    """The number of rows of each key and rank, if keys differ in these (VBE)."""


def _cut(features: KeyedJaggedTensor, counts: Sequence[int]) -> list[_Part]:
    """All keys, cut into parts with these numbers of keys."""
    keys, numels, every = features.keys(), features.length_per_key(), WeightedJagged.of(features)
    ragged = features.variable_stride_per_key()
    strides = features.stride_per_key_per_rank() if ragged else None
    rows = features.stride_per_key()
    parts, id_, row, key = [], 0, 0, 0
    for count in counts:
        some = slice(key, key + count)
        ids, lengths = sum(numels[some]), sum(rows[some])
        of_some = WeightedJagged(
            every.values[id_ : id_ + ids],
            every.lengths[row : row + lengths],
            None if every.weights is None else every.weights[id_ : id_ + ids],
        )
        by_rank = None if strides is None else strides[some]
        parts.append(_Part(keys[some], of_some, numels[some], by_rank))
        id_, row, key = id_ + ids, row + lengths, key + count
    return parts


def _joined(parts: Sequence[_Part], stride: int) -> KeyedJaggedTensor:
    """The keys of all parts; if some have weights, the ids of the others get weight 1."""
    rows = parts[0].rows
    if len(parts) > 1:
        rows = WeightedJagged.joined([part.rows for part in parts])
    strides = [one for part in parts for one in part.strides or ()]
    return KeyedJaggedTensor(
        keys=[key for part in parts for key in part.keys],
        values=rows.values,
        lengths=rows.lengths,
        weights=rows.weights,
        stride=None if strides else stride,
        stride_per_key_per_rank=strides or None,
        length_per_key=[numel for part in parts for numel in part.numels],
    )


def _is_passed_by(transform: KjtTransform, method: str) -> bool:
    """Whether a class inherits this method but defines its own `forward`, which is then what its
    author trained with."""
    if not hasattr(transform, method) or method in getattr(transform, "__dict__", {}):
        return False
    for kind in type(transform).__mro__:
        if method in vars(kind):
            break
        if {"forward", "__call__"} & vars(kind).keys():
            return True
    return False


def _name_of(transform: KjtTransform) -> str:
    """The name that its author gave it: that of the function, or of the module's class, scripted or
    not."""
    for name in ("original_name", "__name__"):
        if isinstance(own := getattr(transform, name, None), str):
            return own
    return type(transform).__name__
