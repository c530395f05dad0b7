"""Rung 1 (values): each class has its own name, and no metaphor that was given up comes back."""

from __future__ import annotations

import ast
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

INSTEAD = {
    "trip": "`sequence of collectives`, or `routed batch`",
    "passage": "`routed batch`",
    "errand": "`sequence of collectives`",
    "departure": "`miss`, or `home`",
    "owe": "`to accumulate, to apply`",
    "all_ranks": "`replicated`",
    "canonical": "`home`",
    "said": "what it is: `registry`, `config`, or summary, lines, reason, arguments",
    "told": "what it is, or a word for what is done: reported, explained, logged",
}
"""The words that neither a name nor a docstring has; the glossary's words are in backticks."""

NAMES_OF_OTHERS = {
    ("src/recd_plugins/callbacks/extra_metrics.py", "compute_on_all_ranks"): "TorchRec's argument",
}

TEMPLATES = "src/recd_plugins/cli/templates/"
"""Each template of `recd plugins new` has a NewPlugin, which gets another name when written."""


def sources(*folders: str) -> dict[str, str]:
    files = [file for folder in folders for file in sorted((ROOT / folder).rglob("*.py"))]
    return {str(file.relative_to(ROOT)): file.read_text() for file in files}


def names(node: ast.AST) -> Iterator[str]:
    """The identifiers that stand at a node itself, and the words of its docstrings."""
    match node:
        case ast.Expr(value=ast.Constant(value=str() as text)):
            yield from re.findall(r"\w+", text)
        case ast.Constant():
            pass
        case _:
            for _, value in ast.iter_fields(node):
                for one in value if isinstance(value, list) else [value]:
                    if isinstance(one, str):
                        yield from one.split(".")


@cache
def forbidden(name: str) -> str | None:
    """The forbidden word that is part of a name, split at underscores and capitals."""
    parts = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)
    spelt = f"_{'_'.join(parts).lower()}_"
    return next((word for word in INSTEAD if re.search(f"_{word}s?_", spelt)), None)


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("RoundTripIds", "trip"),
        ("_trips", "trip"),
        ("sum_of_allRanks", "all_ranks"),
        ("owes", "owe"),
        ("triple", None),
        ("Stripe", None),
        ("all", None),
        ("power", None),
    ],
)
def test_words_are_parts_of_names(name: str, word: str | None) -> None:
    assert forbidden(name) == word


def test_no_two_classes_share_a_name() -> None:
    places = defaultdict(list)
    for file, text in sources("src", "plugins").items():
        for found in re.finditer(r"^[ \t]*class (\w+)", text, flags=re.MULTILINE):
            places[found[1]].append(f"{file}:{text.count(chr(10), 0, found.start(1)) + 1}")
    assert len(places) > 100
    shared = {
        name: found
        for name, found in places.items()
        if len(found) > 1
        and not (name.startswith("NewPlugin") and all(TEMPLATES in place for place in found))
    }
    assert not shared, f"give each a name that says what it is, as docs/glossary.md does: {shared}"


def test_no_two_files_of_tests_share_a_name() -> None:
    """Pytest imports them by it, so that no test at all would run."""
    names = Counter(path.name for path in (ROOT / "tests").rglob("test_*.py"))
    assert len(names) > 100
    assert not {name: count for name, count in names.items() if count > 1}


def test_no_name_or_docstring_has_a_word_that_was_given_up() -> None:
    found, others = [], set()
    for file, text in sources("src", "plugins", "benchmarks", "examples").items():
        # A file is parsed where one of the words stands somewhere, be it in a comment.
        if not any(map(forbidden, set(re.findall(r"\w+", text)))):
            continue
        for node in ast.walk(ast.parse(text)):
            for name in names(node):
                if (file, name) in NAMES_OF_OTHERS:
                    others.add((file, name))
                elif word := forbidden(name):
                    line = getattr(node, "lineno", 1)
                    found.append(f"{file}:{line}: {name}: {word!r}: say {INSTEAD[word]}")
    assert not found, "docs/glossary.md has other words:\n" + "\n".join(found)
    assert others == set(NAMES_OF_OTHERS)


def test_the_words_to_say_instead_are_the_glossarys() -> None:
    glossary = (ROOT / "docs/glossary.md").read_text()
    rows = re.findall(r"^\| (.+?) \|", glossary, flags=re.MULTILINE)
    words = {word.strip("` ") for row in rows for word in (row, *row.split(", "))}
    wanted = {word for text in INSTEAD.values() for word in re.findall("`(.+?)`", text)}
    assert wanted - words == set()
