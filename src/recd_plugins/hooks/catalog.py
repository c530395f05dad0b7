"""The catalog: the records of the plugins that a registry names, each checked, and its provider."""

from __future__ import annotations

import inspect
import sys
from collections.abc import AsyncIterable, Coroutine, Iterable, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pluggy

from recd_plugins.additions import Addition
from recd_plugins.errors import PluginError, RecdError, RegistryError, nearest, shown
from recd_plugins.hooks import specs
from recd_plugins.hooks.blame import raised_by, remember
from recd_plugins.hooks.imported import Provider, available, imported
from recd_plugins.hooks.markers import PROJECT
from recd_plugins.hooks.process_state import GROUP_OF_RANKS, in_one_process, put_back
from recd_plugins.hooks.record_check import wrong_with_addition, wrong_with_record
from recd_plugins.notices import PutBack
from recd_plugins.slots import SLOTS, Record

__all__ = ["Catalog", "Claim", "ClaimedAddition"]

KNOWN = (*specs.HOOKS, specs.ADDITIONS)
"""The hooks that there are."""

DEFAULTS = "recd_plugins.hooks.defaults"
"""The host's own plugin, always on: what a slot means when registry.yaml is silent."""


@dataclass(frozen=True)
class Claim:
    """A record and its provider."""

    record: Record[Any, Any]
    provider: Provider


@dataclass(frozen=True)
class ClaimedAddition:
    """An addition and its provider."""

    addition: Addition
    provider: Provider


