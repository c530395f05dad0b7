"""Value tests: which packages recd-plugins lacks, and which are not as it asks for them."""

from __future__ import annotations

import pytest

from recd_plugins.compat import packages
from recd_plugins.compat.packages import check_packages
from recd_plugins.errors import VersionError


def test_an_environment_of_the_lock_lacks_nothing() -> None:
    assert int(check_packages().split()[0]) > 10


def test_what_is_missing_or_too_old_is_named_with_the_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = ["pluggy>=99", "no-such-package", "numpy", 'pyspark>=99; extra == "spark"']
    monkeypatch.setattr(packages, "requires", lambda _: asked)
    with pytest.raises(VersionError) as caught:
        check_packages()
    said = str(caught.value)
    assert "needs pluggy>=99, but here is 1." in said
    assert "no-such-package, but it is not here. " in said
    assert said.endswith("Install: pip install 'pluggy>=99' 'no-such-package'")
    assert "numpy" not in said
    assert "pyspark" not in said


def test_a_folder_that_is_not_installed_asks_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "DISTRIBUTION", "not-installed-at-all")
    assert check_packages().startswith("0 ")
