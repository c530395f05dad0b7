"""Value tests: plugins' commands are listed unseen, imported when called, named when broken."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from recd_plugins.cli.main import app

APP = """
import typer
app = typer.Typer(help="Says things.", no_args_is_help=True)

@app.callback()
def group() -> None:
    "Says things."

@app.command()
def greet(name: str, loud: bool = False) -> None:
    "Greets."
    print(f"hello {name}{'!' if loud else ''}")

def shout(what: str) -> None:
    "Shouts."
    print(what.upper())

number = 3
"""


def bring(site: Path, distribution: str, commands: str, module: str = "", body: str = APP) -> None:
    """An installed distribution whose commands are lines `name = module:object`."""
    if module:
        (site / f"{module}.py").write_text(body)
    info = site / f"{distribution.replace('-', '_')}-1.5.dist-info"
    info.mkdir()
    metadata = f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.5\n"
    (info / "METADATA").write_text(metadata)
    (info / "entry_points.txt").write_text(f"[recd_plugins.commands]\n{commands}\n")


def recd(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def test_an_app_and_a_function_are_commands(site: Path) -> None:
    bring(site, "pkg-says", "say = says:app\nshout = says:shout", "says")
    assert recd("say", "greet", "you", "--loud").stdout == "hello you!\n"
    assert recd("shout", "now").stdout == "NOW\n"
    assert "Greets." in recd("say", "--help").stdout
    missing = recd("say", "greet")
    assert missing.exit_code == 2
    assert "recd say greet" in missing.stderr


def test_help_lists_them_and_imports_none(site: Path) -> None:
    bring(site, "pkg-silent", "silent = silent_plugin:app", "silent_plugin")
    shown = recd("--help").stdout
    assert "Says things. From pkg-silent 1.5." in shown
    assert shown.index(" doctor ") < shown.index(" silent ")  # the host's come first
    assert "silent_plugin" not in sys.modules
    assert recd("doctor", "--help").exit_code == 0
    assert "silent_plugin" not in sys.modules


def test_what_a_command_says_of_itself_is_read_from_its_source(site: Path) -> None:
    bring(site, "pkg-shout", "shout = says:shout", "says")
    bring(site, "pkg-dark", "dark = nowhere.deep:app")
    shown = recd("--help").stdout
    assert "Shouts. From pkg-shout 1.5." in shown
    assert "A command. From pkg-dark 1.5." in shown
    assert "SCARS: how much to cache. From recd-plugins" in shown
    assert "completion" not in recd("scars", "--help").stdout


def test_a_misspelt_one_is_suggested(site: Path) -> None:
    bring(site, "pkg-says", "shout = says:shout", "says")
    assert "Did you mean 'shout'" in recd("shuot").stderr


def test_a_name_of_the_host_stays_the_hosts(site: Path) -> None:
    bring(site, "pkg-usurper", "train = says:app", "says")
    assert "pkg-usurper" not in recd("--help").stdout
    assert "Says things" not in recd("train", "--help").stdout


@pytest.mark.parametrize(
    ("commands", "body", "why"),
    [
        ("odd = odd_plugin:app", "raise OSError('no such disk')", "raised OSError on import: no "),
        ("odd = odd_plugin:app", "import nowhere", "No module named 'nowhere'"),
        ("odd = odd_plugin:app", "import sys; sys.exit(3)", "raised SystemExit on import: 3"),
        ("odd = odd_plugin:app", "", "no attribute 'app'"),
        ("odd = odd_plugin:number", APP, "odd_plugin:number is 3, not a typer app"),
    ],
    ids=["raises", "misses a module", "exits", "misses the app", "no app"],
)
def test_a_broken_one_is_one_line_that_names_its_distribution(
    site: Path, commands: str, body: str, why: str
) -> None:
    bring(site, "pkg-odd", commands, "odd_plugin", body)
    result = recd("odd", "--anything")
    assert result.exit_code == 2
    (line,) = result.stderr.splitlines()
    assert line.startswith("error: `recd odd` of pkg-odd 1.5")
    assert why in line
    assert recd("--help").exit_code == 0


def test_two_distributions_with_one_command_are_both_named(site: Path) -> None:
    bring(site, "pkg-a", "twice = twice_plugin:app", "twice_plugin")
    bring(site, "pkg-b", "twice = twice_plugin:shout")
    result = recd("twice")
    assert result.exit_code == 2
    assert "is a command of pkg-a 1.5 and pkg-b 1.5: uninstall one" in result.stderr
