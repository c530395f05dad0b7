"""Ladder: configs as values; then two gloo ranks that train with callbacks, whole and resumed."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import callback_plugin
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from callback_plugin import DIARY, MISSPELT, PLAIN
from probe_plugin import probe_registry
from torch import Tensor, nn
from torchrec.optim.keyed import KeyedOptimizer

from recd_plugins.callbacks.early_stopping import EarlyStoppingConfig, build_early_stopping
from recd_plugins.callbacks.extra_metrics import FIT, ExtraMetricsConfig, build_extra_metrics
from recd_plugins.callbacks.schedule import ScheduleConfig, build_schedule
from recd_plugins.data.batch import Batch
from recd_plugins.data.dataset import Split
from recd_plugins.data.schema import Label, Schema, SparseFeature
from recd_plugins.errors import DataError, PluginError, RegistryError
from recd_plugins.planning.tier_plans.tier_plan import TablePlan, TierPlan
from recd_plugins.registry.settings import TrainSettings
from recd_plugins.slots import Callback, Context, check_callback
from recd_plugins.sparse.keyed import with_ids
from recd_plugins.stack import load
from recd_plugins.testing.batches import random_batch
from recd_plugins.testing.conformance import ContractBroken, check_record
from recd_plugins.testing.gloo import GlooPool, RanksFailed
from recd_plugins.testing.parity import assert_alike
from recd_plugins.testing.rounding import plain_of
from recd_plugins.testing.trained import Trained
from recd_plugins.tiers.collections.sequences import TierEmbeddingCollection
from recd_plugins.trainer.checkpoints.callback_states import states_by_options
from recd_plugins.trainer.checkpoints.reshard import reshard
from recd_plugins.trainer.run_callbacks import Callbacks
from recd_plugins.trainer.training import Training

OPTIMIZERS = {"tables": "sgd", "tables_lr": 0.5, "dense": "sgd", "dense_lr": 0.1}


def registry(folder: Path, *callbacks: Any, rows: int = 160, **train: Any) -> dict[str, Any]:
    settings = {"steps": 8, "log_every": 1, "checkpoint_every": 0, "optimizer": OPTIMIZERS, **train}
    made = probe_registry(folder, rows=rows, **settings)
    made["plugins"].append(callback_plugin.__file__)
    return made | {"callbacks": list(callbacks)}


def ran(
    values: dict[str, Any],
    resume: bool = False,
    rounding: AbstractContextManager[object] | None = None,
) -> tuple[dict[str, Any], Any]:
    """On a rank: the summary of a run, whose steps are within `rounding`, and its model."""
    from recd_plugins.trainer import loop, run

    models = []

    class Seen(loop.Loop):
        def run(self, *args: Any) -> dict[str, Any]:
            models.append(self._job.model)
            with rounding or nullcontext():
                return super().run(*args)

    run.Loop = Seen  # type: ignore[misc]
    try:
        summary = run.train(load(values), torch.device("cpu"), resume=resume)
    finally:
        run.Loop = loop.Loop  # type: ignore[misc]
    return summary, models[0]


def trained(values: dict[str, Any], resume: bool = False) -> tuple[dict[str, Any], dict[str, Any]]:
    """On a rank: the summary of a run, and its weights."""
    summary, model = ran(values, resume)
    weights = {}
    for name, value in model.state_dict().items():
        if isinstance(value, dict):  # an extra state
            continue
        shards = value.local_shards() if hasattr(value, "local_shards") else None
        parts = [shard.tensor for shard in shards] if shards is not None else [value]
        weights |= {f"{name} {number}": part.clone() for number, part in enumerate(parts)}
    return summary, weights


def lines(run: Path, kind: str = "train") -> list[dict[str, Any]]:
    found = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [line for line in found if line["kind"] == kind]


def same(ours: Any, theirs: Any) -> None:
    """Weights are equal to the bit, on each rank."""
    for (_, left), (_, right) in zip(ours, theirs, strict=True):
        assert left.keys() == right.keys()
        for name in left:
            assert torch.equal(left[name], right[name]), name


def test_each_event_comes_once_a_step_on_each_rank_in_order(
    tmp_path: Path, gloo_pool: GlooPool
) -> None:
    first, second = {"use": "diary", "name": "a"}, {"use": "diary", "name": "b"}
    values = registry(
        tmp_path, first, second, steps=3, log_every=2, checkpoint_every=2, eval_every=2
    )
    for summary, _ in gloo_pool.run(trained, values):
        assert summary["pages"] == 3
    diaries = [(tmp_path / f"diary-{rank}").read_text().splitlines() for rank in range(2)]
    assert diaries[0] == diaries[1]

    def both(event: str) -> list[str]:
        return [f"a {event}", f"b {event}"]

    def step(number: int) -> list[str]:
        before = both(f"before_step {number}") + both(f"before_update {number}")
        return before + both(f"after_step {number + 1}")[::-1]

    def evaluation(number: int) -> list[str]:
        """A rank has 10 rows of the test split: batches of 8 and 2."""
        return 2 * both(f"after_evaluation_step {number}") + both(f"on_evaluation {number}")

    assert diaries[0] == [
        *both("at_start 0"),
        *step(0),
        *step(1),
        *both("on_metrics 2"),
        *evaluation(2),
        *both("on_checkpoint 2"),
        *step(2),
        *both("on_metrics 3"),
        *both("on_checkpoint 3"),
        *evaluation(3),
        *both("at_end 3"),
        *both("close"),
    ]
    assert [line["pages"] for line in lines(tmp_path / "run")] == [2, 3]


def test_one_ranks_word_ends_the_run_for_all_also_when_it_is_resumed(
    tmp_path: Path, gloo_pool: GlooPool, capfd: pytest.CaptureFixture[str]
) -> None:
    """Also if its last step is one after which a checkpoint is due anyway."""
    values = registry(tmp_path, {"use": "diary", "stop_after": 3}, checkpoint_every=2)
    for summary, _ in (whole := gloo_pool.run(trained, values)):
        assert summary["step"] == 4
        assert summary["finished"]
        assert summary["test"] is not None
    assert "ended after step 4 of 8: a callback of another rank asked" in capfd.readouterr().out
    for summary, _ in (again := gloo_pool.run(trained, values, True)):
        assert summary["step"] == 4
        assert summary["finished"]
        assert summary["test"] == whole[0][0]["test"]
    same(whole, again)


def test_a_callback_that_fails_is_named_and_all_are_closed(
    tmp_path: Path, gloo_pool: GlooPool
) -> None:
    values = registry(tmp_path, {"use": "diary", "fail_after": 2}, {"use": "diary", "name": "b"})
    says = r"callbacks\[0\].*raised KeyError in \w+\.after_step \(callback_plugin\.py:\d+\)"
    with pytest.raises(RanksFailed, match=says):
        gloo_pool.run(trained, values)
    for rank in range(2):
        diary = (tmp_path / f"diary-{rank}").read_text().splitlines()
        assert diary[-2:] == ["diary close", "b close"]


def test_parameters_that_a_callback_changes_by_rank_are_named(
    tmp_path: Path, gloo_pool: GlooPool
) -> None:
    values = registry(tmp_path, {"use": "diary", "drifts": 0.01})
    with pytest.raises(RanksFailed, match=r"dense parameters? .*: ranks have other values, though"):
        gloo_pool.run(trained, values)


def test_rates_of_tables_that_a_callback_sets_by_rank_are_named(
    tmp_path: Path, gloo_pool: GlooPool
) -> None:
    values = registry(tmp_path, {"use": "diary", "rate_drifts": 0.01})
    with pytest.raises(RanksFailed, match=r"its learning rate is \S+ on rank 0 and \S+ on rank 1"):
        gloo_pool.run(trained, values)


def test_metrics_that_are_returned_and_not_added_are_named(
    tmp_path: Path, gloo_pool: GlooPool
) -> None:
    values = registry(tmp_path, {"use": "diary", "returns": True})
    with pytest.raises(
        RanksFailed, match=r"on_metrics returned \{.* Add to the mapping that it is"
    ):
        gloo_pool.run(trained, values)


def test_a_batch_is_what_callbacks_make_of_it(tmp_path: Path, gloo_pool: GlooPool) -> None:
    plain, once, twice = (
        gloo_pool.run(trained, registry(tmp_path / name, *callbacks, rows=80, steps=2))
        for name, callbacks in {
            "plain": [],
            "once": [{"use": "diary", "scale": 4.0}],
            "twice": [{"use": "diary", "scale": 2.0}, {"use": "diary", "scale": 2.0}],
        }.items()
    )
    same(once, twice)
    with pytest.raises(AssertionError):
        same(plain, once)


def test_a_step_that_ends_an_iterator_is_no_end_of_the_data(
    tmp_path: Path, gloo_pool: GlooPool
) -> None:
    with pytest.raises(RanksFailed, match=r"(?s)callback_plugin\.py.*StopIteration"):
        gloo_pool.run(trained, registry(tmp_path, "exhausts", steps=3))


def test_check_record_tries_callbacks() -> None:
    check_record(DIARY)
    with pytest.raises(ContractBroken, match=r"nothing calls Misspelt\.on_metric; did you"):
        check_record(MISSPELT)


def test_a_misspelt_event_is_reported_before_the_run(tmp_path: Path) -> None:
    with pytest.raises(PluginError, match=r"callbacks\[0\]: nothing calls Misspelt.on_metric"):
        load(registry(tmp_path, "misspelt")).callbacks()


@pytest.mark.parametrize("kind", ["def", "async def"])
def test_an_event_whose_code_no_call_runs_is_reported_before_the_run(kind: str) -> None:
    made: dict[str, Any] = {"Callback": Callback}
    body = "pass" if kind.startswith("async") else "yield"
    exec(f"class Lazy(Callback):\n    {kind} before_step(self, training): {body}\n", made)
    with pytest.raises(PluginError, match=r"here: Lazy\.before_step is a generator or a coroutine"):
        check_callback(made["Lazy"](), "here")


@pytest.mark.parametrize("first", [math.nan, None])
def test_early_stopping_waits_for_a_first_number_and_goes_on_from_it(first: float | None) -> None:
    config = EarlyStoppingConfig(metric="auc", split="train", patience=2)
    callback, training = build_early_stopping(config, Context()), SimpleNamespace(reasons=[])
    training.stop = training.reasons.append
    for auc in (first, 0.5, 0.6, first, 0.7):
        callback.on_metrics(cast("Training", training), cast("Any", {"auc": auc}))
    assert training.reasons == []
    for auc in (0.7, first):
        callback.on_metrics(cast("Training", training), cast("Any", {"auc": auc}))
    assert training.reasons == ["auc of train has not improved on 0.7 for 2 times"]
    callback = build_early_stopping(config, Context())
    for _ in range(2):
        callback.on_metrics(cast("Training", training), cast("Any", {"auc": first}))
    assert training.reasons[1:] == ["auc of train has been no number for 2 times"]


@pytest.mark.parametrize(
    ("split", "settings", "ends"),
    [
        ("test", {"eval_every": 2, "log_every": 9, "steps": 7}, True),
        ("test", {"eval_every": 2, "log_every": 1, "steps": 6}, False),
        ("train", {"eval_every": 9, "log_every": 2, "steps": 7}, True),
        ("train", {"eval_every": 1, "log_every": 20, "steps": 6}, False),
    ],
)
def test_early_stopping_says_where_it_can_end_no_run(
    split: Any, settings: dict[str, int], ends: bool
) -> None:
    callback = build_early_stopping(EarlyStoppingConfig(split=split, patience=3), Context())
    training: Any = SimpleNamespace(settings=SimpleNamespace(**settings), lines=[])
    training.say = training.lines.append
    callback.at_start(training)
    every, key = (2, "eval_every") if split == "test" else (20, "log_every")
    assert training.lines == ([] if ends else [
        "callbacks: early_stopping: it ends no run of 6 steps early, because it looks every "
        f"{every} (train.{key}) and waits for 3 looks (patience)"
    ])  # fmt: skip


def test_the_hosts_own_keep_the_contract() -> None:
    options: dict[str, dict[str, Any]] = {
        "schedule": {"warmup": 3, "scheduler": "StepLR", "options": {"step_size": 2}},
        "clipping": {"norm": 1.0},
        "early_stopping": {},
        "extra_metrics": {"names": ["mse"]},
        "mixed_precision": {},
    }
    from recd_plugins.hooks.defaults import recd_callbacks

    records = recd_callbacks()
    assert {record.name for record in records} == options.keys()
    for record in records:
        check_record(record, options=options[record.name])


@pytest.mark.parametrize(
    ("callback", "message"),
    [
        ({"use": "shedule", "warmup": 1}, "did you mean 'schedule'"),
        ({"use": "schedule"}, "neither `warmup` nor `scheduler` is set"),
        ({"use": "schedule", "scheduler": "CosineAnealingLR"}, "did you mean 'cosineannealinglr'"),
        ({"use": "schedule", "scheduler": "reducelronplateau"}, "waits for a metric"),
        ({"use": "schedule", "scheduler": "StepLR"}, "StepLR refuses options={}: .*step_size"),
        (
            {"use": "schedule", "warmup": 2, "options": {"a": 1}},
            "no scheduler to take them. Name one",
        ),
        (
            {"use": "schedule", "scheduler": "StepLR", "options": {"step_size": ""}},
            "StepLR cannot step by options={'step_size': ''}: its first step raised TypeError",
        ),
        (
            {"use": "schedule", "scheduler": "StepLR", "options": {"step_size": 0}},
            "its first step raised ZeroDivisionError",
        ),
        (
            {"use": "schedule", "scheduler": "ExponentialLR", "options": {"gamma": 1e400}},
            "its first step makes a rate of inf",
        ),
        ({"use": "clipping"}, "nothing would be clipped. Set one."),
        (
            {"use": "clipping", "norm": 1, "of": "tables"},
            "fused optimizer applies the gradient of each row",
        ),
        ({"use": "clipping", "norm": 0}, "norm: must be > 0, but is 0"),
        ({"use": "early_stopping", "patience": 0}, "patience: must be >= 1, but is 0"),
        ({"use": "extra_metrics", "names": ["msee"]}, "did you mean 'mse'"),
        ({"use": "extra_metrics", "names": []}, "names no metric, so it would add none"),
        ({"use": "mixed_precision", "dtype": "float16"}, "Take bfloat16"),
    ],
)
def test_what_cannot_be_is_reported_at_once(
    tmp_path: Path, callback: dict[str, Any], message: str
) -> None:
    with pytest.raises(RegistryError, match=message):
        load(registry(tmp_path, callback)).callbacks()


@pytest.mark.parametrize(
    ("train", "callback", "message"),
    [
        ({}, {"use": "early_stopping"}, "Set train.eval_every, or watch the training metrics"),
        ({}, {"use": "early_stopping", "split": "train", "metric": "los"}, "did you mean 'loss'"),
    ],
)
def test_what_only_a_run_knows_is_reported_by_it(
    tmp_path: Path,
    gloo_pool: GlooPool,
    train: dict[str, Any],
    callback: dict[str, Any],
    message: str,
) -> None:
    with pytest.raises(RanksFailed, match=message):
        gloo_pool.run(trained, registry(tmp_path, callback, **train))


def by_hand(steps: int, base: float, warmup: int, kind: str, **options: Any) -> list[float]:
    """The rate of each step, by torch alone."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=base)
    scheduler = getattr(torch.optim.lr_scheduler, kind)(optimizer, **options)
    rates = [base * ((step + 1) / warmup) for step in range(warmup)]
    while len(rates) < steps:
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return rates


