"""The parts of a registry that a trainer asks a stack for, and the notices of how they are planned,
read and used."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from multiprocessing import active_children
from typing import TYPE_CHECKING
from weakref import ref

from recd_plugins.errors import listed, nearest, shown, so_many
from recd_plugins.notices import (
    Empty,
    Missed,
    Notice,
    Notices,
    Otherwise,
    Replaced,
    TooLarge,
    Unchecked,
    Unneeded,
    Unused,
    Unwatched,
)
from recd_plugins.planning.cluster.topology import GB
from recd_plugins.planning.together import from_rank_0
from recd_plugins.registry.choice import Choice
from recd_plugins.registry.registry import Registry
from recd_plugins.registry.source import Rewritten
from recd_plugins.slots import SLOTS, uncalled
from recd_plugins.stack.idle_settings import idle_settings

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

    from recd_plugins.slots import Callback, Planner

__all__ = ["OPTIMIZER_MADE", "Usage"]

OPTIMIZER_MADE = "optimizer made"
"""What a trainer asks for that calls the factory which `stack.optimizer` returns."""


class Usage:
    """Warns of what registry.yaml switches on and the job does not use. Each stack has one."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._asked: set[str] = set()
        source = registry.source
        self._notices = Notices(strict=registry.strict, path=source.path, lines=source.lines)
        self._callbacks: list[Callable[[], object]] = []
        """The callbacks that the trainer was given."""
        self._given_callbacks = 0
        """How often it was given any."""
        self._loaders: list[Callable[[], object]] = []
        """The loaders of the train split that the trainer was given."""
        self.group: ProcessGroup | None = None
        """The ranks that train, where these are not all of the job's: the first of them warns."""

    def asked(self, *what: str) -> None:
        """The trainer asks for what these slots, or options of `train`, provide."""
        self._asked.update(what)

    def asks_for(self, what: str) -> bool:
        """Whether it did."""
        return what in self._asked

    def gave_callbacks(self, callbacks: Iterable[Callback]) -> None:
        """The trainer has them from now on, if it keeps them."""
        self._callbacks += map(_weak, callbacks)
        self._given_callbacks += 1

    @property
    def callbacks_are_gone(self) -> bool:
        """Whether the trainer was given callbacks, once, and kept none, so that nobody can call
        their methods any more. One that asks for them in each step may call them at once."""
        gone = all(callback() is None for callback in self._callbacks)
        return self._given_callbacks == 1 and bool(self._callbacks) and gone

    @property
    def uncalled_callbacks(self) -> Mapping[int, Sequence[str]]:
        """By its place in registry.yaml, each callback that the trainer has and of which it has
        called no method of each step, with these methods."""
        last = self._callbacks[-len(self._registry.chosen("callbacks")) :]
        found = {number: uncalled(one()) for number, one in enumerate(last)}
        return {number: methods for number, methods in found.items() if methods}

    def gave_loader(self, loader: object) -> None:
        """The trainer is to train on the batches of this loader from now on."""
        self._loaders.append(_weak(loader))

    @property
    def loaders_are_unread(self) -> bool:
        """Whether the trainer was given loaders, has all of them still, and took a batch of none.
        Another process of its own may read one for it."""
        given = [loader() for loader in self._loaders]
        unread = all(one is not None and not getattr(one, "is_read", True) for one in given)
        return bool(given) and unread and not active_children()

    def unused(self, choice: Choice, why: str, cure: str) -> None:
        """A choice does nothing, which all ranks find alike."""
        self._give(Unused(what=choice.what, why=why, cure=cure))

    def found(self, notices: Iterable[Notice]) -> None:
        """Give notices that all ranks found alike."""
        self._give(*notices)

    def notices_for_ranks(self) -> dict[str, str]:
        """The variables by which ranks that this process starts give none of its notices again."""
        return self._notices.for_ranks()

    def idle_options(self) -> None:
        """Look at options that do nothing beside other options of their record."""
        for choice in (one for chosen in self._registry.choices.values() for one in chosen):
            self._give(*choice.idle_options())

    def as_written(self, world_size: int) -> None:
        """Give notices of what registry.yaml itself shows.

        - A key of it, or of a topology's file, has nothing behind it, perhaps since that was
          commented out; or an override has none, as from an unset variable of the shell.
        - An override drops settings, or other settings make some idle.
        - A plugin changes the process.
        """
        source = self._registry.source
        self.idle_options()
        self._give(*idle_settings(self._registry, world_size))
        self._give(*self._registry.catalog.put_back, *self._registry.empty)
        self._give(*map(_replaced, source.rewritten))
        for key in source.empty:
            why = "its defaults hold"
            if "." in key:
                why = "it is read as `null`"
            elif key in SLOTS:
                chosen = self._registry.chosen(key)
                why = (
                    f"{chosen[0].record.name}, its default, fills it" if chosen else "none fills it"
                )
            place, cure = source.place_of_empty(key)
            self._give(Empty(what=key, why=f"{why} ({place})", cure=cure))

    def unneeded(self, features: Sequence[str]) -> None:
        """Features are read for a model whose tables do not have them."""
        if features:
            names = ", ".join(features)
            self._give(
                Unneeded(
                    what=f"dataset: {names}",
                    why="it is read, and no table of the model looks it up, nor what a transform "
                    "makes of it",
                    cure=f"Write `dataset.without: [{names}]`, where the model takes it from the "
                    "batch in no other way.",
                )
            )

    def unweighed(self, transform: Choice, features: Sequence[str]) -> None:
        """Ids get weights that no collection of the model takes."""
        if features:
            self._give(
                Unneeded(
                    what=transform.what,
                    why=f"the ids of {listed(features, kind='feature')} get weights by it, and no "
                    "collection that looks them up takes any",
                    cure="Make that EmbeddingBagCollection with `is_weighted=True`, or take the "
                    "transform out, where the model reads the weights in no other way.",
                )
            )

    def unseen(self, reader: Choice, device: object) -> None:
        """The ids of a reader's batches come on a device: to look at them would make the processor
        wait."""
        self._give(
            Unchecked(
                what=reader.what,
                why=f"its batches come on {device}, where nobody sees an id of no row before "
                "another row is trained in its place",
                cure="Have its loader yield batches of the CPU's memory, pinned if that is to be "
                "fast: the pipeline moves them.",
            )
        )

    def untransformed(self, reader: Choice, steps: Iterable[Choice]) -> None:
        """A reader's batches come as the tables have them, though its loader was given a transform
        of these steps."""
        for step in steps:
            self._give(
                Unused(
                    what=step.what,
                    why=f"the loader of {reader.what} yields batches that did not go through the "
                    "`transform` that it was given",
                    cure="Have it yield `transform(batch)`, or take another reader.",
                )
            )

    def other_sizes(self, reader: Choice, samples: int) -> None:
        """A reader's first batch of the train split has so many samples."""
        if samples != (asked := self._registry.train.batch_size):
            self._give(
                Otherwise(
                    what=reader.what,
                    why=f"its first batch has {so_many(samples, 'sample')}, where "
                    f"train.batch_size is {asked:,}",
                    cure="Have its loader yield batches of the `batch_size` that it is given.",
                )
            )

    def too_small(self, tables: Sequence[str]) -> None:
        """Tables have no row for some ids that batches may hold; `tables` says so of each."""
        if tables:
            self._give(
                Unchecked(
                    what="model",
                    why=f"{listed(tables, 3)}: unless the model maps them, another row is trained "
                    "in the place of an id that its table has no row for",
                    cure="Size each table by the schema of its context: "
                    "`context.require_schema().feature(name).num_ids`.",
                )
            )

    def untrained(self, reader: Choice, rows: int, read: int) -> None:
        """Rows of a period may be in no batch: no later epoch has them."""
        if read < rows:
            self._give(
                Missed(
                    what=f"reader: {reader.record.name}",
                    why="rows of a period that fill no batch are left out, and no later epoch has "
                    "them",
                    cure="Write `reader.tail: pad`, and every row is trained.",
                )
            )

    def not_kept(self, choice: Choice, tables: Sequence[str]) -> None:
        """A plan places tables otherwise than the trainer's constraints allow."""
        if tables:
            self._give(
                Unused(
                    what="stack.plan(constraints=...)",
                    why=f"it does not allow {', '.join(tables)}, as `{choice.where}: "
                    f"{choice.record.name}` plans",
                    cure="Let that planner follow `context.constraints`, or take these tables out "
                    "of the constraints.",
                )
            )

    def of_no_table(self, names: Sequence[str], planned: Collection[str]) -> None:
        """The trainer's constraints have these names, which no planned table has."""
        for name in names:
            self._give(
                Unused(
                    what=f"stack.plan(constraints={{{name!r}: ...}})",
                    why=f"there is no such table; {nearest(name, planned)}",
                    cure="Name the table as the plan does, or take it out.",
                )
            )

    def left_whole(self, choice: Choice, modules: Sequence[str]) -> None:
        """A plan leaves out some modules with tables."""
        if modules:
            self._give(
                Otherwise(
                    what=choice.what,
                    why=f"its plan leaves out {', '.join(modules)}, which every rank then has "
                    "whole, and the dense optimizer steps, if any",
                    cure="Have the planner place every module that `context.sharders()` are for.",
                )
            )

    def too_large(self, choice: Choice, held: float, has: int, ranks: int) -> None:
        """By a plan the ranks of this machine hold `held` bytes."""
        if held > has:
            self._give(
                TooLarge(
                    what=choice.what,
                    why=f"by its plan the ranks of this machine, {ranks}, hold {held / GB:,.3g} GB "
                    f"of tables, state and replicas, and it has {has / GB:,.3g} GB of memory",
                    cure="Write `host_memory_gb` of a rank under `topology`, "
                    f"{has / ranks / GB:.3g} or less, and plans keep to it, or train on more "
                    "machines.",
                )
            )

    def beyond_topology(self, choice: Choice, held: float, key: str, gigabytes: float) -> None:
        """By a stranger's plan some rank holds `held` bytes, where the topology's `key` says how
        many it may."""
        if held > gigabytes * GB:
            self._give(
                TooLarge(
                    what=choice.what,
                    why=f"by its plan a rank holds {held / GB:,.3g} GB of tables and state, and "
                    f"`topology: {{{key}: {gigabytes:g}}}` is what it has",
                    cure=f"Have the planner keep to `topology.{key}`, or write what ranks have.",
                )
            )

    def too_large_for_a_device(self, choice: Choice, held: float, has: int) -> None:
        """By a plan some rank holds `held` bytes on its accelerator."""
        if held > has:
            self._give(
                TooLarge(
                    what=choice.what,
                    why=f"by its plan a rank's GPU holds {held / GB:,.3g} GB of tables, state and "
                    f"replicas, and the one here has {has / GB:,.3g} GB of memory",
                    cure=f"Write `device_memory_gb` under `topology`, {has / GB:.3g} or less, and "
                    "plans of tables keep to it; give replicas less, or train on more ranks.",
                )
            )

    def stepped_densely(self, choice: Choice, tables: Sequence[str]) -> None:
        """A plan has the dense optimizer step some tables for which another one is named."""
        if tables:
            self._give(
                Otherwise(
                    what=choice.what,
                    why=f"it has {listed(tables, kind='table')} data-parallel, or with the dense "
                    "kernel: the dense optimizer steps them, if any, and not the one that is named "
                    "for tables",
                    cure="Where that is not meant, have the planner place them with the fused "
                    'kernel, as `table_wise(rank=0, compute_kernel="fused")`.',
                )
            )

    def optimizer_of_no_table(self) -> None:
        """By a plan the dense optimizer steps every table."""
        written = self._registry.written("train", "optimizer")
        if options := [name for name in written if name.startswith("tables")]:
            self._give(
                Unused(
                    what=f"train: {listed(f'optimizer.{name}' for name in options)}",
                    why="the plan has every table data-parallel, or with the dense kernel, where "
                    "the dense optimizer steps it",
                    cure=f"Take {'them' if len(options) > 1 else 'it'} out, and choose "
                    "`train.optimizer.dense` for tables too; or constrain tables to another type, "
                    "as `sharding_types: [table_wise]`.",
                )
            )

    def not_stepped(self, optimizer: Choice, left: int, of: int) -> None:
        """An optimizer was made of only some of the parameters that it was handed."""
        if left:
            self._give(
                Otherwise(
                    what=optimizer.what,
                    why=f"it leaves out {left} of the {so_many(of, 'dense parameter')} that it was "
                    "given, which stay as they are",
                    cure="Have its factory put all of them into groups, or freeze them in the "
                    "model by `requires_grad_(False)`.",
                )
            )

    def adapted_late(self, dedup: Choice) -> None:
        """A model is adapted to unique samples that has a plan already."""
        self._give(
            Missed(
                what=dedup.what,
                why="stack.adapt comes after stack.plan, so that the plan counts all samples",
                cure="Write `model = stack.adapt(model)` before `plan = stack.plan(model, ...)`.",
            )
        )

    def planned_a_copy(self) -> None:
        """The model that was planned is gone, so nobody can watch the one that trains."""
        self._give(
            Unwatched(
                what="registry.yaml",
                why="the model that stack.plan was given is gone, so that nobody sees what "
                "training leaves alone",
                cure="Hand stack.plan the model that is trained, not a copy: it stays as it is.",
            )
        )

    def planned(self, planner: Planner, choice: Choice, group: ProcessGroup | None = None) -> None:
        """Give the notices that rank 0 found in planning; where these are an error, all ranks of
        the group raise it."""
        found = partial(choice.notices, planner)
        if group is None:
            self._notices.give(found(), 0)
        elif self._registry.strict:
            self._notices.give(from_rank_0(group, found), group.rank())
        elif group.rank() == 0:
            self._notices.give(found(), 0)

    def _give(self, *notices: Notice) -> None:
        import torch.distributed as dist

        self._notices.give(notices, dist.get_rank(self.group) if dist.is_initialized() else 0)


def _weak(one: object) -> Callable[[], object]:
    """A weak reference. What allows none, such as an object with slots or a list, counts as kept,
    and as read, since nobody can see whether the trainer still has it."""
    try:
        return ref(one)
    except TypeError:
        return lambda: True


def _replaced(one: Rewritten) -> Replaced:
    """The notice of a mapping that an override writes anew."""
    overrides = " ".join(f"'{each}'" if " " in each else each for each in one.instead)
    cure = f"Write `{overrides}`, and the rest stays."
    return Replaced(
        what=one.key,
        why=f"override {shown(one.override)} drops {listed(one.dropped, 6)}",
        cure=cure if overrides else "Take the override out, and they hold.",
    )
