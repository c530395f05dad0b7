"""The `zstd_shards` log: a folder of shard files, one per writer and log shard.

A message's log shard is determined by its session (O1), or by the message itself (the baseline).
Writers share no file, so any number of processes may write at once, and one that is killed does no
harm: the next one begins files of its own. A reader merges the files of a shard by the time of
their blocks, and sees only whole blocks. The folder shows what is in the log
(`shard-00007/<writer>.log`), its writers' lists of sealed files show what must be there
(`sealed.py`), and each writer's marks show how far it was at its flushes (`marks.py`).

A log is written on a disk, because its files grow; once copied to a store, it can be read there.
"""

from __future__ import annotations

import hashlib
import heapq
import logging
import os
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import pyarrow as pa
import pyarrow.compute as pc
import zstandard

from recd_dedup.log.codec import lying_at
from recd_dedup.log.cuts import WriterCuts
from recd_dedup.log.deleted import readable
from recd_dedup.log.log_block import LogBlock, messages_within, read_block
from recd_dedup.log.manifest import MANIFEST, Manifest
from recd_dedup.log.marks import MARKS, WriterMarks, marked_ends
from recd_dedup.log.routing import check_messages, routed
from recd_dedup.log.sealed import SealedFiles, Unsealed, write_sealed
from recd_dedup.log.shard_file import (
    FILE_BYTES,
    SEAL_BYTES,
    Damaged,
    Frame,
    Fsync,
    Sealed,
    ShardFile,
    cut_short,
    file_name,
    frames,
    frames_between,
    name_of,
    report_damage,
    shard_files,
    shard_folder,
    shard_of,
)
from recd_dedup.log.snapshot import End
from recd_plugins.api import Config, Context, DataError, Range, so_many
from recd_plugins.api.data import Cuts, Location, LogRoute, Placed

__all__ = ["ZstdShards", "ZstdShardsConfig", "build_zstd_shards"]

LOG = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class ZstdShardsConfig(Config):
    """Raw logs as zstd-packed shard files."""

    folder: Location | None = None
    """The folder of the log; by default `log` in the registry's folder. A log on a store can only
    be read."""
    shards: Annotated[int, Range(ge=1, le=65_536)] = 64
    """The number of log shards. A writer holds up to `block_bytes` of each in memory."""
    route: LogRoute = "session"
    """The value that determines a message's shard: its session id (`session`, O1), or a hash of the
    message (`message`)."""
    level: Annotated[int, Range(ge=1, le=19)] = 3
    """The level of zstd: a higher one writes smaller files, and takes longer."""
    block_bytes: Annotated[int, Range(ge=1, le=1 << 28)] = 4 << 20
    """The number of bytes that are packed and written together. A reader holds as many for each
    writer."""
    fsync: Fsync = "flush"
    """When data is forced to the disk: at each block, at flush and close (the default), or
    never."""
    damaged: Damaged = "raise"
    """What a reader does if a file is damaged: it ends with an error (`raise`), or leaves out what
    cannot be read (`skip`)."""