def test_rates_of_a_run_that_is_resumed_thrice_are_torchs(
    tmp_path: Path, gloo_pool: GlooPool
) -> None:
    """Amid the warm-up, and after it."""
    options = {"T_max": 5, "eta_min": 0.01}
    kind = {"scheduler": "cosineannealinglr", "options": options}
    for steps in (2, 4, 6, 8):
        values = registry(tmp_path, {"use": "schedule", "warmup": 3, **kind}, steps=steps)
        gloo_pool.run(trained, values, steps > 2)
    found = lines(tmp_path / "run")
    for name, base in (("dense_lr", 0.1), ("tables_lr", 0.5)):
        expected = by_hand(8, base, 3, "CosineAnnealingLR", **options)
        assert [one[name] for one in found] == expected, name


def begun(
    config: ScheduleConfig, *, tables: int, step: int = 0, lr: float | None = None
) -> tuple[Callback, Training]:
    """A schedule at the start of a run on one rank that has so many tables."""
    weights = [torch.nn.Parameter(torch.zeros(1)) for _ in range(1 + tables)]
    settings = TrainSettings()
    rates = settings.optimizer
    groups = [{"params": [weight], "lr": lr or rates.tables_lr} for weight in weights[1:]]
    names = {str(number): weight for number, weight in enumerate(weights[1:])}
    training = Training(
        model=torch.nn.Identity(),
        dense=torch.optim.SGD(weights[:1], lr or rates.dense_lr),
        tables=KeyedOptimizer(names, {}, groups),
        settings=settings,
        device=torch.device("cpu"),
        rank=0,
        world_size=1,
        run=Path(),
        step=step,
    )
    callback = build_schedule(config, Context())
    callback.at_start(training)
    return callback, training


