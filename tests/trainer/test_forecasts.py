"""Ladder: a forecast beside its fact as values, then of two gloo ranks that train."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torchrec.datasets.utils import Batch
from torchrec.distributed import DistributedModelParallel, TrainPipelineSparseDist
from torchrec.models.dlrm import DLRM, DLRMTrain
from torchrec.modules.embedding_configs import EmbeddingBagConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from torchrec.optim.optimizers import in_backward_optimizer_filter
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recd_plugins.api.training import WatchedBatches
from recd_plugins.compat.pytorch import is_innermost
from recd_plugins.planning.tier_plans.tier_plan import TablePlan, TierPlan
from recd_plugins.report.page import SECTIONS, page
from recd_plugins.report.sources import read_sources
from recd_plugins.sparse.keyed import mark_of, marked
from recd_plugins.stack import Stack, load
from recd_plugins.testing.gloo import GlooPool
from recd_plugins.trainer.measure.beside import Beside, lines
from recd_plugins.trainer.measure.dedupe_ahead import KeptIds
from recd_plugins.trainer.measure.forecasts import (
    APART,
    ONE_IN,
    Facts,
    _dedupe,
    _in_count,
    _off,
    coverage_of_saved_plan,
    is_counted,
)
from recd_plugins.trainer.measure.traffic import TrafficCounter


def test_forecast_and_fact_part_by_more_than_a_tenth_and_out_of_the_interval() -> None:
    served = Beside(what="t", unit="share", forecast=0.5, interval=(0.4, 0.6), fact=0.41)
    assert not served.parted
    assert served.words == ("t", "50.0±10.0%", "41.0%")
    assert Beside(what="t", unit="share", forecast=0.5, interval=(0.4, 0.6), fact=0.39).parted
    assert not Beside(what="b", unit="bytes", forecast=1000, fact=1090).parted
    moved = Beside(what="b", unit="bytes", forecast=1000, fact=2000, note="cluster the table")
    assert list(lines([moved]))[1:] == [
        "b                     0.977 KiB  1.95 KiB",
        "b: forecast and fact part: cluster the table",
    ]
    assert Beside.of(json.loads(json.dumps(moved.values()))) == moved
    unknown = Beside(what="hot", unit="batches", forecast=None, fact=0, note="none were made")
    assert not unknown.parted
    assert list(lines([unknown]))[-1] == "none were made"


def test_few_hot_batches_part_from_their_forecast_by_more_than_counting_leaves_open() -> None:
    def parted(share: float, batches: int, hot: float) -> bool:
        within = _in_count(share, batches)
        forecast = share * batches
        return Beside(what="", unit="batches", forecast=forecast, interval=within, fact=hot).parted

    assert not parted(0.102, 25, 3)  # 2.55: both are 3 as they are printed
    assert not parted(0.1, 20, 4)
    assert parted(0.1, 20, 6)
    assert parted(0.5, 1_000, 400)
    assert not parted(0.5, 1_000, 530)


WHY = [
    (0.3, 0.06, "6.0% of an epoch was trained"),
    (0.7, 0.06, "6.0% of an epoch was trained"),
    (0.3, 1.0, "other rows are hot than those that were counted"),
    (0.7, 1.0, "have fewer of these rows"),
]
"""A fact beside a forecast of 0.5, the part of an epoch that was trained, and why they part."""


def registry(folder: Path, **more: Any) -> dict[str, Any]:
    user, item = ({"name": name, "kind": name, "num_ids": 2000} for name in ("user", "item"))
    return {
        "plugins": ["recd_dlrm", "recd_dedup", "recd_scars"],
        "folder": str(folder),
        "dataset": {
            "use": "sessions",
            "samples": 8192,
            "samples_per_session": 8,
            "session_sigma": 0.2,
            "features": [{**user, "length": 6, "stay": 1.0}, item],
            "dense": 2,
        },
        "etl": [{"use": "cluster_by_session"}],
        "dedup": {"use": "exact", "groups": [["user"]]},
        "reader": {"use": "local", "sessions": "whole"},
        "model": {"use": "dlrm", "embedding_dim": 8},
        "cache": {"use": "scars", "size": "hit_rate", "hit_rate": 0.3, "coalesce": "rank"},
        "train": {"ranks": 2, "batch_size": 128, "steps": 32, "log_every": 8, **more},
    }


def trained(values: dict[str, Any]) -> list[dict[str, Any]]:
    from recd_plugins.trainer.run import train

    found: list[dict[str, Any]] = train(load(values), torch.device("cpu"))["forecasts"]
    return found if dist.get_rank() == 0 else []


@pytest.mark.parametrize("hot", [False, True])
def test_of_hot_batches_and_of_others_each_eighth_is_counted(hot: bool) -> None:
    counted = [number for number in range(1, 1 + 20 * ONE_IN) if is_counted(number, hot=hot)]
    assert [(number - 1) // ONE_IN for number in counted] == list(range(20))
    assert len({(number - 1) % ONE_IN for number in counted}) > 4  # not those of a period


def test_a_run_says_what_was_forecast_and_what_came(gloo_pool: GlooPool, tmp_path: Path) -> None:
    run = tmp_path / "run"
    found, _ = gloo_pool.run(trained, registry(tmp_path, run=str(run), eval_batches=1))
    by_what = {one["what"].split(",")[0]: one for one in found}
    assert {what.split(":")[0] for what in by_what} == {
        "t_user",
        "t_item",
        "bytes of collectives",
        "dedupe factor",
        "hot batches",
    }
    for what, one in by_what.items():
        if one["forecast"] is not None:
            # All 32 batches of the epoch were counted, and read for the dedupe factor; but one in 8
            # is looked at for what tiers serve, and bytes are those of one step.
            assert one["fact"] == pytest.approx(one["forecast"], rel=0.15), what
    assert by_what["hot batches"]["note"].startswith("hot batches are on, and none were made")
    assert json.loads((run / "summary.json").read_text())["forecasts"] == json.loads(
        json.dumps(found)
    )
    shown = page(read_sources([str(run)]))
    drawn = {at for at, _, _ in SECTIONS if f'<section id="{at}">' in shown}
    assert drawn == {at for at, _, _ in SECTIONS} - {"step"}  # which nobody profiled
    assert "lookups that replicated serves" in shown
    assert "all-to-all, ids" in shown


def test_a_run_of_a_few_steps_is_held_against_an_epoch_of_which_it_trained_a_part(
    gloo_pool: GlooPool, tmp_path: Path
) -> None:
    few = registry(tmp_path, run=str(tmp_path / "run"), eval_batches=1, steps=3)
    found, _ = gloo_pool.run(trained, few)
    served = [one for one in found if "serves" in one["what"]]  # though no batch was drawn
    assert len(served) == 2
    for one in served:
        assert one["what"].endswith(", forecast for a whole epoch")
        assert one["fact"] == pytest.approx(one["forecast"], rel=0.3)  # of 768 samples


@pytest.mark.parametrize(("fact", "part", "why"), WHY)
def test_a_share_that_parts_has_a_reason_of_its_own(fact: float, part: float, why: str) -> None:
    one = Beside(what="", unit="share", forecast=0.5, fact=fact)
    assert why in Facts(load({}))._why_served(one, part, by_file=False)


@pytest.mark.parametrize(("of", "cure"), [(math.inf, "have the loader keep"), (64.0, "cluster")])
def test_who_can_keep_samples_together_is_told_to(of: float, cure: str) -> None:
    ahead, came = (KeptIds.each([(100, kept)] * 32, of=of) for kept in (25, 50))
    (one,) = _dedupe(ahead, came)
    assert (one.forecast, one.fact, one.parted) == (4, 2, True)
    assert cure in one.note


def test_samples_that_change_places_for_hot_batches_are_why_fewer_are_together() -> None:
    ahead, came = (KeptIds.each([(100, kept)] * 32, of=64.0) for kept in (25, 27))
    (near,) = _dedupe(ahead, came, hot=True)
    assert (near.interval, near.note) == (None, "")
    assert near.what.endswith("forecast by 50% of the batches before samples change places")
    (parted,) = _dedupe(ahead, KeptIds.each([(100, 50)] * 32), hot=True)
    assert "hot_batches: false" in parted.note
    assert "cluster" not in parted.note


def test_one_list_as_long_as_all_others_is_no_growth_of_lists() -> None:
    even, one_long = [50.0] * 20, [50.0] * 19 + [5000.0]
    off, far = (
        _off(sum(every), sum(one * one for one in every), len(every)) for every in (even, one_long)
    )
    assert off == 0
    assert far == pytest.approx(2.2 * np.std(one_long, ddof=1) / np.sqrt(20) / np.mean(one_long))
    assert far > 1
    assert _off(50.0, 2500.0, 1) == math.inf  # of one batch nobody can say


def hot_of_ranks() -> list[dict[str, Any]]:
    """On a rank: the batches of the last rank have half as many hot samples."""
    cache = {"use": "scars", "size": "hit_rate", "hit_rate": 0.3}
    stack = load({"plugins": ["recd_scars"], "cache": cache})
    stack._order.ordered = True  # as once a loader of the registry's was ordered
    facts = Facts(stack)
    facts.batches, facts.hot, facts.hot_ahead = 64, 16, [0.5, 0.25][dist.get_rank()]
    return [
        one.values() for one in facts.beside(torch.device("cpu"), traffic={}, dense=0.0, parts={})
    ]


def test_as_many_batches_are_forecast_to_be_hot_as_the_rank_with_the_fewest_fills(
    gloo_pool: GlooPool,
) -> None:
    (hot,), _ = gloo_pool.run(hot_of_ranks)
    assert (hot["unit"], hot["forecast"], hot["fact"], hot["note"]) == ("batches", 16, 16, "")


def test_where_no_row_is_on_every_rank_nobody_is_told_to_give_the_cache_more_of_them() -> None:
    stack = load({"plugins": ["recd_scars"], "cache": "scars"})
    stack._order.ordered = True
    facts = Facts(stack)
    planner: Any = stack.planner()
    assert list(facts._hot_batches(64, 0, None)) == []  # TorchRec's own plan was taken
    cached = TablePlan(table="t", replicated=np.arange(2), coalesce="rank", num_rows=9)
    planner.tier_plan = TierPlan(tables={"t": cached}, n_nodes=1, ranks_per_node=2)
    (one,) = facts._hot_batches(64, 0, None)
    assert "Give the cache more rows" in one.note


def own_batches(rank: int, ids: int = 6) -> list[Batch]:
    """64 of 64 samples: in fours they have the same `ids` of a user, and an item each."""
    draw, found = np.random.default_rng(rank), []
    for _ in range(64):
        users = (2000 ** draw.random((16, ids))).astype(int).repeat(4, 0)
        items = (2000 ** draw.random(64)).astype(int)
        kjt = KeyedJaggedTensor(
            ["user", "item"],
            torch.from_numpy(np.concatenate([users.ravel(), items]) - 1),
            lengths=torch.tensor([ids] * 64 + [1] * 64),
        )
        found.append(Batch(torch.rand(64, 2), kjt, torch.randint(0, 2, (64,))))
    return found


def own_trainer() -> list[dict[str, Any]]:
    """On a rank: TorchRec's own parts, and batches that are watched as they pass."""
    cache = {"use": "scars", "size": "hit_rate", "hit_rate": 0.3, "coalesce": "rank"}
    stack = load(
        {
            "plugins": ["recd_dedup", "recd_scars"],
            "dedup": {"use": "exact", "groups": [["user"]]},
            "cache": {**cache, "hot_batches": False, "profile_batches": 24},
        }
    )
    tables = [
        EmbeddingBagConfig(
            name=f"t_{key}", num_embeddings=2000, embedding_dim=8, feature_names=[key]
        )
        for key in ("user", "item")
    ]
    bags = EmbeddingBagCollection(tables=tables, device=torch.device("meta"))
    model = stack.adapt(DLRMTrain(DLRM(bags, 2, [8, 8], [8, 1])))
    convert = stack.converting()
    batches = list(map(convert, own_batches(dist.get_rank())))
    plan = stack.plan(model, batches=batches)
    device = torch.device("cpu")
    sharded = DistributedModelParallel(model, device=device, plan=plan, sharders=stack.sharders())
    dense = dict(in_backward_optimizer_filter(sharded.named_parameters()))
    watched = WatchedBatches(stack, batches)
    assert len(watched) == 64
    assert len(watched.copy()) == 64  # a list's own method
    pipeline = TrainPipelineSparseDist(sharded, torch.optim.SGD(dense.values(), lr=0.1), device)
    stream = iter(watched)
    for _ in range(64):
        pipeline.progress(stream)
    assert next(stream, None) is None
    assert dist.get_rank() or watched.lines()[0].startswith("forecast beside fact")
    assert not dist.get_rank() or not watched.lines()
    priced = timed(stack)
    planner: Any = stack.planner()
    planner.every |= {"another"}  # one that it would not be for
    assert (priced, timed(stack)) == (not dist.get_rank(), False)
    no_prices = [one.note for one in watched.forecasts() if one.unit == "bytes"]
    assert dist.get_rank() or "no prices of table another" in no_prices[0]
    planner.every -= {"another"}
    grown = Facts(stack)
    for batch in map(convert, own_batches(dist.get_rank(), ids=9)):
        grown.look_at(batch)
    parted = [one for one in grown.beside(device, traffic={}, dense=0.0, parts={}) if one.parted]
    if not dist.get_rank():
        (longer,) = parted
        assert longer.what == "t_user: lookups of a sample"
        assert (longer.forecast, longer.fact) == (pytest.approx(6 / 4, rel=0.02), 9 / 4)
        assert "as where lists grow" in longer.note
        counts = {"t_user": np.array([0, 0, 9 * 64, 4 * 64, 4, 4 * 144**2])}
        apart, *_ = grown._coverage(counts, 64, apart=True)
        assert (apart.what, apart.note) == (longer.what, APART)
        (few,) = grown._lookups("t_user", 9 / 4, 0.25, off=0.0)
        assert few.note.startswith("25.0% of an epoch was trained")
        assert not list(grown._lookups("t_user", 9 / 4, 1.0, off=0.5))
    return [one.values() for one in watched.forecasts()]


