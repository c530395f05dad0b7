"""Property tests: stack distances and synthetic traces against the paper's own pseudocode."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from drawn import at_most
from hit_rates import hit_rates
from hypothesis import given, settings
from hypothesis import strategies as st

from recd_dlrm.datasets.trace.lru_stack import draw_accesses, full_stack
from recd_dlrm.datasets.trace.stack_distance import (
    StackProfile,
    SyntheticTrace,
    adjusted_floor,
    profile,
)
from recd_plugins.errors import DataError

ACCESSES = 100_000

traces = st.lists(st.integers(-3, 12), min_size=1, max_size=120)
seeds = st.integers(0, 2**32)
floors = st.none() | st.floats(0, 1)
# The first example pays for numba's compiler, so no deadline fits all.
relaxed = settings(deadline=None, max_examples=at_most(150))


def paper_profile(tr: Sequence[int]) -> tuple[list[int], list[int]]:
    """Algorithm 1, line by line: u and each access's d."""
    s: list[int] = []  # the top is the last
    u: list[int] = []
    distances = []
    for a in tr:
        d = len(s) - s.index(a) if a in s else 0
        if d == 0:
            u.append(a)
        else:
            s.pop(len(s) - d)
        distances.append(d)
        s.append(a)
    return u, distances


def paper_generate(
    u: Sequence[int], p: dict[int, float], shares: Sequence[float], floor: float | None
) -> list[int]:
    """Algorithm 2, line by line, with the text's adjustment where there is a floor."""
    u = list(u)
    tr = []
    s = 0
    until_seen = once_seen = p
    if floor is not None and len(p) > 1:
        raised = max(p[0], floor)
        scale = (1 - raised) / (1 - p[0])
        until_seen = {d: raised if d == 0 else q * scale for d, q in p.items()}
        once_seen = {d: 0.0 if d == 0 else q for d, q in p.items()}
    for share in shares:
        d = sample_with_support(until_seen if s < len(u) else once_seen, s, share)
        if d == 0:
            a = u.pop(0)
            s += 1
        else:
            a = u.pop(-d)
        u.append(a)
        tr.append(a)
    return tr


def sample_with_support(p: dict[int, float], s: int, share: float) -> int:
    total, sums = 0.0, []
    for d, q in p.items():
        if d <= s:
            total += q
            sums.append((total, d))
    return next((d for below, d in sums if below > share * total), sums[-1][1])


def generate(
    profile: StackProfile, length: int, seed: int, floor: float | None = None
) -> np.ndarray:
    """A whole trace: ids [length]."""
    return SyntheticTrace(profile, seed, floor).take(length)


def lru_hits(trace: Sequence[int], size: int) -> float:
    cache: OrderedDict[int, None] = OrderedDict()
    hits = 0
    for a in trace:
        hits += a in cache
        cache[a] = None
        cache.move_to_end(a)
        if len(cache) > size:
            cache.popitem(last=False)
    return hits / len(trace)


@relaxed
@given(traces)
def test_profile_is_algorithm_1(trace: list[int]) -> None:
    unique, distances = paper_profile(trace)
    found = profile(trace)
    assert found.unique.tolist() == unique
    counts = np.bincount(distances)
    assert found.distances.tolist() == np.flatnonzero(counts).tolist()
    assert found.probabilities == pytest.approx(counts[counts > 0] / len(trace))


@relaxed
@given(traces, st.integers(0, 300), seeds, floors)
def test_generate_is_algorithm_2(
    trace: list[int], length: int, seed: int, floor: float | None
) -> None:
    found = profile(trace)
    p = dict(zip(found.distances.tolist(), found.probabilities.tolist(), strict=True))
    shares = np.random.default_rng(seed).random(length).tolist()
    expected = paper_generate(found.unique.tolist(), p, shares, floor)
    assert generate(found, length, seed, floor).tolist() == expected


