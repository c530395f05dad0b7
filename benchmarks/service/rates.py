"""Rows a second, the trainer's processor time and bytes on the wire, beside the local reader's."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.harness import Figure, Limit, alternate, spread
from benchmarks.limits import decoding
from benchmarks.service.plain import copied, packed, plain_flight
from benchmarks.service.processes import begin_anew, cores, processor_seconds, worker_of
from benchmarks.service.registries import KINDS, LOCAL, SEQUENCES, service, stack_of
from recd_dsi.service.loader import ServiceLoader
from recd_dsi.service.maker import TOGETHER
from recd_dsi.service.process_fleets import end_workers
from recd_plugins.data.batch import Batch
from recd_plugins.data.wired_batch import batch_to_record, joined_records
from recd_plugins.sparse.jagged import without

__all__ = ["ONE", "ROWS_TARGETS", "WAYS", "one_worker", "rows_of", "second_job", "wire"]

ONE = {**LOCAL, "use": "service", "workers": 1, "when_none_answers": "fail", "patience": 120}
WAYS = {"shared memory": {}, "the wire": {"shared_memory_mib": 0}}
"""The ways in which batches come from a worker of the same machine."""
ROWS_TARGETS = {
    ("IKJT", "shared memory"): 0.85,
    ("IKJT", "the wire"): 0.85,
    ("KJT", "shared memory"): 0.8,
    ("KJT", "the wire"): 0.6,
}


class Taken(NamedTuple):
    """An epoch of a loader."""

    rows: int
    worker: float
    """Seconds of the worker's processor time."""


def one_worker(
    folder: Path, rounds: int, size: str = "", /, *, samples: int, batch_size: int
) -> list[Figure]:
    """Each round is another epoch, so no batch comes from a cache. Figures of batches with another
    size than usual name that size."""
    sizes = {"samples": samples, "batch_size": batch_size}
    return [figure for kind in KINDS for figure in _one_worker(folder, rounds, kind, sizes, size)]


def _one_worker(
    folder: Path, rounds: int, kind: str, sizes: Mapping[str, int], size: str
) -> Iterator[Figure]:
    stack = stack_of(folder, kind, LOCAL, **sizes)
    local, table = stack.loader(0, 1), stack.prepare().train
    columns = [table.schema.label, *table.schema.dense, *table.schema.sparse_names]
    ours = {
        way: service(stack_of(folder, kind, {**ONE, **more}, **sizes)) for way, more in WAYS.items()
    }
    batches = list(local)
    count = len(batches)
    body = statistics.mean(batch_to_record(batch).nbytes for batch in batches)
    with plain_flight(int(body), count) as plain:
        sides: dict[str, Callable[[], Any]] = {
            "local": lambda: Taken(rows_of(local), 0.0),
            **{way: partial(_taken, loader) for way, loader in ours.items()},
            "plain Flight": plain,
            "a copy": copied(int(body), count),
            "packing": packed(batches),
            "decoding": decoding(table, columns),
        }
        of = f"one worker, {kind} batches{size}"
        measured = alternate(sides, rounds, of=of, before=partial(begin_anew, *ours.values()))
    end_workers()

    def cpu(side: str) -> float:
        """The milliseconds of the trainer's processor for each batch."""
        return 1e3 * statistics.median(one.cpu for one in measured[side]) / count

    bounds = ", ".join(f"{side} {cpu(side):.3g} ms" for side in ("plain Flight", "a copy"))
    theirs = measured["local"]

    def wall(side: str) -> float:
        return statistics.median(one.wall for one in measured[side])

    def shared_cores(taken: str) -> Limit:
        """The bound for a worker and a client that share the cores which the local reader has for
        itself."""
        sent = statistics.median(one.result for one in measured["plain Flight"])
        work = cpu("local") + cpu("packing") + cpu(taken)
        work += 1e3 * sent / count if taken == "plain Flight" else 0.0
        shared = len(cores()) or os.cpu_count() or 1  # where the system pins nothing, all of them
        return Limit(
            value=1e3 * wall("local") / count / (work / shared),
            of=f"the local reader's processor time, packing and the same bytes by {taken}, spread "
            f"evenly over the {shared} cores that worker and client share; unpacking is left "
            "out",
        )

    decoding_alone = Limit(
        value=wall("local") / wall("decoding"),
        of="a worker that only decodes, by pyarrow on its threads; batches and their way are left "
        "out",
    )
    for way in WAYS:
        taken = "plain Flight" if way == "the wire" else "a copy"
        pairs = list(zip(theirs, measured[way], strict=True))
        limits = (decoding_alone, shared_cores(taken))
        rows = {
            side: statistics.median(r.result.rows / r.wall for r in measured[side])
            for side in ("local", way)
        }
        asked: list[tuple[str, list[float], float | None, bool, Limit, str]] = [
            (
                "rows/s",
                [one.wall / mine.wall for one, mine in pairs],
                ROWS_TARGETS[kind, way],
                False,
                min(limits, key=lambda limit: limit.value),
                f"{rows[way]:,.0f} and {rows['local']:,.0f} rows/s",
            ),
            (
                "processor time of the trainer",
                [mine.cpu / one.cpu for one, mine in pairs],
                0.25,
                True,
                Limit(value=cpu(taken) / cpu("local"), of=f"the same bytes by {taken}"),
                f"{cpu(way):.3g} and {cpu('local'):.3g} ms a batch of {body / 1e3:,.0f} kB, over "
                f"all threads; the same bytes by {bounds}",
            ),
            (
                "processor time of the worker",
                [mine.result.worker / one.cpu for one, mine in pairs],
                None,
                True,
                Limit(
                    value=cpu("decoding") / cpu("local"),
                    of="pyarrow's decoding; batches and their way are left out",
                ),
                "what bounds rows/s where both have processors of their own",
            ),
        ]
        for what, values, target, at_most, limit, note in asked:
            yield Figure(
                name=f"one worker, {kind} batches{size} by {way}: {what}, of the local reader's",
                value=statistics.median(values),
                unit="of 1",
                baseline=1.0,
                target=target,
                at_most=at_most,
                limit=limit,
                spread=spread(values),
                note=note,
            )


