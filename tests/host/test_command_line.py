"""Rung 1 (values): what all commands have in common, and what `recd explain` knows of words."""

from __future__ import annotations

import errno
import importlib
import inspect
import json
import os
import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path
from types import ModuleType

import pytest
import typer
from forked import run_module
from typer.testing import CliRunner

from recd_plugins.cli.explain import explain
from recd_plugins.cli.main import DAY, app
from recd_plugins.cli.messages import messages, messages_like
from recd_plugins.cli.reported import reported
from recd_plugins.cli.words import commands, meanings
from recd_plugins.errors import RegistryError
from recd_plugins.launch.fork_server import torch_is_for_cpu
from recd_plugins.notices import Notice

SERVERS = {"serve coordinator", "serve worker", "watch"}
"""Commands that run until they are ended, and print where they listen."""

PROGRESS = {
    "advise": "a bar of what is prepared and tried, a line for what is weighed",
    "data check": "a bar of bytes",
    "data import": "a bar of bytes",
    "data prepare": "a bar of rows",
    "data profile": "a bar of batches",
    "data rewrite": "a bar of stripes",
    "data stats": "a bar of rows",
    "data vocabulary": "a bar of bytes",
    "plan": "a bar of what is prepared",
    "reshard": "a bar of bytes",
    "serve advise": "a bar of what is measured",
    "tune batch": "a line for each trial",
    "tune loss": "a bar of trainings",
    "topology measure": "a line for each link",
    "train": "a bar of what is prepared, a line every log_every steps",
}
SHORT = {
    "data layout": "reads footers",
    "data schema": "reads a sample",
    "data show": "reads footers",
    "doctor": "tries two ranks",
    "explain": "computes",
    "init": "reads footers",
    "plugins new": "writes six files",
    "plugins show": "lists",
    "report": "reads logs of runs",
    "scars curve": "computes",
}
"""Of each command, how it shows that it gets on, or why it need not."""


def leaves() -> dict[str, object]:
    return {name: one for name, one in commands(app) if not hasattr(one, "commands")}


def test_every_command_prints_json_and_long_ones_their_progress() -> None:
    every = leaves()
    assert {*every} - SERVERS == {*PROGRESS, *SHORT}, "say which of the two it is"
    for name, command in every.items():
        options = {option for one in command.params for option in one.opts}  # type: ignore[attr-defined]
        assert "--json" in options, f"recd {name} has no --json"
        source = inspect.getsource(inspect.getmodule(inspect.unwrap(command.callback)))  # type: ignore[attr-defined, arg-type]
        if PROGRESS.get(name, "").startswith("a bar"):
            assert "with progress()" in source, f"recd {name} draws no progress"


def test_help_has_the_order_of_a_day() -> None:
    shown = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "120"}).output
    words = [
        word for line in shown.splitlines() if line.startswith("│ ") for word in line.split()[1:2]
    ]
    day = [name for names in DAY.values() for name in names]
    assert [word for word in words if word in day] == day


def test_the_version_is_the_packages() -> None:
    done = CliRunner().invoke(app, ["--version"])
    assert (done.output, done.exit_code) == (f"recd-plugins {version('recd-plugins')}\n", 0)


