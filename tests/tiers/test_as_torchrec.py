"""What plain TorchRec takes, refuses and orders, tiers do too: two and four gloo ranks, each beside
row-wise TorchRec."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from tensordict import TensorDict
from tiered import (
    DIM,
    Bags,
    ByTiers,
    Sequences,
    confined,
    own_batch,
    row_wise_of,
    sharded,
    sharded_tiers_of,
    tier_plan,
    trained,
)
from torch import Tensor, nn
from torch._C import _distributed_c10d as distributed_c10d
from torchrec.distributed import DistributedModelParallel
from torchrec.distributed.comm_ops import set_gradient_division, torchrec_use_sync_collectives
from torchrec.distributed.model_tracker.types import DeltaTrackerConfig
from torchrec.distributed.types import ShardedModule
from torchrec.modules.embedding_configs import EmbeddingBagConfig, EmbeddingConfig, PoolingType
from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor, KeyedTensor

from recd_plugins.data.batch import Batch
from recd_plugins.embedding.adapt import adapt
from recd_plugins.embedding.sharded import with_dedup
from recd_plugins.errors import CapabilityError, DataError
from recd_plugins.planning.tier_plans.tier_plan import Coalesce, TablePlan, TierPlan
from recd_plugins.registry.settings import OptimizerSettings
from recd_plugins.testing.arrange import Arranged, Arrangement, BySharding, tables_of
from recd_plugins.testing.gloo import GlooPool
from recd_plugins.testing.parity import assert_alike
from recd_plugins.tiers.sharder import ShardedTiers, tier_sharders

Model = DistributedModelParallel

SEQUENCES = Sequences, ByTiers(ranks_per_node=2, seed=3)
BAGS = Bags, ByTiers(ranks_per_node=2, seed=3)
ROW_BAGS = Bags, ByTiers(ranks_per_node=2, seed=3, coalesce="rank")
KINDS = {"sequences": SEQUENCES, "bags": BAGS, "row bags": ROW_BAGS}

ROW_WISE = BySharding("row_wise")


def with_features(given: Batch, features: Any) -> Batch:
    return dataclasses.replace(given, features=features)


def step(model: Model, given: Batch) -> None:
    model(given)[0].backward()


def alike(train: Callable[[Model], None], *kinds: str) -> None:
    """On a rank: what `train` makes of models behind tiers is what it makes of plain ones."""
    for kind in kinds or KINDS:
        make, behind = KINDS[kind]

        def run(
            arrange: Arrangement, rounding: AbstractContextManager[object]
        ) -> dict[str, Tensor]:
            model = sharded(arrange, make, "sgd")  # noqa: B023  # called in this turn alone
            with rounding:
                train(model)
            return trained(model)

        assert_alike(run(behind, nullcontext()), *row_wise_of(run, make))


def on_tensor_dicts(model: Model) -> None:
    for number in range(2):
        given = own_batch(number)
        features = {
            key: torch.nested.nested_tensor_from_jagged(
                one.values(), lengths=one.lengths(), offsets=one.offsets()
            )
            for key, one in given.features.to_dict().items()
        }
        step(model, with_features(given, TensorDict(features)))


@contextmanager
def division(divides: bool) -> Iterator[None]:
    set_gradient_division(divides)
    try:
        yield
    finally:
        set_gradient_division(True)


def divided_or_not(model: Model) -> None:
    for number, (forward, backward) in enumerate([(True, False), (False, True), (False, False)]):
        with division(forward):
            loss = model(own_batch(number))[0]
        with division(backward):
            loss.backward()


def divided_by_synchronous_collectives(model: Model) -> None:
    with torchrec_use_sync_collectives():
        divided_or_not(model)


def inputs_to_be_made_again(model: Model) -> None:
    """As trainers do that set the flag of all modules once a model is sharded."""
    for module in model.modules():
        if hasattr(module, "_has_uninitialized_input_dist"):
            module._has_uninitialized_input_dist = True
    for number in range(2):
        step(model, own_batch(number))


def looked_up_before_the_backward_before(model: Model) -> None:
    """As TrainPipelineSemiSync does, which plain TorchRec runs on CUDA alone."""
    (module,) = (one for one in model.modules() if isinstance(one, ShardedModule))

    def looked_up(number: int) -> tuple[Batch, Any]:
        given, context = own_batch(number), module.create_context()
        ids = module.input_dist(context, given.features).wait().wait()
        return given, module.compute_and_output_dist(context, ids)

    ahead = looked_up(0)
    for number in range(1, 4):
        given, rows = ahead
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(module, "forward", lambda *_: rows)  # noqa: B023  # called in this turn
            loss = model(given)[0]
        ahead = looked_up(number)
        loss.backward()


def on_ids_of_no_row(model: Model, kind: torch.dtype) -> None:
    strange = torch.tensor([-7, 43, 44, 15, 16, 99, torch.iinfo(kind).max, torch.iinfo(kind).min])
    for number in range(2):
        given = own_batch(number)
        values = given.features.values().clone()
        values[::3] = strange[torch.arange(len(values))[::3] % len(strange)]
        features = KeyedJaggedTensor(
            keys=given.features.keys(),
            values=values.to(kind),
            lengths=given.features.lengths().to(kind),
        )
        step(model, with_features(given, features))


def with_weights_written_to(model: Model) -> None:
    """As trainers do that keep the norms of rows: each time once the rows are at home."""
    for number in range(3):
        step(model, own_batch(number))
        model.state_dict()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(0.5)


def by_a_copy(model: Model) -> None:
    """TorchRec's copies share tables, and its `copy` asks for NCCL, which a build for the CPU has
    not: process groups stay as they are, as with NCCL."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(distributed_c10d, "ProcessGroupNCCL", type("Nccl", (), {}), raising=False)
        patch.setattr(dist.ProcessGroup, "__deepcopy__", lambda group, _: group, raising=False)
        copy = model.copy(torch.device("cpu"))
    for number in range(2):
        step(copy, own_batch(number))
    copy.state_dict()  # brings the rows of its replicas home


