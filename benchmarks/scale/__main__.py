"""Steps of clusters of 4x8 to 64x8 GPUs, modelled; the papers' figures; forecasts held to reality.

    python -m benchmarks.scale [--quick] [--json] [--papers | --validate [--part 1/3]]

Nothing is measured but with `--validate`, which takes root: whole steps on an emulated cluster,
forecast and timed, in as many parts as are asked for. `--papers` prints every figure of the papers
beside what the prices make of it. Without either, throughput and memory of plain row-wise, of each
paper alone and of all together; the simulation beside them checks the closed form.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from benchmarks.cluster.ranks import EMULATED
from benchmarks.harness import Figure, Report, main
from benchmarks.scale import papers, validation
from benchmarks.scale.devices import A100, H100, DeviceSheet
from benchmarks.scale.modelled import MODELS, job
from benchmarks.scale.sides import PLANS, at_batch, modelled_steps
from benchmarks.scale.simulation import simulated_ms
from recd_plugins.planning.step.step_forecast import StepForecast

__all__ = ["Modelled", "deviations", "measure", "modelled"]

NODES, FEW_NODES = (4, 8, 16, 32, 64), (4, 64)
FEW_MODELS = ("RM1", "RM2", "RM-1")
GIB = 1 << 30


@dataclass(frozen=True)
class Modelled:
    """One step of one plan, on one cluster."""

    model: str
    sheet: DeviceSheet
    n_nodes: int
    plan: str
    weak: bool
    """Whether a rank's batch stays as it is on four nodes, or the batch of all ranks does."""
    step: StepForecast

    def __str__(self) -> str:
        scaling = "" if self.weak else ", the same batch in all"
        return f"{self.model}, {self.sheet.preset}, {self.n_nodes}x8, {self.plan}{scaling}"


def modelled(
    names: Sequence[str],
    sheets: Sequence[DeviceSheet],
    nodes: Sequence[int],
    *,
    strong: bool = True,
) -> Iterator[Modelled]:
    """Every plan on every cluster, with weak scaling, and with `strong`."""
    for name in names:
        for sheet in sheets:
            whole = job(name, sheet)
            for n_nodes in nodes:
                for weak in (True, False) if strong and n_nodes > nodes[0] else (True,):
                    size = whole.batch_size if weak else whole.batch_size * nodes[0] // n_nodes
                    steps = modelled_steps(at_batch(whole, size), sheet.cluster(n_nodes))
                    for plan, step in steps.items():
                        yield Modelled(name, sheet, n_nodes, plan, weak, step)


def deviations(every: Sequence[Modelled]) -> list[float]:
    """Of the closed form from the simulation, per cent of it."""
    return [100 * (one.step.ms / simulated_ms(one.step) - 1) for one in every]


def measure(quick: bool, *, only: str = "", part: tuple[int, int] = (1, 1)) -> Report:
    settings: dict[str, object] = {}
    if only == "validate":
        settings["cluster"] = (
            f"{EMULATED}; links, ranks and the model without its tables are timed first"
        )
        settings["part"] = f"{part[0]} of {part[1]}"
        return Report(figures=validation.figures(quick, part), settings=settings)
    if only == "papers":
        return Report(figures=papers.as_figures(), settings=settings)
    settings["modelled"] = "all of it: data sheets and published figures, nothing is measured"
    names, nodes = (FEW_MODELS, FEW_NODES) if quick else (MODELS, NODES)
    every = list(modelled(names, [A100] if quick else [A100, H100], nodes))
    return Report(figures=[*_figures(every), *_simulated(every)], settings=settings)


def _figures(every: Sequence[Modelled]) -> Iterator[Figure]:
    plain: StepForecast | None = None
    for one in every:
        step = one.step
        if one.plan == PLANS[0]:
            plain = step
        assert plain is not None
        fits = "" if step.memory <= one.sheet.memory else ", more than a device has"
        yield Figure(
            name=f"modelled: {one}",
            value=step.samples_per_second,
            unit="samples/s",
            baseline=plain.samples_per_second,
            note=f"{step.ms:.1f} ms, {plain.ms / step.ms:.2f}x; {step.memory / GIB:.1f} GiB a "
            f"rank{fits}; {step.bytes_by_link['between_nodes'] / GIB:.2f} GiB between nodes",
        )


def _simulated(every: Sequence[Modelled]) -> list[Figure]:
    off = deviations(every)
    each = [abs(value) for value in off]
    worst = every[each.index(max(each))]
    return [
        Figure(
            name="closed form against the simulation, median",
            value=statistics.median(each),
            unit="% off",
            target=3,
            at_most=True,
            note=f"{len(every)} steps; from {min(off):.1f}% to {max(off):.1f}%",
        ),
        Figure(
            name="closed form against the simulation, worst",
            value=max(each),
            unit="% off",
            target=10,
            at_most=True,
            note=str(worst),
        ),
    ]


def _part(text: str) -> tuple[int, int]:
    number, _, parts = text.partition("/")
    if not (number.isdigit() and parts.isdigit() and 1 <= int(number) <= int(parts)):
        raise argparse.ArgumentTypeError(f"{text!r} is no part: write 1/3 for the first of three")
    return int(number), int(parts)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(add_help=False)
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--validate", dest="only", action="store_const", const="validate")
    group.add_argument("--papers", dest="only", action="store_const", const="papers")
    parser.add_argument("--part", type=_part, default=(1, 1))
    arguments, rest = parser.parse_known_args()
    main(
        "scale",
        partial(measure, only=arguments.only or "", part=arguments.part),
        rest,
        keeps_memory=arguments.only == "validate",
    )
