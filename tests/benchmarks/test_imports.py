"""Rung 1 (values): what a file of benchmarks/ imports of another one is there."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "benchmarks"


def test_every_name_that_is_imported_is_there() -> None:
    lacking = [
        f"{path.relative_to(FOLDER)}: {node.module} has no {alias.name}"
        for path in sorted(FOLDER.rglob("*.py"))
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("benchmarks")
        for alias in node.names
        if alias.name not in names(node.module or "")
    ]
    assert lacking == []


@cache
def names(module: str) -> frozenset[str]:
    """The names at the top of a module, and of the files of a package."""
    path = FOLDER.parent.joinpath(*module.split("."))
    found = {file.stem for file in path.glob("*.py")} | {
        file.parent.name for file in path.glob("*/__init__.py")
    }
    for node in parsed(path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).body:
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                found.add(name)
            case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
                found |= {alias.asname or alias.name for alias in aliases}
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                found.add(name)
            case ast.Assign(targets=[ast.Tuple(elts=parts)]):
                found |= {part.id for part in parts if isinstance(part, ast.Name)}
    return frozenset(found)


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())
