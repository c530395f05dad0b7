"""Lists that our kernels decode equal those that Arrow decodes, and damage is Arrow's error."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from recd_plugins.compat.zstd_function import zstd_function
from recd_plugins.data.parquet import lists as parquet_lists
from recd_plugins.data.parquet.coalesced_reads import FetchedFile
from recd_plugins.data.parquet.opened_file import opened
from recd_plugins.data.parquet.page_bytes import crc32
from recd_plugins.data.parquet.pages import OtherPages, pages_of

ROWS = 3_000


@pytest.fixture(autouse=True)
def _small_columns_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet_lists, "LEAST", 0)


@pytest.fixture
def decoded_by(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """How many columns were decoded by whom."""
    found = {"us": 0, "Arrow": 0}
    decode = parquet_lists._decoded

    def counted(*arguments: Any) -> Any:
        column = decode(*arguments)
        found["Arrow" if column is None else "us"] += 1
        return column

    monkeypatch.setattr(parquet_lists, "_decoded", counted)
    return found


def lists(
    lengths: np.ndarray[Any, Any],
    *,
    ids: int = 1 << 30,
    number: Any = np.int64,
    element: pa.Field | None = None,
    missing: np.ndarray[Any, Any] | None = None,
    seed: int = 0,
) -> pa.ListArray:
    random = np.random.default_rng(seed)
    offsets = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    values = pa.array(random.integers(0, ids, offsets[-1]).astype(number))
    kind = None if element is None else pa.list_(element)
    mask = None if missing is None else pa.array(missing)
    return pa.ListArray.from_arrays(offsets, values, type=kind, mask=mask)


def lengths(most: int, rows: int = ROWS, seed: int = 1) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).integers(0, most + 1, rows)


def check(file: Path, columns: list[str]) -> None:
    """Columns of each stripe are what Arrow alone reads."""
    alone, ours = pq.ParquetFile(file), opened(file)
    for group in range(alone.num_row_groups):
        for threads in (False, True):
            want = alone.read_row_group(group, columns=columns)
            found = ours.read_row_group(group, columns=columns, use_threads=threads)
            assert found.schema.equals(want.schema, check_metadata=True)
            for column in columns:
                for chunk in found[column].chunks:
                    chunk.validate(full=True)
                assert found[column].equals(want[column])


@pytest.mark.parametrize("compression", ["none", "snappy", "zstd"])
@pytest.mark.parametrize("dictionary", [False, True])
@pytest.mark.parametrize("page", [64, 1000, 1 << 20])
def test_lists_are_those_that_arrow_reads(
    tmp_path: Path, decoded_by: dict[str, int], compression: str, dictionary: bool, page: int
) -> None:
    columns = {
        "long": lists(lengths(40)),
        "few ids": lists(lengths(3), ids=100, number=np.int32),
        "one id each": lists(np.ones(ROWS, np.int64), ids=1),
        "floats": lists(lengths(5), number=np.float32),
        "all empty": lists(np.zeros(ROWS, np.int64)),
        "nearly all empty": lists((lengths(200) == 7).astype(np.int64) * 300, ids=50),
        "one list longer than pages": lists(np.where(np.arange(ROWS) == 5, 9_000, 1), ids=9),
    }
    pq.write_table(
        pa.table(columns),
        tmp_path / "a.parquet",
        compression=compression,
        use_dictionary=dictionary,
        data_page_size=page,
        row_group_size=1_700,
        write_page_checksum=True,
    )
    check(tmp_path / "a.parquet", [*columns])
    assert decoded_by == {"us": 2 * 2 * len(columns), "Arrow": 0}


@pytest.mark.parametrize("list_nullable", [False, True])
@pytest.mark.parametrize("element_nullable", [False, True])
@pytest.mark.parametrize("share", [0.01, 0.5, 1.0])
def test_missing_lists_stay_missing(
    tmp_path: Path,
    decoded_by: dict[str, int],
    list_nullable: bool,
    element_nullable: bool,
    share: float,
) -> None:
    missing = np.random.default_rng(2).random(ROWS) < share if list_nullable else None
    element = pa.field("element", pa.int64(), nullable=element_nullable)
    column = lists(lengths(6), element=element, missing=missing)
    schema = pa.schema([pa.field("ids", column.type, nullable=list_nullable)], {"of": "its writer"})
    pq.write_table(pa.table([column], schema=schema), tmp_path / "a.parquet")
    check(tmp_path / "a.parquet", ["ids"])
    assert decoded_by == {"us": 2, "Arrow": 0}


@pytest.mark.parametrize(
    "options",
    [
        {"compression": "gzip"},
        {"data_page_version": "2.0"},
        {"use_dictionary": False, "column_encoding": {"ids.list.element": "DELTA_BINARY_PACKED"}},
    ],
    ids=["another compression", "pages of version 2", "another encoding"],
)
def test_arrow_decodes_what_is_not_familiar(
    tmp_path: Path, decoded_by: dict[str, int], options: dict[str, Any]
) -> None:
    table = pa.table({"ids": lists(lengths(6)), "label": np.arange(ROWS)})
    pq.write_table(table, tmp_path / "a.parquet", **options)
    check(tmp_path / "a.parquet", ["label", "ids"])
    assert decoded_by["us"] == 0


def test_arrow_decodes_lists_in_which_a_number_is_missing(
    tmp_path: Path, decoded_by: dict[str, int]
) -> None:
    odd = pa.array([[1, None], [], None, [2]] * 50, pa.list_(pa.int64()))
    deep = pa.array([[[1], []], []] * 100, pa.list_(pa.list_(pa.int64())))
    small = pa.array([[1, 2], []] * 100, pa.list_(pa.int16()))
    table = pa.table({"odd": odd, "deep": deep, "small": small, "ids": lists(lengths(6, 200))})
    pq.write_table(table, tmp_path / "a.parquet")
    check(tmp_path / "a.parquet", ["ids", "odd", "small", "deep"])
    assert decoded_by == {"us": 2, "Arrow": 2}  # others are not even tried


def test_arrow_decompresses_where_libzstd_is_not_found(
    tmp_path: Path, decoded_by: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet_lists, "zstd_function", lambda: 0)
    table = pa.table({"ids": lists(lengths(6), ids=50), "long": lists(lengths(40))})
    pq.write_table(table, tmp_path / "a.parquet", compression="zstd", data_page_size=1_000)
    check(tmp_path / "a.parquet", ["ids", "long"])
    assert decoded_by == {"us": 4, "Arrow": 0}


def test_libzstd_is_found_where_zstandard_is_as_we_know_it() -> None:
    assert zstd_function() != 0


@pytest.mark.parametrize("size", [0, 1, 15, 16, 17, 4_099])
def test_checksums_are_those_of_zlib(size: int) -> None:
    data = np.random.default_rng(size).integers(0, 256, size).astype(np.uint8)
    assert crc32(data) == zlib.crc32(data.tobytes())


def test_names_with_dots_do_not_take_each_others_lists(tmp_path: Path) -> None:
    columns = {"a": lists(lengths(3)), "a.b": lists(lengths(5, seed=4)), "c.d": lists(lengths(2))}
    structs = pa.array([{"list": {"element": 1}}] * ROWS)
    pq.write_table(pa.table({**columns, "c": structs}), tmp_path / "a.parquet")
    for wanted in (["a"], ["a", "c"], ["a", "a.b"], ["a.b"], ["c.d"], [*columns, "c"]):
        check(tmp_path / "a.parquet", wanted)


def test_names_with_dots_are_decoded_as_others_are(
    tmp_path: Path, decoded_by: dict[str, int]
) -> None:
    """As an import calls fields of structs."""
    columns = {"user.ids": lists(lengths(3)), "user": lists(lengths(5, seed=4))}
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    check(tmp_path / "a.parquet", [*columns])
    assert decoded_by["us"] >= 2
    assert decoded_by["Arrow"] == 0


def test_names_with_dots_are_fetched_as_others_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a store what is fetched comes at once, and what is not, one request after another."""
    asked: list[tuple[int, int]] = []
    fetch = FetchedFile.fetch

    def counted(file: FetchedFile, spans: list[tuple[int, int]]) -> None:
        asked.extend(spans)
        fetch(file, spans)

    monkeypatch.setattr(FetchedFile, "fetch", counted)
    columns = {"user.ids": lists(lengths(3)), "user": lists(lengths(5, seed=4))}
    pq.write_table(pa.table(columns), tmp_path / "a.parquet", compression="gzip")
    group = pq.read_metadata(tmp_path / "a.parquet").row_group(0)
    sizes = [group.column(number).total_compressed_size for number in range(2)]
    for number, name in enumerate(columns):
        asked.clear()
        check(tmp_path / "a.parquet", [name])
        assert {size for _, size in asked} == {sizes[number]}


