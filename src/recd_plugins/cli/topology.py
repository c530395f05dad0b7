"""`recd topology`: what the cluster's links do."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from recd_plugins.cli.commands import Commands
from recd_plugins.cli.ended_by_signals import ended_by_signals
from recd_plugins.cli.loaded import server_of_ranks
from recd_plugins.cli.options import AsJson, Debug
from recd_plugins.cli.output_paths import check_writable
from recd_plugins.cli.reported import reported
from recd_plugins.errors import so_many
from recd_plugins.notices import NOTICE
from recd_plugins.storage.lock_file import LockFile, LockHeld
from recd_plugins.storage.own_folder import own_folder

if TYPE_CHECKING:
    from recd_plugins.launch.rank_server import RankServer
    from recd_plugins.planning.cluster.topology import Link
    from recd_plugins.stack import Stack

__all__ = ["topology"]

LOOK = 0.2
"""Seconds between two looks at whether another one has ended."""

topology = Commands(no_args_is_help=True, help="Links between ranks and between nodes.")

Ranks = Annotated[
    int,
    typer.Option(
        "--ranks", help="The number of ranks to start; under torchrun its world size counts.", min=1
    ),
]
RanksPerNode = Annotated[
    int | None,
    typer.Option(
        "--ranks-per-node",
        help="The number of ranks that share a node; by default as the launcher says.",
        min=1,
    ),
]
Device = Annotated[
    Literal["auto", "cpu", "cuda"],
    typer.Option(
        "--device", help="The device that ranks compute on; auto takes CUDA where torch sees it."
    ),
]
Rounds = Annotated[
    int | None,
    typer.Option(
        "--rounds", min=1, help="The number of times that each call is timed; by default 12."
    ),
]
MappedFolder = Annotated[
    Path | None,
    typer.Option(
        "--mapped-folder",
        help="A folder on the disk that is to hold mapped files; what a row of these takes is "
        "then measured, too.",
    ),
]
Save = Annotated[
    Path, typer.Option("--save", help="The file that `topology:` in registry.yaml may name.")
]


@topology.command()
def measure(
    ranks: Ranks = 2,
    ranks_per_node: RanksPerNode = None,
    device: Device = "auto",
    rounds: Rounds = None,
    mapped_folder: MappedFolder = None,
    save: Save = Path("topology.yaml"),
    debug: Debug = False,
    as_json: AsJson = False,
) -> None:
    """Measure all-to-alls and all-reduces inside and across nodes, and save them as a topology.

    The memory that the file names is kept, since it is not measured.

    Starts its ranks itself, once no other such command measures on this machine; under torchrun
    (`torchrun -m recd_plugins topology measure`) it is one rank of the running cluster.
    """
    with reported(debug), ended_by_signals(), server_of_ranks() as server:
        from recd_plugins.errors import RegistryError
        from recd_plugins.stack import load

        if not save.parent.is_dir():
            raise RegistryError(f"--save: there is no folder {save.parent}. Make it first.")
        check_writable(save, "--save")
        _check_replaces_topology(save)
        if "RANK" not in os.environ and ranks % (ranks_per_node or 1):
            raise RegistryError(
                f"--ranks-per-node: {so_many(ranks, 'rank')} do not fill whole nodes of "
                f"{ranks_per_node}. Name a divisor of --ranks."
            )
        node = {} if ranks_per_node is None else {"ranks_per_node": ranks_per_node}
        stack = load({"train": {"ranks": ranks, "device": device}, "topology": node})
        if "RANK" in os.environ:
            _be_a_rank(stack, save, rounds, mapped_folder)
            return
        command = ["recd_plugins", "topology", "measure", "--save", str(save)]
        command += ["--device", device, "--ranks", str(ranks)]
        command += [] if ranks_per_node is None else ["--ranks-per-node", str(ranks_per_node)]
        command += [] if rounds is None else ["--rounds", str(rounds)]
        command += [] if mapped_folder is None else ["--mapped-folder", str(mapped_folder)]
        command += ["--debug"] if debug else []
        with _alone():
            found = _lead(stack, command, save, server, quiet=as_json)
    print(json.dumps(found) if as_json else save.read_text() + str(save))


@contextmanager
def _alone() -> Iterator[None]:
    """Inside, no other such command of this user measures on this machine. It waits for one that
    does, since each would count the other's work as its own."""
    folder = own_folder("recd-topology")
    if folder is None:
        yield
        return
    lock, waits = LockFile(folder / "measures.lock"), False
    while True:
        try:
            lock.take()
            break
        except LockHeld as held:
            if not waits:
                waits = True
                print(
                    f"{NOTICE}topology measure: {held} measures on this machine, and each would "
                    "count what the other does; this one begins when that has ended.",
                    file=sys.stderr,
                    flush=True,
                )
            time.sleep(LOOK)
        except OSError:  # a file system without locks, or without room
            break
    try:
        yield
    finally:
        lock.give_back(remove=True)


def _lead(
    stack: Stack, command: list[str], save: Path, server: RankServer | None, *, quiet: bool
) -> dict[str, Any]:
    import dataclasses

    from recd_plugins.launch.launcher import launch
    from recd_plugins.planning.cluster.topology import load_topology

    ranks = stack.registry.train.ranks
    failure = launch(command, ranks, threads=1, quiet=quiet, server=server)
    if failure is not None:
        print(failure.output if failure.code == 2 else f"error: {failure}", file=sys.stderr)
        raise typer.Exit(2 if failure.code == 2 else 1)
    return dataclasses.asdict(load_topology(save, "topology"))


def _be_a_rank(stack: Stack, save: Path, rounds: int | None, mapped_folder: Path | None) -> None:
    import dataclasses

    import torch.distributed as dist

    from recd_plugins.launch.environment import die_with_parent
    from recd_plugins.planning.cluster.measured_topology import ROUNDS, measure_topology
    from recd_plugins.planning.cluster.topology import save_topology
    from recd_plugins.trainer.process_group import process_group

    die_with_parent()
    with process_group(stack) as device:
        world = dist.group.WORLD
        assert world is not None  # process_group made it
        known = dataclasses.replace(stack.registry.topology, **_memory_before(save))
        began = time.monotonic()

        def met(name: str, link: Link) -> None:
            if dist.get_rank() == 0:
                took = time.monotonic() - began
                print(
                    f"{name}: {link.gbps:.3g} GB/s, {link.latency_ms:.3g} ms; {took:.1f} s so far"
                )

        found = measure_topology(
            world,
            device,
            topology=known,
            rounds=rounds or ROUNDS,
            met=met,
            mapped_folder=mapped_folder,
        )
        if dist.get_rank() == 0:
            save_topology(found, save)


def _check_replaces_topology(save: Path) -> None:
    """`RegistryError` if the file exists and holds something else, which would be lost."""
    from recd_plugins.errors import RegistryError
    from recd_plugins.planning.cluster.topology import load_topology

    if not save.exists() or save.stat().st_size == 0:
        return
    try:
        load_topology(save, "--save")
    except RegistryError as error:
        raise RegistryError(
            f"{error} The measured topology would replace this file, which is no topology. Name "
            "another file, or remove this one."
        ) from None


def _memory_before(save: Path) -> dict[str, Any]:
    """The memory that the topology which is about to be replaced names, if there is one."""
    from recd_plugins.errors import RegistryError
    from recd_plugins.planning.cluster.topology import load_topology

    try:
        before = load_topology(save, "--save")
    except RegistryError:  # there is none, or nothing in it
        return {}
    return {name: getattr(before, name) for name in ("device_memory_gb", "host_memory_gb")}
