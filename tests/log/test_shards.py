"""Rung 1 (values, on files): shard files written, read while written, by many, and mismatched."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from raw_messages import everything, messages_of, numbered, rows_of

from recd_dedup.hashing import mix
from recd_dedup.log.marks import lives
from recd_dedup.log.shard_file import shard_files
from recd_dedup.log.shards import ZstdShards, ZstdShardsConfig, build_zstd_shards
from recd_plugins.errors import DataError
from recd_plugins.slots import Context
from recd_plugins.storage.uri import location_of


def opened(folder, **options) -> ZstdShards:
    return ZstdShards(ZstdShardsConfig(**{"shards": 4, "fsync": "never"} | options), folder)


def written(folder, rows, **options) -> ZstdShards:
    with opened(folder, **options) as log:
        log.append(messages_of(rows))
    return log


def by_session(rows, shards=4):
    """What each shard should hold, worked out a message at a time."""
    held = [[] for _ in range(shards)]
    for row in rows:
        (hashed,) = mix(pa.array([row[0]]).to_numpy()).tolist()
        held[hashed * shards >> 64].append(row)
    return held


@pytest.mark.parametrize("block_bytes", [1, 100, 1000, 4 << 20])
def test_each_shard_holds_its_sessions_in_order(tmp_path, block_bytes):
    rows = numbered(200)
    with opened(tmp_path, block_bytes=block_bytes) as log:
        for start in range(0, 200, 30):
            log.append(messages_of(rows[start : start + 30]))
    assert [rows_of(log.read(shard)) for shard in range(4)] == by_session(rows)
    assert [rows_of(opened(tmp_path).read(shard)) for shard in range(4)] == by_session(rows)


def test_blocks_are_as_large_as_asked(tmp_path):
    log = written(tmp_path, numbered(100, sessions=1, size=80), block_bytes=1000)
    (held,) = [list(log.read(shard)) for shard in range(4) if shard_files(tmp_path, shard)]
    assert [batch.num_rows for batch in held] == [10] * 10  # of 20 + 80 bytes each


def test_by_message_sessions_scatter_and_loads_are_even(tmp_path):
    rows = numbered(4000, sessions=3)
    log = written(tmp_path, rows, route="message")
    held = [rows_of(log.read(shard)) for shard in range(4)]
    assert sorted(row for part in held for row in part) == sorted(rows)
    assert all(abs(len(part) - 1000) < 150 for part in held)


def test_a_log_of_nothing(tmp_path):
    assert everything(opened(tmp_path)) == []
    with opened(tmp_path) as log:
        log.append(messages_of([]))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "message",
    [b"", "Grüße, 世界 🌍".encode(), bytes(256), b"RBLK" * 50, b"RECDLOG1", b"x" * 3_000_000],
    ids=["empty", "unicode", "zeros", "magic", "head", "huge"],
)
def test_any_bytes_are_a_message(tmp_path, message):
    rows = [(5, 1, b"before"), (5, -(2**63), message), (-(2**63), 2**63 - 1, b"after")]
    log = written(tmp_path / "ログ", rows, block_bytes=64)
    assert everything(log) == [row for part in by_session(rows) for row in part]


@given(
    st.lists(
        st.tuples(st.integers(-(2**63), 2**63 - 1), st.integers(0, 2**40), st.binary(max_size=300)),
        max_size=40,
    ),
    st.integers(1, 600),
    st.lists(st.booleans(), min_size=40, max_size=40),
)
def test_what_is_appended_is_read(tmp_path_factory, rows, block_bytes, flushes):
    folder = tmp_path_factory.mktemp("log")
    with opened(folder, block_bytes=block_bytes) as log:
        for row, flush in zip(rows, flushes, strict=False):
            log.append(messages_of([row]))
            if flush:
                log.flush()
                assert len(everything(log)) == rows.index(row) + 1 or rows.count(row) > 1
    held = sorted(part for part in by_session(rows))
    assert sorted(sorted(rows_of(log.read(shard))) for shard in range(4)) == sorted(
        map(sorted, held)
    )


def test_a_log_that_was_copied_to_a_store_is_read_there(tmp_path):
    rows = numbered(400, sessions=9)
    log = written(tmp_path, rows, block_bytes=1000)
    there = location_of(f"memory://logs/{uuid.uuid4().hex}")
    for file in filter(Path.is_file, tmp_path.rglob("*")):
        (there / file.relative_to(tmp_path).as_posix()).write_bytes(file.read_bytes())
    copied = opened(there)
    assert everything(copied) == everything(log)
    assert not copied.unsealed
    with pytest.raises(DataError, match="is on a store, where files cannot grow"):
        copied.append(messages_of(rows))
    copied.close()

    file = max(there.rglob("*.log"), key=lambda one: one.stat().st_size)
    whole = file.read_bytes()
    file.write_bytes(whole[:60] + bytes([whole[60] ^ 1]) + whole[61:])
    with pytest.raises(DataError, match=r"memory://logs/.*the block there is damaged"):
        everything(opened(there))
    assert 0 < len(everything(opened(there, damaged="skip"))) < len(rows)
    file.unlink()
    with pytest.raises(DataError, match=r"is not there; it was sealed with"):
        everything(opened(there))


@pytest.mark.slow
def test_readable_while_written(tmp_path):
    writer, reader = opened(tmp_path, block_bytes=1000), opened(tmp_path)
    rows = numbered(500, sessions=1, size=80)
    for row in rows:
        writer.append(messages_of([row]))
        seen = everything(reader)
        assert seen == rows[: len(seen)]
    assert 480 <= len(seen) < 500  # only blocks that are full
    writer.flush()
    assert everything(reader) == rows
    writer.append(messages_of(numbered(1, first=500, sessions=1)))
    assert everything(reader) == rows
    writer.close()
    assert everything(reader) == rows + numbered(1, first=500, sessions=1)


def test_a_reader_in_the_middle_keeps_what_it_began_with(tmp_path):
    rows = numbered(100, sessions=1, size=80)
    log = written(tmp_path, rows, block_bytes=1000)
    shard = next(shard for shard in range(4) if shard_files(tmp_path, shard))
    reading = log.read(shard)
    first = next(reading)
    written(tmp_path, numbered(100, first=100, sessions=1), block_bytes=1000)
    assert rows_of([first, *reading]) == rows


def test_a_closed_log_opens_again(tmp_path):
    log = written(tmp_path, numbered(50))
    log.append(messages_of(numbered(50, first=50)))
    log.close()
    assert sorted(everything(log)) == sorted(numbered(100))


def test_writers_are_merged_by_time(tmp_path):
    rows = numbered(400, sessions=1, size=80)
    logs = [opened(tmp_path, block_bytes=1000) for _ in range(3)]
    for start in range(0, 400, 10):
        logs[start // 10 % 3].append(messages_of(rows[start : start + 10]))
    for log in logs:
        log.close()
    assert everything(logs[0]) == rows


SETUP = f"""
import os, sys
from pathlib import Path
sys.path.insert(0, {str(Path(__file__).parent)!r})
from raw_messages import messages_of, numbered
from recd_dedup.log.shards import ZstdShards, ZstdShardsConfig
log = ZstdShards(ZstdShardsConfig(shards=4, block_bytes=2000), Path(sys.argv[1]))
def write(first, last):
    for n in range(first, last, 5):
        log.append(messages_of(numbered(5, first=n)))
