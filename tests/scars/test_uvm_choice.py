"""Ladder: hits of caches as values, against counting and a simulation; kernels, by brute force."""

from __future__ import annotations

from collections import OrderedDict
from itertools import product

import numpy as np
import pytest
from drawn import at_most
from hypothesis import given, settings
from hypothesis import strategies as st

from recd_plugins.planning.access.distribution import RowDistribution, appears
from recd_plugins.planning.access.parametric import uniform, zipf
from recd_plugins.registry.settings import OptimizerSettings
from recd_scars.uvm.hits import HitCurve, TableShards, hit_curve
from recd_scars.uvm.kernel_bytes import KernelBytes
from recd_scars.uvm.kernel_choice import (
    CACHE_TAKES,
    NOTHING,
    HostTable,
    KernelChoice,
    _hull,
    _Point,
    _within,
    beats_chance,
    choose,
)

ROW_WISE = OptimizerSettings(tables="rowwise_adagrad").fused_params()


def counted(rows: int, ranks_apart: int = 1) -> RowDistribution:
    """Zipf, every row its own band; the n-th hottest is row n * ranks_apart, modulo the rows."""
    p = 0.9 / np.arange(1, rows + 1)
    ids = np.arange(rows) * ranks_apart % rows
    return RowDistribution.of(np.ones(rows, np.int64), p, ids=ids)


