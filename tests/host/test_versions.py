"""Value tests: which torch, fbgemm and torchrec belong together."""

from __future__ import annotations

from pathlib import Path

import pytest

import recd_plugins as rp
from recd_plugins.compat.versions import check_age, check_versions, installed_versions
from recd_plugins.errors import VersionError


def trio(torch: str, fbgemm: str, torchrec: str, kind: str = "fbgemm-gpu-cpu") -> dict[str, str]:
    return {"torch": torch, kind: fbgemm, "torchrec": torchrec}


@pytest.mark.parametrize(
    "found",
    [
        trio("2.10.0", "1.5.0", "1.5.1"),
        trio("2.12.0", "1.7.0", "1.7.0"),
        trio("2.13.0+cpu", "1.8.0", "1.8.0"),
        trio("2.13.1+cu126", "1.8.2", "1.8.0", "fbgemm-gpu"),
        trio("2.14.0.dev20260101+cpu", "1.9.0.dev20260101+cpu", "1.9.0.dev20260101+cpu"),
        trio("2.14.0.dev1+cpu", "1.9.0.dev1+cpu", "1.9.0.dev1+cpu", "fbgemm-gpu"),
        trio("2.14.0a0+git0123", "1.9.0.dev20260101", "1.9.0rc1", "fbgemm-gpu"),
    ],
)
def test_versions_that_belong_together(found: dict[str, str]) -> None:
    check_versions(found)


CPU = "pip install --no-deps -r requirements/cpu.txt"
CUDA = "pip install --no-deps -r requirements/cuda.txt"


@pytest.mark.parametrize(
    ("found", "says", "fix"),
    [
        ({}, "torch is not installed.", CPU),
        (
            trio("2.9.1", "1.4.2", "1.4.0"),
            "torchrec 1.4.0 is too old: recd-plugins needs 1.5, which belongs to torch 2.10 and "
            "fbgemm 1.5, or newer ones. ",
            CPU,
        ),
        (
            trio("2.13.0", "1.7.0", "1.8.0"),
            "torch 2.13.0 needs fbgemm-gpu-cpu 1.8 and torchrec 1.8, but here is "
            "fbgemm-gpu-cpu 1.7.0. ",
            CPU,
        ),
        (
            trio("2.13.0", "1.8.0", "1.9.0"),
            "needs fbgemm-gpu-cpu 1.8 and torchrec 1.8, but here is torchrec 1.9.0. ",
            CPU,
        ),
        (
            trio("2.12.0+cu126", "1.8.0", "1.8.0", "fbgemm-gpu"),
            "torch 2.12.0+cu126 needs fbgemm-gpu 1.7 and torchrec 1.7, but here is fbgemm-gpu "
            "1.8.0 and torchrec 1.8.0. ",
            CUDA,
        ),
        (
            {"torch": "2.13.0+cpu"},
            "needs fbgemm-gpu-cpu 1.8 and torchrec 1.8, but here is no fbgemm-gpu-cpu and no "
            "torchrec. ",
            CPU,
        ),
        (
            {"torch": "2.13.0", "fbgemm-gpu": "1.8.0"},
            "needs fbgemm-gpu 1.8 and torchrec 1.8, but here is no torchrec. ",
            CUDA,
        ),
        (
            trio("2.13.0+cpu", "1.8.0", "1.8.0", "fbgemm-gpu"),
            "needs fbgemm-gpu-cpu 1.8 and torchrec 1.8, but here is no fbgemm-gpu-cpu. ",
            CPU,
        ),
        (
            {**trio("2.13.0", "1.8.0", "1.8.0"), "fbgemm-gpu": "1.8.0"},
            "fbgemm-gpu and fbgemm-gpu-cpu are both installed, and overwrite each other's files. "
            "Uninstall both, then: ",
            CUDA,
        ),
        (
            {**trio("2.13.0+cpu", "1.8.0", "1.8.0"), "fbgemm-gpu": "1.8.0"},
            "fbgemm-gpu and fbgemm-gpu-cpu are both installed",
            CPU,
        ),
    ],
)
def test_versions_that_do_not_are_named_with_those_that_would(
    found: dict[str, str], says: str, fix: str
) -> None:
    with pytest.raises(VersionError) as caught:
        check_versions(found)
    assert says in str(caught.value)
    assert str(caught.value).endswith(fix)


def test_what_is_installed_is_reported_and_fits() -> None:
    found = installed_versions()
    assert found.keys() in (
        {"torch", kind, "torchrec"} for kind in ("fbgemm-gpu", "fbgemm-gpu-cpu")
    )
    check_versions(found)


def test_what_is_installed_is_read_from_metadata(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = tmp_path / "torchrec-1.2.3.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: torchrec\nVersion: 1.2.3\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert installed_versions()["torchrec"] == "1.2.3"


@pytest.mark.parametrize("torchrec", ["0.8.0", "1.4.0"])
def test_a_trainer_with_an_old_torchrec_is_told(
    torchrec: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    versions = {"torchrec": torchrec}
    monkeypatch.setattr("recd_plugins.stack.stack.installed_versions", lambda: versions)
    with pytest.raises(VersionError, match=f"torchrec {torchrec} is too old"):
        rp.load({})


def test_a_torchrec_of_another_name_is_left_alone() -> None:
    check_age({"torch": "2.14.0", "torchrec-nightly": "2026.11.1"})
    check_age({"torchrec": "2026.11.1"})
