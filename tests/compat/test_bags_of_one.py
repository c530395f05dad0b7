"""Rung 1 and 3 (two gloo ranks): rows as bags of one train as rows that come one by one."""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, Literal

import pytest
import torch
from fbgemm_gpu.split_embedding_configs import EmbOptimType, SparseType
from fbgemm_gpu.split_table_batched_embeddings_ops_common import (
    BoundsCheckMode,
    EmbeddingLocation,
    PoolingMode,
)
from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
    ComputeDevice,
    SplitTableBatchedEmbeddingBagsCodegen,
    WeightDecayMode,
)
from torch import Tensor, nn
from torchrec.distributed import DistributedModelParallel
from torchrec.distributed.planner.types import ParameterConstraints
from torchrec.modules.embedding_configs import EmbeddingConfig
from torchrec.modules.embedding_modules import EmbeddingCollection
from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward
from torchrec.optim.rowwise_adagrad import RowWiseAdagrad
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recd_plugins.compat import bags_of_one
from recd_plugins.compat.bags_of_one import FEWEST_IDS, OWN, look_up_as_bags
from recd_plugins.compat.fused_kernels import fused_kernels
from recd_plugins.compat.versions import fbgemm_minor
from recd_plugins.data.batch import Batch
from recd_plugins.embedding.bags_of_one import with_bags_of_one
from recd_plugins.registry.settings import OptimizerSettings
from recd_plugins.stack import load
from recd_plugins.testing.arrange import Arranged, BySharding
from recd_plugins.testing.gloo import GlooPool
from recd_plugins.testing.parity import check_parity

TABLES, FEATURES = (50, 7, 1, 300), (0, 1, 1, 2, 3)
"""Rows of each table, and the table of each feature."""
DIM, BATCH, STEPS = 8, 60, 4
ROUNDING = 1e-6
"""Sums of a row's gradients, and of their squares, are added up in another order."""


def kernel_of(optimizer: EmbOptimType, **options: Any) -> SplitTableBatchedEmbeddingBagsCodegen:
    torch.manual_seed(0)
    kernel = SplitTableBatchedEmbeddingBagsCodegen(
        [(rows, DIM, EmbeddingLocation.HOST, ComputeDevice.CPU) for rows in TABLES],
        feature_table_map=[*FEATURES],
        optimizer=optimizer,
        learning_rate=0.1,
        eps=1e-4,
        **{"pooling_mode": PoolingMode.NONE} | options,
    )
    kernel.init_embedding_weights_uniform(-1, 1)
    return kernel


def lookup(step: int) -> tuple[Tensor, Tensor]:
    """Ids of all features, often the same, and of some samples none."""
    draw = torch.Generator().manual_seed(step)
    lengths = torch.randint(0, 6, (len(FEATURES) * BATCH,), generator=draw)
    rows = torch.tensor(TABLES)[torch.tensor(FEATURES)].repeat_interleave(BATCH)
    most = rows.repeat_interleave(lengths)
    ids = (torch.rand(len(most), generator=draw) * most).long()
    return ids, torch.cat([torch.zeros(1, dtype=torch.long), lengths.cumsum(0)])


def trained(kernel: SplitTableBatchedEmbeddingBagsCodegen, wrong: bool) -> list[Tensor]:
    """What it looked up, its rows and their state."""
    out = []
    for step in range(STEPS):
        ids, offsets = lookup(step)
        if wrong:
            ids[0], ids[-1] = 1 << 40, -2
        found = kernel(indices=ids, offsets=offsets)
        out.append(found.detach().clone())
        draw = torch.Generator().manual_seed(step)
        found.backward(torch.randn(found.shape, generator=draw))
        kernel.set_learning_rate(0.1 / (1 + step))
    states = [one for of_table in kernel.split_optimizer_states() for one in of_table]
    return [*out, *kernel.split_embedding_weights(), *states]