@pytest.mark.parametrize("apart", [1, 7])
def test_a_least_frequently_used_cache_has_the_hottest_rows_of_each_rank(apart: int) -> None:
    rows = counted(40, apart)
    assert rows.ids is not None
    shards = TableShards.of(rows, replicated=5, world_size=3, samples=4)
    curve = hit_curve(shards, "lfu")
    q = 1 - (1 - rows.presence) ** 4
    of_rank = [
        [q[n] for n in range(5, 40) if rows.ids[n] // 14 == rank]  # 40 rows: 14, 14 and 12
        for rank in range(3)
    ]
    assert shards.rows == pytest.approx(q[5:].sum())
    assert shards.accessed == max(map(len, of_rank))
    for slots in range(15):
        expected = sum(sum(sorted(own, reverse=True)[:slots]) for own in of_rank)
        assert curve.at(slots) == pytest.approx(expected)


def test_rows_of_a_formula_are_spread_over_the_ranks() -> None:
    law = zipf(1_000, 5.0, 1.1)
    shards = TableShards.of(law, replicated=100, world_size=4, samples=64)
    assert shards.counts.sum() == pytest.approx(900)
    assert np.ptp(shards.counts.sum(axis=1)) == pytest.approx(0)
    rest = law.part(100, 1_000)
    assert shards.rows == pytest.approx(rest.appearing(64))


def test_chances_approximation_is_near_a_simulated_cache() -> None:
    rows = counted(300)
    curve = hit_curve(TableShards.of(rows, replicated=0, world_size=1, samples=3), "lru")
    q = appears(rows.presence, 3)
    draw, steps, warm = np.random.default_rng(0), 4_000, 1_000
    for size in (30, 60, 200):
        cache: OrderedDict[int, None] = OrderedDict()
        hits = asked = 0
        for step in range(steps):
            rows_of_step = draw.permutation(np.flatnonzero(draw.random(300) < q)).tolist()
            if step >= warm:
                asked, hits = asked + len(rows_of_step), hits + len(cache.keys() & rows_of_step)
            for row in rows_of_step:
                cache[row] = None
                cache.move_to_end(row)
            while len(cache) > size:
                cache.popitem(last=False)
        assert hits / asked == pytest.approx(curve.at(size) / q.sum(), abs=0.02)


@given(
    st.integers(1, 3_000), st.floats(0.6, 1.6), st.sampled_from(["lru", "lfu"]), st.integers(1, 8)
)
@settings(max_examples=at_most(15), deadline=None)
def test_a_larger_cache_hits_more_by_less_and_less(
    rows: int, exponent: float, algorithm: str, world_size: int
) -> None:
    shards = TableShards.of(
        zipf(rows, 4.0, exponent), replicated=rows // 9, world_size=world_size, samples=50
    )
    curve = hit_curve(shards, algorithm)  # type: ignore[arg-type]
    gains = np.diff(curve.hits) / np.diff(curve.slots)
    assert np.all(gains >= 0)
    assert np.all(np.diff(gains) <= 1e-6)
    assert curve.at(rows) == pytest.approx(shards.rows, rel=1e-3)


def table(
    name: str, rows: RowDistribution, *, dim: int = 16, world_size: int = 1, algorithm: str = "lfu"
) -> HostTable:
    shards = TableShards.of(rows, replicated=0, world_size=world_size, samples=8 * world_size)
    return HostTable(
        name=name,
        bytes=KernelBytes.of(
            num_rows=-(-rows.num_rows // world_size),
            dim=dim,
            widest=dim,
            element_bytes=4,
            fused=ROW_WISE,
            algorithm=algorithm,  # type: ignore[arg-type]
        ),
        curve=hit_curve(shards, algorithm),  # type: ignore[arg-type]
        rows=shards.rows,
        accessed=shards.accessed,
    )


def test_what_kernels_keep_where() -> None:
    """As fbgemm's comments and TorchRec's estimates have it: rows * (4 + 16 f) beside the slots."""
    own = table("t", uniform(1_000, 2.0), algorithm="lru").bytes
    assert own.whole == 1_000 * (64 + 4)
    assert own.resident == 1_000 * 4
    assert own.host == 1_000 * 64
    assert own.cache(200) == 200 * 64 + 1_000 * (4 + 16 * 0.2)
    lfu = table("t", uniform(1_000, 2.0), algorithm="lfu").bytes
    assert lfu.cache(200) == 200 * (64 + 8) + 1_000 * (4 + 8)
    elementwise = OptimizerSettings(tables="adagrad").fused_params()
    state = KernelBytes.of(
        num_rows=10, dim=16, widest=32, element_bytes=4, fused=elementwise, algorithm="lru"
    )
    assert (state.resident, state.host, state.slot) == (0, 10 * 128, 128 + 16)


def saved(tables: list[HostTable], chosen: dict[str, KernelChoice]) -> float:
    """Bytes of a step."""
    each = {one.name: one for one in tables}
    return sum(
        {
            "fused": each[name].rows * (1 + CACHE_TAKES),
            "fused_uvm_caching": each[name].curve.at(choice.slots),
            "fused_uvm": 0.0,
        }[choice.kernel]
        * each[name].bytes.row
        for name, choice in chosen.items()
    )


def ways(one: HostTable) -> list[tuple[float, float]]:
    """(bytes, what they save) of every way to serve a table, pays or not."""
    whole = one.bytes.whole - one.bytes.resident
    found = [(0.0, 0.0), (whole, one.rows * one.bytes.row * (1 + CACHE_TAKES))]
    caches = range(32, one.most_slots + 1, 32)
    return found + [(one.bytes.cache(n), one.curve.at(n) * one.bytes.row) for n in caches]


@pytest.mark.parametrize("seed", range(8))
def test_no_other_way_to_serve_the_tables_saves_more(seed: int) -> None:
    draw = np.random.default_rng(seed)
    tables = [
        table(
            str(n),
            zipf(int(draw.integers(200, 900)), draw.uniform(1, 6), draw.uniform(0.8, 1.5)),
            dim=int(draw.choice([16, 32, 64])),
        )
        for n in range(3)
    ]
    total = sum(one.bytes.whole for one in tables)
    for share in (0.1, 0.25, 0.5, 0.8):
        capacity = share * total
        chosen = choose(tables, capacity)
        taken = sum(one.bytes.resident for one in tables)
        assert sum(choice.device_bytes for choice in chosen.values()) - taken <= capacity
        best = max(
            sum(saves for _, saves in way)
            for way in product(*map(ways, tables))
            if sum(cost for cost, _ in way) <= capacity
        )
        # What is lost is at most the one step that did not fit as a whole.
        assert saved(tables, chosen) >= 0.97 * best, (share, chosen)


def test_the_hull_is_that_of_the_points_which_save_more_for_more() -> None:
    def point(cost: float, saves: float) -> _Point:
        return _Point(cost, saves, "fused_uvm_caching")

    kept = [NOTHING, point(1, 5), point(3, 7), point(6, 8)]
    # As dear and worse; dearer and worse; between two that are better together; less by the byte.
    left = [point(1, 3), point(2, 4), point(3, 5), point(2, 5.5), point(4, 7)]
    assert _hull([*kept, *left]) == kept
    assert _hull([*left[::-1], *kept[::-1]]) == kept
    assert _hull([NOTHING, point(2, 1), point(3, 4)]) == [NOTHING, point(3, 4)]


def known(name: str, hits: dict[int, float], *, row: int = 10) -> HostTable:
    """Of 1,000 rows of so many bytes, a slot as many, nothing for the index; 500 asked a step."""
    return HostTable(
        name=name,
        bytes=KernelBytes(
            num_rows=1_000, row=row, state=0, state_on_device=False, slot=row, index=0
        ),
        curve=HitCurve(slots=np.array([0, *hits]), hits=np.array([0.0, *hits.values()])),
        rows=500.0,
        accessed=960.0,
    )


def test_a_cache_is_as_large_as_there_is_room_for() -> None:
    one = known("t", {320: 450.0, 960: 500.0})
    assert _within(one, 10 * 96 - 1) == _Point(640, 90 * 10, "fused_uvm_caching", 64)
    assert _within(one, 10 * 31) is None
    assert choose([one], 10 * 96 + 5)["t"] == KernelChoice(
        kernel="fused_uvm_caching",
        slots=96,
        load_factor=0.096,
        hit_rate=135 / 500,
        device_bytes=960,
        host_bytes=10_000,
    )


def test_what_a_whole_table_gives_back_is_anothers() -> None:
    """The small one is had whole in the place of its cache; what is left after that is 3 sets."""
    small, large = known("small", {320: 450.0, 960: 500.0}, row=2), known("large", {960: 500.0})
    room = small.bytes.whole + 10 * 96 + 5
    chosen = choose([small, large], room)
    assert chosen["small"].kernel == "fused"
    assert sum(choice.device_bytes for choice in chosen.values()) <= room


def test_the_device_has_what_fits_it_whole() -> None:
    tables = [table("skewed", zipf(2_000, 4.0, 1.2)), table("even", uniform(2_000, 4.0))]
    whole = sum(one.bytes.whole - one.bytes.resident for one in tables)
    for choice in choose(tables, whole).values():
        assert (choice.kernel, choice.hit_rate, choice.load_factor) == ("fused", 1.0, None)
        assert choice.host_bytes == 0
    nothing = choose(tables, -1.0)
    assert {choice.kernel for choice in nothing.values()} == {"fused_uvm"}
    assert nothing["even"].device_bytes == 2_000 * 4  # the row-wise state
    assert nothing["even"].host_bytes == 2_000 * 64


def test_rows_that_are_all_alike_are_not_cached_and_leave_the_memory_to_others() -> None:
    tables = [table("skewed", zipf(20_000, 4.0, 1.2)), table("even", uniform(20_000, 400.0))]
    chosen = choose(tables, 0.3 * tables[0].bytes.whole)
    assert chosen["even"].kernel == "fused_uvm"
    alone = choose(tables[:1], 0.3 * tables[0].bytes.whole)
    assert chosen["skewed"] == alone["skewed"]
    assert chosen["skewed"].kernel == "fused_uvm_caching"
    assert chosen["skewed"].hit_rate > 0.5 > 0.3 > (chosen["skewed"].load_factor or 1)


@pytest.mark.parametrize(
    ("factor", "hits", "does"), [(0.2, 0.2, 0), (0.2, 0.5, 1), (0.95, 0.99, 1)]
)
def test_a_cache_pays_that_finds_more_than_chance(factor: float, hits: float, does: int) -> None:
    choice = KernelChoice(
        kernel="fused_uvm_caching",
        slots=32,
        load_factor=factor,
        hit_rate=hits,
        device_bytes=0,
        host_bytes=0,
    )
    assert beats_chance(choice) == does


@pytest.mark.parametrize("algorithm", ["lru", "lfu"])
def test_a_load_factor_is_one_that_torchrec_takes(algorithm: str) -> None:
    seen = RowDistribution.of([100, 9_900], [0.2, 0.0])
    one = table("t", seen, algorithm=algorithm)
    assert one.most_slots == 128  # what was ever looked up, in sets of 32
    whole = one.bytes.whole - one.bytes.resident
    choice = choose([one], whole - 1)["t"]
    assert (choice.kernel, choice.slots, choice.load_factor) == ("fused_uvm_caching", 128, 0.0128)
    assert choice.hit_rate == pytest.approx(1, abs=1e-3)
    small = table("t", zipf(33, 2.0, 1.2), algorithm=algorithm)
    assert small.most_slots == 32
    assert table("t", zipf(32, 2.0, 1.2)).most_slots == 0
    little = min(small.bytes.cache(32), small.bytes.whole - small.bytes.resident) - 1
    assert choose([small], little)["t"].kernel == "fused_uvm"


def test_a_look_up_in_a_cache_takes_what_torchrecs_bandwidths_say() -> None:
    """Of a fetch from the host, by what the planner takes an A100 to do with these kernels."""
    fetched, looked_up = 10 / 32 - 10 / 897, 10 / 897 - 1 / 897
    assert pytest.approx(looked_up / fetched, rel=2e-3) == CACHE_TAKES


def test_a_table_that_nobody_looks_up_has_no_cache() -> None:
    never = HostTable(
        name="t",
        bytes=table("t", uniform(1_000, 1.0)).bytes,
        curve=HitCurve(slots=np.zeros(1), hits=np.zeros(1)),
        rows=0.0,
        accessed=0.0,
    )
    assert choose([never], never.bytes.whole / 2)["t"].kernel == "fused_uvm"
    assert choose([never], never.bytes.whole)["t"].kernel == "fused"