@relaxed
@given(traces, seeds, floors, st.lists(st.integers(0, 70), max_size=4))
def test_parts_make_the_whole(
    trace: list[int], seed: int, floor: float | None, parts: list[int]
) -> None:
    source = SyntheticTrace(profile(trace), seed, floor)
    taken = [access for part in parts for access in source.take(part).tolist()]
    assert taken == generate(profile(trace), sum(parts), seed, floor).tolist()


@relaxed
@given(traces)
def test_hit_curve_is_that_of_an_lru_cache(trace: list[int]) -> None:
    sizes = [1, 2, 3, 5, 20]
    assert hit_rates(profile(trace), sizes) == pytest.approx(
        [lru_hits(trace, size) for size in sizes]
    )
    assert hit_rates(profile(trace), 0) == 0


def kinds() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(7)
    weights = 1 / np.arange(1, 20_001)
    steep = weights**1.6
    return {
        "uniform": rng.integers(1, 101, ACCESSES),
        "zipf": rng.choice(20_000, ACCESSES, p=weights / weights.sum()),
        "steep zipf": rng.choice(20_000, ACCESSES, p=steep / steep.sum()),
        "loop": np.arange(ACCESSES) % 100,
        "drift": rng.integers(0, 200, ACCESSES) + np.arange(ACCESSES) // 100,
        "one id": np.zeros(ACCESSES, np.int64),
        "no repeats": rng.permutation(ACCESSES),
    }


def total_variation(one: StackProfile, other: StackProfile) -> float:
    p = np.zeros((2, 1 + max(one.distances[-1], other.distances[-1])))
    p[0, one.distances], p[1, other.distances] = one.probabilities, other.probabilities
    return float(np.abs(p[0] - p[1]).sum() / 2)


def variation_bound(original: StackProfile, trace: np.ndarray) -> float:
    """What the total variation exceeds once in a million seeds.

    Once all ids have been seen, distances are independent draws from p without 0, of which
    there are as many in both traces. N such draws are off by half Σ sqrt(p (1 - p) / N) on
    average, and by sqrt(ln(10^6) / 2N) more once in a million (McDiarmid). The repeats
    before that come from a narrower support, so each may count in full.
    """
    p, length = original.probabilities, len(trace)
    repeats_before = np.unique(trace, return_index=True)[1].max() + 1 - len(original.unique)
    off = np.sqrt(p * (1 - p) / length).sum() / 2
    return float(off + np.sqrt(np.log(1e6) / (2 * length)) + repeats_before / length)


@pytest.mark.parametrize("kind", kinds())
def test_the_adjusted_trace_is_like_the_original(kind: str) -> None:
    original = profile(kinds()[kind])
    trace = generate(original, ACCESSES, 3, adjusted_floor(original, ACCESSES))
    found = profile(trace)

    assert found.unique.tolist() == original.unique.tolist()  # all ids, first seen in order
    bound = variation_bound(original, trace)
    assert bound < 0.2
    assert total_variation(original, found) <= bound
    sizes = np.unique(np.geomspace(1, len(original.unique), 40).astype(np.int64))
    assert np.abs(hit_rates(original, sizes) - hit_rates(found, sizes)).max() <= 0.01


def test_figure_3_the_adjusted_trace_is_closer_than_the_printed_one() -> None:
    original = profile(kinds()["uniform"])
    floor = adjusted_floor(original, ACCESSES)
    printed = profile(generate(original, ACCESSES, 3))
    adjusted = profile(generate(original, ACCESSES, 3, floor))
    assert floor == pytest.approx(0.05)
    assert total_variation(original, printed) > 0.08
    assert total_variation(original, adjusted) < 0.03


def test_first_accesses_come_early_and_once() -> None:
    original = profile(kinds()["uniform"])
    trace = generate(original, ACCESSES, 3, adjusted_floor(original, ACCESSES))
    last_first = np.unique(trace, return_index=True)[1].max()
    assert 99 < last_first < 0.04 * ACCESSES
    assert profile(trace).probabilities[0] == pytest.approx(100 / ACCESSES)


