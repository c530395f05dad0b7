"""Transforms of dense columns: floats to floats, or to ids.

Transforms with a logarithm compute in float64, and round to float32 once, at the end.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from recd_plugins.api import Config, Context, Range, RegistryError
from recd_plugins.api.data import Schema, SparseFeature, Vector
from recd_plugins.api.rows import kernel

if TYPE_CHECKING:
    from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

__all__ = [
    "BoxCox",
    "BoxCoxConfig",
    "Bucketize",
    "BucketizeConfig",
    "ClampDense",
    "ClampDenseConfig",
    "Logit",
    "LogitConfig",
    "Onehot",
    "OnehotConfig",
    "build_box_cox",
    "build_bucketize",
    "build_clamp_dense",
    "build_logit",
    "build_onehot",
]

LARGEST = float(np.finfo(np.float32).max)
"""The largest number that a dense column can hold."""


@dataclass(frozen=True, kw_only=True)
class DenseConfig(Config):
    """The column that the result goes to."""

    suffix: str = ""
    """What is added to the column's name for the result, and the column stays. By default the
    result takes the column's place."""


class Dense(nn.Module, ABC):
    """Dense columns -> `width` floats for each of their floats, in their place or beside them."""

    dense = True
    width = 1

    def __init__(self, suffix: str = "") -> None:
        super().__init__()
        self.suffix = suffix

    @abstractmethod
    def made(self, columns: Tensor) -> Tensor:
        """[B, W] float32 to [B, W * width] float32."""

    def forward(self, columns: Tensor, schema: Schema) -> Tensor:
        made = self.made(columns)
        return torch.cat((columns, made), dim=1) if self.suffix else made

    def schema(self, schema: Schema) -> Schema:
        vectors, names = [], []
        for name in schema.dense:
            names.append(name + self.suffix)
            width = schema.width(name)
            if width is not None or self.width > 1:
                vectors.append(Vector(name=names[-1], width=(width or 1) * self.width))
        if not self.suffix:
            return dataclasses.replace(schema, vectors=tuple(vectors))
        return dataclasses.replace(
            schema, dense=(*schema.dense, *names), vectors=(*schema.vectors, *vectors)
        )


@dataclass(frozen=True, kw_only=True)
class LogitConfig(DenseConfig):
    """The distance that values keep from 0 and from 1."""

    eps: Annotated[float, Range(gt=0, lt=0.5)] = 1e-6
    """The distance that values keep from 0 and from 1: they are cut to [eps, 1 - eps]."""


class Logit(Dense):
    """x -> log(p / (1 - p)), p = min(max(x, eps), 1 - eps)."""

    def __init__(self, eps: float, suffix: str) -> None:
        super().__init__(suffix)
        self.eps = eps

    def made(self, columns: Tensor) -> Tensor:
        return columns.double().logit_(self.eps).float()


def build_logit(config: LogitConfig, context: Context) -> Logit:
    """The record's build."""
    return Logit(config.eps, config.suffix)


@dataclass(frozen=True, kw_only=True)
class BoxCoxConfig(DenseConfig):
    """The member of the family of powers."""

    lam: Annotated[float, Range(ge=-10, le=10)] = 0.0
    """Lambda, the exponent; 0 is the logarithm."""
    shift: float = 0.0
    """The number that is added to a value first."""
    least: Annotated[float, Range(gt=0)] = 1e-6
    """The least sum: smaller ones become this, since a negative number has no such power."""


class BoxCox(Dense):
    """x -> (s^lam - 1) / lam, or log(s) where lam is 0; s = max(x + shift, least)."""

    def __init__(self, lam: float, shift: float, least: float, suffix: str) -> None:
        super().__init__(suffix)
        self.lam, self.shift, self.least = lam, shift, least

    def made(self, columns: Tensor) -> Tensor:
        logs = columns.double().add_(self.shift).clamp_(min=self.least).log_()
        if self.lam:
            logs = logs.mul_(self.lam).expm1_().div_(self.lam)
        return logs.float()


def build_box_cox(config: BoxCoxConfig, context: Context) -> BoxCox:
    """The record's build."""
    return BoxCox(config.lam, config.shift, config.least, config.suffix)


@dataclass(frozen=True, kw_only=True)
class OnehotConfig(DenseConfig):
    """The number of kinds."""

    n: Annotated[int, Range(ge=1, le=65_536)]
    """The number of kinds, which are the numbers 0, 1, ..., n - 1."""


class Onehot(Dense):
    """x -> [1 if x = i, else 0, for i in 0, ..., n - 1]; only zeros for any other number."""

    def __init__(self, n: int, suffix: str) -> None:
        super().__init__(suffix)
        self.width = n

    def made(self, columns: Tensor) -> Tensor:
        kinds = torch.arange(self.width, dtype=columns.dtype, device=columns.device)
        return (columns[:, :, None] == kinds).to(columns.dtype).flatten(1)


def build_onehot(config: OnehotConfig, context: Context) -> Onehot:
    """The record's build."""
    return Onehot(config.n, config.suffix)


