"""What to measure so that the advice is surer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from recd_plugins.advise.goal import AdviceGoal
from recd_plugins.advise.model_and_batches import ModelOfTrainer
from recd_plugins.advise.walk import Walk
from recd_plugins.errors import listed
from recd_plugins.registry import Registry

__all__ = ["small_gains", "to_measure"]

UNSURE = 0.15
"""A smaller gain is near the error of forecasts, so it should be tried."""
WIDE = 0.1
"""If the interval of a tier's share of lookups is wider than this, more batches should be read."""


def small_gains(walk: Walk) -> list[str]:
    """The additions that save so little that forecasts cannot tell, nor do others save by them."""
    return [
        one.name
        for one in walk.weighed
        if one.gain is not None
        and 0 < one.gain < UNSURE
        and (one.at_the_end or 0.0) < UNSURE
        and one.outlook is not None
    ]


def to_measure(
    registry: Registry,
    goal: AdviceGoal,
    walk: Walk,
    sizes: Sequence[int],
    trainer: ModelOfTrainer | None = None,
    tried: Sequence[Sequence[str]] = (),
) -> Iterator[str]:
    """What to measure to be surer, after a walk at the best of these batch `sizes`, and a trial of
    the registries with these additions. For a user's own `trainer`, it says first which lookups are
    not in the advice."""
    if trainer is not None:
        yield from _of_no_row(trainer)
    topology, best = registry.topology, walk.best
    cluster = best.ledger.prices.cluster
    if cluster.world_size > 1 and topology.a2a_global is None:
        yield (
            "the links: they were not measured, so the topology's bandwidths or TorchRec's "
            "defaults are used. On the cluster: `recd topology measure --save topology.yaml`, then "
            "`topology: topology.yaml`"
        )
    if topology.gather_gbps is None:
        yield (
            "lookups: the time of rows and of small operations on the device was not measured, so "
            "lookups count as next to nothing: `recd topology measure` does it"
        )
    if best.mapped and topology.mapped_ns is None:
        yield (
            f"the disk, for {listed(best.mapped, kind='table')}: what a row of a mapped file takes "
            "is taken from another disk: `recd topology measure --mapped-folder FOLDER` finds what "
            "it takes on the disk of that folder"
        )
    if not best.step.compute.measured:
        yield (
            f"what the model computes: the plan is for {topology.device}, but no such device is "
            "here, so only exchange and lookups count. Advise there"
        )
    sketched = [name for name, one in best.ledger.tables.items() if one.table.rows.error]
    if sketched:
        few = listed(sketched, kind="table")
        yield f"{few}: a sketch counts the rows, and its errors are in the forecast"
    unsure = [
        name
        for name, one in best.ledger.tables.items()
        if max(high - low for low, high in (one.interval("replicated"), one.interval("per_node")))
        > WIDE
    ]
    if unsure:
        yield (
            f"{listed(unsure, kind='table')}: the counted batches do not settle which rows are "
            "hot; a longer table, or more `profile_batches`, would"
        )
    close = [name for name in small_gains(walk) if not any(name in each for each in tried)]
    if close:
        trial = "your trainer can tell"
        if registry.has_dataset:
            trial = f"a trial can tell: {'a larger --try' if tried else '--try'}"
        yield f"{', '.join(close)}: the gain is so small that only {trial}"
    if len(sizes) > 1 and goal.objective != "time_to_loss":
        yield (
            "the batch size: a larger batch needs more samples to learn as much. `recd tune loss "
            "--json` measures it, and `--objective time_to_loss --curve FILE` weighs it"
        )


def _of_no_row(trainer: ModelOfTrainer) -> Iterator[str]:
    """The lookups that are not in the advice, since nothing checks a trainer's ids against its
    tables."""
    if trainer.collided:
        yield (
            f"{listed(trainer.collided, kind='table')}: managed collision maps their ids to rows, "
            "so the advice does not count their lookups"
        )
    if shares := trainer.of_no_row:
        most = max(shares.values())
        yield (
            f"ids of {listed(sorted(shares), kind='table')} that are of no row, up to {most:.2%} "
            "of a table's: they are not in the advice, and TorchRec trains another row in the "
            "place of each"
        )
