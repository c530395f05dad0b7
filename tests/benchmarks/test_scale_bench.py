"""Rung 1 (values): modelled steps, the simulation that checks them, and the papers' figures."""

from __future__ import annotations

import statistics
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.scale import papers
from benchmarks.scale.__main__ import Modelled, deviations, modelled
from benchmarks.scale.devices import A100, H100
from benchmarks.scale.emulated_step import HISTORY, EmulatedJob, EmulatedModel
from benchmarks.scale.frontier import curves
from benchmarks.scale.modelled import MODELS, flops_of_transformer, job
from benchmarks.scale.page import paper_table, step_table, written
from benchmarks.scale.sides import PLANS, modelled_step
from benchmarks.scale.simulation import Event, simulate, simulated_ms
from benchmarks.scale.validation import QUICK, SETTINGS
from recd_plugins.advise.computed import on_held_embeddings
from recd_plugins.planning.cluster.topology import GB
from recd_plugins.planning.step.compute import Compute


def test_a_simulation_has_one_event_at_a_time_on_each_resource() -> None:
    first, second = Event(3, [("processor", 0)]), Event(2, [("processor", 0)])
    beside = Event(4, [("link", 0)])
    after = Event(1, [("processor", 0), ("processor", 1)], [first, beside])
    assert simulate([first, second, beside, after]) == 6
    assert (first.ends, second.ends, beside.ends, after.ends) == (3, 5, 4, 6)


def test_an_event_does_not_keep_a_resource_that_it_waits_for() -> None:
    long, short = Event(10, [("link", 0)]), Event(1, [("processor", 0)])
    both = Event(1, [("link", 0), ("processor", 0)], [short])
    meanwhile = Event(2, [("processor", 0)], [Event(2)])
    events = [long, short, both, *meanwhile.after, meanwhile]
    assert simulate(events) == 11
    assert meanwhile.ends == 4


def test_a_step_that_is_all_computing_takes_as_long_simulated() -> None:
    step = modelled_step(job("RM-1", A100), A100.cluster(4), "row-wise")
    cluster = replace(
        A100.cluster(4), a2a_global=replace(A100.cluster(4).a2a_global, gbps=1e9, latency_ms=0)
    )
    prices = replace(step.ledger.prices, cluster=cluster)
    computing = replace(
        step, ledger=replace(step.ledger, prices=prices), compute=Compute(fixed=0.01, dense=1e-5)
    )
    assert computing.ms == pytest.approx(10 + 4096 * 0.01 + computing.parts["lookups"], rel=1e-4)
    assert simulated_ms(computing) == pytest.approx(computing.ms, rel=1e-3)


@pytest.fixture(scope="module")
def every() -> list[Modelled]:
    return list(modelled(("RM2", "RM-1"), [A100], (4, 64), strong=False))


def test_the_closed_form_is_within_a_tenth_of_the_simulation(every: list[Modelled]) -> None:
    off = [abs(value) for value in deviations(every)]
    assert max(off) <= 10
    assert statistics.median(off) <= 3


def test_a_rank_that_is_late_makes_all_wait(every: list[Modelled]) -> None:
    for one in every[:3]:
        assert simulated_ms(one.step, jitter=0.1) > simulated_ms(one.step)


def test_all_together_is_never_behind_any_paper(every: list[Modelled]) -> None:
    for start in range(0, len(every), len(PLANS)):
        *others, together = every[start : start + len(PLANS)]
        assert all(together.step.ms <= other.step.ms for other in others)


def test_more_nodes_train_more_samples_and_a_faster_cluster_more_yet(every: list[Modelled]) -> None:
    by = {(one.model, one.n_nodes, one.plan): one.step for one in every if one.weak}
    for name in ("RM2", "RM-1"):
        few, many = (by[name, n_nodes, "row-wise"] for n_nodes in (4, 64))
        assert few.samples_per_second < many.samples_per_second < 16 * few.samples_per_second
        faster = modelled_step(job(name, H100), H100.cluster(4), "row-wise")
        assert faster.ms < few.ms


def test_a_data_sheet_prices_operations_and_bytes() -> None:
    assert A100.seconds(156e12 * 0.4, 0) == pytest.approx(1)
    assert A100.seconds(0, 2039e9 * 0.7) == pytest.approx(1)
    cluster = A100.cluster(4)
    assert (cluster.n_nodes, cluster.ranks_per_node) == (4, 8)
    assert cluster.gather_gbps == pytest.approx(2039e9 / 2 / GB)
    assert A100.memory == 80 * GB


def test_a_transformer_is_counted_as_torch_counts_it() -> None:
    layer = nn.TransformerEncoderLayer(16, 2, 64, batch_first=True)
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        layer(torch.randn(3, 10, 16))
    assert counter.get_total_flops() == 3 * flops_of_transformer(10, 16)


