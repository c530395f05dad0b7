"""Ladder: `recd plan` and `recd explain` as a person runs them, on a small registry."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from trio import in_mapped_files
from typer.testing import CliRunner, Result

from recd_plugins.cli.main import app
from recd_plugins.cli.plan import _write
from recd_plugins.errors import CapabilityError
from recd_plugins.planning.access.access_profile import Profile
from recd_plugins.planning.cluster.topology import Topology
from recd_plugins.planning.planner_bases import Tiered
from recd_plugins.planning.tier_plans.tier_plan import TierPlan
from recd_plugins.stack import plan_in_short

REGISTRY = """
plugins: [recd_dlrm, recd_flexshard]
folder: {folder}
dataset: {{use: sessions, samples: 4_096}}
model: {{use: sequence_dlrm, embedding_dim: 16}}
sharding: {sharding}
topology: {{ranks_per_node: 2, inter_node_gbps: 0.02, intra_node_gbps: 2}}
train: {{ranks: 4, batch_size: 64, device: cpu}}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With prepared tables, once the first test has run."""
    return tmp_path_factory.mktemp("plan")


TIERED = "{use: flexshard, others: {search: greedy}}"
PLAIN = "{use: torchrec, search: greedy}"


def run(folder: Path, *arguments: str, sharding: str = TIERED) -> Result:
    registry = folder / "registry.yaml"
    registry.write_text(REGISTRY.format(folder=folder / "data", sharding=sharding))
    return CliRunner().invoke(app, [*arguments, "--registry", str(registry)])


def test_plan_says_what_and_why_and_writes_what_is_asked_for(folder: Path) -> None:
    saved = {name: folder / name for name in ("plan.arrow", "profile.arrow", "curve.png")}
    result = run(
        folder,
        "plan",
        "sharding.goal=min_communication",
        "--save", str(saved["plan.arrow"]),
        "--save-profile", str(saved["profile.arrow"]),
        "--figure", str(saved["curve.png"]),
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert "goal min_communication; 2 nodes of 2 ranks, 64 samples" in result.stdout
    assert "faster than row-wise" in result.stdout
    assert "by TorchRec's performance model" in result.stdout
    plan, profile = TierPlan.load(saved["plan.arrow"]), Profile.load(saved["profile.arrow"])
    assert set(plan.tables) <= set(profile.rows)
    assert plan.world_size == 4
    assert saved["curve.png"].read_bytes().startswith(b"\x89PNG")


LOUD = """
from recd_plugins.api import Config, ShardingRecord, hookimpl
from recd_plugins.api.planning import Proposes

class Loud(Proposes):
    def __init__(self, config, context):
        self.said = print("built")

    def propose(self, model, topology, world_size):
        from torchrec.distributed.types import ShardingPlan
        print("proposed")
        return ShardingPlan(plan={})

    def explain(self):
        print("explained")
        return "because"

@hookimpl
def recd_sharding():
    return [ShardingRecord(name="loud", summary="It prints.", config=Config, build=Loud)]