def timed(stack: Stack) -> bool:
    """On a rank: whether a step's time is compared, which is of all tables."""
    parts = {"exchange": 1.0, "exposed": 0.0, "lookup": 1.0}
    found = Facts(stack).beside(torch.device("cpu"), traffic={}, dense=0.0, parts=parts)
    return "ms" in {one.unit for one in found}


def test_a_trainer_of_ones_own_has_forecast_beside_fact(gloo_pool: GlooPool) -> None:
    found, others = gloo_pool.run(own_trainer)
    assert not others
    by_what = {one["what"].split(":")[0].split(",")[0]: one for one in found}
    assert set(by_what) == {"t_user", "t_item", "bytes of collectives", "dedupe factor"}
    assert by_what["dedupe factor"]["what"].endswith("forecast by the first batches")
    assert by_what["dedupe factor"]["fact"] == pytest.approx(4, rel=0.02)
    for what, one in by_what.items():
        assert one["fact"] == pytest.approx(one["forecast"], rel=0.15), what
    low, high = by_what["t_user"]["interval"]
    assert high - low > 0.01  # its batches were counted in their order: the interval says so
    assert low <= by_what["t_user"]["fact"] <= high


def by_a_saved_plan(path: str) -> list[dict[str, Any]]:
    """On a rank: what tiers of a file serve of batches that it knows nothing of."""
    hot, cold = np.arange(64), np.arange(1500, 2000)
    tables = {
        name: TablePlan(table=name, replicated=rows, coalesce="rank", num_rows=2000)
        for name, rows in (("t_item", hot), ("t_user", cold))
    }
    if not dist.get_rank():
        TierPlan(tables=tables, n_nodes=1, ranks_per_node=2).save(Path(path))
    dist.barrier()
    stack = load({"plugins": ["recd_flexshard"], "sharding": {"use": "flexshard", "plan": path}})
    configs = [
        EmbeddingBagConfig(
            name=f"t_{key}", num_embeddings=2000, embedding_dim=8, feature_names=[key]
        )
        for key in ("user", "item")
    ]
    bags = EmbeddingBagCollection(tables=configs, device=torch.device("meta"))
    stack.plan(DLRMTrain(DLRM(bags, 2, [8, 8], [8, 1])), batches=own_batches(dist.get_rank()))
    facts = Facts(stack)
    for batch in own_batches(dist.get_rank()):
        facts.look_at(batch)
    found = facts.beside(torch.device("cpu"), traffic={}, dense=0.0, parts={})
    return [one.values() for one in found]


