"""Value tests: the table that an import makes, against the rows written out; killed and resumed."""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from imported_tables import recd
from strangers_files import clicks, text, write
from typer.testing import CliRunner

from recd_plugins.cli.main import app
from recd_plugins.config import parse
from recd_plugins.data.conform.rows import conform
from recd_plugins.data.files.found import found_files
from recd_plugins.data.foreign import ForeignFeature, ForeignSchema
from recd_plugins.data.importing import reading, row_split, table_import
from recd_plugins.data.importing.negatives import Catalogue, Negatives, with_negatives
from recd_plugins.data.importing.schema_file import load_schema, options_of_schema
from recd_plugins.data.importing.splits import Quantile, SplitBy
from recd_plugins.data.importing.surveying.survey import survey
from recd_plugins.data.importing.table_files import foreign_files
from recd_plugins.data.importing.table_import import Imported, TableImport
from recd_plugins.data.importing.text import whole_lines
from recd_plugins.data.importing.vocabulary_pass import write_vocabulary
from recd_plugins.data.table import Table
from recd_plugins.errors import DataError, RegistryError
from recd_plugins.storage.uri import location_of

SCHEMA: dict[str, Any] = {
    "session_id": "visit",
    "timestamp": "at",
    "timestamp_unit": "s",
    "label": "clicked",
    "dense": [{"name": "price", "nulls": {"value": 0}}],
    "sparse": [
        {"name": "item_id", "num_ids": 100, "ids": "vocabulary"},
        {"name": "brand", "num_ids": 1000, "ids": "hash"},
    ],
}


def imported(
    path: Path, to: Path, changes: dict[str, Any] | None = None, **options: Any
) -> Imported:
    schema = parse(ForeignSchema, SCHEMA | (changes or {}), "schema")
    found = survey(foreign_files([path]))
    return TableImport(found.files, to, schema, found.read_as, workers=2, **options).run()


def rows_of(folder: Path) -> list[dict[str, Any]]:
    """All rows, as readers get them."""
    table = Table.open(folder)
    parts = [pq.read_table(file, columns=list(table.schema.columns)) for file in table.files]
    rows: list[dict[str, Any]] = pa.concat_tables(parts).to_pylist()
    return rows


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of some lines, segments of some blocks."""
    monkeypatch.setattr(whole_lines, "BLOCK_BYTES", 3_000)
    monkeypatch.setattr(reading, "BATCH_ROWS", 60)
    monkeypatch.setattr(table_import, "SEGMENT_ROWS", 150)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("name", ["clicks.csv", "clicks.tsv.gz", "clicks.jsonl", "clicks.parquet"])
def test_a_table_has_the_rows_of_the_files(tmp_path: Path, name: str) -> None:
    """In their order, whatever format; ids by how often their value occurs."""
    table = clicks()
    path = write(tmp_path / name, table, "gzip" if name.endswith("gz") else None)
    found = imported(path, tmp_path / "table")
    assert found.rows == {"train": 400}
    items = Counter(table["item_id"].to_pylist())
    rows = rows_of(tmp_path / "table")
    places: dict[int, int] = {}
    brands: dict[str, int] = {}
    for own, theirs in zip(rows, table.to_pylist(), strict=True):
        assert own["at"] == 1_000 * theirs["at"]
        assert own["clicked"] == theirs["clicked"]
        assert own["price"] == np.float32(theirs["price"] or 0)
        ((item,), (brand,)) = own["item_id"], own["brand"]
        assert places.setdefault(theirs["item_id"], item) == item
        assert brands.setdefault(theirs["brand"], brand) == brand
    by_id = sorted(places, key=lambda value: places[value])
    assert [places[value] for value in by_id] == list(range(1, 1 + len(items)))
    counts = [items[value] for value in by_id]
    assert counts == sorted(counts, reverse=True)
    # The schema beside it makes the same rows of the same files again.
    again = load_schema(tmp_path / "table" / "schema.yaml")
    served = conform(table, again, "a request").select(list(rows[0]))
    assert served.to_pylist() == rows


def test_a_table_keeps_the_vocabularies_by_which_it_was_imported(tmp_path: Path) -> None:
    """Those of an earlier day too: the day after is served, and the next one imported, when the
    first is gone. Where features of a table have two vocabularies, the second stays where it is."""
    path = write(tmp_path / "clicks.parquet", clicks())
    imported(path, tmp_path / "first")
    rows = rows_of(tmp_path / "first")
    for day, before in (("second", "first"), ("third", "second")):
        kept = load_schema(tmp_path / before / "schema.yaml")
        imported(path, tmp_path / day, {"sparse": [*options_of_schema(kept)["sparse"]]})
        shutil.rmtree(tmp_path / before)
        assert "vocabulary: vocabularies/item_id.parquet}" in text_of(tmp_path / day)
        assert rows_of(tmp_path / day) == rows
    served = conform(clicks(), load_schema(tmp_path / "third" / "schema.yaml"), "a request")
    assert served.select(list(rows[0])).to_pylist() == rows

    one, other = tmp_path / "one.parquet", tmp_path / "other.parquet"
    for file in (one, other):
        shutil.copyfile(tmp_path / "third" / "vocabularies" / "item_id.parquet", file)
    item = {"num_ids": 100, "ids": "vocabulary", "table": "items"}
    sparse = [
        {"name": "item_id", "vocabulary": str(one), **item},
        {"name": "brand", "vocabulary": str(other), **item},
    ]
    imported(path, tmp_path / "two", {"sparse": sparse})
    assert "vocabulary: vocabularies/items.parquet}" in text_of(tmp_path / "two")
    assert f"vocabulary: {other}}}" in text_of(tmp_path / "two")


def test_the_days_of_a_folder_are_one_table(tmp_path: Path) -> None:
    """A vocabulary beside a day's rows holds none of them, on a disk and on a store."""
    path = write(tmp_path / "clicks.parquet", clicks())
    days = tmp_path / "days"
    imported(path, days / "day=1")
    kept = load_schema(days / "day=1" / "schema.yaml")
    imported(path, days / "day=2", {"sparse": [*options_of_schema(kept)["sparse"]]})
    store = location_of("memory://days-of-a-folder")
    for file in (one for one in days.rglob("*") if one.is_file()):
        with (store / file.relative_to(days).as_posix()).open("wb") as sink:
            sink.write(file.read_bytes())
    for place in (days, store):
        for every in (place, place / "**/*.parquet"):
            files = [f"{file.parent.name}/{file.name}" for file in found_files(every)]
            assert files == ["day=1/part-00000.parquet", "day=2/part-00000.parquet"]
        assert Table.open(place).num_rows == 800
    (named,) = found_files(days / "day=1" / "vocabularies" / "*.parquet")
    assert named.name == "item_id.parquet"


