"""`recd doctor`: is this machine fit to train, and how to make it so."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from recd_plugins.cli.options import REGISTRY, AsJson, Debug, RegistryFile
from recd_plugins.errors import RecdError, RegistryError, shortened, so_many

__all__ = ["doctor"]

Ranks = Annotated[int, typer.Option("--ranks", help="Ranks to try collectives on.", min=1)]
Bill = Annotated[
    bool, typer.Option("--sbom", help="Check nothing; print what is installed, as CycloneDX JSON.")
]


def doctor(
    registry: RegistryFile = REGISTRY,
    ranks: Ranks = 2,
    debug: Debug = False,
    as_json: AsJson = False,
    sbom: Bill = False,
) -> None:
    """Check versions, packages, torch, devices, collectives and the registry; say how to fix what
    fails."""
    if sbom:
        from recd_plugins.cli.bill_of_materials import bill_of_materials

        print(json.dumps(bill_of_materials(), indent=2))
        return
    checks: dict[str, Callable[[], str]] = {
        "versions": _versions,
        "packages": _packages,
        "build": _build,
        "devices": _devices,
        "collectives": lambda: _collectives(ranks),
        "registry": lambda: _registry(registry),
    }
    found = {name: _tried(check, debug) for name, check in checks.items()}
    well = all(fit for fit, _ in found.values())
    if as_json:
        print(
            json.dumps({name: {"ok": fit, "said": result} for name, (fit, result) in found.items()})
        )
    else:
        for name, (fit, result) in found.items():
            print(f"{'ok  ' if fit else 'FAIL'}  {name:<12} {result}")
    if not well:
        raise typer.Exit(2)


def _tried(check: Callable[[], str], debug: bool) -> tuple[bool, str]:
    try:
        return True, check()
    except RecdError as error:
        return False, str(error)
    except Exception as error:
        if debug:
            raise
        return (
            False,
            f"{type(error).__name__}: {shortened(str(error))}. Run with --debug for its traceback.",
        )


def _versions() -> str:
    from recd_plugins.compat.versions import check_versions, installed_versions

    found = installed_versions()
    check_versions(found)
    return ", ".join(f"{name} {version}" for name, version in found.items())


def _packages() -> str:
    from recd_plugins.compat.packages import check_packages

    return check_packages()


def _build() -> str:
    from recd_plugins.compat import build

    found = build.installed_build()
    build.check_build(found)
    return f"{found}, loads, and so do fbgemm's operators"


def _devices() -> str:
    import os

    import torch

    if torch.cuda.is_available():
        names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
        return f"{len(names)} CUDA: {', '.join(sorted(set(names)))}"
    return f"CPU, {so_many(os.cpu_count() or 1, 'core')}; torch sees no CUDA device"


def _collectives(ranks: int) -> str:
    """An all-to-all and an all-reduce, of the bytes they should give, over real ranks."""
    from recd_plugins.launch.command import launch

    failure = launch(["recd_plugins.launch.try_collectives"], ranks, threads=1, quiet=True)
    if failure is not None:
        raise RecdError(
            f"{failure}\nCheck that the loopback interface is up and that no firewall closes it; "
            "GLOO_SOCKET_IFNAME names another interface."
        )
    return f"all-to-all and all-reduce over {so_many(ranks, 'rank')}"


def _registry(path: Path) -> str:
    from recd_plugins.registry import Registry

    if not path.exists() and path != REGISTRY:
        raise RegistryError(f"{path}: there is no such registry. Name one that is there.")
    if not path.exists():
        return f"{path} is not here; name one with --registry"
    registry = Registry.load(path)
    if silent := registry.catalog.silent_hooks():
        raise RegistryError(f"{path}: {silent} Else nothing of it is used.")
    chosen = [f"{slot}: {c.record.name}" for slot, cs in registry.choices.items() for c in cs]
    return f"{path}: {', '.join(chosen)}"