def rates_of(
    callback: Callback, training: Training, steps: int, part: str = "tables"
) -> list[float]:
    """Those of the next steps, of the tables or of the dense part."""
    found = []
    for _ in range(steps):
        callback.before_step(training)
        found += [{group["lr"] for group in getattr(training, part).param_groups}]
        training.step += 1
        callback.after_step(training)
    return [rate for one in found for rate in one]


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("CosineAnnealingLR", {"T_max": 5, "eta_min": 0.01}),
        ("StepLR", {"step_size": 2, "gamma": 0.5}),
        ("CosineAnnealingWarmRestarts", {"T_0": 3}),
        ("MultiStepLR", {"milestones": [2, 4], "gamma": 0.5}),
    ],
)
@pytest.mark.parametrize("stop", [2, 4, 6, 8])
@pytest.mark.parametrize("part", ["tables", "dense"])
def test_rates_are_torchs_after_a_warm_up_resumed_or_not(
    kind: str, options: dict[str, Any], stop: int, part: str
) -> None:
    config = ScheduleConfig(warmup=3, scheduler=kind.lower(), options=options)
    callback, training = begun(config, tables=2, lr=0.1)
    found = rates_of(callback, training, stop, part)
    again, then = begun(config, tables=2, step=stop, lr=0.1)
    again.load_state_dict(json.loads(json.dumps(callback.state_dict())))
    found += rates_of(again, then, 8 - stop, part)
    assert found == by_hand(8, 0.1, 3, kind, **options)


