"""Value tests: which build of torch lies here, whether it loads, and what to do where not."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer import Exit
from typer.testing import CliRunner

from recd_plugins.cli import doctor
from recd_plugins.cli.doctor import _registry
from recd_plugins.cli.main import app
from recd_plugins.cli.reported import reported
from recd_plugins.compat import build
from recd_plugins.compat.build import Build, NoDriverError, check_build, installed_build
from recd_plugins.errors import PluginError, RecdError, RegistryError, VersionError
from recd_plugins.hooks.catalog import Catalog

CPU, CUDA = Build("2.13.0+cpu", None), Build("2.13.0", "13.0")


def loads() -> None:
    """It does."""


def no_cudnn() -> None:
    raise ImportError("libcudnn.so.9: cannot open shared object file: No such file or directory")


def no_driver() -> None:
    """As fbgemm's build for CUDA on a machine without NVIDIA's driver."""
    try:
        raise OSError(
            "libnvidia-ml.so.1: cannot open shared object file: No such file or directory"
        )
    except OSError as error:
        raise OSError("Could not load this library: fbgemm_gpu_py.so") from error


@pytest.mark.parametrize(("found", "target"), [(CPU, "cpu"), (CUDA, "cuda"), (CUDA, "cpu")])
def test_what_loads_is_fit(found: Build, target: str) -> None:
    """On the CPU, CUDA's build with its libraries too."""
    check_build(found, target, load=loads)


def test_a_build_without_its_libraries_is_reported_with_the_wheel_to_get() -> None:
    with pytest.raises(VersionError) as caught:
        check_build(CUDA, "cpu", load=no_cudnn)
    where = "{}.{}".format(*sys.version_info)
    for part in (
        "Here is torch 2.13.0, built for CUDA 13.0, and it does not load: libcudnn.so.9",
        "torch 2.13.0+cpu, which is on https://download.pytorch.org/whl/cpu",
        f"the wheel for Python {where}",
        "PIP_FIND_LINKS=its-folder make",
        "make PYTHON=python3.11",
    ):
        assert part in str(caught.value)


def test_the_cpus_build_is_none_for_cuda() -> None:
    with pytest.raises(VersionError, match=r"built for the CPU, and the target is cuda\."):
        check_build(CPU, "cuda", load=loads)


