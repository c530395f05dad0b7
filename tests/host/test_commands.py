"""Property tests: what a command line cannot mean is refused by its option, in a few words."""

from __future__ import annotations

from pathlib import Path

import pytest

from recd_plugins.cli.main import app
from recd_plugins.errors import CapabilityError
from recd_plugins.launch.environment import check_rank


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as ended:
        app(list(arguments))
    assert ended.value.code == 2
    return capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("data", "profile", "--batches", "1" + "0" * 30), "is no integer of 64 bits"),
        (("train", "--ranks", "9" * 5000), "--ranks"),
        (("tune", "batch", "--budget", "inf"), "inf is no finite number"),
        (("tune", "loss", "--loss", "nan"), "nan is no finite number"),
        (("scars", "curve", "--rows", "1" + "0" * 30), "is no integer of 64 bits"),
        (("scars", "curve", "--law", "\udcff"), "is no text of UTF-8"),
        (("report", "\udcff"), "is no text of UTF-8"),
        (("x" * 5000,), "No such command"),
        (("train", "--" + "x" * 5000), "No such option"),
        (("train", "x" * 5000), "write key=value"),
        (("train", "--registry", "x" * 5000), "cannot be read (File name too long)"),
    ],
)
def test_what_no_command_takes_is_refused_in_few_words(
    arguments: tuple[str, ...], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    message = " ".join(refused(capsys, *arguments).replace("│", " ").split())
    assert says in message
    assert len(message) < 800


def test_a_locale_without_utf_8_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.getfilesystemencoding", lambda: "ascii")
    message = refused(capsys, "report", "gr\udcc3\udcb6\udcc3\udc9fe")
    assert "read as ascii. Have the variable PYTHONUTF8" in " ".join(message.split())


RANK = {
    "RANK": "0",
    "WORLD_SIZE": "2",
    "LOCAL_RANK": "0",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "29500",
}


def test_ranks_that_a_launcher_did_not_start_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for known, right in RANK.items():
        monkeypatch.setenv(known, right)
    registry = tmp_path / "registry.yaml"
    registry.write_text("plugins: [recd_dlrm]\ndataset: sessions\nmodel: dlrm\n")
    told = refused(capsys, "train", "--ranks", "4", "--registry", str(registry))
    assert "--ranks 4: this is one of 2 ranks that a launcher, as torchrun, has started" in told


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("LOCAL_RANK", None, "but LOCAL_RANK is not set. Start ranks with torchrun"),
        ("WORLD_SIZE", None, "but WORLD_SIZE is not set"),
        ("RANK", "first", "but RANK is 'first', no number"),
        ("LOCAL_RANK", "-1", "but LOCAL_RANK is '-1', no number from 0 to "),
        ("MASTER_PORT", "65536", "but MASTER_PORT is '65536', no number from 0 to 65535. Start"),
        ("MASTER_PORT", "9" * 5_000, "but MASTER_PORT is '999.*999', no number from 0 to 65535"),
        ("RANK", "2", "RANK is 2, and WORLD_SIZE 2: ranks are counted from 0"),
        ("MASTER_ADDR", None, "but MASTER_ADDR is not set"),
    ],
)
def test_a_rank_knows_what_its_launcher_left_out(
    name: str, value: str | None, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for known, right in RANK.items():
        monkeypatch.setenv(known, right)
    check_rank()
    monkeypatch.delenv("LOCAL_WORLD_SIZE")
    check_rank()
    if value is None:
        monkeypatch.delenv(name)
    else:
        monkeypatch.setenv(name, value)
    with pytest.raises(CapabilityError, match=says):
        check_rank()
