"""Every message of the host and of the plugins that come with it, read from their sources."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from recd_plugins import errors, notices

__all__ = ["PACKAGES", "Message", "messages", "messages_like"]

PACKAGES = (
    "recd_plugins",
    "recd_dedup",
    "recd_dlrm",
    "recd_dsi",
    "recd_flexshard",
    "recd_scars",
)
PAGES = {
    "recd_plugins/advise": "advise",
    "recd_plugins/callbacks": "training",
    "recd_plugins/cli": "commands",
    "recd_plugins/compat": "install",
    "recd_plugins/config": "train",
    "recd_plugins/data": "own-data",
    "recd_plugins/embedding": "recd",
    "recd_plugins/hooks": "plugins",
    "recd_plugins/launch": "training",
    "recd_plugins/planning": "flexshard",
    "recd_plugins/registry": "train",
    "recd_plugins/sparse": "recd",
    "recd_plugins/stack": "own-trainer",
    "recd_plugins/storage": "storage",
    "recd_plugins/testing": "plugins",
    "recd_plugins/tiers": "flexshard",
    "recd_plugins/trainer": "training",
    "recd_dedup": "recd",
    "recd_dsi/service": "service",
    "recd_dsi": "dsi",
    "recd_flexshard": "flexshard",
    "recd_scars": "scars",
}
"""The page of docs/ for what is in a room; `slots` for all others."""
KINDS = {
    **{name: kind for name, kind in vars(errors).items() if isinstance(kind, type)},
    **{kind.__name__: kind for kind in notices.Notice.__subclasses__()},
}
LEAST = 12
"""Letters of a message that a text must share with it, if it is the whole of it."""
FEW = 6
"""Letters of a text that may be a part of a message."""
HOLE = "…"
PREFIX = re.compile(rf"^(error: |{notices.NOTICE})")
"""How a line begins that is a message."""
VARIES = re.compile(r"""'[^']*'|"[^"]*"|[^\s:]*/[^\s:]*|\d[\d,.]*""")
"""Names, paths and numbers of a message that was printed: its template has holes there."""


@dataclass(frozen=True, kw_only=True)
class Message:
    """A message that some code raises or warns with; `…` stands for the parts that vary."""

    template: str
    kind: str
    kind_text: str
    file: str
    line: int
    page: str

    @property
    def letters(self) -> int:
        return len(self.template.replace(HOLE, ""))

    def is_part_of(self, text: str) -> bool:
        parts = [part.strip() for part in self.template.split(HOLE)]
        if self.letters < LEAST or any(part not in text for part in parts):
            return False
        return re.search(".*?".join(map(re.escape, parts)), text) is not None

    def contains(self, text: str) -> bool:
        """Whether a text is a part of it, as it is written here or as it was printed."""
        return text.lower() in self.template.lower() or _fixed(text) in _fixed(self.template)


def _fixed(text: str) -> str:
    return VARIES.sub(HOLE, text).lower()


def messages_like(text: str) -> list[Message]:
    """The messages that a text is, or is a part of, the most telling first."""
    text = PREFIX.sub("", " ".join(text.split()))
    found = [message for message in messages() if message.is_part_of(text)]
    if not found and len(_fixed(text).replace(HOLE, "").strip()) >= FEW:
        found = [message for message in messages() if message.contains(text)]
    return sorted(found, key=lambda message: -message.letters)


@cache
def messages() -> tuple[Message, ...]:
    """All messages, file by file."""
    return tuple(
        message
        for package in PACKAGES
        for folder in _folders(package)
        for path in sorted(folder.rglob("*.py"))
        if "templates" not in path.parts
        for message in _of_file(path, path.relative_to(folder.parent).as_posix())
    )


def _folders(package: str) -> list[Path]:
    found = find_spec(package)
    return [] if found is None else list(map(Path, found.submodule_search_locations or ()))


def _of_file(path: Path, name: str) -> Iterator[Message]:
    text = path.read_text(encoding="utf-8")
    if not any(kind in text for kind in KINDS):
        return
    page = next((page for room, page in PAGES.items() if name.startswith(room)), "slots")
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
            continue
        kind = KINDS.get(node.func.id)
        if kind is None:
            continue
        given = {one.arg: _template(one.value) for one in node.keywords if one.arg}
        if issubclass(kind, notices.Notice):
            parts = {part: given.get(part, HOLE) for part in ("what", "why", "cure")}
            template = str(kind(**parts))
        else:
            template = "".join(map(_template, node.args[:1]))
        template = " ".join(template.split())
        if template.strip(f"{HOLE} :."):
            yield Message(
                template=template,
                kind=kind.__name__,
                kind_text=" ".join((kind.__doc__ or "").split("\n\n")[0].split()),
                file=name,
                line=node.lineno,
                page=f"docs/{page}.md",
            )


def _template(node: ast.expr) -> str:
    match node:
        case ast.Constant(value=str() as text):
            return text
        case ast.JoinedStr(values=values):
            return "".join(map(_template, values))
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _template(left) + _template(right)
        case _:
            return HOLE