@pytest.fixture(autouse=True)
def fast_bags(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bags of one are tried with any fbgemm, however fast it steps their rows."""
    monkeypatch.setattr(bags_of_one, "SLOW_FROM", 99)


@pytest.mark.parametrize("wrong", [False, True], ids=["ids of rows", "others among them"])
@pytest.mark.parametrize("options", [{}, {"gradient_clipping": True, "max_gradient": 0.3}])
@pytest.mark.parametrize("kind", ["EXACT_SGD", "EXACT_ROWWISE_ADAGRAD", "EXACT_ADAGRAD"])
def test_a_kernel_yields_and_trains_the_same(
    kind: str, options: dict[str, Any], wrong: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bags_of_one, "FEWEST_IDS", 1)
    plain = kernel_of(EmbOptimType[kind], **options)
    bags = copy.deepcopy(plain)
    assert look_up_as_bags(bags) == {"": ""}
    asked = []
    bags.register_forward_pre_hook(
        lambda one, _, kwargs: asked.append((one.pooling_mode, len(kwargs["offsets"]))),
        with_kwargs=True,
    )
    bags = copy.deepcopy(bags)
    for left, right in zip(trained(plain, wrong), trained(bags, wrong), strict=True):
        bound = ROUNDING if kind == "EXACT_ROWWISE_ADAGRAD" else 0
        torch.testing.assert_close(right, left, rtol=bound, atol=bound)
    assert asked == [(PoolingMode.SUM, len(lookup(step)[0]) + 1) for step in range(STEPS)]
    assert bags.pooling_mode == PoolingMode.NONE  # as others see it


def test_an_id_of_no_row_is_found_in_its_own_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """The row behind a table is another table's."""
    monkeypatch.setattr(bags_of_one, "FEWEST_IDS", 1)
    kernel = kernel_of(EmbOptimType.EXACT_SGD, bounds_check_mode=BoundsCheckMode.FATAL)
    look_up_as_bags(kernel)
    ids, offsets = lookup(0)
    assert offsets[1]
    ids[0] = TABLES[0]
    with pytest.raises(RuntimeError, match="idx < num_rows"):
        kernel(indices=ids, offsets=offsets)
    assert len(kernel(*lookup(1))) == len(lookup(1)[0])  # it yields rows again


@pytest.mark.parametrize(("kind", "left"), [("EXACT_ROWWISE_ADAGRAD", True), ("EXACT_SGD", False)])
def test_where_fbgemm_steps_rows_of_bags_slowly_they_stay_rows(
    kind: str, left: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bags_of_one, "SLOW_FROM", fbgemm_minor())
    kernel = kernel_of(EmbOptimType[kind])
    (why,) = look_up_as_bags(kernel).values()
    assert why.startswith("fbgemm 1.9 and newer step") if left else why == ""
    assert len(kernel._forward_pre_hooks) == (not left)


DECAYS = "with weight decay the two kernels train rows in different ways"


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"weight_decay": 0.1, "weight_decay_mode": WeightDecayMode.L2}, DECAYS),
        ({"weight_decay": 0.1, "weight_decay_mode": WeightDecayMode.DECOUPLE}, DECAYS),
        ({"weights_precision": SparseType.FP16}, "numbers are fp16, and not fp32"),
        ({"output_dtype": SparseType.FP16}, "numbers are fp16, and not fp32"),
        ({"optimizer": EmbOptimType.EMAINPLACE_ROWWISE_ADAGRAD}, "it is not known whether ema_in_"),
        ({"pooling_mode": PoolingMode.SUM}, None),
    ],
    ids=["decay of gradients", "decay of rows", "rows", "embeddings", "optimizer", "pooled"],
)
def test_a_kernel_that_would_train_otherwise_is_left_alone(
    options: dict[str, Any], why: str | None
) -> None:
    kernel = kernel_of(options.pop("optimizer", EmbOptimType.EXACT_ROWWISE_ADAGRAD), **options)
    found = look_up_as_bags(kernel)
    assert not kernel._forward_pre_hooks
    if why is None:  # it looks up bags already
        assert not found
    else:
        assert found[""].startswith(why)


def test_rows_that_decay_from_some_step_on_come_one_by_one_from_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bags_of_one, "FEWEST_IDS", 1)
    rowwise = EmbOptimType.EXACT_ROWWISE_ADAGRAD
    plain = kernel_of(rowwise, weight_decay_mode=WeightDecayMode.L2)
    bags = copy.deepcopy(plain)
    assert look_up_as_bags(bags) == {"": ""}
    for kernel in (plain, bags):
        kernel.update_hyper_parameters({"weight_decay": 0.1})
    for left, right in zip(trained(plain, False), trained(bags, False), strict=True):
        torch.testing.assert_close(right, left, rtol=0, atol=0)


