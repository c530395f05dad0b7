"""`recd` as a person starts it, in a folder of its own: forked from a process that has imported
it, so that a case takes milliseconds more than what it tries."""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from threading import Lock

from recd_plugins.launch.rank_server import ForkedProgram, RankServer

__all__ = ["Ended", "Place", "Program", "Programs", "contents", "programs"]

PRELOADED = (
    "recd_plugins.trainer.run",
    "recd_plugins.cli.main",
    "recd_plugins.stack",
    "recd_dlrm",
    "recd_dedup",
    "recd_flexshard",
    "recd_scars",
)
LIMIT = 60.0
"""Seconds that a program gets: nothing that is tried should take half as long. Time in which it
waits for a processor does not count."""
SLOWEST = 30.0
"""By how much a machine with other work may slow a program down, at most."""
LOOKS = 0.5
"""Seconds between two looks at what a program does with its time."""
LOOK = 0.02
"""Seconds between two looks at a program."""
LEAVING = 5.0
"""Seconds that processes have to go once their program has ended."""
SCARCE = "RECD_FAULTS_MEMORY"
"""The variable that has the bytes of memory that a program may ask for."""
MEMORY = (6 if "+cpu" in version("torch") else 24) << 30
"""Bytes: what asks for more is at fault, and would end the machine's other work. Of torch's build
for CUDA, the libraries alone ask for more than a whole program on the CPU's."""


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How a program ended, and what it printed."""

    code: int
    """Its exit code, or minus the signal."""
    output: str
    """Standard output and standard error."""
    errors: str
    """Standard error alone."""
    seconds: float
    late: bool = False
    """Whether it was killed, for it ran past its limit."""
    left: tuple[str, ...] = ()
    """Processes and temporary files that outlived it."""


class Programs:
    """What programs are forked from, and the folder that has a folder for each case."""

    def __init__(self, server: RankServer, folder: Path) -> None:
        self.folder = folder
        self._server = server
        self._starting, self._making = Lock(), Lock()

    def start(
        self, command: Sequence[str], environment: Mapping[str, str], out: int, err: int
    ) -> ForkedProgram:
        """`python -m <command>`; several threads may ask."""
        with self._starting:
            return self._server.start(command, environment, out=out, err=err)

    def made(self, name: str, make: Callable[[Place], None]) -> Path:
        """A folder that `make` fills when it is asked for first; cases copy it."""
        folder = self.folder / f"made-{name}"
        with self._making:
            if not folder.exists():
                folder.mkdir()
                make(Place(folder=folder, programs=self))
        return folder


@contextlib.contextmanager
def programs() -> Iterator[Programs]:
    """What programs are forked from, for as long as it lasts: a copy of this process, which has
    imported all and computed nothing."""
    for module in PRELOADED:
        importlib.import_module(module)
    server = RankServer()
    try:
        with tempfile.TemporaryDirectory() as folder:
            yield Programs(server, Path(folder).resolve())
    finally:
        server.close()


@dataclass(kw_only=True)
class Place:
    """A folder in which a case does what it does."""

    folder: Path
    programs: Programs
    _started: int = field(default=0, init=False)

    def made(self, name: str, make: Callable[[Place], None]) -> Path:
        """A folder that `make` fills, once for all cases; it is to be copied."""
        return self.programs.made(name, make)

    def write(self, name: str, text: str | bytes) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return path

    def recd(
        self,
        *arguments: str,
        limit: float = LIMIT,
        environment: Mapping[str, str] | None = None,
    ) -> Ended:
        """Run `recd` to its end."""
        return self.start(*arguments, environment=environment).wait(limit)

    def start(self, *arguments: str, environment: Mapping[str, str] | None = None) -> Program:
        """Start `recd`, which is then waited for, or has signals sent to it."""
        self._started += 1
        return Program(self.folder, self._started, self.programs, arguments, environment or {})


class Program:
    """`recd`, started in a case's folder, with a folder of temporary files of its own."""

    def __init__(
        self,
        folder: Path,
        number: int,
        programs: Programs,
        arguments: tuple[str, ...],
        environment: Mapping[str, str],
    ) -> None:
        own = folder.with_name(f"{folder.name}.{number}")
        self._temporary = own / "tmp"
        self._temporary.mkdir(parents=True)
        self._out, self._err = own / "out", own / "err"
        self._folder = folder
        variables = {
            **os.environ,
            "TMPDIR": str(self._temporary),
            "COLUMNS": "200",
            "OMP_NUM_THREADS": "1",
            SCARCE: str(MEMORY),
            **environment,
        }
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self._process = programs.start(
                ["benchmarks.faults.started", str(folder), *arguments],
                variables,
                out.fileno(),
                err.fileno(),
            )
        self._clock = OwnClock(folder)

    @property
    def pid(self) -> int:
        return self._process.pid

    def signal(self, number: int) -> None:
        """Send it a signal, to it alone."""
        self._process.send_signal(number)

    def running(self) -> bool:
        return self._process.poll() is None

    def output(self) -> str:
        """What it has printed so far."""
        return "".join(path.read_bytes().decode(errors="replace") for path in self._files())

    def wait(self, limit: float = LIMIT) -> Ended:
        """Its end, by itself or by being killed when it has had `limit` seconds since its start."""
        late = False
        looked = time.monotonic()
        while (code := self._process.poll()) is None:
            if time.monotonic() - looked > LOOKS:
                self._clock.look()
                looked = time.monotonic()
                late = self._clock.seconds > limit
            if late:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self._process.pid, signal.SIGKILL)
                code = self._process.wait()
                break
            time.sleep(LOOK)
        return Ended(
            code=code,
            output=self.output(),
            errors=self._err.read_bytes().decode(errors="replace"),
            seconds=self._clock.seconds,
            late=late,
            left=tuple(self._left()),
        )

    def _files(self) -> tuple[Path, Path]:
        return self._out, self._err

    def _left(self) -> Iterator[str]:
        """What is still there though its program has ended; processes are killed then."""
        until = time.monotonic() + LEAVING
        while (alive := list(_processes_in(self._folder))) and time.monotonic() < until:
            time.sleep(LOOK)
        for process in alive:
            yield f"process {process}: {_command_of(process)}"
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        kept = {
            "torchinductor_root",
            f"torchinductor_{os.environ.get('USER', '')}",
        }  # torch's cache
        for path in sorted(self._temporary.iterdir()):
            if path.name in kept:
                continue
            yield f"{path.name} among the temporary files"


