"""The converters under test as a plugin of their own, named in registries by its path."""

from __future__ import annotations

from typing import Any

from recd_dedup.dedup.converters import GroupsConfig, NoneConfig, build_exact, build_none
from recd_plugins import hookimpl
from recd_plugins.slots import DedupRecord

EXACT: DedupRecord[Any] = DedupRecord(
    name="exact",
    summary="Equal samples of a feature group are kept once, as an IKJT.",
    config=GroupsConfig,
    build=build_exact,
)
NONE: DedupRecord[Any] = DedupRecord(
    name="none",
    summary="Every sample keeps its own rows, as a KJT.",
    config=NoneConfig,
    build=build_none,
)


@hookimpl
def recd_dedup() -> list[DedupRecord[Any]]:
    return [EXACT, NONE]
