"""Value tests: `recd data check` names all that is wrong in one run, each with its cure."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from strangers_files import clicks, text, write
from typer.testing import CliRunner, Result

from recd_plugins.cli.main import app
from recd_plugins.data.conform import rows
from recd_plugins.data.importing import reading
from recd_plugins.data.importing.checking import row_check
from recd_plugins.data.importing.schema_file import load_schema
from recd_plugins.data.importing.table_files import files_of
from recd_plugins.data.importing.text import whole_lines
from recd_plugins.errors import RegistryError
from recd_plugins.notices import NoticeWarning
from recd_plugins.testing.batches import random_table
from recd_plugins.testing.probe import SCHEMA

SCHEMA_YAML = """
session_id: visit
timestamp: at
timestamp_unit: ms
label: clicked
dense: [price, cost]
sparse:
  - {name: item_id, num_ids: 40}
  - {name: brand, num_ids: 50, ids: vocabulary}
"""


def checked(folder: Path, *paths: Path, schema: str | None = SCHEMA_YAML) -> Result:
    arguments = ["data", "check", *map(str, paths)]
    if schema is not None:
        (folder / "schema.yaml").write_text(schema)
        arguments += ["--schema", str(folder / "schema.yaml")]
    return CliRunner().invoke(app, arguments)


@pytest.mark.parametrize("name", ["c.csv", "c.parquet", "c.jsonl"])
@pytest.mark.parametrize("came", [0, 1])
def test_files_that_lack_a_column_check_clean_by_what_they_are_imported_by(
    tmp_path: Path, name: str, came: int
) -> None:
    """Whichever file has it; and a wrong name is told as an import tells it."""
    folder = tmp_path / "days"
    folder.mkdir()
    schema = (
        "{session_id: null, timestamp: null, label: clicked, dense: [{name: price, nulls: "
        "{value: 0}}], sparse: [{name: item_id, num_ids: 60}]}"
    )
    for day in range(2):
        table = clicks(seed=day).set_column(4, "item_id", pa.array(np.arange(400) % 60))
        write(folder / f"{day}-{name}", table if day == came else table.drop_columns(["price"]))
    found = checked(tmp_path, folder, schema=schema)
    told = (found.exit_code, "--absent price`, takes nulls" in found.output)
    assert told == ((0, False) if "jsonl" in name else (1, True))  # a line may lack any key
    for column, says in (("price", "800 rows, no problem"), ("prise", "did you mean 'price'")):
        options = ["--schema", str(tmp_path / "schema.yaml"), "--absent", column]
        found = CliRunner().invoke(app, ["data", "check", str(folder), *options])
        assert says in found.output
        made = [str(folder), str(tmp_path / column)]
        imported = CliRunner().invoke(app, ["data", "import", *made, *options])
        codes = (found.exit_code, imported.exit_code)
        assert codes == ((0, 0) if column == "price" else (1, 2)), imported.output


def test_columns_may_be_absent_from_files_that_no_schema_describes(tmp_path: Path) -> None:
    folder = tmp_path / "days"
    folder.mkdir()
    for day in range(2):
        table = clicks(seed=day)
        write(folder / f"{day}.parquet", table.drop_columns(["price"]) if day else table)
    words = ["data", "check", str(folder)]
    assert "lacks 'price', other than" in CliRunner().invoke(app, words).output
    found = CliRunner().invoke(app, [*words, "--absent", "price"])
    assert (found.exit_code, "no problem" in found.output) == (0, True), found.output
    registry = tmp_path / "registry.yaml"
    registry.write_text("{}")
    found = CliRunner().invoke(app, ["data", "check", str(registry), "--absent", "price"])
    assert "write `absent: [price]` into the dataset" in found.stderr


def spoilt() -> pa.Table:
    """Seconds for milliseconds, labels of 2, items beyond their range, NaN, a column twice."""
    table = clicks()
    labels = table["clicked"].to_numpy().copy()
    labels[[17, 350]] = 2
    items = table["item_id"].to_numpy() - 1_000_000
    prices = table["price"].to_numpy(zero_copy_only=False).copy()
    prices[3] = np.inf
    table = table.set_column(2, "clicked", pa.array(labels))
    table = table.set_column(3, "price", pa.array(prices, mask=np.isnan(prices)))
    table = table.set_column(4, "item_id", pa.array(items))
    return table.append_column("cost", table["price"])


@pytest.mark.parametrize("name", ["c.csv", "c.parquet"])
def test_all_problems_are_named_in_one_run(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(whole_lines, "BLOCK_BYTES", 4_000)
    monkeypatch.setattr(reading, "BATCH_ROWS", 90)
    table = spoilt()
    path = write(tmp_path / name, table)
    result = checked(tmp_path, path)
    assert result.exit_code == 1, result.output
    nulls = table["price"].null_count + 1
    highest = table["item_id"].to_numpy().max()
    first = 17 + (2 if name == "c.csv" else 1)
    for says in (
        "400 rows, 6 problems",
        f"column 'price' is null, or not a finite number, in {nulls} of 400 rows. Give a value",
        f"column 'cost' is null, or not a finite number, in {nulls} of 400 rows",
        "holds times from 1970-01-20 16:13 to 1970-01-20 16:13. In s they are of our time: write "
        "`timestamp_unit: s`",
        f"column 'clicked' is a click label and holds 2, outside [0, 1], in row {first}",
        f"holds id {highest}" if highest == 59 else "holds id",
        "outside [0, 40)",
        "column 'cost' equals column 'price' in every row",
    ):
        assert says in result.stdout, (says, result.stdout)


@pytest.mark.parametrize("dense", ["price", "{name: price, scale: log}", "{name: v, width: 2}"])
def test_numbers_too_large_to_train_on_are_told(tmp_path: Path, dense: str) -> None:
    prices = [1.0, -2.5e30, 0.5, 1e29]
    columns = {"clicked": [0, 1, 0, 1], "item": [1, 2, 3, 4], "price": prices}
    path = write(tmp_path / "c.parquet", pa.table({**columns, "v": [[1.0, one] for one in prices]}))
    found = checked(
        tmp_path,
        path,
        schema="{session_id: null, timestamp: null, label: clicked, sparse: [{name: item, num_ids: "
        f"9}}], dense: [{dense}]}}",
    )
    told = "holds up to 2.5e+30, of which a model soon makes a loss that is not finite. Give it "
    assert (found.exit_code, told in found.stdout) == ((0, False) if "log" in dense else (1, True))


def test_the_roles_of_columns_are_found_once_not_once_per_column(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table may have thousands of columns."""
    names = [f"c{number}" for number in range(60)]
    values = {name: [float(at % (at + 2)) for at in range(9)] for name in names}
    path = write(tmp_path / "c.parquet", pa.table({"click": [0, 1, 0] * 3, **values}))
    found, made = [0], rows.roles_of

    def counted(*arguments: Any) -> Any:
        found[0] += 1
        return made(*arguments)

    for module in (rows, row_check):
        monkeypatch.setattr(module, "roles_of", counted)
    schema = {"session_id": None, "timestamp": None, "label": "click", "dense": names}
    assert "9 rows, 59 problems" in checked(tmp_path, path, schema=json.dumps(schema)).output
    assert 0 < found[0] < 20


