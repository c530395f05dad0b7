"""Value tests: the locks have what we ask for, once, and a hash for each file of it."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from requirements.refresh import EXTRAS, HERE, TRIO, normal, pins

ROOT = Path(__file__).parents[2]
LOCKS = (*TRIO, "mutants")


@pytest.mark.parametrize("name", LOCKS)
def test_each_package_of_a_lock_has_a_version_and_hashes(name: str) -> None:
    text = (HERE / f"{name}.txt").read_text().replace("\\\n", "")
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    assert len(pins(HERE / f"{name}.txt")) == len(lines) > 0
    for line in lines:
        assert re.fullmatch(r"[a-z0-9-]+===?\S+( +--hash=sha256:[0-9a-f]{64})+", line), line


@pytest.mark.parametrize("target", TRIO)
def test_a_lock_has_all_that_is_asked_for(target: str) -> None:
    """Else somebody added a package and did not run requirements/refresh.py."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *(HERE / "base.in").read_text().splitlines(), *TRIO[target]]
    for extra in EXTRAS:
        wanted += project["optional-dependencies"][extra]
    names = {normal(re.split(r"[ =<>~[]", line)[0]) for line in wanted if line[:1] not in ("", "#")}
    assert names <= set(pins(HERE / f"{target}.txt"))


def test_the_locks_agree() -> None:
    cpu, cuda = (pins(HERE / f"{target}.txt") for target in TRIO)
    assert {name: cpu[name] for name in cpu if name in cuda} == {
        name: cuda[name] for name in cuda if name in cpu
    }


def test_what_is_installed_beside_a_trainers_torch_is_all_that_is_asked_for() -> None:
    """docs/install.md says it by hand, for pip would take another fbgemm with it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = {normal(re.split(r"[ >]", line)[0]) for line in project["dependencies"]}
    lines = (ROOT / "docs/install.md").read_text().splitlines()
    (line,) = (one for one in lines if one.startswith("pip install filelock"))
    assert set(line.split()[2:]) == asked - {"torch", "torchrec"}