def test_a_schedule_goes_on_from_other_rates_and_by_other_options(
    tmp_path: Path, gloo_pool: GlooPool
) -> None:
    options = {"step_size": 2, "gamma": 0.5}
    callback = {"use": "schedule", "scheduler": "steplr", "options": options}
    gloo_pool.run(trained, registry(tmp_path, callback, steps=3))
    lower = {**OPTIMIZERS, "dense_lr": 0.01}
    gloo_pool.run(trained, registry(tmp_path, callback, steps=5, optimizer=lower), True)
    callback["options"] = {**options, "step_size": 3}
    gloo_pool.run(trained, registry(tmp_path, callback, steps=8, optimizer=lower), True)
    before, then = by_hand(8, 0.1, 0, "StepLR", **options), by_hand(8, 0.01, 0, "StepLR", **options)
    last = by_hand(8, 0.01, 0, "StepLR", step_size=3, gamma=0.5)
    found = [line["dense_lr"] for line in lines(tmp_path / "run")]
    assert found == [*before[:3], *then[3:5], *last[5:]]
    callback["options"], callback["scheduler"] = {"max_lr": 1.0, "total_steps": 4}, "onecyclelr"
    with pytest.raises(RanksFailed, match="OneCycleLR has no rate for step 8, where the run goes"):
        gloo_pool.run(trained, registry(tmp_path, callback, steps=9, optimizer=lower), True)


def test_a_rank_that_had_no_table_goes_on_with_the_schedule_of_those_that_it_gets() -> None:
    """Another plan, or another number of ranks, gives it some when a run is resumed."""
    config = ScheduleConfig(scheduler="MultiStepLR", options={"milestones": [2, 5]})
    had_one, had_none = begun(config, tables=1), begun(config, tables=0)
    every = rates_of(*had_one, 3)
    assert rates_of(*had_none, 3) == []
    for before, _ in (had_one, had_none):
        state = json.loads(json.dumps(before.state_dict()))
        for tables in (1, 2):
            callback, training = begun(config, tables=tables, step=3)
            callback.load_state_dict(state)
            assert every + rates_of(callback, training, 4) == pytest.approx(
                [0.05, 0.05, 0.005, 0.005, 0.005, 0.0005, 0.0005]
            )


def test_a_rate_moves_tables_and_dense_from_its_own_step_on(
    tmp_path: Path, gloo_pool: GlooPool
) -> None:
    """At a rate of 0 from step 2 on, 5 steps leave what 2 steps leave; of the tables alone too."""
    zero = {"scheduler": "StepLR", "options": {"step_size": 2, "gamma": 0.0}}
    train = {"rows": 160, "log_every": 8}
    two = gloo_pool.run(trained, registry(tmp_path / "two", steps=2, **train))
    five = registry(tmp_path / "five", {"use": "schedule", **zero}, steps=5, **train)
    same(gloo_pool.run(trained, five), two)
    tables = {"use": "schedule", "of": "tables", **zero}
    halves = gloo_pool.run(trained, registry(tmp_path / "tables", tables, steps=5, **train))
    for (_, found), (_, expected) in zip(halves, two, strict=True):
        for name, value in found.items():
            assert torch.equal(value, expected[name]) == ("embedding" in name), name


def replicas_and_none(values: dict[str, Any], plan: str) -> None:
    """On a rank: trained with replicas as plain TorchRec trains."""

    def train(
        sharding: dict[str, Any], rounding: AbstractContextManager[object]
    ) -> dict[str, Tensor]:
        _, model = ran(values | {"sharding": sharding}, rounding=rounding)
        tiered = isinstance(model.module.sequences, TierEmbeddingCollection)
        assert tiered == ("plan" in sharding)
        return Trained.of(model, ["item", "shop", "history"], losses=[]).tensors()

    ours = train({"use": "flexshard", "plan": plan}, nullcontext())
    assert_alike(ours, *plain_of(partial(train, values["sharding"])))


