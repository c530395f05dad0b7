"""Value tests: Criteo's raw rows against a plain reading of them, line by line."""

from __future__ import annotations

import gzip
import math
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from recd_dlrm.datasets.criteo import rows as criteo_rows
from recd_dlrm.datasets.criteo.dataset import Criteo, CriteoConfig, build_criteo
from recd_dlrm.datasets.criteo.rows import MISSING, count_rows, read_rows
from recd_dlrm.datasets.criteo.vocabulary import CategoryCounts, HashVocabulary
from recd_plugins.config import parse
from recd_plugins.data.dataset import Split
from recd_plugins.errors import DataError, RegistryError
from recd_plugins.slots import Context

RAW = Path(__file__).parents[4] / "shared" / "data" / "criteo"
FILES = ["kaggle_8k.tsv", "kaggle_2k.tsv", "terabyte_day11_3k.tsv"]

GOOD = b"1\t-3\t\t" + b"\t".join(b"%d" % i for i in range(11)) + b"\tdeadbeef" * 25 + b"\t\n"


def real(name: str) -> Path:
    if not (RAW / name).exists():
        pytest.skip(f"{RAW / name} is not there: the real data lies beside the project")
    return RAW / name


def build(*train: Path, **options: object) -> Criteo:
    dataset = build_criteo(parse(CriteoConfig, {"train": train, **options}, "dataset"), Context())
    assert isinstance(dataset, Criteo)
    return dataset


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
def raw(tmp_path: Path) -> Callable[..., Path]:
    """Writes a raw file of these lines."""

    def write(*content: bytes, name: str = "raw.txt") -> Path:
        path = tmp_path / name
        path.write_bytes(b"".join(content))
        return path

    return write


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("threshold", [1, 4])
def test_real_rows_equal_a_plain_reading(name: str, threshold: int) -> None:
    dataset = build(real(name), frequency_threshold=threshold, test_fraction=0.25)
    source = lines(real(name))
    cut = len(source) - len(source) // 4
    for split, part in (("train", source[:cut]), ("test", source[cut:])):
        table = rows(dataset, split)
        assert table.schema.equals(dataset.schema.arrow())
        assert table.num_rows == dataset.num_rows(split) == len(part)
        assert table["label"].to_pylist() == [float(line[0]) for line in part]
        for i in range(13):
            expected = [math.log(1 + max(int(line[1 + i] or 0), 0)) for line in part]
            assert table[f"int_{i}"].to_pylist() == pytest.approx(expected, rel=1e-6)
        for i in range(26):
            ids = plain_ids(source[:cut], 14 + i, threshold)
            assert table[f"cat_{i}"].to_pylist() == [[ids.get(line[14 + i], 0)] for line in part]
            assert dataset.schema.feature(f"cat_{i}").num_ids == 1 + len(ids)


def test_blocks_do_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = rows(build(real("kaggle_2k.tsv")), "test")
    monkeypatch.setattr(criteo_rows, "BLOCK_BYTES", 1_000)
    in_blocks = list(build(real("kaggle_2k.tsv")).chunks("test"))
    assert len(in_blocks) > 50
    assert pa.concat_tables(in_blocks).equals(whole)


