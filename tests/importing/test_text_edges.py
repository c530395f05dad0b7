"""Value tests: where text begins, what its first row is, and numbers that are none to others: what
is read is what Python's csv reads."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pyarrow as pa
import pytest
from imported_tables import recd
from strangers_files import text

from recd_plugins.data.importing import formats
from recd_plugins.data.importing.column_types import ColumnTypes, Misfit
from recd_plugins.data.importing.reading import blocks
from recd_plugins.data.importing.surveying import sample as samples
from recd_plugins.data.importing.surveying.survey import survey
from recd_plugins.data.importing.table_files import foreign_files
from recd_plugins.data.importing.text import whole_lines
from recd_plugins.data.importing.text.encodings import BOM
from recd_plugins.data.importing.text.json_rows import read_json
from recd_plugins.data.importing.text_form import TextForm
from recd_plugins.data.importing.vocabulary_pass import write_vocabulary
from recd_plugins.errors import DataError

HEADER = TextForm(header=True, delimiter=",")


def rows_of(path: Path, form: TextForm = HEADER) -> list[list[str]]:
    (file,) = foreign_files([path], form)
    found = [block.rows(file.names, ColumnTypes()).to_pylist() for block in blocks([file], ())]
    return [[*file.names], *([*row.values()] for part in found for row in part)]


@pytest.mark.parametrize("ends", ["\n", "\r\n"])
@pytest.mark.parametrize("bom", [b"", BOM])
@pytest.mark.parametrize(
    "content",
    [
        "\n\na,b\n1,2\n3,4\n",
        '"a\nx",b\n1,2\n"3\n",4\n',
        '\n"a\n\nx",b\n\n1,2\n',
        "a,b",
        'a,b\n"x\n","y"\n"\n",z\n',  # a quote that ends a field begins its line
    ],
)
def test_a_header_may_have_several_lines_and_empty_ones_above(
    tmp_path: Path, content: str, bom: bytes, ends: str
) -> None:
    content = content.replace("\n", ends)
    path = text(tmp_path / "data.csv", bom + content.encode())
    wanted = [row for row in csv.reader(io.StringIO(content, newline="")) if row]
    assert rows_of(path) == wanted


def test_a_line_below_a_header_of_several_lines_has_its_number(tmp_path: Path) -> None:
    path = text(tmp_path / "data.csv", '\n"a\nx",b\n1,2\n3\n')
    with pytest.raises(DataError, match=r"data\.csv:5: Expected 2 columns, got 1"):
        rows_of(path)


TIMES = ColumnTypes(types={"at": pa.timestamp("us")})


@pytest.mark.parametrize(
    "odd",
    ["2024/02/31", "2023/02/29 10:00", "2024/04/31 10:00:00", "2024/01/05 10:00:60", "24/01/05"],
)
def test_a_time_that_no_calendar_has_is_named(tmp_path: Path, odd: str) -> None:
    """Arrow takes 2024/02/31 for the 2nd of March, and 24/01/05 for the year 24."""
    path = text(tmp_path / "data.csv", f"at,b\n2024/02/29 23:59:59,1\n{odd},2\n")
    (file,) = foreign_files([path], HEADER)
    (block,) = blocks([file], ())
    said = rf"data\.csv:3: column 'at': '{odd}' is no time, as .* Correct this value"
    with pytest.raises(Misfit, match=said):
        block.rows(["at"], TIMES)


def test_times_of_several_forms_are_read_beside_each_other(tmp_path: Path) -> None:
    times = ["2024/02/29 23:59:59", "2024/1/5 1:02:03", " 2024/12/31 00:00", "2024/02/29", ""]
    times += ["2024-02-29 23:59:59", "2024-12-31"]
    path = text(tmp_path / "data.csv", "at,b\n" + "".join(f"{one},a/b\n" for one in times))
    (file,) = foreign_files([path], HEADER)
    (block,) = blocks([file], ())
    read = [one and str(one) for one in block.rows(["at"], TIMES)["at"].to_pylist()]
    right = ["2024-02-29 23:59:59", "2024-01-05 01:02:03", "2024-12-31 00:00:00"]
    right += ["2024-02-29 00:00:00", None, "2024-02-29 23:59:59", "2024-12-31 00:00:00"]
    assert read == right


def test_a_row_that_a_carriage_return_parts_from_the_header_is_read(tmp_path: Path) -> None:
    path = text(tmp_path / "data.csv", "a,b\r1,2\n3,4\n")
    assert rows_of(path) == [["a", "b"], ["1", "2"], ["3", "4"]]


@pytest.mark.parametrize("size", [8, 1 << 20])
def test_a_byte_order_mark_in_the_middle_is_part_of_its_field(
    tmp_path: Path, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where files were joined: a block begins with it, and a row of it alone is one."""
    monkeypatch.setattr(whole_lines, "BLOCK_BYTES", size)
    rows = ["a", "\ufeffx", "\ufeff", "yyyyyyyy", "\ufeff", "\ufeffz", "y\ufeff"]
    path = text(tmp_path / "data.csv", "\n".join(rows))
    assert rows_of(path) == [[row] for row in rows]


