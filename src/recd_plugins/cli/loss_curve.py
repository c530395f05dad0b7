"""What `recd tune loss --json` printed, as `recd advise --curve` reads it."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from recd_plugins.errors import DataError, listed, shown, so_many

__all__ = ["steps_to_loss"]


def steps_to_loss(curve: Path, ranks: int) -> Mapping[int, int]:
    """The steps to the loss by the batch size of each rank, without the registry's cache. A curve
    of another number of ranks is converted by the samples that all of them take in a step."""
    try:
        printed = json.loads(curve.read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(f"--curve: {curve} cannot be read ({error.strerror}).") from error
    except (ValueError, RecursionError) as error:  # a file that is no UTF-8 is among these
        raise _no_curve(curve, f"it is not JSON ({error})") from error
    measured, rows = _measured(curve, printed)
    steps = {measured * row["batch_size"]: row["steps"] for row in rows if row["steps"]}
    if not steps:
        raise DataError(f"--curve: in {curve} no batch size reaches the loss.")
    found = {size // ranks: count for size, count in steps.items() if not size % ranks}
    here, there = so_many(ranks, "rank"), so_many(measured, "rank")
    if not found:
        raise DataError(
            f"--curve: {curve} is of {there}, and {here} can share the samples of none of its "
            f"steps. Measure one: `recd tune loss train.ranks={ranks} --json`."
        )
    if measured != ranks:
        sizes = ", ".join(f"{size:,}" for size in found)
        print(f"note: {curve} is of {there}; by it {here} may have {sizes} each.", file=sys.stderr)
    epochs = printed.get("epochs")  # an older curve has none
    if isinstance(epochs, float | int) and epochs > 1:
        print(
            f"note: the longest training of {curve} went {epochs:.1f} times through the train "
            "split. From the second time on, its losses are of rows that the model had learnt "
            "from, so that its steps may be too few for new rows. To go by new rows, measure "
            "again with `recd tune loss --json --samples ROWS`, where ROWS are at most those of "
            "the train split.",
            file=sys.stderr,
        )
    return found


def _measured(curve: Path, printed: Any) -> tuple[int, Sequence[Mapping[str, Any]]]:
    """The number of ranks in what `recd tune loss --json` printed, and its rows without the
    cache, if it has any; `DataError` if that command did not print it."""
    if not isinstance(printed, Mapping) or not {"ranks", "sides"} <= printed.keys():
        has = listed(printed) if isinstance(printed, Mapping) and printed else shown(printed)
        raise _no_curve(curve, f"that has `ranks` and `sides`, and this has {has}")
    ranks, sides = printed["ranks"], printed["sides"]
    if not _is_count(ranks):
        raise _no_curve(curve, f"its `ranks` are {shown(ranks)}, and no number of ranks")
    if not isinstance(sides, Mapping) or not sides:
        raise _no_curve(curve, f"its `sides` are {shown(sides)}, and no rows by the cache")
    name = "without cache" if "without cache" in sides else next(iter(sides))
    rows = sides[name]
    if not isinstance(rows, list):
        raise _no_curve(curve, f"its side {name!r} is {shown(rows)}, and no list of batch sizes")
    for row in rows:
        size = row.get("batch_size") if isinstance(row, Mapping) else None
        if (
            not _is_count(size)
            or "steps" not in row
            or not (row["steps"] is None or _is_count(row["steps"]))
        ):
            raise _no_curve(
                curve,
                f"a row of its side {name!r} is {shown(row)}, and has no `batch_size` with the "
                "`steps` that it took, or null",
            )
    return ranks, rows


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _no_curve(curve: Path, why: str) -> DataError:
    return DataError(
        f"--curve: {curve} is not what `recd tune loss --json` prints: {why}. Write one: `recd "
        "tune loss --json > FILE`."
    )
