"""Ladder: index traces as values and from files; then profiled for a registry's model."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner, Result

from recd_plugins.cli.main import app
from recd_plugins.errors import DataError
from recd_plugins.notices import NoticeWarning
from recd_plugins.planning.access.access_profile import Profile
from recd_plugins.planning.access.trace import Trace, profile_trace

LENGTHS = np.array([[2, 0, 1, 1], [1, 1, 1, 1]])
INDICES = np.array([3, 3, 1, 3, 0, 0, 0, 1])
OFFSETS = np.concatenate([[0], LENGTHS.reshape(-1).cumsum()])

REGISTRY = """
plugins: [recd_dlrm, recd_flexshard]
folder: {folder}
dataset: {{use: sessions, samples: 1_024}}
model: {{use: sequence_dlrm, embedding_dim: 8}}
sharding: {{use: flexshard, others: {{search: greedy}}}}
train: {{ranks: 2, batch_size: 32, device: cpu}}
"""


def test_tables_lie_one_after_the_other() -> None:
    trace = Trace(indices=INDICES, lengths=LENGTHS)
    assert (trace.num_tables, trace.samples) == (2, 4)
    for exact_rows in (1000, 0):
        found = profile_trace(
            trace, {"a": (0, 4), "b": (1, 2)}, batch_size=2, exact_rows=exact_rows
        )
        assert found.samples == 4
        assert found["a"].p.tolist() == [3 / 4, 1 / 4, 0]
        assert found["a"].hottest(2).tolist() == [3, 1]
        assert found["b"].p.tolist() == [3 / 4, 1 / 4]
    assert profile_trace(trace, {"a": (0, 4)}, batch_size=3).samples == 3
    with pytest.raises(DataError, match=r"table 'b', the trace's number 0: .*id 3 is not in"):
        profile_trace(trace, {"b": (0, 2)}, batch_size=2)


def test_it_comes_from_every_kind_of_file(tmp_path: Path) -> None:
    tensors = tuple(map(torch.from_numpy, (INDICES, OFFSETS, LENGTHS)))
    torch.save(tensors, tmp_path / "t.pt")
    with gzip.open(tmp_path / "t.pt.gz", "wb") as file:
        torch.save(tensors, file)
    np.savez(tmp_path / "t.npz", indices=INDICES, lengths=LENGTHS)
    for name in ("t.pt", "t.pt.gz", "t.npz"):
        trace = Trace.load(tmp_path / name)
        assert np.array_equal(trace.indices, INDICES)
        assert np.array_equal(trace.lengths, LENGTHS)
    np.savez(tmp_path / "one.npz", indices=INDICES, offsets=OFFSETS)
    assert Trace.load(tmp_path / "one.npz").num_tables == 1


def test_what_is_no_trace_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text.pt").write_text("no trace")
    np.savez(tmp_path / "names.npz", ids=INDICES)
    np.savez(tmp_path / "short.npz", indices=INDICES[1:], lengths=LENGTHS)
    np.savez(tmp_path / "floats.npz", indices=INDICES * 0.5, lengths=LENGTHS)
    torch.save({"indices": torch.zeros(3)}, tmp_path / "mapping.pt")
    torch.save(Path("anything that runs"), tmp_path / "object.pt")
    for name, says in (
        ("gone.npz", "there is no such file"),
        ("text.pt", "cannot be read as a trace. A trace is a .npz of"),
        ("mapping.pt", "cannot be read as a trace"),
        ("object.pt", "cannot be read as a trace"),
        ("names.npz", "has ids. A trace is"),
        ("floats.npz", "indices are no integers"),
        ("short.npz", "lengths of 8 ids in all are not those of 7 indices"),
    ):
        with pytest.raises(DataError, match=says):
            Trace.load(tmp_path / name)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With prepared tables, once the first test has run."""
    found = tmp_path_factory.mktemp("profiled")
    (found / "registry.yaml").write_text(REGISTRY.format(folder=found / "data"))
    return found


def run(folder: Path, *arguments: str) -> Result:
    return CliRunner().invoke(app, [*arguments, "--registry", str(folder / "registry.yaml")])


