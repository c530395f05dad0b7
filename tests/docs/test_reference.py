"""Value tests: the docs say what the docstrings say, and every name and link in them holds."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from recd_plugins.cli.main import app
from recd_plugins.hooks.specs import HOOKS
from recd_plugins.slots import SLOTS

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md")])


@pytest.fixture(scope="module")
def reference() -> object:
    sys.path.insert(0, str(ROOT / "docs"))
    try:
        import reference
    finally:
        sys.path.remove(str(ROOT / "docs"))
    return reference


@pytest.mark.parametrize("page", ["slots", "train"])
def test_the_reference_is_written_anew_when_docstrings_change(page: str, reference: object) -> None:
    written = (ROOT / f"docs/{page}.md").read_text()
    assert written == getattr(reference, f"{page}_page")(), "run: python docs/reference.py"


def test_every_slot_and_hook_has_its_place() -> None:
    text = (ROOT / "docs/slots.md").read_text()
    for slot, record in SLOTS.items():
        assert f"\n## {slot}\n" in text
        assert record.__name__ in text
    for hook in HOOKS:
        assert f"`{hook}()`" in text


def _code_blocks(page: Path) -> list[str]:
    return re.findall(r"```(?:sh|bash|console)?\n(.*?)```", page.read_text(), flags=re.DOTALL)


def _commands(pattern: str) -> list[tuple[str, str]]:
    found = []
    for page in PAGES:
        text = (
            "\n".join(_code_blocks(page))
            + "\n"
            + "\n".join(re.findall(r"`([^`\n]+)`", page.read_text()))
        )
        found += [(str(page.relative_to(ROOT)), match) for match in re.findall(pattern, text)]
    return sorted(set(found))


@pytest.mark.parametrize(("page", "command"), _commands(r"(?:^|\s)recd ((?:data )?[a-z]+)\b"))
def test_every_recd_command_that_the_docs_name_exists(page: str, command: str) -> None:
    result = CliRunner().invoke(app, [*command.split(), "--help"])
    assert result.exit_code == 0, f"{page} names `recd {command}`"


@pytest.mark.parametrize(("page", "target"), _commands(r"(?:^|\s)make ([a-z]+)\b"))
def test_every_make_target_that_the_docs_name_exists(page: str, target: str) -> None:
    makefile = (ROOT / "Makefile").read_text()
    assert f"\n{target}:" in makefile, f"{page} names `make {target}`"


def _links() -> list[tuple[str, str]]:
    return [
        (str(page.relative_to(ROOT)), link)
        for page in PAGES
        for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text())
    ]


@pytest.mark.parametrize(("page", "link"), _links())
def test_every_link_leads_somewhere(page: str, link: str) -> None:
    assert (ROOT / page).parent.joinpath(link).exists()


def test_the_readme_runs_what_ci_runs() -> None:
    assert "make test" in (ROOT / "README.md").read_text()
    assert "make test" in (ROOT / ".ci/run").read_text()
