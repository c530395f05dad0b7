"""`recd data profile`: how often each row is looked up, from a registry's data or a trace."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from recd_plugins.cli.ended_by_signals import ended_by_signals
from recd_plugins.cli.loaded import loaded
from recd_plugins.cli.options import REGISTRY, AsJson, Debug, Overrides, RegistryFile
from recd_plugins.cli.output_paths import check_not_read, check_writable
from recd_plugins.cli.progress import progress
from recd_plugins.cli.reported import reported
from recd_plugins.errors import so_many

if TYPE_CHECKING:
    from recd_plugins.planning.access.access_profile import Profile
    from recd_plugins.planning.tables.model_tables import ModelTable
    from recd_plugins.stack import Stack

__all__ = ["profile"]

Save = Annotated[
    Path,
    typer.Option(
        "--save",
        help="The file that `profile` of a planner, `recd plan --drift` and others take (Arrow).",
        metavar="FILE",
    ),
]
Batches = Annotated[
    int | None,
    typer.Option(
        "--batches",
        help="The number of batches of each rank's share that are counted; by default as many "
        "as needed.",
        min=1,
    ),
]
Rank = Annotated[
    int | None,
    typer.Option(
        "--rank", help="Count the share of this rank alone; by default those of all ranks.", min=0
    ),
]
PerFeature = Annotated[
    bool,
    typer.Option(
        "--per-feature", help="Save a distribution of each feature in place of each table."
    ),
]
TraceFile = Annotated[
    Path | None,
    typer.Option(
        "--trace",
        help="Count this index trace in fbgemm's format instead: .npz, .pt or .pt.gz.",
        metavar="FILE",
    ),
]
Places = Annotated[
    list[str] | None,
    typer.Option(
        "--table",
        help="A table of the model and its number in the trace, from 0; by default the model's "
        "tables in order are all of the trace's.",
        metavar="NAME=NUMBER",
    ),
]


def profile(
    overrides: Overrides = None,
    registry: RegistryFile = REGISTRY,
    save: Save = Path("profile.arrow"),
    batches: Batches = None,
    rank: Rank = None,
    per_feature: PerFeature = False,
    trace: TraceFile = None,
    places: Places = None,
    debug: Debug = False,
    as_json: AsJson = False,
) -> None:
    """Count how often each row of the model's tables is looked up, and save the forecast.

    It counts batches from all over the train split, of every rank's share, as the model looks them
    up; or a trace, which is taken as it is.
    """
    with reported(debug), ended_by_signals():
        from recd_plugins.errors import RegistryError
        from recd_plugins.planning.explain.words import in_share
        from recd_plugins.planning.tables.model_tables import model_tables

        if trace is None and places:
            raise RegistryError(
                "--table: says where a trace has a table, but there is no trace. Name one by "
                "--trace."
            )
        of_batches = {
            "--per-feature": per_feature,
            "--rank": rank is not None,
            "--batches": batches is not None,
        }
        given = [option for option, is_given in of_batches.items() if is_given]
        if trace is not None and given:
            raise RegistryError(
                f"{given[0]}: a trace has only tables, and all its batches count. Leave it out."
            )
        check_writable(save, "--save")
        check_not_read(save, "--save", [registry, *([] if trace is None else [trace])])
        stack = loaded(registry, overrides or ())
        with progress() as show:
            stack.prepare(show)
            tables = model_tables(stack.model())
            if not tables:
                raise RegistryError(
                    "the model has no embedding table, so there is nothing to count."
                )
            if trace is None:
                found = _of_batches(stack, tables, batches, rank, per_feature)
            else:
                found = _of_trace(stack, tables, trace, places or ())
        found.save(save)
    counts = {
        name: {
            "rows": rows.num_rows,
            "looked_up": 0 if rows.ids is None else len(rows.ids),
            "lookups": rows.lookups,
            "hottest_percent": rows.coverage(rows.num_rows / 100),
            "hottest_percent_interval": rows.interval(rows.num_rows / 100),
            "error": rows.error,
        }
        for name, rows in found.rows.items()
    }
    if as_json:
        print(json.dumps({"path": str(save), "samples": found.samples, "rows": counts}))
        return
    for name, one in counts.items():
        print(
            f"{name}: {so_many(one['rows'], 'row')}, of which {one['looked_up']:,} were seen; "
            f"{one['lookups']:,.3g} lookups a sample, "
            f"{in_share(one['hottest_percent'], one['hottest_percent_interval'])} of them of the "
            "hottest 1% of rows"
        )
    print(f"{save}: {so_many(found.samples, 'sample')}")


def _of_batches(
    stack: Stack,
    tables: Mapping[str, ModelTable],
    batches: int | None,
    rank: int | None,
    per_feature: bool,
) -> Profile:
    from recd_plugins.errors import RegistryError
    from recd_plugins.planning.access.access_profile import Counted
    from recd_plugins.planning.access.sample import count_sample

    ranks = stack.registry.train.ranks
    total = batches and batches * (ranks if rank is None else 1)
    if rank is not None and rank >= ranks:
        raise RegistryError(f"--rank: there is no rank {rank} of {ranks}. Set train.ranks.")
    counted = {name: table.counted for name, table in tables.items()}
    if per_feature:
        counted = {
            feature: Counted(num_rows=table.num_rows, features=(feature,))
            for table in tables.values()
            for feature in table.features
        }
    with progress() as show:

        def met(seen: int) -> None:
            show("batches counted", seen, total)

        if rank is None:
            return stack.profile(counted, batches, met)
        return count_sample(stack.read(rank, ranks), counted, most=batches, met=met).profile()


def _of_trace(
    stack: Stack, tables: Mapping[str, ModelTable], path: Path, places: Sequence[str]
) -> Profile:
    from recd_plugins.planning.access.trace import Trace, profile_trace

    trace = Trace.load(path)
    at = {
        name: (place, tables[name].num_rows)
        for name, place in _placed(tables, trace.num_tables, places).items()
    }
    return profile_trace(trace, at, batch_size=stack.registry.train.batch_size)


def _placed(
    tables: Mapping[str, ModelTable], num_tables: int, places: Sequence[str]
) -> dict[str, int]:
    """Each table's number in the trace."""
    from recd_plugins.errors import RegistryError, nearest

    if not places:
        if len(tables) != num_tables:
            raise RegistryError(
                f"--trace: has {so_many(num_tables, 'table')}, but the model has {len(tables)}: "
                f"{', '.join(tables)}. Give --table NAME=NUMBER once for each table of the model."
            )
        return {name: place for place, name in enumerate(tables)}
    found = {}
    for assignment in places:
        name, _, number = assignment.rpartition("=")
        if name not in tables:
            raise RegistryError(
                f"--table: the model has no table {name or assignment!r}; {nearest(name, tables)} "
                "Say NAME=NUMBER."
            )
        if not number.isdecimal() or int(number) >= num_tables:
            raise RegistryError(
                f"--table: {assignment!r}: the trace has {so_many(num_tables, 'table')}, numbered "
                "from 0."
            )
        found[name] = int(number)
    return found