@pytest.mark.parametrize(
    "train",
    [
        by_a_copy,
        with_weights_written_to,
        on_tensor_dicts,
        divided_or_not,
        divided_by_synchronous_collectives,
        inputs_to_be_made_again,
        looked_up_before_the_backward_before,
    ],
)
def test_what_torchrec_takes_trains_as_it_does_there(
    gloo_pool: GlooPool, train: Callable[[Model], None]
) -> None:
    gloo_pool.run(alike, train)


@pytest.mark.filterwarnings("ignore:table .* has .* rows")
@pytest.mark.parametrize("kind", [torch.int64, torch.int32])
def test_ids_of_no_row_are_looked_up_where_torchrec_does(
    gloo_pool: GlooPool, kind: torch.dtype
) -> None:
    gloo_pool.run(alike, partial(on_ids_of_no_row, kind=kind), world_size=4)


def after_an_evaluation() -> None:
    """On a rank: an evaluation fills the replicas, and the training after it updates them.

    The batch is hot, for on the CPU fbgemm itself looks nothing up in inference mode.
    """

    def train(arrange: Arrangement, rounding: AbstractContextManager[object]) -> dict[str, Tensor]:
        model = sharded(arrange, Sequences, "sgd")
        if isinstance(arrange, ByTiers):
            plan = tier_plan(arrange, n_nodes=1)
            rows = {name: one.replicated for name, one in plan.tables.items()}
            hot = dataclasses.replace(confined(own_batch(0), rows), hot_under=plan.version)
            with torch.inference_mode():
                model(hot)
        with rounding:
            for number in range(1, 3):
                step(model, own_batch(number))
        return trained(model)

    assert_alike(train(SEQUENCES[1], nullcontext()), *row_wise_of(train, Sequences))


def test_replicas_that_an_evaluation_filled_are_trained(gloo_pool: GlooPool) -> None:
    gloo_pool.run(after_an_evaluation)


