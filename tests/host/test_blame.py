"""Value tests: an error that nobody expected names the stranger's plugin that it came from."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import typer

from recd_plugins.cli.reported import reported
from recd_plugins.cli.train import _summary
from recd_plugins.errors import PluginError, RecdError, naming
from recd_plugins.hooks import blame
from recd_plugins.hooks.blame import blamed, raised_by
from recd_plugins.hooks.catalog import Catalog
from recd_plugins.storage.whole_file import of_path

FAULTY = """
import signal

import torch
from recd_plugins.api import Config, PoolingRecord, hookimpl


class Faulty(torch.nn.Module):
    def forward(self, what):
        every = {"own": self.own, "torch": self.called, "host": self.deep, "disk": self.full}
        ends = {"ends": self.ends, "odd": self.odd, "stops": self.stops, "waits": self.waits}
        return {**every, **ends, "yields": self.yields}[what]()

    def own(self):
        raise KeyError("history")

    def called(self):
        return torch.nn.functional.linear(torch.ones(2, 3), torch.ones(2, 2))

    def deep(self):
        from recd_plugins.errors import nearest

        return nearest(None, ["a"])

    def full(self):
        raise OSError(28, "No space left on device", "x")

    def ends(self):
        raise SystemExit(0)

    def stops(self):
        raise KeyboardInterrupt

    def yields(self):
        yield next(iter(()))

    def waits(self):
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            signal.raise_signal(signal.SIGINT)
        finally:
            signal.signal(signal.SIGINT, before)

    def odd(self):
        class Odd(BaseException): ...
        raise Odd


@hookimpl
def recd_pooling():
    build = lambda config, context: lambda dim: Faulty()
    return [PoolingRecord(name="faulty", summary="It is wrong.", config=Config, build=build)]
"""


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], object]:
    """The module of a plugin of a stranger's, which fails in the way that it is told."""
    folder = tmp_path_factory.mktemp("plugins")
    (folder / "faulty_plugin.py").write_text(FAULTY)
    catalog = Catalog(["recd_dlrm", "./faulty_plugin.py"], folder)
    made: Callable[[str], object] = catalog.find("pooling", "faulty").record.build(None, None)(4)
    return made


def raised(call: Callable[[], object]) -> Exception:
    with pytest.raises(Exception) as caught:  # whatever it raises
        call()
    assert isinstance(caught.value, Exception)
    return caught.value


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ("own", "raised KeyError in Faulty.own (faulty_plugin.py:"),
        ("torch", "raised RuntimeError in Faulty.called (faulty_plugin.py:"),
    ],
)
def test_the_innermost_frame_of_a_plugin_is_named(
    how: str, says: str, faulty: Callable[[str], object], capsys: pytest.CaptureFixture[str]
) -> None:
    said = blamed(raised(lambda: faulty(how)))
    assert said is not None
    assert said.startswith("plugin './faulty_plugin.py' (./faulty_plugin.py) ")
    assert says in said
    assert said.endswith("Run recd with --debug for its traceback.")
    with pytest.raises(typer.Exit) as ended, reported(debug=False):
        faulty(how)
    assert ended.value.exit_code == 2
    assert capsys.readouterr().err == f"error: {said}\n"


BESIDE = """
import {module}
from recd_plugins.api import Config, PoolingRecord, hookimpl

@hookimpl
def recd_pooling():
    build = lambda config, context: lambda dim: lambda: {module}.Bad(dim)()
    return [PoolingRecord(name="{name}", summary="It is wrong.", config=Config, build=build)]
"""
BAD = """
class Bad:
    def __init__(self, dim):
        self.dim = dim

    def __call__(self):
        raise ValueError("oh no")
"""


def test_a_frame_in_a_module_beside_a_plugins_own_is_the_plugins(site: Path) -> None:
    for name in ("blamed_one", "blamed_two"):
        (site / f"{name}.py").write_text(BESIDE.format(module="blamed_beside", name=name))
    (site / "blamed_beside.py").write_text(BAD)
    package = site / "blamed_pkg"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "hooks.py").write_text(BESIDE.format(module="blamed_pkg.impl", name="blamed_three"))
    (package / "impl.py").write_text(BAD)
    catalog = Catalog(["./blamed_one.py", "./blamed_two.py", "blamed_pkg.hooks"], site)
    for name, plugin, file in (
        ("blamed_one", "./blamed_one.py", "blamed_beside.py"),
        ("blamed_two", "./blamed_two.py", "blamed_beside.py"),
        ("blamed_three", "blamed_pkg.hooks", "impl.py"),
    ):
        made: Any = catalog.find("pooling", name).record.build(None, None)
        said = blamed(raised(made(4)))
        assert said is not None
        assert said.startswith(
            f"plugin {plugin!r} ({plugin}) raised ValueError in Bad.__call__ ({file}:7): oh no."
        )
    alone = sys.modules["blamed_beside"].Bad(4)  # as torch has it, long after
    said = blamed(raised(alone))
    assert said is not None
    assert said.startswith("plugin './blamed_one.py' ")


