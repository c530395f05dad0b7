"""Rungs 1 and 3: where kernels are kept, and that the processes of a machine compile one once."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numba
import pytest

from recd_plugins.compat.kernels import _say_once, kernel
from recd_plugins.notices import NoticeWarning
from recd_plugins.testing.gloo import GlooPool

KERNELS = """
import numpy as np
from recd_plugins.compat.kernels import kernel

@kernel
def half(number):
    return number / 2

@kernel
def halves(numbers):
    total = 0.0
    for number in numbers:
        total += half(number)
    return total
"""


def compiled(folder: Path) -> tuple[float, int, int]:
    """What the kernel gives on this rank, how often it was compiled here, and how often loaded."""
    import numpy as np

    sys.path.insert(0, str(folder))
    halves = importlib.import_module("kernels_of_a_test").halves
    found = halves(np.arange(5))
    return found, sum(halves.stats.cache_misses.values()), sum(halves.stats.cache_hits.values())


def test_ranks_that_call_a_kernel_at_once_compile_it_once(
    tmp_path: Path, gloo_pool: GlooPool
) -> None:
    (tmp_path / "kernels_of_a_test.py").write_text(KERNELS)
    found = gloo_pool.run(compiled, tmp_path, world_size=3)
    assert [total for total, _, _ in found] == [5.0] * 3
    assert sorted((misses, hits) for _, misses, hits in found) == [(0, 1), (0, 1), (1, 0)]


@pytest.fixture
def nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """numba finds no folder to write to, as in an installation that is read-only, without a home;
    the temporary folder."""
    monkeypatch.setattr(numba.config, "CACHE_LOCATOR_CLASSES", "UserProvidedCacheLocator")
    monkeypatch.setattr(numba.config, "CACHE_DIR", "")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    _say_once.cache_clear()
    yield tmp_path
    _say_once.cache_clear()


def twice(number: int) -> int:
    return number * 2


def test_a_kernel_is_kept_in_the_temporary_folder_where_numba_has_no_place(nowhere: Path) -> None:
    with pytest.raises(RuntimeError, match="no locator available"):
        numba.njit(cache=True)(twice)
    assert kernel(twice)(21) == 42
    again = kernel(twice)
    assert again(21) == 42
    assert sum(again.stats.cache_hits.values()) == 1
    (folder,) = nowhere.glob("recd-kernels-*")
    assert folder.stat().st_mode & 0o777 == 0o700
    assert folder in Path(again.stats.cache_path).parents
    assert numba.config.CACHE_DIR == ""


def test_a_folder_that_others_may_write_to_is_not_trusted(nowhere: Path) -> None:
    folder = nowhere / f"recd-kernels-{os.getuid()}"
    folder.mkdir()
    folder.chmod(0o777)
    with pytest.warns(NoticeWarning, match="no folder can be written to.*NUMBA_CACHE_DIR"):
        alone = kernel(twice)
    assert alone(21) == 42
    assert not [*folder.iterdir()]


def test_a_kernel_runs_where_the_disk_is_full(tmp_path: Path) -> None:
    program = """
import resource
import warnings
from recd_plugins.compat.kernels import kernel
from tests.compat.test_kernels import twice
resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    print(kernel(twice)(21), kernel(twice)(4))
print(*(one.message for one in told if "compiled" in str(one.message)))
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={
            **os.environ,
            "NUMBA_CACHE_DIR": str(tmp_path),
            "PYTHONPATH": os.pathsep.join(sys.path),
        },
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    values, told = done.stdout.splitlines()
    assert values == "42 8"
    assert told.count("cannot be kept (File too large)") == 1


def test_a_kernel_is_compiled_anew_once_the_file_of_one_that_it_calls_has_changed(
    tmp_path: Path,
) -> None:
    """numba looks at the kernel's own file, and runs what it calls as that was."""
    header = "from recd_plugins.compat.kernels import kernel\n"
    called, between = tmp_path / "called.py", tmp_path / "between.py"
    between.write_text(
        f"{header}from called import more\n@kernel\ndef twice(x):\n    return more(more(x))\n"
    )
    (tmp_path / "calls.py").write_text(
        f"{header}from between import twice\n@kernel\ndef found(x):\n    return twice(x)\n"
        "print(found(1), sum(found.stats.cache_hits.values()))\n"
    )
    printed = []
    for added in (1, 1, 100):
        if not printed or added == 100:
            called.write_text(f"{header}@kernel\ndef more(x):\n    return x + {added}\n")
        printed.append(
            subprocess.run(
                [sys.executable, "calls.py"],
                cwd=tmp_path,
                capture_output=True,
                text=True,
                check=True,
            ).stdout.split()
        )
    assert printed == [["3", "0"], ["3", "1"], ["201", "0"]]
