"""Odd registries: each option of each slot with each odd value, in a file or as an override."""

from __future__ import annotations

import random
from collections.abc import Iterator

from benchmarks.faults.cases import Breach, Case, Kind, breaches_of
from benchmarks.faults.jobs import JOB, furnish, written
from benchmarks.faults.odd_values import ODD_YAML
from benchmarks.faults.programs import Ended, Place, contents
from recd_plugins.describe import type_hints
from recd_plugins.planning.cluster.topology import Topology
from recd_plugins.registry import Registry
from recd_plugins.registry.settings import OptimizerSettings, TrainSettings
from recd_plugins.slots import SLOTS

__all__ = ["REGISTRIES", "at_work"]

LIMIT = 45.0
"""Seconds for a job that trains in two."""


def draw(generator: random.Random) -> Iterator[Case]:
    options = list(_options())
    pairs = [(option, value) for option in options for value in ODD_YAML]
    generator.shuffle(pairs)
    for (place, others), value in pairs:
        if "\n" in value or not generator.random() < 0.5:
            yield _in_the_file(place, others, value)
        else:
            yield _as_an_override(place, others, value)


def _options() -> Iterator[tuple[str, tuple[str, ...]]]:
    """The path of each option, and the overrides without which nothing would have it."""
    for key in ("plugins", "folder", "topology", "strict", "train", *SLOTS):
        yield key, ()
    for config, place in (
        (TrainSettings, "train"),
        (OptimizerSettings, "train.optimizer"),
        (Topology, "topology"),
    ):
        for name in type_hints(config):
            yield f"{place}.{name}", ()
    catalog = Registry.load(JOB).catalog
    for name, slot in SLOTS.items():
        for claim in catalog.of(name):
            use = f"{{use: {claim.record.name}}}"
            place = {"one": name, "many": f"{name}.0", "by feature": f"{name}.*"}[slot.fills]
            value = {"one": use, "many": f"[{use}]", "by feature": f"{{'*': {use}}}"}[slot.fills]
            for option in type_hints(claim.record.config):
                yield f"{place}.{option}", (f"{name}={value}",)


def _as_an_override(option: str, others: tuple[str, ...], value: str) -> Case:
    def run(place: Place) -> Iterator[Breach]:
        furnish(place)
        yield from _trained(place, option, [*others, f"{option}={value}"])

    return Case(what=f"recd train {' '.join(others)} {option}={value}", run=run)


def _in_the_file(option: str, others: tuple[str, ...], value: str) -> Case:
    """The option written into registry.yaml, by its path: a mapping in flow style, so that the
    value may be any text."""

    def run(place: Place) -> Iterator[Breach]:
        furnish(place)
        *above, last = option.split(".")
        text = f"{{{last}: {value}}}"
        for key in reversed(above):
            text = f"[{text}]" if key == "0" else f"{{'{key}': {text}}}"
        (key,) = above[:1] or [last]
        kept = {name: one for name, one in JOB.items() if name != key}
        place.write("registry.yaml", f"{written(kept)}{text[1:-1]}\n")
        yield from _trained(place, option, [])

    return Case(what=f"registry.yaml with {option}: {value}", run=run)


def _trained(place: Place, option: str, overrides: list[str]) -> Iterator[Breach]:
    before = contents(place.folder)
    ended = place.recd("train", *overrides, limit=LIMIT)
    if at_work(ended, place):
        return
    yield from breaches_of(ended)
    if ended.code == 0 or "the run before is now" in ended.output:
        return  # it began, and the run that was there has another name
    after = contents(place.folder)
    changed = [path for path, digest in before.items() if after.get(path) != digest]
    if changed:
        yield Breach("silent change", f"a refused job changed {', '.join(changed[:3])}")


def at_work(ended: Ended, place: Place) -> bool:
    """Whether what ran past its limit was doing what it was asked to, and showed it: a million
    steps take long, and so do a billion rows, of which the first are in a file by then; and a
    server serves until it is ended."""
    shown = "train step" in ended.output or ended.output.startswith("serves ")
    return ended.late and (shown or any(place.folder.rglob("*.part/*")))


REGISTRIES = Kind(name="registries", draw=draw, quick=60, full=900)
