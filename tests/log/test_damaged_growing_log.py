"""Rung 1 (values): a growing log whose files are gone, cut short or another's says what to do, and
what a crash may take of it loses no message."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa
import pytest

from recd_dedup.log.codec import MessageCodec
from recd_dedup.log.growing_log import GrowingLogConfig, GrowingLogDataset, build_growing_log
from recd_dedup.log.join import JoinConfig
from recd_dedup.log.shard_file import files_of_log
from recd_dedup.log.shards import ZstdShards, ZstdShardsConfig
from recd_plugins.data.growing import NotClosed
from recd_plugins.data.schema import IDS, Schema, SparseFeature
from recd_plugins.errors import DataError
from recd_plugins.notices import NoticeWarning
from recd_plugins.slots import Context

SCHEMA = Schema(sparse=(SparseFeature(name="item", num_ids=10**6),))
CODEC = MessageCodec(SCHEMA)
ORIGIN = 1_700_000_000_000
REQUESTS = 40


def opened(folder: Path) -> ZstdShards:
    return ZstdShards(ZstdShardsConfig(shards=2, fsync="never", block_bytes=300), folder / "log")


def requests(*ids: int) -> pa.RecordBatch:
    each = np.array(ids)
    item = pa.array([[one] for one in ids], IDS)
    times = ORIGIN + 10 * each
    return CODEC.requests(
        each, pa.table({"session_id": each % 7, "timestamp": times, "item": item})
    )


def written(folder: Path, end: Callable[[ZstdShards], object] = ZstdShards.close) -> None:
    """A request each 10 ms, by two writers in turn; both end so."""
    writers = [opened(folder), opened(folder)]
    for number in range(REQUESTS):
        writers[number % 2].append(requests(number))
        if number % 5 == 0:
            writers[number % 2].flush()
    for writer in writers:
        end(writer)


def killed(writer: ZstdShards) -> None:
    """As the end of a process leaves it: what waited for a block is lost, and no lock is held."""
    writer._end_marks()


def dataset(folder: Path) -> GrowingLogDataset:
    config = GrowingLogConfig(
        schema=SCHEMA,
        join=JoinConfig(window_ms=50, disorder_ms=10),
        origin=ORIGIN,
        period_ms=100,
        ends_when_sealed=True,
    )
    return build_growing_log(config, Context(folder=folder, neighbours={"log": opened(folder)}))


def counted(growing: GrowingLogDataset, folder: Path) -> Counter[str]:
    counts: Counter[str] = Counter()
    number = 0
    while (period := growing.period(number)) is not None:
        period.prepare(folder / str(number))
        counts.update(period.counts(folder / str(number)))
        number += 1
    return counts


def one_of(folder: Path, kind: str) -> Path:
    return min((folder / "log").glob(f"{kind}/*"), key=lambda file: file.name)


@pytest.mark.parametrize("kept", [60, None])
def test_marks_that_a_crash_of_the_machine_took_lose_no_message(
    tmp_path: Path, kept: int | None
) -> None:
    written(tmp_path)
    marks = one_of(tmp_path, "marks")
    if kept is None:
        marks.unlink()
    else:
        os.truncate(marks, kept)
    assert counted(dataset(tmp_path), tmp_path)["samples"] == REQUESTS


def test_the_files_of_a_writer_that_has_ended_may_be_removed_once_its_periods_are_read(
    tmp_path: Path,
) -> None:
    written(tmp_path)
    gone = [*(tmp_path / "log").glob("*/*.log"), *(tmp_path / "log").glob("sealed/*")]
    log = opened(tmp_path)
    log.append(requests(60))
    log.flush()
    growing = dataset(tmp_path)
    assert growing.period(4) is not None
    for file in gone:
        file.unlink()
    log.append(requests(100))
    log.close()
    for anew in (growing, dataset(tmp_path)):
        period = anew.period(10)
        assert period is not None
        assert period.manifest.messages == 1
        assert anew.period(11) is None


def test_what_a_killed_writer_wrote_after_its_last_mark_is_in_no_periods_shadow(
    tmp_path: Path,
) -> None:
    """A block begins in the last period but one, and has a request of the last."""
    with opened(tmp_path) as log:
        log.append(requests(12))
    log = ZstdShards(ZstdShardsConfig(shards=2, fsync="never"), tmp_path / "log")
    log.append(requests(0, 7, 28))
    log._write_all()
    killed(log)
    with pytest.raises(NotClosed, match=r"the writer that came furthest was killed"):
        counted(dataset(tmp_path), tmp_path)
    with opened(tmp_path) as log:
        log.append(requests(29))
    assert counted(dataset(tmp_path), tmp_path)["samples"] == 5


def test_what_comes_when_the_last_period_has_closed_is_counted_before_the_end(
    tmp_path: Path,
) -> None:
    written(tmp_path)
    growing = dataset(tmp_path)
    last = (REQUESTS - 1) // 10
    assert growing.period(last) is not None
    with opened(tmp_path) as log:
        log.append(requests(1, 2))
    counts = counted(growing, tmp_path)
    assert (counts["samples"], counts["late_requests"]) == (REQUESTS, 2)


def test_what_is_written_after_the_data_have_ended_is_told(tmp_path: Path) -> None:
    written(tmp_path)
    assert counted(dataset(tmp_path), tmp_path)["samples"] == REQUESTS
    assert dataset(tmp_path).period(4) is None
    with opened(tmp_path) as log:
        log.append(requests(45))
        growing = dataset(tmp_path)
        message = f"log: more was written after the data had ended.*remove {tmp_path}/.*ended.json"
        with pytest.warns(NoticeWarning, match=message):  # while it is written, too
            assert growing.period(4) is None
        assert growing.period(4) is None  # it is told once
    with pytest.warns(NoticeWarning, match=message):
        assert dataset(tmp_path).period(4) is None
    next(tmp_path.glob("periods-*/ended.json")).unlink()
    assert counted(dataset(tmp_path), tmp_path)["samples"] == REQUESTS + 1


def test_this_machines_clock_decides_nothing_but_whether_to_stop(tmp_path: Path) -> None:
    written(tmp_path)
    config = dataset(tmp_path).config
    ends = ORIGIN / 1000 - 1e6, ORIGIN / 1000, 4e9
    behind, right, ahead = (
        GrowingLogDataset(config, opened(tmp_path), tmp_path / str(time), partial(float, time))
        for time in ends
    )
    with pytest.raises(DataError, match=r"If this clock is wrong, set it"):
        behind.period(0)
    for number in range(3):
        ours, theirs = right.period(number), ahead.period(number)
        assert ours is not None is not theirs
        assert ours.fingerprint() == theirs.fingerprint()


def cut(file: Path) -> None:
    os.truncate(file, file.stat().st_size // 2)


@pytest.mark.parametrize(
    ("kind", "harm", "says"),
    [
        ("shard-*", cut, r"was whole up to byte \d+ before.* Restore the file from a copy"),
        (
            "shard-*",
            lambda file: os.truncate(file, 9),
            r"and is now up to byte 9\. Restore the file",
        ),
        (
            "shard-*",
            lambda file: os.truncate(file, 0),
            r"and is now up to byte 0\. Restore the file",
        ),
        ("shard-*", lambda file: file.write_text("a,b\n" * 9), r"is no log file .* Take it from a"),
        ("shard-*", Path.unlink, r"is not there, .* Restore it from a copy"),
        ("marks", lambda file: file.write_text("a\nb\n"), r"damaged.* if its writer has ended, re"),
        ("sealed", cut, r"list of sealed files is damaged"),
        ("sealed", lambda file: file.write_text("[" * 10_000), r"damaged .it is nested too deep"),
    ],
)
def test_a_file_that_is_not_what_it_was_is_named(
    tmp_path: Path, kind: str, harm: Callable[[Path], object], says: str
) -> None:
    written(tmp_path)
    file = one_of(tmp_path, kind)
    harm(file)
    with pytest.raises(DataError, match=f"{file}.*{says}"):
        counted(dataset(tmp_path), tmp_path)


def test_a_manifest_of_a_log_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    written(tmp_path)
    manifest = tmp_path / "log" / "manifest.json"
    manifest.write_text("[" * 10_000)
    with pytest.raises(DataError, match=f"{manifest}: cannot be read.*Restore it from a copy"):
        dataset(tmp_path)


def test_marks_of_a_living_writer_that_are_gone_are_named(tmp_path: Path) -> None:
    writer = opened(tmp_path)
    writer.append(requests(*range(20)))
    writer.flush()
    growing = dataset(tmp_path)
    assert growing.period(0) is not None
    marks = one_of(tmp_path, "marks")
    marks.unlink()
    with pytest.raises(DataError, match=f"{marks}: is not there, but was before"):
        growing.period(1)
    writer.close()


@contextmanager
def a_user_without_rights() -> Iterator[None]:
    """Root may read all, so it is another user meanwhile."""
    mine = os.geteuid()
    if not mine:
        os.seteuid(65_534)
    try:
        yield
    finally:
        os.seteuid(mine)


@pytest.mark.parametrize("kind", ["shard-*", "marks"])
def test_a_file_that_may_not_be_read_is_named(kind: str) -> None:
    with TemporaryDirectory() as folder:  # one that other users can come to
        written(Path(folder))
        for path in (Path(folder), *Path(folder).rglob("*")):
            path.chmod(0o777)
        file = one_of(Path(folder), kind)
        file.chmod(0)
        with (
            a_user_without_rights(),
            pytest.raises(DataError, match=f"{file}: this process may not read it"),
        ):
            dataset(Path(folder)).period(0)


@pytest.mark.parametrize("kind", ["shard-*", "marks", "sealed"])
def test_a_folder_that_may_not_be_listed_is_not_taken_for_an_empty_one(kind: str) -> None:
    with TemporaryDirectory() as name:
        folder = Path(name)
        written(folder, ZstdShards.close if kind == "sealed" else killed)
        log, growing = opened(folder), dataset(folder)
        for path in (folder, *folder.rglob("*")):
            path.chmod(0o777)
        hidden = min((folder / "log").glob(kind))
        hidden.chmod(0)
        look = partial(growing.period, 0) if kind == "marks" else partial(next, log.read(0))
        with (
            a_user_without_rights(),
            pytest.raises(DataError, match=f"{hidden}: this process may not read it"),
        ):
            look()
        hidden.chmod(0o777)


@pytest.mark.parametrize("name", ["period-000000.json", "ended.json"])
@pytest.mark.parametrize(
    "damage",
    [
        lambda text: "{",
        lambda text: "null",
        lambda text: "[" * 10_000,
        lambda text: '{"strange": 1}',
        lambda text: re.sub(r'("number"|"before"): \d', r"\1: 1", text, count=1),
        lambda text: re.sub(r'("number"|"before"): \d', r"\1: null", text, count=1),
    ],
    ids=["cut", "null", "deep", "strange", "flipped", "without_a_number"],
)
def test_what_a_run_left_of_a_period_is_named_where_it_is_damaged(
    tmp_path: Path, name: str, damage: Callable[[str], str]
) -> None:
    written(tmp_path)
    before = counted(dataset(tmp_path), tmp_path)
    file = next(tmp_path.glob("periods-*")) / name
    file.write_text(damage(file.read_text()))
    with pytest.raises(DataError, match=f"{file}: is damaged, or of another version .* remove it"):
        dataset(tmp_path).period(0)
    file.unlink()
    assert counted(dataset(tmp_path), tmp_path) == before


def test_a_manifest_in_place_of_another_is_named(tmp_path: Path) -> None:
    written(tmp_path)
    counted(dataset(tmp_path), tmp_path)
    folder = next(tmp_path.glob("periods-*"))
    (folder / "period-000000.json").write_bytes((folder / "period-000001.json").read_bytes())
    with pytest.raises(DataError, match=r"period-000000\.json: is damaged.*it is of period 1"):
        dataset(tmp_path).period(0)


def test_a_draft_of_a_manifest_that_a_killed_process_left_is_none(tmp_path: Path) -> None:
    written(tmp_path)
    before = counted(dataset(tmp_path), tmp_path)
    draft = next(tmp_path.glob("periods-*")) / "period-000009.77.part.json"
    draft.write_text('{"number": 9, "beg')
    assert counted(dataset(tmp_path), tmp_path) == before


def test_a_log_that_begins_while_it_is_opened_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The manifest is not there yet, and then the first file is."""

    def begun_meanwhile(folder: Path) -> Iterator[Path]:
        monkeypatch.undo()
        written(tmp_path)
        return files_of_log(folder)

    monkeypatch.setattr("recd_dedup.log.manifest.files_of_log", begun_meanwhile)
    assert dataset(tmp_path).period(0) is not None


def test_a_place_without_a_log_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotClosed, match=f"no writer has come to {tmp_path}/log, which is not the"):
        dataset(tmp_path).period(0)
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / "a.csv").touch()
    with pytest.raises(NotClosed, match=r"/log, which holds 'a.csv' and no log; it closes at"):
        dataset(tmp_path).period(0)
    (tmp_path / "file").mkdir()
    (tmp_path / "file" / "log").touch()
    says = r"is a file, but must be a log's folder\. Set `log.folder`"
    with pytest.raises(DataError, match=says):
        dataset(tmp_path / "file")
