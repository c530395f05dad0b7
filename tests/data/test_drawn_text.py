"""Rung 2 (properties): tables drawn from seeds, written as text and as lines of JSON as programs
write them, are imported as plain Python says, value by value, however little a sample shows.

`DRAWN=1000:1400 pytest tests/data/test_drawn_text.py` draws others.
"""

from __future__ import annotations

import os
from pathlib import Path
from random import Random

import pytest
from drawn_columns import schema_of
from drawn_lines import as_json_lines
from drawn_table import DrawnTable, drawn
from drawn_text import as_text
from test_drawn_tables import assert_alike, rows_as_told

from recd_plugins.config import parse
from recd_plugins.data.foreign import ForeignSchema
from recd_plugins.data.importing.surveying import sample
from recd_plugins.data.importing.surveying.asked_types import types_asked
from recd_plugins.data.importing.surveying.survey import survey
from recd_plugins.data.importing.table_files import foreign_files
from recd_plugins.data.importing.table_import import TableImport
from recd_plugins.data.importing.text import whole_lines
from recd_plugins.data.importing.text_form import TextForm
from recd_plugins.data.table import Table
from recd_plugins.errors import DataError

FIRST, LAST = map(int, os.environ.get("DRAWN", "0:12").split(":"))

REFUSED = [
    "beyond 2^53, where floats skip integers",  # lines of JSON have -1 and 2^63 in one column
    "CSV conversion error to double: invalid value '",  # no sample had a time, which is a text
    "changed from null to",  # lines of JSON have nulls alone in a sample, and lists or ids later
    "has values of several types",  # lines of JSON have 5.0 and -2^63 in one column
]


@pytest.mark.parametrize("seed", range(FIRST, LAST))
@pytest.mark.parametrize("form", ["text", "json"])
def test_a_drawn_table_of_text_is_imported_as_plain_python_says(
    seed: int, form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = Random(seed)
    table = of_one_file(drawn(seed, tmp_path).table)
    if table.partitions or not table.rows():
        return
    folder = tmp_path / "text"
    folder.mkdir()
    if form == "text":
        paths, expected, said = as_text(table, folder, random)
    else:
        paths, said = [folder / "lines.jsonl"], TextForm()
        expected = as_json_lines(table, paths[0], random)
    if random.random() < 0.5:
        monkeypatch.setattr(sample, "FIRST_BYTES", random.choice([60, 300]))
        monkeypatch.setattr(sample, "SPOT_BYTES", random.choice([20, 100]))
        monkeypatch.setattr(whole_lines, "BLOCK_BYTES", random.choice([50, 400, 8 << 20]))
    if expected:
        check(table, paths, expected, said, tmp_path / "imported")


def of_one_file(table: DrawnTable) -> DrawnTable:
    """Text has no types of its own, so only what one file holds is written."""
    table.where = table.side = table.without = None
    table.files = [max(table.files, key=lambda file: file.rows)]
    table.columns = [one for one in table.columns if one.name in table.files[0].columns]
    return table


def check(table: DrawnTable, paths: list[Path], expected: object, form: TextForm, to: Path) -> None:
    schema = parse(ForeignSchema, schema_of(table.columns), "schema")
    ids = [one.name for one in schema.sparse]
    files = foreign_files(paths, form)
    try:
        found = survey(files, {*schema.columns}, alone=True, form=form, ids=ids)
        made = TableImport(
            files, to, schema, types_asked(found, schema), form=form, workers=2
        ).run()
    except DataError as error:
        if any(one in str(error) for one in REFUSED):
            return
        raise
    (path,) = made.tables.values()
    assert_alike(rows_as_told(Table.open(path)), expected)
