"""Rung 1 (values, on files) and 2 (properties): torn tails are dropped, damage is named."""

from __future__ import annotations

import shutil

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from raw_messages import everything, messages_of, numbered

from recd_dedup.log.sealed import Unsealed
from recd_dedup.log.shard_file import (
    FILE_BYTES,
    FRAME_BYTES,
    file_head,
    frame_bytes,
    frames,
    read_payload,
    shard_files,
)
from recd_dedup.log.shards import ZstdShards, ZstdShardsConfig
from recd_plugins.errors import DataError

BLOCKS, IN_BLOCK = 4, 10


def log_in(folder, damaged="raise") -> ZstdShards:
    config = ZstdShardsConfig(shards=1, fsync="never", block_bytes=1000, damaged=damaged)
    return ZstdShards(config, folder)


@pytest.fixture
def file(tmp_path):
    """A file of four blocks that its writer did not close."""
    log = log_in(tmp_path / "log")
    log.append(messages_of(numbered(BLOCKS * IN_BLOCK, size=80)))
    log.flush()
    (path,) = shard_files(tmp_path / "log", 0)
    return path


@pytest.fixture
def sealed(tmp_path):
    with log_in(tmp_path / "log") as log:
        log.append(messages_of(numbered(BLOCKS * IN_BLOCK, size=80)))
    (path,) = shard_files(tmp_path / "log", 0)
    return path


def read(path, damaged="raise"):
    return everything(log_in(path.parent.parent, damaged))


def rows(blocks):
    return [numbered(IN_BLOCK, first=IN_BLOCK * block, size=80) for block in blocks]


def joined(blocks):
    return [row for block in rows(blocks) for row in block]


def test_cut_at_every_byte_of_the_last_block_only_that_is_lost(file):
    whole, last = file.read_bytes(), list(frames(file, 0))[-1]
    assert read(file) == joined(range(4))
    for size in range(last.offset, len(whole)):
        file.write_bytes(whole[:size])
        assert read(file) == joined(range(3))


def test_cut_at_any_byte_what_was_whole_is_there(file):
    whole, ends = file.read_bytes(), [frame.end for frame in frames(file, 0)]
    for size in range(len(whole)):
        file.write_bytes(whole[:size])
        assert read(file) == joined(range(sum(end <= size for end in ends)))


def test_appending_goes_on_after_a_torn_tail(file):
    file.write_bytes(file.read_bytes()[:-1])
    with log_in(file.parent.parent) as log:
        log.append(messages_of(numbered(5, first=100)))
    assert read(file) == joined(range(3)) + numbered(5, first=100)


@pytest.mark.parametrize("tail", [bytes(5), bytes(5000), b"RBLK", b"RBLK" + bytes(100), b"x" * 99])
def test_rubbish_after_the_last_block_is_a_torn_tail(file, tail):
    file.write_bytes(file.read_bytes() + tail)
    assert read(file) == joined(range(4))


def test_a_byte_flipped_anywhere_in_the_middle_is_named(file):
    whole = file.read_bytes()
    second, third = list(frames(file, 0))[1:3]
    for offset in range(second.offset, second.end):
        file.write_bytes(flipped(whole, offset))
        message = (
            rf"{file.name}, byte {second.offset:,}: .*damaged.*from byte {third.offset:,}\. .*skip"
        )
        with pytest.raises(DataError, match=message):
            read(file)
        assert read(file, damaged="skip") == joined([0, 2, 3])


def test_flipped_in_the_last_block_of_a_closed_file_is_damage(sealed):
    whole = sealed.read_bytes()
    last = list(frames(sealed, 0))[BLOCKS - 1]
    for offset in range(last.offset, last.end):
        sealed.write_bytes(flipped(whole, offset))
        with pytest.raises(DataError, match=rf"byte {last.offset:,}"):
            read(sealed)
        assert read(sealed, damaged="skip") == joined(range(3))


def test_flipped_in_the_last_block_of_an_open_file_is_a_torn_tail(file):
    whole = file.read_bytes()
    last = list(frames(file, 0))[-1]
    for offset in range(last.offset, last.end):
        file.write_bytes(flipped(whole, offset))
        assert read(file) == joined(range(3))


def test_what_is_skipped_is_logged(file, caplog):
    second, third = list(frames(file, 0))[1:3]
    file.write_bytes(flipped(file.read_bytes(), second.offset + FRAME_BYTES))
    read(file, damaged="skip")
    assert [record.getMessage() for record in caplog.records] == [
        f"{file}: bytes {second.offset} to {third.offset} are damaged and left out"
    ]


def test_a_sealed_file_that_is_cut_anywhere_or_gone_is_named(sealed, caplog):
    whole = sealed.read_bytes()
    for size in [*range(len(whole)), None]:
        sealed.unlink() if size is None else sealed.write_bytes(whole[:size])
        says = "is not there" if size is None else f"is cut short to {size:,} bytes"
        with pytest.raises(DataError, match=f"{sealed.name}: {says}; it was sealed with 40 mess"):
            read(sealed)
    assert read(sealed, damaged="skip") == []
    assert f"{sealed}: is not there; it was sealed with 40 messages" in caplog.text
    sealed.write_bytes(whole)
    assert read(sealed) == joined(range(4))


