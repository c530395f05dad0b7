"""Rung 1 (values): the threads of a rank, whoever started it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
import torch
from probe_plugin import probe_registry

from recd_plugins import load
from recd_plugins.launch.environment import rank_environment
from recd_plugins.trainer.run import process_group


@pytest.fixture
def threads() -> Iterator[None]:
    """This process has the threads afterwards that it had before."""
    before = torch.get_num_threads(), pa.cpu_count()
    yield
    torch.set_num_threads(before[0])
    pa.set_cpu_count(before[1])


@pytest.mark.parametrize(("asked", "given"), [(3, 3), (0, max(1, (os.cpu_count() or 1) // 2))])
@pytest.mark.usefixtures("threads")
def test_torch_and_arrow_have_the_threads_of_a_rank(
    asked: int, given: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torchrun has a rank begin with one of each; `threads: 0` shares the cores evenly."""
    for name, text in rank_environment(0, 1, ranks_per_node=2, port=0).items():
        monkeypatch.setenv(name, text)
    torch.set_num_threads(1)
    pa.set_cpu_count(1)
    with process_group(load(probe_registry(tmp_path, threads=asked))):
        assert (torch.get_num_threads(), pa.cpu_count()) == (given, given)
