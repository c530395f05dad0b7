"""`recd plugins`: the slots, who can fill them, which options a record takes, and a new one."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from recd_plugins.cli.commands import Commands
from recd_plugins.cli.new_plugin import new
from recd_plugins.cli.options import REGISTRY, AsJson, Debug, RegistryFile
from recd_plugins.cli.reported import reported

if TYPE_CHECKING:
    from recd_plugins.errors import RecdError
    from recd_plugins.hooks.catalog import Claim
    from recd_plugins.registry import Registry
    from recd_plugins.registry.source import Source

__all__ = ["FORM", "plugins"]

FORM = {
    "one": "{slot}: {{use: name, option: value}}",
    "many": "{slot}: [{{use: name, option: value}}, ...]",
    "by feature": "{slot}: {{feature: {{use: name, option: value}}}}",
}
"""How registry.yaml fills a slot, by the `fills` of its record."""

Name = Annotated[
    str | None,
    typer.Argument(
        metavar="RECORD|SLOT",
        help="A record to see the options of, as sessions or model:dlrm; or a slot to list.",
    ),
]


class ShowsByDefault(TyperGroup):
    """`recd plugins exact` is short for `recd plugins show exact`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not {*self.commands, "--help"} & {*args[:1]}:
            args = ["show", *args]
        return super().parse_args(ctx, args)


plugins = Commands(
    cls=ShowsByDefault,
    help="List the slots and who fills them, one slot, or a record's options; write a new plugin. "
    "`recd plugins exact` is short for `recd plugins show exact`.",
)
plugins.command()(new)


@plugins.command()
def show(
    name: Name = None,
    registry: RegistryFile = REGISTRY,
    debug: Debug = False,
    as_json: AsJson = False,
) -> None:
    """List the slots and who fills them, list one slot, or show one record's options."""
    with reported(debug):
        from recd_plugins.slots import SLOTS

        found = Found(registry)
        if name is None:
            found.listed(found.enabled.claims, list(SLOTS), as_json)
            found.check()
        elif name in SLOTS:
            found.listed(
                [claim for claim in found.all() if claim.record.slot == name], [name], as_json
            )
        else:
            found.show(name, as_json)


