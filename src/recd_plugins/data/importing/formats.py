"""The format of a foreign file, by its content: Parquet, lines of JSON, or delimited text."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from recd_plugins.data.importing.foreign_file import (
    UNPACKERS,
    ForeignFile,
    cut_short,
    own_names,
    shell_files,
)
from recd_plugins.data.importing.struct_fields import MOST_FIELDS, fields_of
from recd_plugins.data.importing.text.delimited import HEAD_LINES, delimited_file
from recd_plugins.data.importing.text.encodings import BOM, decoded
from recd_plugins.data.importing.text_form import TextForm
from recd_plugins.data.parquet.footer import arrow_schema, footer_of
from recd_plugins.data.parquet.table_names import TableNames
from recd_plugins.errors import DataError
from recd_plugins.storage.no_file import no_file
from recd_plugins.storage.uri import Location, input_file

__all__ = ["PARQUET", "format_of"]

HEAD_BYTES = 1 << 20
"""What is read of a file to find out what it is."""
COMPRESSIONS = {
    b"\x1f\x8b": "gzip",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"BZh": "bz2",
    b"\x04\x22\x4d\x18": "lz4",
}
"""How compressed files begin."""
PICKLE = "a pickle, which may run any code when it is read. Write it as Parquet"
OTHERS = {
    b"PK\x03\x04": "a zip archive. Unpack it",
    b"\xfd7zXZ": "compressed by xz. Unpack it (unxz)",
    b"\x1f\x9d": "compressed by compress. Unpack it (uncompress)",
    b"\xff\x06\x00\x00sNaPpY": "compressed by Snappy. Unpack it",
    b"Obj\x01": "an Avro file. Write it as Parquet",
    b"SEQ\x06": "a SequenceFile of Hadoop. Write it as Parquet",
    b"\x80\x03": PICKLE,
    b"\x80\x04\x95": PICKLE,
    b"\x80\x05\x95": PICKLE,
    b"ARROW1": "an Arrow (Feather) file. Write it as Parquet",
    b"FEA1": "an Arrow (Feather) file. Write it as Parquet",
    b"\xff\xff\xff\xff": "a stream of Arrow's. Write it as Parquet",
    b"ORC": "an ORC file. Write it as Parquet",
    b"\x89HDF": "an HDF5 file. Write it as Parquet",
    b"\x93NUMPY": "a NumPy file. Write it as Parquet, beside the columns that others hold: "
    "pyarrow.parquet.write_table(pyarrow.table({f'c{i}': numpy.load(FILE)[:, i] for i in "
    "range(COLUMNS)}), 'rows.parquet')",
    b"\xff\xfe": "text in UTF-16. Write it as UTF-8 (iconv -f UTF-16 -t UTF-8)",
    b"\xfe\xff": "text in UTF-16. Write it as UTF-8 (iconv -f UTF-16 -t UTF-8)",
    b"SQLite format 3": "an SQLite database. Write its table as CSV or Parquet",
}
PARQUET = (b"PAR1", b"PARE")  # the latter with an encrypted footer
RETURNS = re.compile(r"\r(?!\n)")
"""Ends of lines where these are carriage returns alone, as of an old Macintosh."""
SVM = re.compile(
    r"[-+]?[\d.]+( qid:\d+)?( \d+:(?P<field>\d+:)?[-+]?[\d.]+([eE][-+]?\d+)?)+ *(#.*)?"
)
"""A line of libsvm, or with fields of libffm."""
SECTION = re.compile(r"\d+:\r?")
"""A line of the Netflix prize that says which film the lines below it rate."""


def format_of(
    path: Location, form: TextForm, encoding: str, table_names: TableNames | None
) -> ForeignFile:
    """What a file is by its first bytes, and as far as a form of text says it; its columns are
    called as its table calls them."""
    head, compression = _head(path)
    if not head.strip():
        raise DataError(f"{path}: the file is empty. Take it out, or download it again.")
    for magic, what in OTHERS.items():
        if head.startswith(magic):
            if path.suffix.lower() in (".xlsx", ".xlsm"):
                what = "an Excel sheet. Save it as CSV (UTF-8)"
            raise DataError(f"{path}: is {what}.")
    if head.startswith(PARQUET):
        if compression:
            raise DataError(f"{path}: is a Parquet file compressed by {compression}. Unpack it.")
        return _parquet(path, table_names)
    if b"\0" in head[:4096]:
        raise DataError(
            f"{path}: is neither Parquet nor text: it holds zero bytes. Write it as Parquet or CSV."
        )
    bom = len(BOM) if head.startswith(BOM) else 0
    head = head[bom:]
    text = decoded(head, path, encoding, whole=len(head) < HEAD_BYTES // 2)
    if not text.strip():
        raise DataError(f"{path}: the file has no text. Take it out, or download it again.")
    if len(RETURNS.findall(text)) > 1 and "\n" not in text.strip("\n"):
        raise DataError(
            f"{path}: its lines end in carriage returns alone. Write them with newlines: "
            f"tr '\\r' '\\n' < {shell_files(path, f'{path.stem}.unix{path.suffix}')}"
        )
    if text.lstrip().startswith("{") and (form.delimiter is None or _is_json(text)):
        return replace(_jsonl(path, text, compression), encoding=encoding, start=bom)
    if text.lstrip().startswith("[") and form.delimiter is None:
        raise _array_error(path, text, compression)
    if form.delimiter is None:
        _check_no_sections(path, text)
        _check_no_svm(path, text)
    return delimited_file(path, text, compression, bom, form, encoding)


def _head(path: Location) -> tuple[bytes, str | None]:
    compression = None
    if isinstance(path, Path) and (what := no_file(path)):  # a pipe would be waited for
        raise DataError(f"{path}: is {what}, not a file. Take it out.")
    try:
        with input_file(path) as file:
            # Of Parquet the footer is read; on a store a second read is another request.
            named = path.name.endswith(".parquet")
            head = file.read(4 if named else HEAD_BYTES)
            if named and head not in PARQUET:
                head += file.read(HEAD_BYTES)
            compression = next((c for m, c in COMPRESSIONS.items() if head.startswith(m)), None)
            if compression is None:
                return head, None
            file.seek(0)
            with pa.CompressedInputStream(file, compression) as stream:
                return stream.read(HEAD_BYTES), compression
    except (pa.ArrowException, OSError) as error:
        if compression is not None:
            raise cut_short(path, compression, "cannot be unpacked", error) from error
        raise DataError(
            f"{path}: cannot be read ({error}). Check its permissions, and what it links to."
        ) from error


def _parquet(path: Location, table_names: TableNames | None) -> ForeignFile:
    schema = arrow_schema(footer_of(path, table_names), path)
    if not schema.names:
        raise DataError(f"{path}: has no columns. Take it out, or write it again.")
    roots, renamed = own_names(schema.names)
    fields = fields_of(dict(zip(roots, schema.types, strict=True)))
    return ForeignFile(
        path=path,
        format="parquet",
        names=tuple(fields),
        renamed=renamed,
        roots=roots,
        nested={name: where for name, where in fields.items() if len(where) > 1},
        table_names=table_names,
    )


def _is_json(text: str) -> bool:
    """Whether the first line is an object, and names no column as {this}."""
    with suppress(ValueError):
        return isinstance(json.loads(text.strip().split("\n", 1)[0]), dict)
    return False


def _jsonl(path: Location, text: str, compression: str | None) -> ForeignFile:
    names: dict[str, None] = {}
    for number, line in enumerate(text.split("\n", HEAD_LINES)[:HEAD_LINES], 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            cure = f"Write one object per line ({_jq('-c .', path, compression)})."
            if names:  # a line before it is an object
                cure = "Correct this line, or take it out."
            elif line.startswith(("{'", "{u'")):
                cure = (
                    "It is a dict of Python: write json.dumps(ast.literal_eval(line)) of each line."
                )
            raise DataError(
                f"{path}:{number}: is no JSON object on one line ({error}). {cure}"
            ) from None
        if not isinstance(row, dict):
            raise DataError(
                f"{path}:{number}: is no JSON object, but {line[:40]!r}. Write an object there, or "
                "take the line out."
            )
        names.update(dict.fromkeys(_keys(row)))
    return ForeignFile(path=path, format="jsonl", names=tuple(names), compression=compression)


def _keys(row: Mapping[str, Any], before: str = "") -> Iterator[str]:
    for key, value in row.items():
        if isinstance(value, dict) and 0 < len(value) <= MOST_FIELDS:
            yield from _keys(value, f"{before}{key}.")
        else:
            yield before + key


def _jq(options: str, path: Location, compression: str | None) -> str:
    """The command that has jq read a file, packed or not."""
    if compression is None:
        return f"jq {options} {shlex.quote(str(path))}"
    return f"{UNPACKERS[compression]} -dc {shlex.quote(str(path))} | jq {options}"


def _array_error(path: Location, text: str, compression: str | None) -> DataError:
    """The error for a JSON array, or for lines of them."""
    try:
        rows = [json.loads(line) for line in text.strip().split("\n", 2)[:2]]
    except ValueError:
        rows = []
    if len(rows) == 2 and not any(isinstance(one, dict) for row in rows for one in row):
        jq, made = _jq("-r @csv", path, compression), shlex.quote(f"{path.stem}.rows.csv")
        return DataError(f"{path}: has a JSON array on each line. Write them as CSV: {jq} > {made}")
    jq = _jq("-c '.[]'", path, compression)
    return DataError(f"{path}: begins a JSON array. Write one object per line ({jq}).")


def _check_no_sections(path: Location, text: str) -> None:
    """As the Netflix prize has them: lines of `item:`, and below each its ratings."""
    lines = text.split("\n", HEAD_LINES)[:HEAD_LINES]
    sections = [line.strip() for line in lines if SECTION.fullmatch(line.strip())]
    if sections and lines[0].strip() == sections[0] and len(lines) > 1 and "," in lines[1]:
        raise DataError(
            f"{path}: has lines as {sections[0]!r}, which say what the lines below belong to. "
            'Write that into each line below: awk \'/:$/ {sub(":", ""); item = $0; next} '
            f'{{print item "," $0}}\' {shell_files(path, f"{path.stem}.csv")}'
        )


def _check_no_svm(path: Location, text: str) -> None:
    lines = [line for line in text.split("\n", HEAD_LINES)[:HEAD_LINES] if line.strip()]
    found = [SVM.fullmatch(line.strip()) for line in lines]
    if not all(found):
        return
    what, cure = "libsvm", "sed -E 's/ (qid:[0-9]+ )?/\\t/; s/ *#.*//'"
    if any(one and one["field"] for one in found):
        what, cure = "libffm", "sed -E 's/ /\\t/; s/([0-9]+):([0-9]+):/\\1_\\2:/g'"
    raise DataError(
        f"{path}: is {what}, a label and `index:value`s behind it. Separate the label from these "
        f"pairs by a tab, so that they can be read as ids with weights: {cure} "
        + shell_files(path, f"{path.stem}.tsv")
    )
