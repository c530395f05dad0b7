"""`recd plugins`: the slots, who can fill them, and which options a record takes."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from recd_plugins.cli.options import AsJson, Debug, RegistryFile, reported

if TYPE_CHECKING:
    from recd_plugins.hooks.manager import Claim
    from recd_plugins.registry import Registry

__all__ = ["plugins"]

Record = Annotated[
    str | None, typer.Argument(help="A record to see the options of, as sessions or model:dlrm.")
]


def plugins(
    record: Record = None,
    registry: RegistryFile = Path("registry.yaml"),
    debug: Debug = False,
    as_json: AsJson = False,
) -> None:
    """List the slots and who fills them, or show one record's options."""
    with reported(debug):
        from recd_plugins.registry import Registry

        loaded = Registry.load(registry)
        if record is not None:
            _show_record(loaded, record, as_json)
        elif as_json:
            print(json.dumps([_as_dict(claim, loaded) for claim in loaded.catalog.claims]))
        else:
            _show_slots(loaded)


def _as_dict(claim: Claim, registry: Registry) -> dict[str, Any]:
    record = claim.record
    return {
        "slot": record.slot,
        "name": record.name,
        "chosen": _chosen(claim, registry),
        "provider": str(claim.provider),
        "plugin": claim.provider.plugin,
        "needs": list(record.needs),
        "uses": list(record.uses),
        "summary": record.summary,
    }


def _chosen(claim: Claim, registry: Registry) -> bool:
    return any(choice.record is claim.record for choice in registry.chosen(claim.record.slot))


def _show_slots(registry: Registry) -> None:
    from rich.box import SIMPLE
    from rich.console import Console
    from rich.table import Table

    from recd_plugins.hooks.manager import available
    from recd_plugins.slots import SLOTS

    table = Table(title="slots; * chosen by the registry", title_justify="left", box=SIMPLE)
    table.add_column("slot", no_wrap=True)
    table.add_column("record", no_wrap=True)
    table.add_column("what it is")
    table.add_column("provided by")
    for slot, kind in SLOTS.items():
        claims = registry.catalog.of(slot)
        for index, claim in enumerate(claims):
            record = claim.record
            needs = [*record.needs, *(f"the slot {use}" for use in record.uses)]
            table.add_row(
                slot if index == 0 else "",
                f"{'*' if _chosen(claim, registry) else ' '} {record.name}",
                record.summary + (f" Uses {', '.join(needs)}." if needs else ""),
                str(claim.provider),
            )
        if not claims:
            doc = (kind.__doc__ or "").splitlines()[0]
            table.add_row(slot, "  (none)", f"[dim]{doc}[/dim]", "")
    console = Console()
    console.print(table)
    off = sorted(set(available()) - set(registry.plugins))
    if off:
        console.print(f"installed and not enabled: {', '.join(off)}")


def _show_record(registry: Registry, name: str, as_json: bool) -> None:
    from rich.box import SIMPLE
    from rich.console import Console
    from rich.table import Table

    from recd_plugins.describe import options_of
    from recd_plugins.errors import RegistryError, nearest

    slot, _, use = name.rpartition(":")
    claims = [
        claim
        for claim in registry.catalog.claims
        if claim.record.name == use and slot in ("", claim.record.slot)
    ]
    if not claims:
        known = {claim.record.name for claim in registry.catalog.claims}
        raise RegistryError(f"no enabled plugin provides {name!r}; {nearest(use, known)}")
    for claim in claims:
        options = options_of(claim.record.config)
        if as_json:
            said = [dataclasses.asdict(option) for option in options]
            print(json.dumps({**_as_dict(claim, registry), "options": said}))
            continue
        table = Table(
            title=f"{claim.record.slot}: {use} ({claim.provider}). {claim.record.summary}",
            title_justify="left",
            box=SIMPLE,
        )
        for column in ("option", "takes", "default", "what it does"):
            table.add_column(column)
        for option in options:
            table.add_row(option.name, option.takes, option.default, option.doc)
        Console().print(table)
