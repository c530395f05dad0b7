"""The format of a foreign file, by its content: Parquet, lines of JSON, or delimited text."""

from __future__ import annotations

import codecs
import csv
import io
import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from recd_plugins.data.conform.values import is_list
from recd_plugins.data.files import (
    FileFacts,
    in_partitions,
    is_hidden,
    snapshot_kind,
    typed_partitions,
)
from recd_plugins.data.footers import AT_ONCE
from recd_plugins.data.importing.escaped_quotes import doubled, has_escapes
from recd_plugins.data.importing.text_form import TextForm
from recd_plugins.data.snapshots import snapshot_files
from recd_plugins.errors import DataError, listed, shown
from recd_plugins.storage.no_file import no_file
from recd_plugins.storage.uri import Location, Stat, Uri, input_file

__all__ = [
    "ELEMENTS",
    "MOST_FIELDS",
    "ForeignFile",
    "Format",
    "cut_short",
    "field_at",
    "fields_of",
    "files_of",
    "foreign_files",
    "formats_of",
    "is_pair",
    "type_at",
]

Format = Literal["parquet", "text", "jsonl"]

HEAD_BYTES = 1 << 20
"""What is read of a file to find out what it is."""
HEAD_LINES = 200
ELEMENTS = "[]"
"""The step from a list to its elements, on the way to a field."""
MOST_REFUSED = 10
"""Files that cannot be read of which one error tells."""
MOST_FIELDS = 64
"""A struct of more fields is no group of columns, but a mapping with any keys."""

COMPRESSIONS = {
    b"\x1f\x8b": "gzip",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"BZh": "bz2",
    b"\x04\x22\x4d\x18": "lz4",
}
"""How compressed files begin."""
UNPACKERS = {"gzip": "gzip", "zstd": "zstd", "bz2": "bzip2", "lz4": "lz4"}
SUFFIXES = (".gz", ".zst", ".bz2", ".lz4")
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
    b"ORC": "an ORC file. Write it as Parquet",
    b"\x89HDF": "an HDF5 file. Write it as Parquet",
    b"\x93NUMPY": "a NumPy file. Write it as Parquet, beside the columns that others hold: "
    "pyarrow.parquet.write_table(pyarrow.table({f'c{i}': numpy.load(FILE)[:, i] for i in "
    "range(COLUMNS)}), 'rows.parquet')",
    b"\xff\xfe": "text in UTF-16. Write it as UTF-8 (iconv -f UTF-16 -t UTF-8)",
    b"\xfe\xff": "text in UTF-16. Write it as UTF-8 (iconv -f UTF-16 -t UTF-8)",
    b"SQLite format 3": "an SQLite database. Write its table as CSV or Parquet",
}
BOM = b"\xef\xbb\xbf"
PARQUET = b"PAR1"

DELIMITERS = ("\t", ",", ";", "|", "\x01", "::")
ONE_CHARACTER = "".join(one for one in DELIMITERS if len(one) == 1)
NAMES = {"\t": "tab", "\x01": "^A"}

QUOTED = re.compile(r'(^|\t)"(?:[^"\t]|"")*"(\t|\r?$)', re.MULTILINE)
"""A field in quotes, where tabs part them."""
QUOTING = re.compile(r'(^|\t)"?[^"\t\n]+"[^"\t\r\n]', re.MULTILINE)
"""One with a quote within, that is not doubled."""
SVM = re.compile(
    r"[-+]?[\d.]+( qid:\d+)?( \d+:(?P<field>\d+:)?[-+]?[\d.]+([eE][-+]?\d+)?)+ *(#.*)?"
)
"""A line of libsvm, or with fields of libffm."""

SEPARATOR = re.compile(r"sep=.\r?\n", re.IGNORECASE)
SECTION = re.compile(r"\d+:\r?")
"""A line of the Netflix prize that says which film the lines below it rate."""
TYPED = re.compile(r"(?P<name>.+):(?P<type>token|float|token_seq|float_seq)")
"""RecBole's headers say what a column holds: user_id:token."""
WORD = re.compile(r"[^\W\d][\w .:/\-()\[\]]*")
"""What the name of a column looks like."""
ODD_WORD = re.compile(r"[^\d\s.,;+\-'\"][^\t\n]{0,79}")
"""What it looks like, too, where numbers below it say that it is one."""

