"""Value tests: `recd plugins` lists what is there, also where something is broken or off."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from plugins import POOLING, write_distribution, write_module
from recd_plugins.cli.main import app
from recd_plugins.slots import SLOTS


def plugins(registry: Path, *arguments: str) -> Result:
    return CliRunner().invoke(app, ["plugins", *arguments, "--registry", str(registry)])


def rows(result: Result) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(result.stdout)
    return found


@pytest.fixture
def registry(tmp_path: Path) -> Path:
    """One that enables recd_dlrm alone, in its second line."""
    file = tmp_path / "registry.yaml"
    file.write_text("# mine\nplugins: [recd_dlrm]\n")
    return file


def test_a_record_of_a_plugin_that_is_off_is_shown_with_the_line_that_enables_it(
    registry: Path,
) -> None:
    shown = plugins(registry, "exact")
    assert shown.exit_code == 0
    assert "Equal samples of a group" in shown.stdout
    assert "min_factor" in shown.stdout
    says = f"installed but not enabled; in {registry}:2 write\nplugins: [recd_dlrm, recd_dedup]\n"
    assert says in shown.stdout

    row = json.loads(plugins(registry, "dedup:exact", "--json").stdout)
    assert (row["plugin"], row["enabled"]) == ("recd_dedup", False)

    registry.write_text("plugins: [recd_dlrm, recd_dedup]\n")
    assert "not enabled" not in plugins(registry, "exact").stdout


def test_records_of_one_name_are_one_document_for_machines(registry: Path) -> None:
    registry.write_text("plugins: [recd_dlrm, recd_dedup]\n")
    found = rows(plugins(registry, "sessions", "--json"))
    assert {row["slot"] for row in found} == {"dataset", "stats"}


def test_what_an_enabled_plugin_brings_is_enabled_and_listed_once(registry: Path) -> None:
    """recd_dedup brings recd_dsi."""
    registry.write_text("plugins: [recd_dlrm, recd_dedup]\n")
    assert "not enabled" not in plugins(registry, "sigrid_hash").stdout
    found = rows(plugins(registry, "preprocess", "--json"))
    names = [row["name"] for row in found]
    assert len(set(names)) == len(names)
    assert all(row["enabled"] for row in found)


def test_slots_without_records_are_listed_where_no_class_has_a_text(
    registry: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where PYTHONOPTIMIZE is 2."""
    registry.write_text("plugins: []\n")
    for record in SLOTS.values():
        monkeypatch.setattr(record, "__doc__", None)
    shown = plugins(registry)
    assert (shown.exit_code, shown.exception) == (0, None)
    assert "(none)" in shown.stdout


def test_a_slot_lists_its_records_enabled_or_not(registry: Path) -> None:
    listed = plugins(registry, "dedup")
    assert listed.exit_code == 0
    assert "recd_dedup, not enabled" in " ".join(listed.stdout.split())
    assert "in registry.yaml: dedup: {use: name, option: value}\n" in listed.stdout
    assert "attention" not in listed.stdout

    found = rows(plugins(registry, "sharding", "--json"))
    enabled = {(row["name"], row["enabled"], row["chosen"]) for row in found}
    assert enabled == {("torchrec", True, True), ("flexshard", False, False)}


def test_an_unknown_name_is_met_with_the_nearest_of_all_installed(registry: Path) -> None:
    refused = plugins(registry, "exat")
    assert refused.exit_code == 2
    assert "no installed plugin provides 'exat'; did you mean 'exact'?" in refused.stderr


def test_a_folder_that_is_no_package_is_named(site: Path, registry: Path) -> None:
    """As that of a project, which Python imports where its package is not installed."""
    (site / "shelf" / "src").mkdir(parents=True)
    registry.write_text("plugins: [shelf]\n")
    listed = plugins(registry)
    assert listed.exit_code == 2
    says = f"'shelf' is the folder {site / 'shelf'}, which has no __init__.py: install"
    assert says in listed.stdout.replace("\n", " ")


def test_a_broken_plugin_blanks_nothing(site: Path, registry: Path) -> None:
    write_distribution(site, "pkg-a", "1.0", "well", POOLING)
    write_module(site, "broken", "raise RuntimeError('on import')")
    write_module(site, "misspelt", POOLING.replace("recd_pooling", "recd_poolin"))
    write_module(site, "raising", "@hookimpl\ndef recd_pooling():\n    raise KeyError('in a hook')")
    registry.write_text("plugins: [broken, misspelt, well, raising]\n")

    listed = plugins(registry)
    assert listed.exit_code == 2
    assert "exact" in listed.stdout
    assert "'broken' raised RuntimeError on import: on import" in listed.stdout
    assert "'misspelt' (misspelt) implements a hook that does not exist" in listed.stdout
    assert "'raising' (raising): its hook recd_pooling raised KeyError" in listed.stdout
    assert listed.stderr == ""  # all is said above

    found = rows(plugins(registry, "--json"))
    assert {row["plugin"] for row in found if row["error"]} == {"broken", "misspelt", "raising"}
    assert [row["name"] for row in found if row["plugin"] == "well"] == ["exact"]
    assert "size" in plugins(registry, "pooling:exact").stdout


def test_a_broken_plugin_that_is_off_is_reported_where_a_record_is_not_found(
    site: Path, registry: Path
) -> None:
    write_distribution(site, "pkg-a", "1.0", "broken", "raise RuntimeError('on import')")
    assert plugins(registry).exit_code == 0
    assert "size" not in plugins(registry, "attention").stdout
    refused = plugins(registry, "mine")
    assert "Not looked into: plugin 'broken' raised RuntimeError" in refused.stderr
    asked = plugins(registry, "broken")
    assert asked.exit_code == 2
    assert asked.stderr.startswith("error: plugin 'broken' raised RuntimeError on import: on")


def test_the_name_of_a_plugin_is_answered_by_its_records(registry: Path) -> None:
    refused = plugins(registry, "recd_dedup")
    assert refused.exit_code == 2
    assert "'recd_dedup' is a plugin, where a record or a slot is to be named" in refused.stderr
    assert "dedup:exact" in refused.stderr


def test_a_registry_that_is_wrong_elsewhere_is_listed_and_then_refused(registry: Path) -> None:
    registry.write_text("plugins: [recd_dlrm]\nmodel: {use: dlrm, embeding_dim: 8}\n")
    listed = plugins(registry)
    assert listed.exit_code == 2
    assert "attention" in listed.stdout
    assert f"{registry}:2: model.embeding_dim: unknown" in listed.stderr
    # What its options are is what one asks then.
    assert plugins(registry, "dlrm").exit_code == 0

    registry.write_text("plugins: recd_dlrm\n")
    refused = plugins(registry)
    assert f"{registry}:1: plugins: expected a list" in refused.stderr


def test_brackets_of_a_plugins_words_are_no_markup(registry: Path, tmp_path: Path) -> None:
    body = """
@dataclass(frozen=True, kw_only=True)
class Named(Config):
    '''Options.'''
    prefixes: tuple[str, ...] = ("user",)
    '''Those that begin so, as [item].'''

@hookimpl
def recd_pooling():
    return [PoolingRecord(name="named", summary="Sums [dim].", config=Named, build=build)]
"""
    write_module(tmp_path, "bracketed", body)
    registry.write_text("plugins: [./bracketed]\n")
    shown = plugins(registry, "named").stdout
    for words in ("Sums [dim].", "[user]", "[item]"):
        assert words in shown
    assert "Sums [dim]." in plugins(registry, "pooling").stdout
