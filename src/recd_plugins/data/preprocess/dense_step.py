"""A transform of dense columns, as a step on a batch."""

from __future__ import annotations

from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recd_plugins.data.preprocess.steps import Step
from recd_plugins.data.schema import Schema
from recd_plugins.errors import PluginError, naming, so_many
from recd_plugins.sparse.jagged import WeightedJagged

__all__ = ["DenseStep"]

CURE = "Let it return what its `schema` says, or have its `schema` say what it returns."


class DenseStep:
    """Takes [B, n_dense] and the features before the transform, and returns those after it."""

    def __init__(self, step: Step) -> None:
        self._transform = step.transform
        self.who = step.who
        """What opens its messages."""
        self.name = step.label
        before, after, made = step.before, step.after(), step.made_of_dense()
        self._made, self._part = made, step.dense_part
        self._taken = torch.tensor(
            [place for name in step.takes for place in _places(before)[name]],
            dtype=torch.int64,
            device="cpu",
        )
        behind = {name: [before.dense_width + n for n in at] for name, at in _places(made).items()}
        places = {**_places(before), **behind}
        order = [place for name in after.dense for place in places[name]]
        self._order = torch.tensor(order, dtype=torch.int64, device="cpu")
        self._names = made.sparse_names

    def __call__(
        self, dense: Tensor, features: KeyedJaggedTensor
    ) -> tuple[Tensor, KeyedJaggedTensor]:
        transform: Any = self._transform
        with naming(self.who, "when it was given dense columns", also_data=True):
            result = transform(dense[:, self._taken], self._part)
        columns, made = self._parts(result, len(dense))
        whole = dense if columns is None else torch.cat((dense, columns), dim=1)
        return whole[:, self._order], features if made is None else _joined(features, made)

    def _parts(self, result: Any, num_rows: int) -> tuple[Tensor | None, KeyedJaggedTensor | None]:
        """The result's parts, checked to be what `schema` says: dense columns, features, or a pair
        of both."""
        both = bool(self._made.dense and self._made.sparse)
        pair = result if both else (result, None) if self._made.dense else (None, result)
        columns, made = pair if isinstance(pair, tuple) and len(pair) == 2 else (None, None)
        width = self._made.dense_width
        if self._made.dense and not (
            isinstance(columns, Tensor)
            and columns.shape == (num_rows, width)
            and columns.dtype == torch.float32
        ):
            raise PluginError(
                f"{self.who} made {_shape(result)}, but its `schema` says dense columns "
                f"[{num_rows}, {width}] float32"
                + (", and features. Let it return a pair of both." if both else f". {CURE}")
            )
        if self._made.sparse and not (
            isinstance(made, KeyedJaggedTensor)
            and made.keys() == list(self._names)
            and made.stride() == num_rows
        ):
            raise PluginError(
                f"{self.who} made {_shape(result)}, but its `schema` says a KeyedJaggedTensor of "
                f"{', '.join(self._names)} with {so_many(num_rows, 'row')}"
                + (", behind dense columns. Let it return a pair of both." if both else f". {CURE}")
            )
        return columns, made


def _places(schema: Schema) -> dict[str, range]:
    """The places of each dense column's floats in [B, n_dense]."""
    widths = [schema.width(name) or 1 for name in schema.dense]
    ends = list(accumulate(widths, initial=0))
    return {name: range(*at) for name, at in zip(schema.dense, pairwise(ends), strict=True)}


def _shape(result: Any) -> str:
    if isinstance(result, Tensor):
        return f"a tensor {list(result.shape)} {result.dtype}"
    if isinstance(result, KeyedJaggedTensor):
        rows = so_many(result.stride(), "row")
        return f"a KeyedJaggedTensor of {', '.join(result.keys())} with {rows}"
    return f"a {type(result).__name__}"


def _joined(features: KeyedJaggedTensor, more: KeyedJaggedTensor) -> KeyedJaggedTensor:
    rows = WeightedJagged.joined([WeightedJagged.of(features), WeightedJagged.of(more)])
    return KeyedJaggedTensor(
        keys=[*features.keys(), *more.keys()],
        values=rows.values,
        lengths=rows.lengths,
        weights=rows.weights,
        stride=more.stride(),
    )