NULLS = ("", "NULL", "null", "\\N")
"""How text spells that there is nothing."""
MORE_NULLS = ("NA", "N/A", "n/a", "#N/A", "NaN", "nan", "None", "none", "-", "?")
"""What else stands for nothing in a column of numbers."""


@dataclass(frozen=True, kw_only=True)
class ForeignFile:
    """A file that somebody else wrote, and how it is read."""

    path: Location
    format: Format
    size: int = 0
    """Its bytes, as it lies there."""
    mtime_ns: int = 0
    compression: str | None = None
    names: tuple[str, ...] = ()
    """Its columns, in order, each under a name of its own."""
    encoding: str = "utf-8"
    """The encoding of `text` and `jsonl`: one in which ASCII keeps its bytes."""
    delimiter: str = ","
    """The character that parts the fields of `text`, or several, as `::`."""
    quotes: bool = True
    """Whether `text` may have fields in double quotes."""
    escapes: bool = False
    r"""Whether \" is a quote within these, as "" is."""
    header: bool = True
    """Whether the first line of `text` names its columns."""
    lists: tuple[str, ...] = ()
    """The columns of `text` that are lists by the header's word, parted by blanks."""
    start: int = 0
    """Bytes, unpacked, before the first row."""
    lines_before: int = 0
    """Lines before it: those of the header, and empty ones above."""
    renamed: tuple[str, ...] = ()
    """The names that more than one column has; all but the first got a number."""
    roots: tuple[str, ...] = ()
    """The columns of Parquet as the file has them, each under a name of its own."""
    nested: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The columns that are fields of structs: where each lies, the root first."""
    partitions: Mapping[str, pa.Scalar] = field(default_factory=dict)
    """The columns that its folders `key=value` say, which have one value in all of its rows."""

    @property
    def columns(self) -> tuple[str, ...]:
        """Its own columns, and those of its folders."""
        return (*self.names, *self.partitions)

    def __str__(self) -> str:
        packed = f", {self.compression}" if self.compression else ""
        if self.encoding != "utf-8":
            packed = f", {self.encoding}{packed}"
        if self.format == "parquet":
            return f"Parquet{packed}"
        if self.format == "jsonl":
            return f"lines of JSON{packed}"
        parted = NAMES.get(self.delimiter, repr(self.delimiter))
        return f"text parted by {parted}, {'a header' if self.header else 'no header'}{packed}"

    @property
    def alike(self) -> tuple[object, ...]:
        """The format that files of one table have in common."""
        names = self.names if self.format == "text" else ()
        return (self.format, names, self.delimiter, self.header)

    def open(self) -> pa.NativeFile:
        """The bytes, unpacked."""
        file = input_file(self.path)
        return pa.CompressedInputStream(file, self.compression) if self.compression else file


def foreign_files(
    paths: Sequence[Location],
    form: TextForm | None = None,
    *,
    absent: Collection[str] = (),
    names_given: bool = True,
) -> tuple[ForeignFile, ...]:
    """The files of one table, in order: those named, and all of a folder that is named.

    What a file is follows from its content, unless the form of text says it. `DataError` names a
    file that is not there, empty, or nothing that can be read, and files of text that differ in
    other columns than those that may be `absent`.
    """
    files: list[ForeignFile] = []
    refused: list[DataError] = []
    for one in formats_of(files_of(paths), form, names_given=names_given):
        if isinstance(one, DataError):
            refused.append(one)
        else:
            files.append(one)
    if len(refused) == 1:
        raise refused[0]
    if refused:
        more = "".join(f"\n  {error}" for error in refused[:MOST_REFUSED])
        raise DataError(f"{len(refused)} files cannot be read; the first of them:{more}")
    first = files[0]
    for number, file in enumerate(files[1:], 1):
        if first.format == "text" and file.format == "text" and file.names != first.names:
            if first.header and not file.header and len(file.names) == len(first.names):
                # Parts of one export, of which the first alone has a header.
                files[number] = replace(file, names=first.names)
                continue
            if first.header and file.header and {*file.names} ^ {*first.names} <= {*absent}:
                continue
        elif file.format == first.format:
            continue
        cure = "import them apart."
        if file.format == first.format and file.header and first.header:
            lacked = listed(sorted(({*file.names} ^ {*first.names}) - {*absent}), 6)
            cure = f"import them apart, or say `recd data import --absent NAME` of {lacked}."
        raise DataError(
            f"{file.path} is {file}, with columns {listed(file.names, 6)}; {first.path} is "
            f"{first}, with {listed(first.names, 6)}. Files of one table must be alike: {cure}"
        )
    return tuple(files)


def files_of(paths: Sequence[Location]) -> dict[Location, FileFacts]:
    """The files of one table in order, each with what is known of it: the columns that its folders
    say, and of a store its size.

    Of a folder all files count, those of its folders too; of one that Delta Lake or Iceberg keeps,
    those of its latest snapshot.
    """
    found: dict[Location, FileFacts] = {}
    for path in paths:
        if not path.is_dir():
            _check_is_file(path)
            found[path] = FileFacts()
        elif (kind := snapshot_kind(path)) is not None:
            found |= snapshot_files(path, kind, None)[0]
        else:
            found |= _inside(path)
    return typed_partitions(found)


def formats_of(
    files: Mapping[Location, FileFacts], form: TextForm | None = None, *, names_given: bool = True
) -> list[ForeignFile | DataError]:
    """What each file is, or why nobody knows: several are opened at a time.

    Names of the form that nobody gave for these files are those of a schema: they are of such text
    as it was made of, and other files have their own.
    """
    form = form or TextForm()
    if form.delimiter is not None:
        _check_delimiter(form.delimiter)
    encoding = _checked_encoding("utf-8" if form.encoding is None else form.encoding)

    def look(path: Location) -> ForeignFile | DataError:
        try:
            return _foreign_file(path, files[path], form, encoding, names_given)
        except DataError as error:
            return error

    stores = any(isinstance(path, Uri) for path in files)
    with ThreadPoolExecutor(min(AT_ONCE[stores], len(files) or 1)) as pool:
        return list(pool.map(look, files))


def _inside(folder: Location) -> dict[Location, FileFacts]:
    """All files of a folder and its folders, in order, but for hidden ones."""
    below: dict[Location, str] = {}
    stats: Mapping[Any, Stat] = {}
    if isinstance(folder, Uri):
        stats = folder.listed(deep=True)
        below.update({file: file.below(folder) for file in stats})
    else:
        files = sorted(file for file in folder.rglob("*") if not file.is_dir())
        below.update({file: file.relative_to(folder).as_posix() for file in files})
    shown_ = {file: name for file, name in below.items() if not is_hidden(name.split("/"))}
    if not shown_:
        raise DataError(f"{folder}: is an empty folder. Name a file, or a folder of files.")
    found: dict[Location, FileFacts] = {}
    for file, name in shown_.items():
        if isinstance(file, Path):  # a store lists what is there
            _check_is_file(file)
        size, mtime = stats.get(file, (None, None))
        found[file] = FileFacts(size, mtime, folders=in_partitions(name.split("/")[:-1]))
    return found


def _check_is_file(path: Location) -> None:
    if isinstance(path, Path) and (what := no_file(path)):
        raise DataError(f"{path}: is {what}, not a file. Name a file, or a folder of files.")
    if not path.exists():
        raise DataError(f"{path}: there is no such file. Check the path.")


def _foreign_file(
    path: Location, facts: FileFacts, form: TextForm, encoding: str, names_given: bool
) -> ForeignFile:
    """The format of one file; a column of its own counts before one of its folders."""
    file = _of_content(path, form, encoding)
    if form.names and (names_given or not _names_itself(file, form.names)):
        file = _with_names(file, form.names)
    size, mtime_ns = facts.size, facts.mtime_ns or 0
    if size is None:
        stat = path.stat()
        size, mtime_ns = stat.st_size, stat.st_mtime_ns
    own = {name: one for name, one in facts.partitions.items() if name not in file.names}
    return replace(file, partitions=own, size=size, mtime_ns=mtime_ns)


def _names_itself(file: ForeignFile, names: Sequence[str]) -> bool:
    """Whether a file's own names count before a schema's: Parquet's, those of JSON, and a header's
    unless it is as long and has none of them, as one that was given other names before."""
    if file.format != "text":
        return True
    return file.header and (len(file.names) != len(names) or not {*names}.isdisjoint(file.names))


def _with_names(file: ForeignFile, names: Sequence[str]) -> ForeignFile:
    """The file, its columns under these names."""
    if file.format != "text" or not len({*names} - {""}) == len(names) == len(file.names):
        raise DataError(
            f"{file.path}: is {file}, with {len(file.names)} columns, and {len(names)} names are "
            "given. Give one of its own to each column of text, by `--names` or `text` of the "
            "schema."
        )
    own = dict(zip(file.names, names, strict=True))
    return replace(
        file, names=tuple(names), lists=tuple(own[name] for name in file.lists), renamed=()
    )


def _of_content(path: Location, form: TextForm, encoding: str) -> ForeignFile:
    head, compression = _head(path)
    if not head.strip():
        raise DataError(f"{path}: the file is empty. Take it out, or fetch it again.")
    for magic, what in OTHERS.items():
        if head.startswith(magic):
            if path.suffix.lower() in (".xlsx", ".xlsm"):
                what = "an Excel sheet. Save it as CSV (UTF-8)"
            raise DataError(f"{path}: is {what}.")
    if head.startswith(PARQUET):
        if compression:
            raise DataError(f"{path}: is a Parquet file compressed by {compression}. Unpack it.")
        return _parquet(path)
    if b"\0" in head[:4096]:
        raise DataError(
            f"{path}: is neither Parquet nor text: it holds zero bytes. Write it as Parquet or CSV."
        )
    bom = len(BOM) if head.startswith(BOM) else 0
    text = _decoded(head[bom:], path, encoding)
    if not text.strip():
        raise DataError(f"{path}: the file has no text. Take it out, or fetch it again.")
    if text.count("\r") > 1 and "\n" not in text:
        raise DataError(
            f"{path}: its lines end in carriage returns alone. Write them with newlines: "
            f"tr '\\r' '\\n' < {path.name} > {path.stem}.unix{path.suffix}"
        )
    if text.lstrip().startswith("{"):
        return replace(_jsonl(path, text, compression), encoding=encoding, start=bom)
    if text.lstrip().startswith("[") and form.delimiter is None:
        raise _array_error(path, text)
    if form.delimiter is None:
        _check_no_sections(path, text)
        _check_no_svm(path, text)
    escapes = has_escapes(text) if form.escapes is None else form.escapes
    plain = text
    if escapes:
        content = doubled(head[bom:], form.delimiter or ONE_CHARACTER)
        text = _decoded(bytes(content), path, encoding)
    file = _text(path, text, compression, bom, form, encoding)
    if escapes and not (file.quotes if form.escapes else _may_quote(plain, file.delimiter)):
        if form.escapes and '"' in plain:
            raise _no_quotes(path, plain, file)
        escapes, file = False, _text(path, plain, compression, bom, form, encoding)
    return replace(file, encoding=encoding, escapes=escapes)


def _array_error(path: Location, text: str) -> DataError:
    """The error for a JSON array, or for lines of them."""
    try:
        rows = [json.loads(line) for line in text.strip().split("\n", 2)[:2]]
    except ValueError:
        rows = []
    if len(rows) == 2 and not any(isinstance(one, dict) for row in rows for one in row):
        cure = f"Write them as CSV: jq -r @csv {path.name} > {path.stem}.rows.csv"
        return DataError(f"{path}: has a JSON array on each line. {cure}")
    return DataError(
        f"{path}: begins a JSON array. Write one object per line (jq -c '.[]' {path.name})."
    )


def _no_quotes(path: Location, text: str, file: ForeignFile) -> DataError:
    """The error of a form that says how quotes are read, of text in which they are characters."""
    found = QUOTING.search(text) if file.delimiter == "\t" else None
    line = 1 + text.count("\n", 0, text.index('"') if found is None else found.end() - 1)
    odd = text.split("\n")[line - 1].strip()
    return DataError(
        f"{path}:{line}: `text: {{escapes: true}}` of the schema says how quotes within quotes are "
        f"read, but here quotes are characters of their fields, as in {shown(odd[:80])}. Take "
        "`escapes` out of a schema for this file, and import it apart; or put each field that has "
        "a quote into quotes."
    )


def _head(path: Location) -> tuple[bytes, str | None]:
    compression = None
    try:
        with input_file(path) as file:
            # Of Parquet the footer is read; on a store a second read is another request.
            named = path.name.endswith(".parquet")
            head = file.read(len(PARQUET) if named else HEAD_BYTES)
            if named and head != PARQUET:
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
        raise DataError(f"{path}: cannot be read ({error}). Check its rights.") from error


def cut_short(path: Location, compression: str | None, what: str, error: Exception) -> DataError:
    """The error for a file that cannot be read to its end."""
    cure = "fetch it again, or write it again."
    if compression is not None:
        rest = path.stem if path.suffix in SUFFIXES else f"{path.name}.part"
        cure = (
            "fetch it again; or import what can be unpacked, but for the last line, which may be "
            f"half of one: {UNPACKERS[compression]} -dc {path.name} | sed '$d' > {rest}"
        )
    return DataError(f"{path}: {what} ({error}). It was cut short or damaged: {cure}")


def _decoded(head: bytes, path: Location, encoding: str) -> str:
    """Whole lines of the head as text; of a line that is longer, whole characters."""
    cut = len(head)
    if cut >= HEAD_BYTES // 2:
        cut = head.rfind(b"\n") + 1
    decoder = codecs.getincrementaldecoder(encoding)()
    try:
        return decoder.decode(head[:cut], final=True) if cut else decoder.decode(head)
    except UnicodeDecodeError as error:
        at = error.start
        line, start = head.count(b"\n", 0, at) + 1, head.rfind(b"\n", 0, at) + 1
        around = head[max(start, at - 30) : at + 30].split(b"\n")[0].decode("latin-1").strip()
        raise DataError(
            f"{path}:{line}: holds bytes that are no {encoding.upper()} ({head[at : at + 8]!r}). "
            f"Say what it is by `--encoding`: as latin-1 they would read {around!r}."
        ) from None


def _checked_encoding(encoding: str) -> str:
    """The encoding, if lines and fields end in it as in ASCII."""
    ascii_ = bytes(range(128))
    try:
        name = codecs.lookup(encoding).name
        if ascii_.decode(encoding) == ascii_.decode("ascii"):
            return "utf-8" if name in ("utf-8", "utf-8-sig") else encoding
    except (LookupError, ValueError):
        pass
    raise DataError(
        f"encoding {shown(encoding)}: is none that Python knows in which ASCII keeps its bytes, "
        "as latin-1, cp1251 or gb18030. Write text of others as UTF-8 (iconv)."
    )


def _parquet(path: Location) -> ForeignFile:
    try:
        with input_file(path) as file:
            schema = pq.read_schema(file)
    except (pa.ArrowException, OSError) as error:
        raise DataError(
            f"{path}: not a whole Parquet file ({error}). It was cut short or damaged: write it "
            "again, or take it out."
        ) from error
    roots, renamed = _named(schema.names)
    fields = fields_of(dict(zip(roots, schema.types, strict=True)))
    return ForeignFile(
        path=path,
        format="parquet",
        names=tuple(fields),
        renamed=renamed,
        roots=roots,
        nested={name: where for name, where in fields.items() if len(where) > 1},
    )


def fields_of(columns: Mapping[str, pa.DataType]) -> dict[str, tuple[str, ...]]:
    """The columns and, of structs, their fields, as `user.city`: where each lies, root first. The
    field of a struct in a list lies behind `ELEMENTS`, and is a list."""
    found: dict[str, tuple[str, ...]] = {}
    waiting: list[tuple[tuple[str, ...], pa.DataType]]
    waiting = [((name,), kind) for name, kind in reversed([*columns.items()])]
    while waiting:
        where, kind = waiting.pop()
        if is_list(kind) and not is_pair(kind.value_type):
            inner, within = kind.value_type, (*where, ELEMENTS)
        else:
            inner, within = kind, where
        if pa.types.is_struct(inner) and 0 < inner.num_fields <= MOST_FIELDS:
            waiting += [((*within, one.name), one.type) for one in reversed(list(inner))]
            continue
        name = own = ".".join(part for part in where if part != ELEMENTS)
        number = 2
        while own in found or (len(where) > 1 and own in columns):
            own, number = f"{name}_{number}", number + 1
        found[own] = where
    return found


def is_pair(kind: pa.DataType) -> bool:
    """Whether a struct may be an id with its weight."""
    if not pa.types.is_struct(kind) or kind.num_fields != 2:
        return False
    weight = kind.field(1).type
    return bool(
        pa.types.is_integer(weight) or pa.types.is_floating(weight) or pa.types.is_decimal(weight)
    )


def field_at(root: pa.Array | pa.ChunkedArray, where: Sequence[str]) -> Any:
    """The field of a column of structs; null where one that it lies in is."""
    if isinstance(root, pa.ChunkedArray) and ELEMENTS in where:
        chunks = root.chunks or [pa.array([], root.type)]
        return pa.chunked_array([field_at(chunk, where) for chunk in chunks])
    for number, part in enumerate(where[1:], 1):
        if part == ELEMENTS:
            lengths = pc.fill_null(pc.list_value_length(root), 0).cast(pa.int32())
            offsets = pa.array([0], pa.int32())
            if len(root):
                offsets = pa.concat_arrays([offsets, pc.cumulative_sum(lengths)])
            inner = field_at(root.flatten(), where[number:])
            return pa.ListArray.from_arrays(offsets, inner, mask=root.is_null())
        root = pc.struct_field(root, part)
    return root


def type_at(root: pa.DataType, where: Sequence[str]) -> pa.DataType:
    """The type of `field_at`."""
    for number, part in enumerate(where[1:], 1):
        if part == ELEMENTS:
            return pa.list_(type_at(root.value_type, where[number:]))
        root = root.field(part).type
    return root


def _jsonl(path: Location, text: str, compression: str | None) -> ForeignFile:
    names: dict[str, None] = {}
    for number, line in enumerate(text.split("\n", HEAD_LINES)[:HEAD_LINES], 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            cure = f"Write one object per line (jq -c . {path.name})."
            if line.startswith(("{'", "{u'")):
                cure = (
                    "It is a dict of Python: write json.dumps(ast.literal_eval(line)) of each line."
                )
            raise DataError(
                f"{path}:{number}: is no JSON object on one line ({error}). {cure}"
            ) from None
        if not isinstance(row, dict):
            raise DataError(f"{path}:{number}: is no JSON object, but {line[:40]!r}.")
        names.update(dict.fromkeys(_keys(row)))
    return ForeignFile(path=path, format="jsonl", names=tuple(names), compression=compression)


def _keys(row: Mapping[str, Any], before: str = "") -> Iterator[str]:
    for key, value in row.items():
        if isinstance(value, dict) and 0 < len(value) <= MOST_FIELDS:
            yield from _keys(value, f"{before}{key}.")
        else:
            yield before + key


def _check_no_sections(path: Location, text: str) -> None:
    """As the Netflix prize has them: lines of `item:`, and below each its ratings."""
    lines = text.split("\n", HEAD_LINES)[:HEAD_LINES]
    sections = [line.strip() for line in lines if SECTION.fullmatch(line.strip())]
    if sections and lines[0].strip() == sections[0] and len(lines) > 1 and "," in lines[1]:
        raise DataError(
            f"{path}: has lines as {sections[0]!r}, which say what the lines below them are of. "
            'Write it into each of these: awk \'/:$/ {sub(":", ""); item = $0; next} '
            f'{{print item "," $0}}\' {path.name} > {path.stem}.csv'
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
        f"{path}: is {what}, a label and `index:value`s behind it. Part the label from these by a "
        f"tab, and they are ids with weights: {cure} {path.name} > {path.stem}.tsv"
    )


def _text(
    path: Location,
    text: str,
    compression: str | None,
    bom: int,
    form: TextForm,
    encoding: str,
) -> ForeignFile:
    delimiter = form.delimiter or _delimiter(text)
    quotes = _may_quote(text, delimiter)
    rows = list(_rows(text, delimiter, quotes))
    first = rows[0]
    _check_first(path, text, rows, delimiter)
    if form.delimiter is None:
        _check_no_blanks(path, rows)
    header = form.header
    typed = [TYPED.fullmatch(field) for field in first]
    all_typed = all(typed) and header is not False
    if header is None:
        header = all_typed or _is_header(first, rows[1:])
    if not header:
        return ForeignFile(
            path=path,
            format="text",
            compression=compression,
            names=tuple(f"column_{number}" for number in range(1, len(first) + 1)),
            delimiter=delimiter,
            quotes=quotes,
            header=False,
            start=bom,
        )
    plain = [one["name"] for one in typed if one] if all_typed else first
    names, renamed = _named([name.strip() for name in plain])
    above = _through_first_row(text, delimiter, quotes)
    lists = [
        name
        for name, one in zip(names, typed, strict=True)
        if all_typed and one and one["type"].endswith("_seq")
    ]
    return ForeignFile(
        path=path,
        format="text",
        compression=compression,
        names=names,
        delimiter=delimiter,
        quotes=quotes,
        header=True,
        lists=tuple(lists),
        start=bom + len(above.encode(encoding)),
        lines_before=above.count("\n"),
        renamed=renamed,
    )


def _check_no_blanks(path: Location, rows: Sequence[Sequence[str]]) -> None:
    """`DataError` if the name of an only column has as many words as each of its rows."""
    words = [row[0].split() for row in rows if len(row) == 1]
    if len(words) < max(2, len(rows)) or len({*map(len, words)}) > 1 or len(words[0]) < 2:
        return
    named = len({*words[0]}) == len(words[0]) and all(map(WORD.fullmatch, words[0]))
    if named and _any_number(words[1:]):
        raise DataError(
            f"{path}: its lines seem to be parted by blanks. If each is one field, say "
            f"`--delimiter ,`; else part them by tabs: sed -E 's/^ +//; s/ +/\\t/g' {path.name} > "
            f"{path.stem}.rows.tsv"
        )


def _check_first(path: Location, text: str, rows: Sequence[Sequence[str]], delimiter: str) -> None:
    """`DataError` if a first line has another number of fields than those below, which are alike:
    they have the columns that it has."""
    rest = f"{path.name} > {path.stem}.rows{path.suffix}"
    if SEPARATOR.match(text):
        raise DataError(
            f"{path}: its first line says what parts its fields, as Excel has it. Take it out: "
            f"tail -n +2 {rest}"
        )
    below = [len(row) for row in rows[1:]]
    if len(below) < 2 or (usual := max({*below}, key=below.count)) == len(rows[0]):
        return
    if below.count(usual) >= 0.9 * len(below):
        if len(delimiter) == 1 and f'{delimiter} "' in text:
            raise DataError(
                f"{path}: has blanks before quotes, which then quote nothing. Take them out: "
                f"sed -E 's/{re.escape(delimiter)} +\"/{delimiter}\"/g' {rest}"
            )
        line = text.lstrip("\r\n").split("\n", 1)[0].strip()
        fields = f"{len(rows[0])} field{'s' * (len(rows[0]) != 1)}"
        raise DataError(
            f"{path}: its first line has {fields}, {shown(line[:80])}, and those below have "
            f"{usual}. If it names the columns, let it name each; if it is none of the table's, "
            f"take it out: tail -n +2 {rest}"
        )


def _check_delimiter(delimiter: str) -> None:
    odd = not delimiter.isascii() or not {*'"\n\r\0'}.isdisjoint(delimiter)
    several = len(delimiter) > 1 and any(one.isalnum() for one in delimiter)
    if not delimiter or odd or several:
        raise DataError(
            f"delimiter {shown(delimiter)}: fields are parted by one character of ASCII, as ',' or "
            "'\\t', or by several signs, as '::', no quote and no line's end among them."
        )


def _delimiter(text: str) -> str:
    """The delimiter that parts the lines, the first above all, into the same number of fields, the
    most of them: numbers as 3,5 may have commas too, and their names have none."""
    best, fits = ",", (False, 1)
    for candidate in DELIMITERS:
        counts = [len(row) for row in _rows(text, candidate, _may_quote(text, candidate))]
        usual = max(set(counts), key=counts.count)
        found = (counts[0] == usual, usual)
        if usual > 1 and found > fits and counts.count(usual) >= 0.9 * len(counts):
            best, fits = candidate, found
    return best


def _may_quote(text: str, delimiter: str) -> bool:
    """Whether a field may be in quotes: one that tabs part may if some look so, and in none are
    quotes a part of it, as in 12" Mix; one that several characters part may not."""
    if delimiter == "\t":
        if '"' not in text or QUOTING.search(text) is not None:
            return False
        if QUOTED.search(text) is not None:
            return True
        within, not_within = (
            {*map(len, _rows(text, delimiter, quotes))} for quotes in (True, False)
        )
        return len(within) == 1 < len(not_within)  # tabs in quotes
    return len(delimiter) == 1


