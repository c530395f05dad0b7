"""Ladder: two and three gloo ranks. The pool itself: results, failures, deadlines, deaths."""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
import torch.distributed as dist

from recd_plugins.compat.copied_server import copy_as_fork_server
from recd_plugins.testing.gloo import GlooPool, RanksFailed

pytestmark = pytest.mark.slow

pytest_plugins = ["pytester"]


@dataclass(frozen=True)
class Parcel:
    """A class that only this test module has: it travels by reference, both ways."""

    number: int


def add_ranks(parcel: Parcel, *, scale: float) -> tuple[int, Parcel, torch.Tensor]:
    total = torch.full((2,), float(dist.get_rank()))
    dist.all_reduce(total)
    return os.getpid(), Parcel(parcel.number + dist.get_rank()), total * scale


def draw() -> float:
    return torch.rand(()).item()


def fail_on_one() -> None:
    print(f"rank {dist.get_rank()} was here")
    if dist.get_rank() == 1:
        raise LookupError("the one that failed")
    dist.all_reduce(torch.ones(1))


def fail_on_all() -> None:
    raise LookupError(f"rank {dist.get_rank()} has its own trouble")


def hang_on_one() -> None:
    if dist.get_rank() == 1:
        time.sleep(3600)
    dist.all_reduce(torch.ones(1))


def die_on_two() -> None:
    if dist.get_rank() == 1:
        os._exit(7)
    if dist.get_rank() == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.all_reduce(torch.ones(1))


def return_a_lambda() -> object:
    return lambda: None


def listening() -> list[str]:
    """Local addresses on which this process listens, as /proc/net/tcp writes them."""
    inodes = set()
    for fd in Path("/proc/self/fd").iterdir():
        try:
            target = os.readlink(fd)
        except OSError:
            continue
        if target.startswith("socket:["):
            inodes.add(target[8:-1])
    rows = [
        line.split()
        for table in ("tcp", "tcp6")
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]
    ]
    return [row[1].split(":")[0] for row in rows if row[3] == "0A" and row[9] in inodes]


class Late(NamedTuple):
    """A pool whose ranks hang, with a deadline that passes while other tests run."""

    pool: GlooPool
    before: list[int]
    hung: Future[list[None]]


@pytest.fixture(scope="module", autouse=True)
def late() -> Iterator[Late]:
    with GlooPool() as pool, ThreadPoolExecutor(1) as executor:
        before = pool.run(os.getpid)
        yield Late(pool, before, executor.submit(pool.run, hang_on_one, deadline=10.0))


def test_a_call_returns_what_each_rank_returned_and_ranks_are_reused(gloo_pool: GlooPool) -> None:
    first = gloo_pool.run(add_ranks, Parcel(5), scale=2.0)
    again = gloo_pool.run(add_ranks, Parcel(5), scale=2.0)
    assert [parcel for _, parcel, _ in first] == [Parcel(5), Parcel(6)]
    assert all(total.tolist() == [2.0, 2.0] for _, _, total in first)
    assert [pid for pid, _, _ in first] == [pid for pid, _, _ in again]
    assert len({os.getpid(), *(pid for pid, _, _ in first)}) == 3


def test_each_world_size_has_ranks_of_its_own(gloo_pool: GlooPool) -> None:
    """Ranks that are called together have lived through the same calls."""
    pids = [{pid for pid, *_ in gloo_pool.run(add_ranks, Parcel(0), scale=1.0)}]
    for world_size in (1, 3):
        results = gloo_pool.run(add_ranks, Parcel(0), scale=1.0, world_size=world_size)
        pids.append({pid for pid, *_ in results})
        total = float(sum(range(world_size)))
        assert all(summed.tolist() == [total, total] for *_, summed in results)
    assert len(set.union(*pids)) == 2 + 1 + 3


TENSORS = [
    torch.arange(3),
    torch.tensor(1.5),
    torch.tensor([True, False]),
    torch.zeros(0, 2),
    torch.eye(3, dtype=torch.bfloat16),
    torch.arange(6).view(2, 3).T,
    torch.ones(2).expand(3, 2),
    torch.ones(2, requires_grad=True),
    torch.eye(2).to_sparse(),
    torch.nn.Parameter(torch.ones(1)),
]