"""


def test_what_a_planner_prints_is_no_part_of_what_a_command_prints(folder: Path) -> None:
    (folder / "loud_planner.py").write_text(LOUD)
    plugins = "plugins=[recd_dlrm, ./loud_planner.py]"
    result = run(folder, "plan", plugins, "--json", sharding="loud")
    assert json.loads(result.stdout) == {
        "plan": "because",
        "tiers": None,
        "drift": {},
        "against": {},
    }
    assert all(word in result.stderr for word in ("built", "proposed", "explained"))


def test_a_misspelt_dense_optimizer_is_found_by_planning(folder: Path) -> None:
    result = run(folder, "plan", "train.optimizer.dense=adan")
    assert result.exit_code == 2
    assert "train.optimizer.dense: torch.optim has no 'adan'" in result.stderr


@pytest.mark.slow
def test_plan_tells_how_long_hot_rows_stay_hot(folder: Path) -> None:
    before = folder / "before.arrow"
    goal = "sharding.goal=min_communication"
    run(folder, "plan", goal, "--save-profile", str(before))
    result = run(folder, "plan", goal, "--drift", str(before))
    assert result.exit_code == 0, result.output
    assert "hottest rows of before took" in result.stdout
    values = json.loads(run(folder, "plan", goal, "--drift", str(before), "--json").stdout)["drift"]
    for drift in values.values():
        assert drift["now"] == pytest.approx(drift["best"])  # the same day
        assert drift["stayed"] == 1
    other = folder / "other.arrow"
    rows = Profile.load(before).rows
    Profile(rows={name: one.part(0, one.num_rows - 1) for name, one in rows.items()}).save(other)
    refused = run(folder, "plan", goal, "--drift", str(other))
    assert refused.exit_code == 2
    assert f"--drift: {other}: table " in refused.stderr
    assert "these are not the same. Take profiles of one table" in refused.stderr


@pytest.mark.slow
def test_a_plan_is_compared_with_the_files_of_before_that_it_replaces(folder: Path) -> None:
    files = folder / "replaced.arrow", folder / "replaced_profile.arrow"
    goal = "sharding.goal=min_communication"
    saves = ("--save", str(files[0]), "--save-profile", str(files[1]))
    run(folder, "plan", goal, *saves)
    before = TierPlan.load(files[0])
    compares = ("--against", str(files[0]), "--drift", str(files[1]))
    result = run(
        folder, "plan", goal, "sharding.tiers=2", "dataset.seed=7", *compares, *saves, "--json"
    )
    assert result.exit_code == 0, result.output
    values = json.loads(result.stdout)
    for name, change in values["against"].items():
        assert change["per_node"][:2] == [len(before.tables[name].per_node), 0]
    assert any(drift["now"] < drift["best"] for drift in values["drift"].values())


def test_a_file_of_before_that_is_none_is_told_before_files_are_replaced(folder: Path) -> None:
    kept, none = folder / "kept.arrow", folder / "no_plan.arrow"
    kept.write_text("as it was")
    none.write_text("no plan")
    for option in ("--against", "--drift"):
        saves = ("--save", str(kept), "--save-profile", str(kept))
        goal = "sharding.goal=min_communication"
        refused = run(folder, "plan", goal, option, str(none), *saves)
        assert refused.exit_code == 2
        assert str(none) in refused.stderr
        assert kept.read_text() == "as it was"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--save", "{0}/one", "--save-profile", "{0}/one"), "--save-profile: {0}/one is the file"),
        (("--save", "{0}/p.png", "--figure", "{0}/./p.png"), "--figure: {0}/p.png is the file of"),
        (("--save", "{0}/registry.yaml"), "--save: {0}/registry.yaml is read here, and the output"),
        (("--save-profile", "{0}/registry.yaml"), "--save-profile: {0}/registry.yaml is read"),
    ],
)
def test_files_that_would_replace_each_other_are_refused(
    folder: Path, options: tuple[str, ...], says: str
) -> None:
    refused = run(folder, "plan", *(one.format(folder) for one in options))
    assert refused.exit_code == 2
    assert says.format(folder) in refused.stderr
    assert not [*folder.glob("one"), *folder.glob("p.png")]
    counted = run(folder, "data", "profile", "--save", str(folder / "registry.yaml"))
    assert counted.exit_code == 2
    assert "registry.yaml is read here" in counted.stderr
    assert (folder / "registry.yaml").read_text().startswith("\nplugins")


@in_mapped_files
def test_a_saved_plan_is_trained_by_and_compared(folder: Path) -> None:
    saved, goal = folder / "again.arrow", "sharding.goal=min_communication"
    run(folder, "plan", goal, "--save", str(saved))
    by_file = f"{{use: flexshard, plan: {saved}, others: {{search: greedy}}}}"
    result = run(folder, "plan", "--against", str(saved), sharding=by_file)
    assert result.exit_code == 0, result.output
    assert f"tier plan: as in {saved}; 2 nodes of 2 ranks" in result.stdout
    assert f"against {saved}: the same rows in each tier" in result.stdout
    fewer = run(folder, "plan", goal, "sharding.tiers=2", "--against", str(saved), "--json")
    plan = TierPlan.load(saved)
    for name, change in json.loads(fewer.stdout)["against"].items():
        assert change["per_node"][:2] == [len(plan.tables[name].per_node), 0]
    refused = run(folder, "plan", "--ranks", "8", sharding=by_file)
    assert refused.exit_code == 2
    assert f"sharding.plan: {saved} is for 2 nodes of 2 ranks, but here are 4" in refused.stderr
    homes, values = folder / "homes.arrow", {"host_memory_gb": 0.008, "mapped_ns": 0}
    values |= {"inter_node_gbps": 500, "intra_node_gbps": 500, "unique_ns": 500}
    little = [f"topology.{name}={value}" for name, value in values.items()]
    result = run(folder, "plan", *little, "--save", str(homes), "--against", str(saved))
    assert result.exit_code == 0, result.output
    assert f"t_user_id: against {saved}: home: memory -> mapped" in result.stdout
    assert TierPlan.load(homes).tables == {}  # where no row has a replica, homes alone are a plan
    assert "t_user_id" in TierPlan.load(homes).mapped


PLANLESS = """
from recd_plugins import hookimpl
from recd_plugins.config import Config
from recd_plugins.slots import ShardingRecord
class Shy:
    pass
@hookimpl
def recd_sharding():
    yield ShardingRecord(name="shy", summary="Shy.", config=Config, build=lambda *_: Shy())