class Found:
    """The plugins that the registry enables, and others that are installed; either may be
    broken."""

    def __init__(self, file: Path) -> None:
        from recd_plugins.errors import RecdError
        from recd_plugins.hooks.catalog import Catalog
        from recd_plugins.hooks.imported import available
        from recd_plugins.registry import Registry, plugin_names
        from recd_plugins.registry.source import Source

        self.source: Source = Source.read(file, ())
        self.registry: Registry | None = None
        self.error: RecdError | None = None
        try:
            self.registry = Registry.load(file)
            self.enabled, self.names = self.registry.catalog, self.registry.plugins
        except RecdError as error:
            self.error = error
            try:
                self.names = plugin_names(self.source.values.get("plugins"))
            except RecdError:
                raise error from None  # which says the line too
            self.enabled = Catalog(self.names, self.source.base, strict=False)
        self.off = sorted(available().keys() - {*self.names, *self.enabled.providers})
        self.broken: dict[str, RecdError] = dict(self.enabled.broken)

    def all(self) -> list[Claim]:
        """The records of the enabled plugins, and of plugins that are only installed."""
        from recd_plugins.hooks.catalog import Catalog

        others = Catalog(self.off, self.source.base, strict=False)
        self.broken |= others.broken
        off = [claim for claim in others.claims if claim.provider.plugin in self.off]
        return [*self.enabled.claims, *off]

    def check(self) -> None:
        """The registry's own error, unless the listing of broken plugins has it."""
        if self.error is None:
            return
        # The registry's error about a plugin begins with the place where it is named.
        if any(str(self.error).endswith(str(error)) for error in self.broken.values()):
            raise typer.Exit(2)
        raise self.error

    def listed(self, claims: Sequence[Claim], slots: Sequence[str], as_json: bool) -> None:
        from rich.box import SIMPLE
        from rich.console import Console
        from rich.markup import escape
        from rich.table import Table

        from recd_plugins.slots import SLOTS

        if as_json:
            broken = [self._broken(plugin) for plugin in self.broken]
            print(json.dumps([*map(self._as_dict, claims), *broken]))
            return
        table = Table(title="slots; * chosen by the registry", title_justify="left", box=SIMPLE)
        table.add_column("slot", no_wrap=True)
        table.add_column("record", no_wrap=True)
        table.add_column("what it is")
        table.add_column("provided by")
        for slot in slots:
            of_slot = [claim for claim in claims if claim.record.slot == slot]
            for index, claim in enumerate(of_slot):
                record = claim.record
                needs = [*record.needs, *(f"the slot {use}" for use in record.uses)]
                table.add_row(
                    slot if index == 0 else "",
                    f"{'*' if self._chosen(claim) else ' '} {record.name}",
                    escape(record.summary + (f" Uses {', '.join(needs)}." if needs else "")),
                    escape(self._provider(claim)),
                )
            if not of_slot:
                doc = (SLOTS[slot].__doc__ or "").partition("\n")[0]
                table.add_row(slot, "  (none)", f"[dim]{doc}[/dim]", "")
        console = Console()
        console.print(table)
        if len(slots) == 1:
            form = FORM[SLOTS[slots[0]].fills].format(slot=slots[0])
            console.print(f"in registry.yaml: {form}", markup=False)
        elif self.off:
            console.print(f"installed but not enabled: {', '.join(self.off)}")
            console.print("`recd plugins SLOT` lists the records of those too")
        for error in self.broken.values():
            console.print(f"broken: {error}", markup=False, soft_wrap=True)

    def show(self, name: str, as_json: bool) -> None:
        """Print the options of each record of this name, and how to enable its plugin if it is
        not; as JSON, a list if there are several."""
        from rich.box import SIMPLE
        from rich.console import Console
        from rich.markup import escape
        from rich.table import Table

        from recd_plugins.describe import options_of
        from recd_plugins.slots import OTHERS_DOC, stands_in_front

        claims = self._named(name)
        if as_json:
            each = [
                {
                    **self._as_dict(claim),
                    "options": [*map(dataclasses.asdict, options_of(claim.record.config))],
                }
                for claim in claims
            ]
            print(json.dumps(each[0] if len(each) == 1 else each))
            return
        for claim in claims:
            record, options = claim.record, options_of(claim.record.config)
            table = Table(
                title=escape(f"{record.slot}: {record.name} ({claim.provider}). {record.summary}"),
                title_justify="left",
                box=SIMPLE,
            )
            for column in ("option", "takes", "default", "what it does"):
                table.add_column(column)
            for option in options:
                cells = (option.name, option.takes, option.default, option.doc)
                table.add_row(*map(escape, cells))
            if stands_in_front(record):
                table.add_row("others", "a mapping", "", OTHERS_DOC)
            console = Console()
            console.print(table)
            if not self._is_enabled(claim):
                console.print(self._enabling(claim), markup=False, soft_wrap=True)

    def _named(self, name: str) -> list[Claim]:
        """The records that `exact` or `dedup:exact` means: enabled ones, or else any installed
        ones."""
        from recd_plugins.errors import RegistryError, nearest

        slot, _, use = name.rpartition(":")

        def named(claims: Sequence[Claim]) -> list[Claim]:
            return [c for c in claims if c.record.name == use and slot in ("", c.record.slot)]

        claims = named(self.enabled.claims)
        if claims:
            return claims
        everyone = self.all()
        claims = named(everyone)
        if not claims and name in self.broken:
            raise self.broken[name]
        if not claims:
            known = {claim.record.name for claim in everyone}
            if of := [c.record for c in everyone if c.provider.plugin == name]:
                records = ", ".join(f"{record.slot}:{record.name}" for record in of)
                raise RegistryError(
                    f"{name!r} is a plugin, where a record or a slot is to be named. Its records: "
                    f"{records}."
                )
            broken = "".join(f" Not looked into: {error}" for error in self.broken.values())
            raise RegistryError(
                f"no installed plugin provides {name!r}; {nearest(use, known)}{broken}"
            )
        return claims

    def _enabling(self, claim: Claim) -> str:
        line = self.source.lines.get("plugins")
        place = f"{self.source.path}:{line}" if line else str(self.source.path)
        names = ", ".join([*self.names, claim.provider.plugin])
        return f"installed but not enabled; in {place} write\nplugins: [{names}]"

    def _as_dict(self, claim: Claim) -> dict[str, Any]:
        record = claim.record
        return {
            "slot": record.slot,
            "name": record.name,
            "chosen": self._chosen(claim),
            "enabled": self._is_enabled(claim),
            "provider": str(claim.provider),
            "plugin": claim.provider.plugin,
            "needs": list(record.needs),
            "uses": list(record.uses),
            "summary": record.summary,
            "error": "",
        }

    def _broken(self, plugin: str) -> dict[str, Any]:
        unknown = dict.fromkeys(("slot", "name", "provider", "summary"), "")
        known = {"chosen": False, "enabled": plugin in self.names, "needs": [], "uses": []}
        return {**unknown, **known, "plugin": plugin, "error": str(self.broken[plugin])}

    def _is_enabled(self, claim: Claim) -> bool:
        return claim.provider.plugin not in self.off

    def _provider(self, claim: Claim) -> str:
        if self._is_enabled(claim):
            return str(claim.provider)
        return f"{claim.provider.plugin}, not enabled"

    def _chosen(self, claim: Claim) -> bool:
        chosen = self.registry.chosen(claim.record.slot) if self.registry else ()
        return any(choice.record is claim.record for choice in chosen)
