"""Ladder: orders of additions as values; tables whose truth is known, in process; the registry that
is written, trained on two gloo ranks."""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import sys
import tracemalloc
from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any, NamedTuple, cast

import numpy as np
import pytest
import torch
import torch.distributed as dist
import yaml
from forked import run_module
from torchrec.modules.embedding_configs import EmbeddingBagConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor
from typer.testing import CliRunner

from recd_plugins.additions import Addition, NotHere, Situation
from recd_plugins.advise.added_values import in_order, plain
from recd_plugins.advise.advice import RegistryAdvice, _absolute, advise
from recd_plugins.advise.advice_text import advice_lines, advised_registry, next_step
from recd_plugins.advise.goal import WORTH, AdviceGoal
from recd_plugins.advise.model_and_batches import ModelOfRegistry, ModelOfTrainer
from recd_plugins.advise.outlook import Outlooks, changes_in_words
from recd_plugins.advise.rank_compute import _shared
from recd_plugins.advise.to_measure import small_gains, to_measure
from recd_plugins.advise.trials import ALIKE, TriedRegistry, candidates, winner
from recd_plugins.advise.walk import Walk, Weighed, weigh, weigh_near
from recd_plugins.advise.what_ifs import _otherwise, what_may_differ
from recd_plugins.cli.loss_curve import steps_to_loss
from recd_plugins.cli.main import app
from recd_plugins.data.progress import silent
from recd_plugins.data.schema import Schema
from recd_plugins.embedding.adapt import DEDUP_COLLECTIONS
from recd_plugins.errors import CapabilityError, DataError, PluginError, RegistryError
from recd_plugins.hooks.catalog import Catalog, ClaimedAddition
from recd_plugins.hooks.imported import Provider
from recd_plugins.launch.machine_cores import machine_cores
from recd_plugins.planning.cluster.cluster import Cluster
from recd_plugins.planning.cluster.topology import Topology
from recd_plugins.planning.planner_bases import Tiered
from recd_plugins.planning.remembered import remembering
from recd_plugins.planning.step.compute import Compute
from recd_plugins.planning.tables.model_tables import ModelTable, model_tables
from recd_plugins.registry import Registry
from recd_plugins.sparse.features import SparseFeatures
from recd_plugins.stack import Stack, load
from recd_plugins.testing.gloo import GlooPool
from recd_plugins.testing.training import train_quietly
from recd_scars.additions import ADDITIONS

STRANGER = """
from recd_plugins.api import Addition, NotHere, hookimpl

ROW_WISE = {"use": "torchrec", "constraints": {"*": {"sharding_types": ["row_wise"]}}}

@hookimpl
def recd_additions():
    return [
        Addition(name="everything row-wise", summary="Slower.", after=("hot batches",),
                 add=lambda situation: {"sharding": ROW_WISE, "cache": None}),
        Addition(name="nowhere", summary="Never here.",
                 add=lambda situation: NotHere(f"{len(situation.tables)} tables are too few")),
        Addition(name="behind it", summary="Needs it.", needs=("nowhere",),
                 add=lambda situation: {}),
    ]
"""


OWN = Path(__file__).parents[2] / "examples" / "own_trainer"
TABLE = ModelTable(
    name="items",
    module="rows",
    pooled=False,
    num_rows=8,
    dim=4,
    element_bytes=4,
    features=("item",),
)


