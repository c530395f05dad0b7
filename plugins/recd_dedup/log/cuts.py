"""How far the writers of a log's folder had come by two times, known from their marks only."""

from __future__ import annotations

from typing import NamedTuple

import pyarrow.compute as pc

from recd_dedup.log.log_block import read_block
from recd_dedup.log.marks import MARKS, Marks, lives
from recd_dedup.log.sealed import SealedFiles
from recd_dedup.log.shard_file import (
    FILE_BYTES,
    SEAL_BYTES,
    Damaged,
    file_name,
    files_of_log,
    frames_between,
    held_in,
    name_of,
    shard_of,
)
from recd_plugins.api.data import Cuts, Location

__all__ = ["WriterCuts"]


class WriterCuts:
    """Finds the cuts of a log's folder, each time going on from the last look.

    A writer's files are final once it has closed or was killed: then no lock is on its marks. What
    it wrote after its last mark counts too.
    """

    def __init__(self, folder: Location, sealed: SealedFiles, damaged: Damaged) -> None:
        self._folder, self._sealed, self._damaged = folder, sealed, damaged
        self._marks: dict[str, Marks] = {}
        self._left: dict[str, tuple[dict[str, int], int | None]] = {}
        """The ends of the files that killed writers left, and the latest time in them."""
        self._finished: set[str] = set()
        """Writers that will add no more marks, and all of whose marks are read."""
        self._unmarked = {file.stem for file in files_of_log(folder)}
        """Writers from before marks existed, except those that turn out to have some."""

    def at(self, first: int, second: int) -> Cuts:
        """The places before everything of the first time or later, and those past the second
        time."""
        sealed = self._sealed.writers(self._damaged)
        marked: list[Location] = [*held_in(self._folder / MARKS, "*.log")]
        for file in marked:
            self._marks.setdefault(file.stem, Marks(file))
        before: dict[str, int] = {}
        past: dict[str, int] = {}
        behind: list[str] = []
        closed: list[int] = []
        left: list[int] = []
        living = False
        for writer in sorted({*self._marks, *sealed, *self._unmarked}):
            cut = self._of_writer(writer, sealed.get(writer), first, second)
            before |= cut.before
            past |= cut.past
            (closed if writer in sealed else left).extend(cut.times)
            if cut.behind:
                behind.append(f"writer {writer} is {cut.behind}")
            living |= cut.living
        latest = max(closed + left, default=None)
        return Cuts(
            before=before,
            past=past,
            behind=tuple(behind),
            latest=latest,
            # Another writer replaces one that was killed, unless others came further.
            ended=bool(sealed) and not living and max(closed, default=latest) == latest,
        )

    def _of_writer(
        self, writer: str, sealed: dict[str, int] | None, first: int, second: int
    ) -> _WriterCut:
        """The places of one writer, for the two times; `sealed` has the ends of its files if it
        sealed them."""
        marks = self._marks.get(writer)
        # First find out whether the writer lives: then everything that it added before it died is
        # read.
        final = (
            sealed is not None or writer in self._finished or marks is None or not lives(marks.file)
        )
        before: dict[str, int] = {}
        times: list[int] = []
        if marks is not None:
            if writer not in self._finished:
                marks.read_on()
            if final:
                self._finished.add(writer)
            before = self._named(writer, marks.ends(marks.count_before(first)))
            times = [*marks.times[-1:]]
            if (count := marks.count_before(second)) < len(marks.times):
                past = self._named(writer, marks.ends(count + 1))
                return _WriterCut(before, past, times, living=not final)
        if not final:
            behind = f"at {marks.times[-1]}" if marks and marks.times else "yet to flush"
            return _WriterCut(before, {}, times, living=True, behind=behind)
        past, time = self._past_the_end(writer, marks, sealed)
        return _WriterCut(before, past, times if time is None else [*times, time], living=False)

    def _past_the_end(
        self, writer: str, marks: Marks | None, sealed: dict[str, int] | None
    ) -> tuple[dict[str, int], int | None]:
        """Where the files of a writer that adds nothing more end, and the latest time in what its
        marks do not show; None if they show all."""
        if sealed is None or marks is None:
            whole, time = self._whole(writer, marks)
            return sealed or whole, time
        # It marks before it seals; its list lacks files if the disk was full.
        by_marks = self._named(writer, marks.ends(len(marks.times)))
        closed_at = {name: end - SEAL_BYTES for name, end in sealed.items()}
        past = by_marks | closed_at
        if all(by_marks.get(name) == end for name, end in closed_at.items()):
            return past, None
        # Marks are not forced to the disk: a crash of the machine may have lost some.
        return past, self._whole(writer, marks)[1]

    def _whole(self, writer: str, marks: Marks | None) -> tuple[dict[str, int], int | None]:
        """Where the whole part of each of a writer's files ends, and the latest time in what it
        wrote after its marks. For a writer without marks, whose files may be long, that is the
        latest first time of a block."""
        if writer not in self._left:
            marked = {} if marks is None else self._named(writer, marks.ends(len(marks.times)))
            ends, latest = dict(marked), []
            for file in files_of_log(self._folder, writer):
                shard, name = shard_of(file), name_of(file)
                if file.stat().st_size < FILE_BYTES:
                    continue  # it ended before it wrote anything
                begin = marked.get(name, 0)
                for frame in frames_between(file, shard, begin, None, self._damaged):
                    time = frame.first
                    if marks is not None:
                        messages = read_block(frame, self._damaged)
                        if messages is None:
                            continue  # a torn tail, or damage that is skipped
                        time = pc.max(messages["timestamp"]).as_py()
                    ends[name] = frame.end
                    latest.append(time)
            self._left[writer] = ends, max(latest, default=None)
        return self._left[writer]

    def _named(self, writer: str, ends: dict[int, int]) -> dict[str, int]:
        return {file_name(shard, writer): end for shard, end in ends.items()}


class _WriterCut(NamedTuple):
    """How far one writer had come by two times."""

    before: dict[str, int]
    """The places in its files before everything of the first time or later."""
    past: dict[str, int]
    """Those past the second time; none while it is behind."""
    times: list[int]
    """The latest times that are known of it."""
    living: bool
    """Whether it may still write."""
    behind: str = ""
    """How far it is, in words, if it may still write messages of the second time or earlier."""
