"""Value tests: stripes that are kept are read once, are as their files have them, and stay so
whatever is done to batches of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
import torch
from known_rows import open_loader, write

from recd_dedup.dedup.converters import Exact, Partial
from recd_plugins.data import kept_stripes as module
from recd_plugins.data.batch import Batch
from recd_plugins.data.kept_stripes import KeptStripes, keeping_stripes, kept_stripes
from recd_plugins.data.preprocess.batch_transform import BatchTransform
from recd_plugins.data.stripes import Stripe, read_stripe
from recd_plugins.data.table import Table
from recd_plugins.testing.resume import assert_same_batch

GROUPS = (("history",),)
TRANSFORMS: list[Callable[[], BatchTransform | None]] = [
    lambda: None,
    lambda: BatchTransform([], Exact(GROUPS)),
    lambda: BatchTransform([], Partial(GROUPS)),
]


def scribble(batch: Batch) -> None:
    """Write into every tensor that a batch holds, directly or in what it holds."""
    seen: set[int] = set()

    def into(thing: object) -> None:
        if id(thing) in seen:
            return
        seen.add(id(thing))
        if isinstance(thing, torch.Tensor):
            thing.fill_(7)
        elif isinstance(thing, list | tuple):
            for one in thing:
                into(one)
        elif hasattr(thing, "__dict__"):
            for one in vars(thing).values():
                into(one)

    into(batch)
    assert batch.labels.eq(7).all()
    assert batch.features.values().eq(7).all()


@pytest.mark.parametrize("make", TRANSFORMS, ids=["plain", "exact", "partial"])
@pytest.mark.parametrize("options", [{"tail": "pad"}, {"prefetch": False, "window": 0}])
def test_what_is_done_to_batches_changes_nothing_that_is_kept(
    table: Table, make: Callable[[], BatchTransform | None], options: dict[str, object]
) -> None:
    def batches() -> list[Batch]:
        return list(open_loader(table, transform=make(), **options))

    fresh = batches()
    with keeping_stripes():
        for _ in range(2):
            for batch in batches():
                scribble(batch)
        again, kept = batches(), kept_stripes()
    for one, other in zip(fresh, again, strict=True):
        assert_same_batch(one, other)
    assert kept is not None
    for stripe in table.stripes:
        with table.opened(stripe.file) as file:
            found = kept.read(file, stripe, table.schema.columns)
            anew = read_stripe(file, stripe, found.column_names)
        assert found.equals(anew)


def test_each_column_is_read_once_and_no_more_than_there_is_room_for(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: Counter[tuple[Stripe, str]] = Counter()

    def counting(file: object, stripe: Stripe, columns: list[str], **options: bool) -> pa.Table:
        read.update((stripe, name) for name in columns)
        return read_stripe(file, stripe, columns, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "read_stripe", counting)
    narrow = table.having(["row"])
    with keeping_stripes():
        for one in (narrow, table, narrow, table):
            list(open_loader(one))
    columns = table.schema.columns
    assert {*read.values()} == {1}
    assert len(read) == len(table.stripes) * len(columns)
    read.clear()
    first = table.read(table.stripes[0]).nbytes
    with keeping_stripes(most=int(1.5 * first)):
        for _ in range(3):  # without threads, of which another could keep a later stripe first
            list(open_loader(table, shuffle=False, prefetch=False))
    times = Counter(stripe for stripe, _ in read.elements())
    assert times[table.stripes[0]] == len(columns)
    assert times[table.stripes[-1]] == 3 * len(columns)
    read.clear()
    list(open_loader(table))
    assert not read  # outside nothing is kept


def test_a_file_that_was_written_anew_is_another(tmp_path: Path) -> None:
    kept = KeptStripes()
    found = []
    for rows in (8, 7):
        table = write(tmp_path / "table", rows)
        (stripe,) = table.stripes
        with table.opened(stripe.file) as file:
            found.append(kept.read(file, stripe, ["row"]).num_rows)
    assert found == [8, 7]