def _rows(text: str, delimiter: str, quotes: bool) -> Iterator[list[str]]:
    if len(delimiter) > 1:
        yield from _split_lines(text, delimiter)
        return
    found = 0
    try:
        for row in islice(
            filter(None, _reader(io.StringIO(text, newline=""), delimiter, quotes)), HEAD_LINES
        ):
            found += 1
            yield row
    except csv.Error:  # a field of more than 128 KiB
        if not found:
            yield from _split_lines(text, delimiter)


def _split_lines(text: str, delimiter: str) -> Iterator[list[str]]:
    each = (line.removesuffix("\r") for line in text.split("\n"))
    return islice((line.split(delimiter) for line in each if line), HEAD_LINES)


def _reader(lines: io.StringIO, delimiter: str, quotes: bool) -> Iterator[list[str]]:
    quoting: Literal[0, 3] = csv.QUOTE_MINIMAL if quotes else csv.QUOTE_NONE
    return csv.reader(lines, delimiter=delimiter, quoting=quoting)


def _through_first_row(text: str, delimiter: str, quotes: bool) -> str:
    """The text up to the end of its first row: empty lines may be above it, and lines end within
    its quotes."""
    lines = io.StringIO(text, newline="")
    if len(delimiter) == 1:
        with suppress(csv.Error):  # a field of more than 128 KiB
            next(filter(None, _reader(lines, delimiter, quotes)))
            return text[: lines.tell()]
    begins = len(text) - len(text.lstrip("\r\n"))
    return text[: (text.find("\n", begins) + 1) or None]


