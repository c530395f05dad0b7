"""Value and property tests: lists in text, as programs print them, are the lists that they had."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import yaml
from imported_tables import recd, rows_of
from strangers_files import text
from typer.testing import CliRunner

from recd_plugins.cli.main import app
from recd_plugins.data.importing.proposing.proposal import propose
from recd_plugins.data.importing.reading import blocks
from recd_plugins.data.importing.surveying.survey import survey
from recd_plugins.data.importing.table_files import foreign_files
from recd_plugins.data.importing.text.text_lists import split_texts
from recd_plugins.data.importing.text_form import TextForm
from recd_plugins.errors import DataError

DRAW = np.random.default_rng(0)
NUMBERS = [DRAW.integers(0, 3_000, DRAW.integers(2, 5)).tolist() for _ in range(200)]
WORDS = ["plain", "Home, Garden", "it's", 'the "best"', "caf\u00e9", "[x]", "a\\b", "null", ""]
TEXTS = [[WORDS[one] for one in DRAW.integers(0, len(WORDS), 4)] for _ in range(200)]


def split(
    texts: list[str | None], separator: str = ",", kind: pa.DataType | None = None
) -> list[Any]:
    lists = pa.chunked_array([texts], pa.string())
    found: list[Any] = split_texts(lists, separator, pa.list_(kind or pa.string())).to_pylist()
    return found


@pytest.mark.parametrize("nothing", ["nan", "None", "-", "NA", "?"])
@pytest.mark.parametrize(
    ("printed", "kind"),
    [
        (str, pa.int64()),
        (lambda one: ",".join(map(str, one)), pa.int64()),
        (lambda one: "|".join(map(str, one)), pa.int64()),
        (lambda one: " ".join(map(str, [*one, *one])), pa.int64()),
        (lambda one: "|".join(f"{n}.5" for n in one), pa.float64()),
        (lambda one: ";".join(f"{n}:0.5" for n in one), None),
        (lambda one: str([f"a{n}" for n in one]), pa.string()),
        (lambda one: " ".join(f"N{n}" for n in [*one, *one]), pa.string()),
    ],
)
def test_what_stands_for_nothing_among_lists_is_a_null(
    tmp_path: Path, printed: Any, kind: pa.DataType | None, nothing: str
) -> None:
    """All lists were texts then, each with one id: the history was lost, without a word."""
    lists = [printed(one) for one in NUMBERS]
    plain, odd = (
        "".join(f'{one % 2},"{each}"\n' for one, each in enumerate(rows))
        for rows in (lists, [nothing if one % 9 == 5 else row for one, row in enumerate(lists)])
    )
    found = []
    for name, lines in (("plain.csv", plain), ("odd.csv", odd)):
        files = foreign_files([text(tmp_path / name, "clicked,seen\n" + lines)])
        read_as = survey(files).read_as
        assert kind is None or read_as.types["seen"] == pa.list_(kind)
        (block,) = blocks(files, ["seen"])
        found.append(block.rows(["seen"], read_as)["seen"].to_pylist())
    whole, less = found
    assert all(whole)
    assert less == [None if one % 9 == 5 else row for one, row in enumerate(whole)]


@pytest.mark.parametrize(
    ("separator", "odd"), [("|", "a||b"), (";", "x|y"), (",", "many"), (" ", "a few")]
)
def test_texts_that_are_no_lists_since_some_are_none_are_whole_in_later_files_too(
    tmp_path: Path, separator: str, odd: str
) -> None:
    """A day without such a text had lists of other ids, by the same schema, without a word."""
    lists = [separator.join(map(str, one)) for one in NUMBERS[:39] * 5]
    lines = [f'{one % 2}\t"{each}"' for one, each in enumerate(lists)]
    first = text(tmp_path / "1.tsv", "\n".join(["label\tseen", *lines, f"1\t{odd}"]))
    later = text(tmp_path / "2.tsv", "\n".join(["label\tseen", *lines]))
    schema = tmp_path / "schema.yaml"
    recd("data", "schema", first, "--out", schema)
    said = "'seen' is taken for texts, since most are lists but some are not: if all are, write "
    assert f"{said}`text: {{lists: {{seen: {separator!r}}}}}`" in schema.read_text()
    recd("data", "import", first, tmp_path / "one", "--schema", schema)
    kept = tmp_path / "one" / "schema.yaml"
    assert "no problem" in recd("data", "check", later, "--schema", kept)
    recd("data", "import", later, tmp_path / "two", "--schema", kept)
    assert rows_of(tmp_path / "two").equals(rows_of(tmp_path / "one").slice(0, len(lines)))
    assert yaml.safe_load(kept.read_text())["text"] == {"lists": {"seen": ""}}
    assert (tmp_path / "two" / "schema.yaml").read_text().split("text:")[1] == (
        kept.read_text().split("text:")[1]
    )

    form = TextForm(lists={"seen": separator})
    assert survey(foreign_files([later]), form=form).read_as.whole == {}
    assert survey(foreign_files([later])).read_as.types["seen"] == pa.list_(pa.int64())


def test_browsers_and_sentences_are_whole_without_a_doubt(tmp_path: Path) -> None:
    fields = ["Mozilla/5.0 (X11; Linux; rv:2)", "red shoes, size 9", "curl"]
    lines = "".join(f'{one % 2}\t"{fields[one % 3]}"\n' for one in range(90))
    found = survey(foreign_files([text(tmp_path / "a.tsv", "label\tagent\n" + lines)]))
    assert (found.read_as.whole, found.doubts) == ({}, ())


def test_behind_the_sample_nothing_is_a_null_among_lists_of_numbers_and_a_word_among_words(
    tmp_path: Path,
) -> None:
    lines = "".join(f"{one % 2},{one}|7,a|b{one % 5}\n" for one in range(9))
    files = foreign_files([text(tmp_path / "a.csv", "clicked,seen,tags\n" + lines)])
    read_as = survey(files).read_as
    later = foreign_files([text(tmp_path / "b.csv", "clicked,seen,tags\n0,-,NA\n1,4,a|c\n")])
    (block,) = blocks(later, ["seen", "tags"])
    rows = block.rows(["seen", "tags"], read_as).to_pylist()
    assert rows == [{"seen": None, "tags": ["NA"]}, {"seen": [4], "tags": ["a", "c"]}]
    assert survey(later).read_as.types["tags"] == pa.list_(pa.string())


@pytest.mark.parametrize(
    "printed",
    [
        str,
        json.dumps,
        lambda one: str(tuple(one)),
        lambda one: str(np.array(one)),
        lambda one: "{" + ",".join(map(str, one)) + "}",  # Postgres
        lambda one: "|".join(map(str, one)) + "|",
        lambda one: str([*one, None]),
        lambda one: json.dumps([None, *one]),
    ],
)
def test_lists_of_numbers_are_what_they_were(tmp_path: Path, printed: Any) -> None:
    """In a column of CSV, by what is found in it."""
    lines = [f'{one % 2},"{printed(each)}"' for one, each in enumerate(NUMBERS)]
    path = text(tmp_path / "a.csv", "clicked,seen\n" + "\n".join(lines) + "\n")
    files = foreign_files([path])
    read_as = survey(files).read_as
    assert read_as.types["seen"] == pa.list_(pa.int64())
    (block,) = blocks(files, ["seen"])
    found = block.rows(["seen"], read_as)["seen"].to_pylist()
    assert [[one for one in each if one is not None] for each in found] == NUMBERS


@pytest.mark.parametrize(
    "printed", [str, json.dumps, lambda one: json.dumps(one, ensure_ascii=False)]
)
def test_lists_of_texts_are_what_they_were(printed: Any) -> None:
    """With commas, quotes and escapes within quotes, in one text or in many."""
    assert split([printed(one) for one in TEXTS]) == TEXTS
    assert [split([printed(one)])[0] for one in TEXTS] == TEXTS
    plain = [[one for one in each if one.isalpha()] for each in TEXTS]
    assert split([printed(one) for one in plain]) == plain


def test_what_is_empty_or_spells_nothing_is_a_null() -> None:
    assert split(["a||b", "a|", "null|x", "None|x", None, ""], "|") == [
        ["a", None, "b"], ["a"], [None, "x"], ["None", "x"], None, [],
    ]  # fmt: skip
    assert split(["[1, nan, <NA>]", "[]", "(1,)"], kind=pa.int64()) == [
        [1, None, None],
        [],
        [1],
    ]
    assert split(["['None', None]", "{a,NULL}"]) == [["None", None], ["a", None]]
    assert split([str(np.arange(40)), "[]"], " ", pa.int64()) == [[*range(40)], []]


def test_what_numpy_left_out_is_missed(tmp_path: Path) -> None:
    rows = "".join(f'{one % 2},"{np.arange(one, one + 2_000)}"\n' for one in range(20))
    path = text(tmp_path / "a.csv", "clicked,seen\n" + rows)
    result = CliRunner().invoke(app, ["data", "schema", str(path)])
    assert result.exit_code == 2, result.output
    assert "column 'seen' holds '...', where NumPy left out elements" in " ".join(
        result.stderr.split()
    )
    few = "".join(f'{one % 2},"{np.arange(one, one + 3)}"\n' for one in range(20))
    known = foreign_files([text(tmp_path / "b.csv", "clicked,seen\n" + few)])
    (block,) = blocks(foreign_files([path]), ["seen"])
    with pytest.raises(DataError, match=r"a\.csv, .*column 'seen': holds '\.\.\.'"):
        block.rows(["seen"], survey(known).read_as)


@pytest.mark.parametrize(
    ("value", "separator"),
    [
        ("A-1|A-3", "|"),
        ("red;blue", ";"),
        ("[A-1,A-3]", ","),
        ("['red' 'blue']", " "),
        ("1,3", ","),
        ("1 3", " "),
        ("N1 N2 N3 N4", " "),
        ("A-1,A-3", None),
        ("red,blue", None),
        ("red blue", None),
        ("SW1A 1AA", None),
    ],
)
def test_commas_and_blanks_between_words_part_none_unless_brackets_or_the_schema_say_so(
    tmp_path: Path, value: str, separator: str | None
) -> None:
    path = text(tmp_path / "a.tsv", "clicked\ttags\n" + f"1\t{value}\n0\t{value}\n" * 9)
    files = foreign_files([path])
    assert survey(files).read_as.parted.get("tags") == separator
    by_comma = survey(files, form=TextForm(lists={"tags": ","})).read_as
    assert by_comma.parted["tags"] == ","


def test_braces_around_a_word_are_no_list(tmp_path: Path) -> None:
    """As GUIDs are written; nor are objects."""
    for word in ("{3F2504E0-4F89-11D3-9A0C-%012d}", '{""a"": %d, ""b"": 5}', "(%d)"):
        rows = "".join(f'{one % 2},"{word % (one % 9)}"\n' for one in range(90))
        path = text(tmp_path / "a.csv", "clicked,x\n" + rows)
        assert survey(foreign_files([path])).read_as.types["x"] == pa.string()


@pytest.mark.parametrize(
    ("printed", "why"),
    [
        (lambda one: {"a": one, "b": 2}, "objects or lists as a program printed them"),
        (lambda one: [{"id": one, "name": "Drama"}], "objects or lists as a program printed them"),
        (lambda one: (one + 0.5, -3.25), "objects or lists as a program printed them"),
        (lambda one: f"tensor([0.5, {one}])", "objects or lists as a program printed them"),
        (lambda one: {one, one + 1} if one % 5 else set(), ""),
        (lambda one: f"({one})", ""),
        (lambda one: f"Toy Story {one} (1995)", ""),
    ],
)
def test_what_a_program_printed_is_no_id_as_a_whole(tmp_path: Path, printed: Any, why: str) -> None:
    rows = "".join(f'{one % 2},"{printed(one % 30)}"\n' for one in range(300))
    files = foreign_files([text(tmp_path / "a.csv", f"clicked,x\n{rows}")])
    proposal = propose(survey(files))
    assert ("sparse" in proposal.schema) == (not why)
    assert any(why in one for one in proposal.doubts) or not why


@pytest.mark.parametrize(
    ("separator", "spelled", "right"),
    [
        ("|", "|", [None]),
        ("|", "[|]", [None]),
        ("|", "||", [None, None]),
        ("|", "3|", ["3"]),
        ("|", "[]", []),
        (",", "[,]", [None]),
        (",", '["", "a,b"]', ["", "a,b"]),
        (",", "('a, b', 'c')", ["a, b", "c"]),
        (",", "('a, b',)", ["a, b"]),
        (",", "('x\\ty', 3)", ["x\ty", "3"]),
        (",", "()", []),
    ],
)
def test_an_element_that_is_empty_is_one_and_tuples_have_quotes(
    separator: str, spelled: str, right: list[str | None]
) -> None:
    texts = pa.chunked_array([[spelled]])
    assert split_texts(texts, separator, pa.list_(pa.string())).to_pylist() == [right]
