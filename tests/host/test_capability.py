"""Value tests: what a record needs is looked for here, and named with a fix where it is missing."""

from __future__ import annotations

import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
import yaml
from typer.testing import CliRunner

from recd_plugins.cli.main import app
from recd_plugins.config import Config
from recd_plugins.errors import CapabilityError
from recd_plugins.registry.capability import check_gpus, check_needs, resolve_device
from recd_plugins.slots import CacheRecord, Context

without_cuda = pytest.mark.skipif(torch.cuda.is_available(), reason="torch sees a GPU here")
with_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU here")


def build(config: Config, context: Context) -> None: ...


def record(*needs: str) -> CacheRecord[Any]:
    return CacheRecord(name="hot", summary="Hot rows.", config=Config, build=build, needs=needs)


def check(
    *needs: str,
    device: Literal["auto", "cpu", "cuda"] = "cpu",
    filled: Collection[str] = ("cache",),
) -> None:
    check_needs(record(*needs), device, filled, "cache", "pkg-a 1.0")


def test_what_is_there_is_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check()
    check(
        "import:json", "import:json.decoder", "slot:cache", "slot:model", filled=["model", "cache"]
    )
    # A link, since nothing that lies in a temporary folder mounted noexec is a program.
    (tmp_path / "a-program").symlink_to(sys.executable)
    monkeypatch.setenv("PATH", str(tmp_path))
    check("command:a-program")


@pytest.mark.parametrize(
    ("needs", "says"),
    [
        (["import:no_such"], "the package 'no_such', which is not installed. Install it with pip."),
        (["import:no.such"], "the package 'no.such', which is not installed."),
        (["import:json.no_such"], "the package 'json.no_such', which is not installed."),
        (["import:json", "command:no-such"], "the program 'no-such', which is not on PATH."),
        (["slot:tier"], "the slot 'tier' filled too. Add `tier:` to registry.yaml."),
        (["gpu"], "'gpu', which is no capability that the host knows"),
        (["slots:tier"], "'slots:tier', which is no capability that the host knows"),
        ([""], "'', which is no capability that the host knows"),
    ],
)
def test_the_first_lack_is_named_with_who_and_how(needs: list[str], says: str) -> None:
    with pytest.raises(CapabilityError) as caught:
        check(*needs)
    assert str(caught.value).startswith(f"cache: cache 'hot' of pkg-a 1.0 needs {says}")


def test_a_lack_is_looked_for_and_nothing_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "raises_if_imported.py").write_text("raise RuntimeError('imported')\n")
    monkeypatch.syspath_prepend(tmp_path)
    check("import:raises_if_imported")


def test_cuda_is_what_training_runs_on() -> None:
    with pytest.raises(CapabilityError, match="needs a CUDA device, but training runs on the CPU"):
        check("cuda", device="cpu")  # with a GPU in the machine too


@without_cuda
def test_without_a_gpu_cuda_cannot_be_asked_for() -> None:
    assert resolve_device("auto") == "cpu"
    with pytest.raises(CapabilityError, match=r"torch sees no CUDA.*Set train.device=cpu"):
        resolve_device("cuda")
    with pytest.raises(CapabilityError, match="but training runs on the CPU"):
        check("cuda", device="auto")
    with pytest.raises(CapabilityError, match="torch sees no CUDA device here"):
        check("cuda", device="cuda")


@with_cuda
def test_with_a_gpu_auto_takes_it() -> None:
    assert resolve_device("auto") == resolve_device("cuda") == "cuda"
    check("cuda", device="auto")


def test_a_job_of_more_ranks_than_gpus_ends_before_its_data_are_prepared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    check_gpus(1)
    values = {
        "plugins": ["recd_dlrm"],
        "folder": str(tmp_path / "data"),
        "dataset": {"use": "sessions", "samples": 1_000},
        "model": {"use": "dlrm"},
        "train": {"ranks": 2, "run": str(tmp_path / "run")},
    }
    (tmp_path / "registry.yaml").write_text(yaml.safe_dump(values))
    done = CliRunner().invoke(app, ["train", "--registry", str(tmp_path / "registry.yaml")])
    assert done.exit_code == 2
    assert "train.ranks: 2 ranks of this machine train on CUDA, and torch sees 1 GPU here" in (
        " ".join(done.output.split())
    )
    assert [one.name for one in tmp_path.iterdir()] == ["registry.yaml"]


def test_the_cpu_is_always_there() -> None:
    assert resolve_device("cpu") == "cpu"