@pytest.mark.parametrize("rows", [0, 1, 63, 64, 65, 128])
def test_any_number_of_rows(tmp_path: Path, rows: int) -> None:
    table = pa.table({"ids": lists(lengths(3, rows)), "one": lists(np.ones(rows, np.int64))})
    pq.write_table(table, tmp_path / "a.parquet")
    check(tmp_path / "a.parquet", ["one", "ids"])


def test_a_column_asked_for_twice_comes_once(tmp_path: Path) -> None:
    pq.write_table(pa.table({"ids": lists(lengths(3)), "x": np.arange(ROWS)}), tmp_path / "a")
    found = opened(tmp_path / "a").read_row_group(0, columns=["ids", "x", "ids"])
    assert found.column_names == ["ids", "x"]


@pytest.mark.parametrize("compression", ["none", "snappy", "zstd"])
@pytest.mark.parametrize("dictionary", [False, True])
@pytest.mark.parametrize("checksums", [False, True])
def test_damage_is_found_as_arrow_finds_it(
    tmp_path: Path, compression: str, dictionary: bool, checksums: bool
) -> None:
    # Without checksums, some damage gives other numbers: the same ones as Arrow's.
    table = pa.table({"ids": lists(lengths(6, 400), ids=1_000), "few": lists(lengths(1, 400))})
    whole = tmp_path / "whole"
    pq.write_table(
        table,
        whole,
        compression=compression,
        use_dictionary=dictionary,
        data_page_size=200,
        write_page_checksum=checksums,
    )
    healthy = whole.read_bytes()
    pages = len(healthy) - 8 - int.from_bytes(healthy[-8:-4], "little")
    random = np.random.default_rng(3)
    raised = 0
    for number in range(150):
        damaged = bytearray(healthy)
        damaged[int(random.integers(4, pages))] ^= 1 << int(random.integers(8))
        file = tmp_path / str(number)
        file.write_bytes(damaged)
        want, found = (
            _read(pq.ParquetFile(file, page_checksum_verification=True)),
            _read(opened(file)),
        )
        assert type(found) is type(want)
        if isinstance(want, pa.Table):
            assert found.equals(want)
        else:
            raised += 1
    assert raised > 0


OF_DATA = "15 02 15 00 15 06 15 06 00"


@pytest.mark.parametrize(
    "header",
    [
        f"15 00 15 02 15 02 2c 1c 15 02 00 {OF_DATA[6:]} 00",
        "15 00 15 02 15 02 25 00 00",
        f"1c 15 00 00 15 02 15 02 2c {OF_DATA} 00",
        f"15 00 1c 15 02 00 15 02 2c {OF_DATA} 00",
        f"15 {'ff ' * 11}",
        "19",
    ],
    ids=["count", "facts", "type", "size", "a number without an end", "a list"],
)
def test_a_damaged_header_is_left_to_arrow(header: str) -> None:
    """A number and a struct, for one, are exchanged where a bit flipped."""
    whole = bytes.fromhex(f"15 00 15 02 15 02 2c {OF_DATA} 00") + b"x"
    assert [page.num_values for page in pages_of(memoryview(whole), 9)] == [1]
    with pytest.raises(OtherPages):
        pages_of(memoryview(bytes.fromhex(header) + b"x"), 9)


def _read(file: pq.ParquetFile) -> pa.Table | Exception:
    try:
        return file.read_row_group(0, columns=["ids", "few"])
    except (pa.ArrowException, OSError) as error:
        return error
