"""Value tests, with worker processes: a converter that asks for sessions and times."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recd_plugins.api import Config, Context, DataError, DedupRecord, PluginError, RegistryError
from recd_plugins.api.batch import Columns, Groups, InverseKeyedJaggedTensor
from recd_plugins.api.data import Schema, SparseFeature, Table, TableWriter
from recd_plugins.api.testing import check_record
from recd_plugins.data.columns import JoinedColumns
from recd_plugins.data.preprocess.batch_transform import BatchTransform
from recd_plugins.data.reader.local_reader import LocalReaderConfig, build_local_reader
from recd_plugins.testing.batches import from_lists, to_lists

SCHEMA = Schema(
    sparse=(
        SparseFeature(name="row", num_ids=1000),
        SparseFeature(name="history", num_ids=1000, kind="user"),
    )
)
ROWS, SAMPLES = 96, 4


@dataclass
class BySession:
    """Samples are one where their session and their features are the same.

    Two sessions of equal features are kept apart, so that each has a unique sample of its own.
    """

    groups: Groups = (("history",),)
    asks: tuple[str, ...] = ("session_id", "timestamp")

    def convert(self, features: Columns) -> InverseKeyedJaggedTensor:
        session = features.session_id
        assert session.shape == features.timestamp.shape
        tag = KeyedJaggedTensor(keys=["#"], values=session, lengths=torch.ones_like(session))
        keys = features.keys
        tagged = KeyedJaggedTensor.concat([features.to_kjt(), tag])
        unique = InverseKeyedJaggedTensor.from_kjt(tagged, [[*keys, "#"]])
        kjt, _ = unique.kjt.split([len(keys), 1])
        return InverseKeyedJaggedTensor(
            kjt, unique.inverse_lookup, (tuple(keys),), unique.unique_counts
        )


@dataclass
class Timed(BySession):
    """Makes each sample's history of its session and time, as a `timed` table has it."""

    def convert(self, features: Columns) -> InverseKeyedJaggedTensor:
        pairs = torch.stack([features.session_id, features.timestamp], 1)
        return InverseKeyedJaggedTensor.from_kjt(from_lists({"history": pairs.tolist()}))


def write(folder: Path, schema: Schema = SCHEMA, *, timed: bool = False) -> Table:
    """Row r is of session r // 4 at time 10 r; every second session has the same history, or a
    history is its row's session and time."""
    rows = range(ROWS)
    columns = {
        "session_id": pa.array([row // SAMPLES for row in rows]),
        "timestamp": [10 * row for row in rows],
        "label": [0.0] * ROWS,
        "row": [[row] for row in rows],
        "history": [
            [row // SAMPLES, 10 * row] if timed else [row // SAMPLES % 2, 7] for row in rows
        ],
    }
    with TableWriter(folder, schema, rows_per_stripe=20) as writer:
        writer.write(pa.table({name: columns[name] for name in schema.columns}))
    return Table.open(folder)


def open_loader(table: Table, converter: object, **options):
    reader = build_local_reader(LocalReaderConfig(**options), Context())
    return reader.loader(
        table,
        rank=0,
        world_size=1,
        batch_size=16,
        split="train",
        transform=BatchTransform([], converter),
    )


@pytest.mark.parametrize(
    "options",
    [
        {"shuffle": False},
        {"window": 3},
        {"streams": 2},
        {"sessions": "whole"},
        pytest.param({"workers": 1}, marks=pytest.mark.ranks),
        {"tail": "pad", "prefetch": False},
    ],
    ids=str,
)
def test_sessions_and_times_come_with_their_rows(tmp_path: Path, options: dict) -> None:
    table, seen = write(tmp_path / "table", timed=True), 0
    for batch in open_loader(table, Timed(), **options):
        rows = [row for (row,) in to_lists(batch.features)["row"]]
        found = to_lists(batch.dedup.to_kjt())["history"]
        assert found == [[row // SAMPLES, 10 * row] for row in rows]
        seen += len(rows)
    assert seen >= ROWS - 32


def test_a_converter_can_tell_sessions_apart(tmp_path: Path) -> None:
    table = write(tmp_path / "table")
    for batch in open_loader(table, BySession(), shuffle=False):
        rows = [row for (row,) in to_lists(batch.features)["row"]]
        batch.dedup.validate()
        assert batch.dedup.unique_counts == (len({row // SAMPLES for row in rows}),)
        assert to_lists(batch.dedup.to_kjt())["history"] == [
            [row // SAMPLES % 2, 7] for row in rows
        ]


def test_the_kit_brings_what_a_converter_asks_for() -> None:
    check_record(
        DedupRecord(name="mine", summary="Mine.", config=Config, build=lambda *_: BySession())
    )


def test_what_a_table_or_a_reader_lacks_is_named(tmp_path: Path) -> None:
    without = Schema(session_id=None, sparse=SCHEMA.sparse)
    with pytest.raises(
        RegistryError, match=r"asks for session_id, but the table .*/bare has no such"
    ):
        open_loader(write(tmp_path / "bare", without), BySession())
    with pytest.raises(PluginError, match=r"BySession asks for session_id and timestamp, which"):
        BatchTransform([], BySession())(next(iter(open_loader(write(tmp_path / "t"), NoDedup()))))
    with pytest.raises(PluginError, match=r"asks for 'sesion'; did you mean 'session_id'\?"):
        BatchTransform([], BySession(asks=("sesion",)))
    with pytest.raises(
        PluginError, match=r"no session_id, .* attribute `asks = \('session_id',\)`"
    ):
        _ = JoinedColumns(from_lists({"row": [[1]]})).session_id


def test_sessions_that_are_no_numbers_are_refused_where_they_are_asked_for(tmp_path: Path) -> None:
    (file,) = write(tmp_path / "table").files
    rows = pq.read_table(file)
    names = pa.array([f"s{row // SAMPLES}" for row in range(ROWS)])
    fields = [pa.field("session_id", pa.string()), *list(rows.schema)[1:]]
    texts = pa.table([names, *rows.columns[1:]], pa.schema(fields, rows.schema.metadata))
    pq.write_table(texts, file)
    table = Table.open(tmp_path / "table")
    assert len(list(open_loader(table, NoDedup()))) == ROWS // 16
    with pytest.raises(DataError, match=r"column 'session_id' has 0 nulls and type string, but"):
        list(open_loader(table, BySession()))


class NoDedup:
    groups: Groups = ()
