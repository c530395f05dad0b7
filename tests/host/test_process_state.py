"""Value tests: what a plugin changes of the whole process on import is put back, and named."""

from __future__ import annotations

import os
import signal
import sys
import warnings
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from forked import run_module

from plugins import POOLING, write_module
from recd_plugins.errors import PluginError
from recd_plugins.hooks.catalog import Catalog
from recd_plugins.notices import Notices, NoticeWarning, Unused, notices_as_lines
from recd_plugins.registry import Registry
from recd_plugins.stack.usage import Usage

CHANGES = """
import os
import signal
import sys
import torch
os.chdir("/")
os.environ["RANK"] = "0"
sys.setrecursionlimit(1_000_000)
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
torch.set_default_dtype(torch.float64)
torch.set_grad_enabled(False)
torch.set_default_device("meta")
"""


def state() -> tuple[object, ...]:
    device, answer = torch.get_default_device().type, signal.getsignal(signal.SIGCHLD)
    python = os.getcwd(), os.environ.get("RANK"), sys.getrecursionlimit(), answer
    return (*python, torch.get_default_dtype(), torch.is_grad_enabled(), device)


def test_what_a_plugin_changes_of_the_process_on_import_is_put_back_and_named(site: Path) -> None:
    write_module(site, "changing_plugin", CHANGES + POOLING)
    before = state()
    registry = Registry.load({"plugins": ["changing_plugin"]})
    assert state() == before
    with pytest.warns(NoticeWarning) as found:
        Usage(registry).as_written(2)
    assert [str(one.message).partition(" is put back: ")[0] for one in found] == [
        "the folder that the process works in (os.chdir)",
        "the rank that this process is (os.environ['RANK'])",
        "how deep calls may be (sys.setrecursionlimit)",
        "the answer to SIGCHLD (signal.signal)",
        "torch's default dtype (torch.set_default_dtype)",
        "whether torch computes gradients (torch.set_grad_enabled)",
        "torch's default device (torch.set_default_device)",
    ]
    assert "plugin 'changing_plugin' changes it on import" in str(found[0].message)


GROUP = """
import torch.distributed as dist
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
"""


def test_a_group_of_ranks_that_a_plugin_makes_on_import_is_refused(site: Path) -> None:
    """The job makes one of all its ranks, and there can be only one."""
    write_module(site, "group_plugin", GROUP + POOLING)
    with pytest.raises(PluginError, match=r"'group_plugin' .* makes a group of ranks on import"):
        Registry.load({"plugins": ["group_plugin"]})
    assert not torch.distributed.is_initialized()


def test_the_group_of_ranks_of_a_trainer_stays(site: Path) -> None:
    write_module(site, "quiet_plugin")
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        Registry.load({"plugins": ["quiet_plugin"]})
        assert torch.distributed.is_initialized()
    finally:
        torch.distributed.destroy_process_group()


def test_what_a_plugin_changes_that_fails_on_import_is_put_back(site: Path) -> None:
    write_module(site, "changing_and_failing", CHANGES + "raise OSError('no')\n")
    before = state()
    with pytest.raises(PluginError, match="raised OSError on import"):
        Catalog(["changing_and_failing"], Path())
    assert state() == before


def test_a_trainer_that_has_other_defaults_keeps_them(site: Path) -> None:
    write_module(site, "plugin_of_a_trainer", POOLING)
    torch.set_default_dtype(torch.float64)
    try:
        assert Catalog(["plugin_of_a_trainer"], Path()).put_back == []
        assert torch.get_default_dtype() == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("action", ["ignore", "error"])