def warned_of() -> list[str]:
    """On a rank: the warnings of a few batches with ids of no row."""
    model = sharded(BAGS[1], Bags, "sgd")
    with pytest.warns(UserWarning, match="table .* has .* rows") as caught:
        on_ids_of_no_row(model, torch.int64)
    return [str(one.message) for one in caught if "rows, but feature" in str(one.message)]


def test_an_id_of_no_row_is_warned_of_once(gloo_pool: GlooPool) -> None:
    for messages in gloo_pool.run(warned_of):
        assert len(messages) == 1


class Alone(nn.Module):
    """The sum of all embeddings of one small table, weighted by a place each."""

    def __init__(self, kind: str, rows: int, need_indices: bool = False) -> None:
        super().__init__()
        table = {
            "name": "few",
            "embedding_dim": DIM,
            "num_embeddings": rows,
            "feature_names": ["seen"],
        }
        meta = torch.device("meta")
        self.embedding: nn.Module = (
            EmbeddingCollection([EmbeddingConfig(**table)], meta, need_indices)  # type: ignore[arg-type]
            if kind == "sequences"
            else EmbeddingBagCollection([EmbeddingBagConfig(**table)], device=meta)  # type: ignore[arg-type]
        )

    def forward(self, features: KeyedJaggedTensor) -> tuple[Tensor, Any]:
        found = self.embedding(features)
        rows = found["seen"]
        values = rows if isinstance(rows, Tensor) else rows.values()
        return (values * torch.arange(float(values.numel())).view_as(values)).sum(), rows


def seen(step: int, num_rows: int) -> KeyedJaggedTensor:
    """This rank's ids of one feature."""
    draw = torch.Generator().manual_seed(step * dist.get_world_size() + dist.get_rank())
    lengths = torch.randint(0, 4, (5,), generator=draw)
    ids = torch.randint(0, num_rows, (int(lengths.sum()),), generator=draw)
    return KeyedJaggedTensor(keys=["seen"], values=ids, lengths=lengths)


@dataclass(frozen=True)
class Behind:
    """Row-wise, behind tiers of a third of each table's rows on every rank and a third in each
    node; the tables of `wise` are sharded table-wise and have none."""

    coalesce: Coalesce = "none"
    wise: tuple[str, ...] = ()
    tiers: bool = True

    def __call__(self, model: nn.Module, optimizer: OptimizerSettings) -> Arranged:
        arranged = BySharding("row_wise")(model, optimizer)
        by_table = BySharding("table_wise")(model, optimizer)
        configs = {}
        for path, names in tables_of(model).items():
            module: Any = model.get_submodule(path)
            pooled = isinstance(module, EmbeddingBagCollection)
            found = module.embedding_bag_configs() if pooled else module.embedding_configs()
            configs |= {config.name: config for config in found}
            for name in set(names).intersection(self.wise):
                arranged.plan.plan[path][name] = by_table.plan.plan[path][name]
        if not self.tiers:
            return arranged
        plans = {}
        for name in configs.keys() - set(self.wise):
            rows = np.arange(configs[name].num_embeddings)
            plans[name] = TablePlan(
                table=name, replicated=rows[::3], per_node=rows[1::3], coalesce=self.coalesce
            )
        plan = TierPlan(tables=plans, n_nodes=1, ranks_per_node=dist.get_world_size())
        return arranged._replace(sharders=tier_sharders(ShardedTiers(plan), arranged.sharders))


def few_rows(kind: str, behind: Behind, rows: int) -> str:
    """On a rank: what is said of a table that leaves a rank without rows."""
    with pytest.raises(CapabilityError) as caught:
        sharded(behind, partial(Alone, kind, rows), "sgd")
    return str(caught.value)


@pytest.mark.parametrize(
    ("kind", "coalesce"), [("sequences", "none"), ("bags", "none"), ("bags", "rank")]
)
def test_every_rank_refuses_tables_that_leave_one_without_rows(
    gloo_pool: GlooPool, kind: str, coalesce: Coalesce
) -> None:
    """Plain TorchRec shards them, and one rank fails at the first batch."""
    messages = gloo_pool.run(few_rows, kind, Behind(coalesce), 5, world_size=4)  # 2, 2, 1 and 0
    assert all("few, rank 3 would have no row" in one for one in messages)


