"""Odd topology files: values, keys and texts that a planner must not count with."""

from __future__ import annotations

import random
from collections.abc import Iterator

from benchmarks.faults.cases import Breach, Case, Kind, breaches_of
from benchmarks.faults.jobs import furnish
from benchmarks.faults.odd_values import ODD_YAML
from benchmarks.faults.programs import Place
from recd_plugins.describe import type_hints
from recd_plugins.planning.cluster.topology import Link, Topology

__all__ = ["TOPOLOGY_FILES"]

WHOLE = (
    "",
    "[]",
    "a",
    "\0",
    "\xff",
    "a: 1\na: 2",
    "ranks_per_node: 1\nranks_per_node: 2",
    "%YAML 9.9\n---\n{}",
    "{}\n---\n{}",
    "\t{}",
    "&a {a2a_global: *a}",
    "a: &a [x,x]\nb: &b [*a,*a]\nc: &c [*b,*b]\nd: [*c,*c]",
    "gbps: 1",
)
"""Files as a whole."""
LIMIT = 60.0


def draw(generator: random.Random) -> Iterator[Case]:
    links = [
        f"{name}.{part}"
        for name in type_hints(Topology)
        if name.startswith(("a2a", "ar_"))
        for part in type_hints(Link)
    ]
    texts = list(WHOLE)
    for option in [*type_hints(Topology), *links]:
        for value in ODD_YAML:
            key, _, part = option.partition(".")
            texts.append(f"{key}: {{gbps: 1, {part}: {value}}}" if part else f"{key}: {value}")
    generator.shuffle(texts)
    for text in texts:
        yield _case(text, generator.choice(["explain", "plan"]))


def _case(text: str, command: str) -> Case:
    def run(place: Place) -> Iterator[Breach]:
        furnish(place)
        place.write("topology.yaml", text.encode("latin-1", "backslashreplace"))
        ended = place.recd(command, "topology=topology.yaml", "train.ranks=2", limit=LIMIT)
        yield from breaches_of(ended, mentions=("topology",))

    return Case(what=f"recd {command} with a topology.yaml of {text!r}", run=run)


TOPOLOGY_FILES = Kind(name="topology-files", draw=draw, quick=40, full=300)
