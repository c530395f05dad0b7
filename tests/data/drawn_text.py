"""The rows of a drawn table as delimited text: spelled, quoted and packed as programs do it."""

from __future__ import annotations

import bz2
import csv
import datetime
import decimal
import gzip
import io
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
from drawn_columns import Column, Value
from drawn_lines import as_unit
from drawn_rows import becomes, combined, less_marks
from drawn_table import DrawnTable
from odd_tables import hash_of, holds_null, whole

from recd_plugins.data.importing.text_form import TextForm

NOTHING = ["", "NULL", "null", "\\N"]
"""How text spells a null."""
AMONG_NUMBERS = ["NA", "N/A", "nan", "None", "-", "?"]
FLAGS = [("false", "true"), ("False", "True"), ("FALSE", "TRUE"), ("0", "1")]
ODD = {"e": 'say "hi", ok', "x" * 40: "two\nlines, no 7|8;9", "12": "\\", "50": "\t'", "a": '"'}
"""What stands in the place of a text, since it looks like something else."""
DELIMITERS = [",", ";", "\t", "|", "\x01", "~", "::"]
QUOTED = ('"', "\n", ":")
ENCODINGS = ["utf-8", "utf-8", "utf-8", "utf-8-sig", "gb18030"]
PACKED: list[Callable[[bytes], bytes]] = [bytes, bytes, bytes, gzip.compress, bz2.compress]


def _parted(sign: str, brackets: str = "", behind: bool = False) -> Callable[[list[Value]], str]:
    """Elements that a sign parts, within brackets or not."""

    def spelled(values: list[Value]) -> str:
        elements = ["" if one is None else element(one) for one in values]
        text = sign.join(elements)
        # Behind a last separator there is no element, so that one that is empty needs another.
        text += sign * (bool(elements) and (behind or not elements[-1]))
        around = brackets or ("[]" if not text else "")
        return f"{around[:1]}{text}{around[1:]}"

    return spelled


def _as_repr(values: list[Value]) -> str:
    return repr(values)


def _as_json(values: list[Value]) -> str:
    return json.dumps(values, ensure_ascii=False)


PRINTED = [_as_repr, _as_json]
LISTS: dict[str, list[Callable[[list[Value]], str]]] = {
    "|": [_parted("|"), _parted("|", "[]"), _parted("|", behind=True)],
    ";": [_parted(";"), _parted(";", "[]")],
    ",": [
        _parted(","),
        _parted(", ", "[]"),
        _parted(",", "{}"),
        *PRINTED,
        lambda values: repr(tuple(values)),
    ],
}
"""Lists as programs write them, by what parts their elements."""


@dataclass(frozen=True, kw_only=True)
class Style:
    """How a column is spelled throughout."""

    nothing: str
    separator: str
    spelled_list: Callable[[list[Value]], str]
    iso: bool
    odd: bool
    """Whether its texts have signs that part or quote others."""
    commas: str = ""
    """Whether its numbers have commas for points, or to part thousands."""
    flags: tuple[str, str] | None = None
    """How it spells false and true."""

    @staticmethod
    def drawn(random: Random, column: Column, kind: pa.DataType, flat: list[Value]) -> Style:
        separator = random.choice([*LISTS])
        spelled_list = random.choice(LISTS[separator])
        alone = not is_listed(column)
        numbers = alone and not _holds_texts(flat) and any(one is not None for one in flat)
        shown = column.role != "session" and column.options.get("ids", "as_is") == "as_is"
        of_lists = any(isinstance(one, list) for one in flat)
        count = alone and column.role in ("dense", "label", "weight")
        return Style(
            # Of ids that are hashed, a sample that shows NA alone has texts.
            nothing=random.choice([*NOTHING, *AMONG_NUMBERS] if numbers and shown else NOTHING),
            separator=separator,
            spelled_list=spelled_list,
            iso=random.random() < 0.5,
            odd=(alone or (of_lists and spelled_list in PRINTED)) and random.random() < 0.5,
            commas=random.choice(["", "", "decimals", "thousands"]) if count else "",
            flags=random.choice(FLAGS) if count and kind == pa.bool_() else None,
        )


