"""Advice on a registry: what to add, what that will change, what would change the advice, and what
to measure."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from recd_plugins.additions import Values
from recd_plugins.advise.added_values import MOVING, plain, with_batch_size, without_moving
from recd_plugins.advise.goal import AdviceGoal
from recd_plugins.advise.model_and_batches import ModelOfTrainer
from recd_plugins.advise.outlook import Outlook, Outlooks
from recd_plugins.advise.to_measure import to_measure
from recd_plugins.advise.trials import (
    TriedRegistry,
    candidates,
    check_ranks_here,
    try_registries,
    winner,
)
from recd_plugins.advise.walk import Walk, Weighed, weigh, weigh_near
from recd_plugins.advise.what_ifs import WhatIf, what_may_differ
from recd_plugins.config import path_of
from recd_plugins.data.kept_stripes import keeping_stripes
from recd_plugins.data.progress import Progress, silent
from recd_plugins.errors import RecdError, RegistryError
from recd_plugins.hooks.catalog import Catalog, ClaimedAddition
from recd_plugins.hooks.imported import available
from recd_plugins.launch.rank_server import RankServer
from recd_plugins.planning.remembered import remembering
from recd_plugins.registry import Registry

__all__ = ["RegistryAdvice", "advise"]

TRAINERS = ("dataset", "etl", "model", "pooling")
"""The slots that belong to the trainer itself."""


@dataclass(frozen=True, kw_only=True)
class RegistryAdvice:
    """The advice on a registry, and the reasons for it."""

    registry: Registry
    """The registry that the advice is on."""
    goal: AdviceGoal
    walks: Mapping[int, Walk]
    """The walk from plain TorchRec to what is advised, by batch size."""
    batch_size: int
    """The best of these batch sizes."""
    as_given: Outlook | None
    """The outlook of the registry as it was given; None if that is the baseline, or if it has no
    forecast."""
    what_ifs: Sequence[WhatIf]
    to_measure: Sequence[str]
    """What to measure to be surer."""
    trials: Sequence[TriedRegistry]
    """The registries that were trained here, the baseline first if memory has room for it."""
    of_trainer: bool
    """Whether the advice is for a user's own trainer, which sets its ranks and batches itself."""
    has_features: bool
    """Whether the trainer's function returned a third thing, which gives a batch's features."""

    @property
    def won(self) -> tuple[tuple[str, ...], Outlook]:
        """The additions that are advised in the end, with their outlook: the fastest, if some were
        trained here."""
        best = self.taken
        return (best.additions, best.outlook) if best else (self.walk.kept, self.walk.best)

    @property
    def taken(self) -> TriedRegistry | None:
        """The advised one of the registries that were trained here, if any were."""
        return winner(self.trials, self.goal, self.walk.kept) if self.trials else None

    @property
    def walk(self) -> Walk:
        return self.walks[self.batch_size]

    @property
    def values(self) -> dict[str, Any]:
        """The values of the advised registry, with the expected time of a step."""
        given, best = self.registry.source.values, self.won[1]
        values = {k: v for k, v in best.values.items() if k not in ("strict", "train")}
        if self.of_trainer:
            own: dict[str, Any] = {k: given[k] for k in ("train", "strict") if k in given}
            return values | (own if best.retiers else without_moving(own))
        train = {k: v for k, v in (best.values.get("train") or {}).items() if k != "forecast_ms"}
        if best.retiers:
            train |= self._moving
        ranks = best.ledger.prices.cluster.world_size
        if ranks != self.registry.train.ranks:
            train["ranks"] = ranks
        if self.taken:
            train["forecast_ms"] = float(f"{self.taken.ms:.3g}")
        elif best.step.compute.measured:  # else it would be only of exchange and lookups
            train["forecast_ms"] = float(f"{best.ms:.3g}")
        if train:
            values["train"] = train
        if "strict" in given:
            values["strict"] = given["strict"]
        return values

    @property
    def left_out(self) -> str:
        """Why options of the given registry are left out of the advised one, if any are."""
        if self.won[1].retiers or not self._moving.get("retier_every"):
            return ""
        return "train.retier_every is left out: what is advised has no replicas that could move"

    @property
    def _moving(self) -> dict[str, Any]:
        train = self.registry.source.values.get("train") or {}
        return {name: train[name] for name in MOVING if name in train}

    def summary(self) -> dict[str, Any]:
        """The whole advice, for machines."""
        return {
            "objective": self.goal.objective,
            "budget_gb": self.goal.budget_gb,
            "batch_size": self.batch_size,
            "baseline": self.walk.base.summary(),
            "as_given": None if self.as_given is None else self.as_given.summary(),
            "additions": [_weighed(one) for one in self.walk.weighed],
            "advised": {"additions": list(self.won[0]), **self.won[1].summary()},
            "trials": [one.summary() for one in self.trials],
            "batch_sizes": {
                str(size): {"ms": walk.best.ms, "samples_per_second": walk.best.samples_per_second}
                for size, walk in self.walks.items()
            },
            "what_ifs": [
                {
                    "what": one.name,
                    "additions": None if one.walk is None else list(one.walk.kept),
                    "ms": None if one.walk is None else one.walk.best.ms,
                    "baseline_ms": None if one.walk is None else one.walk.base.ms,
                    "why": one.why,
                }
                for one in self.what_ifs
            ],
            "to_measure": list(self.to_measure),
            "registry": self.values,
        }


