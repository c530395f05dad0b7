"""The suites whose figures are kept, in the order of RESULTS.md."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["SUITES", "Suite"]


@dataclass(frozen=True, kw_only=True)
class Suite:
    """A program of this folder that prints figures, and how it is run for the record."""

    module: str
    """Its name behind `benchmarks.`."""
    about: str
    """What it measures, a sentence for RESULTS.md."""
    arguments: tuple[str, ...] = ()
    """What a full run is given."""
    minutes: float
    """How long a full run takes on two cores."""
    limits: bool = False
    """Whether it gives figures their limits."""
    needs_cuda: bool = False
    """Whether it is left out where there is no GPU."""

    @property
    def name(self) -> str:
        return " ".join((self.module, *self.arguments))


SUITES = (
    Suite(
        module="demo",
        about="`make demo`: one job by plain TorchRec, by `recd train` and with each plugin.",
        minutes=3,
        limits=True,
    ),
    Suite(
        module="combined",
        about="RM1 on two nodes of two ranks behind 200 mbit, with one paper after the other.",
        minutes=17,
        limits=True,
    ),
    Suite(
        module="combined",
        arguments=("--mbit", "50"),
        about="The same behind 50 mbit: plain TorchRec, RecD and all together.",
        minutes=13,
    ),
    Suite(
        module="combined",
        arguments=("--wide",),
        about="The same on two nodes of four ranks.",
        minutes=32,
    ),
    Suite(
        module="combined",
        arguments=("dlrm",),
        about="RM1's place taken by a DLRM, whose features are pooled.",
        minutes=7,
    ),
    Suite(
        module="recd_data",
        about="RecD from logs to batches: files, shards, conversion, preprocessing.",
        minutes=15,
        limits=True,
    ),
    Suite(
        module="recd_train",
        about="The models of RecD's paper, trained on unique samples and on plain KJTs.",
        minutes=7,
        limits=True,
    ),
    Suite(
        module="attention",
        about="Jagged attention on unique samples and on all of them.",
        minutes=8,
        limits=True,
    ),
    Suite(
        module="flexshard",
        about="FlexShard's plans and prices, and steps on an emulated cluster.",
        minutes=28,
        limits=True,
    ),
    Suite(
        module="scars",
        about="SCARS's formulas, coalescing, caches, hot batches and large tables.",
        minutes=10,
        limits=True,
    ),
    Suite(
        module="trainers",
        about="Trainers that others wrote, as they are and with our lines; some are to be fetched.",
        minutes=3,
    ),
    Suite(
        module="trainers.pooled",
        about="`goal: auto` for pooled tables, against every plan by itself.",
        minutes=40,
        limits=True,
    ),
    Suite(
        module="scale",
        arguments=("--validate",),
        about="Forecasts of steps, beside these steps on an emulated cluster, in 24 settings.",
        minutes=13,
    ),
    Suite(
        module="advise",
        about="Advice on a hundred large tables; its regret over 44 registries in six settings.",
        minutes=70,
        limits=True,
    ),
    Suite(
        module="advise.drawn",
        about="What is chosen for jobs drawn from seeds, beside TorchRec's own plan.",
        minutes=20,
    ),
    Suite(
        module="honesty",
        arguments=("--only", "coverage"),
        about="Coverage of caches in 21 tables, forecast of a part of each, beside what it was.",
        minutes=1,
    ),
    Suite(
        module="honesty",
        arguments=("--only", "trained"),
        about="Dedupe factors and bytes of collectives, forecast, beside those of training.",
        minutes=8,
    ),
    Suite(
        module="honesty",
        arguments=("--only", "profile"),
        about="What a profile of a large table costs.",
        minutes=3,
    ),
    Suite(
        module="honesty.step_time",
        arguments=("--only", "small"),
        about="Steps as `dedup: {groups: auto}` chose them on 20 tables; a small model.",
        minutes=8,
    ),
    Suite(
        module="honesty.step_time",
        arguments=("--only", "RM1-like"),
        about="The same, of a model like RM1.",
        minutes=15,
    ),
    Suite(
        module="honesty.scored_ids",
        about="A step whose ids have scores, beside one whose ids have none.",
        minutes=3,
    ),
    Suite(
        module="honesty.imports",
        about="A table made of CSV files, beside pyarrow's reading of them.",
        minutes=2,
    ),
    Suite(
        module="dsi",
        about="Layouts of tables, and transforms beside their plain Python references.",
        minutes=3,
        limits=True,
    ),
    Suite(
        module="reader",
        about="The local reader, beside pyarrow reading the same row groups.",
        minutes=1,
        limits=True,
    ),
    Suite(
        module="readers_beside",
        about="The local reader beside others of Parquet, as far as these are installed.",
        minutes=4,
    ),
    Suite(
        module="service",
        about="The reader service, beside the local reader, and with workers that are killed.",
        minutes=4,
        limits=True,
    ),
    Suite(
        module="gpu",
        about="Everything on a GPU: parity of each path, steps, UVM kernels, conversion, kernels.",
        minutes=10,
        needs_cuda=True,
    ),
)