def with_one_more(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    tensors[0].add_(1)
    return tensors


def test_tensors_travel_as_they_are(gloo_pool: GlooPool) -> None:
    for tensors in gloo_pool.run(with_one_more, TENSORS):
        tensors[0].sub_(1)
        for found, sent in zip(tensors, TENSORS, strict=True):
            assert (type(found), found.dtype, found.layout) == (type(sent), sent.dtype, sent.layout)
            assert found.requires_grad == sent.requires_grad
            assert torch.equal(found.to_dense(), sent.to_dense())


def test_each_call_starts_from_the_same_seed(gloo_pool: GlooPool) -> None:
    torch.manual_seed(0)
    assert gloo_pool.run(draw) == gloo_pool.run(draw) == [draw()] * 2


def test_ranks_listen_on_loopback_alone(gloo_pool: GlooPool) -> None:
    if not Path("/proc/net/tcp").exists():
        pytest.skip("needs /proc/net/tcp, which Linux alone has")
    for addresses in gloo_pool.run(listening):
        assert addresses, "gloo listens for its peers"
        assert all(address.endswith("0100007F") for address in addresses), addresses


def test_the_traceback_of_the_failing_rank_comes_first_with_what_it_printed(
    gloo_pool: GlooPool,
) -> None:
    with pytest.raises(RanksFailed) as caught:
        gloo_pool.run(fail_on_one)
    message = str(caught.value)
    assert next(iter(caught.value.ranks)) == 1
    assert "LookupError: the one that failed" in message
    assert "in fail_on_one" in message
    assert "rank 1 was here" in message
    assert "deadline" not in message  # which nobody waited for


def test_every_rank_is_heard_and_new_ranks_take_over(gloo_pool: GlooPool) -> None:
    before = gloo_pool.run(os.getpid)
    with pytest.raises(RanksFailed, match="failed on 2 of 2 ranks") as caught:
        gloo_pool.run(fail_on_all)
    for rank in range(2):
        assert f"rank {rank} has its own trouble" in caught.value.ranks[rank]
    assert not set(before) & set(gloo_pool.run(os.getpid))


def test_ranks_that_die_are_reported_before_the_deadline(gloo_pool: GlooPool) -> None:
    gloo_pool.run(os.getpid, world_size=3)
    with pytest.raises(RanksFailed) as caught:
        gloo_pool.run(die_on_two, world_size=3)
    assert "deadline" not in str(caught.value)
    assert next(iter(caught.value.ranks)) != 0  # which failed of another's death
    assert "exit code 7" in caught.value.ranks[1]
    assert "SIGKILL" in caught.value.ranks[2]


def test_a_module_that_is_on_no_path_travels_by_its_file(
    gloo_pool: GlooPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As pytest imports with --import-mode=importlib; and two files may bear one name."""
    for answer in (42, 43):
        file = tmp_path / str(answer) / "off_path.py"
        file.parent.mkdir()
        file.write_text(f"def answer():\n    return {answer}\n")
        spec = importlib.util.spec_from_file_location("off_path", file)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, "off_path", module)
        spec.loader.exec_module(module)
        assert gloo_pool.run(module.answer) == [answer] * 2


def test_the_plugin_brings_the_fixture_and_its_deadline(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import time

        def sleep():
            time.sleep(3600)

        def test_sleep(gloo_pool):
            gloo_pool.run(sleep)
        """
    )
    result = pytester.runpytest_inprocess("--gloo-deadline=1")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*deadline of 1 s expired*"])


def test_the_plugin_imports_no_torch() -> None:
    """pytest loads it in every run, of anyone."""
    script = "import sys, recd_plugins.testing.plugin; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script]).returncode == 0


def test_what_cannot_be_pickled_is_named_clearly(gloo_pool: GlooPool) -> None:
    with pytest.raises(Exception, match="define it at the top of its module"):
        gloo_pool.run(lambda: None)
    with pytest.raises(RanksFailed, match="return_a_lambda"):
        gloo_pool.run(return_a_lambda)


def write_pid(folder: Path, seconds: float) -> None:
    (folder / "part").write_text(str(os.getpid()))
    (folder / "part").rename(folder / "pid")
    time.sleep(seconds)


def leave_a_pool_open(folder: Path, seconds: float) -> None:
    copy_as_fork_server()  # a server of its own at once, for what it would import shows nothing
    GlooPool().run(write_pid, folder, seconds, world_size=1)


def test_no_rank_outlives_its_parent(tmp_path: Path) -> None:
    """One parent ends without closing its pool, another is killed while its rank works."""
    context = multiprocessing.get_context("forkserver")
    parents = {}
    for name, seconds in (("ends", 0.0), ("is killed", 3600.0)):
        (tmp_path / name).mkdir()
        target, args = leave_a_pool_open, (tmp_path / name, seconds)
        parents[name] = context.Process(target=target, args=args)
        parents[name].start()
    try:
        parents["ends"].join(300)
        assert parents["ends"].exitcode == 0
        wait_until((tmp_path / "is killed" / "pid").exists, 300)
    finally:
        for parent in parents.values():
            parent.kill()
            parent.join()
    for name in parents:
        rank = int((tmp_path / name / "pid").read_text())
        wait_until(partial(gone, rank), 60)


def test_a_deadline_shows_the_stacks_of_all_and_new_ranks_take_over(late: Late) -> None:
    error = late.hung.exception()
    assert isinstance(error, RanksFailed)
    assert "deadline of 10 s expired" in str(error)
    assert "in hang_on_one" in error.ranks[1]
    assert "in all_reduce" in error.ranks[0]
    assert not set(late.before) & set(late.pool.run(os.getpid))


def gone(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return True
    return status.rsplit(")", 1)[1].split()[0] == "Z"  # nobody may reap it in a container


def wait_until(condition: Callable[[], bool], seconds: float) -> None:
    ends = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < ends, f"not within {seconds} s"
        time.sleep(0.1)
