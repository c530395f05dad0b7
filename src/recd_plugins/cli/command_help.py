"""The help of a plugin's command, read from its source: `recd --help` imports no plugin."""

from __future__ import annotations

import ast
from importlib.machinery import PathFinder
from importlib.metadata import EntryPoint
from pathlib import Path

__all__ = ["help_text"]


def help_text(point: EntryPoint) -> str | None:
    """The `help=` of its typer app, or the first paragraph of its function's docstring; None if
    its source has neither, or cannot be found."""
    try:
        tree = ast.parse(_source(point.module))
    except (OSError, SyntaxError, ValueError):
        return None
    for node in tree.body:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call(keywords=keywords)):
                values = {one.arg: one.value for one in keywords}
                found = values.get("help")
                text = found.value if isinstance(found, ast.Constant) else None
            case ast.FunctionDef(name=name):
                text = ast.get_docstring(node)
            case _:
                continue
        if name == point.attr:
            return " ".join(text.split("\n\n")[0].split()) if isinstance(text, str) else None
    return None


def _source(module: str) -> str:
    """A module's source, found without importing the packages that it is in."""
    places, origin = None, None
    parts = module.split(".")
    for at in range(1, len(parts) + 1):
        spec = PathFinder.find_spec(".".join(parts[:at]), places)
        if spec is None:
            break
        places, origin = spec.submodule_search_locations, spec.origin
    else:
        if origin is not None:
            return Path(origin).read_text(encoding="utf-8")
    raise FileNotFoundError(module)
