"""`recd doctor`: is this machine fit to train, and how to make it so."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from recd_plugins.cli.ended_by_signals import ended_by_signals
from recd_plugins.cli.few_addresses import warn_of_few_addresses
from recd_plugins.cli.options import REGISTRY, AsJson, Debug, RegistryFile
from recd_plugins.cli.reported import reported
from recd_plugins.errors import RecdError, RegistryError, shortened, so_many

__all__ = ["doctor"]

Ranks = Annotated[int, typer.Option("--ranks", help="Ranks to try collectives on.", min=1)]
Bill = Annotated[
    bool, typer.Option("--sbom", help="Check nothing; print what is installed, as CycloneDX JSON.")
]

LOOPBACK = "::ffff:127.0.0.1"
"""As torch asks for its name: files that have 127.0.0.1 alone have no answer."""
PATIENT = 1.0
"""Seconds for a name server."""


def doctor(
    registry: RegistryFile = REGISTRY,
    ranks: Ranks = 2,
    debug: Debug = False,
    as_json: AsJson = False,
    sbom: Bill = False,
) -> None:
    """Check versions, packages, torch, devices, names, what a launcher has set, collectives and the
    registry; say how to fix what fails."""
    if sbom:
        from recd_plugins.cli.bill_of_materials import bill_of_materials

        print(json.dumps(bill_of_materials(), indent=2))
        return
    warn_of_few_addresses()
    checks: dict[str, Callable[[], str]] = {
        "versions": _versions,
        "packages": _packages,
        "build": _build,
        "devices": _devices,
        "names": _names,
        "launcher": _launcher,
        "collectives": lambda: _collectives(ranks),
        "registry": lambda: _registry(registry),
    }
    with reported(debug), ended_by_signals():
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
            f"{type(error).__name__}: {shortened(str(error))}. Run recd with --debug for its "
            "traceback.",
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
    import torch

    from recd_plugins.launch.machine_cores import machine_cores

    if torch.cuda.is_available():
        names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
        return f"{len(names)} CUDA: {', '.join(sorted(set(names)))}"
    return f"CPU, {so_many(machine_cores(), 'core')}; torch sees no CUDA device"


def _names() -> str:
    """Check how long a look-up of loopback's name takes: torch makes one for each connection."""
    took = _seconds_for_a_name()
    if took > PATIENT:  # the machine may have been busy: a silent server is so again
        took = min(took, _seconds_for_a_name())
    if took > PATIENT:
        raise RecdError(
            f"it took {took:.1f} s to look up the name of 127.0.0.1: ranks wait as long for each "
            "connection when they meet. Put `::ffff:127.0.0.1 localhost` into /etc/hosts, or use a "
            "name server that answers."
        )
    return "that of 127.0.0.1 is found, or known to be none, at once"


def _seconds_for_a_name() -> float:
    import socket
    import time
    from contextlib import suppress

    began = time.monotonic()
    with suppress(OSError):  # no name server has answered
        socket.getnameinfo((LOOPBACK, 0, 0, 0), 0)
    return time.monotonic() - began


def _launcher() -> str:
    """Check the variables by which a launcher says which rank this is: a shell may still have those
    of another job."""
    from recd_plugins.launch.environment import check_rank, meeting_place

    if "RANK" in os.environ:
        check_rank()
        rank, ranks = os.environ["RANK"], os.environ["WORLD_SIZE"]
        return (
            f"RANK is {rank} and WORLD_SIZE {ranks}, so `recd train` is rank {rank} alone here, "
            f"and meets the others at {meeting_place()}. Where no launcher has just set them: "
            "unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE"
        )
    size = os.environ.get("WORLD_SIZE", "1")
    if size != "1":
        raise RecdError(
            f"WORLD_SIZE is {shortened(size)}, but RANK is not set: no launcher has started this "
            "process, yet a plan would ask for other ranks. unset WORLD_SIZE; or start ranks with "
            "torchrun, which sets both."
        )
    return "none has set RANK: `recd train` starts the ranks itself"


def _collectives(ranks: int) -> str:
    """Check an all-to-all and an all-reduce over real ranks, and the bytes that they give."""
    from recd_plugins.launch.launcher import launch

    failure = launch(["recd_plugins.launch.try_collectives"], ranks, threads=1, quiet=True)
    if failure is not None:
        raise RecdError(
            f"{failure}\nCheck that the loopback interface is up and that no firewall closes it; "
            "or name another interface by GLOO_SOCKET_IFNAME."
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
