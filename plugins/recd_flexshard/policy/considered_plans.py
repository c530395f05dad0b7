"""The report of a search by `goal: auto`: which plans each collection might have had, with the one
that it has."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from recd_flexshard.policy.search import PlanSearch, Way, way_of
from recd_plugins.api.planning import Considered, Ledger

__all__ = ["considered_plans"]

CALLED: Mapping[Way, str] = {
    "torchrec": "TorchRec's own plan",
    "none": "rows",
    "rank": "rows, by rank",
    "node": "rows, by node",
    "sums": "sums",
}


def considered_plans(search: PlanSearch) -> dict[str, list[Considered]]:
    """The plans that each collection might have had, by its path; the other collections are as in
    the best plan that the search has found. The chosen plan is among them."""
    return {
        path: list(_Collection(search=search, names=names).plans())
        for path, names in search.collections.items()
    }


@dataclass(frozen=True, kw_only=True)
class _Collection:
    """The tables of one collection, after a search."""

    search: PlanSearch
    names: tuple[str, ...]

    def plans(self) -> Iterator[Considered]:
        """The plans by way: first without replicas, then with the best ones that fit."""
        for way in self.search.ways_of(self.names):
            yield from self._in_one_way(way)
        yield from self._in_front_of_sums()
        if len(self._taken) > 1:
            yield self._considered("each table its own way", self.search.best, True)

    def _in_one_way(self, way: Way) -> Iterator[Considered]:
        """All of these tables in one way: without replicas, then with the best ones that fit."""
        search, called = self.search, self._called(way)
        is_taken, best_has_replicas = self._taken == {way}, self._has_replicas(search.best)
        if is_taken and not best_has_replicas:
            yield self._considered(called, search.best, True)
        else:
            alone = search.without_replicas(dict.fromkeys(self.names, way))
            ledger = search.ledgers.by(search.sizes_of_others(self.names) | alone)
            yield self._considered(called, ledger, False)
        if is_taken and best_has_replicas:
            yield self._considered(f"{called}, with replicas", search.best, True)
            return
        with_replicas = [
            ledger
            for ledger in search.candidates(search.ways | dict.fromkeys(self.names, way))
            if search.so_far.fits(ledger) and self._has_replicas(ledger)
        ]
        if with_replicas:
            found = min(with_replicas, key=lambda ledger: ledger.ms)
            yield self._considered(f"{called}, with replicas", found, found is search.best)

    def _in_front_of_sums(self) -> Iterator[Considered]:
        """These tables as row-wise sums with replicas in front of them: as chosen, or the best of
        the plans that were tried."""
        search, called = self.search, f"{CALLED['sums']}, with replicas"
        if self._taken == {"sums"}:
            yield self._considered(called, search.best, True)
        elif tried := list(search.in_front_of_sums(self.names)):
            found = min(tried, key=lambda ledger: (not search.so_far.fits(ledger), ledger.ms))
            yield self._considered(called, found, False)

    @property
    def _taken(self) -> set[Way]:
        """The ways of these tables in the best plan."""
        return {way_of(self.search.best.tables[name]) for name in self.names}

    def _has_replicas(self, ledger: Ledger) -> bool:
        return any(ledger.tables[name].has_replicas for name in self.names)

    def _called(self, way: Way) -> str:
        """What a report calls a way of these tables; TorchRec's own with its sharding types."""
        if way != "torchrec":
            return CALLED[way]
        shards = [self.search.tables[name].shards for name in self.names]
        kinds = sorted({one.kind for one in shards if one is not None})
        return f"{CALLED[way]} ({', '.join(kinds) or 'row_wise'})"

    def _considered(self, called: str, ledger: Ledger, chosen: bool) -> Considered:
        return Considered(
            way=called,
            ms=ledger.ms,
            exchanged=ledger.cost.exchanged,
            memory=ledger.memory - self.search.own.memory,
            fits=self.search.so_far.fits(ledger),
            chosen=chosen,
            needs=self.search.so_far.needs(ledger),
            unworthy="" if chosen else self.search.so_far.unworthy(ledger),
        )
