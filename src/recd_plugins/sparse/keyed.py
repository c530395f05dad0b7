"""A KeyedJaggedTensor made over: with other ids, a feature more, or the mark of a hot batch."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from copy import copy
from itertools import accumulate, chain, groupby
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

__all__ = ["mark_of", "marked", "with_feature", "with_ids"]


def with_ids(
    features: KeyedJaggedTensor,
    values: Tensor,
    *,
    lengths: Tensor | None = None,
    weights: Tensor | None = None,
) -> KeyedJaggedTensor:
    """The same keys and rows, other ids; in rows of `lengths`, by default the same as before.

    Weights stay as they are, unless the lengths change: then those given count.
    """
    kind = type(features)  # not imported: plugins that use this are imported by `recd plugins` too
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


def with_feature(
    features: KeyedJaggedTensor,
    name: str,
    values: Tensor,
    lengths: Tensor,
    weights: Tensor | None = None,
    *,
    last: Collection[str] = (),
) -> KeyedJaggedTensor:
    """The same features and, behind them, one of this name: B rows of `lengths` [B].

    Its ids weigh 1 where those of others have weights and it was given none, and the other way
    about. The features that `last` names come right before it, behind the others.
    """
    held, ids, own = features.weights_or_none(), features.values(), features.lengths()
    if held is None and weights is not None:
        held = weights.new_ones(ids.numel())
    elif held is not None and weights is None:
        weights = held.new_ones(values.numel())
    order = _Order.of(features, last)
    return type(features)(
        keys=[*order.keys, name],
        values=_joined(ids, order.ids, values if order.numel else values.to(ids.dtype)),
        weights=None if held is None or weights is None else _joined(held, order.ids, weights),
        lengths=_joined(own, order.rows, lengths.to(own.dtype)),
        stride=features.stride(),
        length_per_key=None if order.numels is None else [*order.numels, values.numel()],
    )


class _Order(NamedTuple):
    """Keys in another order, and where their ids and rows lie."""

    keys: list[str]
    numels: list[int] | None
    """The ids of each key, where somebody knows them."""
    numel: int
    """The ids of those that are last, or of all."""
    ids: list[slice]
    rows: list[slice]

    @classmethod
    def of(cls, features: KeyedJaggedTensor, last: Collection[str]) -> _Order:
        """The keys that are last behind the others, each in its order."""
        keys = features.keys()
        if not last:
            known, all_ids = features.length_per_key_or_none(), features.values().numel()
            return cls(keys, known, all_ids, [slice(None)], [slice(None)])
        numels, stride = features.length_per_key(), features.stride()
        runs: tuple[list[range], list[range]] = ([], [])
        stop = 0
        for is_last, run in groupby(keys, frozenset(last).__contains__):
            start, stop = stop, stop + len([*run])
            runs[is_last].append(range(start, stop))
        ends = [0, *accumulate(numels)]
        places = [place for run in chain(*runs) for place in run]
        return cls(
            [keys[place] for place in places],
            [numels[place] for place in places],
            sum(numels[place] for run in runs[1] for place in run),
            [slice(ends[run.start], ends[run.stop]) for run in chain(*runs)],
            [slice(run.start * stride, run.stop * stride) for run in chain(*runs)],
        )


def _joined(whole: Tensor, spans: Sequence[slice], more: Tensor) -> Tensor:
    """Spans of one tensor end to end, and another tensor behind them. On the CPU torch's own cat
    wakes its threads; those belong to the model, and to wait for them costs more than they save."""
    if not (_is_numpys(whole) and _is_numpys(more)):
        return torch.cat((*(whole[span] for span in spans), more))
    numbers = whole.numpy()
    return torch.from_numpy(np.concatenate((*(numbers[span] for span in spans), more.numpy())))


def _is_numpys(part: Tensor) -> bool:
    """Whether numpy can have its memory."""
    plain = type(part) is Tensor and part.dtype in BY_NUMPY
    return plain and part.is_cpu and not part.requires_grad


BY_NUMPY = frozenset({torch.int32, torch.int64, torch.float32, torch.float64})


ATTRIBUTE = "hot_under"


def marked(features: KeyedJaggedTensor, hot_under: str | None) -> KeyedJaggedTensor:
    """The same features with this mark, or none; the KJT handed over does not change.

    The mark names the tier plan under which the batch is hot, for a plan may change while a batch
    is under way. It is on the KJTs, so it reaches modules that are handed a KJT alone. Moves and
    pinning keep it. What makes another KJT loses it, and the batch is then a normal one: slower,
    as right.
    """
    if mark_of(features) == hot_under:
        return features
    from recd_plugins.sparse.hot import hot_kind

    other = copy(features)
    other.__class__ = hot_kind(type(features), hot_under is not None)
    setattr(other, ATTRIBUTE, hot_under)
    return other


def mark_of(features: KeyedJaggedTensor) -> str | None:
    """The version of the tier plan under which every rank's ids are replicated, if they are."""
    mark: str | None = getattr(features, ATTRIBUTE, None)
    return mark
