"""Rung 1 and 3 (values, HTTP): the coordinator's page and metrics show what workers have done."""

from __future__ import annotations

import json
import shutil
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from service_jobs import stack_of

from recd_dsi.service.coordinator import Coordinator
from recd_dsi.service.coordinator_callers import join
from recd_dsi.service.credentials import NO_CREDENTIALS
from recd_dsi.service.page import Page, Rates, metrics
from recd_dsi.service.worker import Worker, WorkerOptions

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "google-chrome"))), None)
TAKEN = 30


@pytest.fixture(scope="module")
def page(tables: Path) -> Iterator[Page]:
    """Of a coordinator with a worker, from which a rank has taken some batches."""
    patches = pytest.MonkeyPatch()
    # On a busy machine those that are there say nothing for longer.
    for module in ("coordinator", "members"):
        patches.setattr(f"recd_dsi.service.{module}.SILENCE", 1000.0)
    coordinator = Coordinator()
    stack = stack_of(
        tables,
        {"use": "service", "workers": 1, "patience": 120, "coordinator": coordinator.address},
        "ikjt",
    )
    worker = Worker(stack.delivery(), WorkerOptions())
    for server in (coordinator, worker):
        threading.Thread(target=server.serve, daemon=True).start()
    join(worker, coordinator.address, NO_CREDENTIALS)
    found = Page(coordinator.known)
    loader = stack.loader(0, 1)
    taken = list(islice(loader, TAKEN))
    yield found
    assert len(taken) == TAKEN
    found.close()
    worker.stop()
    coordinator.shutdown()
    patches.undo()


def get(page: Page, path: str, host: str = "") -> str:
    request = urllib.request.Request(page.address + path, headers={"Host": host} if host else {})
    with urllib.request.urlopen(request, timeout=300) as answer:
        return answer.read().decode()


def once(found: Callable[[], Any], right: Callable[[Any], bool]) -> Any:
    until = time.monotonic() + 300
    while not right(latest := found()):
        assert time.monotonic() < until, latest
        time.sleep(0.2)
    return latest


def all_taken(state: dict[str, Any]) -> bool:
    """Whether both have spoken since; each speaks for itself, about once a second."""
    if not (state["workers"] and state["clients"]):
        return False
    (worker,), (client,) = state["workers"], state["clients"]
    # What a worker says while it makes a batch may have it in one number and not in another.
    done = worker["made"] >= worker["served"] >= TAKEN and worker["rows"] == 32 * worker["made"]
    return client["taken"] == TAKEN and done


@pytest.mark.slow
def test_the_numbers_are_those_of_workers_and_clients(page: Page) -> None:
    state = once(lambda: json.loads(get(page, "/state")), all_taken)
    (worker,), (client,) = state["workers"], state["clients"]
    assert worker["seat"] == "0"
    assert worker["buffer_bytes"] > 0
    assert client["read_here"] == 0
    text = get(page, "/metrics")
    assert "\nrecd_workers 1\n" in "\n" + text
    assert f'recd_client_taken_total{{client="{client["id"]}"}} {TAKEN}\n' in text
    assert f'recd_worker_made_total{{worker="{worker["id"]}"}}' in text


def test_nothing_else_is_answered(page: Page) -> None:
    for path, host, code in (("/etc", "", 404), ("/", "elsewhere.example:80", 403)):
        with pytest.raises(urllib.error.HTTPError, match=str(code)) as error:
            get(page, path, host)
        error.value.close()


def test_rates_are_means_of_the_latest_seconds() -> None:
    rates, worker = Rates(), {"id": "a", "made": 0, "rows": 0}
    for second in range(31):
        worker |= {"made": second if second < 20 else 20, "rows": 32 * second}
        rates.note({"workers": [worker], "clients": []}, float(second))
    assert rates.of("workers a")["rows_per_s"] == 32
    assert rates.of("workers a")["made_per_s"] == 0
    rates.note({"workers": [], "clients": []}, 32.0)
    assert rates.of("workers a") == {}


def test_a_name_cannot_leave_its_label() -> None:
    text = metrics({"workers": [{"id": 'a"} 1\nb\\', "made": "many"}], "clients": []})
    assert 'recd_worker_made_total{worker="a\\"} 1\\nb\\\\"} 0\n' in text


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="needs the browser chromium")
def test_a_browser_draws_the_numbers(page: Page, tmp_path: Path) -> None:
    assert CHROMIUM is not None
    done = subprocess.run(
        [
            CHROMIUM,
            *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
            *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
            *(f"--user-data-dir={tmp_path}", "--virtual-time-budget=3000", "--dump-dom"),
            page.address,
        ],
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    state = json.loads(get(page, "/state"))
    assert f"<td>{state['workers'][0]['address']}</td>" in done.stdout
    assert "Rates are means" in done.stdout
