"""Value tests: the configs of the generated sessions, and the errors of wrong ones."""

from __future__ import annotations

import pytest

from recd_dlrm.datasets.sessions.dataset import Sessions, SessionsConfig
from recd_dlrm.datasets.sessions.feature_draws import FeatureConfig
from recd_plugins.config import parse
from recd_plugins.errors import RegistryError

ONE = FeatureConfig(name="item", num_ids=100)


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
        (
            {"features": [{"name": "a", "num_ids": 9}, {"name": "a", "num_ids": 8}]},
            r"dataset\.features: column 'a' is named twice",
        ),
        ({"features": [{"name": "dense_7", "num_ids": 9}]}, r"features: column 'dense_7' is named"),
        ({"samples": 0}, r"dataset\.samples: must be >= 1"),
        ({"samples_per_session": 20_000}, r"dataset\.samples_per_session: is 20000, above max_"),
        ({"label": {"base_rate": 1}}, r"dataset\.label\.base_rate: must be > 0 and < 1"),
    ],
)
def test_config_errors_say_what_and_where(options: dict[str, object], message: str) -> None:
    with pytest.raises(RegistryError, match=message):
        parse(SessionsConfig, options, "dataset")


def test_a_test_split_has_a_row_at_least() -> None:
    dataset = Sessions(SessionsConfig(samples=10, test_fraction=0.01, features=(ONE,)))
    assert dataset.num_rows("test") == sum(c.num_rows for c in dataset.chunks("test")) == 1
