"""What a TorchRec trainer may have: two gloo ranks train with tiers, and with tiers and dedup, what
they train plainly. Each row of docs/compatibility.md names its test here."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal

import pytest
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from foreign import CPU, SIDES, Change, Job, Net, Side, clicks, job, tier_plan
from streams import streams, through_streams
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.train_pipeline import (
    EvalPipelineSparseDist,
    GradientAccumulationConfig,
    GradientAccumulationWrapper,
    PrefetchTrainPipelineSparseDist,
    StagedTrainPipeline,
    TrainPipelineBase,
    TrainPipelineFusedSparseDist,
    TrainPipelinePT2,
    TrainPipelineSparseDist,
)
from torchrec.distributed.train_pipeline.experimental_pipelines import (
    TrainEvalHybridPipelineBase,
    TrainPipelineSparseDistBwdOpt,
    TrainPipelineSparseDistT,
)
from torchrec.distributed.train_pipeline.pipeline_stage import PipelineStage, SparseDataDistUtil
from torchrec.distributed.train_pipeline.train_pipelines import (
    EvalPipelineFusedSparseDist,
    TrainPipelineSemiSync,
    TrainPipelineSparseDistLite,
)
from torchrec.distributed.types import ShardingEnv2D, ShardingType
from trio import MINOR

from recd_plugins.errors import CapabilityError
from recd_plugins.notices import NoticeWarning
from recd_plugins.registry.settings import OptimizerSettings
from recd_plugins.sparse.keyed import mark_of
from recd_plugins.testing.arrange import BySharding
from recd_plugins.testing.gloo import GlooPool
from recd_plugins.testing.parity import Bounds, assert_alike
from recd_plugins.testing.rounding import plain_of
from recd_plugins.tiers import tiers
from recd_plugins.tiers.sharder import ShardedTiers, tier_sharders

STEPS = 3

Train = Callable[[Job], None]


def a_loop(own: Job) -> None:
    for batch in own.batches(STEPS):
        own.optimizer.zero_grad()
        own.model(batch)[0].backward()
        own.optimizer.step()


def through(kind: Callable[..., Any], own: Job, **options: Any) -> None:
    pipeline = kind(own.model, own.optimizer, CPU, **options)
    batches = own.batches(STEPS)
    for _ in range(STEPS):
        pipeline.progress(batches)


def accumulating(own: Job) -> None:
    """Gradients of two batches make a step of the dense optimizer; tables step at each backward."""
    for number, batch in enumerate(own.batches(2 * STEPS)):
        if number % 2 == 0:
            own.optimizer.zero_grad()
        own.model(batch)[0].backward()
        if number % 2:
            own.optimizer.step()


def accumulating_through_a_pipeline(own: Job) -> None:
    pipeline = GradientAccumulationWrapper(
        TrainPipelineSparseDist(own.model, own.optimizer, CPU),
        own.optimizer,
        own.model,
        GradientAccumulationConfig(is_enabled=True, num_steps=2),
    )
    batches = own.batches(2 * STEPS)
    for _ in range(2 * STEPS):
        pipeline.progress(batches)


def evaluate(own: Job) -> None:
    evaluation = EvalPipelineSparseDist(own.model, own.optimizer, CPU)
    held_out = own.batches(2)
    for _ in range(2):
        evaluation.progress(held_out)


def evaluating(own: Job, by: Train = evaluate) -> None:
    """An evaluation through TorchRec's own pipeline, between steps through its other one."""
    pipeline = TrainPipelineSparseDist(own.model, own.optimizer, CPU)
    batches = own.batches(STEPS)
    for number in range(STEPS):
        pipeline.progress(batches)
        if number == 0:  # with both others in flight
            pipeline.detach()
            own.model.eval()
            by(own)
            own.model.train()
            pipeline.attach(sparse_dist=False)


def in_stages(own: Job, also: Literal["", "prefetch", "lookup"] = "") -> None:
    """Through stages that a trainer puts together: the batch is moved, its ids are exchanged, and
    in one more stage prefetched or looked up."""
    with streams() as stream:
        named = {"prefetch": "prefetch_stream", "lookup": "embedding_lookup_stream"}
        util = SparseDataDistUtil[Any](own.model, stream, **({named[also]: stream} if also else {}))
        stages = [
            PipelineStage("move", lambda batch: batch.to(CPU), stream),
            util.start_sparse_data_dist_stage(),
        ]
        if also == "prefetch":
            stages.append(PipelineStage("prefetch", util.prefetch, stream))
        if also == "lookup":
            stages.append(util.start_embedding_lookup_stage())
        pipeline = StagedTrainPipeline[Any, Any](stages, compute_stream=stream)
        batches = own.batches(STEPS)
        while (batch := pipeline.progress(batches)) is not None:
            own.optimizer.zero_grad()
            own.model(batch)[0].backward()
            own.optimizer.step()
        assert len(util._pipelined_modules) >= 3  # all collections'