def test_replicas_follow_a_schedule(tmp_path: Path, gloo_pool: GlooPool) -> None:
    """Of a table of 40 rows, two thirds are replicas: on both ranks, or in the node."""
    rows = np.arange(40)
    history = TablePlan(
        table="history", replicated=rows[:14], per_node=rows[14:27], num_rows=len(rows)
    )
    plan = TierPlan(tables={"history": history}, n_nodes=1, ranks_per_node=2)
    plan.save(tmp_path / "plan.arrow")
    step = {"scheduler": "StepLR", "options": {"step_size": 2, "gamma": 0.5}}
    values = registry(tmp_path, {"use": "schedule", "warmup": 3, **step}, steps=6)
    values |= {"plugins": [*values["plugins"], "recd_flexshard"], "topology": {"ranks_per_node": 2}}
    gloo_pool.run(replicas_and_none, values, str(tmp_path / "plan.arrow"))


ALL = (
    {"use": "schedule", "warmup": 2, "scheduler": "cosineannealinglr", "options": {"T_max": 9}},
    {"use": "clipping", "norm": 0.05, "value": 0.04},
    {"use": "early_stopping", "patience": 4, "min_delta": 10.0},
    {"use": "extra_metrics", "names": ["mse", "accuracy"]},
    {"use": "mixed_precision"},
    {"use": "diary"},
)


def test_resumed_is_uninterrupted_to_the_bit(tmp_path: Path, gloo_pool: GlooPool) -> None:
    """With all of them; early stopping has counted before and ends the run after."""
    train = {"eval_every": 2, "steps": 20}
    whole = gloo_pool.run(trained, registry(tmp_path / "whole", *ALL, **train))
    first = registry(tmp_path / "parts", *ALL, **train | {"steps": 5})
    gloo_pool.run(trained, first)
    parts = gloo_pool.run(trained, registry(tmp_path / "parts", *ALL, **train), True)
    for summary, _ in (*whole, *parts):
        # The first of five evaluations is the best: the fifth, at step 10, is the fourth to fail.
        assert summary["step"] == 11
        assert summary["finished"]
        assert summary["pages"] == 11
    same(whole, parts)
    for kind in ("train", "test"):
        logged = [lines(tmp_path / name / "run", kind) for name in ("whole", "parts")]
        for line in logged[0] + logged[1]:
            line.pop("samples_per_second", None)
        # The part that ended at step 5 was evaluated there.
        assert [line for line in logged[1] if kind == "train" or line["step"] != 5] == logged[0]


def test_numbers_that_are_keys_of_a_state_are_numbers_in_a_resumed_run(
    tmp_path: Path, gloo_pool: GlooPool
) -> None:
    """Milestones of torch's are such keys: as texts, they were never reached again."""
    steps = {"milestones": [2, 5], "gamma": 0.5}
    schedule = {"use": "schedule", "scheduler": "multisteplr", "options": steps}
    both = (schedule, {"use": "diary"})
    gloo_pool.run(trained, registry(tmp_path, *both, steps=4))
    gloo_pool.run(trained, registry(tmp_path, *both), True)
    found = lines(tmp_path / "run")
    assert [line["dense_lr"] for line in found] == by_hand(8, 0.1, 0, "MultiStepLR", **steps)
    assert [line["tables_lr"] for line in found] == by_hand(8, 0.5, 0, "MultiStepLR", **steps)
    assert [line["odd_pages"] for line in found] == [1, 1, 2, 2, 3, 3, 4, 4]


def test_a_callback_that_draws_as_it_starts_changes_no_draws_of_a_resumed_run(
    tmp_path: Path, gloo_pool: GlooPool
) -> None:
    drawn = {}
    for name, steps in (("whole", [4]), ("parts", [2, 4])):
        for resume, last in enumerate(steps):
            values = registry(tmp_path / name, "draws", steps=last)
            gloo_pool.run(trained, values, bool(resume))
        drawn[name] = [line["drawn"] for line in lines(tmp_path / name / "run")]
    assert drawn["parts"] == drawn["whole"]
    assert len({*drawn["whole"]}) == 4


def test_clipped_gradients_are_those_of_torch(tmp_path: Path, gloo_pool: GlooPool) -> None:
    """One SGD step moves dense weights by at most norm times rate, and by just that if it clips."""
    start = gloo_pool.run(trained, registry(tmp_path / "0", steps=1, optimizer={
        **OPTIMIZERS, "dense_lr": 1e-30}))  # fmt: skip
    clipped = gloo_pool.run(
        trained, registry(tmp_path / "1", {"use": "clipping", "norm": 1e-3}, steps=1)
    )
    for (_, before), (_, after) in zip(start, clipped, strict=True):
        moved = [after[name] - before[name] for name in before if "embedding" not in name]
        norm = math.sqrt(sum(float(part.square().sum()) for part in moved))
        # Weights around 0.1 have 2**-27 between them; some tens of numbers are rounded to that.
        assert norm == pytest.approx(0.1 * 1e-3, abs=1e-6)
    (line,) = lines(tmp_path / "1" / "run")
    assert line["gradient_norm"] > 1e-3


def test_extra_metrics_are_what_their_names_say(tmp_path: Path, gloo_pool: GlooPool) -> None:
    callback = {"use": "extra_metrics", "names": ["mse", "ctr"]}
    gloo_pool.run(trained, registry(tmp_path, callback, steps=2, log_every=2))
    (train,), (test,) = (lines(tmp_path / "run", kind) for kind in ("train", "test"))
    for line in (train, test):
        assert 0 < line["mse"] < 1
        assert line["rmse"] == pytest.approx(math.sqrt(line["mse"]), rel=1e-6)
        assert 0 < line["ctr"] < 1


