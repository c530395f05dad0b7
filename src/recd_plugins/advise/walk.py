"""Finds the way from plain TorchRec to what pays: each addition is weighed on top of those kept so
far.

An addition is kept if it improves the objective by as much as the goal asks (`AdviceGoal.worth`),
within the budget. One that does not pay by itself waits for those that need it.
At the end each kept addition is left out once, and stays out if nothing is lost by that. Then each
addition that was not kept takes the place of each kept one, if that is better: two additions
may save the same bytes, and the first that was met is not always the better one. Last, each is
tried in its other ways. So, by the forecasts, nothing that is advised is slower than plain
TorchRec's own best plan.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Literal

from recd_plugins.additions import NotHere, Situation, Values
from recd_plugins.advise.added_values import answer_of, in_order, with_plugin
from recd_plugins.advise.goal import AdviceGoal
from recd_plugins.advise.outlook import Outlook, Outlooks, changes_in_words
from recd_plugins.data.schema import Schema
from recd_plugins.errors import (
    CapabilityError,
    RecdError,
    listed,
)
from recd_plugins.hooks.catalog import ClaimedAddition
from recd_plugins.registry.source import as_of_yaml

__all__ = [
    "Walk",
    "Weighed",
    "weigh",
    "weigh_near",
]

FAR = 0.15
"""If a step took longer than the best by more than this share with an addition left out, or in the
place of another, that is not tried again when something differs by a factor of two."""
ALIKE = 0.5
"""`FAR` holds only if more than this share of the earlier saving is saved again."""
FEW = 4
"""If at most this many additions wait, each choice of them is tried with the next addition; if
more, only all of them, and only those that it needs."""
FEATURES = 3
"""The number of features for which it explains why they are not deduplicated. It adds the very last
line, which may be about all features."""

Verdict = Literal["kept", "replaced", "waits", "left out", "not here"]


@dataclass(frozen=True, kw_only=True)
class Weighed:
    """An addition, and the result of weighing it."""

    claim: ClaimedAddition
    verdict: Verdict
    why: str
    """Why it is kept, or why it is not."""
    outlook: Outlook | None = None
    """The outlook with it, on top of those kept before it; None if it cannot be used."""
    gain: float | None = None
    """The share of the objective that it saved when it was met; None if it was not weighed."""
    at_the_end: float | None = None
    """The share of the objective that would be lost if only this were left out at the end; None if
    that is unknown."""
    waited_for: str = ""
    """The addition that it was kept with, if it did not pay by itself."""

    @property
    def name(self) -> str:
        return self.claim.addition.name


@dataclass(frozen=True, kw_only=True)
class Walk:
    """The way from the baseline, addition by addition, to what is advised."""

    base: Outlook
    """TorchRec's own best plan for the same table and model; if it `lacks` memory, as if there were
    room."""
    weighed: Sequence[Weighed]
    best: Outlook
    met: Mapping[tuple[str, ...], Outlook] = field(default_factory=dict)
    """The outlook of each set of additions that was weighed, within the budget or not."""
    replaced: Mapping[str, Sequence[ClaimedAddition]] = field(default_factory=dict)
    """For each addition, those kept before it whose keys it has written anew."""
    varied: Mapping[str, ClaimedAddition] = field(default_factory=dict)
    """The additions that are kept in one of their other ways, in that way."""

    @property
    def kept(self) -> tuple[str, ...]:
        """The additions that are advised, in their order."""
        return tuple(one.name for one in self.weighed if one.verdict == "kept")


def weigh(
    values: Values,
    claims: Sequence[ClaimedAddition],
    outlooks: Outlooks,
    goal: AdviceGoal,
    schema: Schema,
    met: Callable[[str], None] = lambda what: None,
) -> Walk:
    """Weigh the additions in order, on top of `values`, a registry without any; `met` is called
    with the name of each before it is weighed. `CapabilityError` if memory has no room for the
    tables with any of them."""
    met("TorchRec's own best plan")
    base = outlooks.of(values)
    on_the_way = _OnTheWay(base=base, outlooks=outlooks, goal=goal, schema=schema)
    for claim in in_order(claims):
        met(claim.addition.name)
        on_the_way.meet(claim)
    met("each left out once")
    on_the_way.leave_out()
    met("each in another's place")
    on_the_way.take_places()
    met("each otherwise")
    on_the_way.vary()
    return on_the_way.walk()


def weigh_near(
    found: Walk,
    values: Values,
    claims: Sequence[ClaimedAddition],
    outlooks: Outlooks,
    goal: AdviceGoal,
    schema: Schema,
) -> Walk:
    """Weigh the additions if something differs from a walk that was `found`. It begins with the
    additions that are kept there, in the way that they are kept, on top of `values`. The others are
    met anew, each kept one is left out once, and each of the rest is tried in the place of each
    kept one. Changes that were `FAR` from the best there are skipped if about as much is saved
    here. All is weighed as in `weigh` if what was kept cannot be used, does not fit, or is worse
    than the baseline."""
    base = outlooks.of(values)
    on_the_way = _OnTheWay(base=base, outlooks=outlooks, goal=goal, schema=schema)
    ordered = [found.varied.get(one.addition.name, one) for one in in_order(claims)]
    if not on_the_way.begin([one for one in ordered if one.addition.name in found.kept], found):
        return weigh(values, claims, outlooks, goal, schema)
    for claim in ordered:
        if claim.addition.name not in found.kept:
            on_the_way.meet(claim)
    on_the_way.leave_out()
    on_the_way.take_places()
    return on_the_way.walk()


class _Far:
    """The changes to what a walk has kept that were weighed on it and are `FAR` from its best."""

    def __init__(self, found: Walk, goal: AdviceGoal) -> None:
        self._kept = frozenset(found.kept)
        most = goal.score(found.best) * (1 + FAR)
        met = [names for names, one in found.met.items() if goal.score(one) > most]
        self._changes = [self._change(names) for names in met]

    def has(self, claims: Sequence[ClaimedAddition]) -> bool:
        """Whether these are what was kept with one of the changes, or with even more left out."""
        left_out, put_in = self._change(_names(claims))
        return any(out <= left_out and put_in == others for out, others in self._changes)

    def _change(self, names: Sequence[str]) -> tuple[frozenset[str], frozenset[str]]:
        """The names that are left out of what was kept, and those that are there instead."""
        return self._kept.difference(names), frozenset(names) - self._kept


class _OnTheWay:
    """A walk that is under way, with the additions that are kept so far."""

    def __init__(
        self, *, base: Outlook, outlooks: Outlooks, goal: AdviceGoal, schema: Schema
    ) -> None:
        self._far: _Far | None = None
        """The changes that are not tried; None if all are."""
        self._base, self._outlooks, self._goal, self._schema = base, outlooks, goal, schema
        self.best = base
        self.weighed: list[Weighed] = []
        self.met: dict[tuple[str, ...], Outlook] = {(): base}
        self._reasons: dict[str, str] = {}
        """Why each addition did not pay when it was met."""
        self._top = base
        """The best outlook that was met: leaving additions out loses little of it."""
        self._kept: list[ClaimedAddition] = []
        self._replaced: dict[str, list[ClaimedAddition]] = {}
        """For each addition, those kept before it whose keys it has written anew."""
        self._varied: dict[str, ClaimedAddition] = {}
        self._wrote: dict[str, set[str]] = {}
        """The keys that each addition has written."""
        self._waiting: list[ClaimedAddition] = []
        """The additions that do not pay by themselves but change what later ones find."""

    def walk(self) -> Walk:
        if self.best.lacks:
            raise CapabilityError(self._why_no_room())
        return Walk(
            base=self._base,
            weighed=[self._as_it_ended(one) for one in self.weighed],
            best=self.best,
            met=self.met,
            replaced=self._replaced,
            varied=self._varied,
        )

    def _as_it_ended(self, one: Weighed) -> Weighed:
        """The addition; its reason names no other as one that pays if that was left out later."""
        left_out = {other.name for other in self.weighed if other.verdict == "left out"}
        if one.waited_for not in left_out:
            return one
        why = f"{one.waited_for} paid with it, and was left out later"
        return dataclasses.replace(one, why=why)

    def begin(self, kept: list[ClaimedAddition], found: Walk) -> bool:
        """Begin with what another walk has kept. Returns whether that can be used here, is within
        the budget and is no worse than the baseline; else nothing changes."""
        outlook = self._having(kept)
        if isinstance(outlook, NotHere) or not self._goal.fits(outlook, self._base):
            return False
        if self._goal.score(outlook) > self._goal.score(self._base):
            return False
        for claim in kept:
            self._put(claim, "kept", "", outlook)
        self._kept = kept
        self._replaced = {name: list(some) for name, some in found.replaced.items()}
        if self._goal.gain(outlook, self._base) > ALIKE * self._goal.gain(found.best, found.base):
            self._far = _Far(found, self._goal)
        self.best = self._top = outlook
        return True

    def meet(self, claim: ClaimedAddition) -> None:
        addition = claim.addition
        not_here = {one.name for one in self.weighed if one.verdict == "not here"}
        if missing := [name for name in addition.needs if name in not_here]:
            self._put(claim, "not here", f"it needs {', '.join(missing)}")
            return
        found: list[tuple[list[ClaimedAddition], Outlook]] = []
        refused = ""
        for more in self._with_waiting(claim):
            outlook = self._having([*self._kept, *more])
            if isinstance(outlook, NotHere):
                refused = refused or outlook.why
            else:
                found.append((more, outlook))
        if not found:
            self._put(claim, "not here", refused)
            return
        fitting = [one for one in found if self._goal.fits(one[1], self._base)]
        paying = [one for one in fitting if self._goal.pays(one[1], self.best)]
        more, outlook = min(paying or fitting or found, key=lambda one: self._goal.score(one[1]))
        gain = self._goal.gain(outlook, self.best)
        if not fitting:
            why = self._goal.why_not_fitting(outlook, self._base)
        elif paying:
            for other in more[:-1]:
                why = f"{addition.name} pays with it"
                self._settle(other, "kept", why, waited_for=addition.name)
            self._waiting = [one for one in self._waiting if one not in more]
            self._put(claim, "kept", changes_in_words(outlook, self.best), outlook, gain)
            self._keep(claim, [*self._kept, *more], outlook)
            return
        else:
            # The outlook with all that waits, since its notices must not ask for what was tried.
            worth = self._goal.worth(outlook, self.best)
            why = self._why_left(claim, gain, worth, fitting[0][1])
        self._waiting.append(claim)
        self._reasons[addition.name] = why
        self._put(claim, "waits", why, outlook, gain)

    def _with_waiting(self, claim: ClaimedAddition) -> Iterator[list[ClaimedAddition]]:
        """The addition with all that waits, then with some of these: with each choice of them if
        they are at most `FEW`."""
        waiting = self._waiting
        yield [*waiting, claim]
        needed = {one.addition.name for one in waiting} & set(claim.addition.needs)
        counts = reversed(range(len(waiting))) if len(waiting) <= FEW else (len(needed),)
        for count in counts:
            for some in combinations(waiting, count):
                if needed <= {one.addition.name for one in some}:
                    yield [*some, claim]

    def leave_out(self) -> None:
        """Drop what still waits, and each addition without which nothing is lost."""
        for claim in self._waiting:
            (one,) = (one for one in self.weighed if one.claim is claim)
            self._settle(claim, "left out", one.why)
        for claim in reversed(self._kept):
            name = claim.addition.name
            if not any(one is claim for one in self._kept):
                continue  # it was dropped with one that it needs
            gone = self._with_those_that_need(claim)
            back = self._replaced.get(name, [])
            rest = in_order([*(one for one in self._kept if one not in gone), *back])
            if self._far and self._far.has(rest):
                continue
            outlook = self._having(rest)
            if isinstance(outlook, NotHere):
                continue
            lost = -self._goal.gain(outlook, self._top)
            spared = lost < self._goal.worth(self.best, outlook) and not self._goal.slower_at_work(
                outlook, self._base
            )
            if spared and self._goal.fits(outlook, self._base):
                self._kept, self.best = rest, outlook
                if lost < 0:  # it hindered others, which are worth more without it
                    self._top = outlook
                    for other in rest:
                        self._note_loss(other, None)
                for other in gone:
                    before = self._reasons.get(other.addition.name, "")
                    why = f"without it a step takes {self._change_in_words(lost)}"
                    self._settle(other, "left out", f"{why}; {before}" if before else why)
                for other in back:
                    self._settle(other, "kept", f"it does as much as {name}")
            else:
                self._note_loss(claim, None if outlook.lacks else lost)

    def take_places(self) -> None:
        """Keep an addition that was left out in the place of a kept one, if that pays."""
        for claim in [one.claim for one in self.weighed if one.verdict == "left out"]:
            name = claim.addition.name
            tries: list[tuple[Outlook, list[ClaimedAddition], list[ClaimedAddition]]] = []
            for out in self._kept:
                gone = self._with_those_that_need(out)
                rest = [*(one for one in self._kept if one not in gone), claim]
                if not set(claim.addition.needs) <= {one.addition.name for one in rest}:
                    continue
                rest = in_order(rest)
                if self._far and self._far.has(rest):
                    continue
                outlook = self._having(rest)
                if isinstance(outlook, NotHere) or not self._goal.is_better(outlook, self.best):
                    continue
                if self._goal.fits(outlook, self._base):
                    tries.append((outlook, rest, gone))
            if not tries:
                continue
            outlook, rest, gone = min(tries, key=lambda one: self._goal.score(one[0]))
            gain = self._goal.gain(outlook, self.best)
            words = changes_in_words(outlook, self.best)
            for other in gone:
                why = f"{name} in its place saves {gain:.1%}"
                for one in (other, *self._replaced.pop(other.addition.name, ())):
                    self._settle(one, "left out", why)
            self._keep(claim, rest, outlook)
            self._settle(claim, "kept", words)
            for other in self._kept:  # its worth was measured beside other additions
                self._note_loss(other, None)

    def vary(self) -> None:
        """Use an addition in another way on top of all that is kept, if that pays; one that was
        left out is also tried together with those that it comes after and that were left out."""
        for index, before in enumerate(self.weighed):
            one = before
            if one.verdict not in ("kept", "left out"):
                continue
            for what, add in one.claim.addition.variants.items():
                varied = dataclasses.replace(
                    one.claim, addition=dataclasses.replace(one.claim.addition, add=add)
                )
                kept = one.verdict == "kept"
                if (found := self._with_variant(one.claim, varied, kept=kept)) is None:
                    continue
                trial, also, outlook = found
                for other in also:
                    self._settle(other, "kept", f"{one.name} in another way pays with it")
                gain = self._goal.gain(outlook, self.best)
                why = f"{what}, by which a step takes {gain:.1%} less"
                words = f"{before.why}; {why}" if before.verdict == "kept" else why
                one = dataclasses.replace(one, claim=varied, verdict="kept", why=words)
                if not kept:
                    one = dataclasses.replace(one, outlook=outlook, gain=gain)
                self.weighed[index] = one
                self.met[_names(trial)] = outlook
                self._varied[one.name], self._kept = varied, trial
                self.best = self._top = outlook
        if self._varied:
            for other in self._kept:  # it was weighed beside the earlier way of another
                self._note_loss(other, None)

    def _with_variant(
        self, claim: ClaimedAddition, varied: ClaimedAddition, *, kept: bool
    ) -> tuple[list[ClaimedAddition], list[ClaimedAddition], Outlook] | None:
        """What is kept with an addition `varied`, those of it that were left out before, and its
        outlook; None if that does not pay, with those or without."""
        rest = [*(other for other in self._kept if other is not claim), varied]
        before_it = [] if kept else self._left_out_before(claim)
        is_worth_it = self._goal.is_better if kept else self._goal.pays
        for also in ([], before_it) if before_it else ([],):
            trial = in_order([*rest, *also])
            outlook = self._having(trial, noted=False)
            if isinstance(outlook, NotHere) or not self._goal.fits(outlook, self._base):
                continue
            if is_worth_it(outlook, self.best):
                return trial, also, outlook
        return None

    def _keep(
        self, claim: ClaimedAddition, every: Sequence[ClaimedAddition], outlook: Outlook
    ) -> None:
        """Keep all additions of `every`, this one among them, without those whose keys it
        writes."""
        gone = self._replaced_by(claim, every)
        for other in gone:
            self._settle(other, "replaced", f"{claim.addition.name} writes the same keys, and more")
        self._replaced[claim.addition.name] = gone
        self._kept = [one for one in every if one not in gone]
        self.best = self._top = outlook

    def _left_out_before(self, claim: ClaimedAddition) -> list[ClaimedAddition]:
        """The left-out additions that an addition comes after."""
        return [
            one.claim
            for one in self.weighed
            if one.verdict == "left out" and one.name in claim.addition.after
        ]

    def _with_those_that_need(self, out: ClaimedAddition) -> list[ClaimedAddition]:
        """The addition, and the kept ones that need it or one of those."""
        gone = [out]
        for one in in_order(self._kept):
            if {other.addition.name for other in gone} & set(one.addition.needs):
                gone.append(one)
        return gone

    def _having(
        self, claims: Sequence[ClaimedAddition], *, noted: bool = True
    ) -> Outlook | NotHere:
        """The outlook of the baseline with these additions, recorded in `met` if `noted`; or why
        they cannot be used."""
        try:
            values = self._values(claims)
            if isinstance(values, NotHere):
                return values
            found = self._outlooks.of(values)
        except RecdError as error:
            return NotHere(str(error))
        if noted:
            self.met[_names(claims)] = found
        return found

    def _values(self, claims: Sequence[ClaimedAddition]) -> Values | NotHere:
        """The baseline's registry with these additions, each on top of those before it; or why one
        of them cannot be used."""
        values = self._base.values
        for claim in claims:
            situation = Situation(
                values=as_of_yaml(values),
                schema=self._schema,
                tables=self._base.tables,
                cluster=self._base.ledger.prices.cluster,
                budget_gb=self._goal.budget_gb,
                tiers=self._outlooks.plans_tiers(values),
                objective=self._goal.objective,
                fits=not self._base.lacks,
            )
            added = answer_of(claim, "add", claim.addition.add, situation)
            if isinstance(added, NotHere):
                return added
            self._wrote[claim.addition.name] = set(added)
            values = with_plugin({**values, **added}, claim)
        return values

    def _replaced_by(
        self, claim: ClaimedAddition, kept: Sequence[ClaimedAddition]
    ) -> list[ClaimedAddition]:
        """The kept additions whose keys this one writes anew, so that the registry is the same
        without them. Those whose keys it only adds to are not replaced."""
        whole, gone = _but_plugins(self._values(kept)), list[ClaimedAddition]()
        for one in (other for other in kept if other is not claim):
            rest = [other for other in kept if other is not one and other not in gone]
            try:
                if _but_plugins(self._values(rest)) == whole:
                    gone.append(one)
            except RecdError:  # the addition needs that one
                continue
        return gone

    def _put(
        self,
        claim: ClaimedAddition,
        verdict: Verdict,
        why: str,
        outlook: Outlook | None = None,
        gain: float | None = None,
    ) -> None:
        self.weighed.append(
            Weighed(claim=claim, verdict=verdict, why=why, outlook=outlook, gain=gain)
        )

    def _settle(
        self, claim: ClaimedAddition, verdict: Verdict, why: str, waited_for: str = ""
    ) -> None:
        self.weighed = [
            dataclasses.replace(one, verdict=verdict, why=why, waited_for=waited_for)
            if one.claim is claim
            else one
            for one in self.weighed
        ]

    def _note_loss(self, claim: ClaimedAddition, lost: float | None) -> None:
        self.weighed = [
            dataclasses.replace(one, at_the_end=lost) if one.claim is claim else one
            for one in self.weighed
        ]

    def _why_left(self, claim: ClaimedAddition, gain: float, worth: float, outlook: Outlook) -> str:
        # The outlook includes what waits, whose reasons are known already.
        known = [*self.best.notices, *self._reasons.values()]
        new = [one for one in outlook.notices if not any(one in other for other in known)]
        if "dedup" in self._wrote[claim.addition.name]:
            lines = outlook.why_groups[1:]
            new += [line.strip() for line in (*lines[:FEATURES], *lines[FEATURES:][-1:])]
        change = self._change_in_words(-gain)
        why = f"a step would take {change}, and {worth:.0%} must be saved"
        if gain > worth:
            now, then = self.best.ms_working_meanwhile, outlook.ms_working_meanwhile
            why = (
                f"a step would take {change}, but if ranks that share processors work while "
                f"others wait for bytes, {then:.3g} ms for {now:.3g}"
            )
        return "; ".join([why, *new])

    def _change_in_words(self, more: float) -> str:
        """How much more of what is to be saved a step takes."""
        what = "memory" if self._goal.objective == "memory" else "time"
        share = f"{abs(more):.1%}"
        return (
            f"as much {what}"
            if share == "0.0%"
            else f"{share} {'more' if more > 0 else 'less'} {what}"
        )

    def _why_no_room(self) -> str:
        """Why nothing fits, if memory has no room for the tables with the baseline."""
        *_, why = dict.fromkeys(one.lacks for one in self.met.values() if one.lacks)
        roomy = {names: one for names, one in self.met.items() if not one.lacks}
        if not roomy:
            return why
        names = min(roomy, key=lambda names: roomy[names].over(self._base))
        over = self._goal.why_not_fitting(roomy[names], self._base)
        return f"{why} There is room with {listed(names)}, but {over}. Give it a larger budget."


def _names(claims: Sequence[ClaimedAddition]) -> tuple[str, ...]:
    return tuple(claim.addition.name for claim in claims)


def _but_plugins(values: Values | NotHere) -> Values | NotHere:
    """The values without `plugins`, since one more plugin changes nothing by itself."""
    return values if isinstance(values, NotHere) else {**values, "plugins": None}