def test_ctrl_c_while_the_command_line_is_imported_shows_no_traceback(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Interrupted(ModuleType):
        def __getattr__(self, name: str) -> None:
            raise KeyboardInterrupt

    described = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    module, _, function = described["project"]["scripts"]["recd"].partition(":")
    recd = getattr(importlib.import_module(module), function)
    monkeypatch.setitem(sys.modules, "recd_plugins.cli.main", Interrupted("main"))
    with pytest.raises(SystemExit) as ended:
        recd()
    assert ended.value.code == 130


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (
            "explain ranks --p 0.1",
            "--p: does nothing here, because it is of prices, and 'ranks' is",
        ),
        ("explain ranks --prices paper", "--prices: does nothing here"),
        (
            "advise -r none.yaml --rounds 4",
            "--rounds: does nothing here, because nothing is trained without --try",
        ),
        (
            "advise --table none -r registry.yaml",  # which is named by default, too
            "--registry: does nothing here, because --table is advised on in place of a registry.",
        ),
        (
            "data rewrite a b --days 3",
            "--days: does nothing here, because no log of readers is read",
        ),
    ],
)
def test_an_option_that_does_nothing_is_refused(
    line: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    refused = CliRunner().invoke(app, line.split())
    assert refused.exit_code == 2
    assert says in refused.stderr


@pytest.mark.parametrize(
    "line",
    [
        "topology measure --ranks 0",
        "topology measure --ranks-per-node 0",
        "topology measure --device gpu",
        "data layout a --hole -1",
        "data rewrite a b --rows-per-stripe 0",
        "explain --p 1e308",
        "explain --k 1e308",
    ],
)
def test_a_value_that_an_option_cannot_have_is_refused_by_the_options_name(line: str) -> None:
    refused = CliRunner().invoke(app, line.split())
    assert refused.exit_code == 2
    assert f"'{line.split()[-2]}'" in refused.stderr


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_complete_commands_and_options(shell: str) -> None:
    def completed(line: str) -> str:
        words = line.split()
        environment = {
            "_RECD_COMPLETE": f"complete_{shell}",
            "COMP_WORDS": line,
            "COMP_CWORD": str(len(words) - 1),
            "_TYPER_COMPLETE_ARGS": line,
            "_TYPER_COMPLETE_FISH_ACTION": "get-args",
        }
        return CliRunner().invoke(app, env=environment, prog_name="recd").output

    assert "import" in completed("recd data im")
    assert "--least-batch" in completed("recd scars curve --least")


@pytest.mark.parametrize(
    ("asked", "kind", "says"),
    [
        ("Dedupe factor", "word", "values before deduplication"),
        ("hang_after", "option", "With 0 the job waits for ever"),
        ("train.optimizer.dense_lr", "option", "The learning rate of the dense parameters"),
        ("preprocess", "slot", ""),
        ("data import", "command", "Make a table"),
        ("dedup: exact", "record of recd_dedup", "Equal samples"),
        ("data_wait", "metric", "waits for its reader"),
        ("lacks column", "DataError", "which the schema names"),
        ("lacks column 'shop', which", "DataError", "which the schema names"),
        (
            "error: override 'lr': write key=value, as train.batch_size=512.",
            "RegistryError",
            "regis",
        ),
    ],
)
def test_a_word_is_explained(asked: str, kind: str, says: str) -> None:
    found = meanings(asked)
    assert any(one.kind.startswith(kind) and says in str(one) for one in found), found


def test_explain_takes_words_and_names_the_nearest() -> None:
    printed = CliRunner().invoke(app, ["explain", "dedupe", "factor", "--json"]).output
    assert json.loads(printed)["meanings"][0]["page"] == "docs/glossary.md"
    assert inspect.getdoc(explain)
    with pytest.raises(RegistryError, match="did you mean 'coverage'"):
        meanings("coverag")


def test_records_of_a_registrys_own_plugins_are_explained(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    own, broken = tmp_path / "own.yaml", tmp_path / "broken.yaml"
    own.write_text(f"plugins: [{root / 'examples' / 'last_pooling.py'}]")
    broken.write_text("plugins: [./gone.py]")

    def explained(word: str, registry: Path) -> str:
        done = CliRunner().invoke(app, ["explain", word, "--registry", str(registry)])
        return " ".join(done.output.split())

    assert "The last one." in (found := explained("pooling:last", own))
    assert f"recd plugins pooling:last --registry {own}" in found
    assert "docs/slots.md#pooling-mean" in explained("pooling:mean", own)
    assert "docs/slots.md#pooling-mean" in explained("pooling:mean", broken)
    assert "gone.py does not exist" in explained("pooling:last", broken)
    assert "there is no such registry" in explained("pooling:last", tmp_path / "none.yaml")


def test_every_message_is_found_by_itself() -> None:
    every = messages()
    assert len(every) > 500
    for message in every[:: len(every) // 12]:
        if message.letters >= 24:
            texts = [one.template for one in messages_like(message.template.replace("…", "7"))]
            assert message.template in texts


def test_a_whole_line_of_a_notice_is_explained_as_a_part_of_it_is() -> None:
    line = (
        "notice: sharding: flexshard is not used: the model has no EmbeddingCollection or "
        "EmbeddingBagCollection. Plan the model that has them, or take `sharding: flexshard` out."
    )
    (whole, *_), (part, *_) = meanings(line), meanings("the model has no EmbeddingCollection or")
    assert whole == part
    assert whole.text == "It is switched on, and this job does not use it."
    kinds = {one.__name__ for one in Notice.__subclasses__()}
    every = [one.template for one in messages() if one.kind in kinds]
    assert len(every) > 30
    for template in every:
        found, *_ = messages_like(f"notice: {template.replace('…', '7')}")
        assert found.template == template


def test_what_is_printed_to_a_full_disk_is_a_message(tmp_path: Path) -> None:
    """And what nobody reads any more, as behind `| head`, ends without a word."""
    told = [sys.executable, "-m", "recd_plugins", "doctor", "--sbom"]
    with open("/dev/full", "w") as full:
        done = subprocess.run(told, stdout=full, stderr=subprocess.PIPE, text=True, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("error: what the command prints cannot be written: No space left")
    assert len(done.stderr.splitlines()) == 1
    ours, theirs = os.pipe()
    os.close(ours)
    with open(theirs, "w") as unread:
        done = subprocess.run(told, stdout=unread, stderr=subprocess.PIPE, text=True, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (1, "")
    closed = subprocess.run(
        ["/bin/sh", "-c", '"$@" >&-', "", *told], stderr=subprocess.PIPE, text=True
    )
    assert closed.stderr == ""


def test_a_file_that_libraries_name_in_bytes_is_named_as_text(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(typer.Exit), reported(debug=False):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), b"runs/latest/tensorboard/events")
    error = "error: runs/latest/tensorboard/events: Read-only file system. Name another path"
    assert capsys.readouterr().err.startswith(error)


@pytest.mark.parametrize("arguments", [["--help"], ["plan", "--ranks=x"], ["plan", "--rank=1"]])
def test_where_the_terminal_is_said_to_have_no_columns_all_is_printed(arguments: list[str]) -> None:
    told = [sys.executable, "-m", "recd_plugins", *arguments]
    done = subprocess.run(told, capture_output=True, text=True, env=os.environ | {"COLUMNS": "0"})
    assert arguments[-1].partition("=")[0] in done.stdout + done.stderr


def test_nobody_looks_for_garbage_among_imports_as_a_program_ends() -> None:
    script = """
import atexit, gc, sys
atexit.register(lambda: print(gc.get_freeze_count() > 10_000, gc.get_count()[0] < 700))
from recd_plugins.__main__ import main
sys.argv = ["recd", "--version"]
main()
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout.splitlines()[1:] == ["True True"], done.stderr


def test_a_registry_that_cannot_be_read_is_named_before_torch_is_imported(tmp_path: Path) -> None:
    (tmp_path / "broken.yaml").write_text("train: [")
    script = """
import sys
from typer.testing import CliRunner
from recd_plugins.cli.main import app

for command in (["train"], ["tune", "batch"], ["tune", "loss"], ["plan"]):
    for registry, why in (("none", "there is no such registry"), ("broken", "broken.yaml:1")):
        found = CliRunner().invoke(app, [*command, "--registry", f"{registry}.yaml"])
        assert found.exit_code == 2 and why in found.stderr, found.output
sys.exit("torch" in sys.modules)
"""
    subprocess.run([sys.executable, "-c", script], cwd=tmp_path, check=True)


def test_a_table_of_lists_is_laid_out_anew_without_torch(tmp_path: Path) -> None:
    script = """
import sys
import pyarrow as pa
import pyarrow.parquet as pq
from typer.testing import CliRunner
from recd_plugins.cli.main import app

table = pa.table({"label": [0.0, 1.0], "item": [[1, 2], [3]]})
pq.write_table(table, "table.parquet")
found = CliRunner().invoke(app, ["data", "rewrite", "table.parquet", "new", "--first", "item"])
assert found.exit_code == 0, found.output
assert pq.read_table("new")["item"].to_pylist() == [[1, 2], [3]]
sys.exit("torch" in sys.modules)
"""
    subprocess.run([sys.executable, "-c", script], cwd=tmp_path, check=True)


@pytest.mark.skipif(
    not torch_is_for_cpu(), reason="a process with torch's build for CUDA is not copied"
)
def test_the_process_that_has_read_a_registry_is_copied_to_serve_ranks(tmp_path: Path) -> None:
    (tmp_path / "registry.yaml").write_text("train: {ranks: 2}")
    (tmp_path / "copied.py").write_text("""
from pathlib import Path
from recd_plugins.cli.loaded import server_of_ranks

with server_of_ranks(Path("registry.yaml"), ["train.steps=1"]) as server:
    assert server is not None
""")
    done = run_module("copied", folder=tmp_path)
    assert done.code == 0, done.err
