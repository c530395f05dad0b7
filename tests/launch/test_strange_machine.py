"""Rung 1 (values): what ranks have of a machine of which a container, a cluster's job or a launcher
gives but a part, and where they can meet."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from recd_plugins.errors import CapabilityError
from recd_plugins.launch.control_groups import own_groups, text_of
from recd_plugins.launch.environment import AGENTS_STORE, loopback_store
from recd_plugins.launch.machine_cores import cores_of_each, machine_cores
from recd_plugins.launch.machine_memory import machine_memory
from recd_plugins.launch.processes import stat_of, with_those_below
from recd_plugins.registry.settings import TrainSettings

MACHINE = 64
AGENT = {"RANK": "3", AGENTS_STORE: "True"}
BINDS = {"RANK": "3"}


def system(folder: Path, files: dict[str, str]) -> Path:
    """A root with these files of /sys/fs/cgroup and /proc."""
    for name, text in files.items():
        file = folder / (name if name.startswith("proc/") else f"sys/fs/cgroup/{name}")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return folder


@pytest.fixture
def bound(monkeypatch: pytest.MonkeyPatch) -> dict[int, int]:
    """The cores that processes are bound to: this one (0), and its parent. The real container's
    share of time does not count."""
    cores = {0: MACHINE, os.getppid(): MACHINE}
    monkeypatch.setattr("os.cpu_count", lambda: MACHINE)
    monkeypatch.setattr("os.sched_getaffinity", lambda process: set(range(cores[process])))

    def groups(root: Path, controller: str) -> Iterable[Path]:
        return () if root == Path("/") else own_groups(root, controller)

    monkeypatch.setattr("recd_plugins.launch.machine_cores.own_groups", groups)
    for name in AGENT:
        monkeypatch.delenv(name, raising=False)
    return cores


@pytest.mark.parametrize(
    ("variables", "own", "parents", "of_each"),
    [
        ({}, MACHINE, MACHINE, 16),
        ({}, 8, MACHINE, 2),  # `taskset -c 0-7 recd train`
        ({}, 1, 1, 1),
        (AGENT, 8, 8, 2),  # torchrun in a job of 8 cores
        (AGENT, 32, MACHINE, 16),  # torchrun that binds ranks to their memory's half of the machine
        (BINDS, 2, MACHINE, 2),  # mpirun and srun
        (BINDS, MACHINE, MACHINE, 16),
    ],
)
def test_ranks_share_the_cores_that_they_may_use(
    variables: dict[str, str],
    own: int,
    parents: int,
    of_each: int,
    bound: dict[int, int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bound |= {0: own, os.getppid(): parents}
    for name, text in variables.items():
        monkeypatch.setenv(name, text)
    assert cores_of_each(4) == of_each == TrainSettings().threads_of_each(4)
    assert machine_cores() == own


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({"cpu.max": "max 100000\n"}, MACHINE),
        ({"cpu.max": "800000 100000\n"}, 8),
        ({"cpu.max": "1000 100000\n"}, 1),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, MACHINE),
        ({"cpu/cpu.cfs_quota_us": "150000\n", "cpu/cpu.cfs_period_us": "50000\n"}, 3),
        (
            {
                "proc/self/cgroup": "0::/job/step\n",
                "job/cpu.max": "400000 100000",
                "job/step/cpu.max": "max 100000",
            },
            4,
        ),
        (
            {
                "proc/self/cgroup": "3:cpu,cpuacct:/job\n0::/\n",
                "cpu/job/cpu.cfs_quota_us": "200000",
                "cpu/job/cpu.cfs_period_us": "100000",
            },
            2,
        ),
    ],
)
def test_a_container_has_the_time_of_some_cores(
    files: dict[str, str], cores: int, bound: dict[int, int], tmp_path: Path
) -> None:
    root = system(tmp_path, files)
    assert machine_cores(root) == cores
    assert cores_of_each(2, root) == max(1, cores // 2)


@pytest.mark.parametrize(
    ("call", "answer"), [("bind", errno.EADDRNOTAVAIL), ("connect", errno.ENETUNREACH)]
)
def test_ranks_that_cannot_meet_hear_of_the_interface(
    call: str, answer: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where loopback is down Linux refuses the second."""

    def refuse(_: object, address: tuple[str, int]) -> None:
        raise OSError(answer, os.strerror(answer))

    monkeypatch.setattr(f"socket.socket.{call}", refuse)
    with pytest.raises(CapabilityError, match=r"127.0.0.1 \(.*`ip link set lo up`"):
        loopback_store(2)


def test_a_text_of_the_system_may_have_bytes_of_any_encoding(tmp_path: Path) -> None:
    (tmp_path / "mountinfo").write_bytes(b"/disk/gr\xf6\xdfe - ext4\n")
    assert text_of(tmp_path / "mountinfo").endswith(" - ext4\n")


def test_a_job_has_the_memory_of_its_own_control_group(tmp_path: Path) -> None:
    groups = "4:memory:/job/step\n1:cpu:/\n"
    limits = {"memory/job/memory.limit_in_bytes": "1000", "memory/memory.limit_in_bytes": "9000"}
    assert machine_memory(system(tmp_path, {"proc/self/cgroup": groups, **limits})) == 1000


@pytest.mark.parametrize(("kibibytes", "notices"), [(1_500_000, 1), (4_000_000, 0)])
def test_too_few_addresses_are_named_before_torch_is_imported(kibibytes: int, notices: int) -> None:
    program = (
        "import resource, sys\n"
        f"resource.setrlimit(resource.RLIMIT_AS, (1024 * {kibibytes},) * 2)\n"
        "from recd_plugins.cli.few_addresses import warn_of_few_addresses\n"
        "from recd_plugins.notices import notices_as_lines\n"
        "notices_as_lines(on_errors=True)\n"
        "warn_of_few_addresses()\n"
        "assert 'torch' not in sys.modules\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stderr.count("notice: `ulimit -v` allows this process 1.4 GiB") == notices
    assert done.stderr.count("\n") == notices


def test_a_process_without_a_limit_may_take_all_addresses() -> None:
    program = (
        "import resource\n"
        "from recd_plugins.launch.machine_memory import address_space\n"
        "free = resource.getrlimit(resource.RLIMIT_AS)[0] == resource.RLIM_INFINITY\n"
        "assert (address_space() is None) == free\n"
        "resource.setrlimit(resource.RLIMIT_AS, (2**33, 2**33))\n"
        "assert address_space() == 2**33\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="the system has no /proc")
def test_a_process_is_known_by_its_state_whatever_its_name() -> None:
    named = "open('/proc/self/comm', 'wb').write(b'a) T \\xff'); print(flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", named], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        before = stat_of(process.pid)
        assert before.state in "RS"
        mine = stat_of(os.getpid())
        assert mine.seconds > 0
        assert int(before.began) >= int(mine.began)
        assert process.pid in with_those_below(os.getpid())
        assert with_those_below(process.pid) == [process.pid]
        process.kill()
    with pytest.raises(OSError, match=str(process.pid)):
        stat_of(process.pid)
