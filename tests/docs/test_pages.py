"""Rung 1 (values): what pages name is there: headings, options, records, names, files, tests."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from recd_plugins.cli.main import app
from recd_plugins.describe import options_of
from recd_plugins.hooks.catalog import Catalog
from recd_plugins.planning.cluster.topology import Topology
from recd_plugins.registry import Registry
from recd_plugins.registry.settings import TrainSettings
from recd_plugins.slots import SLOTS

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md")])
LINK = re.compile(r"\]\(([^)#:\s]*)#([^)\s]+)\)")
CODE = re.compile(r"```(?:sh|bash|console)\n(.*?)```|`([^`\n]+)`", flags=re.DOTALL)
FENCED = re.compile(r"^```.*?^```", flags=re.DOTALL | re.MULTILINE)


@functools.cache
def anchors(page: Path) -> set[str]:
    """What GitHub makes of a page's headings: lower case, words joined by hyphens."""
    headings = re.findall(r"^#+ (.+)$", FENCED.sub("", page.read_text()), flags=re.MULTILINE)
    plain = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings)
    return {heading.strip().replace(" ", "-") for heading in plain}


@functools.cache
def links() -> dict[str, list[tuple[str, str]]]:
    """Target and anchor of the links of each page that has some."""
    found = {str(page.relative_to(ROOT)): LINK.findall(page.read_text()) for page in PAGES}
    return {page: each for page, each in found.items() if each}


def test_there_are_links_to_check() -> None:
    assert links()


@pytest.mark.parametrize("page", links())
def test_every_anchor_is_a_heading(page: str) -> None:
    path = ROOT / page
    for target, anchor in links()[page]:
        assert anchor in anchors(path.parent / target if target else path)


@functools.cache
def options() -> dict[str, set[tuple[str, str]]]:
    """Command and option, wherever a page writes `recd ... --option`, by page."""
    found = {
        str(page.relative_to(ROOT)): {
            (line[:end].strip(), option)
            for block, inline in CODE.findall(page.read_text())
            for line in re.findall(r"^(?:\$ )?recd (.*)$", block or inline, flags=re.MULTILINE)
            for end in [re.match(r"[a-z ]*", line).end()]  # type: ignore[union-attr]
            for option in re.findall(r"(?<!\S)--[a-z][a-z-]*", line.split("#")[0])
        }
        for page in PAGES
    }
    return {page: each for page, each in found.items() if each}


@functools.cache
def help_of(command: str) -> str:
    """`recd plugins NAME` is short for `recd plugins show NAME`."""
    words = ["plugins", "show"] if command == "plugins" else command.split()
    return CliRunner().invoke(app, [*words, "--help"], env={"COLUMNS": "300"}).output


@pytest.mark.parametrize("page", options())
def test_every_option_that_a_page_names_exists(page: str) -> None:
    for command, option in sorted(options()[page]):
        named = f"{page} names `recd {command} {option}`"
        assert re.search(rf"{option}\b", help_of(command)), named


WRITTEN_BY_HAND = [page for page in PAGES if page.name not in ("CHANGELOG.md", "RESULTS.md")]
PLUGINS = ["recd_dlrm", "recd_dedup", "recd_dsi", "recd_flexshard", "recd_scars"]
ENTRY_POINTS = {"recd_plugins.commands"}
"""Groups of entry points that are called as modules are."""
FOLDERS = [ROOT, *(ROOT / one for one in ("src/recd_plugins", "plugins", "docs", "examples"))]
FOLDERS += sorted(ROOT.glob("plugins/recd_*"))
"""The folders that the paths of pages start from."""
MEASURED = "topology.yaml"
"""What `recd topology measure` writes."""
BESIDE = {"use", "others", "features"}
"""What stands beside the options of a record."""


def inline(text: str) -> Iterator[str]:
    """The code within sentences, each on one line."""
    for code in re.findall(r"`([^`]+)`", FENCED.sub("", text)):
        yield " ".join(code.split())


