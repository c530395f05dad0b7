"""What a part is, and where it runs: on ranks of its own, which a deadline ends."""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from benchmarks.harness import Figure
from recd_plugins.launch.environment import HOST
from recd_plugins.testing.gloo import GlooPool, RanksFailed

__all__ = ["Part", "Setting", "device_of_rank", "ran", "reason", "synchronised"]

T = TypeVar("T")
NAMED = re.compile(r"[\w.]*(Error|Exception|Interrupt)\b")


@dataclass(frozen=True, kw_only=True)
class Setting:
    """On what a part runs, and how long."""

    device: str
    """cuda, or cpu."""
    quick: bool
    seconds: float
    """The deadline of a call."""

    @property
    def on_cuda(self) -> bool:
        return self.device == "cuda"

    def on_ranks(
        self, function: Callable[..., T], *arguments: Any, ranks: int = 1, **options: Any
    ) -> list[T]:
        """`function(device, ...)` on new ranks, each with `device_of_rank`; the results, by rank.

        What is wrong with a device stays with these processes, which end here.
        """
        with contextlib.redirect_stdout(sys.stderr), GlooPool(deadline=self.seconds) as pool:
            return pool.run(_on_device, function, self.device, arguments, options, world_size=ranks)


@dataclass(frozen=True, kw_only=True)
class Part:
    """Some rows of the table, which come or fail without the others."""

    name: str
    about: str
    run: Callable[[Setting], Iterable[Figure]]
    seconds: float = 120.0
    """How long a call of it may take."""
    needs_cuda: str = ""
    """Why the CPU cannot run it; empty where it can."""
    timed: bool = True
    """Whether it measures time, so that nothing else may run meanwhile."""


def ran(part: Part, setting: Setting) -> Iterator[Figure]:
    """The part's rows; of one that fails, those before and a row that says how it failed."""
    if part.needs_cuda and not setting.on_cuda:
        print(f"{part.name}: not on the CPU, where {part.needs_cuda}", file=sys.stderr)
        return
    try:
        yield from part.run(setting)
    except Exception as error:  # whatever it is, the other parts run
        print(f"{part.name} failed:\n{error}", file=sys.stderr, flush=True)
        yield Figure(name=f"{part.name}: runs", value=0, unit="", target=1, note=reason(error))


def reason(error: Exception) -> str:
    """What a row says of it; of ranks, what the first that failed raised, or that it was late.

    The last line that names an error, for CUDA's end with advice on how to find out more.
    """
    text = f"{type(error).__name__}: {error}"
    if isinstance(error, RanksFailed):
        text = next(iter(error.ranks.values())).partition("  It printed:")[0]
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    named = [line for line in lines if NAMED.match(line)]
    return (named or lines)[-1][:200]


def _on_device(
    function: Callable[..., T], device: str, arguments: tuple[Any, ...], options: dict[str, Any]
) -> T:
    return function(device_of_rank(device), *arguments, **options)


def device_of_rank(kind: str) -> torch.device:
    """This rank's device. Where each rank has one of its own, its group is NCCL's from here on;
    NCCL refuses two ranks on one device, whose collectives gloo does then, through host memory."""
    if kind == "cpu":
        return torch.device("cpu")
    rank, world_size, count = dist.get_rank(), dist.get_world_size(), torch.cuda.device_count()
    device = torch.device("cuda", rank % count)
    torch.cuda.set_device(device)
    if world_size <= count:
        port: list[Any] = [None]
        if rank == 0:
            store = dist.TCPStore(HOST, 0, world_size, is_master=True, wait_for_workers=False)
            port = [store.port]
        dist.broadcast_object_list(port)
        if rank > 0:
            store = dist.TCPStore(HOST, port[0], world_size)
        dist.destroy_process_group()
        dist.init_process_group("nccl", store=store, rank=rank, world_size=world_size)
    return device


def synchronised(call: Callable[[], object], device: torch.device) -> Callable[[], None]:
    """A side for `alternate` that has ended when it returns, and whose result is not kept."""

    def run() -> None:
        call()
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    return run
