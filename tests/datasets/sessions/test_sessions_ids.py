"""Value and property tests: ids are drawn exactly as often as their law says."""

from __future__ import annotations

import math
import tracemalloc

import numpy as np
import pytest
from drawn import at_most
from hypothesis import given, settings
from hypothesis import strategies as st

from recd_dlrm.datasets.sessions.laws import Distribution, IdLaw, Scatter, id_law
from recd_plugins.errors import RegistryError

LAWS: list[tuple[Distribution, float | None]] = [
    ("zipf", 0.7),
    ("zipf", 1.0),
    ("zipf", 1.05),
    ("zipf", 2.5),
    ("half_normal", 0.1),
    ("half_normal", 2.0),
    ("exponential", 0.05),
    ("uniform", None),
]


def chi_square(law: IdLaw, draws: np.ndarray) -> tuple[float, int]:
    """The statistic over cells of ids, hottest first, with 50 expected draws or more each."""
    p = law.probabilities(np.arange(law.num_ids))
    hot = np.argsort(-p, kind="stable")
    observed = np.bincount(draws, minlength=law.num_ids)[hot]
    expected = p[hot] * draws.size
    cells = np.floor(np.concatenate(([0], expected.cumsum()[:-1])) / 50).astype(int)
    cells[cells >= cells[-1]] = max(0, cells[-1] - 1)  # the last may be half full: join it
    _, cells = np.unique(cells, return_inverse=True)
    o, e = np.bincount(cells, observed), np.bincount(cells, expected)
    return float(((o - e) ** 2 / e).sum()), o.size - 1


def bound(freedom: int) -> float:
    """Mean and eight deviations of chi-square: no right law fails it, a wrong one soon does."""
    return freedom + 8 * math.sqrt(2 * freedom) + 1e-9


@pytest.mark.parametrize(("kind", "skew"), LAWS)
@pytest.mark.parametrize("scatter", [None, 7])
@pytest.mark.parametrize("num_ids", [1, 300, 200_000])  # 200,000: zipf beyond its table
def test_frequencies_match(
    kind: Distribution, skew: float | None, scatter: int | None, num_ids: int
) -> None:
    law = id_law(kind, num_ids, skew=skew, scatter=scatter)
    draws = law.sample(np.random.default_rng(1).random(200_000))
    assert draws.dtype == np.int64
    assert draws.min() >= 0
    assert draws.max() < num_ids
    statistic, freedom = chi_square(law, draws)
    assert statistic <= bound(freedom)


def test_the_frequency_test_tells_near_laws_apart() -> None:
    draws = id_law("zipf", 1000, skew=1.05).sample(np.random.default_rng(1).random(200_000))
    for other in (id_law("zipf", 1000, skew=1.08), id_law("zipf", 1040, skew=1.05)):
        statistic, freedom = chi_square(other, draws)
        assert statistic > bound(freedom)


@pytest.mark.parametrize(("kind", "skew"), LAWS)
@pytest.mark.parametrize("num_ids", [1, 2, 65_535, 65_536, 65_537, 300_000])
def test_probabilities_add_up_to_one(kind: Distribution, skew: float, num_ids: int) -> None:
    ids = np.arange(num_ids)
    assert id_law(kind, num_ids, skew=skew).probabilities(ids).sum() == pytest.approx(1, rel=1e-11)


@pytest.mark.parametrize(
    ("kind", "skew", "mass"),
    [
        ("zipf", 1.3, lambda k: (k + 1) ** -1.3),
        ("exponential", 0.2, lambda k: math.exp(-k / 10)),
        ("half_normal", 0.2, lambda k: math.erfc(k / 200**0.5) - math.erfc((k + 1) / 200**0.5)),
        ("uniform", None, lambda k: 1.0),
    ],
)
def test_probabilities_follow_the_formula(kind: Distribution, skew: float, mass) -> None:
    weights = np.array([mass(k) for k in range(50)])
    law = id_law(kind, 50, skew=skew)
    np.testing.assert_allclose(law.probabilities(np.arange(50)), weights / weights.sum(), 1e-10)


