"""Which figures README and the pages of docs/ show; RESULTS.md has all of them."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["END", "HEADLINES", "TABLES", "Headline", "SuiteTable"]

END = "<!-- end of results -->"


@dataclass(frozen=True, kw_only=True)
class Headline:
    """A row of README."""

    what: str
    """The figure in a reader's words."""
    suite: str
    figure: str
    """Its name among the suite's figures, or the beginning of that name."""


HEADLINES = (
    Headline(
        what="RM1 at a sixth of its sizes on two ranks, plain TorchRec",
        suite="demo",
        figure="RM1, plain: samples/s",
    ),
    Headline(what="the same, with RecD", suite="demo", figure="RM1, RecD: samples/s"),
    Headline(
        what="RM1 on two nodes, all papers together: a step, against plain TorchRec",
        suite="combined",
        figure="all together, against plain TorchRec",
    ),
    Headline(
        what="RecD: a step of RM1, S = 16.5, against plain KJTs",
        suite="recd_train",
        figure="RM1-like step, S = 16.5",
    ),
    Headline(
        what="RecD: files clustered by session, against files in the order of time",
        suite="recd_data",
        figure="clustered vs time-ordered file size",
    ),
    Headline(
        what="FlexShard: saturated hot rows, a step, against rows coalesced per rank",
        suite="flexshard",
        figure="saturated hot rows, step against row-wise coalesced per rank",
    ),
    Headline(
        what="SCARS: a step with coalescing, against plain row-wise",
        suite="scars",
        figure="step with coalescing, Zipf 1.05, sequences",
    ),
    Headline(
        what="Forecasts: a cache's coverage, against what it served, rows drift; the worst",
        suite="honesty --only coverage",
        figure="coverage, forecast against served, drifting: worst",
    ),
    Headline(
        what="DSI: popular columns first and reads coalesced: I/Os",
        suite="dsi",
        figure="reordered and coalesced, I/Os",
    ),
    Headline(
        what="The local reader's rows/s, of pyarrow's on the same row groups, ids of 8 bytes",
        suite="reader",
        figure="reader, share of pyarrow's rows/s",
    ),
)
"""Ten rows."""


@dataclass(frozen=True, kw_only=True)
class SuiteTable:
    """Figures of a suite in a page of docs/, between END and a mark that names the suite."""

    page: str
    suite: str
    figures: tuple[str, ...]
    """The names of its figures, or the beginnings of these, in order."""

    @property
    def mark(self) -> str:
        return f"<!-- results of {self.suite} -->"


