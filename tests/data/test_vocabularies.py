"""Value and property tests: a vocabulary counts what streams by, and gives each value its id."""

from __future__ import annotations

import os
from collections import Counter
from itertools import count
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from recd_plugins.data.conform import vocabulary
from recd_plugins.data.conform.rows import conform
from recd_plugins.data.conform.spot import Spot
from recd_plugins.data.conform.vocabulary import VocabularyCounts, counted, load_vocabulary
from recd_plugins.data.foreign import ForeignFeature, ForeignSchema
from recd_plugins.data.reader.local_reader import table_digest
from recd_plugins.data.table import Table
from recd_plugins.errors import DataError

PLACE = Spot("a file", "brand")


def schema(path: Path | None, num_ids: int = 100) -> ForeignSchema:
    brand = ForeignFeature(name="brand", num_ids=num_ids, ids="vocabulary", vocabulary=path)
    return ForeignSchema(session_id=None, timestamp=None, sparse=(brand,))


def ids(path: Path, values: pa.Array, num_ids: int = 100) -> list[list[int]]:
    rows = pa.table({"brand": values, "label": np.zeros(len(values), np.float32)})
    found: list[list[int]] = conform(rows, schema(path, num_ids), "a file")["brand"].to_pylist()
    return found


def test_ids_go_by_count_and_the_rest_share_what_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Merged block by block, the counts are those of all; lists, texts and integers alike."""
    monkeypatch.setattr(vocabulary, "PENDING", 50)
    draw = np.random.default_rng(0)
    whole = draw.zipf(1.5, 4_000) % 300
    counts = VocabularyCounts("brand")
    for part in np.split(whole, 20):
        texts = pa.array([str(one) for one in part])
        lists = pa.ListArray.from_arrays(np.arange(0, 201, 2, dtype=np.int32), texts)
        counts.add(counted([lists] if len(part) % 2 else [texts.cast(pa.string())], PLACE))
    truth = Counter(whole.tolist())
    path = tmp_path / "deep" / "brand.parquet"
    assert counts.num_values == len(truth)
    size = counts.save(path, most=60, least_count=3, others=4)
    table = pq.read_table(path)
    assert table["count"].to_pylist() == sorted(truth.values(), reverse=True)[: size - 4]
    assert all(
        truth[int(value)] == count for value, count in zip(*table.to_pydict().values(), strict=True)
    )
    assert min(table["count"].to_pylist()) >= 3
    known = table["value"].to_pylist()
    places = {value: 4 + row for row, value in enumerate(known)}
    asked = [*known, "never", "12345678"]
    found = ids(path, pa.array(asked))
    assert [one for (one,) in found[: len(known)]] == [places[value] for value in known]
    assert all(0 <= one < 4 for (one,) in found[len(known) :])
    numbers = pa.array([int(value) for value in known])
    assert ids(path, numbers) == found[: len(known)]
    assert ids(path, pa.array([None, known[0]])) == [[], [4]]


def test_what_is_wrong_with_a_vocabulary_is_told(tmp_path: Path) -> None:
    rows = pa.table({"brand": ["a"], "label": [0.0]})
    with pytest.raises(DataError, match=r"no vocabulary yet. `recd data import` makes it"):
        conform(rows, schema(None), "a file")
    path = tmp_path / "brand.parquet"
    with pytest.raises(DataError, match="this vocabulary cannot be read"):
        load_vocabulary(path)
    pq.write_table(pa.table({"value": ["a", "b", "a"]}), path)
    with pytest.raises(DataError, match="holds a value twice"):
        load_vocabulary(path)
    pq.write_table(pa.table({"values": ["a"]}), path)
    with pytest.raises(DataError, match="has no column 'value', but values"):
        load_vocabulary(path)
    pq.write_table(pa.table({"value": ["a", "b", "c"]}), path)
    with pytest.raises(DataError, match=r"vocabulary of 4 ids.*Set num_ids to 4"):
        ids(path, pa.array(["a"]), num_ids=3)


def test_too_many_values_to_count_are_to_be_hashed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vocabulary, "MOST_DISTINCT", 10)
    counts = VocabularyCounts("brand")
    counts.add(counted([pa.array(range(20))], PLACE))
    with pytest.raises(DataError, match=r"more than 10 different values.*ids: hash"):
        counts.num_values  # noqa: B018


def test_a_table_is_another_by_another_vocabulary(tmp_path: Path) -> None:
    """For readers, states and caches; and rows that are read have ids of the one that it began
    with."""
    path, rows, times = tmp_path / "brand.parquet", tmp_path / "rows.parquet", count(1)
    pq.write_table(pa.table({"label": [0.0, 1.0], "brand": ["a", "b"]}), rows)

    def opened(*values: str) -> Table:
        pq.write_table(pa.table({"value": values}), path)
        os.utime(path, (now := next(times), now))
        return Table.open(rows, schema(path))

    def brands(table: Table) -> list[list[int]]:
        found: list[list[int]] = table.read(table.stripes[0])["brand"].to_pylist()
        return found

    first = opened("a", "b")
    assert brands(first) == [[1], [2]]
    second = opened("b", "a")
    assert brands(second) == [[2], [1]]
    assert table_digest(second) != table_digest(first)
    with pytest.raises(
        DataError, match=r"brand\.parquet: this vocabulary has changed since the table"
    ):
        brands(first)
    again = opened("a", "b")
    assert table_digest(again) == table_digest(first)
    assert brands(first) == brands(again)