@settings(max_examples=at_most(60), deadline=None)
@given(
    law=st.sampled_from([("zipf", 0.3), ("zipf", 1.0), ("zipf", 1.4), *LAWS]),
    num_ids=st.integers(2, 300_000),
    where=st.floats(0, 1, exclude_max=True),
)
def test_sampling_is_the_exact_inverse(
    law: tuple[Distribution, float | None], num_ids: int, where: float
) -> None:
    """Just inside both ends of a rank's stretch of the unit interval lies that rank."""
    one = id_law(law[0], num_ids, skew=law[1])
    rank = int(where * num_ids)
    p = one.probabilities(np.arange(rank + 1))
    if p[-1] < 1e-10:
        return  # narrower than what the sum below rounds away
    low = math.fsum(p[:-1])
    inside = np.array([low + 0.001 * p[-1], low + 0.999 * p[-1]])
    assert one.sample(np.minimum(inside, np.nextafter(1, 0))).tolist() == [rank, rank]


@pytest.mark.parametrize("s", [0.3, 1.0, 1.05, 1.8])
def test_zipf_goes_on_exactly_where_its_table_ends(s: float) -> None:
    law = id_law("zipf", 400_000, skew=s)
    p = law.probabilities(np.arange(400_000))
    ranks = np.array([65_534, 65_535, 65_536, 65_537, 65_538, 100_000, 399_998, 399_999])
    low = p.cumsum()[ranks - 1]
    for share in (0.01, 0.99):  # of the rank's stretch; summing up to it rounds 1e-12 away
        assert law.sample(low + share * p[ranks]).tolist() == ranks.tolist()


@settings(max_examples=at_most(60), deadline=None)
@given(n=st.integers(1, 3000), seed=st.integers(0, 2**64))
def test_scatter_is_a_bijection(n: int, seed: int) -> None:
    scatter = Scatter(n, seed)
    ids = scatter.id_of(np.arange(n))
    assert sorted(ids) == list(range(n))
    assert scatter.rank_of(ids).tolist() == list(range(n))


def test_scatter_spreads_the_hot_ids_and_heeds_its_seed() -> None:
    hot = Scatter(100_000, 1).id_of(np.arange(1000))
    tenths = np.bincount(hot // 10_000, minlength=10)
    assert tenths.min() > 60  # of 100 each
    assert (hot != Scatter(100_000, 2).id_of(np.arange(1000))).mean() > 0.99
    law = id_law("zipf", 100_000, scatter=1)
    assert law.probabilities(hot[:1])[0] == law.probabilities(np.arange(100_000)).max()


def test_memory_does_not_grow_with_the_ids() -> None:
    tracemalloc.start()
    law = id_law("zipf", 10**12, skew=1.01, scatter=0)
    ids = law.sample(np.random.default_rng(0).random(1000))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 4 << 20
    assert ids.min() >= 0
    assert 10**11 < ids.max() < 10**12
    assert Scatter(1 << 62, 5).rank_of(Scatter(1 << 62, 5).id_of(ids)).tolist() == ids.tolist()


def test_agreement_is_the_sum_of_powers() -> None:
    law = id_law("zipf", 500, skew=1.2)
    p = law.probabilities(np.arange(500))
    np.testing.assert_allclose(law.agreement(3), [1, 1, (p**2).sum(), (p**3).sum()], 1e-12)


@pytest.mark.parametrize(
    ("kind", "skew", "message"),
    [("uniform", 1.0, "does not apply to uniform"), ("zipf", 0.0, "must be > 0, but is 0.0")],
)
def test_a_skew_without_meaning_is_an_error(kind: Distribution, skew: float, message: str) -> None:
    with pytest.raises(RegistryError, match=message):
        id_law(kind, 10, skew=skew)
