"""Rung 1 and 3 (values, worker processes): workers are started and ended by clients' buffers."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path

import pytest
from service_jobs import stack_of, until
from typer.testing import CliRunner

from recd_dsi.service.cli import _started, serve
from recd_dsi.service.coordinator import Coordinator
from recd_dsi.service.credentials import NO_CREDENTIALS
from recd_dsi.service.loader import ServiceLoader
from recd_dsi.service.page import metrics
from recd_dsi.service.process_fleets import end_workers
from recd_dsi.service.scaling import Bounds, Scaling
from recd_plugins import load
from recd_plugins.errors import RegistryError
from recd_plugins.testing.resume import assert_same_batch


def client(filled: float, stalled: float = 0.0, most: int = 64) -> dict[str, float]:
    return {"filled": filled, "stalled": stalled, "most": most}


def test_workers_are_added_below_one_mark_and_taken_away_above_the_other() -> None:
    scaling, now = Scaling(Bounds(fewest=2, most=6)), 100.0

    def look(seconds: int, *clients: dict[str, float]) -> int:
        nonlocal now
        for _ in range(seconds):
            now += 1.0
            for one in clients:
                one["stalled"] += 0.5
            scaling.look(clients, now)
        return scaling.wanted

    full, empty = client(1.0), client(0.1)
    assert look(9, full, empty) == 2  # a change has to show first
    assert look(3, full, empty) == 3
    assert "is 10% full over 5 s, and clients stalled 50% of the time: below 25%" in scaling.why
    assert look(11, full, empty) == 4
    assert look(11, full, empty) == 6  # by half as many more
    assert look(99, full, empty) == 6
    assert look(99, client(0.5)) == 6  # between the marks
    assert look(99) == 6  # nobody asks
    assert look(10, full) == 5
    assert "above 90%" in scaling.why
    assert look(31, full) == 4
    assert look(199, full) == 2
    assert look(99, client(0.0, most=1), client(0.0, most=2)) == 3  # no more are asked
    assert (scaling.ups, scaling.downs) == (4, 4)
    text = metrics({"workers": [], "clients": [], "scaling": scaling.about()})
    assert "\nrecd_workers_wanted 3\n" in text
    assert 'recd_scalings_total{direction="down"} 4\n' in text


def test_bounds_that_are_none_are_refused(tables: Path) -> None:
    with pytest.raises(RegistryError, match="from 3 to 2 workers"):
        Bounds(fewest=3, most=2)
    for wrong in ({"workers": 3, "most_workers": 2}, {"most_workers": 4, "coordinator": "h:1"}):
        with pytest.raises(RegistryError, match="most_workers"):
            stack_of(tables, {"use": "service", **wrong})


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("--registry nowhere.yaml", "nowhere.yaml: there is no such registry"),
        ("--registry no-dataset.yaml", "nothing fills the slot 'dataset'"),
        (
            "--workers 5 --most-workers 2",
            "--most-workers: 2 is fewer than the 5 of --workers. Raise it, or lower --workers.",
        ),
        ("--registry right.yaml --host 0.0.0.0", "--host: '0.0.0.0' stands for all addresses"),
    ],
)
def test_a_coordinator_says_where_it_serves_once_what_it_is_given_is_right(
    options: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("no-dataset.yaml").write_text("plugins: [recd_dsi]\n")
    Path("right.yaml").write_text("plugins: [recd_dlrm, recd_dsi]\ndataset: sessions\n")
    refused = CliRunner().invoke(serve, ["coordinator", *options.split()])
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert says in refused.stderr


@pytest.mark.ranks
def test_batches_stay_while_workers_come_and_go(tables: Path) -> None:
    theirs = iter(stack_of(tables, {"use": "local"}).loader(0, 1))
    reader = {"use": "service", "workers": 1, "most_workers": 3, "when_none_answers": "fail"}
    loader = stack_of(tables, {**reader, "patience": 60, "prefetch_mib": 1}).loader(0, 1)
    assert isinstance(loader, ServiceLoader)
    ours, fleet = iter(loader), loader.fleet()
    assert fleet.backend is not None
    assert fleet.scaler is not None
    fleet.scaler.close()  # which would have as many as this loader's buffer asks for
    for workers in (3, 1, 2):
        for left, right in islice(zip(theirs, ours, strict=True), 10):
            assert_same_batch(left, right)
        fleet.resize(workers)
        assert len(fleet.backend.pids) == workers
    for left, right in zip(theirs, ours, strict=True):
        assert_same_batch(left, right)
    end_workers()


@pytest.mark.ranks
def test_workers_that_a_coordinator_starts_listen_where_it_does(
    tables: Path, tmp_path: Path
) -> None:
    registry = tmp_path / "registry.yaml"
    dataset = {"use": "parquet"} | {name: str(tables / name) for name in ("train", "test")}
    values = {"plugins": ["recd_dsi"], "folder": str(tmp_path / "made"), "dataset": dataset}
    registry.write_text(json.dumps(values))
    server = Coordinator("127.0.0.2")
    backend = _started(load(registry), "local", 1, server, NO_CREDENTIALS)
    try:
        until(lambda: len(server.members) == 1)
        (worker,) = server.members.there()
        assert worker["address"].startswith("127.0.0.2:")
    finally:
        backend.close()
        server.shutdown()
