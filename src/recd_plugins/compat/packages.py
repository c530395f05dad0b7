"""The packages that recd-plugins asks for, found without importing them."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, requires, version

from packaging.requirements import Requirement

from recd_plugins.errors import VersionError

__all__ = ["DISTRIBUTION", "check_packages"]

DISTRIBUTION = "recd-plugins"
"""The name under which pip installs the host and the plugins that come with it."""


def check_packages() -> str:
    """How many of these packages are installed, as text. Raises `VersionError` if one is missing or
    has a wrong version, which can happen if no resolver installed them."""
    asked = [Requirement(line) for line in _requirements()]
    needed = [one for one in asked if one.marker is None or one.marker.evaluate({"extra": ""})]
    lacking = {one: here for one in needed if (here := _lacking(one))}
    if lacking:
        lines = " ".join(f"'{one.name}{one.specifier}'" for one in lacking)
        raise VersionError(
            f"{DISTRIBUTION} needs "
            f"{', and '.join(f'{one}, but {here}' for one, here in lacking.items())}. "
            f"Install: pip install {lines}"
        )
    return f"{len(needed)} that it asks for, as it asks for them"


def _requirements() -> list[str]:
    try:
        return requires(DISTRIBUTION) or []
    except PackageNotFoundError:  # imported from a folder
        return []


def _lacking(asked: Requirement) -> str:
    """What is here instead, as a clause; an empty string if it is as asked for."""
    try:
        found = version(asked.name)
    except PackageNotFoundError:
        return "it is not here"
    return "" if asked.specifier.contains(found, prereleases=True) else f"here is {found}"