def of_lines(run: Path, *kinds: str) -> list[dict[str, Any]]:
    """The lines of these kinds, but for times."""
    return [
        {name: value for name, value in line.items() if name != "samples_per_second"}
        for kind in kinds
        for line in lines(run, kind)
    ]


def test_extra_metrics_of_a_resumed_run_are_of_all_the_steps_of_a_line(
    tmp_path: Path, gloo_pool: GlooPool, capfd: pytest.CaptureFixture[str]
) -> None:
    """Whether they keep sums or samples; and no line has anything of the one before."""
    callback = {"use": "extra_metrics", "names": list(FIT)}
    train = {"log_every": 2, "steps": 6, "checkpoint_every": 3, "eval_every": 2}
    gloo_pool.run(trained, registry(tmp_path, callback, **train))
    whole, killed = tmp_path / "run", tmp_path / "killed"
    shutil.copytree(whole, killed)
    shutil.rmtree(killed / "checkpoints/step-00000006")
    reshard(killed, tmp_path / "other", 1)
    gloo_pool.run(trained, registry(tmp_path, callback, **train, run=str(killed)), True)
    expected = of_lines(whole, "train", "test")
    assert of_lines(killed, "train", "test") == expected
    assert [line["step"] for line in expected] == [2, 4, 6, 2, 4, 6]
    assert len(expected[0]) > len(FIT)
    capfd.readouterr()
    other = registry(tmp_path, callback, **train, run=str(tmp_path / "other"))
    gloo_pool.run(trained, other, True, world_size=1)
    assert (
        "extra_metrics: the number of ranks has changed, so the next line has"
        in capfd.readouterr().out
    )


def test_a_line_of_extra_metrics_has_nothing_of_the_one_before() -> None:
    def collected(*seeds: int) -> dict[str, float]:
        names = tuple(name for name in FIT if name != "xauc")  # torch warns of what it calls
        callback = build_extra_metrics(ExtraMetricsConfig(names=names), Context())
        training: Any = SimpleNamespace(
            labels=(Label(name="click"),), world_size=1, rank=0, device=torch.device("cpu"),
            settings=SimpleNamespace(batch_size=8), say=print,
        )  # fmt: skip
        callback.at_start(training)
        for seed in seeds:
            draw = torch.Generator().manual_seed(seed)
            logits, labels = torch.randn(2, 8, generator=draw)
            training.outputs = (logits.mean(), logits, (labels > 0).float(), torch.ones(8))
            found: dict[str, float] = {}
            callback.after_step(training)
            callback.on_metrics(training, found)
        return found

    assert collected(1, 2) == collected(2)


def test_several_labels_train_and_are_measured_each(tmp_path: Path, gloo_pool: GlooPool) -> None:
    """From a table of another program, with sample weights and labels that some samples lack."""
    rows = range(160)
    columns = {
        "click": [row % 7 < 3 for row in rows],
        "dwell": [row / 8 if row % 3 else None for row in rows],
        "weight": [1 + row % 2 for row in rows],
        "item": [f"item {row % 7}" for row in rows],
        "vector": [[row / 160, 0.5] for row in rows],
    }
    for split in ("train", "test"):
        pq.write_table(pa.table(columns), tmp_path / f"{split}.parquet")
    schema = {
        "session_id": None,
        "timestamp": None,
        "labels": [
            {"name": "click"},
            {"name": "dwell", "kind": "regression", "weight": 0.1, "nulls": "empty"},
        ],
        "sample_weight": "weight",
        "dense": [{"name": "vector", "width": 2}],
        "sparse": [{"name": "item", "num_ids": 50, "ids": "hash"}],
    }
    values = registry(tmp_path, {"use": "extra_metrics", "names": ["mse"]}, steps=40, log_every=20)
    paths = {split: str(tmp_path / f"{split}.parquet") for split in ("train", "test")}
    values |= {
        "plugins": ["recd_dlrm"],
        "dataset": {"use": "parquet", **paths, "schema": schema},
        "model": {"use": "dlrm", "embedding_dim": 8, "bottom": [8], "top": [8]},
    }
    gloo_pool.run(trained, values)
    (first, last), (test,) = (lines(tmp_path / "run", kind) for kind in ("train", "test"))
    assert last["auc/click"] == last["auc"]
    assert test["auc/click"] > 0.9
    assert last["loss"] < first["loss"]
    assert test["mse/dwell"] > 0
    assert {"mse/click", "rmse/click", "mse/dwell", "ne/click"} <= test.keys()
    assert test["samples"] == 160


def test_mixed_precision_stays_close(tmp_path: Path, gloo_pool: GlooPool) -> None:
    """bfloat16 keeps 8 bits: a logit near 1, a sum of products, is off by some 2**-8.

    The loss moves by less than the logit does, as the sigmoid's slope is below 1; the weights of
    few steps add no more.
    """
    plain = gloo_pool.run(trained, registry(tmp_path / "plain", steps=4))
    mixed = gloo_pool.run(
        trained, registry(tmp_path / "mixed", {"use": "mixed_precision"}, steps=4)
    )
    losses = [
        [line["loss"] for line in lines(tmp_path / name / "run")] for name in ("plain", "mixed")
    ]
    assert losses[0] != losses[1]
    assert losses[0] == pytest.approx(losses[1], abs=4 * 2**-8)
    for (_, left), (_, right) in zip(plain, mixed, strict=True):
        assert all(value.dtype == left[name].dtype for name, value in right.items())


