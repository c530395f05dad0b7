"""Value tests: what a foreign file is follows from its content, and its rows are read whole."""

from __future__ import annotations

import re
import shutil
import subprocess
import zlib
from functools import cache
from pathlib import Path

import pyarrow as pa
import pytest
from strangers_files import PACKINGS, clicks, text, write

from recd_plugins.data.importing import formats, reading
from recd_plugins.data.importing.column_types import ColumnTypes
from recd_plugins.data.importing.reading import Position, blocks
from recd_plugins.data.importing.surveying import sample as samples
from recd_plugins.data.importing.surveying.survey import survey
from recd_plugins.data.importing.table_files import foreign_files
from recd_plugins.data.importing.text import whole_lines
from recd_plugins.data.importing.text_form import TextForm
from recd_plugins.errors import DataError


def rows_of(path: Path, start: Position | None = None) -> pa.Table:
    files = foreign_files([path])
    names, read_as = list(files[0].names), survey(files).read_as
    return pa.concat_tables(
        [block.rows(names, read_as) for block in blocks(files, names, start)]
    ).combine_chunks()


TEXTS = [(suffix, packing) for suffix in (".csv", ".tsv", ".jsonl") for packing in PACKINGS]


@pytest.mark.parametrize(("suffix", "packing"), [*TEXTS, (".parquet", "")])  # packed within
def test_every_format_holds_the_same_rows(
    tmp_path: Path, suffix: str, packing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In blocks of some lines, and from each of them on; the name says nothing of the packing."""
    monkeypatch.setattr(whole_lines, "BLOCK_BYTES", 4_000)
    monkeypatch.setattr(reading, "BATCH_ROWS", 90)
    table = clicks()
    options = {"row_group_size": 150} if suffix == ".parquet" else {}
    path = write(tmp_path / f"clicks{suffix}.part", table, PACKINGS[packing], **options)
    whole = rows_of(path)
    assert whole.to_pylist() == table.to_pylist()
    files = foreign_files([path])
    names, read_as = list(files[0].names), survey(files).read_as
    found = list(blocks(files, names))
    assert len(found) > 4
    assert found[-1].done == path.stat().st_size
    read = 0
    for block in found:
        read += len(block.rows(names, read_as))
        if block.after is not None and read < len(table):
            assert rows_of(path, block.after).to_pylist() == table.slice(read).to_pylist()


@pytest.mark.parametrize(
    ("content", "names", "rows"),
    [
        ("user,item\n1,2\n3,4\n", ("user", "item"), 2),
        ("1,2\n3,4", ("column_1", "column_2"), 2),
        ("a\tb\nx\ty\n", ("a", "b"), 1),
        ("red,blue\nred,green\n", ("column_1", "column_2"), 2),  # a value of its column is no name
        ("\ufeffuser;item\n1;2\n", ("user", "item"), 1),
        ("user_id:token\titem_id:token\n7\t8\n", ("user_id", "item_id"), 1),
        ('a,b\n"x,1","two\nlines"\n"say ""so""",z\n', ("a", "b"), 2),
        ("a,a,b\n1,2,3\n", ("a", "a_2", "b"), 1),
        (",user\n0,5\n1,6\n", ("column_1", "user"), 2),  # an index of pandas
        ("a\r\n1\r\n2\r\n", ("a",), 2),
        ("user|item\n1|2\n", ("user", "item"), 1),
        ("1::2::3\r\n4::5::6\r\n", ("column_1", "column_2", "column_3"), 2),
        ("user::at\n1::x|y\n", ("user", "at"), 1),
        ("item;a;b\nx;3,5;4,5\n", ("item", "a", "b"), 1),  # commas part as many
        ("A/B id,CTR (%),#clicks,\u20ac\n1,2,3,4\n", ("A/B id", "CTR (%)", "#clicks", "\u20ac"), 1),
        ('Artikel;"Preis, netto"\na;3,5\nb;4\n', ("Artikel", "Preis, netto"), 2),
        ('"Schuh, rot";unbekannt\n"Hose, blau";3,5\n', ("column_1", "column_2"), 2),
        ('"Schuh, rot";"a,b"\n"Hose, blau";"3,5"\n', ("column_1", "column_2"), 2),
        ("Schuh+;3,5\nHose+;4,5\n", ("column_1", "column_2"), 2),
        ("$5,#a\n$6,#b\n", ("column_1", "column_2"), 2),
        ("ab#1\t\\N\ncd#2\t3\n", ("column_1", "column_2"), 2),
    ],
)
def test_text_shows_its_delimiter_and_header(
    tmp_path: Path, content: str, names: tuple[str, ...], rows: int
) -> None:
    path = text(tmp_path / "data", content)
    assert foreign_files([path])[0].names == names
    assert len(rows_of(path)) == rows


