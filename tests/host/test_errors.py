"""Value tests: what a message says of what a user wrote."""

from __future__ import annotations

from pathlib import Path

import pytest

from recd_plugins.errors import DataError, RecdError, RegistryError, cure_of, listed, nearest


@pytest.mark.parametrize("kind", [RecdError, DataError, RegistryError])
def test_no_word_of_a_message_is_shown_whole_that_is_too_long(kind: type[RecdError]) -> None:
    message = str(kind(f"feature {'x' * 5_000} is not there; Known: item."))
    assert message == f"feature {'x' * 100}[4,800 characters]{'x' * 100} is not there; Known: item."


def test_where_something_lies_in_a_registry_opens_its_message() -> None:
    assert str(RegistryError("is negative.", "train.steps")) == "train.steps: is negative."


def test_what_stands_behind_a_semicolon_goes_on() -> None:
    assert nearest("exact", []) == "there are none to choose from."


ODD = "item\n\x1b[2Jerror: \u202e\x9b\r"
SHOWN = r"item\n\x1b[2Jerror: \u202e\x9b\r"


def test_a_terminal_obeys_nothing_that_a_user_wrote() -> None:
    assert str(DataError(f"{ODD} is not é.\n\tFix it.")) == (
        "item\n" + SHOWN.removeprefix(r"item\n") + " is not é.\n\tFix it."
    )


def test_names_in_a_list_stay_on_its_line() -> None:
    assert listed([ODD, "user"], kind="column") == f"columns {SHOWN}, user"
    assert nearest("other", [ODD]) == f"Known: {SHOWN}."


def test_a_link_that_leads_to_itself_is_no_defect(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(link)
    with pytest.raises((RuntimeError, OSError)) as caught:
        link.resolve(strict=True)
    assert cure_of(caught.value).startswith("Name another path")
