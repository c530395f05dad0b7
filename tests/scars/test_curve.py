"""Value tests: the curve's points are the theory's. Then `recd scars curve` as a person runs it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import Result
from typer.testing import CliRunner

from recd_plugins.cli.main import app
from recd_plugins.errors import RegistryError
from recd_plugins.planning.access.access_profile import Profile
from recd_plugins.planning.access.distribution import RowDistribution
from recd_plugins.planning.access.parametric import half_normal, zipf
from recd_scars.cache_curve import CacheCurve, rows_of_all
from recd_scars.theory import Memory


def curve(rows: RowDistribution, memory: Memory) -> CacheCurve:
    return CacheCurve(rows=rows, memory=memory)


def test_two_rows_by_hand() -> None:
    rows = RowDistribution.of([1, 1], [0.5, 0.25])
    drawn = curve(rows, Memory(capacity=12, per_sample=2, width=4))
    none, one, both = drawn.by_cache()
    # b = 6, 4, 2; 4 bytes a number: 0.75 indices and, of 4 numbers, the rows' share.
    assert none == (0, 6, pytest.approx(4 * (0.75 + 4 / 6 * (2 - 0.5**6 - 0.75**6))), 0, (0, 0))
    share = pytest.approx(2 / 3)  # a law has no interval
    assert one == (1, 4, pytest.approx(4 * (0.75 + 4 / 4 * (1 - 0.75**4))), share, (share, share))
    assert both == (2, 2, 3, 1, (1, 1))
    assert drawn.plain == 4 * 0.75 * 4
    assert drawn.at(drawn.optimum.cached) == both


def test_the_optimum_is_the_least_of_both_curves() -> None:
    # Hot rows that are worth their memory, and many cold ones that are not.
    rows = RowDistribution.of([15, 263, 8_845], [0.18, 0.014, 0.00065])
    drawn = curve(rows, Memory(capacity=11_167, per_sample=19.4, width=10))
    best = drawn.at(drawn.optimum.cached)
    by_cache, by_batch = drawn.by_cache(), drawn.by_batch()
    assert best in by_cache
    assert best.cached == 278
    assert by_cache[-1].bytes_per_sample > 1.02 * best.bytes_per_sample
    assert by_cache[0].bytes_per_sample > 1.02 * best.bytes_per_sample
    assert best.bytes_per_sample == min(point.bytes_per_sample for point in by_cache)
    least = min(by_batch, key=lambda each: each[2])
    assert least[0] == best.batch_size
    # A batch that is no whole number may leave room for a part of a row less.
    assert least[2] == pytest.approx(best.bytes_per_sample, rel=1e-3)
    assert all(cached <= none * (1 + 1e-9) for _, none, cached in by_batch)
    none = [each[1] for each in by_batch]
    assert none == sorted(none, reverse=True)  # larger batches coalesce more


def test_the_smallest_batch_of_use_bounds_the_cache() -> None:
    memory = Memory(capacity=400_000, per_sample=1_000, width=8, least=64)
    drawn = curve(zipf(100_000, 10.0, 1.05), memory)
    assert drawn.by_cache()[-1].batch_size == pytest.approx(64, abs=0.01)
    assert drawn.by_batch()[0][0] == 64
    with pytest.raises(RegistryError, match="does not hold 500 samples of 1,000"):
        Memory(capacity=400_000, per_sample=1_000, width=8, least=500)


def test_a_table_that_fits_is_cached_whole() -> None:
    drawn = curve(half_normal(50, 1.0), Memory(capacity=100_000, per_sample=16, width=8))
    assert drawn.by_cache()[-1].cached == 50
    assert drawn.by_cache()[-1].hits == 1


def test_tables_of_one_width_are_one_distribution() -> None:
    small, large = zipf(100, 2.0), half_normal(3_000, 5.0)
    both = rows_of_all([small, large])
    assert (both.num_rows, both.lookups) == (3_100, pytest.approx(7.0))
    assert both.appearing(64) == pytest.approx(small.appearing(64) + large.appearing(64))
    assert np.all(np.diff(both.p) <= 0)


def recd(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["scars", "curve", *arguments])


def printed(*arguments: str) -> dict[str, Any]:
    result = recd(*arguments, "--json")
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


@pytest.mark.slow
def test_a_law_is_drawn_explained_and_printed_for_machines(tmp_path: Path) -> None:
    figure = tmp_path / "figures" / "curve.png"
    law = ("--law", "zipf:1.05", "--rows", "200000", "--lookups", "26", "--figure", str(figure))
    result = recd(*law)
    assert result.exit_code == 0, result.output
    assert "zipf:1.05: 200,000 rows of 64 numbers, 26 lookups a sample" in result.stdout
    assert result.stdout.count("* ") == 2  # the optimum in the table, and what it saves
    assert figure.read_bytes().startswith(b"\x89PNG")
    found = printed(*law, "--memory", "50", "--per-sample", "20000", "--least-batch", "64")
    assert found["memory_mib"] == 50
    assert found["optimum"] in found["by_cache"]
    assert found["optimum"]["batch_size"] == pytest.approx(
        (50 * 2**20 - found["optimum"]["cached"] * 64 * 4) / 20_000
    )


def test_a_profile_is_drawn_whole_or_by_table(tmp_path: Path) -> None:
    file = tmp_path / "profile.arrow"
    Profile(rows={"a": zipf(500, 2.0), "b": half_normal(300, 1.0)}).save(file)
    whole = printed("--profile", str(file), "--width", "16")
    assert (whole["rows"], whole["lookups"]) == (800, pytest.approx(3.0))
    assert printed("--profile", str(file), "--table", "b")["rows"] == 300
    refused = recd("--profile", str(file), "--table", "c")
    assert refused.exit_code == 2
    assert "has no 'c'" in refused.stderr


REGISTRY = """
plugins: [recd_dlrm]
folder: {folder}
dataset: {{use: sessions, samples: 4_096}}
model: {{use: sequence_dlrm, embedding_dim: 16}}
train: {{ranks: 2, batch_size: 64, device: cpu}}
"""


def test_a_registrys_tables_are_counted(tmp_path: Path) -> None:
    registry = tmp_path / "registry.yaml"
    registry.write_text(REGISTRY.format(folder=tmp_path / "data"))
    file = ("--registry", str(registry), "--batches", "10")
    whole = printed(*file)
    assert whole["width"] == 16
    names = whole["source"].split(", ")
    one = printed(*file, "--table", names[0])
    assert one["source"] == names[0]
    assert 0 < one["rows"] < whole["rows"]
    assert one["lookups"] < whole["lookups"]
    wrong = recd(*file, "--table", "t_itms")
    assert wrong.exit_code == 2
    assert "--table: no table matches 't_itms'; did you mean" in wrong.stderr


@pytest.mark.parametrize(
    ("law", "why"),
    [
        ("zpf", "there is no law 'zpf'; did you mean 'zipf'?"),
        ("zipf:x", "'zipf:x' is no law with"),
        ("zipf:-1", "'zipf:-1' is no law with"),
        ("exponential:0", "'exponential:0' is no law"),
        ("zipf:nan", "'zipf:nan' is no law with"),
    ],
)
def test_a_wrong_law_is_reported(law: str, why: str) -> None:
    result = recd("--law", law)
    assert result.exit_code == 2
    assert why in result.stderr


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (("--law", "uniform", "--lookups", "0"), "no row is looked up, so there is nothing to"),
        (("--law", "uniform", "--lookups", "1e308"), "are too large together to be counted"),
        (("--law", "uniform", "--memory", "1e305"), "are too large together to be counted"),
        (("--law", "uniform", "--rows", str(2**63 - 1)), "more rows together than int64 counts"),
        (
            ("--law", "uniform", "--table", "a"),
            "--table: does nothing here, because the curve is of",
        ),
        (("--law", "uniform", "train.ranks=2"), "override train.ranks=2: does nothing here"),
        (
            ("--profile", "a", "--rows", "3"),
            "--rows: does nothing here, because the curve is of --p",
        ),
        (("-r", "none.yaml", "--rows", "3"), "--rows: does nothing here, because it is of a law's"),
        (("-r", "none.yaml", "--width", "3"), "--width: does nothing here, because the rows of"),
        (("--law", "uniform", "--memory", "9", "--batch-size", "3"), "--batch-size: does nothing"),
    ],
)
def test_what_has_no_say_in_a_curve_is_refused(given: tuple[str, ...], why: str) -> None:
    result = recd(*given)
    assert result.exit_code == 2
    assert why in result.stderr


def test_a_batch_of_next_to_no_memory_is_left_beside_the_largest_cache() -> None:
    found = printed("--law", "uniform", "--rows", "10", "--lookups", "1e-300")
    assert found["optimum"]["batch_size"] >= found["least_batch"]