def ids_yielded() -> None:
    """On a rank: ids come back in the type that they came in, in 4 bytes if they came so."""
    for behind in Behind(), Behind(tiers=False):
        model = sharded(behind, partial(Alone, "sequences", 20, need_indices=True), "sgd")
        features = seen(0, 20)
        ids = features.values().to(torch.int32)
        features = KeyedJaggedTensor(keys=["seen"], values=ids, lengths=features.lengths())
        _, rows = model(features)
        torch.testing.assert_close(rows.weights(), ids, atol=0, rtol=0)


def test_ids_are_yielded_as_they_came(gloo_pool: GlooPool) -> None:
    gloo_pool.run(ids_yielded)


def without_a_feature(kind: str) -> str:
    """On a rank: what is said of a batch that lacks a feature."""
    make, behind = KINDS[kind]
    model, given = sharded(behind, make, "sgd"), own_batch(0)
    found = given.features.to_dict()
    found["scene"] = found.pop("seen")
    features = KeyedJaggedTensor.from_jt_dict(found)
    with pytest.raises(DataError) as caught:
        step(model, with_features(given, features))
    return str(caught.value)


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_without_a_feature_is_told_which(gloo_pool: GlooPool, kind: str) -> None:
    for message in gloo_pool.run(without_a_feature, kind):
        assert message.startswith("tiers: the batch has no feature 'seen', which table")
        assert "did you mean 'scene'?" in message


def written_to(kind: str, then: Callable[[Model], object]) -> str:
    """On a rank: what is said where weights are written to while replicas have the rows."""
    make, behind = KINDS[kind]
    model = sharded(behind, make, "sgd")
    step(model, own_batch(0))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(0.5)
    with pytest.raises(CapabilityError) as caught:
        then(model)
    return str(caught.value)


def another_step(model: Model) -> None:
    step(model, own_batch(1))


@pytest.mark.parametrize("then", [Model.state_dict, another_step])
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_written_to_weights_is_not_lost_silently(
    gloo_pool: GlooPool, kind: str, then: Callable[[Model], object]
) -> None:
    for said in gloo_pool.run(written_to, kind, then):
        assert "the weights of table 'songs' were changed while rows of it were in" in said
        assert "Call model.state_dict() on every rank" in said


def tracked() -> str:
    """On a rank: what is said of a tracker, which would not see lookups of replicas."""
    model = sharded(SEQUENCES[1], Sequences, "sgd")
    with pytest.raises(CapabilityError) as caught:
        model.init_torchrec_delta_tracker(DeltaTrackerConfig())
    return str(caught.value)


def tracked_before_replicas() -> str:
    """On a rank: what is said where rows get their first replicas beside a tracker."""
    model = sharded(ByTiers(ranks_per_node=2, tiers="none"), Sequences, "sgd")
    model.init_torchrec_delta_tracker(DeltaTrackerConfig())
    with pytest.raises(CapabilityError) as caught:
        sharded_tiers_of(model).retier(tier_plan(SEQUENCES[1], n_nodes=1))
    return str(caught.value)


@pytest.mark.parametrize("refused", [tracked, tracked_before_replicas])
def test_a_delta_tracker_is_refused(gloo_pool: GlooPool, refused: Callable[[], str]) -> None:
    for said in gloo_pool.run(refused):
        assert "tracker would miss the rows of artists, songs" in said


WIDE = {"a": ("sum", 8), "b": ("mean", 16), "c": ("sum", 16), "d": ("mean", 8), "e": ("sum", 8)}