def _additions_of(registry: Registry) -> list[ClaimedAddition]:
    """The additions of the registry's plugins and of all installed plugins that are not broken."""
    base = registry.source.base
    own = [_whole(one, base) for one in registry.plugins if one not in available()]
    catalog = Catalog([*own, *available()], base, strict=False)
    return catalog.additions


def advise(
    registry: Registry,
    goal: AdviceGoal,
    *,
    ranks: int | None = None,
    ranks_here: int | None = None,
    batch_sizes: Sequence[int] = (),
    with_what_ifs: bool = True,
    most_tried: int = 0,
    rounds: int = 3,
    steps: int = 10,
    server: RankServer | None = None,
    trainer: ModelOfTrainer | None = None,
    progress: Progress = silent,
    met: Callable[[str], None] = lambda what: None,
) -> RegistryAdvice:
    """Advise on a registry with a dataset and a model, or on one for a user's own `trainer`. The
    `ranks` need not exist; `ranks_here` of them share a machine. `met` is called with the name of
    what is weighed next.

    With `most_tried`, this many of the best registries, and the baseline, are trained on this
    machine. All ranks share it then, also in the forecasts.
    """
    ranks = ranks or registry.train.ranks
    if trainer is None:
        _check_reads(registry)
    else:
        _check_leaves_to(registry, trainer, batch_sizes, most_tried)
        batch_sizes = (trainer.batch_size,)
    if most_tried:
        check_ranks_here(ranks, registry)
    with remembering(), keeping_stripes(), _garbage_kept():
        return _advised(
            registry,
            goal,
            ranks,
            ranks_here,
            batch_sizes,
            with_what_ifs,
            trainer,
            progress,
            met,
            partial(try_registries, rounds=rounds, steps=steps, server=server)
            if most_tried
            else None,
            most_tried,
        )


def _advised(
    registry: Registry,
    goal: AdviceGoal,
    ranks: int,
    ranks_here: int | None,
    batch_sizes: Sequence[int],
    with_what_ifs: bool,
    trainer: ModelOfTrainer | None,
    progress: Progress,
    met: Callable[[str], None],
    trial: Callable[[Mapping[tuple[str, ...], Outlook], Outlooks], list[TriedRegistry]] | None,
    most_tried: int,
) -> RegistryAdvice:
    claims = _additions_of(registry)
    if not claims:
        raise RegistryError(
            "no plugin has additions to weigh. Install one that has some, such as those of "
            "recd-plugins."
        )
    outlooks = Outlooks(registry, ranks, ranks if trial else ranks_here, progress, trainer)
    base = _absolute(plain(registry.source.values, claims), registry.source.base)
    schema = outlooks.schema(base)
    sizes = tuple(dict.fromkeys(batch_sizes)) or (registry.train.batch_size,)
    walks = {
        size: weigh(with_batch_size(base, size), claims, outlooks, goal, schema, met)
        for size in sizes
    }
    best = min(walks, key=lambda size: goal.score(walks[size].best))
    what_ifs: list[WhatIf] = []

    def near_the_best(otherwise: Callable[[Values], Values], other_goal: AdviceGoal) -> Walk:
        values = otherwise(with_batch_size(base, best))
        return weigh_near(walks[best], values, claims, outlooks, other_goal, schema)

    if with_what_ifs:
        for name, otherwise, other_goal in what_may_differ(
            registry, claims, goal, best, walks[best], its_batches=trainer is not None
        ):
            met(f"what if: {name}")
            what_ifs.append(WhatIf.of(name, partial(near_the_best, otherwise, other_goal)))
    trials: list[TriedRegistry] = []
    if trial is not None:
        sides = candidates(walks[best], goal, most_tried)
        met(f"{len(sides)} registr{'y' if len(sides) == 1 else 'ies'}, by training them")
        trials = trial(sides, outlooks)
    return RegistryAdvice(
        registry=registry,
        trials=trials,
        goal=goal,
        walks=walks,
        batch_size=best,
        as_given=_as_given(registry, outlooks, walks[best]),
        of_trainer=trainer is not None,
        has_features=trainer is not None and trainer.features is not None,
        what_ifs=what_ifs,
        to_measure=[
            *to_measure(
                registry, goal, walks[best], sizes, trainer, [one.additions for one in trials]
            )
        ],
    )