def fenced(text: str, *languages: str) -> Iterator[str]:
    for language, block in re.findall(r"^```(\w*)\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        if language in languages:
            yield block


@functools.cache
def options_by_slot() -> dict[str, dict[str, set[str]]]:
    """Slot to record to options, of all built-in plugins; of what has no record under ''."""
    catalog = Catalog(PLUGINS, ROOT)
    found = {
        slot: {
            claim.record.name: {option.name for option in options_of(claim.record.config)}
            for claim in catalog.of(slot)
        }
        for slot in SLOTS
    }
    for key, config in (("train", TrainSettings), ("topology", Topology)):
        found[key] = {"": {option.name for option in options_of(config)}}
    return found


def snippets(text: str) -> Iterator[Mapping[str, Any]]:
    """The parts of a registry that a page shows: blocks of YAML, and `slot: {...}` in sentences."""
    for code in [*fenced(text, "yaml"), *inline(text)]:
        if not re.match(r"(?:#.*\n)*\s*(\w+): ", code) or re.match(r"\w+: .* = ", code):
            continue  # the latter is a field of a record, with its default
        try:
            read = yaml.safe_load(code)
        except yaml.YAMLError:
            continue
        if isinstance(read, dict) and read.keys() <= {*options_by_slot(), "plugins", "strict"}:
            yield read


def choices(slot: str, value: Any) -> Iterator[tuple[str, set[str]]]:
    """The records that a snippet chooses for a slot, each with its options; not placeholders."""
    if slot == "pooling" and isinstance(value, dict):
        value = list(value.values())
    for one in value if isinstance(value, list) else [value]:
        if isinstance(one, dict) and one.get("use", "name") != "name":
            yield one["use"], {*one} - BESIDE
        elif isinstance(one, str) and "." not in one and slot not in ("train", "topology"):
            yield one, set()


@pytest.mark.parametrize("page", WRITTEN_BY_HAND, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_registry_that_a_page_shows_names_what_there_is(page: Path) -> None:
    """But for records that the page itself writes."""
    text, known = page.read_text(), options_by_slot()
    own = set(re.findall(r'name="(\w+)"', text)) | {"my_planner", "tastes", "decay"}
    own |= {path.stem for path in ROOT.glob("examples/*.py")}
    for snippet in snippets(text):
        for slot, value in snippet.items():
            if slot in ("train", "topology"):
                given = {*value} - BESIDE if isinstance(value, dict) else set()
                assert given <= known[slot][""], f"{slot}: {value}"
            elif slot in known:
                for name, given in choices(slot, value):
                    assert name in known[slot].keys() | own, f"{slot}: {value}"
                    assert given <= known[slot].get(name, given), f"{slot}: {value}"


@pytest.mark.parametrize("page", WRITTEN_BY_HAND, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_registry_that_a_page_shows_loads(page: Path) -> None:
    """A part of one does too; not by files and plugins that the page has its reader make."""
    for block in fenced(page.read_text(), "yaml"):
        for read in yaml.safe_load_all(block):
            slots = isinstance(read, dict) and read.keys() <= {*options_by_slot(), "plugins"}
            if not slots or read.get("topology") == MEASURED:
                continue
            if {*read.get("plugins", ())} <= {*PLUGINS}:
                assert Registry.load({"plugins": PLUGINS, **read}, folder=ROOT)


@pytest.mark.parametrize("page", WRITTEN_BY_HAND, ids=lambda page: str(page.relative_to(ROOT)))
def test_an_option_that_a_page_names_with_its_slot_exists(page: Path) -> None:
    """As `train.steps` or `topology.mapped_ns`; or an option of a record that the page writes."""
    text, known = page.read_text(), options_by_slot()
    own = {name for block in fenced(text, "python", "yaml") for name in re.findall(r"\w+", block)}
    for code in inline(text):
        for slot, option in re.findall(r"(?<![\w./])(\w+)\.(\w+)\b(?![(/])", code):
            if slot in known and slot != "pooling" and option not in ("md", "yaml", "py", "json"):
                every = set[str]().union({"use"}, *known[slot].values())
                assert option in every | BESIDE | own, f"{slot}.{option} in `{code}`"


@pytest.mark.parametrize("page", WRITTEN_BY_HAND, ids=lambda page: str(page.relative_to(ROOT)))
def test_what_a_page_imports_can_be_imported(page: Path) -> None:
    """Whole blocks of Python are Python, and names of ours are where a block or a sentence says."""
    text = page.read_text()
    for block in fenced(text, "python"):
        tree = ast.parse(block if not block.startswith(" ") else f"if 1:\n{block}")
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("recd_"):
                module = import_module(node.module or "")
                for one in node.names:
                    assert hasattr(module, one.name), f"{node.module}.{one.name}"
    ours = "|".join(["recd_plugins", *PLUGINS])
    for path in set(re.findall(rf"`((?:{ours})(?:\.\w+)+)`", text)) - ENTRY_POINTS:
        parent, _, name = path.rpartition(".")
        if not hasattr(import_module(parent), name):
            import_module(path)


@pytest.mark.parametrize("page", WRITTEN_BY_HAND, ids=lambda page: str(page.relative_to(ROOT)))
def test_files_and_tests_that_a_page_names_are_there(page: Path) -> None:
    text = page.read_text()
    short = dict(re.findall(r"`(\w+)`\s+is\s+`(tests/[\w/]+\.py)`", text))
    for file, test in re.findall(r"`([\w/.]+)::(\w+)`", text):
        assert f"def {test}(" in (ROOT / short.get(file, file)).read_text(), f"{file}::{test}"
    here = page.parent if (page.parent / "pyproject.toml").exists() else ROOT
    for code in [*inline(text), *fenced(text, "sh", "console")]:
        for file in re.findall(r"(?<![\w/.-])([\w-]+/[\w./-]*\.(?:py|md|sh|toml))\b", code):
            written = f"# {file}" in text  # by the reader, as the page says
            folders = [one for one in (here, *FOLDERS) if (one / file.split("/")[0]).is_dir()]
            assert written or not folders or any((one / file).exists() for one in folders), file
        for module in re.findall(r"python -m (benchmarks[\w.]*)", code):
            path = ROOT / module.replace(".", "/")
            assert path.with_suffix(".py").exists() or (path / "__main__.py").exists(), module