def test_a_callback_inherits_what_it_does_not_write() -> None:
    class Silent(Callback):
        pass

    assert Silent().state_dict() == {}
    training: Any = None
    batch: Any = object()
    assert Silent().on_batch(training, batch, "train") is batch


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda batch: {"features": with_ids(batch.features, batch.features.values() + 99)}, "id "),
        (lambda batch: {"labels": batch.labels[:0]}, "a batch of no samples, of which TorchRec"),
        (lambda batch: {"dense": batch.dense.double()}, "dense of torch.float64, where they"),
    ],
)
@pytest.mark.parametrize("in_place", [False, True])
def test_a_batch_that_a_callback_makes_is_held_to_the_schema(
    change: Callable[[Batch], dict[str, Any]], says: str, in_place: bool
) -> None:
    """Be it another one, or the one that it was given, with other parts."""

    @dataclasses.dataclass  # which no dict takes as a key
    class Makes(Callback):
        def on_batch(self, training: Training, batch: Batch, split: Split) -> Batch:
            if not in_place:
                return dataclasses.replace(batch, **change(batch))
            for name, part in change(batch).items():
                setattr(batch, name, part)
            return batch

    choice: Any = SimpleNamespace(who="callbacks[0]: mine", named=lambda when: nullcontext())
    schema = Schema(sparse=(SparseFeature(name="a", num_ids=9),), dense=("d",))
    training: Any = None
    batch = random_batch(schema, 4, seed=0)
    assert Callbacks([(Callback(), choice)], schema).on_batch(training, batch, "train") is batch
    with pytest.raises((DataError, PluginError)) as caught:
        Callbacks([(Makes(), choice)], schema).on_batch(training, batch, "train")
    assert str(caught.value).startswith(f"callbacks[0]: mine: its `on_batch` returned {says}")


@pytest.mark.parametrize(
    ("before", "now", "states"),
    [
        (["d", "mine:d"], ["d", "d"], {"d": 0, "d#2": 1}),
        ([{"use": "d", "a": 1}], [{"use": "d", "a": 2}], {"d": 0}),
        (["e", {"use": "d", "a": 1}, "d"], ["d"], {"e (callbacks[0] then)": 0, "d": 2}),
        ([{"use": "d", "a": 1}, "d"], ["d", {"a": 1, "use": "d"}], {"d#2": 0, "d": 1}),
        ([{"use": "d", "a": 1}, "d"], ["d", {"use": "d", "a": 2}], {"d#2": 0, "d": 1}),
        (["d"], ["e", {"use": "d", "a": 1}, "d"], {"d#2": 0}),
        (["d"], [], {"d (callbacks[0] then)": 0}),
    ],
)
def test_a_callback_goes_on_with_the_state_of_its_options(
    before: list[Any], now: list[Any], states: dict[str, int]
) -> None:
    names: dict[str, int] = {}
    for number, one in enumerate(before):
        name = (one if isinstance(one, str) else one["use"]).rpartition(":")[2]
        names[f"{name}#2" if name in names else name] = number
    found = states_by_options(names, {"callbacks": before}, {"callbacks": now})
    gone = {name: state for name, state in found.items() if state not in states.values()}
    assert {name: found[name] for name in states} == states
    assert all(name.endswith("then)") for name in gone)


def test_a_run_without_the_first_of_two_callbacks_goes_on_with_the_state_of_the_second(
    tmp_path: Path, gloo_pool: GlooPool, capfd: pytest.CaptureFixture[str]
) -> None:
    first, second = {"use": "diary", "name": "a", "starts": 10}, {"use": "diary", "name": "b"}
    gloo_pool.run(trained, registry(tmp_path, first, second, steps=2))
    for summary, _ in gloo_pool.run(trained, registry(tmp_path, second, steps=4), True):
        assert summary["pages"] == 4
    said = "callbacks: the checkpoint's state of diary (callbacks[0] then) has no taker now"
    assert said in capfd.readouterr().out


def test_an_optimizer_of_a_plugins_steps_the_dense_part(
    tmp_path: Path, gloo_pool: GlooPool
) -> None:
    check_record(PLAIN)
    torchs = gloo_pool.run(trained, registry(tmp_path / "torchs", steps=3))
    tables = {name: value for name, value in OPTIMIZERS.items() if name.startswith("tables")}
    own = registry(tmp_path / "own", steps=3, optimizer=tables) | {"optimizer": "plain"}
    same(gloo_pool.run(trained, own), torchs)
    both = registry(tmp_path / "both") | {"optimizer": "plain"}
    with pytest.raises(RegistryError, match=r"train.optimizer \(dense, dense_lr\) both choose"):
        load(both).optimizer()


@pytest.mark.parametrize(
    ("event", "left", "says"),
    [
        ("on_metrics", {"mine": "abc"}, "on_metrics left 'abc' as the metric 'mine'. Give a num"),
        ("on_metrics", {"mine": torch.ones(1)}, "left tensor([1.]) as the metric 'mine'."),
        ("on_metrics", {"loss": None}, "on_metrics left None as the metric 'loss'. Give a number"),
        ("on_evaluation", None, "on_evaluation removed 'loss', which a run prints."),
        (
            "at_end",
            {"mine": {1}},
            "at_end left a value that cannot be written as JSON (Object of type set",
        ),
    ],
)
def test_what_a_callback_leaves_can_be_written(
    tmp_path: Path, event: str, left: dict[str, Any] | None, says: str
) -> None:
    class Leaves(Callback):
        pass

    def leave(_: Callback, training: Any, values: dict[str, Any]) -> None:
        values.clear() if left is None else values.update(left)

    setattr(Leaves, event, leave)
    ((_, choice),) = load(registry(tmp_path, {"use": "schedule", "warmup": 2})).callbacks()
    values = {"loss": 1.0, "ne": 1.0, "auc": math.nan, "samples": 8}
    training: Any = None
    with pytest.raises(PluginError) as caught:
        Callbacks([(Leaves(), choice)]).call(event, training, values)
    assert says in str(caught.value)
    assert str(caught.value).startswith("callbacks[0]: callbacks 'schedule' of ")
    right = {"loss": 1.0, "ne": 1.0, "auc": math.nan, "samples": 8, "mine": 2, "none": None}
    Callbacks([(Callback(), choice)]).call(event, training, right)


