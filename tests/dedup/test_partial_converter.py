"""Rung 1 to 3 (values, properties, the record's contract): `dedup: partial` on batches.

On shifted histories, generated and real, it keeps fewer values than `dedup: exact`.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest
import torch
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recd_dedup.dedup.advisor import advise
from recd_dedup.dedup.converters import Exact, GroupsConfig, Partial, build_partial
from recd_dlrm.datasets.movielens import MovieLens, MovieLensConfig
from recd_dlrm.datasets.sessions.dataset import Sessions, SessionsConfig
from recd_dlrm.datasets.yoochoose import Yoochoose, YoochooseConfig
from recd_plugins.config import parse
from recd_plugins.data.batch import Batch
from recd_plugins.data.columns import JoinedColumns
from recd_plugins.data.dataset import Dataset
from recd_plugins.data.preprocess.batch_transform import BatchTransform
from recd_plugins.errors import RegistryError
from recd_plugins.slots import Context, DedupRecord
from recd_plugins.sparse.arrow import jagged_from_arrow
from recd_plugins.sparse.partial import PartialInverseKeyedJaggedTensor
from recd_plugins.testing.batches import from_lists, to_lists
from recd_plugins.testing.conformance import check_record
from recd_plugins.testing.probe import SCHEMA

RECORD = DedupRecord(
    name="partial",
    summary="Equal and shifted samples share their values, as a partial IKJT.",
    config=GroupsConfig,
    build=build_partial,
)
GROUPS = (("history",),)


def batch_of(columns: dict[str, list[list[int]]]) -> Batch:
    features = from_lists(columns)
    rows = torch.zeros(features.stride())
    return Batch(dense=rows[:, None], features=features, labels=rows, weights=rows + 1)


def clustered(dataset: Dataset, batch_size: int = 512) -> Iterator[Batch]:
    """The train split's histories, by session and time."""
    rows = pa.concat_tables(list(dataset.chunks("train")))
    rows = rows.sort_by([("session_id", "ascending"), ("timestamp", "ascending")])
    for first in range(0, min(rows.num_rows, 32 * batch_size), batch_size):
        column = rows["history"].slice(first, batch_size)
        values, lengths = jagged_from_arrow(column, "history")
        features = KeyedJaggedTensor(keys=["history"], values=values, lengths=lengths)
        zeros = torch.zeros(features.stride())
        yield Batch(dense=zeros[:, None], features=features, labels=zeros, weights=zeros)


def saved(batches: Iterator[Batch]) -> tuple[float, float]:
    """DedupeFactor of exact and of partial; what partial made of a batch comes back as it was."""
    before, exact, partial = 0, 0, 0
    for batch in batches:
        columns = JoinedColumns(batch.features)
        found = Partial(GROUPS, validate=True).convert(columns)
        assert torch.equal(found.to_kjt().values(), batch.features.values())
        assert torch.equal(found.to_kjt().lengths(), batch.features.lengths())
        before += batch.features.values().numel()
        exact += Exact(GROUPS).convert(columns).kjt.values().numel()
        partial += found.values_kept()
    return before / exact, before / partial


def test_it_moves_the_features_of_its_groups() -> None:
    columns = {"b": [[3, 4, 5], [4, 5, 6], [3, 4, 5]], "item": [[1], [2], [3]], "c": [[], [7], []]}
    batch = batch_of(columns)
    found = BatchTransform([], Partial((("c",), ("b",))))(batch)
    assert to_lists(found.features) == {"item": columns["item"]}
    assert isinstance(found.dedup, PartialInverseKeyedJaggedTensor)
    assert found.dedup.groups == (("c",), ("b",))
    assert found.dedup.parts()["b"].values.tolist() == [3, 4, 5, 6]
    assert to_lists(found.dedup.to_kjt()) == {"c": columns["c"], "b": columns["b"]}
    for name in ("dense", "labels", "weights"):
        assert torch.equal(getattr(found, name), getattr(batch, name))


def test_without_groups_batches_stay_as_they_are() -> None:
    batch = batch_of({"a": [[1]]})
    done = BatchTransform([], Partial(()))(batch)
    assert done.features is batch.features
    assert done.dedup is None


@pytest.mark.parametrize("groups", [[["history"]], [["seen", "history"], ["item"]]])
def test_the_record_keeps_the_contract(groups: list[list[str]]) -> None:
    check_record(RECORD, options={"groups": groups, "validate": True})


def test_groups_are_checked_against_the_schema() -> None:
    config = parse(GroupsConfig, {"groups": [["histroy"]]}, "dedup")
    with pytest.raises(RegistryError, match="did you mean 'history'"):
        build_partial(config, Context(schema=SCHEMA))
    with pytest.raises(RegistryError, match="min_factor"):
        parse(GroupsConfig, {"min_factor": 0.5}, "dedup")


def test_groups_are_advised_for_the_training_table(tmp_path) -> None:
    config = SessionsConfig(samples=2_048, samples_per_session=16, concurrent_sessions=50)
    tables = Sessions(config).prepare(tmp_path)
    context = Context(tables=tables, schema=tables.schema, batch_size=1_024)
    groups = build_partial(GroupsConfig(), context).groups
    assert groups == advise(tables.train, batch_size=1_024).groups
    assert ("history", "history_category") in groups
    assert build_partial(GroupsConfig(min_factor=1_000), context).groups == ()


def test_shifted_histories_keep_fewer_values() -> None:
    config = SessionsConfig(samples=8_192, samples_per_session=16, concurrent_sessions=1_000)
    exact, partial = saved(clustered(Sessions(config)))
    assert partial > 1.5 * exact > 1.5


def test_newest_first_histories_do_too() -> None:
    def newest_first(batch: Batch) -> Batch:
        lists = {key: [row[::-1] for row in rows] for key, rows in to_lists(batch.features).items()}
        return batch_of(lists)

    config = SessionsConfig(samples=4_096, samples_per_session=16, concurrent_sessions=1_000)
    exact, partial = saved(map(newest_first, clustered(Sessions(config))))
    assert partial > 1.5 * exact > 1.5


@pytest.mark.parametrize("history", ["frozen", "growing"])
def test_movielens_histories(real_data, history: str) -> None:
    path = real_data("ml100k/ml-100k.inter")
    config = MovieLensConfig(path=path, history=history, history_length=20)
    exact, partial = saved(clustered(MovieLens(config)))
    # Frozen: one list a session, and the next session of a user goes on where it ended.
    # Growing: one id more a sample, so nothing is exact and all is shifted.
    assert (exact > 10) == (history == "frozen")
    assert exact >= 1
    assert partial > 1.5 * exact
    assert partial > 10


@pytest.mark.parametrize("history", ["frozen", "growing"])
def test_yoochoose_histories(real_data, history: str) -> None:
    path = real_data("yoochoose/clicks.tsv")
    config = YoochooseConfig(path=path, history=history)
    exact, partial = saved(clustered(Yoochoose(config)))
    assert exact > 2  # a click and its negatives have one history
    assert partial > (1.05 if history == "growing" else 1) * exact
