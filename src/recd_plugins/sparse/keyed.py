"""A KeyedJaggedTensor with changes: other ids, one more feature, or the mark of a hot batch."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from copy import copy
from functools import lru_cache
from itertools import accumulate, chain
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

__all__ = [
    "AddedFeature",
    "KeyedRows",
    "in_one_line",
    "made_of_rows",
    "mark_of",
    "marked",
    "rows_with_features",
    "with_feature",
    "with_features",
    "with_ids",
]


def with_ids(
    features: KeyedJaggedTensor,
    values: Tensor,
    *,
    lengths: Tensor | None = None,
    weights: Tensor | None = None,
) -> KeyedJaggedTensor:
    """The same keys and rows, other ids; in rows of `lengths`, by default the same as before.

    Weights stay as they are unless lengths are given, which may be the same ones: then `weights`
    are used, and without these there are none.
    """
    kind = type(features)  # not imported above: `recd plugins` also imports plugins that use this
    kept = lengths is None
    ragged = features.variable_stride_per_key()
    return kind(
        keys=features.keys(),
        values=values,
        weights=features.weights_or_none() if kept else weights,
        lengths=features.lengths() if lengths is None else lengths,
        offsets=features.offsets_or_none() if kept else None,
        stride=None if ragged else features.stride(),
        stride_per_key_per_rank=features.stride_per_key_per_rank() if ragged else None,
        length_per_key=features.length_per_key_or_none() if kept else None,
        inverse_indices=features.inverse_indices_or_none(),
    )


def in_one_line(features: KeyedJaggedTensor) -> KeyedJaggedTensor:
    """The same features with lengths [K * B]: TorchRec also accepts lengths [K, B]."""
    lengths = features.lengths()
    if lengths.dim() == 1:
        return features
    weights = features.weights_or_none()
    return with_ids(features, features.values(), lengths=lengths.reshape(-1), weights=weights)


class AddedFeature(NamedTuple):
    """A feature that is to be appended to others: B rows."""

    name: str
    values: Tensor
    """[lengths.sum()] ids."""
    lengths: Tensor
    """[B]."""
    weights: Tensor | None = None
    """[lengths.sum()]."""
    last: tuple[str, ...] = ()
    """The features that are moved behind the others, right before it."""


def with_feature(
    features: KeyedJaggedTensor,
    name: str,
    values: Tensor,
    lengths: Tensor,
    weights: Tensor | None = None,
    *,
    last: Collection[str] = (),
) -> KeyedJaggedTensor:
    """The same features, followed by one of this name: B rows of `lengths` [B].

    If other features have weights and this one has none, its ids get weight 1, and vice versa. The
    features that `last` names are moved behind the others, right before it.
    """
    return with_features(features, [AddedFeature(name, values, lengths, weights, tuple(last))])


def with_features(features: KeyedJaggedTensor, added: Sequence[AddedFeature]) -> KeyedJaggedTensor:
    """What `with_feature` makes if applied with each of these, one after another; but each id is
    copied only once. Ids of two types get the wider one, even if there are no ids, because ranks
    exchange them."""
    return made_of_rows(features, rows_with_features(features, added))


class KeyedRows(NamedTuple):
    """What a KJT with B rows per key is made of: the KJT itself takes longer to make."""

    keys: Sequence[str]
    ids: Tensor
    """[lengths.sum()], key by key."""
    lengths: Tensor
    """[K * B]."""
    weights: Tensor | None
    """[lengths.sum()]."""
    length_per_key: list[int] | None
    """The number of ids of each key, if known."""


def made_of_rows(features: KeyedJaggedTensor, rows: KeyedRows) -> KeyedJaggedTensor:
    """A KJT of these rows, in place of `features` with as many."""
    return type(features)(
        keys=[*rows.keys],
        values=rows.ids,
        weights=rows.weights,
        lengths=rows.lengths,
        stride=features.stride(),
        length_per_key=rows.length_per_key,
    )


def rows_with_features(features: KeyedJaggedTensor, added: Sequence[AddedFeature]) -> KeyedRows:
    """The rows of `with_features`."""
    held, ids, lengths = features.keys(), features.values(), features.lengths()
    keys, pieces = _order(tuple(held), tuple((one.name, one.last) for one in added))
    numels, stride = features.length_per_key_or_none(), features.stride()
    if numels is None and any(one.last for one in added):
        numels = features.length_per_key()
    # If it is not known how many ids each key has, all keys stay where they are.
    ends = [0] * len(held) + [ids.numel()] if numels is None else [0, *accumulate(numels)]
    counts = None if numels is None else [*numels, *(one.values.numel() for one in added)]
    return KeyedRows(
        keys,
        _laid(ids, ends, [one.values for one in added], pieces),
        _laid(
            lengths,
            [stride * place for place in range(len(held) + 1)],
            [one.lengths for one in added],
            pieces,
            as_whole=True,
        ),
        _weighing(features, ends, added, pieces),
        None if counts is None else [counts[place] for place in chain(*pieces)],
    )


Pieces = tuple[range, ...]
"""Places of keys, in the order in which these come out. Present keys are numbered first, then added
ones. Each added key is a piece; present keys that lie side by side are one piece."""


@lru_cache(maxsize=1024)  # each step asks for the same in all batches of a job
def _order(
    keys: tuple[str, ...], added: tuple[tuple[str, tuple[str, ...]], ...]
) -> tuple[tuple[str, ...], Pieces]:
    """All keys in order, each of `added` after its `last`, and these after the others."""
    names = [*keys, *(name for name, _ in added)]
    places = [*range(len(keys))]
    for _, last in added:
        others = [place for place in places if names[place] not in last]
        behind = [place for place in places if names[place] in last]
        places = [*others, *behind, len(places)]
    pieces: list[range] = []
    for place in places:
        if pieces and place < len(keys) and pieces[-1].stop == place:
            pieces[-1] = range(pieces[-1].start, place + 1)
        else:
            pieces.append(range(place, place + 1))
    return tuple(names[place] for place in places), tuple(pieces)


def _weighing(
    features: KeyedJaggedTensor, ends: Sequence[int], added: Sequence[AddedFeature], pieces: Pieces
) -> Tensor | None:
    """The weights of all ids, 1 for features without weights; None if no feature has weights."""
    held = features.weights_or_none()
    given = [one for one in (held, *(one.weights for one in added)) if one is not None]
    if not given:
        return None
    return _laid(
        given[0].new_ones(features.values().numel()) if held is None else held,
        ends,
        [
            given[0].new_ones(one.values.numel()) if one.weights is None else one.weights
            for one in added
        ],
        pieces,
    )


def _laid(
    whole: Tensor,
    ends: Sequence[int],
    more: Sequence[Tensor],
    pieces: Pieces,
    *,
    as_whole: bool = False,
) -> Tensor:
    """Pieces laid end to end: keys of `whole`, which end there, and added ones; with `as_whole`, in
    its type. On the CPU, torch.cat wakes torch's threads; they belong to the model, and waiting for
    them costs more than they save."""

    def parts(held: Any, others: Sequence[Any]) -> list[Any]:
        return [
            held[ends[piece.start] : ends[piece.stop]]
            if piece.stop < len(ends)
            else others[piece.start - len(ends) + 1]
            for piece in pieces
        ]

    if not all(map(_is_numpys, (whole, *more))):
        return torch.cat(parts(whole, [one.to(whole.dtype) for one in more] if as_whole else more))
    numbers = whole.numpy()
    found = parts(numbers, [one.numpy() for one in more])
    if as_whole:
        return torch.from_numpy(np.concatenate(found, dtype=numbers.dtype, casting="same_kind"))
    return torch.from_numpy(np.concatenate(found))


def _is_numpys(part: Tensor) -> bool:
    """Whether numpy can use its memory."""
    plain = type(part) is Tensor and part.dtype in BY_NUMPY
    return plain and part.is_cpu and not part.requires_grad


BY_NUMPY = frozenset({torch.int32, torch.int64, torch.float32, torch.float64})


ATTRIBUTE = "hot_under"


def marked(features: KeyedJaggedTensor, hot_under: str | None) -> KeyedJaggedTensor:
    """The same features with this mark, or none; the KJT handed over does not change.

    The mark names the tier plan under which the batch is hot, because a plan may change while a
    batch is under way. It is on the KJTs, so it reaches modules that get only a KJT. Moving and
    pinning keep it. Code that makes another KJT loses it, and the batch is then a normal one:
    slower, but just as correct.
    """
    if mark_of(features) == hot_under:
        return features
    from recd_plugins.sparse.hot import hot_kind

    other = copy(features)
    other.__class__ = hot_kind(type(features), hot_under is not None)
    setattr(other, ATTRIBUTE, hot_under)
    return other


def mark_of(features: KeyedJaggedTensor) -> str | None:
    """The version of the tier plan under which every rank's ids are replicated; None if they are
    not."""
    mark: str | None = getattr(features, ATTRIBUTE, None)
    return mark