class Catalog:
    """The records of the plugins that a registry names."""

    def __init__(self, plugins: Sequence[str], base: Path, *, strict: bool = True) -> None:
        """Import `plugins` (paths are relative to `base`) and collect their records.

        Unless `strict`, a plugin that is broken is left out, and `broken` has its error.
        """
        self._manager = pluggy.PluginManager(PROJECT)
        for spec in (
            specs.TableSpecs,
            specs.BatchSpecs,
            specs.PlacementSpecs,
            specs.ModelSpecs,
            specs.RunSpecs,
            specs.AdviceSpecs,
        ):
            self._manager.add_hookspecs(spec)
        self.providers: dict[str, Provider] = {}
        self.claims: list[Claim] = []
        self.additions: list[ClaimedAddition] = []
        """The entries that the plugins would put into a registry, in the order of the plugins."""
        self._silent: list[tuple[str, str]] = []
        """The plugins and hooks that returned None, as one does that lacks its `return`."""
        self.broken: dict[str, RecdError] = {}
        self.put_back: list[PutBack] = []
        """What plugins changed of the whole process when they were imported."""
        names = [DEFAULTS, *plugins]
        brought_by: dict[str, str] = {}
        for name in names:  # which grows by those that they bring
            try:
                with put_back() as changed, in_one_process(f"plugin {name!r}", "on import"):
                    self._register(name, base)
                    self.claims += self._collect(name)
                    self.additions += self._additions(name)
                    brought = [one for one in self._brought(name) if one not in names]
                    names += brought
                    brought_by |= dict.fromkeys(brought, name)
                if GROUP_OF_RANKS in changed:
                    raise PluginError(
                        f"plugin {name!r} ({self.providers[name]}) makes a group of ranks on "
                        "import (torch.distributed.init_process_group), where a job makes the one "
                        "that there can be: take that out of what is imported."
                    )
                self.put_back += [_put_back(name, what) for what in changed]
            except RecdError as error:
                if name in brought_by:  # registry.yaml does not name it
                    error.args = (f"{error} Plugin {brought_by[name]!r} brings it.",)
                if strict:
                    raise
                self.broken[name] = error
                if self._manager.has_plugin(name):
                    self._manager.unregister(name=name)

    def of(self, slot: str) -> list[Claim]:
        """Every claim on a slot, in the order of the plugins."""
        return [claim for claim in self.claims if claim.record.slot == slot]

    def find(self, slot: str, use: str) -> Claim:
        """The record that `use` names: `exact`, or `pkg-a:exact` where two provide it."""
        owner, _, name = use.rpartition(":")
        claims = [claim for claim in self.of(slot) if claim.record.name == name]
        named = [
            claim
            for claim in claims
            if owner in ("", claim.provider.plugin, claim.provider.distribution)
        ]
        if len(named) == 1:
            return named[0]
        if not named:
            raise self._not_provided(slot, use, claims)
        providers, first = [str(claim.provider) for claim in named], named[0].provider.owner
        if len(set(providers)) < len(providers):  # plugins of one distribution
            providers = [f"plugin {claim.provider.plugin} of {claim.provider}" for claim in named]
            first = named[0].provider.plugin
        raise RegistryError(
            f"`{slot}: {name}` is provided by {' and '.join(providers)}; name one as "
            f"{first}:{name} in registry.yaml."
        )

    def _not_provided(self, slot: str, use: str, claims: Sequence[Claim]) -> RegistryError:
        """The error of a `use` that no enabled plugin provides. `claims` are those of the same
        name, of other owners than it asks for."""
        owner_and_name = [f"{claim.provider.owner}:{claim.record.name}" for claim in claims]
        hint = (
            nearest(use, owner_and_name)
            if claims
            else nearest(use.rpartition(":")[2], [one.record.name for one in self.of(slot)])
        )
        if not claims and (slots := self._slots_of(use)):
            hint += f" Slots that have one of that name: {', '.join(slots)}."
        if silent := self.silent_hooks(slot):
            hint += f" {silent}"
        off = [one for one in available() if one not in self.providers]
        others = f" Installed and not enabled: {', '.join(sorted(off))}." if off else ""
        return RegistryError(
            f"no enabled plugin provides {slot} {shown(use)}; {hint}{others} A plugin is enabled "
            "by its name under `plugins`: `recd plugins NAME` prints the line to write for a "
            f"record, `recd plugins {slot}` lists what all installed plugins provide."
        )

    def _slots_of(self, use: str) -> list[str]:
        """The slots for which plugins provide a record that `use` would name there.
        The host's own are left out: many slots have one of their names."""
        owner, _, name = use.rpartition(":")
        return sorted(
            {
                claim.record.slot
                for claim in self.claims
                if claim.record.name == name
                and claim.provider.plugin != DEFAULTS
                and owner in ("", claim.provider.plugin, claim.provider.distribution)
            }
        )

    def silent_hooks(self, slot: str | None = None) -> str:
        """The hooks that returned None, of a slot or of all, and what to do; empty if none
        did."""
        by_hook: dict[str, list[str]] = {}
        for plugin, hook in self._silent:
            if slot is None or specs.HOOKS.get(hook) == slot:
                by_hook.setdefault(hook, []).append(plugin)
        return " ".join(
            f"The hook {hook} of {' and '.join(plugins)} returned None: let it return its records."
            for hook, plugins in by_hook.items()
        )

    def _register(self, name: str, base: Path) -> None:
        module, provider = imported(name, base)
        remember(name, module, provider)
        if name in self.providers:
            raise RegistryError(f"plugin {name!r} is named twice under `plugins`.")
        self.providers[name] = provider
        try:
            self._manager.register(module, name=name)
            self._manager.check_pending()
        except pluggy.PluginValidationError as error:
            raise PluginError(
                self._pending(name, provider)
                or f"plugin {name}: {error}. A hook takes no arguments: "
                "options and context come to the `build` of a record."
            ) from error
        except ValueError as error:
            raise PluginError(
                f"plugin {name!r} is the same module as another one under `plugins`: name it once."
            ) from error
        if unmarked := self._unmarked(module):
            raise PluginError(
                f"plugin {name!r} ({provider}) has a function {unmarked} which is no hook, so "
                "nothing would call it: put @recd_plugins.hookimpl above it, or rename it."
            )
        if not self._manager.get_hookcallers(module):
            if getattr(module, "__file__", None) is None and hasattr(module, "__path__"):
                raise PluginError(
                    f"plugin {name!r} is the folder {next(iter(module.__path__))}, which has no "
                    f"__init__.py: install the distribution that has the plugin, or name the "
                    f"folder of its package by its path, as ./{name}/src/{name}."
                )
            raise PluginError(
                f"plugin {name!r} ({provider}) implements no hook: mark its functions with "
                f"@recd_plugins.hookimpl. Hooks: {', '.join(KNOWN)}."
            )

    def _unmarked(self, plugin: object) -> str:
        """The first of its functions that is named as a hook and not marked as one; or empty."""
        for hook in KNOWN:
            one = inspect.getattr_static(plugin, hook, None)
            if inspect.isfunction(one) and self._manager.parse_hookimpl_opts(plugin, hook) is None:
                return hook
        return ""

    def _brought(self, name: str) -> tuple[str, ...]:
        """Plugins whose records it needs, and which are enabled with it: its attribute `brings`."""
        brings = getattr(self._manager.get_plugin(name), "brings", ())
        if not isinstance(brings, tuple) or not all(isinstance(one, str) for one in brings):
            raise PluginError(
                f"plugin {name!r} ({self.providers[name]}): its `brings` must be a tuple of the "
                f"names of plugins, but is {brings!r}."
            )
        return brings

    def _pending(self, name: str, provider: Provider) -> str | None:
        for hook in vars(self._manager.hook):
            if hook not in KNOWN:
                return (
                    f"plugin {name!r} ({provider}) implements a hook that does not exist: "
                    f"{hook!r}; {nearest(hook, KNOWN)}"
                )
        return None

    def _collect(self, name: str) -> list[Claim]:
        """The records of one plugin, each believed once it is checked."""
        provider = self.providers[name]
        claims: list[Claim] = []
        for hook, slot in specs.HOOKS.items():
            names: set[str] = set()
            for record in self._yielded(name, hook):
                if not isinstance(record, SLOTS[slot]):
                    raise PluginError(
                        f"plugin {name!r} ({provider}): its hook {hook} must return "
                        f"{SLOTS[slot].__name__} records, but returned {record!r}."
                    )
                if wrong := wrong_with_record(record):
                    raise PluginError(
                        f"plugin {name!r} ({provider}): its hook {hook} returns a record "
                        f"{shown(record.name)} {wrong}"
                    )
                if record.name in names:
                    raise PluginError(
                        f"plugin {name!r} ({provider}): its hook {hook} returns two records "
                        f"named {record.name!r}. Rename one of them."
                    )
                names.add(record.name)
                claims.append(Claim(record, provider))
        return claims

    def _additions(self, name: str) -> list[ClaimedAddition]:
        """The additions of one plugin, whose names no other plugin's have."""
        provider = self.providers[name]
        taken = {one.addition.name: one.provider for one in self.additions}
        found = []
        for addition in self._yielded(name, specs.ADDITIONS):
            if not isinstance(addition, Addition):
                raise PluginError(
                    f"plugin {name!r} ({provider}): its hook {specs.ADDITIONS} must return "
                    f"Additions, but returned {addition!r}."
                )
            if wrong := wrong_with_addition(addition):
                raise PluginError(
                    f"plugin {name!r} ({provider}): its hook {specs.ADDITIONS} returns an addition "
                    f"{shown(addition.name)} {wrong}"
                )
            if addition.name in taken:
                raise PluginError(
                    f"plugin {name!r} ({provider}) and {taken[addition.name]} both have an "
                    f"addition {addition.name!r}. Rename one of them."
                )
            taken[addition.name] = provider
            found.append(ClaimedAddition(addition, provider))
        return found

    def _yielded(self, name: str, hook: str) -> list[Any]:
        """The records that a hook of one plugin returns."""
        plugin, provider = self._manager.get_plugin(name), self.providers[name]
        caller = self._manager.subset_hook_caller(hook, self._manager.get_plugins() - {plugin})
        try:
            with redirect_stdout(sys.stderr):
                returned = caller()
                records = [one for some in returned if isinstance(some, Iterable) for one in some]
        except (Exception, SystemExit) as error:
            by = raised_by(error)
            place = "" if by is None else f" in {by.place}"
            what = f": {error}" if str(error) else ""
            raise PluginError(
                f"plugin {name!r} ({provider}): its hook {hook} raised "
                f"{type(error).__name__}{place}{what}. Run recd with --debug for its traceback."
            ) from error
        if not returned and any(one.plugin is plugin for one in caller.get_hookimpls()):
            self._silent.append((name, hook))
        for one in returned:
            if not isinstance(one, Iterable):
                fix = "Put it into brackets."
                if isinstance(one, Coroutine | AsyncIterable):
                    fix = "Write it without `async`."
                raise PluginError(
                    f"plugin {name!r} ({provider}): its hook {hook} must return a list of records, "
                    f"but returned one {type(one).__name__}. {fix}"
                )
        return records


def _put_back(name: str, what: str) -> PutBack:
    return PutBack(
        what=what,
        why=f"plugin {name!r} changes it on import, for all that runs in this process",
        cure="Have the plugin change it where its records use it, and put it back there.",
    )