class OwnClock:
    """The time that a program has had, by the processes whose folder it is: seconds on the clock
    but for those in which they waited for a processor, and no fewer than they computed. A program
    that does nothing thus has all the time that passes, whatever else the machine does."""

    def __init__(self, folder: Path) -> None:
        self.seconds = 0.0
        self._folder = folder
        self._looked = time.monotonic()
        self._used: dict[str, tuple[float, float]] = {}

    def look(self) -> None:
        """Add what has passed since the last look."""
        now, used = time.monotonic(), dict(_used(self._folder))
        passed, self._looked = now - self._looked, now
        ran, waited = (
            sum(each[part] - self._used.get(task, (0.0, 0.0))[part] for task, each in used.items())
            for part in (0, 1)
        )
        self._used = used
        had = max(passed - waited, min(ran, passed), passed / SLOWEST)
        self.seconds += had


def _used(folder: Path) -> Iterator[tuple[str, tuple[float, float]]]:
    """Of each thread, the seconds that it ran, and those that it waited for a processor."""
    for process in _processes_in(folder):
        with contextlib.suppress(OSError):
            for task in Path(f"/proc/{process}/task").iterdir():
                with contextlib.suppress(OSError, ValueError):
                    ran, waited, _ = (task / "schedstat").read_text().split()
                    yield task.name, (int(ran) / 1e9, int(waited) / 1e9)


def contents(*roots: Path) -> dict[str, str]:
    """Every file under some folders by its path, with a digest, so that changes show."""
    found = {}
    for root in roots:
        for path in sorted([root, *root.rglob("*")]):
            if path.is_symlink():
                found[str(path)] = f"a link to {os.readlink(path)}"
            elif path.is_file():
                found[str(path)] = hashlib.blake2b(path.read_bytes()).hexdigest()
            elif path.exists():
                found[str(path)] = "a folder" if path.is_dir() else "a special file"
    return found


def _processes_in(folder: Path) -> Iterator[int]:
    """Those whose current folder it is: all that a program starts inherit it."""
    for one in Path("/proc").iterdir():
        if one.name.isdigit():
            with contextlib.suppress(OSError):
                if Path(os.readlink(one / "cwd")) == folder and _state_of(one) != "Z":
                    yield int(one.name)


def _state_of(process: Path) -> str:
    return (process / "stat").read_text().rpartition(")")[2].split()[0]


def _command_of(process: int) -> str:
    try:
        text = Path(f"/proc/{process}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return "gone meanwhile"
    return text[:200]


if sys.platform != "linux":  # /proc is Linux's
    raise SystemExit("benchmarks.faults needs Linux.")
