"""Rung 1 (values, on files): sessions or samples dropped, and what that does to S."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from session_tables import SCHEMA, mixed_rows, read, rows_of, table_of

from recd_dedup.etl.downsample import (
    DownsampleConfig,
    Population,
    SessionCount,
    build_downsample_samples,
    build_downsample_sessions,
)
from recd_plugins.data.schema import Schema
from recd_plugins.errors import DataError, RegistryError
from recd_plugins.slots import Context, EtlRecord
from recd_plugins.testing.conformance import check_record

BUILDS = {
    "downsample_sessions": build_downsample_sessions,
    "downsample_samples": build_downsample_samples,
}
by_either = pytest.mark.parametrize("name", BUILDS)


def run(name, source, folder, **options):
    step = BUILDS[name](DownsampleConfig(**options), Context())
    return read(step.run(source, folder)), step.report


def steady_rows(sessions=2_000, each=8):
    order = np.random.default_rng(0).permutation(np.repeat(np.arange(sessions), each))
    return rows_of(order, np.arange(order.size))


def test_sessions_are_kept_whole_and_in_order(tmp_path):
    rows = mixed_rows(1_000)
    kept, _ = run("downsample_sessions", table_of(tmp_path / "t", rows), tmp_path / "d", keep=0.4)
    sessions = set(kept["session_id"].to_pylist())
    assert 0 < len(sessions) < len(set(rows["session_id"].to_pylist()))
    stays = [session in sessions for session in rows["session_id"].to_pylist()]
    assert kept.equals(rows.filter(pa.array(stays)).combine_chunks())


def test_s_stays_with_sessions_and_falls_with_samples(tmp_path):
    source = table_of(tmp_path / "t", steady_rows())
    _, by_session = run("downsample_sessions", source, tmp_path / "a", keep=0.25)
    _, by_sample = run("downsample_samples", source, tmp_path / "b", keep=0.25)
    for report in (by_session, by_sample):
        assert report.before == Population(16_000, 2_000)
        assert report.after.samples == pytest.approx(4_000, rel=0.08)
    assert by_session.after.samples_per_session == 8
    # Of 8 samples a quarter stays, in the sessions of which any does: 2 / (1 - 0.75^8).
    assert by_sample.after.samples_per_session == pytest.approx(2 / (1 - 0.75**8), rel=0.03)
    assert str(by_session).startswith("downsampled 16,000 samples (S = 8.00) to ")


def test_whether_a_session_is_kept_depends_on_its_id_and_the_seed_alone(tmp_path):
    rows = steady_rows(300, 3)
    source, late = table_of(tmp_path / "t", rows), table_of(tmp_path / "late", rows.slice(500))
    once, _ = run("downsample_sessions", source, tmp_path / "1", seed=3)
    part, _ = run("downsample_sessions", late, tmp_path / "2", seed=3)
    other, _ = run("downsample_sessions", source, tmp_path / "3", seed=4)
    kept = set(once["session_id"].to_pylist())
    assert set(part["session_id"].to_pylist()) == kept & set(late_sessions(rows))
    assert set(other["session_id"].to_pylist()) != kept


def late_sessions(rows):
    return rows["session_id"].to_pylist()[500:]


def test_a_higher_share_keeps_what_a_lower_one_kept(tmp_path):
    source = table_of(tmp_path / "t", steady_rows(300, 3))
    few, many = (
        set(
            run("downsample_sessions", source, tmp_path / f"{p}", keep=p)[0][
                "session_id"
            ].to_pylist()
        )
        for p in (0.2, 0.6)
    )
    assert few < many


@by_either
def test_a_share_may_be_as_small_as_a_number(tmp_path, name):
    kept, _ = run(name, table_of(tmp_path / "t", mixed_rows(100)), tmp_path / "d", keep=5e-324)
    assert kept.num_rows == 0


@by_either
def test_a_share_of_1_keeps_every_row(tmp_path, name):
    rows = mixed_rows(1_000)
    kept, report = run(name, table_of(tmp_path / "t", rows), tmp_path / "d", keep=1.0)
    assert kept.equals(rows)
    assert report.before == report.after


@by_either
def test_chunks_of_any_size_keep_the_same_rows(tmp_path, name):
    source = table_of(tmp_path / "t", mixed_rows(1_000))
    whole, _ = run(name, source, tmp_path / "whole")
    step = type(BUILDS[name](DownsampleConfig(), Context()))(DownsampleConfig(), chunk_bytes=1_000)
    assert read(step.run(source, tmp_path / "chunked")).equals(whole)


@by_either
def test_an_empty_table(tmp_path, name):
    kept, report = run(name, table_of(tmp_path / "t", rows_of([], [])), tmp_path / "d")
    assert kept.num_rows == 0
    assert report.after == Population(0, 0)
    assert report.after.samples_per_session is None


def test_a_table_without_sessions_can_only_lose_samples(tmp_path):
    schema = Schema(session_id=None, dense=SCHEMA.dense, sparse=SCHEMA.sparse)
    source = table_of(tmp_path / "t", mixed_rows(1_000).drop_columns("session_id"), schema)
    with pytest.raises(DataError, match="no session_id, but downsample_sessions works by session"):
        run("downsample_sessions", source, tmp_path / "a")
    kept, report = run("downsample_samples", source, tmp_path / "b")
    assert str(report) == f"downsampled 1,000 samples to {kept.num_rows} samples"


@pytest.mark.parametrize("keep", [0, -0.1, 1.1])
def test_shares_out_of_range(keep):
    with pytest.raises(RegistryError, match="keep: must be > 0 and <= 1"):
        DownsampleConfig(keep=keep)


def test_more_sessions_than_are_held_are_estimated():
    count = SessionCount(SCHEMA, most=1_000)
    for first in range(0, 100_000, 10_000):
        count.add(pa.table({"session_id": np.arange(first, first + 20_000)}))
    # The standard error with 500 to 1,000 held is 3 to 4.5%.
    assert count.population().sessions == pytest.approx(110_000, rel=0.1)
    assert count.samples == 200_000


@by_either
def test_the_records_keep_their_contract(name):
    record = EtlRecord(
        name=name, summary="A sentence.", config=DownsampleConfig, build=BUILDS[name]
    )
    check_record(record, context=Context(schema=SCHEMA))
