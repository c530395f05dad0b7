"""A log folder's manifest: how many log shards, and what decides a message's one.

What is in the log is the folder's to say (`shard-00007/<writer>.log`); the manifest holds
only what must never change under the messages that are there.
"""

from __future__ import annotations

import json
import os
import uuid
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import get_args

from recd_plugins.api import DataError
from recd_plugins.api.data import LogRoute

__all__ = ["Manifest"]

NAME = "manifest.json"
FORMAT = 1


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """What all writers and readers of a log agree on."""

    shards: int
    route: LogRoute
    format: int = FORMAT

    @classmethod
    def of(cls, folder: Path) -> Manifest | None:
        """That of a folder; None where no log has begun."""
        file = folder / NAME
        if not file.exists():
            return None
        try:
            said = json.loads(file.read_text("utf-8"))
            manifest = cls(**said)
            known = isinstance(manifest.shards, int) and manifest.shards > 0
        except (json.JSONDecodeError, UnicodeDecodeError, TypeError) as error:
            raise DataError(f"{file}: cannot be read: {error}. Restore it from a copy.") from error
        if manifest.format != FORMAT or manifest.route not in get_args(LogRoute) or not known:
            raise DataError(
                f"{file}: this version reads logs of format {FORMAT}, routed by session or "
                f"message, but it says {said}. Read it with the version that wrote it."
            )
        return manifest

    def settle(self, folder: Path) -> None:
        """Write this one, unless one is there; any number of processes may call it at a time."""
        folder.mkdir(parents=True, exist_ok=True)
        draft = folder / f".{NAME}-{uuid.uuid4().hex}"
        with draft.open("w", encoding="utf-8") as opened:
            opened.write(json.dumps(asdict(self)))
            opened.flush()
            os.fsync(opened.fileno())
        try:
            os.link(draft, folder / NAME)  # unlike a rename, it fails where one is there
        except FileExistsError:
            self.check(folder)
        finally:
            draft.unlink()

    def check(self, folder: Path) -> None:
        """`DataError` where the folder's log is another than this."""
        there = Manifest.of(folder)
        if there is not None and there != self:
            raise DataError(
                f"{folder}: holds a log of {there.shards} shards, routed by {there.route}; asked "
                f"for are {self.shards}, by {self.route}. Set `log.shards` and `log.route` to what "
                "it has, or give another `log.folder`."
            )