@dataclass(frozen=True, kw_only=True)
class ClampDenseConfig(DenseConfig):
    """The range, its ends in it."""

    low: Annotated[float, Range(ge=-LARGEST, le=LARGEST)] | None = None
    """Smaller numbers become this one; by default there is no such bound."""
    high: Annotated[float, Range(ge=-LARGEST, le=LARGEST)] | None = None
    """Larger numbers become this one; by default there is no such bound."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.low is None and self.high is None:
            raise RegistryError("needs `low`, `high` or both.", "low")
        if self.low is not None and self.high is not None and self.low > self.high:
            raise RegistryError(f"must be at least low ({self.low}), but is {self.high}.", "high")


class ClampDense(Dense):
    """x -> min(max(x, low), high)."""

    def __init__(self, low: float | None, high: float | None, suffix: str) -> None:
        super().__init__(suffix)
        self.low, self.high = low, high

    def made(self, columns: Tensor) -> Tensor:
        return columns.clamp(self.low, self.high)


def build_clamp_dense(config: ClampDenseConfig, context: Context) -> ClampDense:
    """The record's build."""
    return ClampDense(config.low, config.high, config.suffix)


@dataclass(frozen=True, kw_only=True)
class BucketizeConfig(Config):
    """The borders where buckets end."""

    borders: tuple[float, ...]
    """The last number of each bucket, except of the last bucket; ascending."""
    suffix: str = "_bucket"
    """What is added to the column's name for the feature's name."""
    keep: bool = True
    """Whether the columns stay beside the features."""

    def __post_init__(self) -> None:
        super().__post_init__()
        as_floats = torch.tensor(self.borders, device="cpu")
        if not self.borders or not bool((as_floats[1:] > as_floats[:-1]).all()):
            raise RegistryError(
                f"must be numbers that ascend as float32, but is {list(self.borders)}.", "borders"
            )


Floats = npt.NDArray[np.float32]
CELLS = 8
"""Grid cells per border: few cells hold several borders, so few numbers need a search."""


def _grid(borders: Floats) -> tuple[np.float64, np.float64, npt.NDArray[np.int64]]:
    """A grid over the borders: where it begins, how many cells lie in a range of 1, and how many
    borders lie before each cell.

    A number's cell never falls as the number grows. So borders in cells before a number's own are
    less than the number, whatever is rounded. A border beyond float32 is infinite, and lies in the
    first or the last cell.
    """
    finite = borders[np.isfinite(borders)]
    if len(finite) < 2:
        return np.float64(0), np.float64(0), np.array([0, len(borders)])
    low, high = (np.float64(one) for one in (finite[0], finite[-1]))
    count = CELLS * len(borders)
    scale = np.float64(count / (high - low))
    cells = np.clip((borders - low) * scale, 0, count - 1).astype(np.int64)
    return low, scale, np.searchsorted(cells, np.arange(count + 1))


@kernel
def _buckets(
    numbers: Floats,
    borders: Floats,
    low: np.float64,
    scale: np.float64,
    before: npt.NDArray[np.int64],
    out: npt.NDArray[np.int64],
) -> None:
    last = len(before) - 2
    for i in range(len(numbers)):
        x = numbers[i]
        at = (np.float64(x) - low) * scale
        # Numbers beyond the grid, and what is not one, go to the last cell.
        cell = last if not at < last + 1 else int(at) if at > 0 else 0
        k, end = before[cell], before[cell + 1]
        while end - k > 8:  # borders that crowd in one cell
            middle = (k + end) // 2
            if borders[middle] >= x:
                end = middle
            else:
                k = middle + 1
        while k < end and not borders[k] >= x:
            k += 1
        out[i] = k


class Bucketize(nn.Module):
    """A column of floats x -> a feature of ids: the number of borders that are less than x.

    With n borders, ids are 0, ..., n; a bucket includes its upper border. A vector becomes a list
    of as many ids. Borders are float32, like the columns.
    """

    dense = True

    def __init__(
        self, borders: tuple[float, ...], suffix: str = "_bucket", keep: bool = True
    ) -> None:
        super().__init__()
        self.borders = torch.tensor(borders, device="cpu")
        self.suffix, self.keep = suffix, keep
        self._cells = _grid(self.borders.numpy())

    def buckets(self, columns: Tensor, borders: Tensor) -> Tensor:
        """[B, W] int64 the bucket of each number; NaN is in the last one."""
        if not columns.is_cpu:
            return torch.bucketize(columns, borders)
        made = torch.empty(columns.shape, dtype=torch.int64, device="cpu")
        given = columns.contiguous().numpy().reshape(-1)
        _buckets(given, borders.numpy(), *self._cells, made.numpy().reshape(-1))
        return made

    def forward(
        self, columns: Tensor, schema: Schema
    ) -> KeyedJaggedTensor | tuple[Tensor, KeyedJaggedTensor]:
        from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

        borders = self.borders.to(columns.device)
        widths = [schema.width(name) or 1 for name in schema.dense]
        parts = self.buckets(columns, borders).split(widths, dim=1)
        lengths = torch.tensor(widths, dtype=torch.int32, device=columns.device)
        made = KeyedJaggedTensor(
            keys=[name + self.suffix for name in schema.dense],
            values=torch.cat([part.reshape(-1) for part in parts]),
            lengths=lengths.repeat_interleave(len(columns)),
            stride=len(columns),
        )
        return (columns, made) if self.keep else made

    def schema(self, schema: Schema) -> Schema:
        count = len(self.borders) + 1
        made = schema.add(
            SparseFeature(name=name + self.suffix, num_ids=count) for name in schema.dense
        )
        return made if self.keep else dataclasses.replace(made, dense=(), vectors=())

    def extra_repr(self) -> str:
        return f"{len(self.borders)} borders, suffix={self.suffix!r}"


def build_bucketize(config: BucketizeConfig, context: Context) -> Bucketize:
    """The record's build."""
    return Bucketize(config.borders, config.suffix, config.keep)
