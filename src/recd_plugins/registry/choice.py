"""A record that registry.yaml chose for a slot, with its options: it is built by this, and named in
errors and notices."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from copy import copy
from dataclasses import dataclass, field
from typing import Any

from recd_plugins.config import Config, idle_options
from recd_plugins.errors import (
    FailedOnRank0,
    PluginError,
    RecdError,
    RegistryError,
    check_made,
    is_of_the_system,
    naming,
    who_raised,
    without_frames,
)
from recd_plugins.hooks.blame import Raised, raised_by, who_exits
from recd_plugins.hooks.imported import Provider
from recd_plugins.hooks.process_state import in_one_process
from recd_plugins.notices import GivesNotices, Notice, Unused
from recd_plugins.registry.source import Source
from recd_plugins.slots import (
    SLOTS,
    Context,
    DatasetRecord,
    Record,
)
from recd_plugins.slots.built import check_built

__all__ = ["KEYS", "Choice", "slot_of"]

KEYS = ("plugins", "folder", *SLOTS, "topology", "train", "strict")
"""The keys of registry.yaml."""


@dataclass(frozen=True, kw_only=True)
class Choice:
    """A record that registry.yaml chose, with its options."""

    record: Record[Any, Any]
    config: Config
    provider: Provider
    where: str
    """The path of the choice in registry.yaml, for error messages."""
    features: tuple[str, ...] = ("*",)
    """Names or globs of the features that it is for (`preprocess`, `pooling`)."""
    others: Choice | None = None
    """The choice of the planner behind, if the record's planner stands in front of one
    (`in_front`); else None."""
    source: Source | None = field(default=None, repr=False, compare=False)
    """The registry that has it, whose lines messages name; None of one that is in no registry."""

    @property
    def free(self) -> tuple[str, ...]:
        """The options on which no row depends."""
        return self.record.free if isinstance(self.record, DatasetRecord) else ()

    @property
    def places(self) -> tuple[str, ...]:
        """The options that say where files lie."""
        return self.record.places if isinstance(self.record, DatasetRecord) else ()

    def build(self, context: Context) -> Any:
        """Build the record; an error in the plugin's code names the plugin, and the line of the
        registry."""
        context = dataclasses.replace(context, where=self.where, name=self.record.name)
        placed = dataclasses.replace(self, where=self._located(self.where))
        with placed.named("when built"):
            try:
                built = self.record.build(_unshared(self.config), context)
            except RegistryError as error:
                raise self._refused(error) from error
        check_built(self.record.slot, built, placed.who)
        return built

    def _located(self, where: str) -> str:
        """A path in registry.yaml with the line that has it, if the slot stands there."""
        if self.source is None or slot_of(where) not in self.source.values:
            return where
        return self.source.locate(where)

    def _refused(self, error: RegistryError) -> RegistryError:
        """A record's own error of its options, with their place: `build` names them as a config
        does, or by their path in registry.yaml."""
        where, message = error.where, error.message
        if where:
            whole = where if slot_of(where) in KEYS else f"{self.where}.{where}"
            return RegistryError(f"{self._located(whole)}: {message}")
        if message.startswith(self.where):
            return RegistryError(self._located(self.where) + message.removeprefix(self.where))
        if slot_of(message.partition(":")[0]) in KEYS:
            return RegistryError(message)
        whose = f"{self.record.slot} {self.record.name!r} of {self.provider}"
        return RegistryError(f"{self._located(self.where)}: {whose}: {message}")

    def notices(self, built: object) -> list[Notice]:
        """The notices of what the record built; empty if it gives none."""
        if not isinstance(built, GivesNotices):
            return []
        whose, fix = f"{self.who}: its `notices` returned", "Return a list of Unused(...), say."
        with self.named("when asked for its notices"):
            found: Any = built.notices()
            check_made(found, Iterable, whose, fix)
            each = list(found)
        for one in each:
            check_made(one, Notice, f"{whose} among others", fix)
            if type(one) is Notice:
                raise PluginError(f"{whose} a Notice of no kind. {fix}")
        return each

    def idle_options(self) -> Iterator[Unused]:
        """Notices of options that do nothing beside other options of the record, or of the record
        that it stands in front of."""
        if isinstance(self.config, Config):  # else it is the plugin's own dataclass
            with self.named("when asked which options do nothing"):
                found = [*idle_options(self.config)]
            for option, why in found:
                yield Unused(what=f"{self.where}: {option}", why=why, cure=f"Take {option} out.")
        if self.others is not None:
            yield from self.others.idle_options()

    @property
    def what(self) -> str:
        """The record and its place in registry.yaml, as notices name them."""
        return f"{self.where}: {self.record.name}"

    @property
    def who(self) -> str:
        """The record and its place in registry.yaml, for error messages."""
        return f"{self.where}: {self.record.slot} {self.record.name!r} of {self.provider}"

    @contextmanager
    def named(self, when: str, *, trainers: bool = False) -> Iterator[None]:
        """Inside, an error that is not one of this project's becomes an error that names the
        plugin. If another plugin raised it, such as a neighbour's, the error names that one too.

        If a trainer's code is also called inside (`trainers`), its errors stay as they are.
        """
        with nullcontext() if trainers else self._as_its_own(when):
            try:
                yield
            except FailedOnRank0 as error:
                if not trainers:
                    raise
                message = f"{self.who}, {when}: {error}"
                raise FailedOnRank0(message, error.kind, error.what) from error
            except RecdError:
                raise
            except Exception as error:
                by = None if is_of_the_system(error) else raised_by(error)
                if by is None:
                    raise
                raise self._raised(error, by, when, is_own=not trainers) from error
            except SystemExit as error:
                if (by := who_exits(error)) is None:
                    raise
                raise self._raised(error, by, when, is_own=not trainers) from error

    @contextmanager
    def _as_its_own(self, when: str) -> Iterator[None]:
        """Inside, errors and processes are taken to be of this record."""
        with in_one_process(self.who, when), naming(self.who, when):
            yield

    def _raised(self, error: BaseException, by: Raised, when: str, *, is_own: bool) -> PluginError:
        """An error of a plugin's code; `is_own`: whether the code may be this record's."""
        kind, what = type(error).__name__, without_frames(error)
        if self.provider.plugin in by.names and is_own:
            return PluginError(who_raised(self.who, kind, f"in {by.place} {when}", what))
        whose = f"{self.who}, {when}: plugin {by.plugin!r}"
        return PluginError(who_raised(whose, kind, f"in {by.place}", what))


def slot_of(where: str) -> str:
    """The key of registry.yaml with which a path begins."""
    return re.split(r"[.\[]", where)[0]


def _unshared(value: Any) -> Any:
    """A copy of options: a `build` may change its mappings and lists, and the next `build` still
    gets what is written."""
    if type(value) is dict:
        return {key: _unshared(one) for key, one in value.items()}
    if type(value) in (list, tuple):
        return type(value)(map(_unshared, value))
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return value
    made = copy(value)
    for one in dataclasses.fields(value):
        if hasattr(value, one.name):  # a value that a config computes may not be there yet
            object.__setattr__(made, one.name, _unshared(getattr(value, one.name)))
    return made