def test_a_generator_that_ends_by_stop_iteration_is_named_whoever_asked_it(
    faulty: Callable[[str], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error is raised where its next one is asked for: by another plugin."""
    monkeypatch.setitem(blame._imported, Path(__file__), blame._Plugin("asks", None, frozenset()))
    error = raised(lambda: list(faulty("yields")))  # type: ignore[call-overload]
    by = raised_by(error)
    assert by is not None
    assert by.plugin == "./faulty_plugin.py"
    assert by.place.startswith("Faulty.yields (faulty_plugin.py:")
    said = blamed(error)
    assert said is not None
    assert said.startswith(
        "plugin './faulty_plugin.py' (./faulty_plugin.py) raised RuntimeError in "
    )


@pytest.mark.parametrize("how", ["ends", "odd", "stops"])
def test_no_plugin_ends_a_command_in_silence(
    how: str, faulty: Callable[[str], object], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(typer.Exit) as ended, reported(debug=False):
        faulty(how)
    assert ended.value.exit_code == 2
    name = {"ends": "SystemExit", "odd": "Odd", "stops": "KeyboardInterrupt"}[how]
    said = f"error: plugin './faulty_plugin.py' (./faulty_plugin.py) raised {name} in Faulty.{how} "
    assert capsys.readouterr().err.startswith(said)
    with pytest.raises(SystemExit), reported(debug=False):
        sys.exit(0)  # not a plugin's line
    with pytest.raises(KeyboardInterrupt), reported(debug=False):
        faulty("waits")  # by Ctrl-C


def test_a_name_that_is_no_text_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit), reported(debug=False):
        pa.OSFile(os.fsdecode(os.fsencode(tmp_path) + b"/a\xfe.parquet"))
    assert "a\\udcfe.parquet': this name is no text of UTF-8. Rename it." in capsys.readouterr().err


def test_a_defect_of_ours_keeps_its_traceback(faulty: Callable[[str], object]) -> None:
    error = raised(lambda: faulty("host"))
    assert blamed(error) is None
    with pytest.raises(type(error)), reported(debug=False):
        faulty("host")
    assert (
        blamed(raised(lambda: [][1])) is None
    )  # nor is a plugin blamed for what it has no part in


def test_what_the_system_refuses_is_no_plugins_fault(
    faulty: Callable[[str], object], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(typer.Exit), reported(debug=False), naming("dataset: mine", "when asked"):
        faulty("disk")
    assert capsys.readouterr().err.startswith("error: x: No space left on device. Name another")


def test_what_torch_says_of_its_own_frames_is_left_out() -> None:
    def fail() -> None:
        with naming("pooling: mine", "when asked"):
            raise TypeError("too large.\nException raised from unpack at a.h:79:\nframe #0: c10")

    error = raised(fail)
    assert isinstance(error, PluginError)
    assert str(error) == (
        "pooling: mine raised TypeError when asked: too large. Run recd with --debug for its "
        "traceback."
    )


def test_a_full_disk_is_named_once_and_by_the_path_that_was_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    full = OSError(28, "Error writing bytes to file. Detail: [errno 28] No space left on device")
    for asked, path in ((of_path(tmp_path), f"{tmp_path}: "), (nullcontext(), "")):
        with pytest.raises(typer.Exit), reported(debug=False), asked:
            raise OSError(*full.args)
        said = capsys.readouterr().err
        assert said.startswith(f"error: {path}No space left on device. Name another path, or check")


def test_a_run_that_ended_without_a_summary_did_not_end(tmp_path: Path) -> None:
    with pytest.raises(
        RecdError, match="all ranks ended with exit code 0, but none left a summary"
    ):
        _summary(tmp_path)
    (tmp_path / "summary.json").write_text('{"step": 3}')
    assert _summary(tmp_path) == {"step": 3}
