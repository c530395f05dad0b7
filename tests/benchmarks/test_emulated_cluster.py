"""Rung 4 (ranks in nodes, as root): links that are as slow as said, and count what they carry."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from benchmarks.cluster.network import Network, available, bytes_sent
from benchmarks.cluster.ranks import ClusterRanks, processors_of
from recd_plugins.launch.ranks import RanksFailed

MBIT = 200
SIZE = 8_000_000


@pytest.fixture(scope="module")
def network() -> Iterator[Network]:
    if missing := available():
        pytest.skip(f"no emulated cluster: it needs {missing}")
    with Network(2, MBIT) as network:
        yield network


def all_reduce(count: int) -> tuple[int, float, float]:
    """Bytes out of this node, seconds, and what the ranks' numbers sum to."""
    numbers = torch.full((count,), dist.get_rank() + 1.0)
    sent = bytes_sent()  # before the barrier, behind which others begin
    dist.barrier()
    begun = time.perf_counter()
    dist.all_reduce(numbers)
    dist.barrier()
    return bytes_sent() - sent, time.perf_counter() - begun, float(numbers.mean())


def congestion_control() -> str:
    return Path("/proc/sys/net/ipv4/tcp_congestion_control").read_text().strip()


def fail_on_rank_1() -> None:
    if dist.get_rank() == 1:
        raise ValueError("rank 1 says no")


def processors() -> set[int]:
    return os.sched_getaffinity(0)


def namespaces() -> list[str]:
    listed = subprocess.run(["ip", "netns", "list"], check=True, capture_output=True, text=True)
    return [line.split()[0] for line in listed.stdout.splitlines() if line]


def test_links_count_what_crosses_and_take_their_time(network: Network) -> None:
    with ClusterRanks(network, 1) as ranks:
        for sent, seconds, mean in ranks.run(all_reduce, SIZE // 4):
            # Of two nodes each sends half of the sum's parts, then half of the sums.
            assert sent == pytest.approx(SIZE, rel=0.03)
            # No less, however busy the machine is; a burst is through at once.
            assert seconds > SIZE * 8 / (MBIT * 1e6) * 0.9
            assert mean == 3
        network.shape(MBIT // 2)
        for _, seconds, _ in ranks.run(all_reduce, SIZE // 4):
            assert seconds > SIZE * 8 / (MBIT / 2 * 1e6) * 0.9
        # Whatever the machine's own: BBR would leave links idle.
        assert ranks.run(congestion_control) == ["reno", "reno"]
        with pytest.raises(RanksFailed, match="rank 1 says no"):
            ranks.run(fail_on_rank_1)


@pytest.mark.parametrize(
    ("processors", "of_ranks"),
    [
        ([0, 1], [[0], [0], [1], [1]]),
        ([4, 5, 6, 7, 8, 9, 10, 11], [[4, 5], [6, 7], [8, 9], [10, 11]]),
        ([3], [[3]] * 4),
        ([0, 1, 2], [[0, 1, 2]] * 4),
    ],
)
def test_nodes_have_processors_of_their_own(
    monkeypatch: pytest.MonkeyPatch, processors: list[int], of_ranks: list[list[int]]
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(processors))
    assert [processors_of(rank, 4) for rank in range(4)] == of_ranks


def test_ranks_of_a_node_do_not_cross_its_link(network: Network) -> None:
    with ClusterRanks(network, 2) as ranks:
        assert ranks.world_size == 4
        sent = [one for one, _, _ in ranks.run(all_reduce, SIZE // 4)]
        of_ranks = ranks.run(processors)
    if len(os.sched_getaffinity(0)) % 2 == 0:
        assert not (of_ranks[0] | of_ranks[1]) & (of_ranks[2] | of_ranks[3])
    # A ring over four ranks crosses between the nodes once each way: 2 (U - 1) / U.
    assert sent == pytest.approx([SIZE * 1.5] * 4, rel=0.03)


def test_a_killed_run_leaves_nothing_for_long(network: Network) -> None:
    ours = set(namespaces())
    make = "from benchmarks.cluster.network import Network; import os, signal\n"
    kill = "Network(2, 100).__enter__(); os.kill(os.getpid(), signal.SIGKILL)"
    killed = subprocess.Popen([sys.executable, "-c", make + kill], cwd=Path.cwd())
    assert killed.wait() == -signal.SIGKILL
    left = {name for name in namespaces() if f"-{killed.pid}-" in name}
    assert len(left) == 3
    with Network(1, 100) as another:
        assert another.namespace(0) in namespaces()
        assert not left & set(namespaces())
    assert set(namespaces()) >= ours
    assert another.namespace(0) not in namespaces()
    assert f"-{os.getpid()}-" in network.namespace(0)
