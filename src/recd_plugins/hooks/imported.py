"""Finds a plugin by the name that registry.yaml has, imports it, and knows who provides it.

A name is that of an installed entry point (group `recd_plugins`), a module path, or the path of a
folder or file. Only what is named is imported.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from difflib import get_close_matches
from importlib.metadata import Distribution, EntryPoint, distribution
from pathlib import Path
from types import ModuleType

from recd_plugins.compat.build import not_loaded
from recd_plugins.errors import PluginError, nearest, shown
from recd_plugins.hooks.blame import is_of_a_signal, line_on_import
from recd_plugins.hooks.installed import installed_points, owners
from recd_plugins.hooks.markers import PROJECT
from recd_plugins.hooks.plugin_files import taken_by_others

__all__ = ["Provider", "available", "imported"]


@dataclass(frozen=True)
class Provider:
    """The provider of a record: the plugin, and the distribution that brought it."""

    plugin: str
    distribution: str = ""
    version: str = ""
    module: str = field(default="", compare=False, repr=False)
    """The name of the module that the plugin is, or is an object in."""

    def __str__(self) -> str:
        if not self.distribution:
            return self.plugin
        return f"{self.distribution} {self.version}"

    @property
    def owner(self) -> str:
        """The owner that `use: owner:name` names; its plugin's name will do too."""
        return self.distribution or self.plugin


def available() -> dict[str, list[EntryPoint]]:
    """The installed plugins by entry-point name; none of them is imported."""
    found: dict[str, list[EntryPoint]] = {}
    for point in installed_points(PROJECT):
        same = found.setdefault(point.name, [])
        # An editable install can list one distribution twice.
        if all(point.value != other.value or _name(point) != _name(other) for other in same):
            same.append(point)
    return found


def imported(name: str, base: Path) -> tuple[ModuleType, Provider]:
    """A plugin and its provider; a path is relative to `base`."""
    installed = available()
    points = installed.get(name, [])
    if len(points) > 1:
        both = " and ".join(str(_provider(name, point.dist, point.module)) for point in points)
        modules = dict.fromkeys(point.value for point in points)
        cure = f", or name the module instead: {' or '.join(modules)}" if len(modules) > 1 else ""
        raise PluginError(
            f"plugin {name!r} is an entry point of {both}; uninstall one"
            f"{cure or f': both are the module {points[0].value}, so only one of them runs'}."
        )
    try:
        with redirect_stdout(sys.stderr):  # what a plugin prints is no part of what a command says
            if points:
                return points[0].load(), _provider(name, points[0].dist, points[0].module)
            if _is_path(name):
                module = _import_path(name, base)
                return module, Provider(name, module=module.__name__)
            if importlib.util.find_spec(name) is not None:
                return importlib.import_module(name), _provider_of(name)
    except PluginError:
        raise
    except ModuleNotFoundError as error:
        # A dotted name whose parent is missing is unknown; a plugin that misses an import of
        # its own is broken.
        if not points and name.split(".")[0] == error.name:
            raise _unknown(name, installed) from None
        raise _broken(name, error) from error
    except BaseException as error:
        if is_of_a_signal(error):
            raise
        raise _broken(name, error) from error
    raise _unknown(name, installed)


def _import_path(name: str, base: Path) -> ModuleType:
    path = (base / Path(name).expanduser()).resolve()
    if path.name == "__init__.py":  # of a package, which its folder is
        path = path.parent
    file = path / "__init__.py" if path.is_dir() else path
    if not file.is_file():
        raise PluginError(
            f"plugin {shown(name)}: {file} does not exist. A plugin folder holds an __init__.py "
            "with hook implementations; a plugin file is a Python module."
        )
    module_name = path.name if path.is_dir() else path.name.removesuffix(".py")
    if "." in module_name:
        raise PluginError(
            f"plugin {shown(name)}: Python cannot import a module of that name. Rename it: a "
            "file's name ends in .py and has no other dot, and a folder's name has no dot."
        )
    # Through sys.path, and last on it: worker processes must find the module by its name.
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    if (taken := next(taken_by_others(file), None)) is not None and file == path:
        raise PluginError(
            f"plugin {name!r} imports {taken[0].name}, which lies beside it, but in this process "
            f"that name is taken by {taken[1]}. Rename {taken[0]} or the other one."
        )
    module = importlib.import_module(module_name)
    found = getattr(module, "__file__", None)  # what is built into Python has none
    if found is None or Path(found).resolve() != file:
        raise PluginError(
            f"plugin {name!r}: the name {module_name!r} is taken by "
            f"{found or 'a module of Python itself'}. Rename the folder or file."
        )
    return module


def _is_path(name: str) -> bool:
    return name.endswith(".py") or "/" in name or name.startswith((".", "~"))


def _broken(name: str, error: BaseException) -> PluginError:
    what = not_loaded(error).strip().rstrip(".")
    return PluginError(
        f"plugin {name!r} raised {type(error).__name__} on import{f': {what}' if what else ''}"
        f"{line_on_import(error)}. {_cure_of_import(error)}Run recd with --debug for its traceback."
    )


def _cure_of_import(error: BaseException) -> str:
    """What to say of an import that there is not, of ours or of a package's own."""
    if isinstance(error, ImportError) and "no known parent package" in str(error):
        return "A file of a package is no plugin by itself: name the package's folder. "
    module = getattr(error, "name", None) or ""
    if not isinstance(error, ImportError) or module.partition(".")[0] != PROJECT:
        return ""
    missing = re.match(r"cannot import name '(\w+)'", str(error))
    known = getattr(sys.modules.get(module), "__all__", ()) if missing else ()
    near = get_close_matches(missing[1], known, 1) if missing else []
    return (
        f"This is recd-plugins {distribution('recd-plugins').version}, and docs/api.md has the "
        f"names of it{f': did you mean {near[0]!r}?' if near else '.'} "
    )


def _unknown(name: str, installed: dict[str, list[EntryPoint]]) -> PluginError:
    return PluginError(
        f"plugin {shown(name)} is not an installed entry point, module or path; "
        f"{nearest(name, installed)} Install its distribution, or write the path of a local plugin "
        "folder with a slash: ./my_plugin."
    )


def _provider(plugin: str, distribution: Distribution | None, module: str) -> Provider:
    if distribution is None:
        return Provider(plugin, module=module)
    return Provider(plugin, distribution.metadata["Name"], distribution.version, module)


def _provider_of(module: str) -> Provider:
    package = module.split(".")[0]
    if package == PROJECT:
        return _provider(module, distribution("recd-plugins"), module)
    for path in sys.path:
        if (owner := owners(path).get(package)) is not None:
            return _provider(module, owner, module)
    return Provider(module, module=module)


def _name(point: EntryPoint) -> str:
    return point.dist.metadata["Name"] if point.dist else ""
