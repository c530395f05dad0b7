"""Generated sessions: the raw table of a recommender's log, in the order of time.

Samples of one session share feature values and are scattered among those of other sessions, as in a
log. Test sessions start after the last train session has started; no session is in both splits.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Annotated, NamedTuple

import numpy as np
import pyarrow as pa

from recd_dlrm.datasets.draws import salt, streams, uniforms
from recd_dlrm.datasets.flat_columns import F64, I64, band_begins, id_lists
from recd_dlrm.datasets.sessions.feature_draws import FeatureConfig, FeatureDraws, change_rates
from recd_dlrm.datasets.sessions.label import LabelConfig, LabelModel, sigmoid
from recd_dlrm.datasets.sessions.laws import CountLaw, Scatter
from recd_dlrm.datasets.sessions.stream import SessionStream, Slice
from recd_plugins.api import Config, Context, Range, RegistryError
from recd_plugins.api.data import Dataset, Schema, Split

__all__ = ["RowsAndTerms", "Sessions", "SessionsConfig", "build_sessions", "default_features"]

FIRST_SESSION: dict[Split, int] = {"train": 0, "test": 1 << 40}
"""The number of the first session of each split, so far apart that the splits share none."""
PILOT_SESSION = 1 << 41
PILOT_SAMPLES = 1 << 15
EPOCH_MS = 1_700_000_000_000


def default_features() -> tuple[FeatureConfig, ...]:
    """A small feed: who looks, what they did recently, and what is shown."""
    return (
        FeatureConfig(name="user_id", kind="user", num_ids=20_000, stay=1.0),
        FeatureConfig(name="user_region", kind="user", num_ids=200, stay=0.99),
        FeatureConfig(name="user_device", kind="user", num_ids=50, stay=0.97),
        FeatureConfig(
            name="user_topics", kind="user", num_ids=1_000, stay=0.95, length=5, group="profile"
        ),
        FeatureConfig(
            name="user_brands", kind="user", num_ids=5_000, stay=0.95, length=5, group="profile"
        ),
        FeatureConfig(
            name="history",
            kind="user",
            num_ids=100_000,
            table="items",
            sequence=True,
            shift=True,
            stay=0.9,
            group="history",
            length=20,
        ),
        FeatureConfig(
            name="history_category",
            kind="user",
            num_ids=500,
            table="categories",
            sequence=True,
            shift=True,
            stay=0.9,
            group="history",
            length=20,
        ),
        FeatureConfig(name="item", kind="item", num_ids=100_000, table="items", group="item"),
        FeatureConfig(
            name="item_category", kind="item", num_ids=500, table="categories", group="item"
        ),
        FeatureConfig(name="item_seller", kind="item", num_ids=5_000, stay=0.1),
    )


@dataclass(frozen=True, kw_only=True)
class SessionsConfig(Config):
    """The `sessions` dataset."""

    samples: Annotated[int, Range(ge=1)] = 200_000
    """The number of rows of the train split."""
    test_fraction: Annotated[float, Range(gt=0, lt=1)] = 0.1
    """The rows of the test split, as a share of `samples`. They are those of later sessions."""
    samples_per_session: Annotated[float, Range(ge=1)] = 16.5
    """S, the mean number of samples of a session. Sizes are lognormal and rounded up."""
    session_sigma: Annotated[float, Range(gt=0, le=4)] = 1.5
    """The standard deviation of the logarithm of the sizes: a higher one makes more very long
    sessions."""
    max_samples_per_session: Annotated[int, Range(ge=1, le=1_000_000)] = 10_000
    """The largest size of a session. The mean stays as `samples_per_session` says."""
    concurrent_sessions: Annotated[int, Range(ge=1)] = 40_000
    """The number of sessions that are open at once. The more there are, the fewer samples of one
    session are in a batch."""
    session_minutes: Annotated[float, Range(ge=0.001, le=1e6)] = 30.0
    """The mean duration of a session, in minutes."""
    features: tuple[FeatureConfig, ...] = field(default_factory=default_features)
    """The sparse features."""
    dense: Annotated[int, Range(ge=0, le=100_000)] = 8
    """The number of dense features, dense_0, dense_1, ...; their values are normal and new in each
    sample."""
    label: LabelConfig = field(default_factory=LabelConfig)
    """The hidden model that draws the label."""
    seed: Annotated[int, Range(ge=0)] = 0
    """The seed of the rows; `train.seed` does not change it. The same seed yields the same rows."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.samples_per_session > self.max_samples_per_session:
            raise RegistryError(
                f"is {self.samples_per_session:g}, above max_samples_per_session "
                f"({self.max_samples_per_session}): lower it, or raise the other.",
                where="samples_per_session",
            )
        stay: dict[str, FeatureConfig] = {}
        for feature in self.features:
            first = stay.setdefault(feature.group_name, feature)
            if first.stay != feature.stay:
                raise RegistryError(
                    f"{first.name!r} and {feature.name!r} change together ({first.group_name}), "
                    f"but stay with {first.stay:g} and {feature.stay:g}: give them one value.",
                    where="features",
                )
        try:
            _ = self.schema
        except RegistryError as error:  # a column named twice
            raise RegistryError(error.message, where="features") from None

    def idle_options(self) -> Mapping[str, str]:
        kinds = {feature.kind for feature in self.features if not feature.sequence}
        histories = any(feature.sequence for feature in self.features)
        there = {
            "dense": (self.dense > 0, "dense feature"),
            "ids": (bool(kinds), "feature that is no sequence"),
            "affinity": (len(kinds) == 2, "feature of users beside one of items"),
            "history": (histories and "item" in kinds, "sequence beside a feature of items"),
        }
        return {
            f"label.{term}": f"there is no {there[term][1]} that a label could depend on"
            for term in self.label.set_among(*there)
            if not there[term][0]
        }

    @property
    def dense_names(self) -> tuple[str, ...]:
        return tuple(f"dense_{j}" for j in range(self.dense))

    @property
    def schema(self) -> Schema:
        return Schema(
            dense=self.dense_names, sparse=tuple(feature.schema for feature in self.features)
        )