"""
FORKS = """
write(0, 500)
log.flush()
write(500, 505)  # waits in memory
children = []
for first in (1000, 2000, 3000):
    children.append(os.fork())
    if not children[-1]:
        write(first, first + 1000)
        log.close()
        os._exit(0)
write(505, 1000)
log.close()
sys.exit(max(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children))
"""


@pytest.mark.slow
def test_processes_write_at_once_and_a_fork_leaves_what_waits_to_its_parent(tmp_path):
    subprocess.run([sys.executable, "-c", SETUP + FORKS, str(tmp_path)], check=True, timeout=300)
    log = opened(tmp_path)
    assert sorted(everything(log), key=lambda row: row[1]) == numbered(4000)
    assert all(len(shard_files(tmp_path, shard)) in (0, 4) for shard in range(4))


@pytest.mark.slow
def test_a_killed_writer_leaves_whole_blocks_and_no_lock_to_what_it_forked(tmp_path):
    fork = "if not os.fork():\n    print('writing', flush=True)\n    sys.stdin.read()\n"
    code = SETUP + f"write(0, 5)\n{fork}    os._exit(0)\nwrite(5, 10**9)"
    arguments = [sys.executable, "-c", code, str(tmp_path)]
    process = subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdin is not None
    with process.stdout, process.stdin:  # until then what it forked is there
        process.stdout.readline()
        (marks,) = (tmp_path / "marks").glob("*.log")
        assert lives(marks)
        deadline = time.monotonic() + 300
        while len(everything(opened(tmp_path))) < 500 and time.monotonic() < deadline:
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        process.wait(timeout=300)
        assert not lives(marks)
    left = everything(opened(tmp_path))
    assert len(left) >= 500
    for shard in range(4):
        held = rows_of(opened(tmp_path).read(shard))
        assert held == by_session(numbered(held[-1][1] - 999))[shard] if held else True
    after = numbered(100, first=10**9)
    log = written(tmp_path, after)
    assert sorted(everything(log)) == sorted(left + after)


def test_a_full_disk_leaves_the_log_whole(tmp_path, monkeypatch):
    log = opened(tmp_path, shards=1)
    log.append(messages_of(numbered(10)))
    log.flush()
    log.append(messages_of(numbered(10, first=10)))
    write = os.write

    def full(file, data):
        if len(data) < 40:
            raise OSError(28, "No space left on device")
        return write(file, data[:40])

    with monkeypatch.context() as patched:
        patched.setattr("os.write", full)
        with pytest.raises(OSError, match="No space left"):
            log.flush()
    (file,) = shard_files(tmp_path, 0)
    size = file.stat().st_size
    assert everything(opened(tmp_path, shards=1)) == numbered(10)
    log.close()
    assert file.stat().st_size > size
    assert everything(log) == numbered(20)


@pytest.mark.parametrize(("fsync", "synced"), [("block", 7), ("flush", 4), ("never", 0)])
def test_fsync_as_asked(tmp_path, monkeypatch, fsync, synced):
    log = opened(tmp_path, shards=1, fsync=fsync, block_bytes=1000)
    log.append(messages_of(numbered(1)))
    log.flush()  # the file's and its folders' names are there
    calls = []
    monkeypatch.setattr("os.fsync", calls.append)
    log.append(messages_of(numbered(31, size=80)))
    log.flush()
    log.close()
    assert len(calls) == synced


@pytest.mark.parametrize("options", [{"shards": 8}, {"route": "message"}])
def test_a_log_of_other_shards_is_reported(tmp_path, options):
    written(tmp_path, numbered(5))
    with pytest.raises(DataError, match=r"holds a log of 4 shards, routed by session, but"):
        opened(tmp_path, **options)


def test_two_who_begin_a_log_differently(tmp_path):
    first, second = opened(tmp_path), opened(tmp_path, shards=8)
    second.append(messages_of(numbered(5)))
    second.close()
    first.append(messages_of(numbered(5)))
    with pytest.raises(DataError, match="holds a log of 8 shards"):
        first.flush()
    assert len(everything(second)) == 5


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"shards": 4}', '{"shards": 0, "route": "session", "format": 1}']
)
def test_a_manifest_that_cannot_be(tmp_path, text):
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(DataError, match=r"manifest\.json"):
        opened(tmp_path)


def test_a_later_format_is_reported(tmp_path):
    text = '{"shards": 4, "route": "session", "format": 2}'
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(DataError, match=r"reads logs of format 1.*with the version that wrote it"):
        opened(tmp_path)


def test_messages_that_are_none(tmp_path):
    log = opened(tmp_path)
    with pytest.raises(DataError, match="must have the columns"):
        log.append(pa.RecordBatch.from_pydict({"session_id": [1]}))
    lacking = messages_of([(1, 2, b"")]).set_column(2, "message", pa.array([None], pa.binary()))
    with pytest.raises(DataError, match="'message' holds 1 null"):
        log.append(lacking)
    with pytest.raises(DataError, match="has shards 0 to 3, not 4"):
        list(log.read(4))


def test_by_default_in_the_registrys_folder(tmp_path):
    context = Context(folder=tmp_path / "data")
    assert build_zstd_shards(ZstdShardsConfig(), context).folder == tmp_path / "data" / "log"
    own = ZstdShardsConfig(folder=tmp_path / "own")
    assert build_zstd_shards(own, context).folder == tmp_path / "own"
