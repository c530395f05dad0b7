"""Value tests: Criteo's table against a plain reading of its files, line by line."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from criteo_raw import GOOD, field

from recd_dlrm.datasets.criteo import raw_rows as criteo_rows
from recd_dlrm.datasets.criteo.dataset import Criteo, CriteoConfig, build_criteo
from recd_plugins.config import parse
from recd_plugins.data.dataset import Split
from recd_plugins.errors import DataError, RegistryError
from recd_plugins.slots import Context

FILES = ["kaggle_8k.tsv", "kaggle_2k.tsv", "terabyte_day11_3k.tsv"]


def build(*train: Path, **options: object) -> Criteo:
    return build_criteo(parse(CriteoConfig, {"train": train, **options}, "dataset"), Context())


def rows(dataset: Criteo, split: Split = "train") -> pa.Table:
    return pa.concat_tables(dataset.chunks(split))


def lines(path: Path) -> list[list[str]]:
    return [line.split("\t") for line in path.read_text().split("\n")[:-1]]


def plain_ids(train: Sequence[list[str]], field: int, threshold: int) -> dict[str, int]:
    """The index of each category: most frequent first, ties by value, from 1."""
    counts = Counter(line[field] for line in train if line[field])
    order = sorted(counts, key=lambda value: (-counts[value], int(value, 16)))
    kept = [value for value in order if counts[value] >= threshold]
    return {value: index for index, value in enumerate(kept, 1)}


@pytest.fixture
def real(real_data: Callable[[str], Path]) -> Callable[[str], Path]:
    return lambda name: real_data(f"criteo/{name}")


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("threshold", [1, 4])
def test_real_rows_equal_a_plain_reading(
    name: str, threshold: int, real: Callable[[str], Path]
) -> None:
    dataset = build(real(name), frequency_threshold=threshold, test_fraction=0.25)
    source = lines(real(name))
    cut = len(source) - len(source) // 4
    known = [plain_ids(source[:cut], 14 + i, threshold) for i in range(26)]
    for split, part in (("train", source[:cut]), ("test", source[cut:])):
        table = rows(dataset, split)
        assert table.schema.equals(dataset.schema.arrow())
        assert table.num_rows == dataset.num_rows(split) == len(part)
        assert table["label"].to_pylist() == [float(line[0]) for line in part]
        for i in range(13):
            expected = [math.log(1 + max(int(line[1 + i] or 0), 0)) for line in part]
            np.testing.assert_allclose(table[f"int_{i}"], expected, rtol=1e-6)
        for i, ids in enumerate(known):
            assert table[f"cat_{i}"].to_pylist() == [[ids.get(line[14 + i], 0)] for line in part]
            assert dataset.schema.feature(f"cat_{i}").num_ids == 1 + len(ids)


def test_blocks_do_not_show(real: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    whole = rows(build(real("kaggle_2k.tsv")), "test")
    monkeypatch.setattr(criteo_rows, "BLOCK_BYTES", 1_000)
    in_blocks = list(build(real("kaggle_2k.tsv")).chunks("test"))
    assert len(in_blocks) > 50
    assert pa.concat_tables(in_blocks).equals(whole)


def test_integers_become_logs_and_categories_ids(raw: Callable[..., Path]) -> None:
    table = rows(build(raw(GOOD), test=[raw(GOOD, name="test.txt")]))
    dense = [table[f"int_{i}"][0].as_py() for i in range(13)]
    assert dense == pytest.approx([0, 0, *np.log1p(np.arange(11))])
    assert (table["cat_0"][0].as_py(), table["cat_25"][0].as_py()) == ([1], [0])


def test_the_seventh_day_is_held_out_and_halved(real: Callable[[str], Path]) -> None:
    source = lines(real("kaggle_8k.tsv"))
    labels = [float(line[0]) for line in source]
    day = len(source) - round(len(source) / 7)
    half = day + (len(source) - day + 1) // 2
    for held_out, part in (
        ("all", labels[day:]),
        ("validation", labels[day:half]),
        ("test", labels[half:]),
    ):
        dataset = build(real("kaggle_8k.tsv"), held_out=held_out)
        assert rows(dataset)["label"].to_pylist() == labels[:day]
        assert rows(dataset, "test")["label"].to_pylist() == part


def test_files_are_days(real: Callable[[str], Path]) -> None:
    days = [real(name) for name in FILES]
    dataset = build(*days[:2], test=days[2:], held_out="test")
    assert rows(dataset).num_rows == dataset.num_rows("train") == 10_000
    assert rows(dataset, "test")["label"].to_pylist() == [
        float(line[0]) for line in lines(days[2])[1_500:]
    ]
    # The other data set's categories are hashed otherwise: most are unknown to the train rows.
    ids = rows(dataset, "test")["cat_2"].combine_chunks().flatten().to_numpy()
    assert np.mean(ids == 0) > 0.9


def test_ids_can_be_hashes(real: Callable[[str], Path]) -> None:
    dataset = build(real("kaggle_8k.tsv"), index="hash", num_ids=1_001)
    assert set(dataset.schema.table_sizes().values()) == {1_001}
    table, source = rows(dataset), lines(real("kaggle_8k.tsv"))
    missing = [not line[16] for line in source[: table.num_rows]]
    ids = table["cat_2"].combine_chunks().flatten().to_numpy()
    assert (ids == 0).tolist() == missing
    assert ids.max() <= 1_000


def test_a_column_that_is_always_empty_has_one_id(raw: Callable[..., Path]) -> None:
    dataset = build(raw(GOOD * 4), test_fraction=0.5)
    assert dataset.schema.feature("cat_25").num_ids == 1


def test_it_prepares_tables_and_tells_its_progress(
    real: Callable[[str], Path], tmp_path: Path
) -> None:
    calls: list[tuple[str, int, int | None]] = []
    dataset = build(real("kaggle_2k.tsv"), frequency_threshold=2)
    tables = dataset.prepare(tmp_path / "data", lambda *call: calls.append(call))
    assert (tables.train.num_rows, tables.test.num_rows) == (1_714, 286)
    assert tables.schema == dataset.schema
    for what, rows_done in (
        ("counting the rows of kaggle_2k.tsv", 2_000),
        ("counting categories", 1_714),
        ("writing train", 1_714),
        ("writing test", 286),
    ):
        assert (what, rows_done, rows_done) in calls


def test_the_fingerprint_follows_the_sources(raw: Callable[..., Path]) -> None:
    train, test = raw(GOOD), raw(GOOD, name="test.txt")
    before = build(train, test=[test]).fingerprint()
    assert before == build(train, test=[test]).fingerprint()
    raw(GOOD * 2, name="test.txt")
    assert before != build(train, test=[test]).fingerprint()


def test_nothing_is_written_when_a_row_is_malformed(raw: Callable[..., Path]) -> None:
    path = raw(GOOD * 20, field(0, b"7"))
    with pytest.raises(DataError, match="label '7'"):
        build(path, index="hash").prepare(path.parent / "data")  # after its train table is written
    assert list(path.parent.iterdir()) == [path]


def test_absent_files_and_too_few_rows_are_named(raw: Callable[..., Path], tmp_path: Path) -> None:
    absent = tmp_path / "absent.txt"
    for option, train, test in (("train", absent, []), ("test", raw(GOOD), [absent])):
        with pytest.raises(DataError, match=rf"absent\.txt: cannot be read .*dataset\.{option}`"):
            build(train, test=test)
    with pytest.raises(DataError, match=r"raw\.txt: no row is left for the test split"):
        rows(build(raw(GOOD)))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "option 'train' is required"),
        ({"train": []}, r"dataset\.train: names no file"),
        ({"train": ["a"], "test": ["b", "a"]}, r"dataset\.test: a is also under `train`"),
        ({"train": ["a"], "test_fraction": 1.0}, "must be > 0 and < 1"),
        ({"train": ["a"], "num_ids": 1}, "must be >= 2"),
        ({"train": ["a"], "index": "hahs"}, "did you mean 'hash'"),
        (
            {"train": ["a"], "num_ids": 1_000},
            r"dataset\.num_ids: does nothing here, because `index: frequency` makes a row of each",
        ),
        (
            {"train": ["a"], "index": "hash", "frequency_threshold": 2},
            r"dataset\.frequency_threshold: does nothing here, because `index: hash` counts no",
        ),
        (
            {"train": ["a"], "test": ["b"], "test_fraction": 0.5},
            r"dataset\.test_fraction: does nothing here, because `test` names the files to "
            r"hold out",
        ),
    ],
)
def test_bad_options_are_named(options: dict[str, object], message: str) -> None:
    with pytest.raises(RegistryError, match=message):
        parse(CriteoConfig, options, "dataset")