def compiled(net: Net) -> None:
    net.over.compile(backend="aot_eager")  # which keeps the names of parameters


REFERENCES: dict[str, tuple[dict[str, Tensor], Bounds]] = {}
"""By what is computed, however it is pipelined; a rank keeps them from test to test."""


def reference(train: Train) -> tuple[dict[str, Tensor], Bounds]:
    def run(rounding: AbstractContextManager[Any]) -> dict[str, Tensor]:
        own = job("plain")
        with rounding:
            train(own)
        return own.trained()

    name = train.__name__
    if name not in REFERENCES:
        expected, bounds = plain_of(run)
        REFERENCES[name] = dict(expected), bounds
    return REFERENCES[name]


def trains(train: Train, like: Train, change: Change | None = None) -> None:
    """On a rank: all sides, plain TorchRec too, come to what `like` comes to plainly."""
    for side in SIDES:
        own = job(side, change)
        train(own)
        try:
            assert_alike(own.trained(), *reference(like))
        except AssertionError as error:
            raise AssertionError(f"{side}: {error}") from None


PIPELINES = {
    "a loop": a_loop,
    "TrainPipelineBase": partial(through, TrainPipelineBase),
    "TrainPipelineSparseDist": partial(through, TrainPipelineSparseDist),
    "TrainPipelineSparseDistLite": partial(through, TrainPipelineSparseDistLite),
    "TrainPipelineSparseDistT": partial(through, TrainPipelineSparseDistT),
    "TrainPipelinePT2": partial(through, TrainPipelinePT2),
    "TrainEvalHybridPipelineBase": partial(through, TrainEvalHybridPipelineBase),
    "PrefetchTrainPipelineSparseDist": partial(
        through_streams, PrefetchTrainPipelineSparseDist, steps=STEPS
    ),
    "TrainPipelineFusedSparseDist": partial(
        through_streams, TrainPipelineFusedSparseDist, steps=STEPS
    ),
    "TrainPipelineFusedSparseDist, lookup last": partial(
        through_streams,
        TrainPipelineFusedSparseDist,
        steps=STEPS,
        embedding_lookup_after_data_dist=True,
    ),
    "StagedTrainPipeline": in_stages,
    "StagedTrainPipeline, prefetching": partial(in_stages, also="prefetch"),
    "EvalPipelineSparseDist in between": evaluating,
    "EvalPipelineFusedSparseDist in between": partial(
        evaluating, by=partial(through_streams, EvalPipelineFusedSparseDist, steps=2)
    ),
    "EvalPipelineFusedSparseDist in between, lookup ahead": partial(
        evaluating,
        by=partial(
            through_streams,
            EvalPipelineFusedSparseDist,
            steps=2,
            enable_embedding_lookup_prefetch=True,
        ),
    ),
}
if MINOR < 8:  # which has no such option
    del PIPELINES["EvalPipelineFusedSparseDist in between, lookup ahead"]


@pytest.mark.parametrize("train", PIPELINES.values(), ids=PIPELINES.keys())
def test_every_pipeline_trains_as_plainly(gloo_pool: GlooPool, train: Train) -> None:
    gloo_pool.run(trains, train, a_loop)


def semi_synchronous(own: Job) -> None:
    """From the second batch on, its rows are looked up before the backward of the one before."""
    through_streams(TrainPipelineSemiSync, own, STEPS + 1, start_batch=1)


def test_a_semi_synchronous_pipeline(gloo_pool: GlooPool) -> None:
    gloo_pool.run(trains, semi_synchronous, semi_synchronous)


def semi_synchronous_from_the_third(own: Job) -> None:
    """As far as the third batch, each is looked up behind the step before it; then the trainer
    writes a checkpoint, and only then the batch is computed."""
    through_streams(TrainPipelineSemiSync, own, STEPS + 1, behind=state_of, start_batch=2)


def test_checkpoints_between_a_lookup_and_its_forward(gloo_pool: GlooPool) -> None:
    """The rows are those that were looked up, though they are at home by the forward."""
    gloo_pool.run(trains, semi_synchronous_from_the_third, semi_synchronous_from_the_third)


def in_stages_that_look_up(own: Job) -> None:
    """From the second batch on, its rows are looked up before the backward of the one before."""
    in_stages(own, "lookup")


