"""Value tests: whole numbers without a telling name are ids or counts by how they are spread."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from recd_plugins.data.importing.proposing.whole_numbers import NumberKind, kind_of

DRAW = np.random.default_rng(0)
ROWS = 2_000


def popular(ids: int) -> np.ndarray:
    """Rows of things, some far more popular than others, whatever their ids."""
    return DRAW.permutation(ids)[(DRAW.zipf(1.3, ROWS) - 1) % ids]


def kind(values: np.ndarray) -> NumberKind:
    different, counts = np.unique(values.astype(np.int64), return_counts=True)
    return kind_of(different, counts, ascending=bool(np.all(values[1:] >= values[:-1])))


HASHES = DRAW.integers(-(2**31), 2**31, 5_000)
IDS = {
    "hashes of texts, as Spark and Java make them": HASHES[popular(5_000)],
    "hashes of a few texts": HASHES[popular(12)],
    "hashes of which hardly two are alike": HASHES[:ROWS],
    "items": popular(5_000),
    "few categories": popular(40),
    "items of a shop whose ids begin late": 214_500_000 + popular(5_000),
    "users by whom rows are sorted": np.repeat(np.arange(50), 40),
    "users with as many rows each": np.arange(ROWS) % 400,
    "codes, and -1 for none": DRAW.choice([-1, -1, 84, 148, 111, 77], ROWS),
    "hours and minutes": DRAW.integers(0, 24, ROWS) * 100 + DRAW.integers(0, 60, ROWS),
    "whole hours": DRAW.integers(0, 24, ROWS) * 100,
}
COUNTS = {
    "ages": np.clip(DRAW.normal(35, 12, ROWS), 10, 90),
    "few": DRAW.poisson(0.2, ROWS),
    "several": DRAW.poisson(5, ROWS),
    "amounts in steps": DRAW.lognormal(5, 1, ROWS) // 50 * 50,
    "milliseconds, of which hardly two are alike": DRAW.lognormal(10, 1, ROWS),
    "followers": DRAW.lognormal(6, 3, ROWS),
    "mostly 0": np.where(DRAW.random(ROWS) < 0.9, 0, DRAW.lognormal(7, 1, ROWS)),
    "years": DRAW.integers(1_995, 2_020, ROWS),
    "zipf": DRAW.zipf(1.4, ROWS) % 5_000,
    "degrees below and above 0": DRAW.normal(3, 12, ROWS),
    "offsets": DRAW.integers(-500, 500, ROWS),
    "balances in cents": DRAW.standard_cauchy(ROWS) * 5e6,
    "balances in whole millions": np.round(DRAW.normal(0, 5, ROWS)) * 1e9,
    "profits and losses": DRAW.normal(0, 1e9, ROWS),
}


@pytest.mark.parametrize("name", IDS)
def test_numbers_that_name_something_are_ids(name: str) -> None:
    assert kind(IDS[name]).ids
    assert kind(IDS[name]).why


@pytest.mark.parametrize("name", COUNTS)
def test_numbers_that_count_something_are_no_ids(name: str) -> None:
    assert kind(COUNTS[name]) == NumberKind(ids=False)


def test_numbers_over_a_wide_range_of_which_hardly_two_are_alike_may_be_either() -> None:
    assert kind(DRAW.integers(0, 5_000_000, ROWS)) == NumberKind(ids=False, sure=False)


@pytest.mark.parametrize("ids", [500, 5_000, 50_000])
@pytest.mark.parametrize("exponent", [0.7, 1.0])
def test_ids_by_how_common_they_are_may_be_either(ids: int, exponent: float) -> None:
    """Their range ends; that of what is counted thins out."""
    odds = np.arange(1, ids + 1) ** -exponent
    found = kind(DRAW.choice(ids, 20_000, p=odds / odds.sum()))
    assert (found.ids, found.sure) == (False, False)
    for counts in (DRAW.lognormal(6, 1.5, 20_000), DRAW.exponential(300, 20_000)):
        assert kind(counts) == NumberKind(ids=False)
        assert kind(np.minimum(counts, 2_000)) == NumberKind(ids=False)  # cut off


def test_columns_of_public_files_are_taken_for_what_they_are(
    real_data: Callable[[str], Path],
) -> None:
    """Criteo's 13 counts, and the ids of MovieLens and Yoochoose, from a few rows on."""
    for name in ("kaggle_2k", "terabyte_day11_3k"):
        lines = real_data(f"criteo/{name}.tsv").read_text().splitlines()
        for column in list(zip(*(one.split("\t") for one in lines), strict=True))[1:14]:
            assert kind(np.array([int(one) for one in column if one])) == NumberKind(ids=False), (
                name
            )
    for path, rows in (("ml100k/ml-100k.inter", 2_000), ("yoochoose/clicks.tsv", 3_000)):
        lines = real_data(path).read_text().splitlines()[1 : rows + 1]
        for column in list(zip(*(one.split("\t") for one in lines), strict=True))[:2]:
            assert kind(np.array([int(float(one)) for one in column])).ids, path