class RowsAndTerms(NamedTuple):
    """Rows, and the hidden terms behind their labels."""

    rows: pa.Table
    terms: Mapping[str, F64]
    """[N] per term of the logit: bias, dense, ids, affinity, history. Their sum is the true logit,
    which the best possible model would predict."""


class Sessions(Dataset):
    """`chunk_rows` is about how many rows are made at a time; the rows do not depend on it."""

    def __init__(self, config: SessionsConfig, *, chunk_rows: int = 32_768) -> None:
        self.config = config
        self._chunk_rows = chunk_rows

    @cached_property
    def schema(self) -> Schema:
        return self.config.schema

    def num_rows(self, split: Split) -> int:
        samples = self.config.samples
        return samples if split == "train" else max(1, round(samples * self.config.test_fraction))

    def fingerprint(self) -> str:
        return "sessions 1"  # raise this when the same config gives different rows

    def chunks(self, split: Split) -> Iterator[pa.Table]:
        return (part.rows for part in self.rows_and_terms(split))

    def rows_and_terms(self, split: Split) -> Iterator[RowsAndTerms]:
        """The same chunks with the true logits, for judging a model."""
        start = EPOCH_MS
        if split == "test":
            start += int(self.num_rows("train") / self._stream.samples_per_ms)
        slices = self._stream.slices(
            first=FIRST_SESSION[split],
            samples=self.num_rows(split),
            start_ms=start,
            rows=self._chunk_rows,
        )
        return map(self._rows_and_terms, slices)

    @cached_property
    def _features(self) -> dict[str, FeatureDraws]:
        return {f.name: FeatureDraws(f, self.config.seed) for f in self.config.features}

    @cached_property
    def _stream(self) -> SessionStream:
        config = self.config
        return SessionStream(
            seed=config.seed,
            sizes=CountLaw.lognormal(
                config.samples_per_session, config.session_sigma, config.max_samples_per_session
            ),
            concurrent_sessions=config.concurrent_sessions,
            duration_ms=config.session_minutes * 60_000,
            change_rates=change_rates(self._features),
        )

    @cached_property
    def _session_ids(self) -> Scatter:
        return Scatter(1 << 62, int(salt(self.config.seed, "session_id")))

    @cached_property
    def _label(self) -> LabelModel:
        config = self.config
        return _calibrated(config.label, config.features, config.dense, config.seed)

    def _rows_and_terms(self, part: Slice) -> RowsAndTerms:
        columns, weights, dense = self._draw(part, self._label)
        terms = self._label.terms(weights, dense)
        chance = sigmoid(np.sum(list(terms.values()), axis=0))
        draws = uniforms(streams(salt(self.config.seed, "label"), part.sessions), part.steps)
        rows = {
            "session_id": self._session_ids.id_of(part.sessions.view(np.int64)),
            "timestamp": part.timestamps,
            "label": (draws < chance).astype(np.float32),
            **dict(zip(self.config.dense_names, dense.astype(np.float32), strict=True)),
            **columns,
        }
        order = np.argsort(part.timestamps, kind="stable")  # ties: by session, then step
        table = pa.table(rows, schema=self.schema.arrow()).take(order)
        return RowsAndTerms(table, {name: term[order] for name, term in terms.items()})

    def _draw(
        self, part: Slice, label: LabelModel
    ) -> tuple[dict[str, pa.Array], dict[str, F64], F64]:
        """Sparse columns, their hidden weights [N] and the dense values [n_dense, N]."""
        columns: dict[str, pa.Array] = {}
        weights: dict[str, F64] = {}
        values = {name: _distinct(part, versions) for name, versions in part.versions.items()}
        for name, feature in self._features.items():
            versions = part.versions[feature.config.group_name]
            firsts, inverse = values[feature.config.group_name]
            ids, offsets = feature.lists(part.sessions[firsts], versions[firsts])
            columns[name] = id_lists(ids, offsets).take(pa.array(inverse))
            weights[name] = label.weights(name, ids, offsets)[inverse]
        return columns, weights, self._dense(part)

    def _dense(self, part: Slice) -> F64:
        """Standard normal values [n_dense, N], by Box and Muller's transform."""
        draws = streams(salt(self.config.seed, "dense"), part.sessions)
        pairs = (self.config.dense + 1) // 2
        values = np.empty((2 * pairs, part.steps.size))
        for pair in range(pairs):
            counters = 2 * (part.steps * pairs + pair)
            radius = np.sqrt(-2 * np.log1p(-uniforms(draws, counters)))
            angle = 2 * np.pi * uniforms(draws, counters + 1)
            values[2 * pair] = radius * np.cos(angle)
            values[2 * pair + 1] = radius * np.sin(angle)
        return values[: self.config.dense]

    def calibrated(self) -> LabelModel:
        """The label's model, calibrated to pilot samples that are drawn like all others."""
        config = self.config
        label = LabelModel(config.label, config.features, config.dense, config.seed)
        pilot = self._pilot()
        lists = (
            (name, *feature.lists(pilot.sessions, pilot.steps))
            for name, feature in self._features.items()
        )
        weights = {name: label.weights(name, ids, offsets) for name, ids, offsets in lists}
        label.calibrate(weights, self._dense(pilot))
        return label

    def _pilot(self) -> Slice:
        """Independent first samples."""
        zeros = np.zeros(PILOT_SAMPLES, np.int64)
        return Slice(
            sessions=np.arange(PILOT_SESSION, PILOT_SESSION + PILOT_SAMPLES, dtype=np.uint64),
            steps=zeros,
            timestamps=zeros,
            versions={},  # all are 0
        )


@lru_cache(maxsize=32)
def _calibrated(
    label: LabelConfig, features: tuple[FeatureConfig, ...], dense: int, seed: int
) -> LabelModel:
    """The calibrated model, made once for all datasets that agree in these arguments: the pilot
    takes longer to draw than a thousand rows."""
    config = SessionsConfig(label=label, features=features, dense=dense, seed=seed)
    return Sessions(config).calibrated()


def _distinct(part: Slice, versions: I64) -> tuple[I64, I64]:
    """The first row of each (session, version), and each row's index among them."""
    begins = band_begins(part.sessions, versions)
    return np.flatnonzero(begins), begins.cumsum() - 1


def build_sessions(config: SessionsConfig, context: Context) -> Sessions:
    return Sessions(config)