def test_a_saved_plan_whose_rows_are_no_longer_hot_is_named(
    gloo_pool: GlooPool, tmp_path: Path
) -> None:
    found, others = gloo_pool.run(by_a_saved_plan, str(tmp_path / "days.plan"))
    assert not others
    item, user = sorted(found, key=lambda one: str(one["what"]))
    assert (item["what"], item["forecast"]) == ("t_item: lookups that replicated serves", None)
    assert item["fact"] == pytest.approx(np.log(65) / np.log(2000), rel=0.05)
    assert item["note"] == ""
    assert user["fact"] < 0.25
    says = "the plan's 500 rows in replicated serve no more lookups than as many"
    assert user["note"].startswith(says)


@pytest.mark.parametrize(
    ("replicated", "per_node", "hot", "warm", "named"),
    [
        (2000, 0, 1.0, 0.0, [False]),
        (20, 600, 0.85, 0.13, [False, False]),
        (20, 1980, 0.99, 0.01, [False, False]),
        (20, 600, 0.85, 0.02, [False, True]),
        (20, 600, 1.0, 0.0, [False, False]),
        (200, 600, 0.1, 0.3, [False, False]),
        (200, 600, 0.01, 0.9, [True, False]),
    ],
    ids=["all DP", "Flex", "all that is left", "cold Flex", "no lookup is left", "chance", "DP"],
)
def test_a_tier_of_a_saved_plan_is_held_against_the_rows_that_are_left(
    replicated: int, per_node: int, hot: float, warm: float, named: list[bool]
) -> None:
    rows = np.arange(2000)
    table = TablePlan(
        table="t",
        replicated=rows[:replicated],
        per_node=rows[replicated : replicated + per_node],
        coalesce="rank",
    )
    found = list(coverage_of_saved_plan(table, 2000, hot, warm))
    assert [bool(one.note) for one in found] == named


