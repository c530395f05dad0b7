"""Commands that plugins bring: found only by name and source, imported when called."""

from __future__ import annotations

import ast
from importlib.machinery import PathFinder
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from recd_plugins.cli.commands import Commands, readable
from recd_plugins.cli.reported import reported
from recd_plugins.errors import PluginError
from recd_plugins.hooks.installed import installed_points

__all__ = ["GROUP", "WithPlugins"]

GROUP = "recd_plugins.commands"
"""The entry points: a command's name = a typer app, or a function such as typer takes."""


class WithPlugins(TyperGroup):
    """The host's commands, and after them those commands of installed plugins that have other
    names."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        points: dict[str, list[EntryPoint]] = {}
        for point in installed_points(GROUP):
            same = points.setdefault(point.name, [])
            # An editable install can list one distribution twice.
            if all((one.value, _owner(one)) != (point.value, _owner(point)) for one in same):
                same.append(point)
        for name in sorted(points.keys() - self.commands.keys()):
            self.commands[name] = PluginCommand(name, points[name])

    def list_commands(self, ctx: Any) -> list[str]:
        """The commands in the order of `DAY`: typer would put groups of commands after all
        others."""
        from recd_plugins.cli.main import DAY

        day = [name for commands in DAY.values() for name in commands]
        return [*day, *(name for name in self.commands if name not in day)]

    def parse_args(self, *args: Any) -> list[str]:
        with readable():
            return super().parse_args(*args)

    def invoke(self, *args: Any) -> Any:
        with readable():
            return super().invoke(*args)


class PluginCommand(TyperCommand):
    """A command's name, help and plugin; the command itself is imported when it is called."""

    def __init__(self, name: str, points: list[EntryPoint]) -> None:
        self._points = points
        self._owners = " and ".join(sorted(map(_owner, points)))
        summary = _help_of(points[0]) if len(points) == 1 else None
        super().__init__(
            name,
            help=f"{summary or 'A command.'} From {self._owners}.",
            rich_help_panel="Of plugins",
        )

    def make_context(self, *args: Any, **settings: Any) -> Any:
        with reported(debug=False):
            command = self.load()
        return command.make_context(*args, **settings)

    def load(self) -> Any:
        if len(self._points) > 1:
            raise PluginError(
                f"`recd {self.name}` is a command of {self._owners}: uninstall one of them."
            )
        (point,) = self._points
        try:
            found = point.load()
        except (Exception, SystemExit) as error:
            raise PluginError(
                f"`recd {self.name}` of {self._owners} raised {type(error).__name__} on import: "
                f"{error}. Repair or uninstall it; python -c 'import {point.module}' shows where."
            ) from error
        if isinstance(found, typer.Typer):
            return typer.main.get_command(found)
        if not callable(found):
            raise PluginError(
                f"`recd {self.name}` of {self._owners}: {point.value} is {found!r}, "
                f"not a typer app or a function. Name one in its entry point of {GROUP}."
            )
        app = Commands(add_completion=False)
        app.command()(found)
        return typer.main.get_command(app)


def _owner(point: EntryPoint) -> str:
    return f"{point.dist.name} {point.dist.version}" if point.dist else point.module


def _help_of(point: EntryPoint) -> str | None:
    """The help of a plugin's command, read from its source, since `recd --help` imports no plugin:
    the `help=` of its typer app, or the first paragraph of its function's docstring. None if its
    source has neither, or cannot be found."""
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
