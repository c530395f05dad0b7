"""Value tests: Criteo's raw rows, whole and malformed, whatever the blocks they come in."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from criteo_raw import GOOD, field

from recd_dlrm.datasets.criteo import raw_rows as criteo_rows
from recd_dlrm.datasets.criteo.raw_rows import MISSING, count_rows, read_rows
from recd_plugins.errors import DataError


def test_the_documented_values(raw: Callable[..., Path]) -> None:
    (part,) = read_rows(raw(GOOD, b"0" + b"\t" * 39 + b"\n"), 0, 2)
    assert part.labels.tolist() == [1, 0]
    assert [column.tolist() for column in part.integers[:4]] == [[-3, 0], [0, 0], [0, 0], [1, 0]]
    assert part.categories[0].tolist() == [0xDEADBEEF, MISSING]
    assert part.categories[25].tolist() == [MISSING, MISSING]


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


def test_the_last_line_may_lack_its_end(raw: Callable[..., Path]) -> None:
    path = raw(GOOD * 3, GOOD[:-1])
    assert list(count_rows(path))[-1] == sum(len(part) for part in read_rows(path, 0, 9)) == 4


def test_carriage_returns_and_upper_case_are_taken(raw: Callable[..., Path]) -> None:
    path = raw(GOOD.replace(b"deadbeef", b"DEADBEEF").replace(b"\n", b"\r\n"), GOOD)
    (part,) = read_rows(path, 0, 2)
    assert part.categories[0].tolist() == [0xDEADBEEF] * 2


def test_compressed_files_are_read(raw: Callable[..., Path]) -> None:
    plain, packed = raw(GOOD * 3), raw(gzip.compress(GOOD * 3), name="day_0.gz")
    (one,), (other,) = read_rows(plain, 0, 3), read_rows(packed, 0, 3)
    np.testing.assert_equal(vars(one), vars(other))


def test_files_that_are_not_whole_are_named(raw: Callable[..., Path]) -> None:
    with pytest.raises(DataError, match=r"raw\.txt: the file is empty"):
        list(count_rows(raw(b"")))
    noise = np.random.default_rng(0).bytes(100_000)
    with pytest.raises(DataError, match=r"cut\.gz: cannot be read to its end"):
        list(count_rows(raw(gzip.compress(noise)[:50_000], name="cut.gz")))


def test_a_file_of_another_kind_is_named_once(raw: Callable[..., Path]) -> None:
    for other in (GOOD.replace(b"\t", b","), b"<html>\n"):
        with pytest.raises(DataError) as caught:
            list(read_rows(raw(other * 9), 0, 9))
        one, advice = str(caught.value).splitlines()
        assert "raw.txt:1: 1 fields, but a row has 40" in one
        assert advice.startswith("No other row fits either. Give Criteo's raw file; if it is comp")


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (GOOD.replace(b"\t", b"", 1), "39 fields .as Kaggle's test.txt, which has no label"),
        (GOOD.replace(b"\t", b"\t\t", 1), "41 fields, but a row has 40"),
        (b"\n", "1 fields, but a row has 40"),
        (GOOD[:50] + b"\r" + GOOD[50:], "is"),
        (b"".join([GOOD[:-1], b"\r", GOOD]), "79 fields"),
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
            list(read_rows(path, 0, 26))
        assert "Correct these rows, or take them out." in str(caught.value)


def test_many_malformed_rows_are_counted(raw: Callable[..., Path]) -> None:
    with pytest.raises(DataError) as caught:
        list(read_rows(raw(GOOD, *[field(0, b"7")] * 5), 0, 6))
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