class Wide(nn.Module):
    """Bags whose columns and tables TorchRec orders anew as it shards them."""

    def __init__(self) -> None:
        super().__init__()
        self.bags = EmbeddingBagCollection(
            [
                EmbeddingBagConfig(
                    name=name,
                    embedding_dim=dim,
                    num_embeddings=20,
                    feature_names=[f"of_{name}", "shared"] if name in "ad" else [f"of_{name}"],
                    pooling=PoolingType(pooling.upper()),
                )
                for name, (pooling, dim) in WIDE.items()
            ],
            device=torch.device("meta"),
        )

    def forward(self, features: KeyedJaggedTensor) -> KeyedTensor:
        found: KeyedTensor = self.bags(features)
        return found


def order_of(arrange: Arrangement) -> dict[str, list[str]]:
    """On a rank: all that a trainer may go by the order of."""
    model = sharded(arrange, Wide, "rowwise_adagrad")
    keys = [*(f"of_{name}" for name in WIDE), "shared"]
    ids = torch.arange(2 * len(keys))
    features = KeyedJaggedTensor(keys=keys, values=ids, lengths=torch.ones_like(ids))
    state = model.fused_optimizer.state_dict()
    return {
        "columns": list(model(features).keys()),
        "state": list(model.state_dict()),
        "parameters": [name for name, _ in model.named_parameters()],
        "optimizer's state": list(state["state"]),
    }


def orders(*sides: Behind | Adapted) -> None:
    """On a rank: each side has the order of plain TorchRec with its tables sharded likewise."""
    for side in sides:
        expected = order_of(Behind(wise=side.wise, tiers=False))
        assert expected["columns"] != sorted(expected["columns"])
        found = order_of(side)
        assert found == expected, f"{side}: {found} is not {expected}"


@dataclass(frozen=True)
class Adapted:
    """On unique samples of the features of two tables, and perhaps behind tiers."""

    wise: tuple[str, ...]
    coalesce: Coalesce | None = None

    def __call__(self, model: nn.Module, optimizer: OptimizerSettings) -> Arranged:
        behind = Behind(self.coalesce or "none", self.wise, self.coalesce is not None)
        arranged = behind(model, optimizer)
        adapt(model, (("of_b",), ("of_d",)), unique_shares=(0.2, 0.9))
        return arranged._replace(sharders=with_dedup(arranged.sharders))


def test_columns_and_checkpoints_have_torchrecs_order(gloo_pool: GlooPool) -> None:
    wise = ("b", "e")
    sides = Behind(), Behind(wise=wise), Behind("rank"), Adapted(wise), Adapted((), "rank")
    gloo_pool.run(orders, *sides)


def a_key_twice(behind: Behind | Adapted) -> str:
    model = sharded(behind, Wide, "sgd")
    keys = [*(f"of_{name}" for name in WIDE), "shared", "of_a"]
    ids = torch.arange(len(keys))
    with pytest.raises(ValueError) as caught:
        model(KeyedJaggedTensor(keys=keys, values=ids, lengths=torch.ones_like(ids)))
    return str(caught.value)


@pytest.mark.parametrize(
    "behind", [Behind(tiers=False), Behind(), Behind("rank"), Adapted(())], ids=str
)
def test_bags_refuse_a_key_that_comes_twice(gloo_pool: GlooPool, behind: Behind | Adapted) -> None:
    assert set(gloo_pool.run(a_key_twice, behind)) == {"keys must be unique"}


def on_the_meta_device(kind: str, behind: Behind) -> None:
    """On a rank: as for a plan that is only tried, nothing is allocated."""
    model = Alone(kind, 20)
    arranged = behind(model, OptimizerSettings())
    meta = torch.device("meta")
    found = Model(model, device=meta, plan=arranged.plan, sharders=arranged.sharders)
    assert all(parameter.is_meta for parameter in found.parameters())


@pytest.mark.parametrize(
    ("kind", "behind"),
    [
        ("bags", Behind(tiers=False)),
        ("bags", Behind()),
        ("bags", Behind("rank")),
    ],
    ids=str,
)
def test_models_are_sharded_on_the_meta_device(
    gloo_pool: GlooPool, kind: str, behind: Behind
) -> None:
    gloo_pool.run(on_the_meta_device, kind, behind)
