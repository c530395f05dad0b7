"""Rung 3 (worker processes, small runs): the service's figures are of what they say."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
import torch
from forked import start_server
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from benchmarks.harness import NOT_MEASURED, Report, conditions_of, print_table
from benchmarks.service.disturbed import stall
from benchmarks.service.own_core import missing_cores, own_core
from benchmarks.service.processes import begin_anew, cores
from benchmarks.service.rates import ONE, one_worker, rows_of, second_job, wire
from benchmarks.service.ray_data import Hashed
from benchmarks.service.registries import MODULO, service, stack_of
from benchmarks.service.stalls import stalls
from recd_dsi.service.maker import EARLY_BATCHES
from recd_dsi.service.process_fleets import end_workers
from recd_dsi.transforms import SigridHash

SIZES = {"samples": 1_500, "batch_size": 64}


def test_what_is_left_out_has_a_line_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    report = Report(figures=[], settings={NOT_MEASURED: "Ray Data, which lacks pandas"})
    print_table("service", conditions_of(report, load=0.0), [])
    assert "\nnot measured: Ray Data, which lacks pandas\n" in capsys.readouterr().out


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    start_server()
    yield tmp_path_factory.mktemp("service_bench")
    end_workers()


@pytest.mark.slow
@pytest.mark.ranks
def test_rates_and_bytes_have_both_sides(folder: Path) -> None:
    rates = one_worker(folder, 1, **SIZES)
    by_rows, by_trainer, by_worker = rates[::3], rates[1::3], rates[2::3]
    assert [one.target for one in by_rows] == [0.8, 0.6, 0.85, 0.85]
    assert {one.target for one in by_trainer} == {0.25}
    assert {one.target for one in by_worker} == {None}
    assert all(one.value > 0 and one.baseline == 1 for one in rates)
    assert all(one.limit is not None and one.limit.value > 0 for one in rates)
    whole, sequences = wire(folder, **SIZES)
    assert whole.target == sequences.target
    assert whole.share is not None
    assert 0.5 < whole.share <= 1 < whole.value < sequences.value
    again = second_job(folder, 1, **SIZES)
    assert again.target == 5
    assert again.value > 0
    waits = stalls(folder, 1, **SIZES)
    assert (waits.target, waits.at_most) == (0.01, True)
    assert waits.value >= 0  # workers may have been ahead at each step
    assert (waits.baseline or 0.0) > 0


@pytest.mark.slow
@pytest.mark.ranks
def test_a_measured_epoch_has_all_of_its_own_work(folder: Path) -> None:
    loader = service(stack_of(folder, "KJT", ONE, **SIZES))

    def made() -> int:
        (remote,) = loader.fleet().remotes()
        return remote.caller.act("about", {}, 60.0)["made"]

    rows_of(loader)
    begin_anew(loader)
    rows_of(loader)
    most = 2 * (len(loader) + min(EARLY_BATCHES, len(loader)))
    end = time.monotonic() + 300
    while made() < most and time.monotonic() < end:
        time.sleep(0.01)
    assert made() == most
    end_workers()


@pytest.mark.slow
@pytest.mark.ranks
def test_one_worker_has_a_core_of_its_own(folder: Path) -> None:
    if missing := missing_cores():
        pytest.skip(missing)
    before = cores()
    apart = [*own_core(folder, 1, **SIZES)]
    assert [one.target for one in apart] == [0.6, 0.85]
    assert all(one.value > 0 for one in apart)
    assert cores() == before


@pytest.mark.slow
@pytest.mark.ranks
def test_a_killed_worker_is_missed_for_a_time(folder: Path) -> None:
    assert 0 < stall(folder, 1, **SIZES).value < 60


def test_ray_datas_side_hashes_ids_as_ours_does() -> None:
    lists = [[[1, 2], [], [3]], [[7], [8, 9], [10]]]
    table = pa.table({"label": [0, 1, 1], "a": lists[0], "b": lists[1]}).slice(1)
    ids = torch.tensor([3, 8, 9, 10])
    features = KeyedJaggedTensor(["a", "b"], ids, lengths=torch.tensor([0, 1, 2, 1]))
    hashed = SigridHash(MODULO)(features).values().tolist()
    found = Hashed(["a", "b"])(table)
    assert [found[name].to_pylist() for name in ("a", "b")] == [
        [[], [hashed[0]]],
        [hashed[1:3], [hashed[3]]],
    ]
    assert found["label"].to_pylist() == [1, 1]