def text_of(table: Path) -> str:
    """The schema that an import left beside a table."""
    return (table / "schema.yaml").read_text()


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("name", ["clicks.csv", "clicks.csv.gz", "clicks.parquet"])
def test_an_import_that_was_killed_goes_on(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table is the uninterrupted one's, byte by byte, and is never there in part."""
    options: dict[str, Any] = {"row_group_size": 50} if name.endswith("parquet") else {}
    rows = clicks(1_000).drop_columns(["clicked"])  # each is a click
    path = write(tmp_path / name, rows, "gzip" if name.endswith("gz") else None, **options)
    split = SplitBy.of("hash:visit", 0.2)
    negatives = Negatives(count=2, items=("item_id",))
    whole = imported(path, tmp_path / "whole", split=split, negatives=negatives)
    made, calls = table_import.with_negatives, []

    def dies(*arguments: Any, **keywords: Any) -> pa.Table:
        calls.append(1)
        if len(calls) == 21:
            raise KeyboardInterrupt
        return made(*arguments, **keywords)

    to = tmp_path / "table"
    monkeypatch.setattr(table_import, "with_negatives", dies)
    with pytest.raises(KeyboardInterrupt):
        imported(path, to, split=split, negatives=negatives)
    assert not to.exists()
    # What a kill leaves of a segment that it was at.
    rest = tmp_path / "table.part" / "segment-00099"
    (rest / "train.part").mkdir(parents=True)
    monkeypatch.setattr(table_import, "with_negatives", made)
    found = imported(path, to, split=split, negatives=negatives)
    assert found.resumed >= 1
    assert found.rows == whole.rows
    assert not (tmp_path / "table.part").exists()
    files = sorted(one.relative_to(to) for one in to.rglob("*.*"))
    assert files == sorted(
        one.relative_to(tmp_path / "whole") for one in tmp_path.glob("whole/**/*.*")
    )
    for file in files:
        assert (to / file).read_bytes() == (tmp_path / "whole" / file).read_bytes()


def killed_amid(
    monkeypatch: pytest.MonkeyPatch, path: Path, folder: Path, changes: dict[str, Any]
) -> None:
    """Import, and end at the 17th block, as Ctrl-C does."""
    made, calls = row_split.conform, []

    def dies(*arguments: Any, **keywords: Any) -> pa.Table:
        calls.append(1)
        if len(calls) == 17:
            raise KeyboardInterrupt
        return made(*arguments, **keywords)

    with monkeypatch.context() as dying:
        dying.setattr(row_split, "conform", dies)
        with pytest.raises(KeyboardInterrupt):
            imported(path, folder, changes)


def ending_amid_a_removal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the folder of an import lose a file alone where it is removed, and the import end."""
    whole = shutil.rmtree

    def half(folder: Path, **options: Any) -> None:
        if not Path(folder).name.endswith("table.part") or not Path(folder).exists():
            whole(folder, **options)
            return
        min(Path(folder).glob("segment-*/train/*.parquet")).unlink()
        raise KeyboardInterrupt

    monkeypatch.setattr(shutil, "rmtree", half)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("amid", ["its end", "another's begin"])
def test_what_is_left_of_an_import_that_was_being_removed_is_not_gone_on_with(
    amid: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "clicks.parquet", clicks(1_000), row_group_size=50)
    imported(path, tmp_path / "whole")
    if amid == "another's begin":
        killed_amid(monkeypatch, path, tmp_path / "table", {})
    changes: dict[str, Any] = {} if amid == "its end" else {"dense": []}
    with monkeypatch.context() as ending:
        ending_amid_a_removal(ending)
        with pytest.raises(KeyboardInterrupt):
            imported(path, tmp_path / "table", changes)
    if amid == "its end":
        assert rows_of(tmp_path / "table") == rows_of(tmp_path / "whole")
        shutil.rmtree(tmp_path / "table")
    assert imported(path, tmp_path / "table").resumed == 0
    assert rows_of(tmp_path / "table") == rows_of(tmp_path / "whole")
    assert not (tmp_path / "table.part").exists()


@pytest.mark.usefixtures("small")
def test_what_vocabularies_do_not_know_is_of_all_rows_after_a_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = {"clicked": [0, 1] * 500, "item_id": [one // 10 for one in range(1_000)]}
    item = {"name": "item_id", "num_ids": 100, "ids": "vocabulary"}
    bare = {"session_id": None, "timestamp": None, "dense": [], "sparse": [item]}
    first = write(tmp_path / "first.csv", pa.table(rows)[:600])
    imported(first, tmp_path / "first", bare)
    known = str(tmp_path / "first" / "vocabularies" / "item_id.parquet")
    bare["sparse"] = [item | {"vocabulary": known}]
    path = write(tmp_path / "all.parquet", pa.table(rows), row_group_size=50)
    killed_amid(monkeypatch, path, tmp_path / "table", bare)
    found = imported(path, tmp_path / "table", bare)
    assert found.resumed >= 1
    (note,) = found.notes
    assert note.startswith("item_id: the vocabulary does not know 40% of its values, which")


@pytest.mark.usefixtures("small")
def test_an_import_begins_anew_where_a_vocabulary_is_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    items = [one // 10 for one in range(1_000)]
    known = tmp_path / "items.parquet"
    item = {"name": "item_id", "num_ids": 101, "ids": "vocabulary", "vocabulary": str(known)}
    bare = {"session_id": None, "timestamp": None, "dense": [], "sparse": [item]}
    rows = pa.table({"clicked": [0, 1] * 500, "item_id": items})
    path = write(tmp_path / "all.parquet", rows, row_group_size=50)
    values = [str(one) for one in range(100)]
    pq.write_table(pa.table({"value": values}), known)
    killed_amid(monkeypatch, path, tmp_path / "table", bare)
    pq.write_table(pa.table({"value": values[::-1]}), known)
    os.utime(known, (1, 1))
    assert imported(path, tmp_path / "table", bare).resumed == 0
    assert [row["item_id"] for row in rows_of(tmp_path / "table")] == [[100 - one] for one in items]


def test_another_reading_of_any_file_is_another_import(tmp_path: Path) -> None:
    rows = clicks(40)
    paths = [write(tmp_path / name, rows) for name in ("1.csv", "2.csv")]
    files, schema = foreign_files(paths), parse(ForeignSchema, SCHEMA, "schema")
    read_as = survey(files).read_as

    def key(**changes: Any) -> str:
        held = [files[0], replace(files[1], **changes)]
        return TableImport(held, tmp_path / "table", schema, read_as)._fingerprint()

    changed: list[dict[str, Any]] = [{"escapes": True}, {"quotes": False}, {"encoding": "latin-1"}]
    keys = {key(), *(key(**one) for one in changed)}
    assert len(keys) == 4
    assert key() in keys


def test_a_glob_names_files_and_folders_whose_names_say_values(tmp_path: Path) -> None:
    for day in (1, 2, 3):
        (tmp_path / f"day={day}").mkdir()
        for name in ("a.csv", "b.csv", "_SUCCESS"):
            text(tmp_path / f"day={day}" / name, "item,label\n7,1\n")
    text(tmp_path / "x[1].csv", "item,label\n8,0\n")

    def found(pattern: str) -> list[tuple[str, dict[str, Any]]]:
        files = foreign_files([tmp_path / pattern])
        return [
            (
                one.path.relative_to(tmp_path).as_posix(),
                {name: value.as_py() for name, value in one.partitions.items()},
            )
            for one in files
        ]

    every = [(f"day={day}/{name}.csv", {"day": day}) for day in (1, 2) for name in "ab"]
    assert found("day=[12]/*.csv") == found("day=[12]") == every
    assert found("**/b.csv") == [(f"day={day}/b.csv", {"day": day}) for day in (1, 2, 3)]
    assert found("x[1].csv") == [("x[1].csv", {})]
    with pytest.raises(DataError, match=r"c\*\.csv: no file fits this glob"):
        found("day=1/c*.csv")


@pytest.mark.usefixtures("small")
def test_what_another_import_left_is_not_gone_on_with(tmp_path: Path) -> None:
    path = write(tmp_path / "clicks.csv", clicks())
    (tmp_path / "table.part").mkdir()
    (tmp_path / "table.part" / "import.json").write_text('{"key": "of another"}')
    (tmp_path / "table.part" / "rest").write_text("")
    assert imported(path, tmp_path / "table").resumed == 0
    with pytest.raises(DataError, match=r"table: is there already\. Name another folder"):
        imported(path, tmp_path / "table")


@pytest.mark.usefixtures("small")
def test_an_error_names_the_folder_that_it_leaves(tmp_path: Path) -> None:
    """A folder with nothing done in it is removed."""
    labels = clicks()["clicked"].to_pylist()
    plain = {"sparse": [SCHEMA["sparse"][1]]}
    left = {}
    for bad in (0, 390):
        wrong = pa.array([7 if row == bad else one for row, one in enumerate(labels)])
        table = clicks().drop(["clicked"]).append_column("clicked", wrong)
        path = write(tmp_path / f"clicks{bad}.parquet", table, row_group_size=50)
        for name, changes in (("counted", {}), ("hashed", plain)):
            to = tmp_path / f"{name}{bad}"
            with pytest.raises(DataError) as error:
                imported(path, to, changes)
            part = to.with_name(f"{to.name}.part")
            left[to.name] = part.exists()
            assert (f"{part} keeps what is done so far" in str(error.value)) == part.exists()
    assert left == {"counted0": True, "hashed0": False, "counted390": True, "hashed390": True}


@pytest.mark.usefixtures("small")
def test_the_latest_rows_are_for_testing(tmp_path: Path) -> None:
    """In any order of the files; a value that only test rows have is none of the vocabulary."""
    table = clicks().append_column("fresh", pa.array([f"f{one // 40}" for one in range(400)]))
    shuffled = table.take(pa.array(np.random.default_rng(1).permutation(400)))
    path = write(tmp_path / "clicks.csv", shuffled)
    fresh = {"name": "fresh", "num_ids": 50, "ids": "vocabulary"}
    split = SplitBy.of("time", 0.1)
    imported(path, tmp_path / "t", {"sparse": [*SCHEMA["sparse"], fresh]}, split=split)
    train, test = rows_of(tmp_path / "t" / "train"), rows_of(tmp_path / "t" / "test")
    assert (len(train), len(test)) == (360, 40)
    assert max(row["at"] for row in train) < min(row["at"] for row in test)
    assert {row["fresh"][0] for row in train} == set(range(1, 10))
    assert {row["fresh"][0] for row in test} == {0}


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("last", [1, 0, None])
def test_test_rows_of_one_label_are_told(tmp_path: Path, last: int | None) -> None:
    """By the import that makes them, of all of its segments, and by a check of them."""
    table = clicks()
    labels = table["clicked"].to_numpy().copy()
    labels[-40:] = [0, 1] * 20 if last is None else last
    path = write(tmp_path / "c.parquet", table.set_column(2, "clicked", pa.array(labels)))
    found = imported(path, tmp_path / "t", split=SplitBy.of("time", 0.1))
    told = f"clicked is {last} in each of the test rows, of which no AUC and NE can be computed"
    assert any(note.startswith(told) for note in found.notes) == (last is not None)
    assert len(found.notes) == (last is not None)
    result = CliRunner().invoke(app, ["data", "check", str(tmp_path / "t")])
    told = (
        f"column 'clicked' is {last} in every row. Its AUC and NE cannot be computed of such test"
    )
    assert (result.exit_code, told in result.stdout) == ((0, False) if last is None else (1, True))
    assert "nothing to learn" not in result.stdout


def test_rows_of_neither_side_say_nothing_of_those_for_testing(tmp_path: Path) -> None:
    """A row without a time is left out, and the others of its block are parted all the same."""
    table = clicks().append_column("fresh", pa.array(["old"] * 370 + ["new"] * 30))
    at = pa.array([None, *table["at"].to_pylist()[1:]], pa.int64())
    path = write(tmp_path / "c.parquet", table.set_column(1, "at", at))
    fresh = {"name": "fresh", "num_ids": 50, "ids": "vocabulary"}
    changes = {"sparse": [fresh], "nulls": {"at": "drop"}}
    imported(path, tmp_path / "t", changes, split=SplitBy.of("time", 0.1))
    saved = pq.read_table(tmp_path / "t" / "vocabularies" / "fresh.parquet")
    assert saved["value"].to_pylist() == ["old"]


def test_features_of_several_types_share_a_vocabulary(tmp_path: Path) -> None:
    pairs = pa.list_(pa.struct([("id", pa.int64()), ("weight", pa.float32())]))
    weighed = pa.map_(pa.int16(), pa.float32())
    columns = {
        "item": pa.array([one % 3 for one in range(60)], pa.int32()),
        "cart": pa.array([[{"id": 10 + one % 2, "weight": 0.5}] for one in range(60)], pairs),
        "liked": pa.array([[(20, 1.0)] * (one % 2) or None for one in range(60)], weighed),
    }
    table = clicks(60)
    for name, column in columns.items():
        table = table.append_column(name, column)
    of_items = {"num_ids": 50, "ids": "vocabulary", "table": "item"}
    sparse = [{"name": name, "scored": name != "item", **of_items} for name in columns]
    path = write(tmp_path / "c.parquet", table)
    imported(path, tmp_path / "t", {"sparse": sparse})
    saved = pq.read_table(tmp_path / "t" / "vocabularies" / "item.parquet")
    assert {*saved["value"].to_pylist()} == {"0", "1", "2", "10", "11", "20"}
    rows = rows_of(tmp_path / "t")
    ids = {id_ for row in rows for name in columns for id_ in row[name]}
    assert ids == {1, 2, 3, 4, 5, 6}


def test_a_user_is_on_one_side_alone(tmp_path: Path) -> None:
    path = write(tmp_path / "clicks.csv", clicks(2_000))
    assert not imported(path, tmp_path / "t", split=SplitBy.of("hash:visit", 0.3)).notes
    train, test = rows_of(tmp_path / "t" / "train"), rows_of(tmp_path / "t" / "test")
    assert not {row["visit"] for row in train} & {row["visit"] for row in test}
    assert len(train) + len(test) == 2_000
    assert 0.25 < len(test) / 2_000 < 0.35
    few = imported(path, tmp_path / "few", split=SplitBy.of("hash:clicked", 0.5))
    assert "clicked has few values, or many rows share one" in few.notes[0]
    with pytest.raises(DataError, match=r"--split-by hash:visitor: no file .*did you mean 'visit'"):
        imported(path, tmp_path / "none", split=SplitBy.of("hash:visitor", 0.3))


def test_the_cut_of_a_quantile() -> None:
    draw = np.random.default_rng(0)
    for times in (np.arange(3_000_000), draw.permutation(3_000_000)):
        quantile = Quantile()
        for part in np.array_split(times, 7):
            quantile.add(part)
        assert abs(quantile.cut(0.1, "at") - 2_700_000) < 3_000
    days = Quantile()
    days.add(np.repeat([1, 2, 3], [10, 2, 88]))
    assert days.cut(0.5, "at") == 3
    days.add(np.full(500, 1))
    assert days.cut(0.5, "at") == 2  # the first time itself would leave nothing to train on
    same = Quantile()
    same.add(np.full(9, 4))
    with pytest.raises(DataError, match="'at' holds only one time"):
        same.cut(0.1, "at")


@pytest.mark.parametrize("by", ["popularity", "uniform"])
def test_negatives_are_other_items_beside_each_click(tmp_path: Path, by: str) -> None:
    table = clicks(3_000).drop_columns(["clicked"])
    path = write(tmp_path / "clicks.csv", table)
    plain = {"label": "label", "sparse": [*SCHEMA["sparse"][:1], SCHEMA["sparse"][1]]}
    negatives = Negatives(count=3, by=by)  # type: ignore[arg-type]
    for name in ("one", "two"):
        imported(path, tmp_path / name, plain, negatives=negatives)
    rows = rows_of(tmp_path / "one")
    assert rows == rows_of(tmp_path / "two")
    assert len(rows) == 4 * 3_000
    brand_of = {}
    for row in rows:  # a brand comes with its item
        assert brand_of.setdefault(row["item_id"][0], row["brand"]) == row["brand"]
    drawn: Counter[int] = Counter()
    for at in range(0, len(rows), 4):
        click, *others = rows[at : at + 4]
        assert click["label"] == 1
        for other in others:
            assert other["label"] == 0
            assert other["item_id"] != click["item_id"]
            assert (other["visit"], other["price"]) == (click["visit"], click["price"])
            drawn[other["item_id"][0]] += 1
    first = drawn[1] / sum(drawn.values())  # the most popular item
    share = Counter(table["item_id"].to_pylist()).most_common(1)[0][1] / 3_000
    clicked_first = share * (1 - share)
    expected = clicked_first / (1 - share) if by == "popularity" else (1 - share) / len(drawn)
    assert 0.5 * expected < first < 1.5 * expected


def test_negatives_beside_labels_that_are_no_clicks_are_refused(tmp_path: Path) -> None:
    table, negatives = clicks(300), Negatives(count=1, items=("item_id",))
    path = write(tmp_path / "clicks.csv", table)
    zeros = table["clicked"].to_pylist().count(0)
    assert 0 < zeros < 300
    with pytest.raises(DataError, match=rf"'clicked' is not 1 in {zeros} of 300 rows \(first, "):
        imported(path, tmp_path / "t", SCHEMA | {"label": "clicked"}, negatives=negatives)
    several = [{"name": "clicked"}, {"name": "liked"}]
    for other in (several, [{"name": "clicked", "kind": "graded", "grades": 2}]):
        schema = {name: one for name, one in SCHEMA.items() if name != "label"}
        with pytest.raises(RegistryError, match="--negatives: it makes labels of clicks, 1, and"):
            imported(path, tmp_path / "t", {**schema, "labels": other}, negatives=negatives)
    ones = table.set_column(table.column_names.index("clicked"), "clicked", pa.array([1] * 300))
    path = write(tmp_path / "ones.csv", ones)
    imported(path, tmp_path / "t", SCHEMA | {"label": "clicked"}, negatives=negatives)
    assert Counter(row["clicked"] for row in rows_of(tmp_path / "t")) == {0: 300, 1: 300}


def test_negatives_are_drawn_in_each_of_many_files() -> None:
    items = pa.table({"item": [[0], [1], [2]]})
    catalogue = Catalogue(ids=np.arange(3), counts=np.ones(3, np.int64), rows=items)
    labels = pa.array([1, 1], pa.float32())
    made = with_negatives(
        pa.table({"item": [[0], [1]], "label": labels}),
        catalogue,
        Negatives(count=2),
        columns=["item"],
        label="label",
        key=40_000 << 48,  # of the first row of the 40,001st file
        where="a file",
    )
    assert made["label"].to_pylist() == [1, 0, 0, 1, 0, 0]
    (first, *others), (second, *more) = np.reshape(made["item"].to_pylist(), (2, 3)).tolist()
    assert (first, second) == (0, 1)
    assert first not in others
    assert second not in more


def test_an_error_names_the_row_of_the_file_where_rows_are_parted_and_left_out(
    tmp_path: Path,
) -> None:
    rows = range(200)
    table = pa.table(
        {
            "visit": list(rows),
            "item_id": [99 if row == 57 else row % 50 for row in rows],
            "price": [None if row % 3 == 1 else 1.0 for row in rows],
            "clicked": [row % 2 for row in rows],
        }
    )
    changes = {
        "timestamp": None,
        "dense": [{"name": "price", "nulls": "drop"}],
        "sparse": [{"name": "item_id", "num_ids": 50}],
    }
    path, split = write(tmp_path / "c.parquet", table), SplitBy(column="visit", share=0.5)
    with pytest.raises(DataError, match=r"99 .*row 58\b"):
        imported(path, tmp_path / "t", changes, split=split)


@pytest.mark.usefixtures("small")
def test_a_column_that_turns_out_to_be_text_is_read_as_text(tmp_path: Path) -> None:
    """Its integers keep the ids that they have as integers; what must be a number is an error."""
    lines = [f"{one},{one % 2}" for one in range(2_000)]
    lines[1_500] = "x7,1"
    path = text(tmp_path / "c.csv", "item_id,clicked\n" + "\n".join(lines))
    schema = {"session_id": None, "timestamp": None, "dense": []}
    item = {"name": "item_id", "num_ids": 1000, "ids": "hash"}
    found = survey(foreign_files([text(tmp_path / "d.csv", "item_id,clicked\n1,0\n2,1\n")]))
    files = foreign_files([path])
    for ids, says in ((item, None), ({"name": "item_id", "num_ids": 9999}, r"c\.csv:1502: column")):
        made = parse(ForeignSchema, SCHEMA | schema | {"sparse": [ids]}, "schema")
        job = TableImport(files, tmp_path / f"table-{says}", made, found.read_as)
        if says is None:
            assert any("read as text" in note for note in job.run().notes)
            table = pa.table({"item_id": [3], "clicked": [1]})
            assert rows_of(tmp_path / "table-None")[3]["item_id"] == (
                conform(table, made, "")["item_id"][0].as_py()
            )
        else:
            with pytest.raises(DataError, match=says):
                job.run()
    by_hand, saved = replace(found, files=tuple(files)), tmp_path / "item_id.parquet"
    write_vocabulary(by_hand, ["item_id"], saved, most=9_999)
    assert {*pq.read_table(saved)["value"].to_pylist()} == {one.partition(",")[0] for one in lines}


@pytest.mark.usefixtures("small")
def test_an_import_that_widened_a_column_goes_on_when_it_was_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In two steps, as floats and then as text: the note of why is there once."""
    lines = [f"{one},{one % 2}" for one in range(2_000)]
    lines[300], lines[700] = "300.0,0", "x7,1"
    path = text(tmp_path / "c.csv", "item_id,clicked\n" + "\n".join(lines))
    files = foreign_files([path])
    read_as = survey(
        foreign_files([text(tmp_path / "d.csv", "item_id,clicked\n1,0\n2,1\n")])
    ).read_as
    item = {"name": "item_id", "num_ids": 5000, "ids": "vocabulary"}
    bare = {"session_id": None, "timestamp": None, "dense": [], "sparse": [item]}
    schema = parse(ForeignSchema, SCHEMA | bare, "schema")
    made, calls = row_split.conform, []

    def dies(*arguments: Any, **keywords: Any) -> pa.Table:
        calls.append(1)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return made(*arguments, **keywords)

    def job() -> Imported:
        return TableImport(files, tmp_path / "t", schema, read_as, workers=1).run()

    monkeypatch.setattr(row_split, "conform", dies)
    with pytest.raises(KeyboardInterrupt):
        job()
    monkeypatch.setattr(row_split, "conform", made)
    found = job()
    assert found.resumed >= 1
    assert [note.split(",")[0] for note in found.notes] == ["item_id: read as text"]
    assert found.rows == {"train": 2_000}
    assert len({row["item_id"][0] for row in rows_of(tmp_path / "t")}) == 2_000


def test_the_command_says_what_it_made(tmp_path: Path) -> None:
    path = write(tmp_path / "clicks.csv", clicks())
    (tmp_path / "s.yaml").write_text(
        "session_id: visit\ntimestamp: at\nlabel: clicked\n"
        "dense: [{name: price, nulls: drop}]\nsparse: [{name: brand, num_ids: 50, ids: hash}]\n"
    )
    arguments = ["data", "import", str(path), str(tmp_path / "a b"), "--split-by", "time"]
    result = CliRunner().invoke(app, [*arguments, "--schema", str(tmp_path / "s.yaml")])
    assert result.exit_code == 0, result.output
    kept = 400 - clicks()["price"].null_count
    assert f"left out: {clicks()['price'].null_count} rows without price" in result.stdout
    assert f"next: recd init '{tmp_path}/a b'" in result.stdout
    assert sum(Table.open(tmp_path / "a b" / one).num_rows for one in ("train", "test")) == kept
    wrong = CliRunner().invoke(app, [*arguments[:3], str(tmp_path / "u"), "--split-by", "user"])
    assert (wrong.exit_code, "nor `hash:COLUMN`. Write one of" in wrong.stderr) == (2, True)


@pytest.mark.parametrize(("rows", "times"), [(2, 2), (19, 19), (400, 3)])
def test_a_note_of_another_share_of_test_rows_is_true_of_few_rows_and_of_many_alike(
    tmp_path: Path, rows: int, times: int
) -> None:
    at = pa.array(1_700_000_000 + np.arange(rows) % times)
    path = write(tmp_path / "clicks.csv", clicks().slice(0, rows).set_column(1, "at", at))
    (tmp_path / "s.yaml").write_text(
        "{session_id: null, timestamp: at, label: clicked, dense: [], "
        "sparse: [{name: brand, num_ids: 50, ids: hash}]}"
    )
    options = ["--split-by", "time", "--schema", str(tmp_path / "s.yaml")]
    made = CliRunner().invoke(app, ["data", "import", str(path), str(tmp_path / "t"), *options])
    assert "for testing, not 10.0%: at has few values, or many rows share one" in made.stderr


DROPS = {"nulls": {"clicked": "drop"}}


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("name", ["clicks.csv", "clicks.jsonl", "clicks.parquet"])
@pytest.mark.parametrize("by", [None, "time", "hash:visit"])
def test_rows_that_are_dropped_count_nowhere(tmp_path: Path, name: str, by: str | None) -> None:
    """Neither for the vocabulary nor for the time from which on rows are for testing: not those of
    the last hours, which have no label yet, nor of another kind of item."""
    table, draw = clicks(), np.random.default_rng(1)
    gone = (draw.random(400) < 0.3) | (np.arange(400) > 350)
    items = np.where(gone, 7, table["item_id"].to_numpy())
    table = table.set_column(4, "item_id", pa.array(items))
    table = table.set_column(2, "clicked", pa.array(table["clicked"].to_numpy(), mask=gone))
    left = table.filter(pa.array(~gone))
    split = None if by is None else SplitBy.of(by, 0.2)
    found = [
        imported(write(tmp_path / f"{to}.{name}", rows), tmp_path / to, DROPS, split=split)
        for to, rows in (("whole", table), ("left", left))
    ]
    assert found[0].rows == found[1].rows
    assert found[0].dropped == {"clicked": gone.sum()}
    for folder in found[0].tables:
        assert rows_of(tmp_path / "whole" / folder) == rows_of(tmp_path / "left" / folder)
    whole, left = (
        pq.read_table(tmp_path / one / "vocabularies" / "item_id.parquet")
        for one in ("whole", "left")
    )
    assert whole.equals(left)
    assert 7 not in whole["value"].to_pylist()


def test_a_vocabulary_of_its_own_is_the_one_that_an_import_makes(tmp_path: Path) -> None:
    """Of CSV and Parquet, of several columns; and a schema that names it reads Parquet in place."""
    text, parquet = tmp_path / "clicks.csv", tmp_path / "clicks.parquet"
    write(text, clicks())
    pq.write_table(clicks(), parquet)
    (tmp_path / "s.yaml").write_text(
        "session_id: visit\ntimestamp: at\nlabel: clicked\n"
        "sparse: [{name: brand, num_ids: 50, ids: vocabulary}]\n"
    )
    saved, link = tmp_path / "v" / "brand.parquet", tmp_path / "link"
    saved.parent.mkdir()
    saved.touch()
    link.symlink_to(saved)

    def run(*arguments: str) -> Any:
        return CliRunner().invoke(app, ["data", *arguments])

    asked = ["--column", "brand", "--save", str(link), "--most", "50"]
    done = run("vocabulary", str(text), *asked, "--json")
    assert done.exit_code == 0, done.output
    made = json.loads(done.stdout)
    assert link.is_symlink()
    imported = run("import", str(text), str(tmp_path / "t"), "--schema", str(tmp_path / "s.yaml"))
    assert imported.exit_code == 0, imported.output
    assert pq.read_table(saved).equals(
        pq.read_table(tmp_path / "t" / "vocabularies" / "brand.parquet"), check_metadata=True
    )
    values = sorted(set(clicks()["brand"].drop_null().to_pylist()))
    assert (made["values"], made["own"]) == (len(values), made["num_ids"] - 1)
    assert f"num_ids: {made['num_ids']}}}" in run("vocabulary", str(parquet), *asked).stdout
    brand = ForeignFeature(
        name="brand", num_ids=made["num_ids"], ids="vocabulary", vocabulary=saved
    )
    schema = ForeignSchema(session_id=None, timestamp=None, label="clicked", sparse=(brand,))
    found = conform(pq.read_table(parquet), schema, "a file")["brand"]
    assert found.to_pylist() == [row["brand"] for row in rows_of(tmp_path / "t")]

    # What a schema has stand for a null has no place in either, nor have rows that it drops.
    common = values[0]
    schema_file = tmp_path / "missing.yaml"
    schema_file.write_text(
        "session_id: visit\ntimestamp: at\nlabel: clicked\n"
        "dense: [{name: price, nulls: drop}]\n"
        f"sparse: [{{name: brand, num_ids: 50, ids: vocabulary, missing: [{common}]}}]\n"
    )
    by_hand = json.loads(
        run("vocabulary", str(text), *asked, "--schema", str(schema_file), "--json").stdout
    )
    imported = run("import", str(text), str(tmp_path / "u"), "--schema", str(schema_file))
    assert imported.exit_code == 0, imported.output
    assert by_hand["values"] == len(values) - 1
    assert pq.read_table(saved).equals(
        pq.read_table(tmp_path / "u" / "vocabularies" / "brand.parquet"), check_metadata=True
    )

    for wrong, says in (
        (["--column", "brnad"], "the files have no 'brnad'; did you mean 'brand'"),
        (["--column", "brand", "--most", "1"], "1 ids are too few"),
        (
            ["--column", "item_id", "--schema", str(schema_file)],
            "no sparse feature 'item_id'; Known: brand",
        ),
    ):
        refused = run("vocabulary", str(text), *wrong, "--save", str(saved))
        assert (refused.exit_code, says in refused.stderr) == (2, True), refused.output


def test_vocabularies_whose_names_differ_in_case_alone_are_refused(tmp_path: Path) -> None:
    """Many file systems take their two files for one."""
    path = tmp_path / "a.csv"
    path.write_text("label,Brand,brand\n" + "0,a,b\n1,c,d\n" * 50)

    def made(**second: str) -> list[str]:
        each = [{"name": "Brand"}, {"name": "brand", **second}]
        sparse = [{**one, "num_ids": 9, "ids": "vocabulary"} for one in each]
        plain = {"label": "label", "timestamp": None, "session_id": None, "dense": []}
        imported(path, tmp_path / "t", {**plain, "sparse": sparse})
        return sorted(one.name for one in (tmp_path / "t" / "vocabularies").iterdir())

    with pytest.raises(DataError, match="of tables 'Brand' and 'brand' would be the files") as told:
        made()
    assert "`table: brand_2` in the schema's entry of each feature of 'brand'" in str(told.value)
    assert made(table="brand_2") == ["Brand.parquet", "brand_2.parquet"]


def test_of_several_columns_of_one_name_the_first_is_read_and_told(tmp_path: Path) -> None:
    lines = "".join(f"{n % 2},{n % 5},{n % 3}\n" for n in range(30))
    path = text(tmp_path / "a.csv", f"clicked,item,item\n{lines}")
    asked: dict[str, Any] = {"session_id": None, "timestamp": None, "label": "clicked"}
    for name, told in (("item", True), ("item_2", False)):
        asked["sparse"] = [{"name": name, "num_ids": 5}]
        schema = text(tmp_path / "s.yaml", json.dumps(asked))
        printed = recd("data", "import", path, tmp_path / name, "--schema", schema)
        assert ("several columns are called 'item'; the first was read" in printed) == told
        wanted = [[n % 5 if told else n % 3] for n in range(30)]
        assert [row[name] for row in rows_of(tmp_path / name)] == wanted


def test_a_file_to_which_somebody_writes_meanwhile_is_noted(tmp_path: Path) -> None:
    file = tmp_path / "clicks.csv"
    file.write_text("click,item\n" + "1,7\n0,8\n" * 50)
    columns = {"label": "click", "session_id": None, "timestamp": None}
    schema = parse(ForeignSchema, columns | {"sparse": [{"name": "item", "num_ids": 9}]}, "schema")
    found = survey(foreign_files([file]))

    def notes(to: str) -> tuple[str, ...]:
        return TableImport(found.files, tmp_path / to, schema, found.read_as, workers=1).run().notes

    assert notes("as_it_was") == ()
    with file.open("a") as opened:
        opened.write("1,3\n")
    (note,) = notes("longer")
    assert note.startswith(f"{file}: has changed since the import began, so the table may lack")


@pytest.mark.parametrize(
    ("name", "ends"), [("parquet", "removed"), ("parquet", "emptied"), ("csv", "removed")]
)
def test_a_file_that_is_gone_when_its_turn_comes_is_named(
    tmp_path: Path, name: str, ends: str
) -> None:
    paths = [write(tmp_path / f"{number}.{name}", clicks(40)) for number in range(2)]
    found = survey(foreign_files(paths))
    schema = parse(ForeignSchema, SCHEMA | {"sparse": [SCHEMA["sparse"][1]]}, "schema")
    job = TableImport(found.files, tmp_path / "table", schema, found.read_as, workers=1)
    if ends == "emptied":
        paths[1].write_bytes(b"")
    else:
        paths[1].unlink()
    with pytest.raises(DataError, match=rf"1\.{name}: was removed or written over while the files"):
        job.run()
    assert not list(tmp_path.glob("table*"))


def test_a_column_that_a_file_lacks_is_told_before_values_are_counted(tmp_path: Path) -> None:
    for number, lacked in enumerate([[], ["visit"]]):
        write(tmp_path / f"{number}.parquet", clicks(40).drop(lacked))
    with pytest.raises(DataError, match=r"1\.parquet: lacks column 'visit'"):
        imported(tmp_path / "*.parquet", tmp_path / "table")
    assert not list(tmp_path.glob("table*"))
