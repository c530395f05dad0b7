"""`recd scars curve`: how much to cache, from a formula, a saved profile or a registry's tables."""

from __future__ import annotations

import json
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from recd_plugins.api import so_many
from recd_plugins.api.cli import (
    PICTURES,
    AsJson,
    Commands,
    Debug,
    Overrides,
    RegistryFile,
    check_of_use,
    check_writable,
    reported,
)

if TYPE_CHECKING:
    from recd_scars.cache_curve import CacheCurve

__all__ = ["scars"]

scars = Commands(help="SCARS: how much to cache.", no_args_is_help=True, add_completion=False)

SHOWN = 12
"""Cache sizes in the table."""

Law = Annotated[
    str | None,
    typer.Option(
        "--law", help="zipf:1.05, half_normal:0.1, exponential:0.1 or uniform, of --rows rows."
    ),
]
Rows = Annotated[int, typer.Option("--rows", help="The rows of the table of --law.", min=1)]
Lookups = Annotated[
    float, typer.Option("--lookups", help="The lookups of a sample in the table of --law.", min=0)
]
Saved = Annotated[
    Path | None,
    typer.Option(
        "--profile", help="A profile that recd data profile or recd plan saved.", metavar="FILE"
    ),
]
Tables = Annotated[
    list[str] | None,
    typer.Option(
        "--table",
        help="A table of the profile, or a glob of the model's; by default all.",
        metavar="NAME",
    ),
]
Batches = Annotated[
    int | None,
    typer.Option(
        "--batches",
        help="The number of batches of each rank's share that are counted for the model's "
        "tables; by default as many as needed.",
        min=1,
    ),
]
Width = Annotated[
    int, typer.Option("--width", help="The numbers in a row of a law or a profile.", min=1)
]
MemoryMib = Annotated[
    float | None,
    typer.Option(
        "--memory",
        help="The MiB of a device for cache and batch; by default what --batch-size samples and "
        "a tenth of the rows take.",
        min=0.001,
    ),
]
PerSample = Annotated[
    float | None,
    typer.Option(
        "--per-sample",
        help="The bytes of a sample's activations, as recd tune batch finds them; by default "
        "those of its rows and their gradients.",
        min=1,
    ),
]
BatchSize = Annotated[
    int,
    typer.Option(
        "--batch-size", help="The number of samples that the default memory has room for.", min=1
    ),
]
LeastBatch = Annotated[
    int, typer.Option("--least-batch", help="The smallest batch that is of use.", min=1)
]
FigureFile = Annotated[
    Path | None,
    typer.Option("--figure", help="A picture of the curves: .png, .pdf or .svg.", metavar="FILE"),
]


@scars.callback()
def group() -> None:
    """SCARS: how much to cache."""


@scars.command()
def curve(
    overrides: Overrides = None,
    registry: RegistryFile = Path("registry.yaml"),
    law: Law = None,
    rows: Rows = 1_000_000,
    lookups: Lookups = 1.0,
    profile: Saved = None,
    tables: Tables = None,
    batches: Batches = None,
    width: Width = 64,
    memory: MemoryMib = None,
    per_sample: PerSample = None,
    batch_size: BatchSize = 2048,
    least_batch: LeastBatch = 256,
    figure: FigureFile = None,
    debug: Debug = False,
    as_json: AsJson = False,
) -> None:
    """Draw communication against cache size and batch size, the optimum marked.

    Cached rows take memory that the batch would use to fetch each row less often.
    """
    with reported(debug):
        from recd_scars import curve_source as sources
        from recd_scars.cache_curve import CacheCurve

        check_writable(figure, "--figure", PICTURES)
        of_registry = {
            f"override {', '.join(overrides or ())}": bool(overrides),
            "--batches": batches is not None,
        }
        of_law = {"--rows": rows != 1_000_000, "--lookups": lookups != 1}
        if memory is not None:
            why = "--memory says how much there is"
            check_of_use({"--batch-size": batch_size != 2048}, why, "Leave --memory out")
        if law is not None:
            others = {"--profile": profile is not None, "--table": bool(tables), **of_registry}
            check_of_use(others, "the curve is of --law's table", "Leave --law out")
            found = sources.of_law(law, rows, lookups, width)
        elif profile is not None:
            why = "the curve is of --profile's tables"
            check_of_use(of_law | of_registry, why, "Leave --profile out")
            found = sources.of_profile(profile, tables or (), width)
        else:
            check_of_use(of_law, "it is of a law's table", "Add --law")
            why = "the rows of a registry's tables are as wide as its model says"
            check_of_use({"--width": width != 64}, why, "Add --law or --profile")
            with redirect_stdout(sys.stderr):  # what plugins print is no part of what is drawn
                found = sources.of_registry(registry, overrides or (), tables or (), batches)
        drawn = CacheCurve.of(
            found.rows,
            width=found.width,
            batch_size=batch_size,
            least_batch=least_batch,
            memory_bytes=memory and memory * 2**20,
            sample_bytes=per_sample,
        )
        if figure is not None:
            drawn.save(figure, found.name)
        if as_json:
            print(json.dumps({"source": found.name, **drawn.values()}))
        else:
            _show(drawn, found.name)


def _show(curve: CacheCurve, name: str) -> None:
    from rich.console import Console
    from rich.table import Table

    from recd_plugins.api.planning import in_share

    memory, best = curve.memory, curve.at(curve.optimum.cached)
    console = Console(highlight=False)
    console.print(
        f"{name}: {so_many(curve.rows.num_rows, 'row')} of {so_many(memory.width, 'number')}, "
        f"{curve.rows.lookups:,.3g} lookups a sample; {memory.capacity * 4 / 2**20:,.4g} MiB, of "
        f"which a sample takes {memory.per_sample * 4:,.0f} bytes",
        soft_wrap=True,
    )
    table = Table(
        "rows cached", "of all", "lookups that hit", "batch", "bytes a sample", "of plain"
    )
    for point in curve.by_cache(SHOWN):
        table.add_row(
            f"{'* ' if point == best else ''}{point.cached:,}",
            f"{point.cached / curve.rows.num_rows:.2%}",
            in_share(point.hits, point.interval),
            f"{point.batch_size:,.0f}",
            f"{point.bytes_per_sample:,.1f}",
            f"{point.bytes_per_sample / curve.plain:.1%}",
        )
    console.print(table)
    if best.cached == memory.most_cached:
        console.print(f"the optimum is the smallest batch that is of use: {memory.least:,}")
    gain, whole = (of / best.bytes_per_sample for of in (curve.at(0).bytes_per_sample, curve.plain))
    console.print(
        f"* the optimum: {gain:.2f} times fewer bytes than without a cache, {whole:.2f} times "
        f"fewer than plain ({curve.plain:,.0f})",
        soft_wrap=True,
    )
