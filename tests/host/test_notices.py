"""Value tests: what is switched on and not used is a warning on rank 0, or an error, once."""

from __future__ import annotations

import logging
import warnings
from pathlib import Path
from typing import Any, Literal

import pytest
from forked import run_module
from typer.testing import CliRunner

import recd_plugins as rp
from recd_plugins.cli.main import app
from recd_plugins.errors import CapabilityError, RegistryError
from recd_plugins.notices import (
    Notices,
    NoticeWarning,
    Slower,
    Unused,
    hide_other_warnings,
    hide_warnings,
    notices_as_lines,
)
from recd_plugins.registry import Registry
from recd_plugins.stack.usage import Usage

IDLE = Unused(what="cache: scars", why="no row is worth it.", cure="Take `cache` out.")
FORCED = Slower(what="sharding: x", why="2 ms a step for 1 ms", cure="Take `force` out.")


def test_ranks_give_no_notice_again_that_the_command_has_given(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The command prepares tables before it starts ranks, which look at them again."""
    command = Notices()
    with pytest.warns(NoticeWarning, match="cache: scars"):
        command.give([IDLE], 0)
    for name, value in command.for_ranks().items():
        monkeypatch.setenv(name, value)
    with pytest.warns(NoticeWarning) as found:
        Notices().give([IDLE, FORCED], 0)
    assert [str(one.message) for one in found] == [str(FORCED)]


@pytest.mark.parametrize("action", ["error", "ignore"])
def test_a_line_is_for_whoever_has_other_warnings_raised_or_hidden(
    action: Literal["error", "ignore"], capsys: pytest.CaptureFixture[str]
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter(action)
        notices_as_lines()
        Notices().give([IDLE], 0)
    assert capsys.readouterr().out == f"notice: {IDLE}\n"


def test_a_command_has_the_same_notice_once_in_a_row(capsys: pytest.CaptureFixture[str]) -> None:
    with warnings.catch_warnings():
        notices_as_lines(on_errors=True)
        for said in ("a.", "a.", "b.", "a."):
            warnings.warn(said, NoticeWarning, stacklevel=1)
    assert capsys.readouterr().err == "notice: a.\nnotice: b.\nnotice: a.\n"


def test_each_is_given_once_on_rank_0_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "registry.yaml"
    path.write_text("plugins: []\ncache: {use: scars}\n")
    given = Notices(path=path, lines={"cache": 2})
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        given.give([IDLE, FORCED, IDLE], 0)
        given.give([IDLE], 0)
        Notices().give([IDLE], 1)
    assert [str(one.message) for one in found] == [
        "cache: scars is not used: no row is worth it. Take `cache` out.",
        "sharding: x makes steps slower: 2 ms a step for 1 ms. Take `force` out.",
    ]
    assert [(one.filename, one.lineno) for one in found] == [(str(path), 2), (str(path), 1)]
    assert found[0].category is NoticeWarning


def test_strict_makes_an_error_of_what_is_not_used_on_every_rank() -> None:
    for rank in (0, 1):
        with pytest.raises(CapabilityError, match=r"scars is not used.*\n.*strict: true"):
            Notices(strict=True).give([FORCED, IDLE], rank)
    with pytest.warns(NoticeWarning, match="makes steps slower"):
        Notices(strict=True).give([FORCED], 0)


def test_a_command_shows_notices_and_a_trial_not_even_those(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    chatty = [logging.getLogger(name) for name in ("torchrec", "torch.fx")]
    for logger in chatty:
        monkeypatch.setattr(logger, "level", logging.NOTSET)
    for hide, shown in ((hide_other_warnings, ["a notice"]), (hide_warnings, [])):
        with warnings.catch_warnings(record=True) as found:
            hide()
            warnings.warn("TorchRec's own", FutureWarning, stacklevel=1)
            warnings.warn("a notice", NoticeWarning, stacklevel=1)
        assert [str(one.message) for one in found] == shown
        assert [logger.level for logger in chatty] == [logging.ERROR] * 2


def test_strict_is_said_in_the_registry() -> None:
    assert not rp.load({}).registry.strict
    assert rp.load({"strict": True}).registry.strict
    with pytest.raises(RegistryError, match="strict: expected true or false, got 'yes please'"):
        rp.load({"strict": "yes please"})


def test_a_key_with_nothing_behind_it_is_told_with_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was commented out below it is not what trains."""
    path = tmp_path / "registry.yaml"
    path.write_text("plugins: []\nsharding:\n  # use: flexshard\ndedup:  # later\ncache: null\n")
    with pytest.warns(NoticeWarning) as found:
        Usage(Registry.load(path)).as_written(2)
    cure = "Write a value, take the line out, or write"
    assert [str(one.message) for one in found] == [
        f"sharding has nothing behind it: torchrec, its default, fills it ({path}:2). {cure} "
        "`sharding: null`.",
        f"dedup has nothing behind it: none fills it ({path}:4). {cure} `dedup: null`.",
    ]
    assert [one.lineno for one in found] == [2, 4]
    with pytest.warns(NoticeWarning) as found:
        Usage(Registry.load(path, ["dedup=null", "sharding="])).as_written(2)
    assert [str(one.message) for one in found] == [
        "sharding has nothing behind it: torchrec, its default, fills it (override 'sharding='). "
        "Write a value, take it out, or write `sharding=null`."
    ]
    said = Registry.load(path, ["sharding.use=torchrec", "dedup=null"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Usage(said).as_written(2)
        Usage(Registry.load({"plugins": [], "sharding": None})).as_written(2)
    path.write_text("topology:\n  device:\n  op_us: # 5\n  ranks_per_node: null\n")
    with pytest.warns(NoticeWarning) as found:
        Usage(Registry.load(path, ["topology.op_us=7"])).as_written(2)
    assert [str(one.message) for one in found] == [
        f"topology.device has nothing behind it: it is read as `null` ({path}:2). {cure} "
        "`topology.device: null`.",
    ]
    file = tmp_path / "cluster.yaml"
    file.write_text("ranks_per_node: 2\nop_us:  # 5\nmarks_ns: null\noverlap:\n")
    path.write_text(f"plugins: []\ntopology: {{use: {file}, overlap: 0.5}}\n")
    with pytest.warns(NoticeWarning) as found:
        Usage(Registry.load(path)).as_written(2)
    assert [(str(one.message), one.lineno) for one in found] == [
        (
            f"topology: op_us has nothing behind it: it is read as `null` ({file}:2). {cure} "
            "`null` behind it.",
            2,
        )
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Usage(Registry.load({"topology": {"use": str(file), "op_us": 5, "overlap": 1}})).as_written(
            2
        )
    path.write_text("plugins: [recd_dlrm]\ndataset: {use: random, samples: 64}\n"
                    "model: {use: dlrm}\nsharding:\nstrict: true\n")  # fmt: skip
    monkeypatch.chdir(tmp_path)  # the picture's place
    told = CliRunner().invoke(app, ["plan", "-r", str(path)])
    assert (told.exit_code, "sharding has nothing behind it" in told.stderr) == (2, True)


def test_an_override_says_which_settings_it_drops(tmp_path: Path) -> None:
    path = tmp_path / "registry.yaml"
    path.write_text("plugins: []\ntrain:\n  ranks: 2\n  steps: 9\n  optimizer: {tables_lr: 1}\n")
    given = ["train={steps: 5, log_every: 2, optimizer: {dense_lr: 0.5}}", "train.ranks=2"]
    with pytest.warns(NoticeWarning) as found:
        Usage(Registry.load(path, given)).as_written(2)
    assert [(str(one.message), one.lineno) for one in found] == [
        (
            f"train is replaced whole: override '{given[0]}' drops train.optimizer.tables_lr. "
            "Write `train.steps=5 train.optimizer.dense_lr=0.5 train.log_every=2`, and the rest "
            "stays.",
            2,
        )
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for said in (["train={ranks: 1, steps: 2, optimizer: {tables_lr: 2}}"], ["train=null"]):
            Usage(Registry.load(path, said)).as_written(2)


def test_a_command_gives_a_notice_as_a_line_on_standard_error(tmp_path: Path) -> None:
    """Nobody who runs `recd` asks for a file of ours and a line of it."""
    (tmp_path / "registry.yaml").write_text(
        "plugins: [recd_dlrm]\n"
        "dataset: {use: random, samples: 64, test_samples: 64, dense: 2, num_ids: [10]}\n"
        "model: {use: dlrm}\nsharding:\n  # use: torchrec\n"
    )
    done = run_module("recd_plugins", "plan", folder=tmp_path)
    assert done.code == 0, done.err
    (line,) = (one for one in done.err.splitlines() if "has nothing behind it" in one)
    assert line.startswith("notice: sharding has nothing behind it: ")
    assert "Warning" not in done.err
    assert "notice" not in done.out


@pytest.mark.parametrize(
    ("values", "what"),
    [
        (
            {"train": {"optimizer": {"tables": "sgd", "tables_eps": 1e-4}}},
            "train: optimizer.tables_eps",
        ),
        ({"topology": {"ranks_per_node": 4}}, "topology: ranks_per_node"),
        ({"sharding": {"use": "torchrec", "constraints": {"t": {}}}}, "sharding: constraints.t"),
        (
            {"sharding": {"use": "torchrec", "constraints": {"t": {"sharding_types": []}}}},
            "sharding: constraints.t",
        ),
    ],
)
def test_settings_that_change_nothing_are_not_used(values: dict[str, Any], what: str) -> None:
    with pytest.warns(NoticeWarning) as found:
        Usage(Registry.load(values)).as_written(2)
    assert [str(one.message).split(" is not used")[0] for one in found] == [what]


@pytest.mark.parametrize(
    "values",
    [
        {"train": {"optimizer": {"tables": "adagrad", "tables_eps": 1e-4}}},
        {"train": {"optimizer": {"tables": "sgd"}}},
        {"train": {"ranks": 1}, "topology": {"ranks_per_node": 2}},  # whoever starts two
        {"topology": "a100_zionex"},  # of more ranks, for whoever has them
        {
            "sharding": {
                "use": "torchrec",
                "constraints": {"*": {"sharding_types": ["row_wise"]}, "t": {}},  # frees t
            }
        },
    ],
)
def test_settings_that_change_something_bring_no_notice(values: dict[str, Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Usage(Registry.load(values)).as_written(2)


def test_settings_of_what_is_switched_off_are_not_used() -> None:
    idle = Registry.load({"train": {"retier_batches": 3}})
    with pytest.warns(NoticeWarning) as found:
        Usage(idle).as_written(2)
    assert [str(one.message).split(" is not used")[0] for one in found] == [
        "train: retier_batches",
    ]
    used = Registry.load({"train": {"retier_batches": 3, "retier_every": 9}})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Usage(used).as_written(2)
