"""Transforms against plain Python, and on unique samples against all samples."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from benchmarks.dsi.plain import PLAIN, PLAIN_DENSE
from benchmarks.harness import Figure, Limit, Round, alternate, dropped, spread
from recd_dsi import recd_preprocess
from recd_plugins.api import Context
from recd_plugins.api.batch import InverseKeyedJaggedTensor, RowWise
from recd_plugins.api.data import Schema, SparseFeature
from recd_plugins.config import parse
from recd_plugins.data.preprocess.batch_transform import BatchTransform

__all__ = ["CHAIN", "DENSE", "IN_PLACE", "NEW", "transforms"]

IN_PLACE: dict[str, dict[str, Any]] = {
    "sigrid_hash": {"modulo": 100_000},
    "positive_modulus": {"modulo": 1000},
    "clamp": {"low": 10, "high": 400},
    "map_id": {"ids": {n: n % 97 for n in range(0, 500, 2)}, "other": 99},
    "get_local_hour": {"zone": "Europe/Berlin"},
    "first_x": {"n": 10},
    "sampling": {"share": 0.5},
}
NEW: dict[str, dict[str, Any]] = {
    "n_gram": {"of": ["a"], "n": 3, "modulo": 100_000},
    "cartesian": {"left": "b", "right": "c", "modulo": 100_000},
    "intersection": {"left": "a", "right": "b"},
    "union": {"left": "a", "right": "b"},
    "enumerate": {"of": "a", "longest": 50},
}
DENSE: dict[str, dict[str, Any]] = {
    "bucketize": {"borders": [n / 10 for n in range(-20, 20)]},
    "logit": {},
    "box_cox": {"lam": 0.3, "shift": 5.0},
    "onehot": {"n": 8},
    "clamp_dense": {"low": -1.0, "high": 1.0},
}
CHAIN = ("n_gram", "cartesian", "union", "sigrid_hash", "first_x")
"""What runs one after another on unique samples: all kinds, the dearest first."""

LENGTHS = {"a": 30, "b": 20, "c": 4}
SINCE = 1_700_000_000
COLUMNS = 16
RECORDS = {record.name: record for record in recd_preprocess()}


def transforms(batch_size: int, rounds: int, *, samples_per_session: int = 8) -> list[Figure]:
    """Every transform on a batch; then a chain on the unique samples of one with sessions."""
    features = _features(batch_size, samples_per_session)
    lists = {key: features[key].to_dense() for key in features.keys()}  # noqa: SIM118  # no mapping
    rows = {key: [row.tolist() for row in each] for key, each in lists.items()}
    dense = torch.randn(batch_size, COLUMNS, generator=torch.Generator().manual_seed(0))
    measured: dict[str, dict[str, list[Round]]] = {}
    for name in (*IN_PLACE, *NEW):
        measured[name] = alternate(_of_ids(name, features, rows), rounds, of=name)
    for name in DENSE:
        measured[name] = alternate(_of_floats(name, dense), rounds, of=name)
    each = {
        name: statistics.median(
            one.wall / other.wall for one, other in zip(sides["plain"], sides["ours"], strict=True)
        )
        for name, sides in measured.items()
    }
    totals = {
        side: [
            sum(parts)
            for parts in zip(
                *([one.cpu for one in sides[side]] for sides in measured.values()), strict=True
            )
        ]
        for side in ("plain", "ours")
    }
    gains = [one / other for one, other in zip(totals["plain"], totals["ours"], strict=True)]
    return [
        Figure(
            name="transforms against plain Python",
            value=statistics.median(gains),
            unit="x faster",
            baseline=1.0,
            target=50,
            spread=spread(gains),
            note=f"all {len(each)}, {batch_size:,} samples, processor time; each by the clock: "
            + ", ".join(f"{name} {gain:,.0f}x" for name, gain in each.items()),
        ),
        on_unique(features, rounds),
    ]


def on_unique(features: KeyedJaggedTensor, rounds: int) -> Figure:
    """The chain on an IKJT against the chain on its samples."""
    keys = features.keys()
    ikjt = InverseKeyedJaggedTensor.from_kjt(features, [keys])
    factor = ikjt.dedupe_factor()
    steps: list[tuple[tuple[str, ...], RowWise]] = []
    schema = _schema(keys)
    for name in CHAIN:
        options = {**IN_PLACE, **NEW}[name]
        transform = _built(name, options | ({"into": name} if name in NEW else {}))
        takes = getattr(transform, "takes", schema.sparse_names)
        steps.append(
            (takes, RowWise(transform, _names(transform, schema) if name in NEW else None))
        )
        schema = _after(transform, schema)
    chain = BatchTransform(steps)
    none = KeyedJaggedTensor(
        keys=[],
        values=features.values()[:0],
        lengths=features.lengths()[:0],
        stride=features.stride(),
    )
    sides = {
        "all": dropped(partial(chain.of, features)),
        "unique": dropped(partial(chain.of, none, dedup=ikjt)),
    }
    measured = alternate(sides, rounds * 3, of="transforms on unique samples")
    gains = [
        one.cpu / other.cpu for one, other in zip(measured["all"], measured["unique"], strict=True)
    ]
    times = [1e3 * statistics.median(one.cpu for one in measured[side]) for side in sides]
    return Figure(
        name="transforms on unique samples",
        value=statistics.median(gains),
        unit="x faster",
        baseline=1.0,
        target=0.9 * factor,
        limit=Limit(value=factor, of="the DedupeFactor: as much work a unique id as an id"),
        spread=spread(gains),
        note=f"{', '.join(CHAIN)}; {times[0]:,.1f} over {times[1]:,.1f} ms of processor time; "
        f"target: 0.9 x DedupeFactor {factor:.2f}",
    )


def _names(transform: Any, schema: Schema) -> Callable[..., Any]:
    def made(keys: Any) -> tuple[str, ...]:
        part = Schema(sparse=tuple(map(schema.feature, keys)))
        names: tuple[str, ...] = transform.schema(part).sparse_names
        return names

    return made


def _after(transform: Any, schema: Schema) -> Schema:
    """The schema with what it makes of the features that it takes, or of all."""
    made: Schema = transform.schema(schema)
    return made


def _schema(keys: Any) -> Schema:
    return Schema(sparse=tuple(SparseFeature(name=key, num_ids=2**40) for key in keys))


def _built(name: str, options: dict[str, Any]) -> Any:
    record = RECORDS[name]
    return record.build(parse(record.config, options, name), Context())


def _features(batch_size: int, samples_per_session: int) -> KeyedJaggedTensor:
    """Rows of sessions: ids of 500, rows of 0 to twice a feature's mean length."""
    draw = np.random.default_rng(0)
    sessions = -(-batch_size // samples_per_session)
    values, lengths = [], []
    for mean in LENGTHS.values():
        sizes = draw.integers(0, 2 * mean + 1, sessions)
        each = [draw.integers(0, 500, size) for size in sizes]
        repeated = [row for row in each for _ in range(samples_per_session)][:batch_size]
        values += repeated
        lengths += [len(row) for row in repeated]
    return KeyedJaggedTensor(
        keys=list(LENGTHS),
        values=torch.from_numpy(np.concatenate(values)),
        lengths=torch.tensor(lengths, dtype=torch.int32),
    )


def _of_ids(
    name: str, features: KeyedJaggedTensor, rows: dict[str, list[list[int]]]
) -> dict[str, Callable[[], Any]]:
    """Both sides on the features that the transform takes."""
    options = IN_PLACE.get(name) or NEW[name] | {"into": "made"}
    sources = [options[side] for side in ("left", "right")] if "left" in options else ["a"]
    taken = _only(features, sources)
    given = [rows[key] for key in sources]
    if name == "get_local_hour":
        taken = KeyedJaggedTensor(
            keys=taken.keys(), values=SINCE + taken.values() * 3600, lengths=taken.lengths()
        )
        given = [[[SINCE + id_ * 3600 for id_ in row] for row in given[0]]]
    plain = {key: one for key, one in options.items() if key not in {"of", "into", "left", "right"}}
    return {
        "plain": dropped(partial(PLAIN[name], *given, **plain)),
        "ours": dropped(partial(_built(name, options), taken)),
    }


def _only(features: KeyedJaggedTensor, keys: list[str]) -> KeyedJaggedTensor:
    return KeyedJaggedTensor(
        keys=keys,
        values=torch.cat([features[key].values() for key in keys]),
        lengths=torch.cat([features[key].lengths() for key in keys]),
    )


def _of_floats(name: str, dense: torch.Tensor) -> dict[str, Callable[[], Any]]:
    schema = Schema(dense=tuple(f"d{n}" for n in range(dense.shape[1])))
    lists = dense.t().tolist()

    def plain() -> list[Any]:
        return [PLAIN_DENSE[name](column, **DENSE[name]) for column in lists]

    return {
        "plain": dropped(plain),
        "ours": dropped(partial(_built(name, DENSE[name]), dense, schema)),
    }