def as_text(
    table: DrawnTable, folder: Path, random: Random
) -> tuple[list[Path], list[dict[str, Any]], TextForm]:
    """Write the only file so, in one or several: these, what each row must become, and what a
    schema says of such text."""
    (file,) = table.files
    columns = [one for one in table.columns if one.role not in ("unread", "key")]
    styles, of_texts = {}, set()
    for one in columns:
        kind, values = table.values(file, one)
        flat = [texted(value, one) for value in values]
        styles[one.name] = Style.drawn(random, one, kind, flat)
        if _holds_texts([texted(value, one, odd=styles[one.name].odd) for value in values]):
            of_texts.add(one.name)
    expected, lines = [], []
    for at in range(file.rows):
        row, dropped, parts, line = {}, False, [], []
        for column in columns:
            kind, values = table.values(file, column)
            style = styles[column.name]
            value = texted(values[at], column, odd=style.odd)
            if column.role == "time" and isinstance(value, int) and not is_date(kind, style):
                value, kind = as_unit(value, kind, column.options.get("unit", "ms")), pa.int64()
            line.append(spelled(value, column, kind, style))
            if column.role in ("session", "part") and column.name in of_texts:
                stands_in = column.options.get("nulls")
                if value is None and isinstance(stands_in, dict):
                    value = stands_in["value"]
                value = None if value is None else str(value)  # a number among texts is one
            elif column.role == "session" and isinstance(value, str):
                value = int(value)
            read = kind if column.role == "time" else pa.int64()
            if is_listed(column):
                read = pa.list_(pa.int64())
            if column.role == "part":
                parts.append(hash_of(whole(value)))
            elif column.options.get("nulls") == "drop" and holds_null(less_marks(value, column)):
                dropped = True
            elif not dropped:
                row[column.name] = becomes(column, read, value)
        if parts:
            row["session_id"] = combined(parts)
        lines.append(line)
        if not dropped:
            expected.append(row)
    names = [one.name for one in columns]
    paths, form = _written(names, lines, folder, random)
    listed = {one.name: styles[one.name].separator for one in columns if is_listed(one)}
    with_commas = {
        key: tuple(name for name, one in styles.items() if one.commas == commas)
        for key, commas in (("decimal_commas", "decimals"), ("thousands", "thousands"))
    }
    return paths, expected, TextForm(**form, lists=listed, **with_commas)


def _written(
    names: list[str], lines: list[list[str]], folder: Path, random: Random
) -> tuple[list[Path], dict[str, Any]]:
    """The files, each quoted, parted and packed as one program does it, and the form of all."""
    form: dict[str, Any] = {"delimiter": random.choice(DELIMITERS), "header": random.random() < 0.8}
    if any(sign in field for row in [names, *lines] for field in row for sign in QUOTED):
        form["delimiter"] = random.choice(DELIMITERS[:-1])  # several signs part no quotes
    if any("\t" in name for name in names) and form["delimiter"] == "\t":
        form["delimiter"] = ","  # of a header alone it is not clear whether quotes are such
    encoding = random.choice(ENCODINGS)
    if encoding == "gb18030":
        form["encoding"] = encoding
    if not form["header"]:
        form["names"] = tuple(names)
    several = len(form["delimiter"]) > 1
    slashes = any("\\" in field for row in [names, *lines] for field in row)
    escapes = not several and not slashes and random.random() < 0.2
    if escapes:
        form["escapes"] = True
    ends = random.choice(["\n", "\n", "\r\n"])
    quoting = csv.QUOTE_NONE if several else random.choice([csv.QUOTE_MINIMAL, csv.QUOTE_ALL])
    packed = random.choice(PACKED)
    cuts = sorted(random.choices(range(len(lines) + 1), k=random.choice([0, 0, 1])))
    paths = []
    for number, (first, last) in enumerate(zip([0, *cuts], [*cuts, len(lines)], strict=True)):
        text = io.StringIO()
        text.write(ends * (random.random() < 0.2))
        rows = [*([names] * form["header"]), *lines[first:last]]
        for row in rows:
            text.write(ends * (random.random() < 0.02 and len(names) > 1))
            text.write(_line(row, form["delimiter"], quoting, escapes) + ends)
        content = text.getvalue()
        if random.random() < 0.2:
            content = content.removesuffix(ends)
        if rows:
            paths.append(folder / f"part-{number}.csv")
            paths[-1].write_bytes(packed(content.encode(encoding)))
    return paths, form