def test_a_byte_of_the_seal_or_of_the_list_of_sealed_files_is_noticed(sealed):
    folder = sealed.parent.parent
    (listed,) = (folder / "sealed").iterdir()
    seal = list(frames(sealed, 0))[-1]
    for file, places in (
        (sealed, range(seal.offset, seal.end)),
        (listed, range(0, listed.stat().st_size, 5)),
    ):
        whole = file.read_bytes()
        for offset in places:
            file.write_bytes(flipped(whole, offset))
            with pytest.raises(DataError, match=rf"{file.name}.* damaged.*from a copy"):
                read(sealed)
        file.write_bytes(whole)
    listed.unlink()  # a writer that was killed as it closed
    assert read(sealed) == joined(range(4))
    (folder / "manifest.json").unlink()
    with pytest.raises(DataError, match=r"manifest.json: is not there, although .* is\. Without"):
        read(sealed)


def test_a_block_that_was_taken_out_of_a_sealed_file_is_missed(sealed):
    whole, second = sealed.read_bytes(), list(frames(sealed, 0))[1]
    sealed.write_bytes(whole[: second.offset] + whole[second.end :])
    (listed,) = (sealed.parent.parent / "sealed").iterdir()
    listed.unlink()
    with pytest.raises(DataError, match=r"3 blocks with 30 messages before it, but 4 with 40"):
        read(sealed)


def test_what_is_not_sealed_is_counted(file, caplog):
    log = log_in(file.parent.parent)
    assert everything(log) == joined(range(4))
    assert log.unsealed == {file: Unsealed(4, 40, 0)}
    assert not caplog.records  # a writer may be at it
    whole, last = file.read_bytes(), list(frames(file, 0))[-1]
    for torn in (whole[:-1], flipped(whole, len(whole) - 1)):
        file.write_bytes(torn)
        caplog.clear()
        assert everything(log) == joined(range(3))
        size = len(torn) - last.offset
        assert log.unsealed == {file: Unsealed(3, 30, size)}
        assert [record.getMessage() for record in caplog.records] == [
            f"{file}: its writer has not sealed it: 3 blocks with 30 messages can be read, but "
            f"not the {size} bytes after them"
        ]


@pytest.mark.parametrize("offset", range(FILE_BYTES))
def test_a_damaged_head(file, offset):
    file.write_bytes(flipped(file.read_bytes(), offset))
    with pytest.raises(DataError, match=rf"{file.name}: is no log file of shard 0"):
        read(file)


def test_a_file_in_another_shards_folder(file):
    other = file.parent.with_name("shard-00001")
    shutil.copytree(file.parent, other)
    (copy,) = other.iterdir()
    with pytest.raises(DataError, match="is no log file of shard 1"):
        list(frames(copy, 1))


def test_what_follows_a_seal(sealed):
    sealed.write_bytes(sealed.read_bytes() + b"more")
    with pytest.raises(DataError, match="its writer closed it there, but something was added"):
        read(sealed)


def test_a_block_that_lies_behind_its_checksum(file):
    """No crash makes this, so it is an error and no torn tail."""
    file.write_bytes(file_head(0) + frame_bytes(b"no zstd", messages=1, raw=99, first=0))
    with pytest.raises(DataError, match=rf"{file.name}, byte {FILE_BYTES}: .*zstd cannot read it"):
        read(file)


@given(st.lists(st.tuples(st.binary(max_size=60), st.integers(-(2**63), 2**63 - 1)), max_size=8))
def test_frames_round_trip(tmp_path_factory, payloads):
    file = tmp_path_factory.mktemp("frames") / "f.log"
    data = file_head(3)
    for payload, first in payloads:
        data += frame_bytes(payload, messages=7, raw=len(payload) * 2, first=first)
    file.write_bytes(data)
    found = list(frames(file, 3))
    assert [(read_payload(frame), frame.first) for frame in found] == payloads
    assert [(frame.messages, frame.raw) for frame in found] == [
        (7, 2 * len(payload)) for payload, _ in payloads
    ]


@given(st.data())
def test_damage_never_passes_for_data(tmp_path_factory, data):
    """Whatever bytes are changed: what is read is what was written, in order, or an error."""
    file = tmp_path_factory.mktemp("frames") / "f.log"
    payloads = [bytes([n]) * 20 for n in range(5)]
    whole = file_head(0) + b"".join(
        frame_bytes(payload, messages=1, raw=20, first=0) for payload in payloads
    )
    size = FILE_BYTES + 5 * (FRAME_BYTES + 20)
    assert len(whole) == size
    offset = data.draw(st.integers(FILE_BYTES, size - 1))
    put = data.draw(st.binary(min_size=1, max_size=80))
    damaged = (whole[:offset] + put + whole[offset + len(put) :])[:size]
    file.write_bytes(damaged)
    found = [read_payload(frame, "skip") for frame in frames(file, 0, "skip")]
    intact = [
        payload
        for n, payload in enumerate(payloads)
        if whole[FILE_BYTES + n * 52 :][:52] == damaged[FILE_BYTES + n * 52 :][:52]
    ]
    assert [payload for payload in found if payload is not None] == intact


def flipped(data: bytes, offset: int) -> bytes:
    return data[:offset] + bytes([data[offset] ^ 0x10]) + data[offset + 1 :]


@pytest.mark.parametrize(
    "raw", [100, 1 << 31], ids=["less than it unpacks to", "more than a block"]
)
def test_a_block_that_unpacks_to_more_than_it_may_is_refused_unread(file, raw):
    bomb = zstandard.ZstdCompressor().compress(bytes(1 << 22))
    file.write_bytes(file_head(0) + frame_bytes(bomb, messages=5, raw=raw, first=0))
    with pytest.raises(DataError, match=r"unpacks to .* No writer of ours made it"):
        read(file)
