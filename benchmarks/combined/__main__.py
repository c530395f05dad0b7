"""One model, and what each paper adds to the previous ones, in turns on an emulated cluster.

    python -m benchmarks.combined [rm1 | dlrm] [--mbit 200] [--wide] [--quick] [--json]

Two nodes of two gloo ranks (two of four with `--wide`), with 200 mbit between nodes; needs root.
All sides train in the same ranks, two steps each in turn, of which the second counts, on batches in
memory: batches in the order of time, for plain TorchRec and the papers without sessions, and
clustered ones. Plans use a topology that is measured first, and a profile of the table. A quick run
leaves out the steps between plain TorchRec, RecD and all together, and what `recd advise` says; so
does a run over a slower link, whose steps take several times as long.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from benchmarks.cluster.network import Network, available
from benchmarks.cluster.ranks import EMULATED, ClusterRanks
from benchmarks.combined.additions import (
    ADVISED,
    ALL,
    CLUSTER_MODELS,
    HALF,
    OWN,
    PLAIN,
    PLAIN_HALF,
    SINGLE,
    OnCluster,
)
from benchmarks.combined.on_nodes import NodeSteps, on_nodes
from benchmarks.flexshard.steps import QUICK_ROUNDS
from benchmarks.flexshard.steps import topology as measured_topology
from benchmarks.harness import Figure, Limit, Report, main, spread
from benchmarks.limits import least_step, link_seconds
from benchmarks.recd_train.ranks import TrainSteps
from recd_plugins.planning.cluster.measured_topology import ROUNDS
from recd_plugins.planning.cluster.topology import save_topology

N_NODES, MBIT = 2, 200
LIMIT = 3600.0
NOT_SLOWER = 0.97
"""The least speed of all together, as a share of that of the best single paper: noise allows it."""


def measure(quick: bool, model: str = "rm1", mbit: int = MBIT, wide: bool = False) -> Report:
    chosen = CLUSTER_MODELS[model]
    ranks_per_node = 4 if wide else 2
    scale = chosen.quick_scale if quick else chosen.scale
    settings: dict[str, object] = {
        "cluster": f"{N_NODES} nodes of {ranks_per_node} ranks, {mbit} mbit between them: "
        f"{EMULATED}",
        "model": f"{model} of benchmarks/models, every size times {scale:.3g}; S = 16.5",
    }
    if missing := available():
        settings["cluster"] = f"none, so nothing is measured: it needs {missing}"
        return Report(figures=[], settings=settings)
    few = quick or mbit < MBIT
    rounds, batches = (3, 3) if quick else (5 if few else 9, 8)
    settings |= {
        "rounds": f"{rounds}, in each of which a side makes two steps, and the second counts",
        "batches": f"{batches} a rank, held ready",
    }
    with (
        tempfile.TemporaryDirectory(prefix="recd-bench-") as folder,
        Network(N_NODES, mbit) as network,
        ClusterRanks(network, ranks_per_node) as ranks,
    ):
        found = Path(folder) / "topology.yaml"
        timed = QUICK_ROUNDS if quick else ROUNDS
        save_topology(ranks.run(measured_topology, ranks_per_node, timed)[0], found)
        workload = OnCluster(
            model=model,
            scale=scale,
            folder=Path(folder),
            samples=16_384 if quick else 65_536,
            topology=found,
            ranks=ranks.world_size,
            ranks_per_node=ranks_per_node,
        )
        workload.prepare()
        settings["samples a rank"] = workload.batch_size
        sides = chosen.quick_sides
        if not few:
            advised = workload.advised()
            settings[ADVISED] = ", ".join(advised.kept)
            sides = {**chosen.sides, ADVISED: advised}
        steps = ranks.run(on_nodes, workload, sides, rounds, batches, limit=LIMIT)
    settings["plain TorchRec"] = ", ".join(f"{each} {kind}" for each, kind in chosen.held.items())
    settings["dense gradients out of a node"] = (
        f"{steps[0].dense[False, 'fp32'] / 1e6:.2f} MB a step, "
        f"{steps[0].dense[True, 'fp32'] / 1e6:.2f} where they cross nodes once "
        f"({_once(steps[0])}), half of that in 16 bits"
    )
    at_once = [name for name, side in steps[0].sides.items() if side.both_ways]
    settings["exchanges both ways at once"] = ", ".join(at_once) or "on no side"
    return Report(figures=[*figures(steps, model, mbit, wide)], settings=settings)


def figures(
    ranks: Sequence[NodeSteps], model: str, mbit: int, wide: bool = False
) -> Iterator[Figure]:
    """A row for each side against plain, and rows of all together against the other sides."""
    chosen = CLUSTER_MODELS[model]
    together = "all together" if model == "rm1" else "all together, pooled DLRM"
    if mbit != MBIT:
        together = f"{together}, {mbit} mbit"
    if wide:
        together, chosen = f"{together}, 2 x 4 ranks", chosen.of_any_width
    for name in ranks[0].sides:
        yield _beside_plain(ranks, name)
    for other, title, target in (
        (PLAIN, "plain TorchRec", chosen.faster.get(mbit)),
        (OWN, "TorchRec's own best plan", chosen.faster_than_own),
    ):
        yield _faster(ranks, ALL, other, f"{together}, against {title}", target, mbit)
    alone = (*SINGLE, chosen.recd)
    best = min(alone, key=lambda name: statistics.median(ranks[0].sides[name].seconds))
    title = f"{together}, against the best paper ({best})"
    yield _faster(ranks, ALL, best, title, NOT_SLOWER, mbit)
    in_16 = f"{together}, in 16 bits"
    target = chosen.faster.get(mbit)
    yield _faster(ranks, HALF, PLAIN, f"{in_16}, against plain TorchRec", target, mbit)
    title = f"{in_16}, against plain TorchRec in 16 bits"
    yield _faster(ranks, HALF, PLAIN_HALF, title, None, mbit)
    yield _fewer_bytes(ranks, ALL, together, chosen.fewer_bytes)
    yield _fewer_bytes(ranks, HALF, in_16, chosen.fewer_bytes)
    exact, rounded, others = (ranks[0].sides[name].loss for name in (ALL, HALF, chosen.recd))
    yield Figure(
        name=f"loss, {in_16}, off {together}",
        value=100 * abs(rounded - exact) / exact,
        unit="%",
        baseline=100 * abs(others - exact) / exact,
        at_most=True,
        note=f"{rounded:.5f} for {exact:.5f} after as many steps on the same few batches, and "
        f"{others:.5f} of {chosen.recd}, which has 32 bits",
    )
    held, holds = (_memory(ranks, name) for name in (PLAIN, ALL))
    yield Figure(
        name=f"the step's memory, {together}",
        value=100 * holds / held,
        unit="%",
        baseline=100.0,
        target=chosen.memory,
        at_most=True,
        note=f"{holds / 1e6:.0f} MB of tensors for {held / 1e6:.0f}, on average over ranks",
    )


def _fewer_bytes(ranks: Sequence[NodeSteps], name: str, title: str, target: float | None) -> Figure:
    plain, ours = (_out_of_nodes(ranks, side) for side in (PLAIN, name))
    return Figure(
        name=f"bytes between nodes, {title}",
        value=plain / ours,
        unit="x fewer",
        baseline=1.0,
        target=target,
        note=f"{ours / 1e6:.2f} MB for {plain / 1e6:.2f} out of all nodes, by the links' counters, "
        f"dense gradients left out; {_handed(ranks, name)}",
    )


def _beside_plain(ranks: Sequence[NodeSteps], name: str) -> Figure:
    plain, ours = ranks[0].sides[PLAIN], ranks[0].sides[name]
    gains = _gains(ours, plain)
    before, after = (_out_of_nodes(ranks, side) for side in (PLAIN, name))
    times = [1e3 * statistics.median(one.seconds) for one in (ours, plain)]
    return Figure(
        name=name,
        value=statistics.median(gains),
        unit="x faster",
        baseline=1.0,
        spread=spread(gains),
        note=f"{times[0]:,.0f} ms for {times[1]:,.0f}; "
        f"all ranks compute {1e3 * _computing(ranks, name):,.0f} ms; "
        f"{after / 1e6:.2f} MB out of all nodes, {before / after:.1f}x fewer; "
        f"{100 * _memory(ranks, name) / _memory(ranks, PLAIN):.0f}% of the step's memory; "
        f"{100 * ours.hot:.0f}% of batches hot; loss {ours.loss:.4f}, NE {ours.ne:.4f}",
    )


def _faster(
    ranks: Sequence[NodeSteps], name: str, other: str, title: str, target: float | None, mbit: int
) -> Figure:
    ours, theirs = ranks[0].sides[name], ranks[0].sides[other]
    gains = _gains(ours, theirs)
    cores = len(os.sched_getaffinity(0))
    computing = _computing(ranks, name) / cores
    bound = statistics.median(theirs.seconds) / computing
    return Figure(
        name=title,
        value=statistics.median(gains),
        unit="x faster",
        baseline=1.0,
        target=target,
        limit=_limit(ranks, name, statistics.median(theirs.seconds), mbit, cores),
        spread=spread(gains),
        note=f"{bound:.1f}x is what its computing alone allows, all ranks' on {cores} cores; "
        f"load {os.getloadavg()[0]:.1f}",
    )


def _limit(
    ranks: Sequence[NodeSteps], name: str, theirs: float, mbit: int, cores: int
) -> Limit | None:
    """The limit against a side of `theirs` seconds; None if plain TorchRec's steps were not
    profiled."""
    plain, ours = ranks[0].sides[PLAIN], ranks[0].sides[name]
    worked = {part: time for part, time in plain.parts.items() if part != "exposed"}
    if not worked:
        return None
    share = least_step(worked, ours.deduplicated, ours.dedupe_factor)
    computing = share * _computing(ranks, PLAIN) / cores
    sending = link_seconds(statistics.mean(rank.sides[name].sent for rank in ranks), mbit)
    return Limit(
        value=theirs / max(computing, sending),
        of=f"the longer of what runs beside each other: plain TorchRec's computing, its work on "
        f"deduplicated features over the DedupeFactor {ours.dedupe_factor:.1f}, on {cores} cores "
        f"({1e3 * computing:,.0f} ms), and our bytes on a link of {mbit} mbit "
        f"({1e3 * sending:,.0f} ms); expanding, routing and latencies are left out",
    )


def _computing(ranks: Sequence[NodeSteps], name: str) -> float:
    """Seconds of processor time of a step, over all ranks."""
    return sum(statistics.median(rank.sides[name].cpu) for rank in ranks)


def _gains(ours: TrainSteps, theirs: TrainSteps) -> list[float]:
    return [other / mine for other, mine in zip(theirs.seconds, ours.seconds, strict=True)]


def _out_of_nodes(ranks: Sequence[NodeSteps], name: str) -> float:
    """Bytes of a step that leave all nodes, without the dense parameters' gradients. Ranks of a
    node read the same counter."""
    return N_NODES * statistics.mean(rank.besides(name) for rank in ranks)


def _once(steps: NodeSteps) -> str:
    """The sides whose dense gradients cross nodes once."""
    return ", ".join(name for name, side in steps.sides.items() if side.dense_once) or "on no side"


def _handed(ranks: Sequence[NodeSteps], name: str) -> str:
    """What a rank hands to collectives in a step, on average, without the dense gradients. It
    includes what stays on the rank."""
    megabytes = dict.fromkeys(("ids", "forward", "backward", "replicas"), 0.0)
    for rank in ranks:
        for collective, phases in rank.sides[name].traffic.items():
            for phase, size in phases.items():
                part = phase if collective == "all_to_all" else "replicas"
                megabytes[part] += size / len(ranks) / 1e6
        dense = sum(rank.sides[PLAIN].traffic.get("all_reduce", {}).values())
        megabytes["replicas"] -= dense / len(ranks) / 1e6
    ids, rows, gradients, replicas = megabytes.values()
    return (
        f"a rank hands all-to-alls {ids:.2f} MB of ids and lengths, {rows:.2f} of rows, sums and "
        f"marks of replicas, {gradients:.2f} of gradients, and other collectives {replicas:.2f} of "
        "replicas"
    )


def _memory(ranks: Sequence[NodeSteps], name: str) -> float:
    return statistics.mean(size for rank in ranks for size in rank.sides[name].memory)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("model", nargs="?", choices=sorted(CLUSTER_MODELS), default="rm1")
    parser.add_argument("--mbit", type=int, default=MBIT)
    parser.add_argument("--wide", action="store_true")
    arguments, rest = parser.parse_known_args()
    run = partial(measure, model=arguments.model, mbit=arguments.mbit, wide=arguments.wide)
    main("combined", run, rest)
