"""A writer's marks: how far its files reached at each flush, and the latest time until then.

    marks/<writer>.log   one line a flush: the CRC-32 of the rest in hex, a space, and
                         {"time": the latest timestamp so far, "ends": {shard: bytes}}

A mark names the files that grew since the previous one. So a writer's flushes have one order,
although its messages lie in many files, and a log shard that no message came to does not seem to be
late. The writer holds a lock on its marks while it lives, so a reader can tell a silent writer from
one that was killed. Marks are not forced to the disk: a crash that loses one has ended the writer,
too, and then everything that is whole in its files counts.
"""

from __future__ import annotations

import fcntl
import json
import os
from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from pathlib import Path
from zlib import crc32

from recd_dedup.log.shard_file import Damaged, appended, held_in
from recd_plugins.api import DataError
from recd_plugins.api.data import Location

__all__ = ["MARKS", "Marks", "WriterMarks", "lives", "marked_ends"]

MARKS = "marks"


class WriterMarks:
    """The marks that one writer appends; its lock ends when the writer ends, in whatever way.

    A process that is forked from the writer's does not hold the lock, and adds nothing.
    """

    def __init__(self, folder: Path, writer: str) -> None:
        """`folder` is the log's."""
        self._end = 0
        marks = folder / MARKS
        marks.mkdir(parents=True, exist_ok=True)
        # The file becomes visible only once it is locked.
        draft = marks / f".{writer}"
        self._file = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        draft.rename(marks / f"{writer}.log")
        _OPEN.add(self)

    def add(self, time: int, ends: Mapping[int, int]) -> None:
        """Append a mark; if the disk is full, the file stays as it was."""
        text = json.dumps({"time": time, "ends": ends})
        data = f"{crc32(text.encode()):08x} {text}\n".encode()
        self._end = appended(self._file, data, self._end)

    def close(self) -> None:
        if self in _OPEN:
            _OPEN.remove(self)
            os.close(self._file)


_OPEN: set[WriterMarks] = set()


def _leave_to_parent() -> None:
    """A fork would share the lock, and seem to be the writer if that is killed."""
    for marks in list(_OPEN):
        marks.close()


os.register_at_fork(after_in_child=_leave_to_parent)


def lives(file: Location) -> bool:
    """Whether the writer of these marks may still add to them; that of a copy may not."""
    if not isinstance(file, Path):
        return False
    with file.open("rb") as opened:
        try:
            fcntl.flock(opened, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


class Marks:
    """A writer's marks, which are read as they grow."""

    def __init__(self, file: Location) -> None:
        self.file = file
        self.times: list[int] = []
        """The latest timestamp at each mark."""
        self._offset = 0
        self._ends: dict[int, tuple[list[int], list[int]]] = {}
        """By log shard: the marks at which its file had grown, and its bytes at each."""

    def read_on(self) -> None:
        """Read what was added; a line that is being written is left for later."""
        with self.file.open("rb") as opened:
            opened.seek(self._offset)
            data = opened.read()
        for line in data[: data.rfind(b"\n") + 1].splitlines(keepends=True):
            self._take(line)
            self._offset += len(line)

    def count_before(self, time: int) -> int:
        """The number of marks before any message of this time, or a later one, had come."""
        return bisect_left(self.times, time)

    def ends(self, count: int) -> dict[int, int]:
        """The bytes of each log shard's file at the last of this many marks."""
        found = {}
        for shard, (marks, ends) in self._ends.items():
            if at := bisect_right(marks, count - 1):
                found[shard] = ends[at - 1]
        return found

    def _take(self, line: bytes) -> None:
        checksum, _, text = line.rstrip(b"\n").partition(b" ")
        if checksum != f"{crc32(text):08x}".encode():
            raise DataError(
                f"{self.file}, byte {self._offset:,}: this mark is damaged. Restore the file from "
                "a copy; or, if its writer has ended, remove it: the writer's log files are then "
                "read without it."
            )
        mark = json.loads(text)
        for name, end in mark["ends"].items():
            marks, ends = self._ends.setdefault(int(name), ([], []))
            marks.append(len(self.times))
            ends.append(end)
        self.times.append(max([mark["time"], *self.times[-1:]]))


def marked_ends(folder: Location, damaged: Damaged) -> dict[str, dict[int, int]]:
    """Up to where each writer's files were written, by its last marks: bytes by log shard.

    A crash of the machine may have taken bytes that were not forced to the disk: they count as
    damage. Damaged marks are skipped if damage is.
    """
    found = {}
    held: list[Location] = [*held_in(folder / MARKS, "*.log")]
    for file in held:
        marks = Marks(file)
        try:
            marks.read_on()
        except DataError:
            if damaged == "raise":
                raise
        found[file.stem] = marks.ends(len(marks.times))
    return found
