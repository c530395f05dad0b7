"""`recd plugins new`: a plugin of one record, written out with a test that passes."""

from __future__ import annotations

import ast
import json
import keyword
import re
import shutil
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from recd_plugins.cli.options import AsJson, Debug
from recd_plugins.cli.reported import reported
from recd_plugins.errors import RegistryError

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

__all__ = ["example", "new", "write_plugin"]

TEMPLATES: Traversable = files("recd_plugins.cli") / "templates"
SLOTS_WITH_TEMPLATE = sorted(
    folder.name for folder in TEMPLATES.iterdir() if (folder / "registry.yaml").is_file()
)

Name = Annotated[str, typer.Argument(help="The plugin's module, which its record is named after.")]
Slot = Annotated[
    str, typer.Option(help=f"The slot that it fills: {', '.join(SLOTS_WITH_TEMPLATE)}.")
]
Into = Annotated[Path, typer.Option(help="The folder in which the folder NAME is made.")]


def new(
    name: Name,
    slot: Slot = "pooling",
    into: Into = Path(),
    debug: Debug = False,
    as_json: AsJson = False,
) -> None:
    """Write a plugin to start from: a package, a test that passes, a registry that uses it."""
    with reported(debug):
        folder = write_plugin(name, slot, into)
        files = sorted(str(path) for path in folder.rglob("*") if path.is_file())
        if as_json:
            print(json.dumps({"folder": str(folder), "files": files}))
            return
        print(*files, sep="\n")
        print(f"next: cd {folder}, python -m pytest, recd train")


def write_plugin(name: str, slot: str, into: Path) -> Path:
    """The folder `into`/`name`, written from the templates of a slot."""
    from recd_plugins.errors import nearest

    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or keyword.iskeyword(name):
        raise RegistryError(
            f"{name!r} cannot name a plugin, because its module and its record get the same name. "
            "Use lower-case letters, digits and underscores, as in my_plugin."
        )
    if slot not in SLOTS_WITH_TEMPLATE:
        raise RegistryError(
            f"there is no template for the slot {slot!r}; {nearest(slot, SLOTS_WITH_TEMPLATE)}"
        )
    if (meant := _in_yaml(name)) is not None:
        raise RegistryError(
            f"{name!r} cannot name a plugin: in registry.yaml the word means {meant}. Choose "
            "another name."
        )
    if clash := _clash(name, slot):
        raise RegistryError(
            f"{name!r} cannot name a plugin of this slot: a class of it would be called {clash}, "
            "as something that its code uses. Choose another name."
        )
    folder = into / name
    there = RegistryError(f"{folder} is there already. Choose another name, or remove it.")
    if folder.exists():
        raise there
    if find_spec(name) is not None:
        raise RegistryError(f"a module {name!r} is installed already. Choose another name.")
    try:
        folder.mkdir(parents=True)
    except FileExistsError:
        raise there from None
    except OSError as error:
        raise _unwritten(folder, error) from error
    try:
        _write(name, slot, folder)
    except BaseException as error:
        shutil.rmtree(folder, ignore_errors=True)
        if isinstance(error, OSError):
            raise _unwritten(folder, error) from error
        raise
    return folder


def _in_yaml(name: str) -> str | None:
    """What YAML makes of the word `name`, if that is no text."""
    import yaml

    value = yaml.safe_load(name)
    return None if value == name else f"{value!r}"


def _clash(name: str, slot: str) -> str | None:
    """A class of the plugin whose name would hide a name that the templates import, or is a
    Python keyword."""
    texts = [
        (TEMPLATES / slot / file).read_text(encoding="utf-8")
        for file in ("__init__.py", "test_new_plugin.py")
    ]
    every = [node for text in texts for node in ast.walk(ast.parse(text))]
    imported = {
        alias.asname or alias.name
        for node in every
        if isinstance(node, ast.Import | ast.ImportFrom)
        and getattr(node, "module", "") != f"recd_plugins.cli.templates.{slot}"
        for alias in node.names
    }
    classes = [_renamed(node.name, name, slot) for node in every if isinstance(node, ast.ClassDef)]
    return next((one for one in classes if one in imported or keyword.iskeyword(one)), None)


def _unwritten(folder: Path, error: OSError) -> RegistryError:
    return RegistryError(
        f"{folder} cannot be written: {error.strerror}. Name another folder with --into, or check "
        "its permissions and the free space on its disk."
    )


def example(name: str, slot: str) -> str:
    """The source of a plugin for the slot."""
    return _renamed((TEMPLATES / slot / "__init__.py").read_text(encoding="utf-8"), name, slot)


def _write(name: str, slot: str, folder: Path) -> None:
    package, mine = TEMPLATES / "package", TEMPLATES / slot
    written = {
        "pyproject.toml": package / "pyproject.toml",
        "README.md": package / "README.md",
        "registry.yaml": mine / "registry.yaml",
        f"src/{name}/__init__.py": mine / "__init__.py",
        f"src/{name}/py.typed": None,
        f"tests/test_{name}.py": mine / "test_new_plugin.py",
    }
    for place, template in written.items():
        text = template.read_text(encoding="utf-8") if template else ""
        file = folder / place
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(_renamed(text, name, slot), encoding="utf-8")


def _renamed(text: str, name: str, slot: str) -> str:
    """Replace the templates' names, which are those of linted modules, by the plugin's: all at
    once, since a plugin's name may contain one of them, as my_new_plugin does."""
    ours = {
        f"recd_plugins.cli.templates.{slot}": name,
        "new_plugin": name,
        "new-plugin": name.replace("_", "-"),
        "NewPlugin": "".join(part.capitalize() for part in name.split("_")),
    }
    theirs = "|".join(map(re.escape, ours))
    return re.sub(theirs, lambda found: ours[found[0]], text)
