"""Rung 1 (values): the threads and open files that a rank may have, whoever started it."""

from __future__ import annotations

import resource
import socket
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
import torch
import torch.distributed as dist
from probe_plugin import probe_registry

from recd_plugins import load
from recd_plugins.errors import CapabilityError
from recd_plugins.launch.environment import rank_environment
from recd_plugins.launch.machine_cores import cores_of_each
from recd_plugins.trainer import process_group as process_group_module
from recd_plugins.trainer.process_group import process_group


@pytest.fixture(autouse=True)
def lone_rank(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """This process is the only rank of a job, and has afterwards what it had before."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)
    threads, decoding = torch.get_num_threads(), pa.cpu_count()
    for name, text in rank_environment(0, 1, ranks_per_node=2, port=0).items():
        monkeypatch.setenv(name, text)
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, files)
    torch.set_num_threads(threads)
    pa.set_cpu_count(decoding)


@pytest.mark.parametrize("asked", [3, 0])
def test_torch_and_arrow_have_the_threads_of_a_rank(asked: int, tmp_path: Path) -> None:
    """torchrun has a rank begin with one of each; `threads: 0` shares the cores evenly."""
    torch.set_num_threads(1)
    pa.set_cpu_count(1)
    with process_group(load(probe_registry(tmp_path, threads=asked))):
        given = asked or cores_of_each(2)
        assert (torch.get_num_threads(), pa.cpu_count()) == (given, given)


def test_a_rank_whose_place_to_meet_is_taken_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where RANK and MASTER_PORT are left over from another job."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        monkeypatch.setenv("MASTER_PORT", str(other.getsockname()[1]))
        says = r"rank 0 of 1 rank, which do not meet at .*in use\). .*unset RANK"
        with (
            pytest.raises(CapabilityError, match=says),
            process_group(load(probe_registry(tmp_path))),
        ):
            pass


def test_a_rank_that_waits_long_for_others_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a shell has the variables of an earlier job, whose other ranks never come."""
    others_came = threading.Event()

    def meet(backend: str) -> None:
        others_came.wait(300)
        raise dist.DistError("they did not come")

    def note(message: str, category: type[Warning]) -> None:
        said.append(message)
        others_came.set()

    said: list[str] = []
    monkeypatch.setattr(dist, "init_process_group", meet)
    monkeypatch.setattr(process_group_module, "LONG", 0.01)
    monkeypatch.setattr(warnings, "warn", note)
    with pytest.raises(CapabilityError), process_group(load(probe_registry(tmp_path))):
        pass
    (one,) = said
    assert "this is rank 0 of 1 rank" in one
    assert "unset RANK" in one


def test_a_rank_opens_as_many_files_as_it_may(tmp_path: Path) -> None:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (512, most))
    with process_group(load(probe_registry(tmp_path))):
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (most, most)
