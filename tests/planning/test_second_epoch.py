"""Whether ids come again in a loader's next epoch, and what a plan makes of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recd_plugins.planning.access.access_profile import Counted, Tally
from recd_plugins.planning.access.look import Look, Peeked
from recd_plugins.planning.access.sample import count_sample
from recd_plugins.testing.gloo import GlooPool

ROWS, BATCHES, SAMPLES = 20_000, 40, 250
TABLES = {name: Counted(num_rows=ROWS, features=(name,)) for name in ("user", "negative")}
EACH = torch.ones(2 * SAMPLES, dtype=torch.int32)


@dataclass
class Epochs:
    """Users who come again in each epoch, each time in another order, and negatives of which a
    share is drawn anew in each."""

    anew: float
    seed: int = 0
    order: np.random.Generator = field(default_factory=lambda: np.random.default_rng(7))
    passes: int = 0

    def __post_init__(self) -> None:
        draw = np.random.default_rng(self.seed)
        self.ids = np.random.default_rng(1).permutation(ROWS)  # none is hot for its number
        self.pairs = self.ids[draw.zipf(1.3, (BATCHES * SAMPLES, 2)) % ROWS]

    def __len__(self) -> int:
        return BATCHES

    def __iter__(self) -> Iterator[KeyedJaggedTensor]:
        self.passes += 1
        pairs = self.order.permutation(self.pairs)
        redrawn = self.order.random(len(pairs)) < self.anew
        pairs[redrawn, 1] = self.ids[self.order.zipf(1.3, redrawn.sum()) % ROWS]
        for part in np.split(pairs, BATCHES):
            ids = torch.from_numpy(part.T.reshape(-1))
            yield KeyedJaggedTensor(keys=["user", "negative"], values=ids, lengths=EACH)


def counted(loader: Epochs) -> Tally:
    with Look(loader) as look:
        return count_sample(look, TABLES, most=None)


def served(
    tally: Tally, loader: Epochs, table: str, rows: int
) -> tuple[float, tuple[float, float], float]:
    """What the hottest rows are to serve, its interval, and what they serve of the second
    epoch."""
    forecast = tally.profile()[table]
    assert forecast.ids is not None
    assert len(list(loader)) == BATCHES  # the first one, which was counted
    hot = torch.from_numpy(forecast.ids[:rows])
    had = [torch.isin(batch[table].values(), hot).double().mean().item() for batch in loader]
    return float(forecast.coverage(rows)), forecast.interval(rows), float(np.mean(had))


def test_ids_that_come_again_are_promised_as_they_were() -> None:
    loader = Epochs(anew=0.0)
    tally = counted(loader)
    assert loader.passes == 0  # both are put back
    assert tally.comes_again == {"user": 1.0, "negative": 1.0}
    assert tally.explain().endswith("from all over it; its next epoch began with the same rows")
    promised, _, had = served(tally, loader, "negative", 1_000)
    assert promised == pytest.approx(had, abs=1e-9)


@pytest.mark.parametrize("anew", [0.5, 1.0])
def test_ids_that_are_drawn_anew_are_promised_as_later_epochs_have_them(anew: float) -> None:
    loader = Epochs(anew=anew)
    tally = counted(loader)
    assert tally.comes_again is not None
    assert tally.comes_again["user"] == 1
    assert tally.comes_again["negative"] == pytest.approx((1 - anew) ** 2, abs=0.15)
    assert "drawn anew" in tally.explain()
    assert "table negative (" in tally.explain()
    promised, (least, most), had = served(tally, loader, "negative", 1_000)
    assert least <= had <= most
    assert promised == pytest.approx(had, abs=0.025)
    once = Tally(counted=TABLES).add(list(Epochs(anew=0.0))).profile(counted_share=1)
    assert once["negative"].coverage(1_000) > had + 0.025  # what one epoch alone would promise


def test_of_a_loader_without_another_epoch_none_is_known() -> None:
    class Once(Epochs):
        def __iter__(self) -> Iterator[KeyedJaggedTensor]:
            if self.passes:
                raise RuntimeError("this loader has one epoch")
            yield from super().__iter__()

    once, peeked = counted(Once(anew=1.0)), Peeked(Epochs(anew=1.0))
    with Look(peeked) as look:
        ahead = count_sample(look, TABLES, most=None)
    for tally in (once, ahead):
        assert tally.counted_share == 1
        assert tally.comes_again is None
        assert "pass it without a length" in tally.explain()
    assert len(list(peeked)) == BATCHES  # training gets them all, and no other


def test_an_epoch_that_is_counted_in_part_has_no_next_one() -> None:
    loader = Epochs(anew=1.0)
    with Look(loader) as look:
        tally = count_sample(look, TABLES, most=BATCHES - 1)
        assert not list(look.next_epoch())
    assert tally.comes_again is None


def _on_rank() -> tuple[dict[str, float] | None, float]:
    group = dist.group.WORLD
    with Look(Epochs(anew=1.0, seed=dist.get_rank())) as look:
        tally = count_sample(look, TABLES, most=None, group=group)
    again = tally.comes_again
    return (None if again is None else dict(again)), tally.counted_share


def _in_part_on_rank_0() -> Mapping[str, float] | None:
    """Rank 1 has counted all of its epoch; rank 0 has not."""
    rank = dist.get_rank()
    loader = Epochs(anew=1.0, seed=rank)
    most = BATCHES - 1
    with Look(loader if rank == 0 else [*loader][:most]) as look:
        tally = count_sample(look, TABLES, most=most, group=dist.group.WORLD)
    return tally.comes_again


def test_an_epoch_that_one_rank_counted_in_part_is_none(gloo_pool: GlooPool) -> None:
    assert gloo_pool.run(_in_part_on_rank_0) == [None, None]


def test_ranks_look_into_their_next_epochs_together(gloo_pool: GlooPool) -> None:
    (again, share), (other, _) = gloo_pool.run(_on_rank)
    assert share == 1
    assert other is None  # rank 0 plans
    assert again is not None
    assert again["user"] == 1
    assert again["negative"] < 0.2