@contextmanager
def _garbage_kept() -> Iterator[None]:
    """Inside, garbage is rarely collected: plans are millions of small objects without a cycle, and
    looking at them again and again takes a sixth of the time."""
    before = gc.get_threshold()
    if before[0]:
        gc.set_threshold(max(before[0], 50_000), 50, 1000)
    try:
        yield
    finally:
        gc.set_threshold(*before)


def _check_reads(registry: Registry) -> None:
    """`RegistryError` if the registry has no dataset or no model."""
    if not registry.has_dataset:
        raise RegistryError(
            "there is no dataset to read batches of. Name one (`dataset`), or give a table in "
            "place of a registry: `recd advise --table TABLE`; or let a function of your own "
            "trainer make its model and its loader: `recd advise --trainer my_trainer.py:parts`."
        )
    registry.one("model")


def _check_leaves_to(
    registry: Registry, trainer: ModelOfTrainer, batch_sizes: Sequence[int], most_tried: int
) -> None:
    """`RegistryError` if the registry has slots that belong to the trainer, or if options are set
    that are not for a trainer."""
    if own := [slot for slot in TRAINERS if registry.written(slot)]:
        where = "" if registry.source.path is None else f", {registry.source.path},"
        raise RegistryError(
            f"{own[0]}: this is the registry's own{where} and {trainer.name} has another one. Take "
            "it out, name another registry by -r, or advise without --trainer."
        )
    if most_tried or batch_sizes:
        raise RegistryError(
            f"--try, --batch-size and --curve are not for {trainer.name}, which itself makes its "
            "batches and trains. Leave them out."
        )


def _as_given(registry: Registry, outlooks: Outlooks, walk: Walk) -> Outlook | None:
    """The outlook of the registry as it was given. None if that is the baseline, or if it has no
    forecast: whoever trains it gets the error."""
    size = registry.train.batch_size if registry.has_dataset else walk.base.batch_size
    values = with_batch_size(_absolute(registry.source.values, registry.source.base), size)
    if {k: v for k, v in values.items() if k != "plugins"} == {
        k: v for k, v in walk.base.values.items() if k != "plugins"
    }:
        return None
    try:
        return outlooks.of(values)
    except RecdError:
        return None


def _absolute(values: Values, base: Path) -> dict[str, Any]:
    """The values with absolute paths in place of those relative to the registry's file, since the
    advised registry may be in another folder."""
    found = dict(values)
    if "topology" in found:
        found["topology"] = _of_file(found["topology"], base)
    found["plugins"] = [_whole(one, base) for one in found.get("plugins") or []]
    return found


def _of_file(topology: Any, base: Path) -> Any:
    """A topology with the absolute path of its file, whether it is a file or has options over one
    (`use`)."""
    if isinstance(topology, Mapping) and "use" in topology:
        return {**topology, "use": _of_file(topology["use"], base)}
    is_file = isinstance(topology, str) and topology.endswith((".yaml", ".yml"))
    return str((base / path_of(topology, "topology")).resolve()) if is_file else topology


def _whole(plugin: str, base: Path) -> str:
    """A plugin's name; a path becomes absolute."""
    if plugin.endswith(".py") or "/" in plugin or plugin.startswith((".", "~")):
        return str((base / Path(plugin).expanduser()).resolve())
    return plugin


def _weighed(one: Weighed) -> dict[str, Any]:
    return {
        "name": one.name,
        "plugin": one.claim.provider.plugin,
        "summary": one.claim.addition.summary,
        "verdict": one.verdict,
        "why": one.why,
        "gain": one.gain,
        "at_the_end": one.at_the_end,
        "outlook": None if one.outlook is None else one.outlook.summary(),
    }
