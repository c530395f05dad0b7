"""Value tests: files that a dataset is made from, whole and broken."""

from __future__ import annotations

import gzip
import os
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from recd_dlrm.datasets import sources
from recd_dlrm.datasets.sources import TOKENS, check_sources, fingerprint, read_tsv
from recd_plugins.errors import DataError

COLUMNS = {"name": TOKENS, "count": pa.int64(), "weight": pa.float64()}
HEADER = "count\tname\tignored\tweight\n"
GOOD = "7\tann\t?\t0.5\n"


@pytest.fixture
def file(tmp_path: Path) -> Callable[[str | bytes], Path]:
    def write(content: str | bytes) -> Path:
        path = tmp_path / "some.tsv"
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return write


@pytest.mark.parametrize("start", ["", "\ufeff"], ids=["plain", "byte order mark"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("block", [40, 1 << 20])
def test_columns_come_whole_in_their_types(
    start: str,
    end: str,
    block: int,
    file: Callable[[str | bytes], Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sources, "BLOCK_BYTES", block)
    lines = [HEADER, GOOD, '8\t"bob\t?\t-1e3\n', "9\tann\t?\t2\n"]
    found = read_tsv(file(start + "".join(lines).replace("\n", end)), "a file", COLUMNS)
    assert {name: column.type for name, column in found.items()} == COLUMNS
    assert found["name"].to_pylist() == ["ann", '"bob', "ann"]
    assert found["name"].indices.to_pylist() == [0, 1, 0]
    assert found["count"].to_pylist() == [7, 8, 9]
    assert found["weight"].to_pylist() == [0.5, -1000, 2]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", ":1: lacks column 'name' of a file"),
        ("name\tcounts\tweight\n", ":1: lacks column 'count' of a file; did you mean 'counts'"),
        (HEADER, ": holds a header but no rows. Give a file"),
        (HEADER + GOOD * 3 + "1\tbob\t?\tgood\n", ":5: column 'weight': .*'good'"),
        (HEADER + GOOD + "1.5\tbob\t?\t1\n", ":3: column 'count': .*'1.5'"),
        (HEADER + GOOD + "\n" + GOOD, ":3: column 'count': .*invalid value ''"),
        (HEADER + GOOD + "1\tbob\t?\n", ":3: Expected 4 columns, got 3"),
        (HEADER + GOOD + "1\tbob\t?\tnan\n", ":3: column 'weight': nan is not finite"),
        (HEADER + GOOD + "1\tbob\t?\t\n", ":3: column 'weight'"),
        (HEADER + GOOD + "\tbob\t?\t1\n", ":3: column 'count'"),
        (b"\x1f\x8b\x08\x00", ": is no text, or is compressed"),
        (gzip.compress(HEADER.encode(), mtime=0), ": is no text, or is compressed"),
    ],
)
def test_a_malformed_file_is_named_with_its_line(
    text: str | bytes, message: str, file: Callable[[str | bytes], Path]
) -> None:
    path = file(text)
    with pytest.raises(DataError, match=message) as error:
        read_tsv(path, "a file", COLUMNS)
    assert str(error.value).startswith(str(path))


@pytest.mark.parametrize(("bad", "reason"), [("inf", "inf is not"), ("x", "invalid value 'x'")])
def test_a_bad_value_deep_in_a_file_of_many_blocks_names_its_line(
    bad: str,
    reason: str,
    file: Callable[[str | bytes], Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sources, "BLOCK_BYTES", 256)
    path = file(HEADER + GOOD * 500 + f"1\tbob\t?\t{bad}\n" + GOOD * 500)
    with pytest.raises(DataError, match=rf":502: column 'weight': .*{reason}"):
        read_tsv(path, "a file", COLUMNS)


def test_sources_that_cannot_be_read_are_named(
    tmp_path: Path, file: Callable[[str | bytes], Path]
) -> None:
    there = file(GOOD)
    check_sources("dataset.path", there)
    check_sources("dataset.table", there, tmp_path, folders=True)
    with pytest.raises(DataError) as error:
        check_sources("dataset.path", there, tmp_path / "absent.tsv")
    assert str(error.value) == (
        f"{tmp_path}/absent.tsv: cannot be read (No such file or directory). Correct "
        f"`dataset.path` in registry.yaml; a relative path counts from {Path.cwd()}."
    )
    with pytest.raises(DataError, match=r"cannot be read \(Is a directory\)"):
        check_sources("dataset.path", tmp_path)
    with pytest.raises(DataError, match=r"cannot be read \(No such file"):
        check_sources("dataset.table", tmp_path / "absent", folders=True)


def test_a_fingerprint_follows_name_size_and_time(
    tmp_path: Path, file: Callable[[str | bytes], Path]
) -> None:
    path = file(GOOD)
    prints = [fingerprint([path])]
    assert prints == [fingerprint([path])]
    path.write_text(GOOD * 2)
    prints.append(fingerprint([path]))
    os.utime(path, (1, 1))
    prints.append(fingerprint([path]))
    prints.append(fingerprint([tmp_path]))  # a folder: all files in it
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "other").touch()
    prints.append(fingerprint([tmp_path]))
    prints.append(fingerprint([tmp_path, path]))
    assert len(set(prints) - {prints[2]}) == 4
    assert prints[2] == prints[3]  # the folder's one file
    assert fingerprint([]) == ""
