"""Rungs 1 (values) and 2 (properties): codes with zeros before them, as 007, are names of their own
wherever they stand in text, as they are in Parquet; a schema that says numbers takes them for such.
Blanks around a number make no other of it, nor does a fraction of zeros.
"""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from strangers_files import text

from recd_plugins.config import parse
from recd_plugins.data.conform.hashing import hash_texts
from recd_plugins.data.foreign import ForeignSchema
from recd_plugins.data.importing.surveying import sample as samples
from recd_plugins.data.importing.surveying.asked_types import types_asked
from recd_plugins.data.importing.surveying.survey import survey
from recd_plugins.data.importing.table_files import foreign_files
from recd_plugins.data.importing.table_import import Imported, TableImport
from recd_plugins.data.importing.text import whole_lines
from recd_plugins.data.importing.text.padded_codes import first_padded
from recd_plugins.data.importing.vocabulary_pass import write_vocabulary
from recd_plugins.data.table import Table

NUMBERS = ["7", "0", "00", "007", "-7", "-07", " 07", "0.5", "100", "", "1004", "07 "]
TEXTS = [
    "007",
    "x",
    "0a12",
    "b,07",
    'say "hi", 07',
    '5" disk',
    "2024-01-05 05:00",
    "a\n07",
    "\r\n07",
]
PADDED = re.compile(r"[ \t]*-?0\d+\.?\d*\s*")


@pytest.mark.parametrize("quoting", [csv.QUOTE_MINIMAL, csv.QUOTE_ALL])
@given(rows=st.lists(st.tuples(*(map(st.sampled_from, [NUMBERS, TEXTS, NUMBERS, TEXTS])))))
@example(rows=[("7", '5" disk', "7", '"'), ("7", "b,07", "07", "x")])
def test_the_first_code_is_found_as_python_reads_text(
    quoting: Any, rows: list[tuple[str, ...]]
) -> None:
    written = io.StringIO()
    csv.writer(written, quoting=quoting, lineterminator="\n").writerows(rows)
    content = written.getvalue()
    for named in ([True, False, True, False], [False, False, True, False]):
        right = [
            (row, column)
            for row, fields in enumerate(rows)
            for column, one in enumerate(fields)
            if named[column] and PADDED.fullmatch(one)
        ]
        at, column = first_padded(content.encode(), ",", quotes=True, named=np.array(named))
        assert (at >= 0) == bool(right)
        if right:
            before = [*csv.reader(io.StringIO(content[:at], newline=""))]
            amid_a_row = column > 0 or (not content[:at].endswith("\n") and at > 0)
            assert (len(before) - amid_a_row, column) == right[0]


def test_what_quotes_are_in_text_without_any_is_a_part_of_its_field() -> None:
    named = np.array([False, True])
    assert first_padded(b'5" disk\t7\n"\t07\n', "\t", quotes=False, named=named) == (12, 1)
    assert first_padded(b"", ",", quotes=True, named=named) == (-1, -1)
    assert first_padded(b"07", ",", quotes=True, named=~named) == (0, 0)


FEATURE: dict[str, Any] = {"name": "zip", "ids": "hash", "num_ids": 1_000_000}


def imported(path: Path, to: Path, **feature: Any) -> tuple[Imported, list[dict[str, Any]]]:
    asked = {"label": "label", "session_id": None, "timestamp": None}
    schema = parse(ForeignSchema, {**asked, "sparse": [{**FEATURE, **feature}]}, "schema")
    found = survey(foreign_files([path]), {*schema.columns}, alone=True, ids=["zip"])
    made = TableImport(found.files, to, schema, types_asked(found, schema), workers=2).run()
    table = Table.open(to)
    return made, [row for stripe in table.stripes for row in table.read(stripe).to_pylist()]


@pytest.fixture
def small_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(samples, "FIRST_BYTES", 400)
    monkeypatch.setattr(samples, "SPOT_BYTES", 40)
    monkeypatch.setattr(whole_lines, "BLOCK_BYTES", 1_000)