@pytest.mark.parametrize("at", [0, -1])
def test_a_row_that_was_pruned_is_no_other_row(at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The check of ids lets -1 pass, and plain TorchRec finds out."""
    monkeypatch.setattr(bags_of_one, "FEWEST_IDS", 1)
    ids, offsets = lookup(0)
    ids[at] = -1
    plain = kernel_of(EmbOptimType.EXACT_SGD)
    bags = copy.deepcopy(plain)
    look_up_as_bags(bags)
    for kernel in (plain, bags):
        with pytest.raises(RuntimeError, match="out of bounds: -1"):
            kernel(indices=ids.clone(), offsets=offsets)


def test_it_is_begun_once_and_few_ids_stay_as_they_are() -> None:
    kernel = kernel_of(EmbOptimType.EXACT_SGD)
    assert [look_up_as_bags(kernel), look_up_as_bags(kernel)] == [{"": ""}] * 2
    assert len(kernel._forward_pre_hooks) == 1
    modes = []
    kernel.register_forward_pre_hook(lambda one, *_: modes.append(one.pooling_mode))
    ids, offsets = lookup(0)
    for few in (FEWEST_IDS - 1, FEWEST_IDS):
        kernel(indices=ids[:few], offsets=offsets.clamp(max=few))
    assert modes == [PoolingMode.NONE, PoolingMode.SUM]


def test_ids_of_four_bytes_that_cannot_name_every_row_stay_as_they_are() -> None:
    """They count the rows of all tables, of which no test has 2**31."""
    kernel = kernel_of(EmbOptimType.EXACT_SGD)
    look_up_as_bags(kernel)
    one, modes = vars(kernel)[OWN], []
    assert one.num_rows == sum(TABLES)
    kernel.register_forward_pre_hook(lambda one, *_: modes.append(one.pooling_mode))
    ids, offsets = lookup(0)
    for rows in (2**31 - 1, 2**31):
        one.num_rows = rows
        for kind in (torch.int32, torch.int64):
            kernel(indices=ids.to(kind), offsets=offsets.to(kind))
    assert modes == [PoolingMode.SUM] * 2 + [PoolingMode.NONE, PoolingMode.SUM]


@pytest.fixture
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("kind", ["EXACT_SGD", "EXACT_ROWWISE_ADAGRAD"])
def test_it_takes_less_than_half_the_time(kind: str) -> None:
    if kind == "EXACT_ROWWISE_ADAGRAD" and version("torchrec").startswith("1.9."):
        pytest.skip("fbgemm 1.9 steps rows of bags by row-wise Adagrad as slowly as single rows")
    ids = torch.randperm(100_000)[:20_000]
    offsets = torch.arange(len(ids) + 1)

    def seconds(as_bags: bool) -> float:
        kernel = SplitTableBatchedEmbeddingBagsCodegen(
            [(100_000, 64, EmbeddingLocation.HOST, ComputeDevice.CPU)],
            optimizer=getattr(EmbOptimType, kind),
            pooling_mode=PoolingMode.NONE,
        )
        if as_bags:
            look_up_as_bags(kernel)
        taken = []
        for _ in range(4):
            began = time.thread_time()
            kernel(indices=ids, offsets=offsets).backward(torch.ones(len(ids), 64))
            taken.append(time.thread_time() - began)
        return min(taken)

    assert seconds(as_bags=True) < seconds(as_bags=False) / 2


class Sequences(nn.Module):
    """Two features of one table, and one of another, of the same width."""

    def __init__(self) -> None:
        super().__init__()
        tables = [
            EmbeddingConfig(
                name="of_items", embedding_dim=DIM, num_embeddings=90, feature_names=["a", "b"]
            ),
            EmbeddingConfig(
                name="of_users", embedding_dim=DIM, num_embeddings=11, feature_names=["c"]
            ),
        ]
        self.collection = EmbeddingCollection(tables=tables, device=torch.device("meta"))
        self.over = nn.Linear(DIM, 1)

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        rows = self.collection(batch.features)
        logits = sum(self.over(rows[name].to_padded_dense(12)).sum((1, 2)) for name in "abc")
        loss = nn.functional.binary_cross_entropy_with_logits(logits, batch.labels)
        return loss, logits.detach()


@dataclass(frozen=True)
class AsBags:
    """TorchRec's own plan of one kind, by sharders whose kernels look up bags of one."""

    kind: Literal["row_wise", "table_wise", "column_wise"]

    def __call__(self, model: nn.Module, optimizer: OptimizerSettings) -> Arranged:
        found = BySharding(self.kind)(model, optimizer)
        return found._replace(sharders=with_bags_of_one(found.sharders))


def batch_of(size: int, seed: int) -> Batch:
    draw = torch.Generator().manual_seed(seed)
    lengths = torch.randint(0, 12, (3 * size,), generator=draw)
    most = torch.tensor([90, 90, 11]).repeat_interleave(size).repeat_interleave(lengths)
    return Batch(
        dense=torch.zeros(size, 1),
        features=KeyedJaggedTensor(
            keys=["a", "b", "c"],
            values=(torch.rand(len(most), generator=draw) ** 2 * most).long(),
            lengths=lengths,
        ),
        labels=torch.randint(0, 2, (size,), generator=draw).float(),
        weights=torch.ones(size),
    )


@pytest.mark.parametrize("kind", ["row_wise", "table_wise"])
def test_ranks_train_as_plain_torchrec(gloo_pool: GlooPool, kind: Any) -> None:
    """One of the ranks has too few ids for bags in one of the steps."""
    sizes = [(150, 120), (90, 160), (150, 3)]
    batches = [
        [batch_of(size, seed=10 * step + rank) for rank, size in enumerate(of_ranks)]
        for step, of_ranks in enumerate(sizes)
    ]
    check_parity(gloo_pool, Sequences, batches, arrange=AsBags(kind), reference=BySharding(kind))


def lookups_as_bags(kind: Any) -> int:
    """On a rank: of the lookups in a forward, those in bags of one."""
    arranged = AsBags(kind)(Sequences(), OptimizerSettings(tables="sgd"))
    model = DistributedModelParallel(
        arranged.model,
        device=torch.device("cpu"),
        plan=arranged.plan,
        sharders=arranged.sharders,
    )
    modes = []
    for kernel in fused_kernels(model):
        kernel.register_forward_pre_hook(lambda one, *_: modes.append(one.pooling_mode))
    model(batch_of(150, seed=0))
    return modes.count(PoolingMode.SUM)


@pytest.mark.parametrize("kind", ["row_wise", "table_wise"])
def test_ranks_look_rows_up_as_bags(gloo_pool: GlooPool, kind: Any) -> None:
    assert gloo_pool.run(lookups_as_bags, kind, world_size=2) == [1, 1]


def said_of_rows() -> list[str]:
    """On a rank: what a stack says of lookups of rows, with a plan and once the model is
    sharded."""
    stack = load({"train": {"device": "cpu"}, "sharding": {"search": "greedy"}})
    model = Sequences()
    decayed = model.collection.embeddings["of_users"].parameters()
    apply_optimizer_in_backward(RowWiseAdagrad, decayed, {"lr": 0.1, "weight_decay": 0.1})
    by_rows = ParameterConstraints(sharding_types=["row_wise"], compute_kernels=["fused"])
    plan = stack.plan(model, constraints={"of_items": by_rows, "of_users": by_rows})
    said = [stack.explain()]
    cpu = torch.device("cpu")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bags_of_one, "SLOW_FROM", 99)  # where a test's own does not reach
        DistributedModelParallel(model, device=cpu, plan=plan, sharders=stack.sharders())
    said.append(stack.explain())
    return [line for one in said for line in one.splitlines() if line.startswith("lookups of rows")]


def test_a_stack_says_whose_rows_come_as_bags_and_whose_do_not(gloo_pool: GlooPool) -> None:
    for said in gloo_pool.run(said_of_rows):
        assert said == [
            "lookups of rows: on this rank, of_items as bags of one, "
            f"from {FEWEST_IDS} ids of a lookup on; of_users one by one, for {DECAYS}"
        ]


@pytest.mark.parametrize("asked", [True, False])
def test_a_stack_brings_such_sharders_unless_it_is_told_not_to(asked: bool) -> None:
    stack = load({"train": {"bags_of_one": asked, "device": "cpu"}})
    shown = {type(one).__name__ for one in stack.sharders()}
    assert ("AdjustingSharder" in shown) == asked
