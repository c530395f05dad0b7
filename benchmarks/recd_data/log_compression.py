"""O1's gain: how much a log shrinks, measured on its files, by route."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from recd_dedup.log.manifest import Manifest
from recd_dedup.log.shard_file import FILE_BYTES, frames, read_payload, shard_files
from recd_dedup.log.shards import ZstdShards, ZstdShardsConfig
from recd_plugins.api import DataError
from recd_plugins.api.data import LogRoute

__all__ = ["Compression", "compression", "compression_of"]


@dataclass(frozen=True, kw_only=True)
class Compression:
    """The size of a log's content, and of its files."""

    route: LogRoute
    shards: int
    files: int
    blocks: int
    messages: int
    bytes_in: int
    """Bytes of the messages, with 16 each for session id and timestamp."""
    bytes_out: int
    """Bytes of the files."""
    bytes_torn: int
    """Bytes in torn tails of the files: those of a killed writer, or those being written now."""

    @property
    def ratio(self) -> float:
        return self.bytes_in / self.bytes_out if self.bytes_out else 1.0

    def to_dict(self) -> dict[str, int | float | str]:
        return {**dataclasses.asdict(self), "ratio": self.ratio}

    def __str__(self) -> str:
        text = (
            f"{self.shards} shards by {self.route}: {self.messages:,} messages, "
            f"{self.bytes_in / 2**20:,.1f} -> {self.bytes_out / 2**20:,.1f} MiB, {self.ratio:.2f}x"
        )
        return f"{text}; {self.bytes_torn:,} bytes in torn tails" if self.bytes_torn else text


def compression_of(folder: Path) -> Compression:
    """The compression of a log on disk. Every block is checked, and damage raises `DataError`."""
    manifest = Manifest.of(folder)
    if manifest is None:
        raise DataError(f"{folder}: holds no log (no manifest). Check the path.")
    files = blocks = messages = bytes_in = bytes_out = torn = 0
    for shard in range(manifest.shards):
        for file in shard_files(folder, shard):
            size = file.stat().st_size
            end = min(size, FILE_BYTES)
            for frame in frames(file, shard):
                if read_payload(frame) is None:
                    break
                end = frame.end
                if frame.messages:
                    blocks += 1
                    messages += frame.messages
                    bytes_in += frame.raw - 4 * frame.messages  # without their lengths
            files += 1
            bytes_out += size
            torn += max(size - end, 0)
    return Compression(
        route=manifest.route,
        shards=manifest.shards,
        files=files,
        blocks=blocks,
        messages=messages,
        bytes_in=bytes_in,
        bytes_out=bytes_out,
        bytes_torn=torn,
    )


def compression(messages: Iterable[pa.RecordBatch], config: ZstdShardsConfig) -> Compression:
    """What a log of these messages would take: one is written, measured and removed."""
    with tempfile.TemporaryDirectory(prefix="recd-log-") as name:
        folder = Path(name) / "log"
        with ZstdShards(dataclasses.replace(config, fsync="never"), folder) as log:
            for batch in messages:
                log.append(batch)
        if Manifest.of(folder) is None:
            raise DataError("there are no messages to measure. Give some.")
        return compression_of(folder)
