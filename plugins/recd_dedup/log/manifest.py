"""The manifest in a log's folder: how many shards the log has, and how messages are routed to them.

It holds only what must never change as long as there are messages.
"""

from __future__ import annotations

import json
import os
import uuid
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import get_args

from recd_dedup.log.deleted import readable
from recd_dedup.log.shard_file import files_of_log
from recd_plugins.api import DataError
from recd_plugins.api.data import Location, LogRoute

__all__ = ["MANIFEST", "Manifest"]

MANIFEST = "manifest.json"
FORMAT = 1


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """What all writers and readers of a log agree on."""

    shards: int
    route: LogRoute
    format: int = FORMAT
    id: str = ""
    """The log's identity, drawn when it begins: a new log in the same folder gets another one."""

    @classmethod
    def of(cls, folder: Location) -> Manifest | None:
        """The manifest of a folder; None if no log has begun there."""
        file = folder / MANIFEST
        with readable():
            if isinstance(folder, Path) and folder.is_file():
                raise DataError(
                    f"{folder}: is a file, but must be a log's folder. Set `log.folder` to the "
                    "folder that its writers write to."
                )
            if not file.exists():
                return None
            text = file.read_bytes()
        try:
            found = json.loads(text.decode("utf-8"))
            manifest = cls(**found)
            known = isinstance(manifest.shards, int) and manifest.shards > 0
        except (ValueError, TypeError, RecursionError) as error:
            raise DataError(f"{file}: cannot be read: {error}. Restore it from a copy.") from error
        if manifest.format != FORMAT or manifest.route not in get_args(LogRoute) or not known:
            raise DataError(
                f"{file}: this version reads logs of format {FORMAT}, routed by session or "
                f"message, but it says {found}. Read it with the version that wrote it."
            )
        return manifest

    def settle(self, folder: Path) -> None:
        """Write this manifest unless there is one; any number of processes may call this at a
        time."""
        folder.mkdir(parents=True, exist_ok=True)
        draft = folder / f".{MANIFEST}-{uuid.uuid4().hex}"
        with draft.open("w", encoding="utf-8") as opened:
            opened.write(json.dumps(asdict(replace(self, id=uuid.uuid4().hex))))
            opened.flush()
            os.fsync(opened.fileno())
        try:
            os.link(draft, folder / MANIFEST)  # unlike a rename, this fails if one is there
        except FileExistsError:
            self.check(folder)
        finally:
            draft.unlink()

    def check(self, folder: Location) -> None:
        """Raises `DataError` if the folder's log is not this one."""
        there = Manifest.of(folder)
        with readable():
            lost = None if there else next(files_of_log(folder), None)
        if lost:
            there = Manifest.of(folder)  # a new log has it before any other file
        if there is None and lost:
            raise DataError(
                f"{folder / MANIFEST}: is not there, although {lost} is. Without it nobody knows "
                "how many shards the log has and how it is routed. Restore it from a copy."
            )
        if there is not None and replace(there, id=self.id) != self:
            raise DataError(
                f"{folder}: holds a log of {there.shards} shards, routed by {there.route}, but "
                f"{self.shards}, by {self.route}, are asked for. Set `log.shards` and `log.route` "
                "to those of the log, or give another `log.folder`."
            )
