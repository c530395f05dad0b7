"""Real processes: ranks that end well, fail, are killed, interrupted or orphaned; one on gloo.

All of it holds of interpreters, as which this process starts ranks, and of ranks that are forked
from a server, in a process that can be copied.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from forked import run_module

from recd_plugins.launch import launcher
from recd_plugins.launch.environment import (
    ELASTIC,
    PARENT,
    STOPS,
    die_with_parent,
    loopback_store,
)
from recd_plugins.launch.launcher import SHOWN, Failure
from recd_plugins.launch.rank_server import RankServer, rank_server

pytestmark = pytest.mark.slow

LIMIT = 300.0
"""Seconds that nothing takes, however busy the machine is; ranks would sleep for longer."""
COPIED = "RECD_TEST_COPIED"
"""The variable that is set where these tests run in a process that can be copied."""

ONCE = pytest.mark.skipif(COPIED in os.environ, reason="this is the process that can be copied")

Launch = Callable[..., Failure | None]

HEAD = """
import contextlib, json, os, signal, subprocess, sys, time
from pathlib import Path

rank = int(os.environ["RANK"])

def tell(**what):
    part = Path(f"rank-{rank}.part")
    part.write_text(json.dumps(what))
    part.rename(f"rank-{rank}.json")

def wait_for(name):
    while not Path(name).exists():
        time.sleep(0.01)
"""


@pytest.fixture(scope="module")
def server() -> Iterator[RankServer | None]:
    if COPIED not in os.environ:
        yield None
        return
    with rank_server(["torch.distributed"]) as server:
        if sys.platform != "linux" or torch.version.cuda is not None:
            pytest.skip("ranks are forked on Linux, where torch is built for the CPU")
        assert server is not None
        yield server


@pytest.fixture
def launch(server: RankServer | None) -> Launch:
    """`launch`, with the server that there is."""
    return partial(launcher.launch, server=server)


@ONCE
def test_all_of_this_holds_of_ranks_that_are_forked() -> None:
    options = ["-q", "-p", "no:cacheprovider", "-W", "ignore::pytest.PytestAssertRewriteWarning"]
    here = str(Path(__file__).parents[2])
    done = run_module("pytest", *options, __file__, folder=here, environment={COPIED: "1"})
    assert done.code == 0, done.out + done.err


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], list[str]]:
    """Writes a module for ranks into the working folder; the command that runs it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)

    def write(body: str) -> list[str]:
        (tmp_path / "a_rank.py").write_text(HEAD + body)
        return ["a_rank", "an", "argument"]

    return write


def test_ranks_run_no_module_that_happens_to_lie_where_they_start(
    launch: Launch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even one by the name of another's: they look where the launcher does."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "a_program.py").write_text("import a_neighbour")
    (tmp_path / "a_neighbour.py").write_text("open('was-run', 'w')")
    monkeypatch.syspath_prepend(tmp_path / "elsewhere")  # it puts back all that is there by now
    sys.path[:] = [one for one in sys.path if one not in ("", os.getcwd())]
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "elsewhere"))
    monkeypatch.chdir(tmp_path)
    failure = launch(["a_program"], 1, threads=1)
    assert failure is not None
    assert "No module named 'a_neighbour'" in failure.output
    assert not (tmp_path / "was-run").exists()


@ONCE
def test_no_garbage_is_sought_while_a_server_imports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "what_is_imported.py").write_text("import gc\n\nsought = gc.isenabled()\n")
    monkeypatch.syspath_prepend(tmp_path)
    with rank_server(["what_is_imported"]):
        assert gc.isenabled()
    assert not importlib.import_module("what_is_imported").sought


@ONCE
def test_neither_does_the_server_that_workers_are_forked_from(tmp_path: Path) -> None:
    """Nor one by the name of Python's own; what it forks finds what the program finds."""
    for module in ("recd_plugins", "selectors", "tempfile"):
        (tmp_path / f"{module}.py").write_text("open('was-run', 'w')")
    program = """
from recd_plugins.launch.fork_server import fork_server
process = fork_server("recd_plugins.launch.environment").Process(target=print, args=("forked",))
process.start()
process.join()
"""
    done = subprocess.run(
        [sys.executable, "-P", "-c", program], cwd=tmp_path, capture_output=True, text=True
    )
    assert (done.stdout, done.stderr) == ("forked\n", "")
    assert not (tmp_path / "was-run").exists()


