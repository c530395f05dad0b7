"""Rung 1 (values): a module takes of another one no name but those of its `__all__`."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEMPLATES = "recd_plugins.cli.templates"
"""Below it are texts that `recd plugins new` copies, which nobody imports."""


def modules() -> dict[str, ast.Module]:
    """Those of the host and of the plugins, by name."""
    found = {}
    for folder in (ROOT / "src", ROOT / "plugins"):
        for file in sorted(folder.rglob("*.py")):
            name = ".".join(file.relative_to(folder).with_suffix("").parts)
            if not name.startswith(f"{TEMPLATES}."):
                found[name.removesuffix(".__init__")] = ast.parse(file.read_text())
    return found


def exported(tree: ast.Module) -> set[str]:
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return set(ast.literal_eval(node.value))
    return set()


def taken(tree: ast.Module, known: Mapping[str, set[str]]) -> Iterator[tuple[int, str, str]]:
    """The names that a module takes of known ones: the line, whose it is, the name."""
    imported = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and not node.level and node.module in known:
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                if whole in known:
                    imported[alias.asname or alias.name] = whole
                else:
                    yield node.lineno, node.module, alias.name
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            of = imported.get(node.value.id)
            if of is not None and f"{of}.{node.attr}" not in known:
                yield node.lineno, of, node.attr


def left_out(trees: Mapping[str, ast.Module]) -> list[str]:
    """What modules take that is not in the `__all__` of whose it is."""
    known = {name: exported(tree) for name, tree in trees.items()}
    return [
        f"{name}:{line}: {of} has no {what} in its __all__"
        for name, tree in trees.items()
        for line, of, what in taken(tree, known)
        if what not in known[of]
    ]


def test_modules_take_what_others_export() -> None:
    trees = modules()
    assert len(trees) > 500
    found = left_out(trees)
    assert not found, "add the name where others are to use it, or move it:\n" + "\n".join(found)


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("from a.b import shown", []),
        ("from a.b import hidden", ["c:1: a.b has no hidden in its __all__"]),
        ("def f():\n    from a.b import hidden as h", ["c:2: a.b has no hidden in its __all__"]),
        ("from a import b\nb.shown", []),
        ("from a import b as of\nof.hidden", ["c:2: a.b has no hidden in its __all__"]),
        ("from a import b", []),
        ("from elsewhere import hidden", []),
    ],
)
def test_it_finds_what_is_not_exported(source: str, found: list[str]) -> None:
    texts = {"a": "", "a.b": '__all__ = ["shown"]\nshown = hidden = 1', "c": source}
    assert left_out({name: ast.parse(text) for name, text in texts.items()}) == found