def test_a_draw_of_zero_takes_what_has_probability() -> None:
    tree, id_in, slot_of = full_stack(2)
    distances, sums = np.array([0, 2]), np.array([0.5, 1.0])
    once_seen = np.array([0.0, 0.5])
    drawn, _, seen = draw_accesses(
        (tree, id_in, slot_of), 2, 2, np.zeros(1), distances, sums, once_seen
    )
    assert (drawn.tolist(), seen) == ([0], 2)  # distance 2, not 0, which would count as seen


def test_one_access() -> None:
    found = profile([42])
    assert (found.unique.tolist(), found.distances.tolist()) == ([42], [0])
    assert found.probabilities.tolist() == [1.0]
    assert hit_rates(found, [0, 1, 9]).tolist() == [0, 0, 0]
    # Nothing but distance 0 to draw: the id starts over, in either version.
    assert generate(found, 3, 0).tolist() == generate(found, 3, 0, 0.5).tolist() == [42] * 3
    assert generate(found, 0, 0).tolist() == []


def test_no_access() -> None:
    with pytest.raises(DataError, match="empty trace"):
        profile([])


def test_a_profile_survives_its_file(tmp_path: Path) -> None:
    original = profile(kinds()["drift"])
    original.save(tmp_path / "drift.parquet")
    loaded = StackProfile.load(tmp_path / "drift.parquet")
    assert loaded.unique.tolist() == original.unique.tolist()
    assert generate(loaded, 1_000, 5).tolist() == generate(original, 1_000, 5).tolist()


def test_renumbered_hides_the_ids_and_keeps_the_locality() -> None:
    original = profile([900, 7, 900, 900])
    hidden = original.renumbered()
    assert hidden.unique.tolist() == [0, 1]
    assert hidden.num_ids == 2
    assert original.num_ids == 901
    assert hit_rates(hidden, [1, 2]).tolist() == hit_rates(original, [1, 2]).tolist()


@pytest.mark.parametrize(
    ("unique", "distances", "probabilities", "fault"),
    [
        ([], [0], [1.0], "there is no id"),
        ([1, 1], [0], [1.0], "an id is named twice"),
        ([1, 2], [0, 1], [1.0], "differ in number"),
        ([1, 2], [1], [1.0], "do not ascend from 0"),
        ([1, 2], [0, 2, 1], [0.5, 0.2, 0.3], "do not ascend from 0"),
        ([1, 2], [0, 3], [0.5, 0.5], "exceeds the number of ids"),
        ([1, 2], [0, 1], [0.5, 0.4], "sum 1"),
        ([1, 2], [0, 1], [1.5, -0.5], "sum 1"),
    ],
)
def test_a_broken_profile_is_refused(
    unique: list[int], distances: list[int], probabilities: list[float], fault: str, tmp_path: Path
) -> None:
    columns = {"unique": unique, "distances": distances, "probabilities": probabilities}
    types = (pa.int64(), pa.int64(), pa.float64())
    arrays = [
        pa.array([values], pa.list_(kind))
        for values, kind in zip(columns.values(), types, strict=True)
    ]
    path = tmp_path / "broken.parquet"
    pq.write_table(pa.table(arrays, names=list(columns)), path)
    with pytest.raises(DataError, match=rf"broken.parquet.*{fault}"):
        StackProfile.load(path)


def test_other_files_are_no_profiles(tmp_path: Path) -> None:
    text = tmp_path / "text.parquet"
    text.write_text("not Parquet")
    other = tmp_path / "other.parquet"
    pq.write_table(pa.table({"unique": [[1]]}), other)
    for path in (text, other, tmp_path / "absent.parquet"):
        with pytest.raises(DataError, match=rf"{path.name}: cannot be read as the profile"):
            StackProfile.load(path)
