"""Values: `stats` is for `recd data stats`: training refuses an override of it, not the slot."""

from __future__ import annotations

from pathlib import Path

import pytest
from forked import run_module


@pytest.mark.parametrize("override", ["stats=[sessions]", "stats=null", "stats.use=sessions"])
def test_an_override_that_training_does_not_read_is_refused(override: str, tmp_path: Path) -> None:
    (tmp_path / "registry.yaml").write_text("dataset: sessions\nplugins: [recd_dlrm]\n")
    done = run_module("recd_plugins", "train", override, folder=tmp_path)
    assert (done.code, done.out) == (2, "")
    assert "training measures no table. Take it out, or hand it to `recd data stats`." in done.err
    assert [one.name for one in tmp_path.iterdir()] == ["registry.yaml"]


def test_a_registry_of_both_commands_is_trained_on(tmp_path: Path) -> None:
    (tmp_path / "registry.yaml").write_text(
        "plugins: [recd_dlrm, recd_dedup]\nstats: [sessions]\nmodel: {use: dlrm}\n"
        "dataset: {use: random, samples: 64, test_samples: 64, num_ids: [10]}\n"
        "train: {batch_size: 16, steps: 1, ranks: 1}\nstrict: true\n"
    )
    done = run_module("recd_plugins", "train", folder=tmp_path)
    assert done.code == 0, done.err