@pytest.mark.parametrize("content", [BOM, BOM + b"\n", BOM + b" \r\n"])
def test_a_file_of_a_byte_order_mark_alone_is_named(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(DataError, match=r"data\.csv: the file has no text\. Take it out"):
        foreign_files([text(tmp_path / "data.csv", content)])


@pytest.mark.parametrize("form", [None, HEADER, TextForm(header=False)])
def test_a_first_field_may_be_long(tmp_path: Path, form: TextForm | None) -> None:
    """Python's csv refuses more than 128 KiB."""
    path = text(tmp_path / "data.csv", f"{'x' * 140_000},1\n{'y' * 140_000},0\n")
    (file,) = foreign_files([path], form)
    assert (len(file.names), file.delimiter) == (2, ",")


def test_a_line_that_is_longer_than_what_is_looked_at_is_no_other_encoding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(formats, "HEAD_BYTES", 1_000)
    for before in range(4):  # the cut is amid a character
        path = text(tmp_path / "data.json", "[" + " " * before + '{"a": "' + "\u65e5" * 900 + '"}]')
        with pytest.raises(DataError, match="begins a JSON array"):
            foreign_files([path])


def test_lines_of_json_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    path = text(tmp_path / "a.jsonl", BOM + b'{"label": 1, "x": 5}\n{"label": 0, "x": 6}\n')
    found = survey(foreign_files([path]))
    (block,) = blocks(found.files, ())
    assert block.rows(["x"], found.read_as).to_pylist() == [{"x": 5}, {"x": 6}]


@pytest.mark.parametrize("code", ["0x1F", "0X1f", "-0x1F"])
def test_hexadecimal_ids_are_texts_as_they_are_in_parquet(
    tmp_path: Path, code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Arrow takes them for numbers: 0x1F and 31 would be one id."""
    lines = [f"{one % 2},{code},{code}|7,{code}:0.5|3:1" for one in range(40)]
    head = "label,x,lists,scored\n"
    path = text(tmp_path / "a.csv", head + "\n".join(lines))
    found = survey(foreign_files([path]))
    kinds = {one.name: one.type for one in found.columns}
    assert kinds["x"] == pa.string()
    assert kinds["lists"] == pa.list_(pa.string())
    assert kinds["scored"].value_type.field("id").type == pa.string()

    monkeypatch.setattr(samples, "FIRST_BYTES", 400)
    monkeypatch.setattr(samples, "SPOT_BYTES", 40)
    monkeypatch.setattr(whole_lines, "BLOCK_BYTES", 1_000)
    lines = [line.replace(code, "5") for line in lines] * 9
    lines[177] = lines[177].replace(",5,", f",{code},")
    path = text(tmp_path / "b.csv", head + "\n".join(lines))
    found = survey(foreign_files([path]))
    assert found.read_as.types["x"] == pa.int64()
    with pytest.raises(Misfit, match=rf"b\.csv:179: column 'x': .*'{code}'"):
        [block.rows(["label", "x"], found.read_as) for block in blocks(found.files, ())]


ENDS_IN_A_BACKSLASH = {
    "shift_jis": "\u8868",
    "cp932": "\u30bd",
    "gb18030": "\u4e57",
    "big5": "\u4e48",
    "euc_jp": "\u8868",  # has none in its bytes
}


@pytest.mark.parametrize("encoding", ENDS_IN_A_BACKSLASH)
@pytest.mark.parametrize("size", [37, 1 << 20])
def test_the_last_byte_of_a_character_is_no_backslash(
    tmp_path: Path, encoding: str, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The quote behind it ends its field, or is one of it, as in text of ASCII."""
    monkeypatch.setattr(whole_lines, "BLOCK_BYTES", size)
    word = ENDS_IN_A_BACKSLASH[encoding]
    texts = [f'say "{word}", {word}', word, f"{word * 3}|", f'{word}"x', f'"{word}', "\u6f22"]
    escaped = ['"' + one.replace('"', '\\"') + '"' for one in texts]
    lines = "".join(f"{number},{one}\n" for number, one in enumerate(escaped * 9))
    path = text(tmp_path / "a.csv", f"a,b\n{lines}".encode(encoding))
    form = TextForm(encoding=encoding, header=True, delimiter=",")
    assert rows_of(path, form) == [["a", "b"], *([str(n), one] for n, one in enumerate(texts * 9))]


@pytest.mark.parametrize("command", ["schema", "check"])
def test_a_quote_that_is_never_closed_is_named_where_its_row_has_too_few_fields(
    tmp_path: Path, command: str
) -> None:
    """In one line, without those that it swallowed."""
    rows = "".join(f"{one % 2},{one},x\n" for one in range(50))
    path = text(tmp_path / "a.csv", f'label,user,item\n{rows}1,"2,3\n{rows}')
    told = recd("data", command, path, fails=2 if command == "schema" else 1)
    (line,) = (one for one in told.splitlines() if "a.csv:52: " in one)
    assert 'a.csv:52: opens a quote that is never closed: "2,3. Close it, or double it' in line
    assert "Expected 3 columns" not in told


def test_a_quote_that_is_never_closed_is_named_in_any_encoding(tmp_path: Path) -> None:
    lines = ['0,"\u8868 \\" \u8868"', '1,"\u8868', "2,x"]
    path = text(tmp_path / "a.csv", "\n".join(lines).encode("shift_jis"))
    form = TextForm(encoding="shift_jis", header=False, delimiter=",")
    with pytest.raises(DataError, match=r'a\.csv:2: opens a quote that is never closed: "\u8868\.'):
        rows_of(path, form)


@pytest.mark.parametrize("form", ["csv", "jsonl"])
def test_bytes_of_another_encoding_are_named_where_they_are_read(
    tmp_path: Path, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind what is looked at first; Arrow takes any bytes for texts of JSON."""
    monkeypatch.setattr(formats, "HEAD_BYTES", 400)
    monkeypatch.setattr(samples, "FIRST_BYTES", 400)
    monkeypatch.setattr(samples, "SPOT_BYTES", 40)
    line = "0,5,x" if form == "csv" else '{"label": 0, "a": 5, "b": "x"}'
    lines = [line] * 200
    lines[190] = line.replace("x", "caf\u00e9")
    lines = ["label,a,b"] * (form == "csv") + lines
    content = "".join(f"{line}\n" for line in lines).encode("latin-1")
    found = survey(foreign_files([text(tmp_path / f"a.{form}", content)]))
    (block,) = blocks(found.files, ())
    assert block.rows(["a"], found.read_as).num_rows == 200
    line = "192" if form == "csv" else "191"
    with pytest.raises(DataError, match=rf"a\.{form}:{line}: .*Give its encoding"):
        block.rows(["a", "b"], found.read_as)


@pytest.mark.parametrize("last", ["", "\n", "\r", "\r\n"])
def test_lines_that_end_in_carriage_returns_alone_are_named_whatever_the_last_ends_in(
    tmp_path: Path, last: str
) -> None:
    for name, content in {
        "a.csv": "label,x\r1,2\r0,5",
        "a.jsonl": '{"x": 1}\r{"x": 2}\r{}',
    }.items():
        path = text(tmp_path / name, content + last)
        with pytest.raises(DataError, match="its lines end in carriage returns alone"):
            survey(foreign_files([path]))


def test_lines_are_counted_by_newlines_where_carriage_returns_end_rows_too(tmp_path: Path) -> None:
    """As `sed -n 352p` counts them: it said 503."""
    lines = ["a,b\n"] + [f"{one},{one % 7}" + "\n\r"[one % 2] for one in range(1_000)]
    lines[701] = '700,1,"\r"\n'
    lines[80:80] = ['1,"x\ry\n\r\nz"\r', "\r", "\n"]
    path = text(tmp_path / "a.csv", "".join(lines))
    (number,) = (n for n, one in enumerate(path.read_bytes().split(b"\n"), 1) if b"700,1," in one)
    with pytest.raises(DataError, match=rf"a\.csv:{number}: Expected 2 columns, got 3"):
        rows_of(path)


def test_a_value_that_no_vocabulary_can_have_is_named_without_a_row(tmp_path: Path) -> None:
    """Equal values are counted together: the row that it named was another."""
    lines = [f'{{"x": {one % 5 + 0.5 * (one == 90)}}}' for one in range(100)]
    found = survey(foreign_files([text(tmp_path / "a.jsonl", "\n".join(lines))]))
    with pytest.raises(DataError, match=r"holds 0\.5, which is no whole number\. An id is"):
        write_vocabulary(found, ["x"], tmp_path / "x.parquet", most=100)


@pytest.mark.parametrize("before", ["", " \n\t"])
@pytest.mark.parametrize("schema", [None, pa.schema([("a", pa.int64())])])
def test_objects_may_begin_with_a_null(before: str, schema: pa.Schema | None) -> None:
    """Arrow's reader would end the process: a file is cut into parts wherever lines end."""
    lines = pa.py_buffer(f'{before}null\nnull\n{{"a": 1}}\n'.encode())
    assert read_json(lines, schema).to_pylist() == [{"a": None}, {"a": None}, {"a": 1}]