def test_stages_that_look_up(gloo_pool: GlooPool) -> None:
    gloo_pool.run(trains, in_stages_that_look_up, in_stages_that_look_up)


HOT: dict[str, Any] = {
    "plugins": ["recd_scars"],
    "cache": {"use": "scars", "size": "hit_rate", "hit_rate": 0.95, "window": 8, "force": True},
    "topology": {"ranks_per_node": 1, "inter_node_gbps": 0.02},
}
HOT_REFERENCES: dict[str, tuple[dict[str, Tensor], Bounds]] = {}
"""As `REFERENCES`, of the batches that `stack.order` makes."""


def trains_hot(train: Train, like: Train) -> list[bool]:
    """On a rank: batches that `stack.order` makes come to what plain TorchRec makes of them; which
    of them are hot."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NoticeWarning)  # so few rows are not worth a cache
        batches = list(clicks(8, "plain"))
        own = job("registry", make_loader=lambda _: batches, registry=HOT)
    assert own.stack is not None
    given = own.given = list(own.stack.order(batches, features=attrgetter("sparse")))
    train(own)

    def run(rounding: AbstractContextManager[Any]) -> dict[str, Tensor]:
        plain = job("plain")
        plain.given = given
        with rounding:
            like(plain)
        return plain.trained()

    if like.__name__ not in HOT_REFERENCES:
        expected, bounds = plain_of(run)
        HOT_REFERENCES[like.__name__] = dict(expected), bounds
    assert_alike(own.trained(), *HOT_REFERENCES[like.__name__])
    return [mark_of(batch.sparse) is not None for batch in given[:STEPS]]


@pytest.mark.parametrize(
    ("train", "like"),
    [
        (partial(through, TrainPipelineSparseDist), a_loop),
        (partial(through, TrainPipelineSparseDistLite), a_loop),
        (PIPELINES["TrainPipelineFusedSparseDist"], a_loop),
        (PIPELINES["PrefetchTrainPipelineSparseDist"], a_loop),
        (PIPELINES["StagedTrainPipeline, prefetching"], a_loop),
        (in_stages_that_look_up, in_stages_that_look_up),
    ],
    ids=["sparse", "lite", "fused", "prefetch", "stages, prefetching", "stages that look up"],
)
def test_hot_batches_go_through_pipelines(gloo_pool: GlooPool, train: Train, like: Train) -> None:
    first, second = gloo_pool.run(trains_hot, train, like)
    assert first == second
    assert set(first) == {False, True}


NEED_CUDA = [
    TrainPipelineFusedSparseDist,
    PrefetchTrainPipelineSparseDist,
    partial(TrainPipelineSemiSync, start_batch=0),
]


def fails_plainly(kind: Callable[..., Any]) -> bool:
    own = job("plain")
    try:
        through(kind, own)
    except (AttributeError, AssertionError, RuntimeError):
        return True
    return False


def test_these_pipelines_of_torchrec_do_not_run_on_the_cpu(gloo_pool: GlooPool) -> None:
    """Once one of them does, it needs no `streams` above."""
    for kind in NEED_CUDA:
        assert gloo_pool.run(fails_plainly, kind) == [True, True], kind


def hooked(side: Side, site: str) -> str:
    """On a rank: the error of a pipeline that steps the dense part in the midst of backward."""
    own = job(side)
    options = {"site_fqn": site, "sharding_type": ShardingType.ROW_WISE}
    with pytest.raises(CapabilityError) as caught:
        through(TrainPipelineSparseDistBwdOpt, own, **options)
    return str(caught.value)


@pytest.mark.parametrize("site", ["history", "bags", "scored"])
@pytest.mark.parametrize("side", ["tiers", "tiers and dedup"])
def test_a_pipeline_that_hooks_an_exchange_is_refused(
    gloo_pool: GlooPool, side: Side, site: str
) -> None:
    """In plain TorchRec it steps before gradients are summed over ranks, which then part."""
    for says in gloo_pool.run(hooked, side, site):
        assert "hooks the backward of a collection's exchange" in says


def waited_for_elsewhere(side: Side) -> str:
    """On a rank: the error of a pipeline whose other thread waits for the ids of a batch; "" where
    it trains."""
    own = job(side)
    (batch,) = own.batches(1)
    inner: Any = own.model.module
    context = inner.history.create_context()
    splits = inner.history.input_dist(context, batch.sparse)
    with ThreadPoolExecutor(1, thread_name_prefix="waits") as pool:
        try:
            ids = pool.submit(splits.wait().wait).result()
        except CapabilityError as error:
            return str(error)
    inner.history.compute_and_output_dist(context, ids)
    return ""


def test_a_pipeline_that_waits_in_another_thread_is_refused(gloo_pool: GlooPool) -> None:
    """In Ascend's RecSDK a thread does so while the main one goes on to other batches. TorchRec's
    own exchange begins nothing there; that of replicas does, and ranks hung."""
    assert gloo_pool.run(waited_for_elsewhere, "plain") == ["", ""]
    for says in gloo_pool.run(waited_for_elsewhere, "tiers"):
        assert "thread 'MainThread' of the trainer or its pipeline began an exchange" in says
        assert "thread 'waits_0' waits for it" in says
        assert "or plan no replicas" in says


@pytest.mark.parametrize("train", [accumulating, accumulating_through_a_pipeline])
def test_gradient_accumulation(gloo_pool: GlooPool, train: Train) -> None:
    gloo_pool.run(trains, train, accumulating)


def test_a_compiled_dense_part(gloo_pool: GlooPool) -> None:
    gloo_pool.run(trains, a_loop, a_loop, compiled)


def moves(there: Side, back: Side, folder: str) -> None:
    """On a rank: half of a training, a checkpoint of torch's, and the rest of it elsewhere."""
    first, second = job(there), job(back)
    batches = list(first.batches(STEPS)), list(second.batches(STEPS))
    half = STEPS // 2

    def train(own: Job, given: Iterable[Any]) -> None:
        for batch in given:
            own.optimizer.zero_grad()
            own.model(batch)[0].backward()
            own.optimizer.step()

    train(first, batches[0][:half])
    train(second, batches[1][half:])  # elsewhere
    dcp.save(state_of(first), checkpoint_id=folder)
    state = state_of(second)
    dcp.load(state, checkpoint_id=folder)
    second.model.load_state_dict(state["model"])
    second.optimizer.load_state_dict(state["optimizer"])
    train(second, batches[1][half:])
    assert_alike(second.trained(), *reference(a_loop))