def test_every_ranks_share_is_counted_or_one(folder: Path) -> None:
    counted = {}
    for which in ((), ("--rank", "0"), ("--rank", "1")):
        result = run(folder, "data", "profile", *which, "--save", str(folder / "p"), "--json")
        assert result.exit_code == 0, result.output
        counted[which] = json.loads(result.stdout)
    everyone, *each = counted.values()
    assert everyone["samples"] == sum(one["samples"] for one in each)
    for name, rows in everyone["rows"].items():
        total = sum(one["rows"][name]["lookups"] * one["samples"] for one in each)
        assert rows["lookups"] * everyone["samples"] == pytest.approx(total)
        assert rows["looked_up"] >= max(one["rows"][name]["looked_up"] for one in each)
    refused = run(folder, "data", "profile", "--rank", "2", "--save", str(folder / "p"))
    assert "--rank: there is no rank 2 of 2" in refused.stderr


def test_features_have_distributions_of_their_own(folder: Path) -> None:
    by_feature = folder / "features.arrow"
    shown = run(folder, "data", "profile", "--per-feature", "--save", str(by_feature))
    assert shown.exit_code == 0, shown.output
    assert "of the hottest 1% of rows" in shown.stdout
    run(folder, "data", "profile", "--save", str(folder / "tables.arrow"))
    features, tables = Profile.load(by_feature), Profile.load(folder / "tables.arrow")
    assert len(features.rows) >= len(tables.rows)
    for part in (features, tables):
        total = sum(rows.lookups for rows in part.rows.values())
        assert total == pytest.approx(sum(rows.lookups for rows in tables.rows.values()))


def test_a_trace_is_profiled_for_the_models_tables_and_planned_with(folder: Path) -> None:
    run(folder, "data", "profile", "--save", str(folder / "tables.arrow"))
    names = list(Profile.load(folder / "tables.arrow").rows)
    draw = np.random.default_rng(0)
    lengths = np.full((len(names), 64), 3)
    np.savez(folder / "t.npz", indices=draw.integers(0, 9, lengths.sum()), lengths=lengths)
    saved = folder / "trace.arrow"
    result = run(folder, "data", "profile", "--trace", str(folder / "t.npz"), "--save", str(saved))
    assert result.exit_code == 0, result.output
    profile = Profile.load(saved)
    assert list(profile.rows) == names
    assert all(rows.lookups == pytest.approx(3) for rows in profile.rows.values())
    with pytest.warns(NoticeWarning, match="flexshard is not used"):  # no row is hot
        assert run(folder, "plan", f"sharding.profile={saved}").exit_code == 0

    def refused(*arguments: str) -> str:
        trace = ("--trace", str(folder / "small.npz"), "--save", str(saved))
        result = run(folder, "data", "profile", *trace, *arguments)
        assert result.exit_code == 2
        return result.stderr

    np.savez(folder / "small.npz", indices=INDICES, lengths=LENGTHS)
    assert f"--trace: has 2 tables, but the model has {len(names)}: {names[0]}" in refused()
    assert f"no table {names[0][1:]!r}; did you mean" in refused("--table", f"{names[0][1:]}=0")
    assert "has 2 tables, numbered from 0" in refused("--table", f"{names[0]}=2")
    for option in (["--batches", "2"], ["--rank", "0"], ["--per-feature"]):
        assert f"{option[0]}: a trace has only tables" in refused(*option)
    placed = ["--table", f"{names[-1]}=1", "--save", str(saved), "--json"]
    one = run(folder, "data", "profile", "--trace", str(folder / "small.npz"), *placed)
    assert json.loads(one.stdout)["rows"][names[-1]]["lookups"] == 1


@pytest.mark.parametrize("offsets", [[2, 5], [], 5, [[0, 3]]])
def test_offsets_begin_at_0(tmp_path: Path, offsets: object) -> None:
    """As many ids as they say are not enough: they would be other samples' ids."""
    np.savez(tmp_path / "t.npz", indices=np.arange(3), offsets=np.array(offsets, np.int64))
    with pytest.raises(DataError, match=r"t\.npz: trace: offsets .* begins at 0\. A trace is"):
        Trace.load(tmp_path / "t.npz")


@pytest.mark.parametrize("name", ["t.npz", "t.pt.gz"])
def test_a_packed_trace_that_is_damaged_is_named(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    if name == "t.npz":
        np.savez_compressed(path, indices=np.arange(4_000) % 97, offsets=np.arange(4_001))
    else:
        path.write_bytes(gzip.compress(bytes(range(256)) * 40))
    whole = path.read_bytes()
    for at in range(30, 130):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x55]) + whole[at + 1 :])
        try:
            Trace.load(path)
        except DataError as error:
            assert str(path) in str(error)  # noqa: PT017