@pytest.mark.parametrize(("start", "stop"), [(0, 0), (0, 1), (3, 9), (9, 10), (0, 10), (10, 10)])
@pytest.mark.parametrize("block", [100, 700, 1 << 20])
def test_any_range_of_rows_can_be_read(
    start: int, stop: int, block: int, raw: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = raw(*(GOOD.replace(b"-3", b"%d" % i) for i in range(10)))
    monkeypatch.setattr(criteo_rows, "BLOCK_BYTES", block)
    parts = list(read_rows(path, start, stop))
    assert all(len(part) for part in parts)
    found = [row for part in parts for row in part.integers[0].tolist()]
    assert found == list(range(start, stop))
    assert list(count_rows(path))[-1] == 10


def test_the_documented_values(raw: Callable[..., Path]) -> None:
    (part,) = read_rows(raw(GOOD, b"0" + b"\t" * 39 + b"\n"), 0, 2)
    assert part.labels.tolist() == [1, 0]
    assert [column.tolist() for column in part.integers[:4]] == [[-3, 0], [0, 0], [0, 0], [1, 0]]
    assert part.categories[0].tolist() == [0xDEADBEEF, MISSING]
    assert part.categories[25].tolist() == [MISSING, MISSING]
    table = rows(build(raw(GOOD), test=[raw(GOOD, name="test.txt")]))
    dense = [table[f"int_{i}"][0].as_py() for i in range(13)]
    assert dense == pytest.approx([0, 0, *np.log1p(np.arange(11))])
    assert (table["cat_0"][0].as_py(), table["cat_25"][0].as_py()) == ([1], [0])


def test_the_last_line_may_lack_its_end(raw: Callable[..., Path]) -> None:
    path = raw(GOOD * 3, GOOD[:-1])
    assert list(count_rows(path))[-1] == sum(len(part) for part in read_rows(path, 0, 9)) == 4


def test_carriage_returns_and_upper_case_are_taken(raw: Callable[..., Path]) -> None:
    path = raw(GOOD.replace(b"deadbeef", b"DEADBEEF").replace(b"\n", b"\r\n"), GOOD)
    (part,) = read_rows(path, 0, 2)
    assert part.categories[0].tolist() == [0xDEADBEEF] * 2


def test_compressed_files_are_read(raw: Callable[..., Path]) -> None:
    plain = raw(GOOD * 3)
    packed = raw(gzip.compress(GOOD * 3), name="day_0.gz")
    assert rows(build(packed, test_fraction=0.5)).equals(rows(build(plain, test_fraction=0.5)))


def test_the_seventh_day_is_held_out_and_halved() -> None:
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


def test_files_are_days() -> None:
    days = [real(name) for name in FILES]
    dataset = build(*days[:2], test=days[2:], held_out="test")
    assert rows(dataset).num_rows == dataset.num_rows("train") == 10_000
    assert rows(dataset, "test")["label"].to_pylist() == [
        float(line[0]) for line in lines(days[2])[1_500:]
    ]
    # The other data set's categories are hashed otherwise: most are unknown to the train rows.
    ids = rows(dataset, "test")["cat_2"].combine_chunks().flatten().to_numpy()
    assert np.mean(ids == 0) > 0.9


def test_hashed_ids_are_stable_and_even() -> None:
    dataset = build(real("kaggle_8k.tsv"), index="hash", num_ids=1_001)
    assert set(dataset.schema.table_sizes().values()) == {1_001}
    table, source = rows(dataset), lines(real("kaggle_8k.tsv"))
    missing = [not line[16] for line in source[: table.num_rows]]
    ids = table["cat_2"].combine_chunks().flatten().to_numpy()
    assert (ids == 0).tolist() == missing
    assert ids.max() <= 1_000
    # Known answers: MurmurHash3's finalizer of 0, 1 and 0xDEADBEEF.
    assert HashVocabulary(2**32 + 1).encode(np.array([0, 1, 0xDEADBEEF, MISSING])).tolist() == [
        1,
        1 + 0x514E28B7,
        1 + 0x0DE5C6A9,
        0,
    ]
    spread = np.bincount(HashVocabulary(101).encode(np.arange(100_000)), minlength=101)[1:]
    assert np.abs(spread - 1_000).max() <= 5 * np.sqrt(1_000)


@pytest.mark.parametrize("size", [10, 1_000, 200_000])
def test_counts_add_up_over_blocks(size: int) -> None:
    rng = np.random.default_rng(size)
    values = rng.integers(0, size, 300_000)
    values[::7] = MISSING
    counts = CategoryCounts()
    for block in np.array_split(values, 11):
        counts.add(block)
    expected = Counter(values[values != MISSING].tolist())
    order = sorted(expected, key=lambda value: (-expected[value], value))
    kept = [value for value in order if expected[value] >= 2]
    vocabulary = counts.vocabulary(2)
    assert vocabulary.num_ids == 1 + len(kept)
    assert vocabulary.encode(np.array(kept)).tolist() == list(range(1, 1 + len(kept)))
    others = np.array([MISSING, size, 2**32 - 1])
    assert vocabulary.encode(others).tolist() == [0, 0, 0]


def test_a_column_that_is_always_empty_has_one_id(raw: Callable[..., Path]) -> None:
    dataset = build(raw(GOOD * 4), test_fraction=0.5)
    assert dataset.schema.feature("cat_25").num_ids == 1


def test_it_prepares_tables_and_tells_its_progress(tmp_path: Path) -> None:
    told: list[tuple[str, int, int | None]] = []
    dataset = build(real("kaggle_2k.tsv"), frequency_threshold=2)
    tables = dataset.prepare(tmp_path / "data", lambda *call: told.append(call))
    assert (tables.train.num_rows, tables.test.num_rows) == (1_714, 286)
    assert tables.schema == dataset.schema
    for what, rows_done in (
        ("counting the rows of kaggle_2k.tsv", 2_000),
        ("counting categories", 1_714),
        ("writing train", 1_714),
        ("writing test", 286),
    ):
        assert (what, rows_done, rows_done) in told


def test_the_fingerprint_follows_the_sources(raw: Callable[..., Path]) -> None:
    train, test = raw(GOOD), raw(GOOD, name="test.txt")
    before = build(train, test=[test]).fingerprint()
    assert before == build(train, test=[test]).fingerprint()
    raw(GOOD * 2, name="test.txt")
    assert before != build(train, test=[test]).fingerprint()


def field(number: int, value: bytes) -> bytes:
    """A good row but for one field."""
    fields = GOOD.split(b"\t")
    return b"\t".join([*fields[:number], value, *fields[number + 1 :]])


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (GOOD.replace(b"\t", b"", 1), "39 columns .as Kaggle's test.txt, which has no label"),
        (GOOD.replace(b"\t", b"\t\t", 1), "41 columns, but a row has 40"),
        (b"\n", "1 columns, but a row has 40"),
        (GOOD[:50] + b"\r" + GOOD[50:], "is"),
        (b"".join([GOOD[:-1], b"\r", GOOD]), "79 columns"),
        (field(0, b""), "label '' is neither 0 nor 1"),
        (field(0, b"2"), "label '2' is neither 0 nor 1"),
        (field(0, b"-1"), "label '-1' is neither 0 nor 1"),
        (field(1, b"1.5"), "integer 1 is '1.5', not a whole number or empty"),
        (field(1, b"0x1F"), "integer 1 is '0x1F'"),
        (field(2, b" 5"), "integer 2 is ' 5'"),
        (field(13, b"NaN"), "integer 13 is 'NaN'"),
        (field(3, b"9" * 20), "integer 3 is '9+'"),
        (field(14, b"nothexes"), "category 1 is 'nothexes', not 8 hex digits or empty"),
        (field(39, b"\xff\xfe\n"), "category 26 is '.+'"),
        (field(20, b"abc"), "category 7 is 'abc'"),
        (field(20, b" 1234567"), "category 7 is ' 1234567'"),
        (field(20, b"1234567890abcdef"), "category 7 is '1234567890abcdef'"),
        (field(20, b'"'), "category 7 is '\"'"),
    ],
)
def test_a_malformed_row_is_named_by_file_and_line(
    bad: bytes, message: str, raw: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = raw(GOOD * 20, bad, GOOD * 5)
    for block in (1 << 20, 600):
        monkeypatch.setattr(criteo_rows, "BLOCK_BYTES", block)
        with pytest.raises(DataError, match=rf"raw\.txt:21: .*{message}") as caught:
            rows(build(path))
        assert "Correct these rows, or take them out." in str(caught.value)


def test_many_malformed_rows_are_counted(raw: Callable[..., Path]) -> None:
    with pytest.raises(DataError) as caught:
        rows(build(raw(GOOD, *[field(0, b"7")] * 5)))
    message = str(caught.value)
    assert [f"raw.txt:{number}:" in message for number in range(1, 7)] == [
        False,
        True,
        True,
        True,
        False,
        False,
    ]
    assert "(and 2 rows soon after)" in message


def test_nothing_is_written_when_a_row_is_malformed(raw: Callable[..., Path]) -> None:
    path = raw(GOOD * 20, field(0, b"7"))
    with pytest.raises(DataError, match="label '7'"):
        build(path, index="hash").prepare(path.parent / "data")
    assert not list((path.parent / "data").glob("*test*"))


def test_files_that_cannot_be_read_are_named(raw: Callable[..., Path], tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"absent\.txt: there is no such file.*dataset\.train"):
        build(tmp_path / "absent.txt")
    with pytest.raises(DataError, match=r"raw\.txt: the file is empty"):
        rows(build(raw(b"")))
    noise = np.random.default_rng(0).bytes(100_000)
    with pytest.raises(DataError, match=r"cut\.gz: cannot be read to its end"):
        rows(build(raw(gzip.compress(noise)[:50_000], name="cut.gz")))
    with pytest.raises(DataError, match=r"cannot be read to its end"):
        rows(build(tmp_path))
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
    ],
)
def test_bad_options_are_named(options: dict[str, object], message: str) -> None:
    with pytest.raises(RegistryError, match=message):
        parse(CriteoConfig, options, "dataset")