class ZstdShards:
    """An open log, for writing and reading, to be used by one thread."""

    counts = "bytes"
    """What places count."""

    def __init__(self, config: ZstdShardsConfig, folder: Location) -> None:
        self.config = config
        self.folder = folder
        self._manifest = Manifest(shards=config.shards, route=config.route)
        self._manifest.check(folder)
        self._sealed = SealedFiles(folder)
        self._cuts: WriterCuts | None = None
        self.unsealed: dict[Location, Unsealed] = {}
        """How much has been read of files that their writers have not sealed."""
        self._start_writing()

    @property
    def shards(self) -> int:
        return self.config.shards

    @property
    def route(self) -> LogRoute:
        return self.config.route

    def append(self, messages: pa.RecordBatch) -> None:
        """Add messages; a block of a shard is written when it is full, the rest by `flush`."""
        check_messages(messages)
        if not isinstance(self.folder, Path):
            raise DataError(
                f"{self.folder}: is on a store, where files cannot grow: a log can be read there, "
                "but not written. Set `log.folder` to a folder of this machine, and copy it once "
                "its writers have closed."
            )
        self._leave_to_parent()
        self._begin_marks(messages)
        for shard, part in routed(messages, self.route, self.shards):
            self._append(shard, part)

    def flush(self) -> None:
        """Write what waits, and force it to the disk (option `fsync`)."""
        self._write_all()
        for file in self._files.values():
            file.flush()
        self._mark()

    def close(self) -> None:
        """Flush and seal this writer's files; it may append again, to new ones."""
        self._write_all()
        ends = self._ends()
        sealed: dict[Path, Sealed] = {}
        try:
            while self._files:
                file = self._files.popitem()[1]
                sealed[file.path] = file.close()
        finally:
            if sealed and isinstance(self.folder, Path):
                self._mark(ends)
                sync = self.config.fsync != "never"
                write_sealed(self.folder, self._writer, sealed, sync=sync)
            self._end_marks()
        self._start_writing()

    def ends(self, at: Mapping[str, int] | None = None) -> dict[str, End]:
        """Where the blocks of each file end, or these places: files are never rewritten."""
        if at is not None:
            return {name: End(place, "") for name, place in at.items()}
        with readable():
            marked = self._marked_unsealed()  # before files are looked at, for both grow
            files = {file: self._end_of(file, sealed) for file, sealed in self._every_file()}
        ends = {name_of(file): end for file, end in files.items() if end > FILE_BYTES}
        for name, end in sorted(marked.items()):
            if (place := ends.get(name, 0)) < end:
                cut_short(self.folder / name, place, end, self.config.damaged)
        return {name: End(end, "") for name, end in ends.items()}

    def _marked_unsealed(self) -> dict[str, int]:
        """Up to where the files of writers that have not closed were written, by their marks."""
        damaged, found = self.config.damaged, {}
        marked = marked_ends(self.folder, damaged)
        sealed = self._sealed.writers(damaged)
        for writer in marked.keys() - sealed.keys():
            for shard, end in marked[writer].items():
                found[file_name(shard, writer)] = end
        return found

    def _every_file(self) -> Iterator[tuple[Location, Sealed | None]]:
        for shard in range(self.shards):
            sealed = self._sealed.of(shard_folder(shard), self.config.damaged)
            yield from ((file, sealed.get(file)) for file in shard_files(self.folder, shard))

    def _end_of(self, file: Location, sealed: Sealed | None) -> int:
        """Where the blocks of a file end now."""
        if sealed is not None:
            return sealed.bytes - SEAL_BYTES
        found = frames(file, shard_of(file), self.config.damaged)
        return max((one.end for one in found if one.messages), default=0)

    def check_kept(self, noted: Mapping[str, End], now: Mapping[str, End]) -> None:
        """Raises `DataError` if a file has less than it had; if none of the files is there, a new
        log has begun."""
        if not {*noted} & {*now}:
            return
        for name, end in sorted(noted.items()):
            if (place := now[name].place if name in now else 0) < end.place:
                cut_short(self.folder / name, place, end.place, self.config.damaged)

    def read(self, shard: int, ends: Mapping[str, End] | None = None) -> Iterator[pa.RecordBatch]:
        """The messages of a shard so far, or up to these ends, a block at a time.

        Torn tails of files that are not sealed are left out: `unsealed` counts them. Up to these
        ends, what a writer's marks have was whole, and is damage if it cannot be read.
        """
        if not 0 <= shard < self.shards:
            raise DataError(f"{self.folder}: has shards 0 to {self.shards - 1}, not {shard}.")
        damaged = self.config.damaged
        with readable():
            sealed = self._sealed.of(shard_folder(shard), damaged)
            there = {name_of(file): file for file in shard_files(self.folder, shard)}
            if ends is not None:
                named = [self.folder / name for name in sorted(ends)]
                there = {name_of(file): file for file in named if shard_of(file) == shard}
            up_to = {} if ends is None else {name: end.place for name, end in ends.items()}
            files = [
                self._frames(file, shard, sealed.get(file), up_to.get(name))
                for name, file in there.items()
            ]
        for frame in heapq.merge(*files, key=lambda frame: frame.first):
            messages = read_block(frame, damaged)
            if messages is not None:
                yield lying_at(str(frame), messages)
                continue
            if ends is not None and damaged == "raise":
                marked = self._marked_unsealed()
                if frame.end <= marked.get(name_of(frame.file), 0):
                    raise _harmed(frame)
            if (left := self.unsealed.get(frame.file)) is not None:
                last = frame.end >= frame.file.stat().st_size - left.tail
                lost = left.tail + frame.end - frame.offset if last else left.tail
                messages_left = left.messages - frame.messages
                self._count_unsealed(frame.file, Unsealed(left.blocks - 1, messages_left, lost))

    def _frames(
        self, file: Location, shard: int, sealed: Sealed | None, up_to: int | None
    ) -> list[Frame]:
        """The blocks of a file up to a place, without its seal; if it has no seal, what is read of
        it is counted."""
        damaged = self.config.damaged
        found = list(frames(file, shard, damaged))
        if found and not found[-1].messages:
            return self._within(file, found[:-1], up_to)
        if sealed is not None:
            report_damage(
                f"{file}: its end is damaged: it was sealed with {so_many(sealed.blocks, 'block')} "
                f"of {so_many(sealed.messages, 'message')}, and {so_many(len(found), 'block')} can "
                "be read",
                damaged,
            )
            return self._within(file, found, up_to)
        end = found[-1].end if found else FILE_BYTES
        tail = max(0, file.stat().st_size - end)
        found = self._within(file, found, up_to)
        self._count_unsealed(
            file, Unsealed(len(found), sum(frame.messages for frame in found), tail)
        )
        return found

    def _within(self, file: Location, found: list[Frame], up_to: int | None) -> list[Frame]:
        """The blocks of a file that end up to a place, at which the last of them ends."""
        if up_to is None:
            return found
        kept = [frame for frame in found if frame.end <= up_to]
        if (end := kept[-1].end if kept else 0) < up_to:
            cut_short(file, end, up_to, self.config.damaged)
        return kept

    def _count_unsealed(self, file: Location, left: Unsealed) -> None:
        if left.tail and self.unsealed.get(file) != left:
            LOG.warning("%s: %s", file, left)
        self.unsealed[file] = left

    @property
    def name(self) -> str:
        """The place of the log."""
        return str(self.folder.resolve() if isinstance(self.folder, Path) else self.folder)

    @property
    def identity(self) -> str:
        """The identity of the log in this folder; empty if none has begun, or one of an older
        version."""
        there = Manifest.of(self.folder)
        return "" if there is None else there.id

    @property
    def known_by(self) -> str:
        """The log's identity: files of another log may have the same names."""
        return self.identity

    def cuts(self, begins: Mapping[str, int], first: int, second: int) -> Cuts:
        """The cuts, by the marks of the writers: a part is a file, a place a byte in it."""
        with readable():
            if self._cuts is None:
                self._cuts = WriterCuts(self.folder, self._sealed, self.config.damaged)
            found = self._cuts.at(first, second)
        if found.latest is None and not found.behind:
            return replace(found, behind=(f"no writer has come to {self.name}{self._holds()}",))
        return found

    def _holds(self) -> str:
        """What is found in place of a log, in words."""
        if not isinstance(self.folder, Path):
            return ""
        if not self.folder.exists():
            return ", which is not there"
        found = sorted(one.name for one in self.folder.iterdir() if not one.name.startswith("."))
        others = [name for name in found if name not in (MANIFEST, MARKS, "sealed")]
        return f", which holds {others[0]!r} and no log" if others and MANIFEST not in found else ""

    def between(self, shard: int, *places: Mapping[str, int]) -> Iterator[Placed]:
        """Whole blocks, at whose borders all places lie; those of several files come in the order
        of their first timestamps."""
        begins, ends = places[0], places[-1]
        damaged, folder = self.config.damaged, self.folder / shard_folder(shard)
        files = [
            frames_between(self.folder / name, shard, begins.get(name, 0), end, damaged)
            for name, end in sorted(ends.items())
            if (self.folder / name).parent == folder and begins.get(name, 0) < end
        ]
        with readable():
            for frame in heapq.merge(*files, key=lambda frame: frame.first):
                messages = read_block(frame, damaged)
                if messages is not None:
                    where = lying_at(str(frame), messages)
                    yield Placed(name_of(frame.file), frame.offset, where)
                elif damaged == "raise":
                    raise _harmed(frame)

    def fingerprint(self) -> str:
        with readable():
            files = [file for n in range(self.shards) for file in shard_files(self.folder, n)]
            stats = [(file.parent.name, file.name, file.stat().st_size) for file in files]
        return hashlib.sha256(repr(stats).encode()).hexdigest()

    def __enter__(self) -> ZstdShards:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _start_writing(self) -> None:
        self._process = os.getpid()
        self._writer = uuid.uuid4().hex
        self._compressor = zstandard.ZstdCompressor(level=self.config.level)
        self._blocks: dict[int, LogBlock] = {}
        self._files: dict[int, ShardFile] = {}
        self._marks: WriterMarks | None = None
        self._marked: dict[int, int] = {}
        """The ends of files that the latest mark has."""
        self._latest = 0

    def _begin_marks(self, messages: pa.RecordBatch) -> None:
        """Make this writer known to readers before anything waits in its memory."""
        if not messages.num_rows:
            return
        latest = pc.max(messages["timestamp"]).as_py()
        if self._marks is None:
            assert isinstance(self.folder, Path)  # as `append` saw
            self._marks = WriterMarks(self.folder, self._writer)
            self._latest = latest
        self._latest = max(self._latest, latest)

    def _ends(self) -> dict[int, int]:
        return {shard: file.end for shard, file in self._files.items()}

    def _mark(self, ends: dict[int, int] | None = None) -> None:
        """Append a mark, if files have grown since the previous one."""
        ends = self._ends() if ends is None else ends
        grown = {shard: end for shard, end in ends.items() if self._marked.get(shard) != end}
        if self._marks is not None and grown:
            self._marks.add(self._latest, grown)
            self._marked = ends

    def _end_marks(self) -> None:
        if self._marks is not None:
            self._marks.close()
            self._marks = None

    def _append(self, shard: int, messages: pa.RecordBatch) -> None:
        block = self._blocks.setdefault(shard, LogBlock())
        while messages.num_rows:
            fit = messages_within(messages, self.config.block_bytes - block.raw)
            if not fit and block.count:
                self._write(shard, block)
                continue
            fit = max(fit, 1)  # a message that is longer than a block becomes a block of its own
            block.add(messages.slice(0, fit))
            messages = messages.slice(fit)

    def _leave_to_parent(self) -> None:
        """After a fork, forget what waits and the files: the parent writes these."""
        if self._process != os.getpid():
            self._start_writing()

    def _write_all(self) -> None:
        self._leave_to_parent()
        for shard, block in self._blocks.items():
            self._write(shard, block)

    def _write(self, shard: int, block: LogBlock) -> None:
        if not block.count:
            return
        assert isinstance(self.folder, Path)  # as `append` saw
        if shard not in self._files:
            if not self._files:
                self._manifest.settle(self.folder)
            path = self.folder / file_name(shard, self._writer)
            self._files[shard] = ShardFile(path, shard, self.config.fsync)
        self._files[shard].append(block.packed(self._compressor))
        block.clear()


def _harmed(frame: Frame) -> DataError:
    return DataError(f"{frame}: was whole before, but is not now. Restore it from a copy.")


def build_zstd_shards(config: ZstdShardsConfig, context: Context) -> ZstdShards:
    return ZstdShards(config, config.folder or context.folder / "log")