def _line(row: list[str], delimiter: str, quoting: int, escapes: bool) -> str:
    """A line by Python's csv, or with quotes in quotes as MySQL and Spark write them."""
    if quoting == csv.QUOTE_NONE:
        return delimiter.join(row)
    text = io.StringIO()
    csv.writer(text, delimiter=delimiter, quoting=quoting).writerow(row)
    if not escapes:
        return text.getvalue().removesuffix("\r\n")
    signs = f'"\n\r{delimiter}'
    return delimiter.join(
        '"' + one.replace('"', '\\"') + '"'
        if quoting == csv.QUOTE_ALL or any(sign in one for sign in signs) or row == [""]
        else one
        for one in row
    )


def is_listed(column: Column) -> bool:
    """Whether a column is of lists in text, where one value alone is a list of one."""
    return column.lists or "width" in column.options or "scored" in column.options


def is_date(kind: pa.DataType, style: Style) -> bool:
    return style.iso and (pa.types.is_timestamp(kind) or pa.types.is_date(kind))


def _holds_texts(flat: list[Value]) -> bool:
    """Whether a column of text holds something that is no integer of 64 bits with a sign."""
    if not any(isinstance(one, str) for one in flat):
        return any(isinstance(one, int) and not -(2**63) <= one < 2**63 for one in flat)
    return not all(one is None or _is_integer(str(one)) for one in flat)


def _is_integer(text: str) -> bool:
    try:
        return str(int(text)) == text and -(2**63) <= int(text) < 2**63
    except ValueError:
        return False


def texted(value: Value, column: Column, *, odd: bool = False) -> Value:
    """The value that is left of one in text: nothing of what only a type says."""
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace").replace("\0", "z")
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, str):  # an empty text is a null, and None one among numbers
        value = {"": "e", "None": "Nona"}.get(value, value)
        return (
            ODD.get(value, value) if odd and value not in column.options.get("known", ()) else value
        )
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, decimal.Decimal):
        return int(value) if value == int(value) else float(value)
    if isinstance(value, tuple):
        return _pair(*value, column)
    if isinstance(value, dict):
        return _pair(*value.values(), column)
    if isinstance(value, list):
        return [texted(one, column, odd=odd) for one in value]
    return value


def _pair(one: Value, weight: Value, column: Column) -> Value:
    """An id with a weight, which in text may lack, but the id may not."""
    return None if holds_null(one) else (texted(one, column), weight)


def element(value: Value) -> str:
    if isinstance(value, tuple):
        return ":".join("" if one is None else str(one) for one in value)
    return str(value)


def spelled(value: Value, column: Column, kind: pa.DataType, style: Style) -> str:
    """A field, before it is quoted."""
    if value is None:
        return style.nothing
    if column.role == "time" and is_date(kind, style):
        return _iso(value, kind)
    if column.options.get("scored"):
        return LISTS[style.separator][0](value)
    if isinstance(value, list):
        return style.spelled_list(value)
    if style.flags is not None and not isinstance(value, str):
        return style.flags[int(value)]
    if style.commas == "decimals":
        return str(value).replace(".", ",")
    if style.commas == "thousands":
        return f"{value:,}"
    return str(value)


def _iso(value: int, kind: pa.DataType) -> str:
    per = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
    if pa.types.is_date(kind):
        days = value if kind == pa.date32() else value // 86_400_000
        return (datetime.date(1970, 1, 1) + datetime.timedelta(days=days)).isoformat()
    micros = value * 10**6 // per[kind.unit]
    moment = datetime.datetime(1970, 1, 1) + datetime.timedelta(microseconds=micros)
    return moment.isoformat(" ") + "Z" * (kind.tz is not None)