def second_job(folder: Path, rounds: int, *, samples: int, batch_size: int) -> Figure:
    """Two loaders of one job take the same epochs, one after the other."""
    reader = {**ONE, "buffer_mib": 2048}
    stacks = [
        stack_of(folder, "IKJT", reader, samples=samples, batch_size=batch_size) for _ in range(2)
    ]
    first, second = map(service, stacks)
    speedups = []
    for number in range(rounds + 1):
        begin_anew(first, second)
        measured = _in_turn(_epoch(first), _epoch(second))
        if number:
            speedups.append(measured)
    end_workers()
    return Figure(
        name="a second job from the worker's cache: rows/s of the first's",
        value=statistics.median(speedups),
        unit="x",
        baseline=1.0,
        target=5,
        spread=spread(speedups),
        note="one worker, IKJT batches in its memory",
    )


def wire(folder: Path, *, samples: int, batch_size: int) -> Iterator[Figure]:
    """The bytes of an epoch's record batches, as they travel, and the part of them that sequences
    take."""
    sizes, sequences, factors = {}, {}, []
    for kind in KINDS:
        loader = stack_of(folder, kind, LOCAL, samples=samples, batch_size=batch_size).loader(0, 1)
        batches = list(loader)
        factors += [batch.dedup.dedupe_factor() for batch in batches if batch.dedup is not None]
        sizes[kind] = _sent(batches)
        sequences[kind] = sizes[kind] - _sent([*map(_without_sequences, batches)])
    factor = statistics.mean(factors)
    everything = sizes["KJT"]
    bound = everything / (everything - sequences["KJT"] + sequences["KJT"] / factor)
    limit = Limit(
        value=bound,
        of="bytes of the sequences over the DedupeFactor, all else as it is; inverse lookups and "
        "headers are left out",
    )
    for what, found in (("", sizes), (" of the deduplicated features alone", sequences)):
        both = " and ".join(f"{found[kind] / 1e6:,.1f}" for kind in ("KJT", "IKJT"))
        yield Figure(
            name=f"KJT batches over the wire, bytes{what} of IKJT batches'",
            value=found["KJT"] / found["IKJT"],
            unit="x",
            baseline=1.0,
            target=0.9 * factor,
            limit=None if what else limit,
            note=f"{both} MB an epoch; DedupeFactor {factor:.2f} of the sequences",
        )


def _sent(batches: Sequence[Batch]) -> int:
    """The bytes of the messages that carry these batches. Each has as many batches as a worker
    sends together to a client that does not wait."""
    records = [batch_to_record(batch) for batch in batches]
    cuts = range(0, len(records), TOGETHER)
    return sum(joined_records(records[at : at + TOGETHER]).nbytes for at in cuts)


def _without_sequences(batch: Batch) -> Batch:
    features = without(batch.features, SEQUENCES if batch.dedup is None else [])
    return replace(batch, features=features, dedup=None)


def _epoch(loader: Iterable[Batch]) -> Callable[[], int]:
    return lambda: rows_of(loader)


def rows_of(loader: Iterable[Batch]) -> int:
    """The rows of an epoch; every id is read, as by a trainer."""
    rows = 0
    for batch in loader:
        rows += len(batch)
        for features in (batch.features, getattr(batch.dedup, "kjt", None)):
            if features is not None:
                features.values().sum()
    return rows


def _taken(loader: ServiceLoader) -> Taken:
    worker = worker_of(loader)
    began = processor_seconds(worker)
    rows = rows_of(loader)
    return Taken(rows, processor_seconds(worker) - began)


def _in_turn(first: Callable[[], int], second: Callable[[], int]) -> float:
    """How many times as fast the second is as the first; both must take the same number of rows."""
    began = time.perf_counter()
    rows = first()
    between = time.perf_counter()
    if second() != rows:
        raise AssertionError("two jobs over one epoch took different rows")
    return (between - began) / (time.perf_counter() - between)