"""


def test_a_planner_that_needs_its_ranks_is_named(folder: Path) -> None:
    (folder / "shy.py").write_text(PLANLESS)
    plugins = "plugins=[recd_dlrm, ./shy.py]"
    result = run(folder, "plan", plugins, sharding="shy")
    assert result.exit_code == 2
    assert "Shy plans only on the ranks themselves: it has no `propose`" in result.stderr


def test_plan_is_for_any_number_of_ranks_and_for_machines(folder: Path) -> None:
    result = run(folder, "plan", "--ranks", "8", "--json")
    assert result.exit_code == 0, result.output
    values = json.loads(result.stdout)["tiers"]
    assert (values["n_nodes"], values["ranks_per_node"]) == (4, 2)
    assert values["ms"]["plan"] <= values["ms"]["row_wise"]


def test_torchrecs_planner_plans_too_but_has_no_tiers(folder: Path) -> None:
    result = run(folder, "plan", sharding=PLAIN)
    assert result.exit_code == 0, result.output
    assert "by TorchRec's performance model" in result.stdout
    refused = run(folder, "plan", "--save", str(folder / "none.arrow"), sharding=PLAIN)
    assert refused.exit_code == 2
    assert "weighed no tiers" in refused.stderr
    assert not (folder / "none.arrow").exists()


def test_a_plan_that_is_not_taken_may_have_homes(folder: Path) -> None:
    """It is weighed, and the report of what would be slower is dropped."""
    planner: Any = Tiered()
    planner.profile, planner.mapped = Profile(rows={}), ("songs",)
    registry: Any = SimpleNamespace(topology=Topology(), train=SimpleNamespace(ranks=2))
    path = folder / "homes_alone.arrow"
    assert _write(planner, registry, path, None, None) is None
    assert TierPlan.load(path).mapped == ("songs",)
    with pytest.raises(CapabilityError, match="--figure: this planner weighed no tiers"):
        _write(planner, registry, None, None, path)


def test_explain_prices_a_row_with_its_formulas(folder: Path) -> None:
    result = run(folder, "explain", "--p", "0.01", "--row-bytes", "128")
    assert result.exit_code == 0, result.output
    for way in ("home", "column_wise", "replicated", "per_node"):  # as the columns are named
        assert f"The cost of `{way}`, " in result.stdout
    assert (
        "a row of 128 bytes, 0.01 lookups a sample, deduplicated by a factor of 1; 2 nodes of"
        in result.stdout
    )
    for formula in ("s (2 r + 8)", "k r / W", "appears(B W) N / 2", "U c f B s"):
        assert formula in result.stdout
    values = json.loads(run(folder, "explain", "--p", "0.01", "--json").stdout)
    assert values["home"]["a2a_global"] == pytest.approx(0.01 * 64 * (2 * 256 + 8))
    assert values["home by rank"]["ms"] < values["home"]["ms"]
    fewer = json.loads(
        run(folder, "explain", "--p", "0.01", "--dedupe-factor", "4", "--json").stdout
    )
    assert fewer["home"]["a2a_global"] == pytest.approx(values["home"]["a2a_global"] / 4)


def test_explain_has_the_papers_prices_too(folder: Path) -> None:
    paper = json.loads(run(folder, "explain", "--prices", "paper", "--json").stdout)
    assert paper["replicated"]["ar_global"] == 256
    assert paper["per_node"]["ar_cross"] == 256 / 2
    assert paper["replicated"]["static_memory"] == 6.25 * 256
    ours = json.loads(run(folder, "explain", "--json").stdout)
    assert ours["replicated"]["ar_global"] == 0
    # As the planner has it: gradients under way, and the state of row-wise Adagrad.
    assert ours["replicated"]["static_memory"] == pytest.approx((1.64 + 4 / 256) * 256)
    refused = run(folder, "explain", "--k", "0")
    assert refused.exit_code == 2


def test_ranks_that_need_not_be_there_need_no_streams_of_their_own(folder: Path) -> None:
    """`reader.streams` fits the ranks that train, not any number that is planned for."""
    result = run(folder, "plan", "reader.streams=2", "--ranks", "4", sharding=PLAIN)
    assert result.exit_code == 0, result.output
    assert "note: reader.streams is 2, but must be a multiple of 4" in result.stderr
    # A worker of the service reads for any stream, so theirs are not dealt out among those.
    plugins, reader = (
        "plugins=[recd_dlrm, recd_dsi]",
        "reader={use: service, workers: 3, streams: 8}",
    )
    fits = run(folder, "plan", plugins, reader, "--ranks", "4", sharding=PLAIN)
    assert (fits.exit_code, "note" in fits.stderr) == (0, False), fits.output


def test_lines_that_are_alike_are_few_unless_all_are_asked_for(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    every = run(folder, "plan", "--all", sharding=PLAIN)
    assert every.exit_code == 0, every.output
    for name in ("MOST_ALIKE", "SHOWN"):
        monkeypatch.setattr(plan_in_short, name, 1)
    short = run(folder, "plan", sharding=PLAIN)
    assert " tables: " in short.stdout.splitlines()[0]
    assert "lines more like these: `--all` prints them" in short.stdout
    assert run(folder, "plan", "--all", sharding=PLAIN).stdout == every.stdout
    values = json.loads(run(folder, "plan", "--json", sharding=PLAIN).stdout)
    assert values["plan"] == every.stdout.rstrip("\n")
