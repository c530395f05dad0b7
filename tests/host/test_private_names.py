"""Value tests: private names of torch, TorchRec and fbgemm stand in compat/ alone."""

from __future__ import annotations

import ast
import importlib
import inspect
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
FOREIGN = ("torch", "torchrec", "fbgemm_gpu")
LOOKED_AT = (
    *(
        ast.Import,
        ast.ImportFrom,
        ast.Attribute,
        ast.Call,
        ast.Assign,
        ast.AnnAssign,
        ast.AugAssign,
    ),
    *(ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef),
)
"""The nodes that have or take names, a fourth of all."""

ALLOWED = {
    # Python's own way to keep names of a NamedTuple's apart from its fields; os._exit is public.
    "_asdict",
    "_exit",
    "_replace",
}
OVERRIDDEN = {
    # What an Awaitable is there to have overridden: its base raises "must be implemented".
    "_wait_impl",
    # nn.Module says that subclasses may load in a way of their own by it, and has no other hook.
    "_load_from_state_dict",
}


class Found(NamedTuple):
    """A private name, and how it is met."""

    file: str
    line: int
    name: str
    how: str


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("__")


def find(source: str, module: str, file: str = "") -> list[Found]:
    """In a module of ours; it is imported where a class of its own may have foreign bases."""
    nodes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, LOOKED_AT)]
    seen = {*_imported(nodes), *_reached(nodes), *_inherited(nodes, module)}
    return [Found(file, line, name, how) for line, name, how in sorted(seen)]


def _imported(nodes: list[ast.AST]) -> Iterator[tuple[int, str, str]]:
    for node in nodes:
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            first, *rest = name.split(".")
            if first in FOREIGN and any(map(is_private, rest)):
                yield node.lineno, name, "imported"


def _reached(nodes: list[ast.AST]) -> Iterator[tuple[int, str, str]]:
    """`thing._name`, where no class or module in the file has that name for its own."""
    ours = {name for node in nodes for name in _defined(node)}
    for node in nodes:
        if (
            isinstance(node, ast.Attribute)
            and is_private(node.attr)
            and node.attr not in ours
            and not _is_own(node.value)
        ):
            yield node.lineno, node.attr, "reached"
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in ("getattr", "setattr", "hasattr", "delattr")
            and len(node.args) > 1
            and isinstance(node.args[1], ast.Constant)
            and is_private(str(node.args[1].value))
            and node.args[1].value not in ours
        ):
            yield node.lineno, str(node.args[1].value), "reached"


def _inherited(nodes: list[ast.AST], module: str) -> Iterator[tuple[int, str, str]]:
    """What a class has of the private names of its foreign bases: used, assigned or overridden."""
    for node in nodes:
        if not isinstance(node, ast.ClassDef):
            continue
        kind = getattr(importlib.import_module(module), node.name, None)
        if not isinstance(kind, type):
            continue
        foreign = [base for base in kind.__mro__ if _is_foreign(base)]
        theirs = {name for base in foreign for name in _names(base)}
        for part in ast.walk(node):
            if isinstance(part, ast.Attribute) and _is_own(part.value) and part.attr in theirs:
                yield part.lineno, f"{node.name}.{part.attr}", "inherited"
        for part in node.body:
            for name in _defined(part):
                if name in theirs:
                    yield part.lineno, f"{node.name}.{name}", "overridden"


def _is_own(value: ast.expr) -> bool:
    return isinstance(value, ast.Name) and value.id in ("self", "cls")


def _is_foreign(kind: type) -> bool:
    return kind.__module__.split(".")[0] in FOREIGN


@cache
def _names(kind: type) -> frozenset[str]:
    """The private names that a class has: in its body, and what its methods assign to self."""
    names = {name for name in vars(kind) if is_private(name)}
    try:
        tree = ast.parse(inspect.cleandoc("\n" + inspect.getsource(kind)))
    except (OSError, TypeError, SyntaxError):
        return frozenset(names)
    return frozenset(names | {name for node in ast.walk(tree) for name in _defined(node)})


def _defined(node: ast.AST) -> Iterator[str]:
    """The private names that a statement gives to something of ours."""
    names: list[str] = []
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        names = [node.name]
    elif isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        for target in targets:
            for part in ast.walk(target):
                if isinstance(part, ast.Name):
                    names.append(part.id)
                elif (
                    isinstance(part, ast.Attribute)
                    and isinstance(part.value, ast.Name)
                    and part.value.id == "self"
                ):
                    names.append(part.attr)
    yield from filter(is_private, names)


FOLDERS = {"recd_plugins": ROOT / "src/recd_plugins"} | {
    init.parent.name: init.parent for init in sorted(ROOT.glob("plugins/*/__init__.py"))
}
FILES = [
    (".".join([package, *path.relative_to(folder).with_suffix("").parts]), path)
    for package, folder in FOLDERS.items()
    for path in sorted(folder.rglob("*.py"))
    if folder / "compat" not in path.parents
]


def test_private_names_are_in_compat_alone() -> None:
    found = [
        one
        for module, path in FILES
        for one in find(
            path.read_text(), module.removesuffix(".__init__"), str(path.relative_to(ROOT))
        )
        if one.name not in ALLOWED
        and not (one.how == "overridden" and one.name.split(".")[-1] in OVERRIDDEN)
    ]
    assert not found, "\n".join(map(str, found))


def test_each_exception_is_still_needed() -> None:
    text = "\n".join(path.read_text() for _, path in FILES)
    assert all(f"{name}(" in text for name in (*ALLOWED, *OVERRIDDEN))


@pytest.mark.parametrize(
    ("source", "name", "how"),
    [
        ("import torch.utils._pytree", "torch.utils._pytree", "imported"),
        ("from torch.utils import _pytree as tree", "torch.utils._pytree", "imported"),
        ("from torchrec.a._b.c import D", "torchrec.a._b.c.D", "imported"),
        ("def f(module):\n    return module._lookups", "_lookups", "reached"),
        ("getattr(module, '_lookups', None)", "_lookups", "reached"),
        ("from torch import *\ntorch._C.f()", "_C", "reached"),
    ],
)
def test_it_finds_what_is_imported_or_reached(source: str, name: str, how: str) -> None:
    assert [(one.name, one.how) for one in find(source, "")] == [(name, how)]


@pytest.mark.parametrize(
    "source",
    [
        "from torchrec.a.b import C",
        "class A:\n    def f(self, other):\n        self._x = 1\n        return other._x",
        "from recd_plugins._ours import x",
        "x.__dict__",
    ],
)
def test_it_leaves_what_is_public_or_ours(source: str) -> None:
    assert find(source, "math") == []


def test_it_finds_what_is_inherited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = """
from torch import nn

class Mine(nn.Module):
    def __init__(self):
        super().__init__()
        self._own = 1
        self._buffers["x"] = self._own

    def _apply(self, fn):
        return self
"""
    (tmp_path / "inherits_private_names.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    assert [(one.name, one.how) for one in find(source, "inherits_private_names")] == [
        ("Mine._buffers", "inherited"),
        ("Mine._apply", "overridden"),
    ]