def test_notices_are_lines_whatever_filters_a_plugin_sets(
    action: str, site: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = f"plugin_that_would_{action}"
    write_module(site, name, f"import warnings\nwarnings.simplefilter({action!r})\n" + POOLING)
    idle = Unused(what="cache: scars", why="no row is worth it", cure="Take it out.")
    with warnings.catch_warnings():
        notices_as_lines()
        Catalog([name], Path())
        Notices().give([idle], 0)
    assert capsys.readouterr().out == f"notice: {idle}\n"


@pytest.mark.parametrize("action", ["ignore", "error"])
def test_notices_stay_what_a_trainer_makes_of_them(action: str, site: Path) -> None:
    other = {"ignore": "always", "error": "ignore"}[action]
    name = f"plugin_that_sets_{other}"
    write_module(site, name, f"import warnings\nwarnings.simplefilter({other!r})\n" + POOLING)
    idle = Unused(what="cache: scars", why="no row is worth it", cure="Take it out.")
    for trainers in (UserWarning, NoticeWarning):
        with warnings.catch_warnings(record=True) as shown:
            warnings.simplefilter(action, trainers)
            sys.modules.pop(name, None)
            Catalog([name], Path())
            with pytest.raises(NoticeWarning) if action == "error" else nullcontext():
                Notices().give([idle], 0)
        assert shown == []


def trained(folder: Path, plugin: str, ranks: int) -> str:
    """What `recd train` of a small job with a plugin printed, in the folder and to its end."""
    (folder / "registry.yaml").write_text(
        f"plugins: [recd_dlrm, {plugin}]\n"
        "dataset: {use: random, samples: 64, test_samples: 64, dense: 2, num_ids: [10]}\n"
        f"model: {{use: dlrm}}\ntrain: {{ranks: {ranks}, batch_size: 8, steps: 2, run: here}}\n"
    )
    done = run_module("recd_plugins", "train", folder=folder)
    assert done.code == 0, done.err
    return done.out + done.err


def test_a_job_trains_where_it_was_started_whatever_a_plugin_does_on_import(tmp_path: Path) -> None:
    changes = CHANGES.replace("import os\n", "import os\nfrom recd_plugins.api import *\n")
    (tmp_path / "wandering.py").write_text(
        changes + "\n@hookimpl\ndef recd_stats():\n    return []\n"
    )
    printed = trained(tmp_path, "./wandering.py", ranks=2)
    assert (tmp_path / "here").is_dir()
    assert "torch's default dtype (torch.set_default_dtype) is put back" in printed


LASTS = """
import time
from pathlib import Path
from recd_plugins.api import hookimpl
from recd_plugins.trainer import threads_left

threads_left.PATIENCE = 0.1
name_later = threads_left._name_later

def named(rank):
    name_later(rank)
    Path("named").touch()

threads_left._name_later = named

def last():
    ends = time.monotonic() + 300
    while not Path("named").exists() and time.monotonic() < ends:
        time.sleep(0.01)

@hookimpl
def recd_stats():
    return []

"""
"""A plugin's `last` goes on until what lasts has been named, however long that takes."""


def test_a_thread_that_keeps_a_job_from_ending_is_named(tmp_path: Path) -> None:
    (tmp_path / "lasting.py").write_text(
        f"import threading\n{LASTS}threading.Thread(target=last, name='lasting').start()\n"
    )
    printed = trained(tmp_path, "./lasting.py", ranks=1)
    assert "thread 'lasting' of rank 0 keeps the job from ending" in printed


def test_a_process_that_keeps_a_job_from_ending_is_named(tmp_path: Path) -> None:
    (tmp_path / "forking.py").write_text(
        f"import multiprocessing\n{LASTS}"
        "multiprocessing.get_context('fork').Process(target=last, name='lasting').start()\n"
    )
    printed = trained(tmp_path, "./forking.py", ranks=1)
    assert "process 'lasting' (" in printed
    assert "keeps the job from ending" in printed


def test_a_job_ends_though_a_process_that_a_plugin_forks_lives_on(tmp_path: Path) -> None:
    """Which holds open whatever the launcher had open as it was forked."""
    (tmp_path / "sleeping.py").write_text(
        "import os, time\nfrom recd_plugins.api import hookimpl\n"
        "if (child := os.fork()) == 0:\n"
        "    for number in (1, 2):\n        os.close(number)\n"
        "    while os.getppid() != 1 and not os.path.exists('ended'):\n        time.sleep(0.1)\n"
        "    os._exit(0)\n"
        "@hookimpl\ndef recd_stats():\n    return []\n"
    )
    assert "train step 2/2" in trained(tmp_path, "./sleeping.py", ranks=1)


def test_a_name_of_what_is_built_into_python_is_taken(tmp_path: Path) -> None:
    (tmp_path / "time.py").write_text(POOLING)
    with pytest.raises(PluginError, match=r"'time' is taken by a module of Python itself. Rename"):
        Catalog(["./time.py"], tmp_path)