def test_cudas_build_is_whole_where_the_driver_alone_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`make` goes on by the exit code, on a node without devices and where an image is built."""
    monkeypatch.setattr(build, "installed_build", lambda: CUDA)
    monkeypatch.setattr(build, "check_versions", lambda found: None)
    monkeypatch.setattr(build.check_build, "__kwdefaults__", {"load": no_driver})
    with pytest.raises(SystemExit) as ended:
        build.main("cuda")
    makefile = (Path(__file__).parents[2] / "Makefile").read_text()
    assert "compat.build $(TARGET) \\\n" in makefile
    assert f"|| test $$? = {ended.value.code}\n" in makefile
    printed = capsys.readouterr()
    assert "this machine lacks the driver's libnvidia-ml.so.1" in printed.out
    assert "torch 2.13.0+cpu" not in printed.out


def test_a_missing_driver_is_named_with_both_ways_out() -> None:
    """To `recd doctor`, which knows no target."""
    with pytest.raises(NoDriverError) as caught:
        check_build(CUDA, load=no_driver)
    assert "lacks the driver's libnvidia-ml.so.1. Where nvidia-smi runs" in str(caught.value)
    assert "torch 2.13.0+cpu" in str(caught.value)
    with pytest.raises(VersionError, match=r"fbgemm_gpu_py\.so: there is no libnvidia-ml\.so\.1\n"):
        check_build(CUDA, "cpu", load=no_driver)


def test_a_command_names_the_library_that_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(Exit), reported(debug=False):
        no_driver()
    assert capsys.readouterr().err == (
        "error: Could not load this library: fbgemm_gpu_py.so: there is no libnvidia-ml.so.1. "
        "recd doctor says whether torch loads here, and what to do.\n"
    )


WHERE = r"on import: no module b: there is no liba\.so\.1 \(asks_for_a_library\.py:4\)\. Run"


def test_so_does_a_plugin_that_is_not_imported(tmp_path: Path) -> None:
    (tmp_path / "asks_for_a_library.py").write_text(
        "try:\n    raise OSError('liba.so.1: cannot open shared object file')\n"
        "except OSError as error:\n    raise ImportError('no module b') from error\n"
    )
    with pytest.raises(PluginError, match=WHERE):
        Catalog(["./asks_for_a_library.py"], tmp_path)


@pytest.mark.slow
def test_what_is_installed_here_loads() -> None:
    """Asked as `make` asks."""
    target = "cuda" if installed_build().cuda else "cpu"
    asked = [sys.executable, "-m", "recd_plugins.compat.build", target]
    assert subprocess.run(asked, check=True, capture_output=True).stdout == b""


def test_a_build_is_read_where_torch_does_not_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = tmp_path / "torch"
    torch.mkdir()
    (torch / "__init__.py").write_text("raise ImportError('libcudnn.so.9')\n")
    (torch / "version.py").write_text("__version__ = '2.13.0'\ncuda: str = '13.0'\n")
    script = "from recd_plugins.compat.build import main; main('cpu')"
    paths = [str(tmp_path), *sys.path]
    script = f"import sys; sys.path[:0] = {paths}; {script}"
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert found.returncode == 1
    assert "torch 2.13.0, built for CUDA 13.0, and it does not load: libcudnn.so.9" in found.stderr
    assert "Traceback" not in found.stderr


def test_doctor_fails_for_a_registry_that_was_named_and_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(RegistryError, match=r"nowhere\.yaml: there is no such registry. Name one"):
        _registry(tmp_path / "nowhere.yaml")


@pytest.mark.parametrize(
    ("seconds", "silent"), [((0.9,), False), ((7.0, 0.1), False), ((5.0, 4.0), True)]
)
def test_doctor_names_a_name_server_that_is_silent_twice(
    seconds: tuple[float, ...], silent: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once may be the machine, that was busy."""
    clock, answers = [0.0], iter(seconds)

    def waits(address: object, flags: int) -> None:
        assert address == ("::ffff:127.0.0.1", 0, 0, 0)
        clock[0] += next(answers)
        raise OSError("Temporary failure in name resolution")

    monkeypatch.setattr(socket, "getnameinfo", waits)
    with monkeypatch.context() as patched:
        patched.setattr("time.monotonic", lambda: clock[0])
        said = reason_of(doctor._names)
    assert ("it took 4.0 s" in said) == silent
    assert ("Put `::ffff:127.0.0.1 localhost` into /etc/hosts, or" in said) == silent
    assert ("at once" in said) != silent
    assert not [*answers]


def reason_of(check: Callable[[], str]) -> str:
    """What a check says, be it well or not."""
    try:
        return check()
    except RecdError as error:
        return str(error)


@pytest.mark.slow
def test_doctor_names_what_a_shell_still_has_of_another_job(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    assert "starts the ranks itself" in doctor._launcher()
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(RecdError, match=r"WORLD_SIZE is 4, but RANK is not set.*unset WORLD_SIZE"):
        doctor._launcher()
    monkeypatch.setenv("RANK", "3")
    with pytest.raises(RecdError, match=r"LOCAL_RANK is not set.*unset RANK"):
        doctor._launcher()
    for name, value in {"LOCAL_RANK": "1", "MASTER_ADDR": "head", "MASTER_PORT": "29500"}.items():
        monkeypatch.setenv(name, value)
    said = doctor._launcher()
    assert "rank 3 alone here, and meets the others at head:29500" in said
    assert "unset RANK WORLD_SIZE" in said


def test_doctor_names_a_torch_that_does_not_load(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "installed_build", lambda: CUDA)
    monkeypatch.setattr(build.check_build, "__kwdefaults__", {"load": no_cudnn})
    found = CliRunner().invoke(app, ["doctor", "--ranks", "1"])
    assert found.exit_code == 2
    (line,) = [line for line in found.output.splitlines() if "build" in line[:12]]
    assert line.startswith("FAIL  build")
    assert "does not load: libcudnn.so.9" in line