def test_a_step_is_over_once_its_trainer_has_enough() -> None:
    with TrafficCounter() as outer:
        for number, _ in enumerate(WatchedBatches(load({}), own_batches(0))):
            if number == 3:  # whose step is counted
                assert not is_innermost(outer)
                break
        assert is_innermost(outer)


class OfEpochs(list[KeyedJaggedTensor]):
    """Batches of a loader that is told of its epoch."""

    epoch = 0


def test_what_watched_batches_are_given_is_their_loaders() -> None:
    loader = OfEpochs(own_batches(0))
    watched: Any = WatchedBatches(load({}), loader)
    watched.epoch = 3
    assert len(list(watched)) == 64
    assert loader.epoch == watched.epoch == 3
    del watched.epoch
    assert loader.epoch == 0
    assert not vars(loader)


@pytest.mark.parametrize("first", [True, False])
def test_of_hot_batches_that_are_watched_each_eighth_is_counted(
    monkeypatch: pytest.MonkeyPatch, first: bool
) -> None:
    counted: list[Any] = []

    def look_at(_: Facts, batch: Any, features: Any, *, drawn: bool) -> None:
        counted.extend([batch] * drawn)

    monkeypatch.setattr(Facts, "look_at", look_at)
    own = own_batches(0)
    hot = own[:8] if first else own[::8]
    for batch in hot:
        batch.sparse_features = marked(batch.sparse_features, "a plan")
    assert len([*WatchedBatches(load({}), own)]) == 64
    assert sum(mark_of(batch.sparse_features) is not None for batch in counted) == 1
    assert len(counted) == 8


def test_a_mode_is_left_by_who_entered_it_last() -> None:
    outer, inner = TrafficCounter(), TrafficCounter()
    with outer:
        assert is_innermost(outer)
        with inner:
            assert (is_innermost(outer), is_innermost(inner)) == (False, True)
    assert not is_innermost(outer)
