"""The files that hold a plugin's code: its package, or its one file and the modules beside it that
it imports, and that these import.

Imports are read from the code, wherever they stand in it: a module that is imported late belongs to
a plugin from the start, and every process finds the same files.
"""

from __future__ import annotations

import ast
import importlib.util
import sys
import warnings
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from recd_plugins.hooks.installed import owners

__all__ = ["PluginFiles", "files_of", "taken_by_others"]


class PluginFiles(NamedTuple):
    """The files of a plugin's code."""

    folder: Path
    """The folder that all of them are in."""
    files: list[Path]


def files_of(module: ModuleType) -> PluginFiles | None:
    """The files of the plugin that a module belongs to; None where it has none."""
    parts = module.__name__.split(".")
    packages = (sys.modules.get(".".join(parts[:end])) for end in range(1, len(parts)))
    outermost = next((one for one in packages if getattr(one, "__file__", None)), module)
    named = getattr(outermost, "__file__", None)
    if named is None:
        return None
    file = Path(named)
    if file.name == "__init__.py":
        return PluginFiles(file.parent, sorted(file.parent.rglob("*.py")))
    folder = file.parents[len(parts) - 1]  # which a namespace is in, where there is one
    own, _ = _imported_beside(file, folder)
    return PluginFiles(folder, sorted(own))


def taken_by_others(file: Path) -> Iterator[tuple[Path, Path]]:
    """The modules beside a plugin's file that it imports, or that these import, whose names are
    another plugin's or a trainer's in this process; each with the file of that.

    Python itself and installed packages keep their names: their modules are the ones meant.
    """
    _, others = _imported_beside(file, file.parent)
    for own, other in others.items():
        name = own.relative_to(file.parent).parts[0].removesuffix(".py")
        if name not in sys.stdlib_module_names and name not in owners(str(other.parent)):
            yield own, other


def _imported_beside(file: Path, folder: Path) -> tuple[set[Path], dict[Path, Path]]:
    """The module of a file with those in `folder` that it imports, or that these import; and those
    whose names Python takes for something else, which it has.

    In a folder that distributions are installed in, only modules of the same distribution count.
    """
    packages = owners(str(folder))
    distribution = packages.get(file.relative_to(folder).parts[0].removesuffix(".py"))
    own, others, unread = {file}, dict[Path, Path](), [file]
    while unread:
        at = unread.pop()
        for name in _names(_code(at), at.parent.relative_to(folder).parts):
            for one in _named(name, folder):
                if one in own or one in others:
                    continue
                if (other := _elsewhere(name[0], folder)) is not None:
                    others[one] = other
                elif packages.get(name[0]) is distribution:
                    own.add(one)
                    unread.append(one)
    return own, others


def _code(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError:  # it is in an archive, or was removed
        return b""


@lru_cache(maxsize=256)
def _names(code: bytes, package: tuple[str, ...]) -> frozenset[tuple[str, ...]]:
    """The names that a module of a package may import, each by its parts; none where it is not in
    Python's language."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what is odd in it is told on import
        try:
            tree = ast.parse(code)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return frozenset()
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {tuple(one.name.split(".")) for one in node.names}
        elif isinstance(node, ast.ImportFrom):
            within = package[: len(package) + 1 - node.level] if node.level else ()
            module = (*within, *filter(None, (node.module or "").split(".")))
            found |= {(*module, one.name) for one in node.names}
    return frozenset(found)


def _named(name: tuple[str, ...], folder: Path) -> Iterator[Path]:
    """The files in a folder that are imported for a dotted name."""
    for part in name:
        package, module = folder / part / "__init__.py", folder / f"{part}.py"
        yield from filter(Path.is_file, [package if package.is_file() else module])
        folder /= part


def _elsewhere(name: str, folder: Path) -> Path | None:
    """The file or folder that Python takes for a name without dots, where it does not lie in
    `folder`; no module is imported for that."""
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):  # a module that was made by hand
        return None
    if spec is None:
        return None
    found = [Path(one) for one in spec.submodule_search_locations or [spec.origin or name]]
    beside = any(one.parent.resolve() == folder.resolve() for one in found)
    return None if beside else found[0]
