"""Value tests: what long work prints where no terminal shows its bars."""

from __future__ import annotations

import subprocess
import sys

import pytest

from recd_plugins.cli.progress import ProgressLines


def lines(*reports: tuple[float, int, int | None], capsys: pytest.CaptureFixture[str]) -> list[str]:
    """The lines that work prints which reports (when, done, total)."""
    now = 0.0
    show = ProgressLines(lambda: now)
    for now, done, total in reports:  # noqa: B007  # the clock reads it
        show("writing train", done, total)
    return capsys.readouterr().err.splitlines()


def test_long_work_has_a_line_soon_and_then_one_a_minute(
    capsys: pytest.CaptureFixture[str],
) -> None:
    every_second = [(float(second), 1_000 * second, 10**6) for second in range(200)]
    assert lines(*every_second, capsys=capsys) == [
        "writing train: 10,000 of 1,000,000 after 10 seconds, about 16 minutes to go",
        "writing train: 70,000 of 1,000,000 after 70 seconds, about 16 minutes to go",
        "writing train: 130,000 of 1,000,000 after 2 minutes, about 14 minutes to go",
        "writing train: 190,000 of 1,000,000 after 3 minutes, about 14 minutes to go",
    ]


def test_short_work_has_no_line_nor_the_end_of_any(capsys: pytest.CaptureFixture[str]) -> None:
    assert lines((0, 0, 10), (9, 5, 10), (30, 10, 10), capsys=capsys) == []


def test_work_that_begins_again_has_the_time_since_then(
    capsys: pytest.CaptureFixture[str],
) -> None:
    again = [(0, 0, 10), (4, 10, 10), (200, 0, 10), (205, 5, 10), (215, 6, 10)]
    assert lines(*again, capsys=capsys) == [
        "writing train: 6 of 10 after 15 seconds, about 10 seconds to go"
    ]


def test_what_nobody_can_count_has_its_time(capsys: pytest.CaptureFixture[str]) -> None:
    assert lines((0, 0, None), (20, 0, None), (400_000, 7, None), capsys=capsys) == [
        "writing train: 0 after 20 seconds",
        "writing train: 7 after 5 days",
    ]
    assert lines((0, 0, 10**12), (10, 150_000, 10**12), capsys=capsys) == [
        "writing train: 150,000 of 1,000,000,000,000 after 10 seconds, about 772 days to go"
    ]


def test_they_are_for_what_is_no_terminal() -> None:
    program = (
        "from recd_plugins.cli import progress as bars_and_lines\n"
        "from recd_plugins.cli.progress import progress\n"
        "bars_and_lines.FIRST = 0.0\n"
        "with progress() as show:\n"
        "    show('writing train', 3, 12)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert "writing train: 3 of 12 after 0 seconds" in done.stderr
    assert not done.stdout
