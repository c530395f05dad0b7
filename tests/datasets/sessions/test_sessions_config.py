"""Value tests: the configs of the generated sessions, and the errors of wrong ones."""

from __future__ import annotations

import numpy as np
import pytest

from recd_dlrm.datasets.sessions.counts import CountLaw
from recd_dlrm.datasets.sessions.dataset import Sessions, SessionsConfig
from recd_dlrm.datasets.sessions.features import FeatureConfig
from recd_plugins.config import parse
from recd_plugins.errors import RegistryError

ONE = FeatureConfig(name="item", num_ids=100)


@pytest.mark.parametrize(
    ("mean", "least", "most"), [(1, 1, 4), (20, 1, 80), (0.3, 0, 5), (4.5, 1, 5), (7, 2, 7)]
)
def test_lengths_have_their_mean_within_their_range(mean: float, least: int, most: int) -> None:
    law = CountLaw.geometric(mean, least, most)
    assert law.mean == pytest.approx(mean, abs=1e-9)
    lengths = law.sample(np.linspace(0, 1, 10_001)[:-1])
    assert least <= lengths.min() <= lengths.max() <= most
    np.testing.assert_allclose(
        np.bincount(lengths - least, minlength=law.cdf.size) / 10_000, law.probabilities, atol=2e-4
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"features": [{"name": "a", "num_ids": 9, "lenght": 2}]},
            r"dataset\.features\[0\].*unknown option 'lenght'; did you mean 'length'",
        ),
        (
            {"features": [{"name": "a", "num_ids": 9, "length": 5, "max_length": 3}]},
            r"dataset\.features\[0\]\.length: of feature 'a' is 5, a mean outside \[1, 3\]",
        ),
        (
            {"features": [{"name": "a", "num_ids": 9, "stay": 1.5}]},
            r"dataset\.features\[0\]\.stay: must be >= 0 and <= 1, but is 1.5",
        ),
        (
            {"features": [{"name": "a", "num_ids": 9, "distribution": "uniform", "skew": 1}]},
            r"dataset\.features\[0\]\.skew: of feature 'a' does not apply to uniform",
        ),
        (
            {
                "features": [
                    {"name": "a", "num_ids": 9, "group": "g", "stay": 0.5},
                    {"name": "b", "num_ids": 9, "group": "g", "stay": 0.6},
                ]
            },
            r"dataset\.features: 'a' and 'b' change together \(group g\), but stay with 0.5 and",
        ),
        (
            {"features": [{"name": "a", "num_ids": 9, "skew": 0}]},
            r"dataset\.features\[0\]\.skew: must be > 0, but is 0",
        ),
        ({"samples": 0}, r"dataset\.samples: must be >= 1"),
        ({"samples_per_session": 20_000}, r"dataset\.samples_per_session: is 20000, above max_"),
        ({"label": {"base_rate": 1}}, r"dataset\.label\.base_rate: must be > 0 and < 1"),
    ],
)
def test_config_errors_say_what_and_where(options: dict[str, object], message: str) -> None:
    with pytest.raises(RegistryError, match=message):
        parse(SessionsConfig, options, "dataset")


def test_a_test_split_may_be_empty() -> None:
    dataset = Sessions(SessionsConfig(samples=100, test_fraction=0.0, features=(ONE,)))
    assert dataset.num_rows("test") == 0
    assert list(dataset.chunks("test")) == []


def test_two_features_of_one_name_are_an_error() -> None:
    with pytest.raises(RegistryError, match="'item' is named twice"):
        Sessions(SessionsConfig(features=(ONE, ONE)))