@pytest.mark.parametrize("kind", ["numbers", "texts", "lists"])
def test_equal_columns_are_named_with_the_first_of_them(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that are equal in some blocks alone are not, nor are those of another type."""
    monkeypatch.setattr(reading, "BATCH_ROWS", 90)
    of: dict[str, Any] = {"numbers": lambda n: n, "texts": str, "lists": lambda n: [n, n + 1]}
    equal = [None if at % 7 == 0 else of[kind](at % 50) for at in range(400)]
    other = [*equal[:300], *equal[:100]]
    columns = {"a": equal, "x": other, "b": equal, "y": other, "c": equal}
    table = pa.table({"click": [0, 1] * 200, **columns})
    if kind == "numbers":
        table = table.append_column("wide", table["a"].cast(pa.float64()))
    found = checked(tmp_path, write(tmp_path / "c.parquet", table), schema=None).output
    assert "400 rows, 3 problems" in found
    for one, first in (("b", "a"), ("c", "a"), ("y", "x")):
        assert f"column {one!r} equals column {first!r} in every row" in found


def test_files_that_differ_are_named_with_their_columns(tmp_path: Path) -> None:
    """Whole files, cut ones, others' ones: each is told, and the rest is read."""
    folder = tmp_path / "logs"
    folder.mkdir()
    write(folder / "a.parquet", clicks())
    write(folder / "b.parquet", clicks().drop_columns(["brand"]))
    kinds = clicks().set_column(4, "item_id", clicks()["item_id"].cast(pa.string()))
    write(folder / "c.parquet", kinds)
    cut = (folder / "a.parquet").read_bytes()[:-300]
    text(folder / "d.parquet", cut)
    text(folder / "e.parquet", "")
    result = checked(tmp_path, folder, schema=None)
    assert result.exit_code == 1
    for says in (
        "b.parquet: lacks 'brand', other than",
        "c.parquet: column 'item_id' is string, and int64 in",
        "d.parquet: not a whole Parquet file",
        "e.parquet: the file is empty",
    ):
        assert says in result.stdout, (says, result.stdout)


def test_a_file_of_another_format_is_named_alone(tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    for number, name in enumerate(("b.parquet", "c.parquet", "d.parquet")):
        rows = clicks()
        rows = rows.append_column("day", pa.array([number] * len(rows)))
        write(folder / name, rows)
    text(folder / "a.txt", "Clicks of May.\n")
    schema = "{session_id: null, timestamp: null, label: clicked, sparse: [{name: brand, " + (
        "num_ids: 90, ids: hash}]}"
    )
    for given in (None, schema):
        result = checked(tmp_path, folder, schema=given)
        assert result.exit_code == 1
        assert "logs: 1,200 rows, 1 problem" in result.stdout
        assert "a.txt: is text separated by" in result.stdout
        assert "b.parquet is Parquet. Take it out of the table" in result.stdout


def test_clicks_alone_lack_a_label_which_negatives_make(tmp_path: Path) -> None:
    path = text(tmp_path / "c.csv", "item_id\n1\n2\n3\n")
    schema = "{session_id: null, timestamp: null, label: label, sparse: [{name: item_id, " + (
        "num_ids: 9}]}"
    )
    result = checked(tmp_path, path, schema=schema)
    assert result.exit_code == 1
    assert "column 'label' is not there, but the schema names it. Known: item_id. Or, if each " + (
        "row is a click, `recd data import --negatives 4` makes it."
    ) in " ".join(result.stdout.split())


@pytest.mark.parametrize("name", ["c.csv", "c.jsonl", "c.parquet"])
def test_a_column_that_a_schema_names_by_default_is_told_as_one(tmp_path: Path, name: str) -> None:
    path = write(tmp_path / name, clicks().select(["clicked", "item_id"]))
    schema = "{timestamp: null, label: clicked, sparse: [{name: item_id, num_ids: 999}]}"
    result = checked(tmp_path, path, schema=schema)
    words = ["data", "import", str(path), str(tmp_path / "t"), "--schema"]
    refused = CliRunner().invoke(app, [*words, str(tmp_path / "schema.yaml")])
    cure = ". Where there is none, write `session_id: null` in the schema: this name is its default"
    for said in (result.output, refused.output):
        assert f"{cure}." in said
        assert "column 'session_id'" in said
        assert "schema names" not in said
        assert "Correct its name" not in said


def test_a_label_of_texts_is_to_be_numbers(tmp_path: Path) -> None:
    path = text(tmp_path / "c.csv", "item_id,clicked\n1,no\n2,yes\n3,no\n")
    schema = "{session_id: null, timestamp: null, label: clicked, sparse: [{name: item_id, " + (
        "num_ids: 9}]}"
    )
    result = checked(tmp_path, path, schema=schema)
    assert "column 'clicked' is string, but must be a number. Write it as numbers" in result.stdout


def test_lines_that_cannot_be_read_and_columns_that_are_not_there(tmp_path: Path) -> None:
    lines = [f"{one},{one % 2},{'x' if one == 90 else one}" for one in range(300)]
    path = text(tmp_path / "c.csv", "item_id,clicked,cost\n" + "\n".join(lines))
    schema = "{session_id: null, timestamp: null, label: clicked, dense: [cost, price], " + (
        "sparse: [{name: item_id, num_ids: 300}]}"
    )
    result = checked(tmp_path, path, schema=schema)
    assert result.exit_code == 1
    assert "column 'price' is not there, but the schema names it. did you mean" in result.stdout
    assert "c.csv:92: column 'cost': " in result.stdout
    assert "'x'. Correct this value" in result.stdout
    assert checked(tmp_path, tmp_path / "none", schema=None).exit_code == 2


def test_a_line_of_another_length_says_nothing_of_types(tmp_path: Path) -> None:
    path = text(tmp_path / "c.csv", "item_id,clicked\n1,0\n2,1\n3\n")
    schema = "{session_id: null, timestamp: null, label: clicked, dense: [price], " + (
        "sparse: [{name: item_id, num_ids: 300}]}"
    )
    result = checked(tmp_path, path, schema=schema)
    assert result.exit_code == 1
    assert "2 problems" in result.stdout
    assert "c.csv:4: Expected 2 columns, got 1" in result.stdout
    assert "column 'price' is not there" in result.stdout


def test_a_table_is_checked_by_its_own_schema(tmp_path: Path) -> None:
    random_table(tmp_path / "t" / "train", SCHEMA, 200, rows_per_stripe=50)
    random_table(tmp_path / "t" / "test", SCHEMA, 50)
    result = CliRunner().invoke(app, ["data", "check", str(tmp_path / "t"), "--json"])
    assert result.exit_code == 0, result.output
    assert {name: one["rows"] for name, one in json.loads(result.stdout).items()} == {
        "train": 200,
        "test": 50,
    }
    # A file of it that another program wrote over, with an id out of range.
    (file,) = (tmp_path / "t" / "train").glob("*.parquet")
    table = pq.read_table(file)
    shops = table["shop"].to_pylist()
    shops[120] = [99]
    place, kind = table.schema.names.index("shop"), table.schema.field("shop")
    pq.write_table(table.set_column(place, kind, pa.array(shops, kind.type)), file)
    registry: dict[str, Any] = {
        "dataset": {
            "use": "parquet",
            **{one: str(tmp_path / "t" / one) for one in ("train", "test")},
        }
    }
    (tmp_path / "registry.yaml").write_text(json.dumps(registry))
    wrong = CliRunner().invoke(app, ["data", "check", str(tmp_path / "registry.yaml")])
    assert wrong.exit_code == 1, wrong.output
    assert "train: 200 rows, 1 problem\n" in wrong.stdout
    assert "'shop' holds id 99 in row 121, outside [0, 7)" in wrong.stdout
    assert "test: 50 rows, no problem" in wrong.stdout


@pytest.mark.parametrize("split", [(), ("--split-by", "hash:item_id")])
def test_what_an_import_has_beside_its_files_is_no_part_of_the_table(
    split: tuple[str, ...], tmp_path: Path
) -> None:
    """Its schema and its vocabularies: `recd data check`, `schema` and `import` leave them out."""
    file, schema = write(tmp_path / "c.csv", clicks()), tmp_path / "schema.yaml"
    plain = SCHEMA_YAML.replace("dense: [price, cost]", "")  # which has nulls
    plain = plain.replace("timestamp_unit: ms", "timestamp_unit: s")
    schema.write_text(plain.replace("num_ids: 40", "num_ids: 40, ids: hash"))
    table = tmp_path / "t"

    def recd(*arguments: str | Path) -> Result:
        result = CliRunner().invoke(app, ["data", *map(str, arguments)])
        assert result.exit_code == 0, result.output
        return result

    recd("import", file, table, "--schema", schema, *split)
    assert (table / "schema.yaml").exists()
    assert [*(table / "vocabularies").iterdir()]
    there = json.loads(recd("check", table, "--json").stdout)
    rows = pq.ParquetDataset([*table.glob("**/part-*.parquet")]).read().num_rows
    assert sum(one["rows"] for one in there.values()) == rows
    recd("schema", table)
    recd("import", table, tmp_path / "again", "--accept-doubts")
    again = pq.ParquetDataset([*(tmp_path / "again").glob("part-*.parquet")]).read()
    assert again.num_rows == rows
    # Files of others may have these names.
    (tmp_path / "other").mkdir()
    for name in ("a.csv", "schema.yaml"):
        shutil.copy(file, tmp_path / "other" / name)
    found = files_of([tmp_path / "other"])
    assert [one.name for one in found] == ["a.csv", "schema.yaml"]


def test_a_key_of_a_schema_with_nothing_behind_it_is_told(tmp_path: Path) -> None:
    """What was commented out below it is else left out in silence."""
    file = text(tmp_path / "s.yaml", "label: click\nsession_id:\n# - visit\ntimestamp: null\n")
    with pytest.warns(NoticeWarning, match=r"session_id has nothing behind it: .*s\.yaml:2") as got:
        assert load_schema(file).session_id is None
    assert len(got) == 1
    file = text(tmp_path / "s.yaml", "sparse:\n- {name: item, num_ids: 9, nulls: }\n")
    with pytest.raises(RegistryError, match=r"nulls.*by default it is 'empty'"):
        load_schema(file)


@pytest.mark.parametrize("said", ["csv", "3", "[delimiter]", "[{delimiter: ','}]"])
def test_what_a_schema_says_of_text_is_a_mapping(tmp_path: Path, said: str) -> None:
    file = text(tmp_path / "s.yaml", f"label: click\ntext: {said}\n")
    with pytest.raises(RegistryError, match=r"s\.yaml: text: must be a mapping .* but is "):
        load_schema(file)


def test_a_misspelt_text_of_a_schema_is_told_its_name(tmp_path: Path) -> None:
    file = text(tmp_path / "s.yaml", "label: click\ntexts: {header: false}\n")
    with pytest.raises(RegistryError, match="unknown option 'texts'; did you mean 'text'"):
        load_schema(file)
