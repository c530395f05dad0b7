"""The label of the generated sessions: a logistic model with one hidden weight per id.

Every id of a table has a hidden weight in [-1, 1), drawn from a hash, so no table of weights
exists. w(f) is the mean weight of a feature's ids, minus its mean over all samples. The logit is a
bias plus four terms, each scaled to the standard deviation given in the config:

    dense      sum of beta_j x_j
    ids        sum of w(f) over the features that are not sequences
    affinity   [sum of w(user features)] [sum of w(item features)]
    history    w(history) w(item), summed over histories and the items of their table

A history's ids and the item are drawn independently and their weights are centred: no single
feature shows anything of the history term, only the pair does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from recd_dlrm.datasets.draws import bits, salt, streams, uniforms
from recd_dlrm.datasets.flat_columns import F64, I64
from recd_dlrm.datasets.sessions.feature_draws import FeatureConfig
from recd_dlrm.datasets.sessions.laws import solve
from recd_plugins.api import Config, Range

__all__ = ["LabelConfig", "LabelModel", "sigmoid"]


@dataclass(frozen=True, kw_only=True)
class LabelConfig(Config):
    """The weight of each term: its standard deviation in the logit."""

    base_rate: Annotated[float, Range(gt=0, lt=1)] = 0.25
    """The share of samples with label 1."""
    dense: Annotated[float, Range(ge=0)] = 0.8
    """The weight of the dense features."""
    ids: Annotated[float, Range(ge=0)] = 1.0
    """The weight of each id by itself."""
    affinity: Annotated[float, Range(ge=0)] = 0.8
    """The weight of how features of the user and of the item fit together."""
    history: Annotated[float, Range(ge=0)] = 0.8
    """The weight of how histories and features of the item fit together."""


class LabelModel:
    """The hidden model of one seed, which must be calibrated before use."""

    def __init__(
        self, config: LabelConfig, features: Sequence[FeatureConfig], num_dense: int, seed: int
    ) -> None:
        self._config = config
        tables = {f.name: f.schema.table_name for f in features}
        self._salts = {name: salt(seed, f"hidden/{table}") for name, table in tables.items()}
        single = [f for f in features if not f.sequence]
        self._users = [f.name for f in single if f.kind == "user"]
        self._items = [f.name for f in single if f.kind == "item"]
        self._histories = {
            f.name: [i for i in self._items if tables[i] == tables[f.name]] or self._items
            for f in features
            if f.sequence
        }
        j = np.arange(num_dense)
        self._betas = 2 * uniforms(streams(salt(seed, "beta"), j), j) - 1
        self._means: dict[str, float] = {}
        self._scales: dict[str, float] = {}
        self._bias = 0.0

    def weights(self, feature: str, ids: I64, offsets: I64) -> F64:
        """The mean weight of each of N lists, 0 for an empty one; ids [L], offsets [N + 1]."""
        draws = bits(streams(self._salts[feature], ids), np.zeros_like(ids))
        sums = np.concatenate(([0], (draws >> np.uint64(43)).view(np.int64).cumsum()))
        lengths = np.diff(offsets)
        # Sums of integers are exact, so a list has the same weight whatever its neighbours.
        totals: F64 = (sums[offsets[1:]] - sums[offsets[:-1]]) / 2.0**20 - lengths
        return totals / np.maximum(lengths, 1)

    def calibrate(self, weights: Mapping[str, F64], dense: F64) -> None:
        """Fit means, scales and bias to a pilot of independent samples; dense [n_dense, N]."""
        self._means = {name: float(values.mean()) for name, values in weights.items()}
        for name, values in self._raw(weights, dense).items():
            deviation = float(values.std())
            says_something = deviation > 1e-9  # rounding alone causes a little deviation
            self._scales[name] = getattr(self._config, name) / deviation if says_something else 0.0
        logits = np.sum(list(self.terms(weights, dense).values()), axis=0)
        self._bias = solve(
            lambda bias: float(sigmoid(logits + bias).mean()), self._config.base_rate, -50, 50
        )

    def terms(self, weights: Mapping[str, F64], dense: F64) -> dict[str, F64]:
        """The terms that add up to the logits [N]: the bias and each term."""
        scaled = {
            name: values * self._scales[name] for name, values in self._raw(weights, dense).items()
        }
        return {"bias": np.full(dense.shape[1], self._bias), **scaled}

    def _raw(self, weights: Mapping[str, F64], dense: F64) -> dict[str, F64]:
        zeros = np.zeros(dense.shape[1])

        def total(names: Iterable[str]) -> F64:
            return sum((weights[name] - self._means[name] for name in names), start=zeros)

        users, items = total(self._users), total(self._items)
        pairs = (total([name]) * total(partners) for name, partners in self._histories.items())
        return {
            "dense": (self._betas[:, None] * dense).sum(axis=0),
            "ids": users + items,
            "affinity": users * items,
            "history": sum(pairs, start=zeros),
        }


def sigmoid(logits: F64) -> F64:
    return 1 / (1 + np.exp(-logits))
