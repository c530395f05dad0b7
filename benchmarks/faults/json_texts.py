"""Texts of JSON that other programs write, or a hand mends: programs of transforms, read logs.

Each value of one is made odd, or its text is cut or altered. It is then read in this process: as
what it says, or with an error that names it. What was altered is never taken, unless whoever did it
wrote the digest anew; then a program's transforms are made, or refused.
"""

from __future__ import annotations

import copy
import json
import random
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

from benchmarks.faults.cases import LONGEST, Breach, Case, Kind
from benchmarks.faults.jobs import READ
from benchmarks.faults.programs import Place
from recd_plugins.data.reader.read_log import popularity, with_digest
from recd_plugins.data.schema import Schema, SparseFeature
from recd_plugins.errors import RecdError
from recd_plugins.registry import Registry
from recd_plugins.registry.program import TransformProgram

__all__ = ["JSON_TEXTS"]

SCHEMA = Schema(
    session_id=None,
    timestamp=None,
    dense=("x", "y"),
    sparse=tuple(SparseFeature(name=name, num_ids=50) for name in "ab"),
)
STEPS = [
    {"use": "map_id", "features": "a", "ids": {3: 1, 4: 2}, "other": 9},
    {"use": "n_gram", "of": ["b"], "modulo": 100, "into": "pairs"},
    {"use": "sigrid_hash", "features": ["pairs", "b"], "modulo": 17},
    {"use": "bucketize", "features": "x", "borders": [0.0], "keep": False},
    {"use": "logit", "features": "y"},
]
ODD: tuple[Any, ...] = (
    *(None, True, 0, -1, 0.5, 2**63, 10**400, float("nan"), float("inf"), "", "x", "a\0b"),
    *("..", "/dev/zero", "a_fifo", "~nosuchuser/x", 5_000 * "x", "\ud800", [], {}, [[]], [None]),
    *({"a": 1}, {"pairs": 1}, {"pairs": [[1, 2, 3]]}, {"use": "nobody"}, list(range(2_000))),
)
DAMAGES = ("cut", "a byte altered", "nested", "empty", "no UTF-8")


def _program() -> str:
    registry = Registry.load({"plugins": ["recd_dsi"], "preprocess": STEPS})
    return TransformProgram.of(registry, SCHEMA).to_json()


def _read_program(file: Path) -> str:
    program = TransformProgram.from_json(file.read_bytes(), str(file))
    program.transform()
    return program.to_json()


def _read_log(file: Path) -> str:
    return json.dumps(sorted(popularity(file, days=1e5).items()))


def _draw(draw: random.Random) -> Iterator[Case]:
    while True:
        if draw.random() < 0.25:
            what, at = draw.choice(("program", "read log")), draw.random()
            damage = draw.choice(DAMAGES)
            yield Case(
                what=f"a {what}, {damage} at {at:.4f} of it", run=partial(_cut, what, damage, at)
            )
        elif draw.random() < 0.7:
            yield _odd_program(draw)
        else:
            yield _odd_line(draw)


def _odd_program(draw: random.Random) -> Case:
    content = json.loads(_program())
    path = draw.choice(list(_paths(content)))
    odd, anew = draw.choice(ODD), draw.random() < 0.7
    changed = _with(content, path, odd)
    where = ".".join(map(str, path))
    how = ", its digest written anew" if anew else ""
    what = f"a program with {where}: {json.dumps(odd)[:100]}{how}"
    same = changed == content
    return Case(what=what, run=partial(_try_program, changed, anew, same))


def _try_program(changed: Any, anew: bool, same: bool, place: Place) -> Iterator[Breach]:
    if anew and isinstance(changed, dict):
        kept = {key: value for key, value in changed.items() if key != "digest"}
        changed = {**kept, "digest": _digest_of(kept)}
    file = place.write("program.json", json.dumps(changed))
    read, breaches = _read(file, _read_program)
    yield from breaches
    if read is not None and not anew and not same:
        yield Breach("silent change", "an altered program is taken")


def _digest_of(content: dict[str, Any]) -> str:
    return sha256(json.dumps(content, sort_keys=True, indent=1).encode()).hexdigest()


def _odd_line(draw: random.Random) -> Case:
    line = json.loads(READ)
    path = draw.choice([*_paths(line), ()])
    odd, last, anew = draw.choice(ODD), draw.random() < 0.5, draw.random() < 0.5
    changed = _with(line, path, odd)
    where = ".".join(map(str, path)) or "all of it"
    what = f"a read log with {where}: {json.dumps(odd)[:100]}{', in its last line' if last else ''}"
    how = ", its digest written anew" if anew else ""
    same = changed == line
    return Case(what=what + how, run=partial(_try_line, changed, last, anew, same))


def _try_line(changed: Any, last: bool, anew: bool, same: bool, place: Place) -> Iterator[Breach]:
    odd = json.dumps(changed) + "\n"
    if anew and isinstance(changed, dict):
        odd = with_digest({key: value for key, value in changed.items() if key != "digest"})
    file = place.write("read.log", READ + odd if last else odd + READ)
    read, breaches = _read(file, _read_log)
    yield from breaches
    if read is None:
        return
    if not anew and not same:
        yield Breach("silent change", "an altered line is taken")
    columns = changed.get("columns") if isinstance(changed, dict) else None
    known = ["click", "item", *(columns if isinstance(columns, list) else ())]
    strange = [name for name, _ in json.loads(read) if name not in known]
    if strange:
        yield Breach("silent change", f"columns that no line names: {strange[:3]}")


def _cut(what: str, damage: str, at: float, place: Place) -> Iterator[Breach]:
    text = (_program() if what == "program" else 3 * READ).encode()
    first = int(at * len(text))
    match damage:
        case "cut":
            text = text[:first]
        case "a byte altered":
            text = text[:first] + bytes([text[first] ^ 1]) + text[first + 1 :]
        case "nested":
            text = b"[" * 100_000
        case "empty":
            text = b""
        case "no UTF-8":
            text = text[:first] + b"\xff\xfe" + text[first:]
    file = place.write("text.json", text)
    _, breaches = _read(file, _read_program if what == "program" else _read_log)
    yield from breaches


def _read(file: Path, read: Callable[[Path], str]) -> tuple[str | None, Sequence[Breach]]:
    """What is read of a file; nothing where it is refused. And what that breaks."""
    began = time.process_time()
    found = None
    breaches = []
    try:
        found = read(file)
    except RecdError as error:
        if len(str(error)) > LONGEST:
            breaches.append(Breach("unclear", f"a message of {len(str(error)):,} characters"))
    except Exception as error:
        breaches.append(Breach("traceback", f"{type(error).__name__}: {str(error)[:300]}"))
    if time.process_time() - began > 60:
        breaches.append(Breach("hang", "more than a minute for a small text"))
    return found, breaches


def _paths(value: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The places of all values within, by keys and indices."""
    if above:
        yield above
    if isinstance(value, dict | list):
        for key, one in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _paths(one, (*above, key))


def _with(value: Any, path: tuple[Any, ...], other: Any) -> Any:
    if not path:
        return other
    changed = copy.deepcopy(value)
    inside = changed
    for key in path[:-1]:
        inside = inside[key]
    inside[path[-1]] = other
    return changed


JSON_TEXTS = Kind(name="json-texts", draw=_draw, quick=100, full=600)
