"""Rung 2 (properties): registries drawn from seeds, whose batches workers of the reader service
make: bit for bit those of the local reader, in any order, from any position, by any memory.

`DRAWN=1000:1400 pytest tests/data/test_drawn_service.py` draws others.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from pathlib import Path
from random import Random
from threading import Thread
from typing import Any

import pytest
import torch
from drawn_table import Drawn, drawn

from recd_dsi.service.credentials import NO_CREDENTIALS
from recd_dsi.service.fleet import Fleet
from recd_dsi.service.loader import ServiceLoader
from recd_dsi.service.worker import Worker, WorkerOptions
from recd_plugins.data.batch import Batch
from recd_plugins.data.wired_batch import batch_to_record
from recd_plugins.errors import RecdError
from recd_plugins.notices import NoticeWarning
from recd_plugins.registry.delivery import Delivery
from recd_plugins.slots import Loader
from recd_plugins.stack import Stack, load

FIRST, LAST = map(int, os.environ.get("DRAWN", "50:60").split(":"))
LONG = 300.0
"""Seconds: no worker is taken for one that hangs, however busy the machine is."""
READS = {"patience": LONG, "hedge": LONG, "deadline": LONG, "when_none_answers": "fail"}


@pytest.mark.parametrize("seed", range(FIRST, LAST))
def test_workers_make_what_the_local_reader_makes_of_a_drawn_registry(
    seed: int, tmp_path: Path
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NoticeWarning)
        check(Random(f"service {seed}"), drawn(seed, tmp_path), tmp_path)


def check(random: Random, one: Drawn, folder: Path) -> None:
    registry, world_size = varied(random, one)
    reader = {key: value for key, value in registry["reader"].items() if key != "prefetch"}
    workers = random.choice([1, 2, 3])
    reader |= {"use": "service", "workers": workers, **READS}
    share = random.randrange(world_size), world_size, random.choice(["train", "train", "test"])
    stacks = load(registry), load({**registry, "reader": reader})
    loaders: list[Any] = []
    errors: list[str] = []
    for stack in stacks:
        try:
            loaders.append(stack.loader(*share))
        except RecdError as error:
            errors.append(str(error))
    if errors:
        assert errors[0] == errors[-1]
        assert not loaders
        return
    sizes = [1, 1000, 30_000, 1 << 26]
    options = WorkerOptions(
        buffer_bytes=random.choice(sizes),
        disk=random.choice([None, folder / "cache"]),
        disk_bytes=random.choice(sizes),
        shared_bytes=random.choice([0, 4096, 1 << 26]),
    )
    asks = {
        "prefetch_bytes": random.choice(sizes),
        "shared_bytes": random.choice([0, 4096, 1 << 26]),
    }
    with serving(stacks[1], workers, options) as fleet:

        def opened(state: dict[str, Any] | None = None) -> list[Any]:
            both = [stack.loader(*share) for stack in stacks]
            assert isinstance(both[1], ServiceLoader)
            both[1]._options, both[1].fleet = replace(both[1]._options, **asks), lambda: fleet
            for loader in both if state else ():
                loader.load_state_dict(state)
            return both

        local, service = opened()
        told = [epoch(local), epoch(service)]
        assert told[0] == told[1]
        if told[0][1] or not len(local):
            return
        position = random.randrange(1, len(local) + 1)
        state = epoch(random.choice([local, service]), position)[0][-1][1]
        local, service = opened(json.loads(state))
        for _ in range(2):  # the rest of that epoch, and the next
            assert epoch(local) == epoch(service)
        assert service.read_here == 0


def varied(random: Random, one: Drawn) -> tuple[dict[str, Any], int]:
    """The drawn registry in other batches and streams, with groups that are advised."""
    registry, world_size = dict(one.registry), random.choice([1, 2, 3])
    streams = random.choice([1, 2, 3])
    size = random.choice([1, 2, 5, 16]) * streams
    registry["train"] = {**registry["train"], "batch_size": size, "seed": random.choice([0, 2**62])}
    if streams > 1:
        registry["reader"] = {**registry["reader"], "streams": streams * world_size}
    if "dedup" not in registry and random.random() < 0.3:
        registry["dedup"] = random.choice(["exact", "partial", {"use": "exact", "weigh": "bytes"}])
    return registry, world_size


@contextmanager
def serving(stack: Stack, workers: int, options: WorkerOptions) -> Iterator[Fleet]:
    """Workers in this process, which have the registry as text, as others do."""
    delivery = Delivery.from_text(stack.delivery().text())
    there = [Worker(delivery, options) for _ in range(workers)]
    fleet = Fleet(NO_CREDENTIALS, workers)
    for worker in there:
        Thread(target=worker.serve, daemon=True).start()
    fleet.set_workers({seat: worker.address for seat, worker in enumerate(there)})
    try:
        yield fleet
    finally:
        fleet.close()
        for worker in there:
            worker.stop()


def epoch(loader: Loader, most: int | None = None) -> tuple[list[tuple[bytes, str]], str]:
    """Each batch's bytes, types and keys, and the state behind it; and the error that ended it."""
    found: list[tuple[bytes, str]] = []
    try:
        found.extend(
            (as_bytes(batch), json.dumps(loader.state_dict(), sort_keys=True))
            for batch in islice(loader, most)
        )
    except RecdError as error:
        return found, f"{type(error).__name__}: {error}"
    return found, ""


def as_bytes(batch: Batch) -> bytes:
    """All that a batch holds, to the bit: NaN is NaN; and what TorchRec counts of its KJTs."""
    plain = replace(batch, features=batch.features)
    for kjt in (plain.features, getattr(plain.dedup, "kjt", plain.dedup)):
        if kjt is not None:
            _ = kjt.length_per_key()
    head, body = batch_to_record(plain).to_pylist()[0].values()
    assert plain.labels.dtype == torch.float32
    return bytes(head + body)