def test_what_the_user_says_counts(tmp_path: Path) -> None:
    path = text(tmp_path / "data", "red,blue\nred,green\n")
    (file,) = foreign_files([path], TextForm(header=True, delimiter=";"))
    assert file.names == ("red,blue",)


def test_a_quoted_line_end_ends_no_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(whole_lines, "BLOCK_BYTES", 50)
    values = [f"line {one}\nand, another" for one in range(40)]
    path = write(tmp_path / "a.csv", pa.table({"n": list(range(40)), "text": values}))
    assert rows_of(path)["text"].to_pylist() == values


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "the file is empty"),
        (b"PK\x03\x04....", "is a zip archive. Unpack it"),
        (b"\xff\xfea\x00b\x00", "UTF-16. Write it as UTF-8"),
        (b"PAR1 but no more", "not a whole Parquet file"),
        (
            b"\x1f\x8b\x08\x00 no gzip",
            r"cannot be unpacked .*cut short or damaged: download it again",
        ),
        (b"a,b\n1,caf\xe9\n", "data:2: holds bytes that are no UTF-8"),
        (b'[{"a": 1}]', "begins a JSON array. Write one object per line"),
        (b'{"a": 1}\n{"a": \n', "data:2: is no JSON object on one line"),
        (b'{"a": 1}\n[1]\n', "data:2: is no JSON object, but .*Write an object there"),
        (b"\x00\x01\x02\x00", "neither Parquet nor text"),
        (b"Obj\x01\x04\x14avro.codec", "an Avro file. Write it as Parquet"),
        (b"\x1f\x9d\x90abc", r"compressed by compress. Unpack it \(uncompress\)"),
        (b"\xff\x06\x00\x00sNaPpYabc", "compressed by Snappy. Unpack it"),
        (b"\x80\x04\x95abc", "a pickle, which may run any code"),
    ],
)
def test_what_is_none_of_them_is_named(tmp_path: Path, content: bytes, says: str) -> None:
    path = text(tmp_path / "data", content)
    with pytest.raises(DataError, match=says):
        foreign_files([path])
    if b"PK" in content:
        with pytest.raises(DataError, match=r"an Excel sheet\. Save it"):
            foreign_files([text(tmp_path / "data.xlsx", content)])


def test_files_that_differ_are_no_table(tmp_path: Path) -> None:
    write(tmp_path / "a.csv", pa.table({"a": [1], "b": [2]}))
    write(tmp_path / "b.csv", pa.table({"a": [1], "c": [2]}))
    with pytest.raises(
        DataError, match=r"b\.csv is .* ',', .* with columns a, c; .* the others\.$"
    ):
        foreign_files([tmp_path])
    write(tmp_path / "c.tsv", pa.table({"a": [1], "b": [2]}))
    with pytest.raises(DataError, match=r"name the others, as by a glob: 'FOLDER/\*\.csv'\.$"):
        foreign_files([tmp_path])
    (tmp_path / "none").mkdir()
    with pytest.raises(DataError, match="is an empty folder"):
        foreign_files([tmp_path / "none"])


