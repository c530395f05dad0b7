"""Rung 1 to 3 (values, worker processes): the local reader with `dedup` and `preprocess` set."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recd_dedup.dedup.converters import Exact, Partial
from recd_dsi.transforms import Clamp, FirstX, SigridHash
from recd_plugins.data.columns import Columns
from recd_plugins.data.preprocess.batch_transform import BatchTransform
from recd_plugins.data.reader.local_reader import LocalReaderConfig, build_local_reader
from recd_plugins.data.schema import Schema, SparseFeature
from recd_plugins.data.table import Table
from recd_plugins.data.table_writer import TableWriter
from recd_plugins.errors import PluginError
from recd_plugins.slots import Context
from recd_plugins.testing.batches import to_lists
from recd_plugins.testing.resume import assert_same_batch, check_resume

SESSIONS, SAMPLES, IDS = 64, 8, 5
BATCH_SIZE = 32
SCHEMA = Schema(
    sparse=(
        SparseFeature(name="item", num_ids=10_000),
        SparseFeature(name="history", num_ids=10_000, kind="user", sequence=True),
        SparseFeature(name="times", num_ids=10_000, kind="user", sequence=True),
    )
)
STEPS = [
    (["item", "history"], SigridHash(97)),
    (["history", "times"], FirstX(3)),
    (["times"], Clamp(0, 2000)),
]


GROUPS = (("history", "times"),)
EXACT, PARTIAL = Exact(GROUPS, validate=True), Partial(GROUPS, validate=True)


def write(folder: Path, order: np.ndarray) -> Table:
    """Samples of SESSIONS sessions in this order; user features are those of the session."""
    session, sample = order // SAMPLES, order % SAMPLES
    ids = session[:, None] * IDS + np.arange(IDS)
    with TableWriter(folder, SCHEMA, rows_per_stripe=128) as writer:
        writer.write(
            pa.table(
                {
                    "session_id": session,
                    "timestamp": sample * SESSIONS + session,
                    "label": np.zeros(len(order)),
                    "item": order[:, None].tolist(),
                    "history": ids.tolist(),
                    "times": (ids + 1000).tolist(),
                }
            )
        )
    return Table.open(folder)


@pytest.fixture(scope="module")
def clustered(tmp_path_factory) -> Table:
    rows = np.arange(SESSIONS * SAMPLES)
    return write(tmp_path_factory.mktemp("data") / "clustered", rows)


@pytest.fixture(scope="module")
def by_time(tmp_path_factory) -> Table:
    rows = np.arange(SESSIONS * SAMPLES).reshape(SESSIONS, SAMPLES).T.ravel()
    return write(tmp_path_factory.mktemp("data") / "by_time", rows)


def open_loader(table, transform, batch_size=BATCH_SIZE, **options):
    reader = build_local_reader(LocalReaderConfig(**options), Context())
    return reader.loader(
        table, rank=0, world_size=1, batch_size=batch_size, split="train", transform=transform
    )


def factors(table: Table, **options) -> list[float]:
    """DedupeFactor of each batch."""
    loader = open_loader(table, BatchTransform([], EXACT), **options)
    return [batch.dedup.dedupe_factor() for batch in loader]


def test_dedup_holds_what_repeats_and_features_the_rest(clustered):
    loader = open_loader(clustered, BatchTransform([], EXACT), sessions="whole")
    for batch in loader:
        assert batch.features.keys() == ["item"]
        assert batch.dedup.groups == GROUPS
        assert batch.dedup.inverse_lookup.shape == (1, BATCH_SIZE)


@pytest.mark.parametrize("steps", [[], STEPS])
@pytest.mark.parametrize("converter", [EXACT, PARTIAL], ids=["exact", "partial"])
def test_batches_hold_what_they_hold_without_dedup(clustered, converter, steps):
    plain = open_loader(clustered, BatchTransform(steps), sessions="whole")
    deduped = open_loader(clustered, BatchTransform(steps, converter), sessions="whole")
    for expected, found in zip(plain, deduped, strict=True):
        lists = to_lists(found.features) | to_lists(found.dedup.to_kjt())
        assert lists == to_lists(expected.features)
        assert torch.equal(expected.labels, found.labels)
        assert torch.equal(expected.weights, found.weights)


BORDERS = [
    {"sessions": "whole"},
    {"sessions": "together", "window": 3},
    {"shuffle": False},
    {"streams": 2},
    {"streams": 4, "window": 1, "tail": "pad"},
    {"window": 0, "prefetch": False},
]
"""Windows of 128, 256 or 384 rows, and parts of a batch from one to four of them."""


@pytest.mark.parametrize("options", BORDERS, ids=str)
@pytest.mark.parametrize("groups", [GROUPS, (("times",), ("item", "history"))], ids=["one", "all"])
@pytest.mark.parametrize("batch_size", [BATCH_SIZE, 44])
def test_what_is_not_joined_is_what_comes_of_joining_it_first(
    clustered, by_time, options, groups, batch_size
):
    """Bit by bit, whatever windows a batch has its samples from."""
    exact = BatchTransform([], Exact(groups))
    for table in (clustered, by_time):
        plain = open_loader(table, None, batch_size=batch_size, **options)
        separate = open_loader(table, exact, batch_size=batch_size, **options)
        for batch, found in zip(plain, separate, strict=True):
            assert_same_batch(exact(batch), found)


def test_clustering_and_whole_sessions_raise_the_dedupe_factor(clustered, by_time):
    """B = 32 samples of sessions of S = 8, unchanged within (d = 1).

    By time, a batch has each session once: factor 1. Clustered, whole sessions give S, and
    sessions in a row, at most two of them cut, B / (B / S + 1).
    """
    assert set(factors(by_time, shuffle=False)) == {1.0}
    whole, together = factors(clustered, sessions="whole"), factors(clustered, sessions="together")
    split, timed = factors(clustered, sessions="split"), factors(by_time, sessions="whole")
    assert set(whole) == {SAMPLES}
    assert min(together) >= BATCH_SIZE / (BATCH_SIZE / SAMPLES + 1)
    assert max(split) < min(together)
    assert max(timed) < min(together)


def test_whole_sessions_meet_the_papers_factor(tmp_path):
    """DedupeFactor = 1 / (1 - (S - 1) / S * d), d of the feature's rows unchanged in a session."""
    draw, d = np.random.default_rng(0), 0.5
    changed = draw.random((SESSIONS, SAMPLES)) >= d
    changed[:, 0] = True
    version = changed.cumsum()
    with TableWriter(tmp_path / "table", SCHEMA) as writer:
        writer.write(
            pa.table(
                {
                    "session_id": np.arange(len(version)) // SAMPLES,
                    "timestamp": np.arange(len(version)),
                    "label": np.zeros(len(version)),
                    **{name: version[:, None].tolist() for name in SCHEMA.sparse_names},
                }
            )
        )
    found = np.array(factors(Table.open(tmp_path / "table"), sessions="whole"))
    measured = 1 / np.mean(1 / found)  # samples over unique samples, of all batches together
    assert measured == SESSIONS * SAMPLES / changed.sum()
    assert measured == pytest.approx(1 / (1 - (SAMPLES - 1) / SAMPLES * d), rel=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("converter", [EXACT, PARTIAL], ids=["exact", "partial"])
@pytest.mark.parametrize("streams", [1, 2])
def test_resuming_is_exact(clustered, converter, streams):
    """With two streams a batch has parts from two windows, and resumes amid both."""
    transform = BatchTransform(STEPS, converter)
    check_resume(lambda: open_loader(clustered, transform, sessions="whole", streams=streams))


@pytest.mark.ranks
def test_a_worker_sends_and_resumes_deduplicated_batches(clustered):
    transform = BatchTransform(STEPS, EXACT)

    def loader():
        return open_loader(clustered, transform, sessions="whole", workers=1)

    batches, states = [], []
    first = loader()
    for batch in first:
        batches.append(batch)
        states.append(first.state_dict())
    resumed = loader()
    resumed.load_state_dict(states[4])
    for expected, found in zip(batches[5:], resumed, strict=True):
        assert_same_batch(expected, found)
    assert {batch.dedup.dedupe_factor() for batch in batches} == {SAMPLES}


@dataclass(frozen=True)
class Aside:
    """A converter of somebody else's, with a class of its own."""

    groups = GROUPS

    def convert(self, features: Columns) -> Aside:
        return self


def test_what_dedup_hides_cannot_be_transformed(clustered):
    transform = BatchTransform(STEPS, Aside())
    with pytest.raises(PluginError, match="SigridHash is for history, which dedup put into a Asid"):
        next(iter(open_loader(clustered, transform)))
    batch = next(iter(open_loader(clustered, BatchTransform([(["item"], FirstX(0))], Aside()))))
    assert to_lists(batch.features) == {"item": [[]] * BATCH_SIZE}


class Shuffled:
    """Depends on other rows, and says so."""

    row_wise = False

    def __call__(self, features: KeyedJaggedTensor) -> KeyedJaggedTensor:
        return features

    def schema(self, schema: Schema) -> Schema:
        return schema


@pytest.mark.parametrize("workers", [0, 1])
def test_a_transform_of_more_than_a_row_is_refused_where_deduplicated(clustered, workers):
    refused = BatchTransform([(["history", "item"], Shuffled())], EXACT)
    with pytest.raises(PluginError, match=r"Shuffled says `row_wise = False`.* of history"):
        next(iter(open_loader(clustered, refused, workers=workers)))
    allowed = BatchTransform([(["item"], Shuffled())], EXACT)
    assert len(next(iter(open_loader(clustered, allowed, workers=workers)))) == BATCH_SIZE