@pytest.mark.usefixtures("small_samples")
@pytest.mark.parametrize(
    ("plain", "odd"),
    [
        ("{0}", "00100"),
        ("{0}", "-0100"),
        ('"{0}"', '"00100"'),
        ("{0}.0", "00100.0"),
        ("{0}|5", "00100|5"),
        ("{0}:0.5|5:1", "00100:0.5|5:1"),
    ],
)
def test_a_code_far_behind_the_sample_has_the_id_that_it_has_in_parquet(
    tmp_path: Path, plain: str, odd: str
) -> None:
    """It was taken for 100, without a word."""
    fields = [plain.format(100 + one % 90) for one in range(600)]
    fields[500] = odd
    lines = "".join(f"{one % 2},{field}\n" for one, field in enumerate(fields))
    path = text(tmp_path / "a.csv", f"label,zip\n{lines}")
    scored = {"scored": ":" in plain}
    made, rows = imported(path, tmp_path / "of text", **scored)
    assert any(note.startswith("zip: read as text, for") for note in made.notes)

    values: list[Any] = [field.strip('"') for field in fields]
    if "|" in plain:
        values = [field.split("|") for field in fields]
    if ".0" in plain and ":" not in plain:  # 100.0 is 100, as without the code
        values = [one if one == odd else one.removesuffix(".0") for one in values]
    if ":" in plain:
        pairs = [[one.split(":") for one in field] for field in values]
        values = [[{"id": i, "weight": float(weight)} for i, weight in row] for row in pairs]
    table = pa.table({"label": [one % 2 for one in range(600)], "zip": values})
    pq.write_table(table, tmp_path / "a.parquet")
    assert rows == imported(tmp_path / "a.parquet", tmp_path / "of parquet", **scored)[1]


@pytest.mark.parametrize(
    "spelled",
    [" {0}", "{0}  ", '" -{0}"', "\t{0} ", "{0}.0", '"-{0}.00"', " {0}. "],
)
def test_a_number_has_one_id_however_it_is_spelled_and_whatever_stands_in_other_rows(
    tmp_path: Path, spelled: str
) -> None:
    """Beside a text it had another id than in a file of numbers alone, without a word."""
    bare = text(tmp_path / "bare.csv", "label,zip\n0,12\n1,-12\n0,7\n1,0\n")
    lines = "".join(f"{one % 2},{spelled.format(12)}\n" for one in range(3))
    path = text(tmp_path / "a.csv", f"label,zip\n{lines}1,unknown\n0, x 1\n")
    _, (plain, below_zero, *_) = imported(bare, tmp_path / "of numbers")
    _, rows = imported(path, tmp_path / "made")
    right = below_zero if "-" in spelled else plain
    assert [row["zip"] for row in rows[:3]] == [right["zip"]] * 3
    known = hash_texts(np.frombuffer(b" x 1", np.uint8), np.array([0, 4])) % FEATURE["num_ids"]
    assert rows[4]["zip"] == known.tolist()


@pytest.mark.parametrize("plain", ["{0}", "{0}|5", "[{0}, 5]", "{0}:0.5|5:1"])
def test_a_whole_float_of_a_list_has_one_id_whatever_stands_in_other_rows(
    tmp_path: Path, plain: str
) -> None:
    """As pandas writes 12 beside a null: beside a text it was another than in a file without."""
    scored = {"scored": ":" in plain}
    made = []
    for number, odd in enumerate(("7", "unknown")):
        lines = [plain.format(one) for one in ("12.0", "-12.0", "0.0", "12", odd)]
        rows = "".join(f'{place % 2},"{one}"\n' for place, one in enumerate(lines * 5))
        path = text(tmp_path / f"{number}.csv", f"label,zip\n{rows}")
        made.append([row["zip"] for row in imported(path, tmp_path / str(number), **scored)[1]])
    numbers, beside_texts = made
    assert numbers[:4] == beside_texts[:4]
    assert numbers[0] == numbers[3]


@pytest.mark.usefixtures("small_samples")
def test_a_vocabulary_has_a_code_far_behind_the_sample(tmp_path: Path) -> None:
    lines = [f"{one % 2},{100 + one % 90}" for one in range(600)]
    lines[500] = "1,00100"
    path = text(tmp_path / "a.csv", "label,zip\n" + "\n".join(lines))
    to = tmp_path / "zip.parquet"
    assert write_vocabulary(survey(foreign_files([path])), ["zip"], to, most=1_000).values == 91
    assert "00100" in pq.read_table(to)["value"].to_pylist()


@pytest.mark.parametrize(("spelled", "right"), [("{0:02}", 1), ("{0:02}|{0:03}", 2)])
def test_a_schema_that_says_numbers_takes_codes_for_such(
    tmp_path: Path, spelled: str, right: int
) -> None:
    """Hours as 07 were refused as texts: by their own numbers they are ids."""
    lines = "".join(f"{one % 2},{spelled.format(one % 24)}\n" for one in range(200))
    path = text(tmp_path / "a.csv", f"label,zip\n{lines}")
    _, rows = imported(path, tmp_path / "made", ids="as_is", num_ids=24)
    assert [row["zip"] for row in rows] == [[one % 24] * right for one in range(200)]