def test_a_file_that_is_no_part_of_the_table_is_left_out_as_the_message_says(
    tmp_path: Path,
) -> None:
    write(tmp_path / "a.parquet", pa.table({"a": [1], "b": [2]}))
    text(tmp_path / "README.md", b"hello\nthere\n")
    with pytest.raises(DataError, match=r"name the others, as by a glob: 'FOLDER/\*\.parq"):
        foreign_files([tmp_path])
    assert [file.format for file in foreign_files([tmp_path / "*.parquet"])] == ["parquet"]
    (tmp_path / "day=1").mkdir()
    (tmp_path / "a.parquet").rename(tmp_path / "day=1" / "a.parquet")
    with pytest.raises(DataError, match=r"as by a glob: 'FOLDER/\*\*/\*\.parquet'"):
        foreign_files([tmp_path])
    found = foreign_files([tmp_path / "**" / "*.parquet"])
    assert [file.format for file in found] == ["parquet"]


def test_a_line_cut_short_is_named_with_its_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(whole_lines, "BLOCK_BYTES", 64)
    lines = [f"{one},{one}" for one in range(50)]
    lines[40] = "40"
    path = text(tmp_path / "data", "a,b\n" + "\n".join(lines))
    files = foreign_files([path])
    with pytest.raises(DataError, match=r"data:42: Expected 2 columns, got 1: 40"):
        [block.rows(["a"], ColumnTypes()) for block in blocks(files, ["a"])]


@pytest.mark.parametrize("packing", ["gzip", "zstd", "bz2", "lz4"])
@pytest.mark.parametrize("seen", ["the head", "the sample", "a block"])
def test_a_packed_file_that_is_cut_short_is_named_with_a_cure_that_works(
    tmp_path: Path, packing: str, seen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    suffix = {packing: suffix for suffix, packing in PACKINGS.items()}[packing]
    lines = [f"{one},{hash_of(one)}" for one in range(80_000)]
    plain = text(tmp_path / "clicks.csv", "item,code\n" + "\n".join(lines) + "\n")
    cut = tmp_path / f"clicks.csv{suffix}"
    with pa.OSFile(str(cut), "wb") as file, pa.CompressedOutputStream(file, packing) as packed:
        packed.write(plain.read_bytes())
    text(cut, cut.read_bytes()[: cut.stat().st_size * 3 // 4])
    plain.unlink()
    if seen != "the head":
        monkeypatch.setattr(formats, "HEAD_BYTES", 40_000)
    if seen == "a block":
        monkeypatch.setattr(samples, "PACKED_BYTES", 40_000)
    with pytest.raises(
        DataError, match=rf"{cut}: cannot be .* It was cut short or damaged: download"
    ) as told:
        rows_of(cut)
    (command,) = re.findall(r"may be incomplete: (.*)", str(told.value))
    if shutil.which(command.split()[0]) is None:
        pytest.skip(f"{command.split()[0]}, which the advice names, is not there to try it")
    subprocess.run(["/bin/sh", "-c", command], cwd=tmp_path, check=True, capture_output=True)
    rows = rows_of(plain)
    assert 10_000 < len(rows) < 80_000
    assert rows["code"].to_pylist() == [hash_of(one) for one in range(len(rows))]


@cache
def hash_of(number: int) -> str:
    return f"x{zlib.crc32(b'%d' % number):08x}"


@pytest.mark.parametrize("delimiter", ["", "ab", "/proc/self/mem", '"', "\n", "\u0661"])
def test_what_parts_no_fields_is_refused(tmp_path: Path, delimiter: str) -> None:
    file = text(tmp_path / "t.csv", "a,b\n1,2\n")
    with pytest.raises(DataError, match="separated by one character"):
        foreign_files([file], TextForm(delimiter=delimiter))