@pytest.mark.parametrize("state", [None, [1], 3])
def test_a_state_that_is_no_dict_is_refused_before_it_is_lost(tmp_path: Path, state: Any) -> None:
    """As that of a method which lacks its `return`: a resumed run would begin without it."""

    class Keeps(Callback):
        def state_dict(self) -> Any:
            return state

        def load_state_dict(self, state: Any) -> None:
            raise AssertionError

    ((_, choice),) = load(registry(tmp_path, {"use": "schedule", "warmup": 2})).callbacks()
    says = r"^callbacks\[0\]: state_dict of Keeps returned .*\. Return what it keeps as a dict"
    with pytest.raises(PluginError, match=says):
        Callbacks([(Keeps(), choice)]).state_dict()
    assert Callbacks([(Callback(), choice)]).state_dict() == {}


def test_a_state_that_nobody_goes_on_from_is_refused_as_a_run_starts(tmp_path: Path) -> None:
    class Saves(Callback):
        def state_dict(self) -> dict[str, Any]:
            return {"seen": 3}

    class Loads(Saves):
        def load_state_dict(self, state: dict[str, Any]) -> None:
            pass

    ((_, choice),) = load(registry(tmp_path, {"use": "schedule", "warmup": 2})).callbacks()
    with pytest.raises(PluginError, match="Saves has a state_dict and no load_state_dict, so a"):
        Callbacks([(Saves(), choice)])
    assert Callbacks([(Loads(), choice)]).state_dict() == {"schedule": {"seen": 3}}


@pytest.mark.parametrize(
    ("leave", "says"),
    [
        (
            lambda one: one.model.eval(),
            "left the model in another mode than it found: False instead of True",
        ),
        (lambda one: torch.set_grad_enabled(False), "left gradients computed otherwise than it"),
        (lambda one: setattr(one, "step", 9), "left `training.step` at another step than it found"),
        (
            lambda one: one.dense.add_param_group({"params": [nn.Parameter(torch.ones(3))]}),
            "left other parameters in the groups of `training.dense` than it found: [2, 1] instead",
        ),
        (lambda one: one.model(torch.ones(1, 1)), "calls the model. TorchRec's pipeline has alr"),
        (lambda one: os.chdir("/"), "left the process in another folder than it found: / instead"),
    ],
)
def test_a_callback_leaves_what_steps_are_trained_by(
    tmp_path: Path, leave: Callable[[Any], None], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # and back at the end

    class Leaves(Callback):
        def before_step(self, training: Training) -> None:
            leave(training)

    ((_, choice),) = load(registry(tmp_path, {"use": "schedule", "warmup": 2})).callbacks()
    model, callbacks = nn.Linear(1, 1), Callbacks([(Leaves(), choice)])
    model.register_forward_pre_hook(callbacks.refuse_forward)  # as a run does
    dense = torch.optim.SGD(model.parameters(), lr=0.1)
    training: Any = SimpleNamespace(model=model, dense=dense, step=3)
    with torch.enable_grad(), pytest.raises(PluginError) as caught:
        callbacks.call("before_step", training)
    assert model(torch.ones(1, 1)).numel() == 1  # none runs any more
    assert f"callbacks[0]: callbacks 'schedule' of {choice.provider}: before_step {says}" in str(
        caught.value
    )


@pytest.mark.parametrize(
    ("tell", "says"),
    [
        (
            lambda one: one.stop(3),
            "TypeError in at_start: training.stop takes the reason why the run ends, in",
        ),
        (lambda one: one.stop(""), "takes the reason why the run ends, in words, but was given ''"),
        (lambda one: one.say(3), "TypeError in at_start: training.say takes a text, but was given"),
        (lambda one: one.log("mine", 3), "takes the kind of a line and a mapping of values, but"),
        (lambda one: one.log("cost", {}), "ValueError in at_start: training.log was given the kin"),
        (lambda one: one.log("mine", {"step": 3}), "was given a value named 'step', as each line"),
        (lambda one: one.log("mine", {"rows": torch.ones(1)}), "values that cannot be written as"),
    ],
)
def test_what_a_callback_tells_a_run_is_held_to_what_that_takes(
    tmp_path: Path, tell: Callable[[Training], None], says: str
) -> None:
    class Tells(Callback):
        def at_start(self, training: Training) -> None:
            training.stop("enough")
            training.say("a line")
            training.log("mine", {"rows": 3, "share": math.nan})
            tell(training)

    ((_, choice),) = load(registry(tmp_path, {"use": "schedule", "warmup": 2})).callbacks()
    none = [dataclasses.MISSING, dataclasses.MISSING]
    fields = dataclasses.fields(Training)
    needed = {one.name: None for one in fields if [one.default, one.default_factory] == none}
    training: Any = Training(**needed)  # type: ignore[arg-type]
    with pytest.raises(PluginError) as caught:
        Callbacks([(Tells(), choice)]).call("at_start", training)
    assert str(caught.value).startswith("callbacks[0]: callbacks 'schedule' of ")
    assert says in str(caught.value)
    assert training.stopping == "enough"
    assert training.lines == ["a line", ("mine", None, {"rows": 3, "share": math.nan})]