TABLES = (
    SuiteTable(
        page="recd.md",
        suite="recd_data",
        figures=(
            "clustered vs time-ordered file size",
            "clustered vs time-ordered file size, ids of 4 bytes in both",
            "clustered vs time-ordered file size, repeats left out",
            "O1 shard compression",
            "clustering, time over reading and writing the same table unsorted",
            "clustering, peak memory",
            "reader rows/s, clustered + IKJT + preprocessing",
            "reader rows/s, clustered + IKJT + preprocessing, ids of 4 bytes in both",
            "reader rows/s, clustered + IKJT + preprocessing, repeats left out of files",
            "reader, processor time that repeats left out of files save",
            "IKJT conversion, time over the cheapest plain KJT conversion's, sequences alone",
            "IKJT conversion, time over the cheapest plain KJT conversion's",
            "IKJT conversion in the reader, time over gathering KJTs",
            "IKJT conversion in the reader, time over gathering KJTs, repeats left out of files",
            "IKJT conversion, speed over memcpy's",
            "conversion vs padded torch.unique(dim=0)",
            "partial conversion, time over exact conversion's",
            "partial conversion, fewer values kept than exact",
            "preprocessing on unique samples",
            "bytes from reader to trainer",
        ),
    ),
    SuiteTable(
        page="recd.md",
        suite="recd_train",
        figures=(
            "RM1-like step, S = 16.5",
            "RM1-like step, with reading",
            "RM1-like step, S = 4",
            "throughput at S = 1",
            "RM2-like step",
            "RM3-like step",
            "O5 + O6 alone, RM1-like step",
            "all-to-all bytes over deduplicated features",
            "step memory, RM1-like",
            "RM1-like throughput, batch x3",
        ),
    ),
    SuiteTable(
        page="flexshard.md",
        suite="flexshard",
        figures=(
            "predicted vs observed bytes",
            "k of our replicas",
            "RM-1 covered",
            "RM-2 covered",
            "RM-3 covered",
            "RM-4 covered",
            "saturated hot rows, bytes against plain row-wise",
            "saturated hot rows, step against plain row-wise",
            "saturated hot rows, bytes against row-wise coalesced per rank",
            "saturated hot rows, step against row-wise coalesced per rank",
            "regret, 2x2 ranks, 200 mbit, Zipf 1.2, B 512 x 40, 100,000 rows x 64",
            "regret, 2x2 ranks, 1000 mbit, Zipf 1.05, B 1024 x 40, 100,000 rows x 64",
            "regret, 2x2 ranks, 50 mbit, uniform, B 128 x 40, 100,000 rows x 64",
            "regret, 2x4 ranks, 200 mbit, Zipf 1.2, B 512 x 40, 100,000 rows x 64",
            "regret, 2x4 ranks, 50 mbit, Zipf 1.05, B 128 x 40, 100,000 rows x 64",
            "regret, 2x4 ranks, 1000 mbit, Zipf 1.3, B 1024 x 40, 100,000 rows x 64",
            "regret, 4x2 ranks, 200 mbit, Zipf 1.2, B 512 x 40, 100,000 rows x 64",
            "regret, 4x2 ranks, 200 mbit, Zipf 0.8, B 256 x 40, 100,000 rows x 64",
            "regret, 4x2 ranks, 100 mbit, Zipf 1.05, B 256 x 40, 100,000 rows x 64",
            "no skew, step against plain row-wise",
            "router, time",
            "router, memory",
            "planning",
            "planning, peak memory",
        ),
    ),
    SuiteTable(
        page="flexshard.md",
        suite="trainers.pooled",
        figures=(
            *(
                f"goal: auto against TorchRec's own plan, {setting}"
                for setting in (
                    "Zipf 1.05, bags of 1, Criteo's tables x 64, B 512, 200 mbit",
                    "Zipf 1.05, bags of 3, Criteo's tables x 64, B 512, 200 mbit",
                    "Zipf 1.05, bags of 20, Criteo's tables x 64, B 512, 200 mbit",
                    "Zipf 1.2, bags of 1, Criteo's tables x 64, B 512, 200 mbit",
                    "Zipf 1.2, bags of 3, Criteo's tables x 64, B 512, 200 mbit",
                    "Zipf 1.2, bags of 20, Criteo's tables x 64, B 512, 200 mbit",
                    "Zipf 1.2, bags of 1, 26 alike tables x 64, B 512, 200 mbit",
                    "Zipf 1.05, bags of 3, 26 alike tables x 64, B 512, 200 mbit",
                    "Zipf 1.2, bags of 3, Criteo's tables x 64, B 512, 1000 mbit",
                    "Zipf 1.05, bags of 20, 26 alike tables x 64, B 256, 200 mbit",
                )
            ),
            "regret of goal: auto, the worst",
            "memory of a rank, the peak",
        ),
    ),
    SuiteTable(
        page="scars.md",
        suite="scars",
        figures=(
            "communication of an epoch, 5x rows and 5x batch, half-normal",
            "communication of an epoch, 5x rows and 5x batch, Zipf 1.05",
            "step with coalescing, Zipf 1.05, sequences",
            "step with coalescing, Zipf 1.05, bags",
            "step with coalescing, Zipf 1.05, bags, against table-wise",
            "hot step against normal step",
            "step with no skew",
            "time to a loss with cache, coalescing and hot batches, half-normal",
            "lookups that replicas answer, a table of twice the cap",
            "slowdown of a step, a table of twice the cap",
            "coalescing kernel, times as fast as torch.unique with inverse",
            "classification of samples, of the time to read them",
            "reading in hot batches, of the time to read",
        ),
    ),
    SuiteTable(
        page="scale.md",
        suite="scale --validate",
        figures=(
            "forecast of a step, median error",
            "forecast of a step, worst error",
            "forecast of the bytes between nodes, worst error",
        ),
    ),
    SuiteTable(
        page="own-trainer.md",
        suite="trainers",
        figures=tuple(
            f"{trainer}: {what}"
            for trainer in (
                "golden_training",
                "dlrm, multi-hot 3",
                "two_tower",
                "bert4rec",
                "managed collision",
            )
            for what in ("lines", "bytes", "losses apart", "weights apart")
        ),
    ),
    SuiteTable(
        page="advise.md",
        suite="advise",
        figures=(
            "regret: sequences, S 16, Zipf 1.05, 200 mbit",
            "regret: sequences, S 4, Zipf 1.2, 200 mbit",
            "regret: sequences, S 1, Zipf 1.2, 200 mbit",
            "regret: sequences, S 16, Zipf 0.8, 50 mbit",
            "regret: pooled, S 8, Zipf 1.2, 200 mbit",
            "regret: pooled, S 1, Zipf 1.05, 50 mbit",
            "regret, the median of the settings",
            "advice, with what would change it",
            "advice, peak memory",
        ),
    ),
    SuiteTable(
        page="advise.md",
        suite="advise.drawn",
        figures=(
            "auto: the least of 12 drawn settings",
            "what recd advise says: the least of 12 drawn settings",
            "TorchRec's own plan again: the least of 12 drawn settings",
        ),
    ),
    SuiteTable(
        page="dsi.md",
        suite="dsi",
        figures=(
            "transforms against plain Python",
            "transforms on unique samples",
            "10% of 500 features, flattened",
            "reordered and coalesced, I/Os",
            "reordered and coalesced, bytes",
            "reordered and coalesced, over S3",
            "stripes ten times as large",
            "a filter that keeps 5% of sorted rows",
        ),
    ),
    SuiteTable(
        page="dsi.md",
        suite="readers_beside",
        figures=(
            "pyarrow alone, no batches",
            "pyarrow.dataset loop, in order",
            "local reader, shuffled",
            "Ray Data, local shuffle",
            "Hugging Face datasets, cached, shuffled",
            "Hugging Face datasets, streaming",
        ),
    ),
    SuiteTable(
        page="service.md",
        suite="service",
        figures=(
            "one worker, IKJT batches by shared memory: rows/s",
            "one worker, IKJT batches by the wire: rows/s",
            "one worker, KJT batches by shared memory: rows/s",
            "one worker, KJT batches by the wire: rows/s",
            "one worker, IKJT batches by shared memory: processor time of the trainer",
            "one worker, IKJT batches by the wire: processor time of the trainer",
            "one worker, KJT batches by shared memory: processor time of the trainer",
            "one worker, KJT batches by the wire: processor time of the trainer",
            "one worker, IKJT batches by shared memory: processor time of the worker",
            "one worker, KJT batches by shared memory: processor time of the worker",
            "one worker, IKJT batches of 2,048 by shared memory: rows/s",
            "one worker, IKJT batches of 2,048 by the wire: rows/s",
            "one worker, IKJT batches of 2,048 by shared memory: processor time of the trainer",
            "one worker, IKJT batches of 2,048 by the wire: processor time of the trainer",
            "one worker on a core of its own, IKJT batches by the wire",
            "one worker on a core of its own, KJT batches by the wire",
            "KJT batches over the wire, bytes of IKJT batches'",
            "KJT batches over the wire, bytes of the deduplicated features alone",
            "a second job from the worker's cache",
            "trainer with enough workers: stalls",
            "a worker of two is killed: the longest wait",
            "coordinator of 1,000 workers and 64 clients",
        ),
    ),
    SuiteTable(
        page="together.md",
        suite="combined",
        figures=(
            "plain TorchRec, exchanges both ways at once",
            "plain TorchRec, rows as bags of one",
            "plain TorchRec, in 16 bits",
            "TorchRec's own best plan",
            "FlexShard alone, as in its paper",
            "SCARS alone",
            "+ clustering",
            "+ IKJT",
            "+ pooling on unique samples",
            "+ coalescing, each table its way",
            "+ tiers",
            "+ dense gradients once a node",
            "+ exchanges both ways at once",
            "+ rows as bags of one",
            "+ hot batches",
            "+ in 16 bits",
            "what recd advise says",
            "all together, against plain TorchRec",
            "all together, against TorchRec's own best plan",
            "all together, against the best paper (+ pooling on unique samples)",
            "all together, in 16 bits, against plain TorchRec in 16 bits",
            "bytes between nodes, all together",
            "bytes between nodes, all together, in 16 bits",
            "loss, all together, in 16 bits, off all together",
            "the step's memory, all together",
        ),
    ),
    SuiteTable(
        page="together.md",
        suite="combined --mbit 50",
        figures=(
            "FlexShard alone, as in its paper",
            "SCARS alone",
            "+ pooling on unique samples",
            "all together, 50 mbit, against plain TorchRec",
            "all together, 50 mbit, against TorchRec's own best plan",
            "all together, 50 mbit, against the best paper (+ pooling on unique samples)",
            "all together, 50 mbit, in 16 bits, against plain TorchRec",
            "all together, 50 mbit, in 16 bits, against plain TorchRec in 16 bits",
            "bytes between nodes, all together, 50 mbit",
            "bytes between nodes, all together, 50 mbit, in 16 bits",
            "loss, all together, 50 mbit, in 16 bits, off all together, 50 mbit",
            "the step's memory, all together, 50 mbit",
        ),
    ),
    SuiteTable(
        page="together.md",
        suite="combined --wide",
        figures=(
            "FlexShard alone, as in its paper",
            "SCARS alone",
            "+ pooling on unique samples",
            "what recd advise says",
            "all together, 2 x 4 ranks, against plain TorchRec",
            "all together, 2 x 4 ranks, against TorchRec's own best plan",
            "all together, 2 x 4 ranks, against the best paper (+ pooling on unique samples)",
            "bytes between nodes, all together, 2 x 4 ranks",
            "the step's memory, all together, 2 x 4 ranks",
        ),
    ),
    SuiteTable(
        page="together.md",
        suite="combined dlrm",
        figures=(
            "FlexShard alone, as in its paper",
            "SCARS alone",
            "+ IKJT",
            "what recd advise says",
            "all together, pooled DLRM, against plain TorchRec",
            "all together, pooled DLRM, against TorchRec's own best plan",
            "all together, pooled DLRM, against the best paper (+ IKJT)",
            "all together, pooled DLRM, in 16 bits, against plain TorchRec",
            "all together, pooled DLRM, in 16 bits, against plain TorchRec in 16 bits",
            "bytes between nodes, all together, pooled DLRM",
            "bytes between nodes, all together, pooled DLRM, in 16 bits",
            "loss, all together, pooled DLRM, in 16 bits, off all together, pooled DLRM",
            "the step's memory, all together, pooled DLRM",
        ),
    ),
)
"""The figures that pages of docs/ discuss."""