def registry(folder: Path, samples_per_session: float, **more: Any) -> dict[str, Any]:
    item = {"name": "item", "num_ids": 3_000, "table": "items", "skew": 1.2}
    history = {**item, "name": "history", "kind": "user", "sequence": True, "length": 48}
    return {
        "plugins": ["recd_dlrm"],
        "folder": str(folder),
        "dataset": {
            "use": "sessions",
            "samples": 4096,
            "test_fraction": 0.0625,
            "samples_per_session": samples_per_session,
            "features": [{**history, "stay": 0.95}, item],
        },
        "model": {"use": "sequence_dlrm", "embedding_dim": 32, "bottom": [16], "top": [16]},
        "pooling": {"history": "transformer"},
        "topology": {"ranks_per_node": 1, "inter_node_gbps": 0.01},
        "train": {"device": "cpu", "ranks": 2, "batch_size": 256, "steps": 3, "log_every": 1},
        **more,
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("advise")


@pytest.fixture(scope="module")
def of_sessions(folder: Path) -> RegistryAdvice:
    """On 16 samples a session, with a stranger's plugin, named by a path from where the registry
    lies, and a plan of the user's own."""
    stranger = folder / "stranger_plugin.py"
    stranger.write_text(STRANGER)
    mine = {"use": "flexshard", "goal": "budget", "budget_gb": 1e-5}
    plugins = ["recd_dlrm", "recd_flexshard", os.path.relpath(stranger)]
    values = registry(folder / "16", 16, plugins=plugins, sharding=mine)
    return advise(Registry.load(values), AdviceGoal(budget_gb=1e-4))


@pytest.mark.slow
def test_samples_that_repeat_are_deduplicated(of_sessions: RegistryAdvice) -> None:
    walk = of_sessions.walk
    assert {"clustering", "unique samples"} <= set(walk.kept)
    assert walk.best.groups
    dedup = dict(of_sessions.values["dedup"])
    # Of so small a model, the history alone is at times timed as the better by the 1% it takes.
    assert dedup.pop("features", ["history"]) == ["history"]
    assert dedup == {"use": "exact", "groups": "auto"}
    assert "recd_dedup" in of_sessions.values["plugins"]
    assert "dedup" not in walk.base.values
    assert of_sessions.as_given is not None  # which is no plain TorchRec


def test_no_row_gets_a_replica_without_a_budget(folder: Path) -> None:
    """Not even in the room that smaller exchanges leave: what does have replicas is then held to
    what they must save."""
    values = registry(folder / "1", 1, sharding="flexshard")
    values["plugins"].append("recd_flexshard")
    values["train"]["retier_every"] = 2
    given = Registry.load(values)
    advice = advise(given, AdviceGoal(), with_what_ifs=False)
    assert "coalescing" in advice.walk.kept
    assert advice.values["train"]["retier_every"] == 2  # by a planner that moves replicas
    assert not advice.left_out
    walk = advice.walk
    of_torchrec = replace(walk, best=replace(walk.best, retiers=False))
    without = replace(advice, walks={advice.batch_size: of_torchrec})
    assert "retier_every" not in without.values["train"]
    assert without.left_out.startswith("train.retier_every is left out: ")
    assert not any(one.copies for one in advice.walk.met.values())
    with_budget = advise(given, AdviceGoal(budget_gb=1e-3), with_what_ifs=False)
    copies = {names for names, one in with_budget.walk.met.items() if one.copies}
    assert copies
    assert all({"tiers", "hot batches"} & set(names) for names in copies)


@pytest.mark.slow
def test_what_is_advised_is_never_slower_and_each_part_of_it_pays(
    of_sessions: RegistryAdvice,
) -> None:
    walk = of_sessions.walk
    assert walk.best.ms < (1 - WORTH) * walk.base.ms
    assert all(walk.best.ms <= (1 + WORTH) * one.outlook.ms for one in walk.weighed if one.outlook)
    for one in walk.weighed:
        assert one.why
        if one.verdict == "kept":
            assert one.at_the_end is None or one.at_the_end >= WORTH
    assert walk.best.over(walk.base) <= 1e-4 * 2**30


@pytest.mark.slow
def test_a_strangers_additions_are_weighed_like_any(of_sessions: RegistryAdvice) -> None:
    found = {one.name: one for one in of_sessions.walk.weighed}
    assert found["everything row-wise"].verdict == "left out"
    assert found["nowhere"].why.endswith("tables are too few")
    assert found["behind it"].verdict == "not here"
    assert "nowhere" in found["behind it"].why


@pytest.mark.slow
def test_it_says_what_would_change_the_advice_and_what_to_measure(
    of_sessions: RegistryAdvice,
) -> None:
    asked = {one.name: one for one in of_sessions.what_ifs}
    assert {"links twice as fast", "the batch doubled"} <= asked.keys()
    assert "half as many samples of a session" in asked
    for one in asked.values():
        assert one.walk is not None, one.why
    faster = asked["links twice as fast"].walk
    assert faster is not None
    assert faster.base.ms < of_sessions.walk.base.ms
    assert any("recd topology measure" in one for one in of_sessions.to_measure)
    json.dumps(of_sessions.summary())


@pytest.mark.slow
def test_samples_that_do_not_repeat_are_left_with_the_reason(folder: Path) -> None:
    values = registry(folder / "1", 1)
    values["train"]["ranks"] = 4
    advice = advise(Registry.load(values), AdviceGoal(), ranks=2, with_what_ifs=False)
    assert not {"clustering", "unique samples"} & set(advice.walk.kept)
    assert advice.values["train"]["ranks"] == 2  # which it is for
    assert "dedup" not in advice.values
    assert "etl" not in advice.values
    (left,) = (one for one in advice.walk.weighed if one.name == "unique samples")
    assert "factor" in left.why  # what was measured of the features
    assert {one.name: one.why for one in advice.walk.weighed}["tiers"].count("--budget-gb")


def test_the_registry_that_is_written_trains(folder: Path, gloo_pool: GlooPool) -> None:
    given, out = folder / "given.yaml", folder / "advised.yaml"
    given.write_text(yaml.safe_dump(registry(folder / "16", 16)))
    command = ["advise", "-r", str(given), "--no-what-ifs", "--budget-gb", "1e-4"]
    ran = CliRunner().invoke(app, [*command, "-o", str(out), "--json"])
    assert ran.exit_code == 0, ran.output
    found = json.loads(ran.stdout)
    assert "unique samples" in found["advised"]["additions"]
    assert found["advised"]["ms"] < found["baseline"]["ms"]
    assert Registry.load(out).source.values == found["registry"]
    expected = found["registry"]["train"]["forecast_ms"]
    assert expected == pytest.approx(found["advised"]["ms"], rel=0.01)
    refused = CliRunner().invoke(app, [*command, "-o", str(out)])
    assert refused.exit_code == 2
    assert "--force" in refused.output
    overrides = [f"train.run={folder / 'run'}"]
    values = Registry.load(out, overrides).source.values
    summary, *_ = gloo_pool.run(train_quietly, values, world_size=2)
    assert 0 < summary["train"]["loss"] < 2
    step = next(one for one in summary["forecasts"] if one["what"] == "ms of a step")
    assert step["forecast"] == expected
    assert step["fact"] == summary["cost"]["step_ms"]
    longer = step["fact"] > 1.1 * expected
    assert ("leaves out metrics" in step["note"]) == longer


def exchanged(registry: str) -> float:
    """Bytes that a rank hands to collectives, by the plan of a trainer that loads the registry."""
    model, loader = importlib.import_module("before").parts(dist.get_rank())
    stack = load(registry)
    stack.plan(model, batches=loader)
    planner = stack.planner()
    assert isinstance(planner, Tiered)
    return 0.0 if planner.report is None else planner.report.ledger.cost.exchanged


@pytest.mark.filterwarnings("ignore:This API is deprecated:DeprecationWarning")  # TorchRec's
def test_a_trainers_own_model_and_loader_are_advised_on(
    tmp_path: Path, gloo_pool: GlooPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is written is for `stack.plan` of that trainer, which counts what the advice counted."""
    monkeypatch.syspath_prepend(OWN)
    links = {"ranks_per_node": 1, "inter_node_gbps": 1e-4}  # whose times no computing comes near
    given = Registry.load({"plugins": ["recd_flexshard"], "topology": links})
    trainer = ModelOfTrainer.named(f"{OWN}/before.py:parts")
    advice = advise(given, AdviceGoal(), ranks=2, trainer=trainer)
    assert advice.walk.kept == ("coalescing",)
    assert advice.walk.best.ms < 0.9 * advice.walk.base.ms
    assert not any(one.copies for one in advice.walk.met.values())  # there is no budget
    assert advice.batch_size == 256
    assert "the batch doubled" not in {one.name for one in advice.what_ifs}
    reasons = {one.name: one.why for one in advice.walk.weighed}
    assert "own loader" in reasons["clustering"]
    out = tmp_path / "advised.yaml"
    out.write_text(advised_registry(advice))
    assert Registry.load(out).source.values == advice.values
    assert advice.values.keys() == {"plugins", "sharding", "topology"}
    assert "stack.plan(model, batches=loader)" in next_step(advice, out)
    first, _ = gloo_pool.run(exchanged, str(out), world_size=2)
    forecast = sum(advice.walk.best.bytes_by_link.values())
    assert first == pytest.approx(forecast, rel=0.03)  # which is of both ranks' batches


@pytest.mark.filterwarnings("ignore:This API is deprecated:DeprecationWarning")  # TorchRec's
@pytest.mark.parametrize("device", [None, "cuda"])
def test_a_topology_that_names_no_device_is_one_of_those_that_train(device: str | None) -> None:
    values = {
        "plugins": ["recd_flexshard"],
        "topology": {"ranks_per_node": 1, "inter_node_gbps": 1e-4, "device": device},
        "sharding": {
            "use": "flexshard",
            "goal": "budget",
            "budget_gb": 0.01,
            "coalesce": "rank",
            "tables": ["item"],
        },
        "train": {"device": "cpu"},
    }
    trainer = ModelOfTrainer.named(f"{OWN}/before.py:parts")
    outlook = Outlooks(Registry.load(values), 2, source=trainer).of(values)
    assert any(one.has_replicas for one in outlook.ledger.tables.values())
    assert outlook.copies == (device is None)


@pytest.mark.filterwarnings("ignore:This API is deprecated:DeprecationWarning")  # TorchRec's
def test_a_model_that_is_timed_once_sends_gradients_in_the_bits_of_each_registry() -> None:
    links = {"ranks_per_node": 1, "inter_node_gbps": 1e-4}
    values = {"topology": links, "train": {"device": "cpu"}}
    trainer = ModelOfTrainer.named(f"{OWN}/before.py:parts")
    outlooks = Outlooks(Registry.load(values), 2, source=trainer)
    whole, halved = (
        outlooks.of({**values, "train": {"device": "cpu", "codecs": {"dense": dense}}}).step
        for dense in ("fp32", "bf16")
    )
    assert halved.compute.dense == whole.compute.dense  # of the same clock
    sent, half = (one.parts["dense_reduce"] for one in (whole, halved))
    assert sent > 1
    assert half == pytest.approx(sent / 2, rel=0.05)  # but for latencies


def test_a_rank_computes_on_its_threads_and_on_no_more_than_its_share_of_the_cores() -> None:
    cores = machine_cores()
    timed = Compute(dense=1.0 / torch.get_num_threads(), call=1.0)  # 1 s of one thread
    alone, whole, many = (_shared(timed, 2.0, 1, threads) for threads in (1, cores, 2 * cores))
    assert (alone.dense, alone.fixed, alone.call) == (pytest.approx(1.0), 2.0, 1.0)
    assert whole.dense == many.dense == pytest.approx(1.0 / cores)
    crowd = _shared(timed, 2.0, 2 * cores, 1)
    assert (crowd.dense, crowd.fixed, crowd.call) == (pytest.approx(2.0), 4.0, 2.0)
    slower, as_crowded = _shared(timed, 2.0, 1, 1, 1.5), _shared(timed, 2.0, 2 * cores, 1, 1.5)
    assert (slower.dense, slower.fixed, slower.call) == (pytest.approx(1.5), 3.0, 1.5)
    assert as_crowded == crowd  # to wait its turn is all that made it slower


class Scored(torch.nn.Module):
    """Bags of ids, and of others by their scores, which come in a KJT of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.ids, self.scored = (
            EmbeddingBagCollection(
                [
                    EmbeddingBagConfig(
                        name=f"t_{key}", embedding_dim=16, num_embeddings=500, feature_names=[key]
                    )
                ],
                is_weighted=key == "liked",
                device=torch.device("meta"),
            )
            for key in ("seen", "liked")
        )

    def forward(self, batch: tuple[Any, Any]) -> torch.Tensor:
        ids, scored = batch
        return self.ids(ids).values().sum() + self.scored(scored).values().sum()


class ScoredBatch(NamedTuple):
    ids: KeyedJaggedTensor
    scored: KeyedJaggedTensor

    def to(self, device: torch.device, non_blocking: bool = False) -> ScoredBatch:
        return self


def scored_batch(seed: int) -> ScoredBatch:
    draw = torch.Generator().manual_seed(seed)
    rows = torch.randint(0, 8, (2, 256), generator=draw)
    every = [torch.tensor([1] * 64 + [0] * 64), torch.tensor([4] * 64 + [0] * 64)]
    seen = KeyedJaggedTensor(["seen"], rows[0][:64], lengths=every[0])
    liked = KeyedJaggedTensor(["liked"], rows[1], weights=torch.ones(256), lengths=every[1])
    return ScoredBatch(seen, liked)


def test_all_kjts_that_a_trainer_names_are_counted() -> None:
    """Copies pay of both tables; only the first KJT's samples may be deduplicated."""
    links = {"ranks_per_node": 1, "inter_node_gbps": 1e-4}
    given = Registry.load(
        {"plugins": ["recd_dedup", "recd_flexshard", "recd_scars"], "topology": links}
    )
    loader = [scored_batch(seed) for seed in range(4)]
    trainer = ModelOfTrainer(Scored(), loader, list)
    reports: list[tuple[str, int, int | None]] = []

    def progress(*report: Any) -> None:
        reports.append(report)

    goal = AdviceGoal(budget_gb=1.0)
    advice = advise(given, goal, ranks=2, trainer=trainer, progress=progress)
    assert advice.batch_size == 128
    assert advice.walk.kept == ("tiers",)
    assert ("batches counted", 4, 4) in reports
    assert "stack.plan(model, batches=loader, features=features)" in next_step(advice, Path("a"))
    lookups = {name: one.table.rows.lookups for name, one in advice.walk.base.ledger.tables.items()}
    assert lookups == pytest.approx({"t_seen": 0.5, "t_liked": 2.0})
    one = KeyedJaggedTensor(["seen"], torch.tensor([1]), lengths=torch.tensor([1]))
    assert not [one for one in advice.to_measure if "of no row" in one]
    uneven = ModelOfTrainer(Scored(), [loader[0]._replace(ids=one)], list)
    with pytest.raises(DataError, match=r"have \[1, 128\] samples, so it is unknown which"):
        _ = uneven.batch_size


class OneMemory:
    """A loader that writes each batch over the one before, as one with buffers of its own."""

    def __iter__(self) -> Iterator[ScoredBatch]:
        memory = scored_batch(0)
        for seed in range(4):
            for kept, one in zip(memory, scored_batch(seed), strict=True):
                kept.values().copy_(one.values())
            yield memory


def test_batches_that_their_loader_writes_over_each_other_are_seen_each() -> None:
    links = {"ranks_per_node": 1, "inter_node_gbps": 1e-4}
    stack = load({"plugins": ["recd_flexshard"], "topology": links})
    seen, expected = (
        [
            batch.features.values().tolist()
            for batch in ModelOfTrainer(Scored(), loader, list).spread(stack, 2)
        ]
        for loader in (OneMemory(), [scored_batch(seed) for seed in range(4)])
    )
    assert len(seen) == 4
    assert seen == expected


@pytest.mark.parametrize("ids", [0, 16, 64])
def test_ids_of_no_row_are_told_and_a_model_that_maps_them_is_not_advised_on(ids: int) -> None:
    """So many of the first table's 64 of a batch are: nobody would look its rows up by those."""

    def batch(seed: int) -> ScoredBatch:
        made = scored_batch(seed)
        values = made.ids.values().clone()
        values[:ids] += 10**12
        return made._replace(ids=KeyedJaggedTensor(["seen"], values, lengths=made.ids.lengths()))

    links = {"ranks_per_node": 1, "inter_node_gbps": 1e-4}
    given = Registry.load({"plugins": ["recd_flexshard"], "topology": links})
    trainer = ModelOfTrainer(Scored(), [batch(seed) for seed in range(4)], list, name="mine")
    if ids == 64:
        with pytest.raises(DataError, match=r"^mine: most ids .* for table t_seen have no row"):
            advise(given, AdviceGoal(), ranks=2, with_what_ifs=False, trainer=trainer)
        return
    advice = advise(given, AdviceGoal(), ranks=2, with_what_ifs=False, trainer=trainer)
    said = [one for one in advice.to_measure if "of no row" in one]
    assert len(said) == bool(ids)
    assert all("table t_seen" in one and "25.00%" in one for one in said), said


def test_a_trainer_that_ends_the_process_when_imported_is_told(tmp_path: Path) -> None:
    file = tmp_path / "ends_when_imported.py"
    file.write_text("def parts(): ...\n\nimport sys\nsys.exit(0)\n")
    with pytest.raises(DataError, match=r"\.py:parts: its import raised SystemExit: 0\. Run recd"):
        ModelOfTrainer.named(f"{file}:parts")
    sys.path.remove(str(tmp_path))


@dataclasses.dataclass
class Mine:
    features: KeyedJaggedTensor


def test_batches_of_a_trainer_that_nothing_can_be_said_of_are_refused() -> None:
    kjt = KeyedJaggedTensor(["item"], torch.tensor([1]), lengths=torch.tensor([1]))

    def unread() -> Iterator[Any]:
        yield pytest.fail("a batch is read before what was asked for is refused")

    def of(batch: Any) -> ModelOfTrainer:
        return ModelOfTrainer(torch.nn.Identity(), [batch], name="mine.py:parts")

    empty = ModelOfTrainer(torch.nn.Identity(), [], name="mine.py:parts")
    with pytest.raises(DataError, match=r"its loader is empty, .* Let it yield batches"):
        _ = empty.batch_size
    with pytest.raises(DataError, match=r"mine\.py:parts: its batches hold a SparseFeatures"):
        _ = of(SparseFeatures.of(kjt)).batch_size
    for batch, who in (({"item": kjt}, "make them of a class that has"), (Mine(kjt), "write")):
        says = rf"mine\.py:parts: its batches, .*, have no method `to`, .*: {who} `to\(self, "
        with pytest.raises(DataError, match=says):
            of(batch).compute(load({"train": {"device": "cpu"}}), 1, 1)
    trainer = ModelOfTrainer(torch.nn.Identity(), unread())
    with pytest.raises(RegistryError, match="--batch-size"):
        advise(Registry.load({}), AdviceGoal(), batch_sizes=[2], trainer=trainer)


def test_proposals_that_are_remembered_are_those_that_torchrec_makes(folder: Path) -> None:
    def proposed(batch_size: int) -> tuple[str, str]:
        stack = load({**registry(folder / "16", 16), "sharding": "torchrec"})
        train = {**stack.registry.source.values["train"], "batch_size": batch_size}
        stack = load({**stack.registry.source.values, "train": train})
        planner = stack.planned_for(stack.model(), 2)
        return repr(stack.proposed), planner.explain()

    alone = [proposed(size) for size in (256, 4096)]
    with remembering():
        assert [proposed(size) for size in (256, 4096, 256, 4096)] == [*alone, *alone]


def test_a_model_is_built_once_for_all_that_have_it_alike_and_stays_as_it_is(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build, built = Stack.model, []
    monkeypatch.setattr(Stack, "model", lambda stack: built.append(stack) or build(stack))
    source, values = ModelOfRegistry(), registry(folder / "16", 16)
    dedup = {
        "plugins": ["recd_dlrm", "recd_dedup"],
        "dedup": {"use": "exact", "groups": [["history"]]},
    }

    def model(**more: Any) -> torch.nn.Module:
        return source.model(load({**values, **more}), silent)

    plain, adapted = model(), model(**dedup)
    assert any(isinstance(one, DEDUP_COLLECTIONS) for one in adapted.modules())
    assert not any(isinstance(one, DEDUP_COLLECTIONS) for one in plain.modules())
    assert repr(model()) == repr(plain)
    assert model(topology="a100_dgx") is plain
    assert model_tables(adapted).keys() == model_tables(plain).keys()
    assert len(built) == 1
    wider = model(model={**values["model"], "embedding_dim": 64})
    assert {one.dim for one in model_tables(wider).values()} == {64}
    assert len(built) == 2


@pytest.mark.slow
def test_what_was_tried_needs_no_trial_to_be_sure_of(of_sessions: RegistryAdvice) -> None:
    walk, registry = of_sessions.walk, of_sessions.registry
    small = replace(next(one for one in walk.weighed if one.outlook), gain=0.1, at_the_end=0.0)

    def asked(*tried: tuple[str, ...]) -> str:
        close = replace(walk, weighed=[small])
        lines = to_measure(registry, of_sessions.goal, close, [1], tried=tried)
        return next((line for line in lines if "a trial can tell" in line), "")

    assert asked() == f"{small.name}: the gain is so small that only a trial can tell: --try"
    assert asked(()).endswith("a larger --try")
    assert asked((), (small.name, "other")) == ""


@pytest.mark.slow
def test_the_line_of_what_is_advised_is_that_of_what_won_by_training(
    of_sessions: RegistryAdvice,
) -> None:
    walk = of_sessions.walk
    every = ((), walk.base, 1.0), (walk.kept, walk.best, 2.0)
    sides = [TriedRegistry(additions=names, outlook=one, rounds=[ms]) for names, one, ms in every]
    tried = replace(of_sessions, trials=sides)

    def advised(advice: RegistryAdvice) -> str:
        return next(line for line in advice_lines(advice) if line.startswith("advised "))

    assert f"{walk.best.ms:.3g}" in advised(of_sessions).split()
    assert advised(tried).split()[:4] == ["advised", "by", "training", f"{walk.base.ms:.3g}"]
    assert tried.values["train"]["forecast_ms"] == 1.0  # what it took, whatever was forecast
    assert "# Trained here, it took 1 ms" in advised_registry(tried)
    assert "Trained here" not in advised_registry(of_sessions)


@pytest.mark.slow
def test_one_rank_is_told_that_its_bytes_come_back_to_itself(
    of_sessions: RegistryAdvice, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = of_sessions.walk.base
    assert "exchanged a rank" in changes_in_words(base, base)
    monkeypatch.setattr(type(base.ledger.prices.cluster), "world_size", 1)
    lines = list(advice_lines(of_sessions))
    assert lines[1].startswith("one rank exchanges nothing")
    assert any("to itself  between nodes" in line for line in lines)
    assert not any("exchanged  between nodes" in line for line in lines)
    assert "exchanged a rank" not in changes_in_words(base, base)


@pytest.mark.slow
def test_what_is_advised_is_beaten_by_what_is_faster_most_of_the_time(
    of_sessions: RegistryAdvice,
) -> None:
    walk, goal = of_sessions.walk, AdviceGoal()

    def taken(by: AdviceGoal = goal, **rounds: list[float]) -> tuple[str, ...]:
        each = {"base": (), "mine": walk.kept, "more": (*walk.kept, "more")}
        sides = [
            TriedRegistry(additions=each[name], outlook=walk.best, rounds=ms)
            for name, ms in rounds.items()
        ]
        return winner(sides, by, walk.kept).additions

    mine = [10.0, 10.0, 10.0, 10.0]
    lucky, faster = [9.0, 9.0, 10.5, 10.5], [9.0, 9.0, 9.0, 10.5]
    assert taken(base=[10.1] * 4, mine=mine, more=lucky) == walk.kept
    assert taken(base=[10.1] * 4, mine=mine, more=faster) == (*walk.kept, "more")
    assert taken(base=lucky, mine=mine) == ()  # which is simpler
    assert taken(base=[9.9] * 4, mine=mine) == walk.kept
    assert taken(AdviceGoal(objective="memory"), base=mine, mine=mine, more=faster) == walk.kept


@pytest.mark.slow
def test_what_is_tried_is_trained_beside_the_baseline_and_the_faster_is_taken(
    folder: Path, tmp_path: Path
) -> None:
    given = tmp_path / "given.yaml"
    given.write_text(yaml.safe_dump(registry(folder / "16", 16)))
    options = ["--no-what-ifs", "--try", "1", "--rounds", "1", "--steps", "1", "--json"]
    ran = run_module("recd_plugins", "advise", "-r", str(given), *options, folder=tmp_path)
    assert ran.code == 0, ran.err
    found = json.loads(ran.out)
    base, other = found["trials"]
    assert base["additions"] == []
    assert min(base["ms"], other["ms"]) > 0
    slower, faster = sorted((base, other), key=lambda one: -one["ms"])
    taken = found["advised"]["additions"]
    assert taken == faster["additions"] or slower["ms"] <= (1 + ALIKE) * faster["ms"]
    assert ("dedup" in found["registry"]) == ("unique samples" in taken)
    took = next(one["ms"] for one in found["trials"] if one["additions"] == taken)
    assert found["registry"]["train"]["forecast_ms"] == pytest.approx(took, rel=0.01)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--objective", "time_to_loss"], "--curve"),
        (["--objective", "time_to_loss", "--curve", "{folder}/odd.json"], "recd tune loss"),
        (["--curve", "{folder}/none.json"], "go together"),
        (["--test", "{folder}"], "--table"),
        (["-r", "registry.yaml", "--trainer", "{own}/before.py:parts", "--test", "."], "--table"),
        (["dataset=null"], "recd advise --table TABLE"),
        (["--trainer", "{own}/before.py:parts"], "registry's own, {folder}/r.yaml, and"),
        (["--trainer", "{own}/before.py:part"], "has no function 'part'; did you mean 'parts'"),
        (["--trainer", "{own}/before.py"], "names no function"),
        (["--trainer", "{folder}/before.py:parts"], "there is no file"),
        (["--trainer", "~no-such-user/before.py:parts"], "home of a user who is not known"),
        (["--trainer", "{folder}/r.yaml:parts"], "r.yaml is no file of Python. Name one that ends"),
        (["--trainer", "no_such_module:parts"], "named 'no_such_module'. Run recd with --debug"),
        (["--trainer", "json:JSONDecoder"], "it returned JSONDecoder"),
        (["--trainer", "json:loads"], "it raised TypeError"),
        (["--try", "1", "topology=a100_dgx"], "the topology has cuda devices"),
        (["train.batch_size=100000"], "rows fill no batch of 100000 on each of 2"),
        (["--out", "{folder}"], "folder"),
        (["--try", "1", "--ranks", "4096"], "4,096 ranks would train at once on this machine"),
    ],
)
def test_what_cannot_be_is_refused_with_what_to_do(
    options: list[str], says: str, tmp_path: Path
) -> None:
    (tmp_path / "odd.json").write_text('{"sides": 3}')
    (tmp_path / "r.yaml").write_text(yaml.safe_dump(registry(tmp_path, 4)))
    options = [one.format(folder=tmp_path, own=OWN) for one in options]
    ran = CliRunner().invoke(app, ["advise", "-r", str(tmp_path / "r.yaml"), *options])
    assert ran.exit_code == 2
    assert says.format(folder=tmp_path) in ran.output


def test_a_curve_of_other_ranks_goes_by_the_samples_of_a_step(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [(64, 100), (96, 80), (128, None)]
    sides = {"without cache": [{"batch_size": size, "steps": steps} for size, steps in rows]}
    curve = tmp_path / "curve.json"
    curve.write_text(json.dumps({"loss": 0.5, "window": 256, "ranks": 2, "sides": sides}))
    assert steps_to_loss(curve, 2) == {64: 100, 96: 80}
    assert not capsys.readouterr().err
    assert steps_to_loss(curve, 4) == {32: 100, 48: 80}
    assert "is of 2 ranks; by it 4 ranks may have 32, 48 each." in capsys.readouterr().err
    assert steps_to_loss(curve, 128) == {1: 100}
    with pytest.raises(DataError, match=r"5 ranks can share .* none .*train\.ranks=5"):
        steps_to_loss(curve, 5)


@pytest.mark.parametrize(("epochs", "told"), [(2.5, True), (1, False), (None, False)])
def test_a_curve_of_rows_that_were_learnt_from_is_told_to_be_one(
    epochs: float | None, told: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As `recd tune loss` told when it measured the curve: whoever is given it may not have seen
    that."""
    curve = tmp_path / "curve.json"
    sides = {"without cache": [{"batch_size": 64, "steps": 100}]}
    curve.write_text(json.dumps({"ranks": 2, "epochs": epochs, "sides": sides}))
    assert steps_to_loss(curve, 2) == {64: 100}
    says = f"note: the longest training of {curve} went 2.5 times through the train split."
    assert (says in capsys.readouterr().err) is told


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "it is not JSON (Expecting value: line 1"),
        ("[" * 100_000, "it is not JSON (maximum recursion"),
        ("\udcff", "it is not JSON ('utf-8' codec"),
        ("[]", "that has `ranks` and `sides`, and this has []"),
        ('{"plan": 1, "tiers": {}}', "`sides`, and this has plan, tiers. Write"),
        ('{"ranks": 0, "sides": {}}', "its `ranks` are 0, and no number"),
        ('{"ranks": Infinity, "sides": {}}', "its `ranks` are inf"),
        ('{"ranks": 1, "sides": 3}', "its `sides` are 3, and no rows"),
        ('{"ranks": 1, "sides": {}}', "its `sides` are {}, and no rows"),
        ('{"ranks": 1, "sides": {"a": {"batch_size": 1}}}', "its side 'a' is {'batch_size': 1}"),
        ('{"ranks": 1, "sides": {"a": [3]}}', "a row of its side 'a' is 3, and has no `batch_si"),
        ('{"ranks": 1, "sides": {"a": [{"batch_size": 4}]}}', "is {'batch_size': 4}, and has no"),
        ('{"ranks": 1, "sides": {"a": [{"batch_size": -4, "steps": 1}]}}', "'batch_size': -4"),
        ('{"ranks": 1, "sides": {"a": [{"batch_size": 4, "steps": 0.5}]}}', "'steps': 0.5}"),
    ],
)
def test_a_curve_that_is_none_says_what_it_is(text: str, says: str, tmp_path: Path) -> None:
    curve = tmp_path / "curve.json"
    curve.write_text(text, errors="surrogateescape")
    with pytest.raises(DataError) as caught:
        steps_to_loss(curve, 1)
    message = str(caught.value)
    assert message.startswith(f"--curve: {curve} is not what `recd tune loss --json` prints: ")
    assert says in message
    assert message.endswith("Write one: `recd tune loss --json > FILE`.")
    with pytest.raises(DataError, match=r"cannot be read \(Is a directory\)\."):
        steps_to_loss(tmp_path, 1)


def claims(**after: Mapping[str, Any]) -> list[ClaimedAddition]:
    usual = {"summary": "One.", "add": lambda situation: NotHere("no")}
    return [
        ClaimedAddition(Addition(**{"name": name, **usual, **options}), Provider("some"))
        for name, options in after.items()
    ]


@pytest.mark.parametrize(("tiers", "size"), [(True, "plan"), (False, "budget")])
def test_hot_batches_take_the_tier_plan_of_whoever_declares_one(tiers: bool, size: str) -> None:
    (hot,) = ADDITIONS
    added = hot.add(
        Situation(
            values={"sharding": {"use": "strangers"}},
            schema=Schema(),
            tables={"items": TABLE},
            cluster=Cluster(n_nodes=2, ranks_per_node=1),
            budget_gb=1.0,
            tiers=tiers,
        )
    )
    assert isinstance(added, Mapping)
    assert added["cache"]["size"] == size


@dataclass(frozen=True)
class Known:
    """The outlook of a registry whose step is known."""

    values: Mapping[str, Any]
    ms: float
    memory: float = 0.0
    groups: int = 0
    hot: float = 0.0
    copies: bool = False
    takes: float = 0.0
    """Bytes over the baseline."""
    notices: tuple[str, ...] = ()
    why_groups: tuple[str, ...] = ()
    tables: Mapping[str, ModelTable] = field(default_factory=dict)
    mapped: tuple[str, ...] = ()
    lacks: str = ""

    batch_size: int = 1
    at_work: float = 0.0
    """Milliseconds more than `ms` of a step whose ranks work while others wait for bytes."""

    @property
    def ms_working_meanwhile(self) -> float:
        return self.ms + self.at_work

    @property
    def samples_per_second(self) -> float:
        return 1 / self.ms

    @property
    def bytes_by_link(self) -> dict[str, float]:
        return {"a2a_global": self.ms}

    @property
    def ledger(self) -> Any:
        return SimpleNamespace(prices=SimpleNamespace(cluster=SimpleNamespace(world_size=2)))

    def over(self, base: Known) -> float:
        return self.takes


def walked(
    step: Callable[[Set[str]], float],
    names: str,
    needs: Mapping[str, str],
    near: Walk | None = None,
    refused: str = "",
    copies: str = "",
    makes_room: str = "",
    takes: float = 0.0,
    varied: str = "",
    after: Mapping[str, str] = MappingProxyType({}),
    at_work: str = "",
) -> Walk:
    """The walk of additions whose steps are known by which of them are there, but for those that
    are `refused`; from another walk where it is `near` one. Those in `copies` make replicas. If
    some are named that make room in memory, there is none without one of them, and each set of
    additions `takes` so many bytes. In another way, one that is `varied` writes `v`, too. Those in
    `at_work` take 30 ms more of a step whose ranks work while others wait for bytes."""

    class Steps:
        def of(self, values: Mapping[str, Any]) -> Known:
            there = values.keys() - {"plugins"}
            room = not makes_room or there & {*makes_room}
            lacks = "" if room else f"no room with {', '.join(sorted(there)) or 'nothing'}"
            known = Known(values, step(there), copies=bool(there & set(copies)), lacks=lacks)
            return replace(known, takes=takes, at_work=30.0 * len(there & {*at_work}))

        def plans_tiers(self, values: Mapping[str, Any]) -> bool:
            return False

    claims = [
        ClaimedAddition(
            Addition(
                name=name,
                summary="",
                add=lambda situation, name=name: NotHere("no") if name in refused else {name: 1},
                needs=tuple(needs.get(name, "")),
                after=tuple(after.get(name, "")),
                variants={"otherwise": lambda situation, name=name: {name: 1, "v": 1}}
                if name in varied
                else {},
            ),
            Provider("recd_dlrm"),
        )
        for name in names
    ]
    rest = claims, cast("Any", Steps()), AdviceGoal(), Schema()
    return weigh({}, *rest) if near is None else weigh_near(near, {}, *rest)


def test_what_saves_more_takes_the_place_of_what_was_met_before_it() -> None:
    """Both save the same bytes, so that the second saves next to nothing on top of the first."""
    ms = {"": 100.0, "a": 80.0, "b": 60.0, "ab": 79.0}
    walk = walked(lambda there: ms["".join(sorted(there))], "ab", {})
    assert walk.kept == ("b",)
    assert walk.best.ms == 60
    assert next(one.why for one in walk.weighed) == "b in its place saves 25.0%"


@pytest.mark.parametrize(("ms", "says"), [(100.0, "as much time"), (99.0, "1.0% less time")])
def test_what_changes_nothing_takes_as_much(ms: float, says: str) -> None:
    walk = walked(lambda there: ms if there else 100.0, "a", {})
    assert walk.weighed[0].why.startswith(f"a step would take {says}, and ")


def test_a_gain_that_hangs_on_waiting_for_bytes_is_no_gain() -> None:
    """It computes more than it saves of what ranks do not work meanwhile."""

    def step(there: Set[str]) -> float:
        return 80.0 if "a" in there else 100.0

    assert walked(step, "a", {}).kept == ("a",)
    walk = walked(step, "a", {}, at_work="a")
    assert walk.kept == ()
    assert walk.weighed[0].why == (
        "a step would take 20.0% less time, but if ranks that share processors work while others "
        "wait for bytes, 110 ms for 100"
    )


def test_another_way_is_tried_with_what_it_comes_after() -> None:
    """By itself neither pays, and together only in another way of the second."""
    ms = {"": 100.0, "a": 99.0, "b": 100.0, "ab": 99.0, "bv": 100.0, "abv": 80.0}

    def step(there: Set[str]) -> float:
        return ms["".join(sorted(there))]

    assert walked(step, "ab", {}, varied="b").kept == ()
    walk = walked(step, "ab", {}, varied="b", after={"b": "a"})
    assert walk.kept == ("a", "b")
    assert walk.best.ms == 80
    assert walk.weighed[0].why == "b in another way pays with it"


def test_what_paid_with_an_addition_and_was_left_out_is_said_to_have() -> None:
    ms = {"": 100.0, "a": 100.0, "ab": 60.0, "abc": 50.0, "ac": 49.0}

    def step(there: Set[str]) -> float:
        return ms.get("".join(sorted(there)), 100.0)

    walk = walked(step, "abc", {})
    assert walk.kept == ("a", "c")
    assert walk.weighed[0].why == "b paid with it, and was left out later"


def test_a_gain_is_not_small_if_others_gain_by_it() -> None:
    ms = {"": 100.0, "a": 99.5, "b": 100.0, "ab": 60.0}
    walk = walked(lambda there: ms["".join(sorted(there))], "ab", {})
    assert walk.kept == ("a", "b")
    assert small_gains(walk) == []
    assert small_gains(walked(lambda there: 95.0 if there else 100.0, "a", {})) == ["a"]


def test_an_addition_replaces_what_it_writes_anew_and_nothing_that_it_adds_to() -> None:
    """Of additions to one key each stays; `whole` writes all of it, whatever stood there."""

    class Steps:
        def of(self, values: Mapping[str, Any]) -> Known:
            return Known(values, 100.0 - 10 * len(values.get("t", ())))

        def plans_tiers(self, values: Mapping[str, Any]) -> bool:
            return False

    def added(name: str) -> Callable[[Situation], Mapping[str, Any]]:
        return lambda situation: {"t": {**situation.values.get("t", {}), name: 1}}

    def kept(**adds: Callable[[Situation], Mapping[str, Any]]) -> Walk:
        claims = [
            ClaimedAddition(Addition(name=name, summary="", add=add), Provider("recd_dlrm"))
            for name, add in adds.items()
        ]
        return weigh({}, claims, cast("Any", Steps()), AdviceGoal(), Schema())

    walk = kept(a=added("a"), b=added("b"), c=added("c"))
    assert walk.kept == ("a", "b", "c")
    assert walk.best.values["t"] == {"a": 1, "b": 1, "c": 1}
    walk = kept(a=added("a"), whole=lambda situation: {"t": {"a": 1, "b": 1}}, c=added("c"))
    assert walk.kept == ("whole", "c")
    assert [one.verdict for one in walk.weighed] == ["replaced", "kept", "kept"]


def test_an_addition_changes_nothing_of_what_it_is_handed_and_may_name_plugins() -> None:
    """What it returns is of the types that YAML has."""

    def add(situation: Situation) -> Mapping[str, Any]:
        steps: Any = situation.values["etl"]
        steps.append({"use": "thin", "keep": np.float64(0.5), "of": Path("table")})
        return {"etl": steps, "plugins": ["other"]}

    def without(values: Any) -> Any:
        values["train"].pop("steps")
        return values

    class Steps:
        def of(self, values: Mapping[str, Any]) -> Known:
            return Known(values, 100.0 - 10 * len(values["etl"]))

        def plans_tiers(self, values: Mapping[str, Any]) -> bool:
            return False

    given: dict[str, Any] = {"plugins": ["mine"], "etl": [], "train": {"steps": 3}}
    (claim,) = claims(a={"add": add, "without": without})
    base = plain(given, [claim])
    assert (base["train"], given["train"]) == ({}, {"steps": 3})
    walk = weigh(base, [claim], cast("Any", Steps()), AdviceGoal(), Schema())
    assert (walk.base.ms, walk.best.ms) == (100, 90)
    assert base["etl"] == []
    assert walk.best.values["plugins"] == ["other", "some"]
    assert yaml.safe_load(yaml.safe_dump(walk.best.values["etl"])) == [
        {"use": "thin", "keep": 0.5, "of": "table"}
    ]


def test_an_addition_that_answers_nothing_is_named() -> None:
    """Nobody else is kept from advice by it."""
    nothing: Any = lambda values: None  # noqa: E731  # of a function that lacks its `return`
    (claim,) = claims(a={"add": nothing, "what_ifs": {"half": nothing, "none": dict.popitem}})

    class Steps:
        def of(self, values: Mapping[str, Any]) -> Known:
            return Known(values, 100.0)

        def plans_tiers(self, values: Mapping[str, Any]) -> bool:
            return False

    walk = weigh({}, [claim], cast("Any", Steps()), AdviceGoal(), Schema())
    assert [(one.verdict, one.why) for one in walk.weighed] == [
        (
            "not here",
            f"addition 'a' of {claim.provider}: its `add` returned None. Return keys of "
            "registry.yaml and what stands under each, or NotHere(why).",
        )
    ]
    half, none = claim.addition.what_ifs.values()
    with pytest.raises(PluginError, match=r"its `what_ifs` returned None\. Return keys of regis"):
        _otherwise(half, claim, {})
    with pytest.raises(PluginError, match=r"addition 'a' of .* raised KeyError: .*--debug"):
        _otherwise(none, claim, {})


@pytest.mark.parametrize(("ms", "kept"), [(79.5, "a"), (78.0, "b")])
def test_of_two_that_save_as_much_the_better_one_is_kept(ms: float, kept: str) -> None:
    """On top of the first the second would have to save 5%; in its place, 1%."""
    steps = {"": 100.0, "a": 80.0, "b": ms, "ab": 79.0}
    assert walked(lambda there: steps["".join(sorted(there))], "ab", {}).kept == (kept,)


@pytest.mark.parametrize(("ms", "kept"), [(70.0, "b"), (60.0, "c")])
def test_replicas_on_a_cpu_must_save_more_than_prices_of_them_are_off(ms: float, kept: str) -> None:
    """c in the place of b saves 12.5% or 25%, and with b nothing more."""
    steps = {"b": 80.0, "c": ms, "bc": 80.0}
    walk = walked(lambda there: steps.get("".join(sorted(there)), 100.0), "bc", {}, copies="c")
    assert walk.kept == (kept,)


def test_what_is_left_is_left_by_the_share_that_it_must_save_itself() -> None:
    """c alone saves 1.5%; with b, which waits, it has replicas and saves 1%."""
    steps = {"c": 98.5, "bc": 99.0}
    walk = walked(lambda there: steps.get("".join(sorted(there)), 100.0), "bc", {}, copies="b")
    assert walk.kept == ()
    (left,) = (one for one in walk.weighed if one.name == "c")
    assert left.why == "a step would take 1.5% less time, and 2% must be saved"


def test_what_is_worth_more_without_another_is_kept() -> None:
    """b makes a pay, and is in its way once c is there: without b, a saves most of the step."""
    ms = {"": 100, "a": 100, "b": 99, "c": 35, "ab": 50, "ac": 25, "bc": 60, "abc": 40}
    walk = walked(lambda there: float(ms["".join(sorted(there))]), "abc", {})
    assert walk.kept == ("a", "c")
    assert walk.best.ms == min(ms.values())
    at_the_end = {one.name: one.at_the_end for one in walk.weighed}
    assert at_the_end["a"] == pytest.approx(35 / 25 - 1)


def test_what_needs_another_does_not_take_a_place_without_it() -> None:
    walk = walked(lambda there: 80.0 if "c" in there else 100.0, "abc", {"b": "a"})
    assert walk.kept == ("c",)
    verdicts = {one.name: one.verdict for one in walk.weighed}
    assert verdicts == {"a": "left out", "b": "left out", "c": "kept"}


def test_what_makes_room_in_memory_is_kept_however_slow_it_is() -> None:
    ms = {"": 100.0, "a": 80.0, "b": 300.0, "ab": 200.0, "c": 90.0, "bc": 310.0, "abc": 205.0}

    def step(there: Set[str]) -> float:
        return ms.get("".join(sorted(there)), 400.0)

    walk = walked(step, "abc", {}, makes_room="b")
    assert walk.kept == ("a", "b")
    assert walk.best.ms == 200
    whys = {one.name: one.why for one in walk.weighed}
    assert "without it memory has no room for the tables" in whys["b"]
    assert [*candidates(walk, AdviceGoal(), 2)] == [("a", "b"), ("a", "b", "c")]
    near = walked(step, "abc", {}, near=walk, makes_room="b")
    assert near.kept == ("a", "b")
    for found in (None, walk):
        with pytest.raises(CapabilityError, match="no room with"):
            walked(step, "ab", {}, near=found, makes_room="z")
    with pytest.raises(CapabilityError, match=r"no room with b There is room with a, but .* bud"):
        walked(step, "ab", {}, makes_room="a", takes=1e9)


def test_hot_batches_of_a_table_beyond_memory_are_weighed_in_little_memory(folder: Path) -> None:
    """A bit for each row would be 1.2 GB."""
    values = {
        "plugins": ["recd_dlrm", "recd_scars"],
        "folder": str(folder / "huge"),
        "dataset": {"use": "random", "samples": 2048, "lookups": 1, "num_ids": [10**10, 40]},
        "model": {"use": "dlrm", "embedding_dim": 8, "bottom": [8], "top": [8]},
        "cache": {"use": "scars", "size": "budget", "budget_gb": 2e-3},
        "train": {"device": "cpu", "ranks": 8, "batch_size": 16},
    }
    outlooks = Outlooks(Registry.load(values), 8)
    outlooks.schema(values)
    tracemalloc.start()
    try:
        found = outlooks.of(values)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    copied = found.ledger.tables["t_cat_0"].entries["replicated"].rows
    assert 10_000 < copied < 100_000
    assert peak < 100e6


def test_what_if_is_weighed_from_what_is_kept_unless_that_cannot_be() -> None:
    now = walked(lambda there: 60.0 if "a" in there else 100.0, "abc", {})
    assert now.kept == ("a",)
    seen: list[Set[str]] = []

    def otherwise(there: Set[str]) -> float:
        """Then b and c pay together, and a does not."""
        seen.append(there)
        return 50.0 if {"b", "c"} <= there else 100.0

    assert walked(otherwise, "abc", {}, near=now).kept == ("b", "c")
    met = set(map(frozenset, seen))
    assert frozenset({"b"}) not in met  # as it would be, were all weighed anew
    assert walked(otherwise, "abc", {}, near=now, refused="a").kept == ("b", "c")
    assert walked(otherwise, "abc", {}, near=now, refused="b").kept == ()


@pytest.mark.parametrize(("ac", "kept"), [(33.0, ("a", "c")), (36.0, ("a", "b", "c"))])
def test_what_if_does_not_try_again_what_was_far_from_the_best(
    ac: float, kept: tuple[str, ...]
) -> None:
    """Of b and c little is left without a, nor with d in its place: a is not left out again, and b
    only where it was worth little before."""
    now = {"": 100.0, "a": 60.0, "ab": 50.0, "ac": ac, "abc": 30.0}
    walk = walked(lambda there: now.get("".join(sorted(there)), 100.0), "abcd", {})
    assert walk.kept == ("a", "b", "c")
    seen: list[str] = []

    def otherwise(there: Set[str]) -> float:
        """Then b saves nothing."""
        seen.append("".join(sorted(there)))
        return {"abc": 31.0, "ac": 30.8}.get(seen[-1], 99.0 if there else 100.0)

    assert walked(otherwise, "abcd", {}, near=walk).kept == kept
    assert "abcd" in seen
    assert ("ac" in seen) == (ac == 33)
    assert not {"ab", "bc", "bcd", "abd", "c", "cd", "ad"} & {*seen}


def test_an_addition_is_had_in_another_way_where_that_is_better_in_the_end() -> None:
    """b alone saves most as it is; beside a, in its other way."""
    steps = {"": 100.0, "a": 60.0, "b": 50.0, "bv": 55.0, "ab": 40.0, "abv": 35.0}
    walk = walked(lambda there: steps.get("".join(sorted(there)), 100.0), "ab", {}, varied="b")
    assert walk.kept == ("a", "b")
    assert walk.best.ms == 35
    assert {*walk.best.values} == {"a", "b", "v", "plugins"}
    assert walk.met["a", "b"].ms == 35
    (b,) = (one for one in walk.weighed if one.name == "b")
    assert b.why.endswith("; otherwise, by which a step takes 12.5% less")

    def otherwise(there: Set[str]) -> float:
        return 90.0 if there == {"a", "b", "v"} else 99.0 if there else 100.0

    near = walked(otherwise, "ab", {}, near=walk, varied="b")
    assert near.best.ms == 90  # from what is kept, in the way in which it is kept


@pytest.mark.parametrize(("ms", "kept"), [(97.0, True), (99.0, False)])
def test_one_that_does_not_pay_may_pay_in_another_way(ms: float, kept: bool) -> None:
    steps = {"b": 99.5, "bv": ms}
    walk = walked(lambda there: steps.get("".join(sorted(there)), 100.0), "b", {}, varied="b")
    assert walk.kept == (("b",) if kept else ())
    assert walk.best.ms == (ms if kept else 100)
    assert walk.met["b",].ms == (ms if kept else 99.5)
    (b,) = walk.weighed
    assert b.why.startswith("otherwise, by which" if kept else "a step would take 0.5% less")


def test_what_if_keeps_nothing_that_is_slower_than_the_baseline() -> None:
    """Then each of the two alone is slower still."""
    now = {"": 100.0, "a": 80.0, "b": 90.0, "ab": 60.0}
    both = walked(lambda there: now["".join(sorted(there))], "ab", {})
    assert both.kept == ("a", "b")
    then = {"": 100.0, "a": 200.0, "b": 200.0, "ab": 150.0}
    assert walked(lambda there: then["".join(sorted(there))], "ab", {}, near=both).kept == ()


def test_an_addition_that_cannot_be_has_no_what_ifs_nor_has_one_rank_links() -> None:
    def asked(ranks: int, verdict: Any) -> list[str]:
        (claim,) = claims(clustering={"what_ifs": {"half of the samples": dict}})
        cluster = Cluster(n_nodes=1, ranks_per_node=ranks)
        ledger = SimpleNamespace(prices=SimpleNamespace(cluster=cluster))
        base: Any = SimpleNamespace(ledger=ledger, memory=0.0)
        walk = Walk(base=base, weighed=[Weighed(claim=claim, verdict=verdict, why="")], best=base)
        given: Any = SimpleNamespace(topology=Topology(), written=lambda *keys: [])
        found = what_may_differ(given, [claim], AdviceGoal(budget_gb=1), 64, walk)
        return [name for name, _, _ in found]

    always = ["the batch doubled", "a budget of 2 GB a rank"]
    assert asked(1, "not here") == always
    bits = "floats that travel in 16 bits (train.codecs)"
    assert {*asked(2, "left out")} == {*always, "links twice as fast", bits, "half of the samples"}


BEHIND = {"use": "torchrec", "constraints": {"items": {"sharding_types": ["row_wise"]}}}
FLEX: dict[str, Any] = {"use": "flexshard", "others": BEHIND}
SCARS = {"use": "scars", "size": "budget", "budget_gb": 1.0}


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ({"sharding": BEHIND}, {"sharding": BEHIND}),
        ({"sharding": FLEX}, {"sharding": BEHIND}),
        ({"sharding": FLEX, "cache": SCARS}, {"sharding": BEHIND}),
        ({"cache": {**SCARS, "others": BEHIND}}, {"sharding": BEHIND}),
        ({"cache": {**SCARS, "others": FLEX}}, {"sharding": BEHIND}),
        ({"cache": SCARS}, {}),
        ({"cache": "scars"}, {}),
        ({"sharding": "flexshard"}, {}),
        ({"sharding": "flexshard", "train": {"retier_every": 5, "retier_batches": 2}}, {}),
        (
            {"sharding": FLEX, "train": {"retier_every": 5, "steps": 9}},
            {"sharding": BEHIND, "train": {"steps": 9}},
        ),
    ],
)
def test_the_baseline_has_torchrecs_planner_as_the_user_has_it_wherever_it_stands(
    given: dict[str, Any], kept: dict[str, Any]
) -> None:
    plugins = ["recd_flexshard", "recd_scars"]
    Registry.load({"plugins": plugins, **given})  # it is one
    assert plain({"plugins": plugins, **given}, []) == {"plugins": plugins, **kept}


@pytest.mark.parametrize("topology", ["links.yaml", {"use": "links.yaml", "ranks_per_node": 1}])
def test_the_file_of_a_topology_is_found_from_wherever_what_is_advised_lies(
    topology: Any, tmp_path: Path
) -> None:
    (tmp_path / "links.yaml").write_text("inter_node_gbps: 0.5\n")
    (tmp_path / "given.yaml").write_text(yaml.safe_dump({"topology": topology}))
    given = Registry.load(tmp_path / "given.yaml")
    elsewhere = tmp_path / "advised" / "advised.yaml"
    elsewhere.parent.mkdir()
    elsewhere.write_text(yaml.safe_dump(_absolute(given.source.values, given.source.base)))
    assert Registry.load(elsewhere).topology == given.topology


def test_additions_come_after_those_that_they_follow_or_need() -> None:
    found = in_order(claims(c={"needs": ("b",)}, b={"after": ("a", "absent")}, a={}))
    assert [one.addition.name for one in found] == ["a", "b", "c"]
    with pytest.raises(PluginError, match="needs 'z'"):
        in_order(claims(a={"needs": ("z",)}))
    with pytest.raises(PluginError, match=r"in a circle: .* Take one of these names out"):
        in_order(claims(a={"after": ("b",)}, b={"after": ("a",)}))


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("return ['tiers']", "must return Additions"),
        ("return [Addition(name='tiers', summary='.', add=len)]", "both have an addition 'tiers'"),
        ("return [Addition(name=['a'], summary='.', add=len)]", r"whose `name` is \['a'\]: let it"),
        ("return [Addition(name='a', summary=None, add=len)]", "'a' whose `summary` is None: let"),
        ("return [Addition(name='a', summary='.', add=None)]", "'a' whose `add` is None: let it"),
        (
            "return [Addition(name='a', summary='.', add=len, after='tiers')]",
            "'a' whose `after` are 'tiers': let them be a tuple",
        ),
        (
            "return [Addition(name='a', summary='.', add=len, variants=[len])]",
            "'a' whose `variants` are .*: let them be functions by what each does",
        ),
        ("raise OSError('gone')", r"raised OSError in recd_additions \(\w+\.py:\d+\): gone"),
    ],
)
def test_what_a_hook_returns_is_checked(body: str, says: str, tmp_path: Path) -> None:
    name = f"hook_{abs(hash(body))}.py"
    (tmp_path / name).write_text(
        "from recd_plugins.api import Addition, hookimpl\n"
        f"@hookimpl\ndef recd_additions():\n    {body}\n"
    )
    with pytest.raises(PluginError, match=says):
        Catalog(["recd_flexshard", f"./{name}"], tmp_path)
