"""Plugins for the host's tests: written to disk as a user's would be, and found the same way."""

from __future__ import annotations

from pathlib import Path

HEAD = """
from dataclasses import dataclass
from typing import Annotated
from recd_plugins import hookimpl
from recd_plugins.config import Config, Range
from recd_plugins.slots import CacheRecord, DatasetRecord, ModelRecord, PoolingRecord

@dataclass(frozen=True, kw_only=True)
class Options(Config):
    '''Options.'''
    size: Annotated[int, Range(ge=1, le=10)] = 1
    '''How large.'''

def build(config, context):
    return config
"""

POOLING = """
@hookimpl
def recd_pooling():
    return [PoolingRecord(name="exact", summary="A pooling.", config=Options, build=build)]
"""


def write_module(folder: Path, name: str, body: str = POOLING) -> Path:
    """A plugin folder `name` under `folder`; `body` follows the usual imports."""
    package = folder / name
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(HEAD + body)
    return package


def write_distribution(
    site: Path, distribution: str, version: str, module: str, body: str = POOLING, entry: str = ""
) -> None:
    """An installed distribution in `site`: its module, and metadata with an entry point."""
    write_module(site, module, body)
    info = site / f"{distribution.replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n"
    )
    (info / "entry_points.txt").write_text(f"[recd_plugins]\n{entry or module} = {module}\n")