def _is_header(first: Sequence[str], rest: Sequence[Sequence[str]]) -> bool:
    """Whether a first line names columns: words alone, each once, that are no values of theirs."""
    if len(first) > 1 and not any(row[-1] for row in (first, *rest) if len(row) == len(first)):
        first, rest = first[:-1], [row[:-1] for row in rest]  # each line ends in a delimiter
    named = [field.strip() for field in first]
    words = [bool(WORD.fullmatch(field)) for field in named]
    if not all(words[1:]) or (named[0] and not words[0]):  # an index of pandas has no name
        return _names_numbers(named, rest)
    if len(set(named)) < len(named) and not _any_number(rest):
        return False
    if not rest or _any_number(rest):
        return True
    columns = list(zip(*(row for row in rest if len(row) == len(first)), strict=False))
    return not any(name in column for name, column in zip(named, columns, strict=False))


def _names_numbers(named: Sequence[str], rest: Sequence[Sequence[str]]) -> bool:
    """Whether odd words, as "CTR (%)" and "#clicks", name columns: each is there once, and below
    one are numbers alone. A word for nothing above numbers is a value of theirs."""
    odd = all(ODD_WORD.fullmatch(field) for field in named[bool(named and not named[0]) :])
    if not odd or len(set(named)) < len(named):
        return False
    columns = zip(*(row for row in rest if len(row) == len(named)), strict=False)
    pairs = zip(named, columns, strict=False)
    above = {name for name, column in pairs if all(map(_is_number, column))}
    return bool(above) and above.isdisjoint({*NULLS[1:], *MORE_NULLS})


def _any_number(rows: Iterable[Sequence[str]]) -> bool:
    return any(_is_number(field) for row in rows for field in row)


def _is_number(field: str) -> bool:
    try:
        float(field)
    except ValueError:
        return False
    return field.strip().lower() not in ("nan", "inf", "infinity")


def _named(names: Iterable[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """A name of its own for each column, and the names that several had."""
    seen: dict[str, None] = {}
    twice: dict[str, None] = {}
    for position, name in enumerate(names, 1):
        own = name or f"column_{position}"
        number = 2
        while own in seen:
            twice[name] = None
            own = f"{name}_{number}"
            number += 1
        seen[own] = None
    return tuple(seen), tuple(twice)