def test_unique_samples_take_the_share_that_sessions_leave() -> None:
    recd = modelled_step(job("RM1", A100), A100.cluster(4), "RecD")
    plain = modelled_step(job("RM1", A100), A100.cluster(4), "row-wise")
    share = 1 - (1 - 1 / 16.5) * 0.95
    assert recd.parts["pooling"] == pytest.approx(share * plain.parts["pooling"])
    assert recd.parts["dense"] == plain.parts["dense"]
    assert recd.memory < plain.memory


@pytest.mark.parametrize("name", MODELS)
def test_each_model_has_a_step(name: str) -> None:
    step = modelled_step(job(name, A100), A100.cluster(4), "row-wise")
    assert step.ms > 0
    assert step.memory > 0


def test_the_frontier_begins_without_a_replica_and_ends_where_these_save_time() -> None:
    whole, cluster = job("RM-1", A100), A100.cluster(4)
    found = curves(whole, cluster)
    assert found["tiers"][0].ms == modelled_step(whole, cluster, "row-wise").ms
    assert all(steps[-1].ms < steps[0].ms for steps in found.values())


def test_each_figure_of_the_papers_is_there_and_each_miss_has_a_cause() -> None:
    rows = [*papers.recd(), *papers.flexshard(), *papers.scars()]
    where = " ".join(row.where for row in rows)
    for name in ("figures 7, 9", "figure 8", "table 2", "table 3", "table 4", "figures 7, 10"):
        assert name in where
    for name in ("tables 5, 6", "section 6.3", "tables I, II", "table III", "table IV", "table V"):
        assert name in where
    assert all(row.cause for row in rows)
    used = [abs(row.deviation) for row in rows if row.used and row.deviation is not None]
    assert max(used) <= 3
    free = [abs(row.deviation) for row in rows if not row.used and row.deviation is not None]
    assert statistics.median(free) <= 8


def test_the_page_has_what_the_suite_prints() -> None:
    taken = {"name": "A, table 1: x", "value": 1.1, "unit": "x", "baseline": 1.0, "note": "used; y"}
    free = taken | {"note": "z"}
    unknown = taken | {"value": 2.0, "baseline": None, "note": "nobody knows"}
    table = paper_table([taken, free, unknown])
    assert table.splitlines()[2:] == [
        "| A, table 1: x | 1 x | 1.1 | taken | y |",
        "| A, table 1: x | 1 x | 1.1 | +10% | z |",
        "| A, table 1: x | 2 x | no price |  | nobody knows |",
    ]
    step = {"value": 1.2e6, "note": "1 ms, 1.00x; 3.5 GiB a rank; 0 GiB between nodes"}
    steps = [step | {"name": f"modelled: RM1, a100_dgx, 4x8, {plan}"} for plan in ("a", "b")]
    assert step_table(steps).endswith("| RM1, a100_dgx, 4x8 | 1,200k, 3.5 GiB | 1,200k, 3.5 GiB |")
    page = "before\n<!-- t -->\nold\n<!-- end of t -->\nafter"
    assert written(page, "t", "new") == page.replace("old", "new")


def test_the_settings_vary_each_factor_on_its_own() -> None:
    assert len(SETTINGS) == 24
    assert len({str(one) for one in SETTINGS}) == 24
    factors = {
        "shape": [(one.n_nodes, one.ranks_per_node) for one in SETTINGS],
        "link": [one.mbit for one in SETTINGS],
        "skew": [one.job.exponent for one in SETTINGS],
        "sessions": [one.job.samples_per_session for one in SETTINGS],
        "pooled": [one.job.pooled for one in SETTINGS],
        "placed": [one.placed for one in SETTINGS],
    }
    for name, values in factors.items():
        assert len(set(values)) >= 2, name
        for other, beside in factors.items():
            pairs = set(zip(values, beside, strict=True))
            assert name == other or len(pairs) > max(len(set(values)), len(set(beside)))
    assert len({(one.n_nodes, one.ranks_per_node) for one in QUICK}) == 1


@pytest.mark.parametrize("pooled", [False, True])
def test_an_emulated_batch_has_the_shares_that_its_tables_have(pooled: bool) -> None:
    made = EmulatedJob(
        exponent=1.05, samples_per_session=8, pooled=pooled, batch_size=30, num_rows=500, lookups=3
    )
    batch = made.batch(np.random.default_rng(0), dedup=True)
    assert made.share == 4 / 30
    assert list(batch.dedup.unique_counts) == [4]
    history = made.tables()[HISTORY]
    assert history.rows.lookups == pytest.approx(3 * 4 / 30)
    assert history.bags == (4 / 30 if pooled else 0)
    plain = made.batch(np.random.default_rng(0), dedup=False)
    loss, _ = on_held_embeddings(EmulatedModel(made), torch.device("cpu"))(plain)
    assert loss.requires_grad