def written_by(rank: int) -> dict[str, object]:
    """What a rank wrote, once it has."""
    file = Path(f"rank-{rank}.json")
    wait_until(file.exists)
    content: dict[str, object] = json.loads(file.read_text())
    return content


def wait_until(done: Callable[[], bool]) -> None:
    ends = time.monotonic() + LIMIT
    while not done():
        assert time.monotonic() < ends, "it took too long"
        time.sleep(0.01)


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except FileNotFoundError:
        return True


def failed(outcome: Failure | None) -> Failure:
    assert outcome is not None
    return outcome


def test_each_rank_knows_its_place(
    launch: Launch, program: Callable[[str], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    command = program("tell(env=dict(os.environ), argv=sys.argv[1:])")
    assert launch(command, 3, threads=2) is None
    ports = set()
    for rank in range(3):
        content = written_by(rank)
        assert content["argv"] == ["an", "argument"]
        env = content["env"]
        assert isinstance(env, dict)
        expected = {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": "3",
            "LOCAL_WORLD_SIZE": "3",
            "MASTER_ADDR": "127.0.0.1",
            "OMP_NUM_THREADS": "2",
            "GLOO_SOCKET_IFNAME": "lo",
        }
        assert expected.items() <= env.items()
        ports.add(env["MASTER_PORT"])
    assert len(ports) == 1
    assert "RANK" not in os.environ


def test_ranks_have_the_variables_that_they_are_given(
    launch: Launch, program: Callable[[str], list[str]]
) -> None:
    command = program("tell(said=os.environ['SAID_TO_RANKS'])")
    assert launch(command, 1, threads=1, variables={"SAID_TO_RANKS": "once"}) is None
    assert json.loads(Path("rank-0.json").read_text())["said"] == "once"
    assert "SAID_TO_RANKS" not in os.environ


def test_what_is_typed_is_for_the_launcher(
    launch: Launch, program: Callable[[str], list[str]]
) -> None:
    typed, before = Path("typed"), os.dup(0)
    typed.write_text("something")
    with typed.open() as file:
        os.dup2(file.fileno(), 0)
    try:
        assert launch(program("tell(read=sys.stdin.read())"), 1, threads=1) is None
    finally:
        os.dup2(before, 0)
        os.close(before)
    assert written_by(0) == {"read": ""}


def test_an_interface_of_the_users_choice_stays(
    launch: Launch, program: Callable[[str], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth7")
    assert launch(program("tell(face=os.environ['GLOO_SOCKET_IFNAME'])"), 1, threads=1) is None
    assert written_by(0) == {"face": "eth7"}


def test_rank_0_speaks_and_the_others_are_kept(
    launch: Launch, program: Callable[[str], list[str]], capfd: pytest.CaptureFixture[str]
) -> None:
    command = program("print(f'rank {rank} speaks'); print('and errs', file=sys.stderr)")
    assert launch(command, 2, threads=1) is None
    assert capfd.readouterr() == ("rank 0 speaks\n", "")
    assert launch(command, 2, threads=1, quiet=True) is None
    assert capfd.readouterr() == ("", "")


def test_notices_of_rank_0_are_shown_where_its_other_lines_are_not(
    launch: Launch, program: Callable[[str], list[str]], capfd: pytest.CaptureFixture[str]
) -> None:
    command = program("""
import warnings
from recd_plugins.notices import NoticeWarning, hide_other_warnings, notices_as_lines
hide_other_warnings()
notices_as_lines()
print("loss 0.5")
warnings.warn("what torch says")
warnings.warn(f"cache: scars is not used by rank {rank}.", NoticeWarning)
""")
    line = "notice: cache: scars is not used by rank 0.\n"
    assert launch(command, 2, threads=1) is None
    assert capfd.readouterr() == (f"loss 0.5\n{line}", "")
    assert launch(command, 2, threads=1, quiet=True) is None
    assert capfd.readouterr() == ("", line)


def test_a_rank_that_fails_is_shown_and_stops_the_others(
    launch: Launch,
    program: Callable[[str], list[str]],
) -> None:
    command = program(
        """
if rank == 1:
    wait_for("rank-0.json")
    wait_for("rank-2.json")
    print("what went wrong")
    print("and why", file=sys.stderr)
    sys.exit(3)
tell(pid=os.getpid())
time.sleep(600)
"""
    )
    began = time.monotonic()
    failure = failed(launch(command, 3, threads=1))
    assert time.monotonic() - began < LIMIT
    assert (failure.rank, failure.code) == (1, 3)
    assert sorted(failure.output.splitlines()) == ["and why", "what went wrong"]
    assert str(failure).startswith("rank 1 ended with exit code 3; it said:\n")
    for rank in (0, 2):
        pid = written_by(rank)["pid"]
        assert isinstance(pid, int)
        assert gone(pid)


def test_a_rank_that_dies_of_a_signal_is_reported(
    launch: Launch, program: Callable[[str], list[str]]
) -> None:
    command = program("if rank == 0: os.kill(os.getpid(), signal.SIGKILL)\ntime.sleep(600)")
    failure = failed(launch(command, 2, threads=1))
    assert str(failure) == "rank 0 ended with SIGKILL and said nothing"


@pytest.mark.parametrize(
    ("fails", "follows", "ended"),
    [
        (
            "leave_failure(); Path('left').touch(); wait_for_end(0); sys.exit(4)",
            "wait_for('left')",
            4,
        ),
        ("os.kill(os.getpid(), signal.SIGKILL)", "wait_for_end(1)", -9),
        (
            "wait_for('left'); os._exit(7)",
            "leave_failure(); Path('left').touch(); wait_for_end(1)",
            7,
        ),
    ],
    ids=["raises", "is killed", "exits"],
)
def test_the_rank_that_failed_first_is_reported_though_its_peer_ends_before_it(
    launch: Launch, program: Callable[[str], list[str]], fails: str, follows: str, ended: int
) -> None:
    command = program(
        f"""
from recd_plugins.launch.first_failure import leave_failure

def wait_for_end(other):
    process = Path(f"/proc/{{pids[other]}}/stat")
    with contextlib.suppress(OSError):  # it was, until now
        while ") Z" not in process.read_text():
            time.sleep(0.01)

tell(pid=os.getpid())
wait_for(f"rank-{{1 - rank}}.json")
pids = [json.loads(Path(f"rank-{{one}}.json").read_text())["pid"] for one in (0, 1)]
if rank == 1:
    {fails}
{follows}
leave_failure()
sys.exit(1)
"""
    )
    failure = failed(launch(command, 2, threads=1))
    assert (failure.rank, failure.code) == (1, ended)


def test_a_rank_that_ended_without_a_word_before_another_failed_is_named(
    launch: Launch, program: Callable[[str], list[str]]
) -> None:
    """Code that calls `os._exit` ends a rank so; its peer has only its own connection's end."""
    command = program(
        """
tell(pid=os.getpid())
wait_for(f"rank-{1 - rank}.json")
if rank == 1: os._exit(0)
process = Path(f"/proc/{json.loads(Path('rank-1.json').read_text())['pid']}/stat")
with contextlib.suppress(OSError):
    while ") Z" not in process.read_text():
        time.sleep(0.01)
from recd_plugins.launch.first_failure import leave_failure
leave_failure()
sys.exit("the connection was closed")
"""
    )
    failure = failed(launch(command, 2, threads=1))
    assert (failure.rank, failure.code, failure.before) == (0, 1, (1,))
    assert "the connection was closed\nrank 1 had ended before that, without a word" in str(failure)


def test_a_rank_that_stays_stopped_ends_the_job(
    launch: Launch, program: Callable[[str], list[str]]
) -> None:
    command = program("if rank == 1: os.kill(os.getpid(), signal.SIGSTOP)\ntime.sleep(600)")
    began = time.monotonic()
    failure = failed(launch(command, 2, threads=1, stopped_for=1.5))
    assert 2 < time.monotonic() - began < LIMIT
    assert (failure.rank, failure.explained) == (1, True)
    assert failure.output.startswith("error: rank 1 (process ")
    assert "has been stopped, by SIGSTOP or SIGTSTP, for 1.5 s" in failure.output


def test_the_end_of_a_long_output_is_shown(
    launch: Launch, program: Callable[[str], list[str]]
) -> None:
    command = program(
        "print('the beginning', 'x' * 100_000, 'the end', file=sys.stderr); sys.exit(1)"
    )
    failure = failed(launch(command, 1, threads=1))
    assert len(failure.output) == SHOWN + len("[...]")
    assert failure.output.startswith("[...]xxx")
    assert failure.output.endswith("xxx the end")


def test_an_output_that_is_no_text_is_shown(
    launch: Launch, program: Callable[[str], list[str]]
) -> None:
    command = program("os.write(2, b'caf\\xe9'); sys.exit(1)")
    assert failed(launch(command, 1, threads=1)).output == "caf\N{REPLACEMENT CHARACTER}"


def test_what_a_rank_started_ends_with_it(
    launch: Launch, program: Callable[[str], list[str]]
) -> None:
    command = program(
        """
child = subprocess.Popen(["sleep", "600"])
tell(child=child.pid)
if rank == 1:
    wait_for("rank-0.json")
    os._exit(1)  # its own child it leaves behind
time.sleep(600)
"""
    )
    failed(launch(command, 2, threads=1))
    for rank in range(2):
        pid = written_by(rank)["child"]
        assert isinstance(pid, int)
        wait_until(lambda pid=pid: gone(pid))


@pytest.fixture
def send() -> Iterator[Callable[..., None]]:
    """Sends this process a signal from a thread, as soon as something is true; and does what comes
    `then`."""
    threads: list[threading.Thread] = []

    def later(
        number: int, when: Callable[[], bool], then: Callable[[], object] = lambda: None
    ) -> None:
        def wait() -> None:
            wait_until(when)
            os.kill(os.getpid(), number)
            then()

        threads.append(threading.Thread(target=wait))
        threads[-1].start()

    yield later
    for thread in threads:
        thread.join(LIMIT)


ANSWERS = """
def stop(number, frame):
    tell(got=signal.Signals(number).name)
    sys.exit(0)

signal.signal(signal.SIGINT, stop)
Path(f"ready-{rank}").touch()
time.sleep(600)
"""


def both(name: str) -> Callable[[], bool]:
    return lambda: all(Path(name.format(rank)).exists() for rank in range(2))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_is_passed_on_and_ranks_stop_by_themselves(
    launch: Launch,
    number: signal.Signals,
    program: Callable[[str], list[str]],
    send: Callable[..., None],
    capfd: pytest.CaptureFixture[str],
) -> None:
    before = signal.getsignal(number)
    send(number, both("ready-{}"))
    assert launch(program(ANSWERS), 2, threads=1) is None
    assert written_by(0) == written_by(1) == {"got": "SIGINT"}
    assert "stopping after this step; a Ctrl-C from now on kills" in capfd.readouterr().err
    assert signal.getsignal(number) is before


def test_a_trial_whose_ranks_had_come_to_their_end_is_stopped_too(
    launch: Launch,
    program: Callable[[str], list[str]],
    send: Callable[..., None],
) -> None:
    """Whoever tries several would go on with the next."""
    send(signal.SIGINT, both("ready-{}"))
    with pytest.raises(KeyboardInterrupt):
        launch(program(ANSWERS), 2, threads=1, trial=True)
    assert written_by(0) == written_by(1) == {"got": "SIGINT"}


def test_a_signal_that_comes_before_a_process_is_known_is_passed_on(
    launch: Launch,
    server: RankServer | None,
    program: Callable[[str], list[str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It has started, and whoever started it has not been told yet."""
    owner, name = (subprocess, "Popen") if server is None else (RankServer, "start")
    start = getattr(owner, name)

    def then_interrupt(*args: Any, **options: Any) -> Any:
        process = start(*args, **options)
        wait_until(Path("ready-0").exists)
        os.kill(os.getpid(), signal.SIGINT)
        return process

    monkeypatch.setattr(owner, name, then_interrupt)
    assert launch(program(ANSWERS), 1, threads=1) is None
    assert written_by(0) == {"got": "SIGINT"}


@pytest.mark.skipif(COPIED not in os.environ, reason="interpreters have no server")
def test_signals_that_schedulers_send_to_all_processes_end_no_server(
    launch: Launch,
    server: RankServer,
    program: Callable[[str], list[str]],
    send: Callable[..., None],
) -> None:
    """Its ranks would end with it, and save nothing."""

    def sent() -> bool:
        there = both("ready-{}")()
        for number in STOPS if there else ():
            os.kill(server._process.pid or 0, number)
        return there

    send(signal.SIGTERM, sent)
    assert launch(program(ANSWERS), 2, threads=1) is None
    assert written_by(0) == written_by(1) == {"got": "SIGINT"}


@pytest.mark.parametrize("end", ["pass", "sys.exit(130)", "os.kill(os.getpid(), signal.SIGTERM)"])
def test_ranks_that_end_by_the_first_signal_are_no_failure(
    launch: Launch,
    program: Callable[[str], list[str]],
    send: Callable[..., None],
    capfd: pytest.CaptureFixture[str],
    end: str,
) -> None:
    """While they start: nothing in them has an answer to a signal yet."""
    wait = 'Path(f"ready-{rank}").touch()\ntry:\n    time.sleep(600)\nfinally:\n    '
    command = program(wait + end)
    send(signal.SIGINT, both("ready-{}"))
    with pytest.raises(KeyboardInterrupt):
        launch(command, 2, threads=1)
    printed = capfd.readouterr().err
    assert "stopped; there was nothing to save yet" in printed
    assert "said nothing" not in printed


@pytest.mark.parametrize(
    ("end", "by"),
    [
        ("sys.exit(130)", "Ctrl-C"),
        ("os.kill(os.getpid(), signal.SIGINT)", "Ctrl-C"),
        ("os.kill(os.getpid(), signal.SIGTERM)", "SIGTERM"),
    ],
)
def test_a_rank_that_ends_by_a_signal_to_it_alone_stops_the_job(
    launch: Launch,
    program: Callable[[str], list[str]],
    capfd: pytest.CaptureFixture[str],
    end: str,
    by: str,
) -> None:
    """While it starts: nothing in it has an answer to a signal yet."""
    command = program(
        f"signal.signal(signal.SIGINT, signal.SIG_DFL)\nif rank == 1:\n    {end}\ntime.sleep(600)"
    )
    with pytest.raises(KeyboardInterrupt):
        launch(command, 2, threads=1)
    printed = capfd.readouterr().err
    assert printed == f"stopped by {by} to rank 1; there was nothing to save yet\n"


def test_a_job_whose_output_nobody_reads_is_not_stopped_by_a_signal_of_its_own(
    launch: Launch, program: Callable[[str], list[str]], capfd: pytest.CaptureFixture[str]
) -> None:
    """While it starts: rank 0 sends it to itself, and would save a checkpoint later."""
    command = program(
        "from recd_plugins.cli.standard_streams import stop_when_unread\n"
        "stop_when_unread()\nprint('a line')\ntime.sleep(600)"
    )
    ours, theirs = os.pipe()
    os.close(ours)
    before = os.dup(1)
    os.dup2(theirs, 1)
    try:
        with pytest.raises(BrokenPipeError):
            launch(command, 2, threads=1)
    finally:
        os.dup2(before, 1)
        os.close(before)
        os.close(theirs)
    told = "stopped, since nobody reads what the job prints; there was nothing to save yet\n"
    assert capfd.readouterr().err == told


def test_ranks_answer_a_signal_that_their_launcher_ignored(
    launch: Launch,
    program: Callable[[str], list[str]],
    send: Callable[..., None],
) -> None:
    """As what a shell runs in its background ignores Ctrl-C."""
    command = program('Path(f"ready-{rank}").touch()\ntime.sleep(600)')
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        send(signal.SIGTERM, both("ready-{}"))
        with pytest.raises(KeyboardInterrupt):
            launch(command, 2, threads=1)
    finally:
        signal.signal(signal.SIGINT, before)


def test_the_second_signal_kills(
    launch: Launch,
    program: Callable[[str], list[str]],
    send: Callable[..., None],
) -> None:
    command = program(
        """
signal.signal(signal.SIGINT, lambda *_: tell(pid=os.getpid()))
Path(f"ready-{rank}").touch()
while True:
    time.sleep(1)
"""
    )
    send(signal.SIGINT, both("ready-{}"))
    send(signal.SIGINT, both("rank-{}.json"))
    with pytest.raises(KeyboardInterrupt):
        launch(command, 2, threads=1)
    for rank in range(2):
        pid = written_by(rank)["pid"]
        assert isinstance(pid, int)
        assert gone(pid)


def test_sigterm_asks_as_often_as_it_comes(
    launch: Launch,
    program: Callable[[str], list[str]],
    send: Callable[..., None],
) -> None:
    """A scheduler sends it, and what it has started sends it on: the ranks have a checkpoint to
    save."""
    command = program(
        """
signal.signal(signal.SIGINT, lambda *_: tell(saves=True))
Path(f"ready-{rank}").touch()
wait_for("again")
"""
    )
    send(signal.SIGTERM, both("ready-{}"))
    send(signal.SIGTERM, both("rank-{}.json"), Path("again").touch)
    assert launch(command, 2, threads=1) is None


def test_nothing_is_left_open(launch: Launch, program: Callable[[str], list[str]]) -> None:
    command = program("sys.exit(rank)")
    launch(command, 2, threads=1)
    before = set(os.listdir("/proc/self/fd"))
    failed(launch(command, 2, threads=1))
    # What other tests left running may have something open for a moment.
    wait_until(lambda: set(os.listdir("/proc/self/fd")) <= before)


@ONCE
def test_a_rank_ends_when_its_launcher_is_gone() -> None:
    ours, theirs = os.pipe()
    code = (
        "import time\nfrom recd_plugins.launch.environment import die_with_parent\n"
        "import os\ndie_with_parent()\nprint(os.environ.get('RECD_PARENT_PIPE'), flush=True)\n"
        "time.sleep(600)"
    )
    rank = subprocess.Popen(
        [sys.executable, "-c", code],
        env=os.environ | {PARENT: str(ours)},
        pass_fds=[ours],
        stdout=subprocess.PIPE,
        text=True,
    )
    os.close(ours)
    try:
        assert rank.stdout is not None
        assert rank.stdout.readline() == "None\n"  # not for what the rank itself starts
        time.sleep(0.1)
        assert rank.poll() is None
        os.close(theirs)  # as its end does, however it came
        assert rank.wait(LIMIT) == 1
    finally:
        rank.kill()
        rank.communicate()


@ONCE
def test_a_process_that_nobody_launched_lives_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(PARENT, raising=False)
    die_with_parent()
    assert "die-with-parent" not in {thread.name for thread in threading.enumerate()}


def listening(pid: int | str) -> set[str]:
    """The addresses at which a process listens, from /proc."""
    links = (Path(f"/proc/{pid}/fd") / name for name in os.listdir(f"/proc/{pid}/fd"))
    targets = set()
    for link in links:
        with contextlib.suppress(OSError):  # another thread has closed it
            targets.add(os.readlink(link))
    addresses = set()
    for family, table in ((socket.AF_INET, "tcp"), (socket.AF_INET6, "tcp6")):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in targets:
                address = bytes.fromhex(fields[1].partition(":")[0])
                words = struct.unpack(f">{len(address) // 4}I", address)  # each as the host has it
                addresses.add(socket.inet_ntop(family, struct.pack(f"={len(words)}I", *words)))
    return addresses


@ONCE
def test_the_store_listens_on_loopback_alone() -> None:
    before = listening("self")
    store = loopback_store(1)
    store.set("key", "value")
    assert store.get("key") == b"value"
    assert listening("self") - before <= {"127.0.0.1"}
    with socket.create_connection(("127.0.0.1", store.port), timeout=LIMIT):
        pass
    with contextlib.suppress(socket.gaierror):  # the name of a machine need not have an address
        ours = socket.gethostbyname(socket.gethostname())
        if not ours.startswith("127."):
            with pytest.raises(OSError):
                socket.create_connection((ours, store.port), timeout=LIMIT)


def test_gloo_ranks_meet_at_the_store_and_listen_on_loopback_alone(
    launch: Launch, program: Callable[[str], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([os.path.dirname(__file__), *sys.path]))
    command = program(
        """
from test_launch import listening
from recd_plugins.launch.environment import die_with_parent
import torch
import torch.distributed as dist

die_with_parent()
dist.init_process_group("gloo")
total = torch.tensor(float(rank + 1))
dist.all_reduce(total)
tell(total=float(total), listens=sorted(listening("self")))
dist.barrier()
dist.destroy_process_group()
"""
    )
    assert launch(command, 2, threads=1) is None
    for rank in range(2):
        assert written_by(rank) == {"total": 3.0, "listens": ["127.0.0.1"]}


AGENT = """
import subprocess, sys, time

rank = "from recd_plugins.launch.environment import die_with_parent; import time\\n"
rank += "die_with_parent(); print('lives', flush=True); time.sleep(600)"
process = subprocess.Popen([sys.executable, "-c", rank], start_new_session=True)
time.sleep(600)
"""


@ONCE
def test_a_rank_of_torchrun_ends_with_its_agent() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", AGENT],
        env=os.environ | {ELASTIC: "a-job"},
        stdout=subprocess.PIPE,
        text=True,
    ) as agent:
        assert agent.stdout is not None
        assert agent.stdout.readline() == "lives\n"
        agent.kill()  # it cannot end its ranks any more
        began = time.monotonic()
        assert agent.stdout.read() == ""  # the rank, which has the pipe too, is gone
    assert time.monotonic() - began < LIMIT