def state_of(own: Job) -> dict[str, Any]:
    return {"model": own.model.state_dict(), "optimizer": own.optimizer.state_dict()}


@pytest.mark.parametrize(
    ("there", "back"),
    [
        ("tiers", "plain"),
        ("plain", "tiers"),
        ("tiers and dedup", "plain"),
        ("plain", "tiers and dedup"),
    ],
)
def test_checkpoints_of_torch_move(
    gloo_pool: GlooPool, tmp_path: Path, there: Side, back: Side
) -> None:
    gloo_pool.run(moves, there, back, str(tmp_path))


def asks_before_the_other(told: Path) -> None:
    """On a rank: rank 0 asks for the state, and rank 1 once that has said that it waits."""
    own = job("tiers")
    (batch,) = own.batches(1)
    own.model(batch)[0].backward()
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        if dist.get_rank() == 0:
            patch.setattr(tiers, "LONG", 0.01)
            warnings.simplefilter("always", NoticeWarning)
            warnings.showwarning = lambda message, *_, **__: tell(told, str(message))
        else:
            deadline = time.monotonic() + 120
            while not told.exists() and time.monotonic() < deadline:
                time.sleep(0.01)
        own.model.state_dict()


def tell(told: Path, message: str) -> None:
    told.write_text(message)


def test_a_rank_that_asks_for_the_state_alone_says_what_it_waits_for(
    gloo_pool: GlooPool, tmp_path: Path
) -> None:
    told = tmp_path / "told"
    gloo_pool.run(asks_before_the_other, told)
    assert "rank 0 has exchanged the rows of replicas with the other ranks" in told.read_text()


def in_two_dimensions() -> str:
    """On a rank: shard as DMPCollection would, which itself asks for CUDA."""
    net = Net()
    plan = BySharding("row_wise")(net, OptimizerSettings()).plan
    mesh = DeviceMesh("cpu", [[0, 1]], mesh_dim_names=("replicate", "shard"))
    world = dist.group.WORLD
    env = ShardingEnv2D(sharding_pg=world, replica_pg=world, global_pg=world, device_mesh=mesh)
    (sharder,) = tier_sharders(ShardedTiers(tier_plan()), [EmbeddingBagCollectionSharder()])
    with pytest.raises(CapabilityError) as caught:
        sharder.shard(net.bags, plan.plan["bags"], env, CPU)
    return str(caught.value)


def test_two_dimensions_are_refused(gloo_pool: GlooPool) -> None:
    assert all("2D parallelism has none" in one for one in gloo_pool.run(in_two_dimensions))
