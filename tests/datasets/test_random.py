"""Value tests: random rows follow their config and nothing but their seed."""

from __future__ import annotations

import dataclasses

import numpy as np
import pyarrow as pa
import pytest

from recd_dlrm.datasets.random import CHUNK_ROWS, RandomConfig, build_random
from recd_plugins.config import parse
from recd_plugins.data.dataset import Split
from recd_plugins.errors import RegistryError
from recd_plugins.slots import Context

SMALL = RandomConfig(samples=CHUNK_ROWS + 904, test_samples=3_000, num_ids=(50, 7, 1))


def rows(config: RandomConfig, split: Split = "train") -> pa.Table:
    return pa.concat_tables(build_random(config, Context()).chunks(split))


def flat(table: pa.Table, name: str) -> np.ndarray:
    return table[name].combine_chunks().flatten().to_numpy()


def lengths(table: pa.Table, name: str) -> np.ndarray:
    return np.diff(table[name].combine_chunks().offsets.to_numpy())


def test_rows_have_the_schema_and_the_numbers_asked_for() -> None:
    dataset = build_random(SMALL, Context())
    for split, count in (("train", CHUNK_ROWS + 904), ("test", 3_000)):
        table = rows(SMALL, split)
        assert table.num_rows == dataset.num_rows(split) == count
        assert table.schema.equals(dataset.schema.arrow())
    assert dataset.schema.table_sizes() == {"cat_0": 50, "cat_1": 7, "cat_2": 1}
    assert dataset.schema.columns[:2] == ("label", "dense_0")


def test_ids_are_even_over_their_range() -> None:
    table = rows(SMALL)
    for name, num_ids in (("cat_0", 50), ("cat_1", 7), ("cat_2", 1)):
        counts = np.bincount(flat(table, name))
        assert len(counts) == num_ids
        expected = counts.sum() / num_ids
        # Five standard deviations of a binomial count.
        assert np.abs(counts - expected).max() <= 5 * np.sqrt(expected)


def test_lookups_are_fixed_or_even_over_one_to_k() -> None:
    up_to = rows(dataclasses.replace(SMALL, lookups=(5, 1, 2)))
    assert set(lengths(up_to, "cat_0")) == {1, 2, 3, 4, 5}
    assert np.abs(np.bincount(lengths(up_to, "cat_0"))[1:] - 1_000).max() <= 5 * np.sqrt(1_000)
    assert set(lengths(up_to, "cat_1")) == {1}
    fixed = rows(dataclasses.replace(SMALL, lookups=5, fixed_lookups=True))
    assert set(lengths(fixed, "cat_0")) == set(lengths(fixed, "cat_2")) == {5}


@pytest.mark.parametrize(("kind", "mean", "std"), [("uniform", 0.5, 12**-0.5), ("normal", 0, 1)])
def test_dense_follows_its_distribution(kind: str, mean: float, std: float) -> None:
    values = rows(dataclasses.replace(SMALL, dense_distribution=kind))["dense_12"].to_numpy()
    assert values.mean() == pytest.approx(mean, abs=5 * std / np.sqrt(len(values)))
    assert values.std() == pytest.approx(std, rel=0.06)


@pytest.mark.parametrize("rate", [0, 0.2, 1])
def test_labels_are_one_at_the_rate(rate: float) -> None:
    labels = rows(dataclasses.replace(SMALL, positive_rate=rate))["label"].to_numpy()
    assert set(labels) <= {0.0, 1.0}
    assert labels.mean() == pytest.approx(rate, abs=5 * np.sqrt(rate * (1 - rate) / len(labels)))


def test_the_seed_and_the_split_decide() -> None:
    assert rows(SMALL).equals(rows(SMALL))
    assert not rows(SMALL).equals(rows(dataclasses.replace(SMALL, seed=1)))
    longer = rows(dataclasses.replace(SMALL, samples=3 * CHUNK_ROWS))
    assert longer[:CHUNK_ROWS].equals(rows(SMALL)[:CHUNK_ROWS])
    # Chunks of one size, which the same random numbers would make the same.
    even = dataclasses.replace(SMALL, samples=2 * CHUNK_ROWS, test_samples=CHUNK_ROWS)
    first, second = rows(even)[:CHUNK_ROWS], rows(even)[CHUNK_ROWS:]
    assert not first.equals(second)
    assert not first.equals(rows(even, "test"))


def test_the_papers_profile_model_fits_the_config() -> None:
    options = {"samples": 64, "test_samples": 8, "dense": 512, "lookups": 100}
    config = parse(RandomConfig, {**options, "num_ids": [1_000_000] * 8}, "dataset")
    table = rows(config)
    assert table.num_columns == 1 + 512 + 8
    assert lengths(table, "cat_7").max() > 90


def test_lookups_must_match_the_features() -> None:
    with pytest.raises(RegistryError, match=r"dataset\.lookups: names 2 features, num_ids 3"):
        parse(RandomConfig, {"num_ids": [5, 5, 5], "lookups": [1, 2]}, "dataset")
    for lookups in (0, 2**63, [3, 2**40]):
        with pytest.raises(
            RegistryError, match=r"dataset\.lookups.*must be >= 1 and <= 1e\+06, but"
        ):
            parse(RandomConfig, {"lookups": lookups, "num_ids": [5, 5]}, "dataset")


def test_no_dense_and_no_sparse_features_are_possible() -> None:
    table = rows(RandomConfig(samples=5, dense=0, num_ids=()))
    assert table.column_names == ["label"]
    assert table.num_rows == 5
