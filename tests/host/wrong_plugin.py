"""A plugin whose records build what their slots cannot take."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torchrec import EmbeddingBagCollection
from torchrec.distributed.planner import EmbeddingShardingPlanner, Topology
from torchrec.distributed.sharding_plan import (
    construct_module_sharding_plan,
    data_parallel,
    get_default_sharders,
    table_wise,
)
from torchrec.distributed.types import ShardingPlan

from recd_plugins import hookimpl
from recd_plugins.config import Config
from recd_plugins.data.columns import Columns
from recd_plugins.data.dataset import Dataset, Split
from recd_plugins.data.progress import Progress
from recd_plugins.data.schema import Schema, SparseFeature
from recd_plugins.data.table import Table
from recd_plugins.data.table_writer import write_table
from recd_plugins.notices import GivesNotices, Notice
from recd_plugins.planning.planner_bases import OrdersBatches, Retiers
from recd_plugins.planning.sharders import sharded_modules
from recd_plugins.slots import (
    CacheRecord,
    Context,
    DatasetRecord,
    DedupRecord,
    EtlRecord,
    ModelRecord,
    OptimizerRecord,
    PoolingRecord,
    PreprocessRecord,
    ReaderRecord,
    Record,
    ShardingRecord,
    StatsRecord,
)
from recd_plugins.sparse.ikjt import InverseKeyedJaggedTensor
from recd_plugins.sparse.jagged import WeightedJagged
from recd_plugins.tiers.planner.tier_planner import TierPlanner


class Nothing(nn.Module):
    """Whoever wrote it forgot to return something."""

    def forward(self, values: Tensor, lengths: Tensor, query: Tensor | None = None) -> None:
        torch.segment_reduce(values, "sum", lengths=lengths)


class Mean(nn.Module):
    """Divides by at least 1, and leaves these lengths behind."""

    def forward(self, values: Tensor, lengths: Tensor, query: Tensor | None = None) -> Tensor:
        sums = torch.segment_reduce(values, "sum", lengths=lengths)
        return sums / lengths.clamp_(min=1).unsqueeze(1)


class Last(nn.Module):
    """The last value of each row, made into something else."""

    def __init__(self, make: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.make = make

    def forward(self, values: Tensor, lengths: Tensor, query: Tensor | None = None) -> Any:
        padded = torch.cat([values, values.new_zeros(1, values.shape[1])])
        return self.make(padded[torch.where(lengths > 0, lengths.cumsum(0) - 1, len(values))])


class OfRowsAlone(Last):
    def forward(self, values: Tensor, lengths: Tensor) -> Any:
        return super().forward(values, lengths)


class OfEachRank(Dataset):
    """It is known by the rank that asks."""

    schema = Schema(session_id=None, timestamp=None, sparse=(SparseFeature(name="a", num_ids=2),))

    def chunks(self, split: Split) -> Iterator[pa.Table]:
        yield pa.table({"label": np.zeros(64, np.float32), "a": pa.array([[1]] * 64)})

    def fingerprint(self) -> str:
        return str(dist.get_rank())


class OfTexts(OfEachRank):
    """Its labels are texts."""

    def chunks(self, split: Split) -> Iterator[pa.Table]:
        yield pa.table({"label": ["yes"], "a": [[1]]})

    def fingerprint(self) -> str:
        return "texts"


class OfNothing(OfEachRank):
    """It is known by nothing."""

    def fingerprint(self) -> Any:
        return None


def first_alone(columns: Columns) -> Any:
    return columns.to_ikjt([columns.keys[:1]])


def all_as_the_first(columns: Columns) -> Any:
    rows = WeightedJagged.by_key(columns.to_kjt())
    size = len(rows["cat_0"].lengths)
    lookups = [torch.zeros(size, dtype=torch.int64)]
    return InverseKeyedJaggedTensor.from_rows([["cat_0"]], rows, lookups)


def other_ids(columns: Columns) -> Any:
    made = columns.to_ikjt([["cat_0"]])
    made.kjt.values().copy_((made.kjt.values() + 1) % 9)
    return made


def one_sample_less(columns: Columns) -> Any:
    rows = WeightedJagged.by_key(columns.to_kjt())
    lookups = [torch.arange(len(rows["cat_0"].lengths) - 1)]
    return InverseKeyedJaggedTensor.from_rows([["cat_0"]], rows, lookups)


def in_place(columns: Columns) -> Any:
    kjt = columns.to_kjt()
    kjt.values().zero_()
    return kjt


def gives(made: Any) -> Callable[..., Any]:
    return lambda *_, **__: made


def iter_nothing() -> Iterator[Any]:
    yield from ()


def elsewhere(table: Table, folder: Path, progress: Progress) -> Table:
    return write_table(folder.with_name("elsewhere"), table.schema, [table.read(table.stripes[0])])


def without_cat_1_of_test(table: Table, folder: Path, progress: Progress) -> Table:
    schema = table.schema.drop(["cat_1"] if folder.name == "test" else [])
    return write_table(folder, schema, [table.read(table.stripes[0], schema.columns)])


class Part:
    """An object with these attributes."""

    def __init__(self, **parts: Any) -> None:
        vars(self).update(parts)


class Moving(Part, OrdersBatches, Retiers):
    """A planner that orders batches by nothing, and moves no replicas."""

    plan = sharders = explain = None
    order = gives(None)

    def retier(self, batches: Any) -> None: ...


class Forgetful(TierPlanner):
    """A cache whose base knows nothing."""

    tables = choose = gives(None)

    def __init__(self) -> None: ...


class Noting(Part, GivesNotices):
    """A converter that takes nothing, with these notices."""

    groups = ()
    convert = None
    said: Any

    def notices(self) -> Any:
        return self.said


class ByRank:
    """A converter of another feature on each rank."""

    @property
    def groups(self) -> Any:
        return ((f"cat_{dist.get_rank()}",),)

    def convert(self, columns: Columns) -> Any:
        return columns.to_ikjt(self.groups)


class OfMoreIds:
    """A transform that says more ids on each next rank."""

    def __call__(self, features: Any) -> Any:
        return features

    def schema(self, schema: Schema) -> Schema:
        more = [replace(one, num_ids=one.num_ids + dist.get_rank()) for one in schema.sparse]
        return schema.replace(more)


class NoLength:
    """A loader without a length and a state."""

    def __iter__(self) -> Any:
        yield 3


class NoIterator:
    """A loader that iterates over nothing, and asks for more than anybody hands it."""

    def __iter__(self) -> Any:
        return None

    def __len__(self) -> Any:
        return 1

    def state_dict(self, more: Any) -> Any:
        return more


def on_rank_0(model: nn.Module, *_: Any) -> ShardingPlan | None:
    return in_part(model) if dist.get_rank() == 0 else None


def in_part(model: nn.Module, *_: Any) -> ShardingPlan:
    """TorchRec's own plan without its first module."""
    plan = EmbeddingShardingPlanner(topology=Topology(1, "cpu")).plan(model, get_default_sharders())
    del plan.plan[next(iter(plan.plan))]
    return plan


def no_table(*_: Any) -> ShardingPlan:
    return ShardingPlan({})


def placed(way: Callable[[nn.Module, int], Any]) -> Callable[..., ShardingPlan]:
    """A plan that has all tables of a collection in one way, which its rank decides too."""

    def plan(model: nn.Module, _: object, group: Any) -> ShardingPlan:
        found = {}
        for path, module, sharder in sharded_modules(model, get_default_sharders()):
            one = way(module, group.rank())
            size = {"local_size": group.size(), "world_size": group.size(), "device_type": "cpu"}
            names = dict.fromkeys(sharder.shardable_parameters(module), one)
            found[path] = construct_module_sharding_plan(module, names, sharder, **size)
        return ShardingPlan(found)

    return plan


def by_rank(_: nn.Module, rank: int) -> Any:
    return table_wise(rank=rank, compute_kernel="fused")


def dense_bags(module: nn.Module, _: int) -> Any:
    bags = isinstance(module, EmbeddingBagCollection)
    return data_parallel() if bags else table_wise(rank=0, compute_kernel="fused")


def records(kind: type[Record[Any, Any]], **built: Any) -> list[Any]:
    return [
        kind(name=name, summary="It is wrong.", config=Config, build=gives(one))
        for name, one in built.items()
    ]


@hookimpl
def recd_dataset() -> list[Any]:
    return records(
        DatasetRecord,
        a_text="abc",
        a_class=Part,
        of_each_rank=OfEachRank(),
        of_nothing=OfNothing(),
        of_texts=OfTexts(),
        prepares_nothing=Part(in_place=True, prepare=gives(None)),
    )


@hookimpl
def recd_etl() -> list[Any]:
    return records(
        EtlRecord,
        runs_nothing=Part(run=gives(None)),
        given_back=Part(run=lambda table, folder, progress: table),
        runs_elsewhere=Part(run=elsewhere),
        parts_splits=Part(run=without_cat_1_of_test),
        no_run=Part(),
    )


@hookimpl
def recd_stats() -> list[Any]:
    return records(StatsRecord, finds_a_dict=Part(measure=gives({})))


@hookimpl
def recd_reader() -> list[Any]:
    return records(
        ReaderRecord,
        loads_nothing=Part(loader=gives(NoLength())),
        iterates_nothing=Part(loader=gives(NoIterator())),
    )


@hookimpl
def recd_dedup() -> list[Any]:
    return records(
        DedupRecord,
        one_text=Part(groups="cat_0", convert=gives(None)),
        unknown=Part(groups=(("cat0",),), convert=gives(None)),
        three=Part(groups=(("cat_0",),), unique_shares=3, convert=gives(None)),
        converts_to_none=Part(groups=(("cat_0",),), convert=gives(None)),
        converts_one=Part(groups=(("cat_0", "cat_1"),), convert=first_alone),
        as_the_first=Part(groups=(("cat_0",),), convert=all_as_the_first),
        other_ids=Part(groups=(("cat_0",),), convert=other_ids),
        one_less=Part(groups=(("cat_0",),), convert=one_sample_less),
        in_place=Part(groups=(("cat_0",),), convert=in_place),
        twice=Part(groups=(("cat_0",), ("cat_0",)), convert=gives(None)),
        takes_none=Part(groups=(), convert=gives(None)),
        notes_nothing=Noting(said=None),
        notes_a_text=Noting(said=["It is slow."]),
        notes_of_no_kind=Noting(said=[Notice(what="dedup", why="it is slow", cure="Wait.")]),
        shares_texts=Part(groups=(("cat_0",),), unique_shares=("all",), convert=gives(None)),
        by_rank=ByRank(),
        says_why=Part(groups=(), convert=gives(None), explain=gives("none repeat")),
        explains_42=Part(groups=(("cat_0",),), convert=gives(None), explain=gives(42)),
    )


@hookimpl
def recd_preprocess() -> list[Any]:
    return records(PreprocessRecord, a_function=gives(None), of_more_ids=OfMoreIds())


@hookimpl
def recd_sharding() -> list[Any]:
    plans_nothing = Part(plan=gives(None), sharders=gives([]), explain=gives(""))
    return records(
        ShardingRecord,
        plans_nothing=plans_nothing,
        plans_on_rank_0=Part(plan=on_rank_0, sharders=gives([]), explain=gives("")),
        moves_nothing=Moving(),
        plans_in_part=Part(plan=in_part, sharders=gives([]), explain=gives("")),
        plans_no_table=Part(plan=no_table, sharders=gives([]), explain=gives("")),
        plans_by_rank=Part(plan=placed(by_rank), sharders=gives([]), explain=gives("")),
        dense_bags=Part(plan=placed(dense_bags), sharders=gives([]), explain=gives("")),
        no_plan=Part(),
        no_sharders=Part(plan=gives(None), sharders=gives((None,)), explain=gives(None)),
    )


@hookimpl
def recd_cache() -> list[Any]:
    return records(CacheRecord, no_planner=3, a_generator=iter_nothing(), forgetful=Forgetful())


@dataclass(frozen=True, kw_only=True)
class Extra(Config):
    """Options that stand together."""

    extra: dict[str, Any] = field(default_factory=dict)
    inner: tuple[dict[str, int], ...] = ()


def pops(config: Extra, context: Context) -> Any:
    """It takes options out of what it is given."""
    scale = config.extra["by"].pop("scale", 1) * config.inner[0].pop("scale", 1)
    return lambda dim: Last(lambda rows: scale * rows)


def gives_by_rank(wider: int) -> Callable[[int], nn.Module]:
    """The factory of poolings with a weight that is wider on rank 1, or with one more there."""

    def make(dim: int) -> nn.Module:
        pooling, rank = Last(lambda rows: rows), dist.get_rank() if dist.is_initialized() else 0
        pooling.scale = nn.Parameter(torch.ones(1 + wider * rank))
        if rank and not wider:
            pooling.shift = nn.Parameter(torch.zeros(1))
        return pooling

    return make


@hookimpl
def recd_pooling() -> list[Any]:
    makes: dict[str, Callable[[Tensor], Any]] = {
        "fewer_rows": lambda rows: rows[:-1],
        "wider": lambda rows: torch.cat([rows, rows], 1),
        "flat": lambda rows: rows[:, 0],
        "doubles": lambda rows: rows.double(),
        "whole_numbers": lambda rows: rows.long(),
        "a_pair": lambda rows: (rows, rows),
        "halves": lambda rows: rows.half(),
        "right": lambda rows: rows,
        "detaches": lambda rows: rows.detach(),
    }
    wrong = {name: gives(Last(make)) for name, make in makes.items()}
    wrong |= {"changes_lengths": gives(Mean()), "nothing": gives(Nothing())}
    wrong |= {"of_rows_alone": gives(OfRowsAlone(lambda rows: rows))}
    wrong |= {"no_factory": Last(len), "no_module": gives(3), "one_argument": gives(nn.Flatten())}
    popped = PoolingRecord(name="pops", summary="It is wrong.", config=Extra, build=pops)
    wrong |= {"wider_by_rank": gives_by_rank(1), "more_by_rank": gives_by_rank(0)}
    return [*records(PoolingRecord, **wrong), popped]


@hookimpl
def recd_model() -> list[Any]:
    keeps = ModelRecord(
        name="takes_unknown",
        summary="It is wrong.",
        config=Config,
        build=gives(nn.Identity()),
        takes=gives(["cat0"]),
    )
    return [*records(ModelRecord, no_module="abc"), keeps]


@hookimpl
def recd_optimizer() -> list[Any]:
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1)
    return records(
        OptimizerRecord,
        no_factory=optimizer,
        makes_none=gives(None),
        raises=lambda params: torch.optim.SGD(params, lr=-1.0),
        steps_others=gives(optimizer),
        steps_some=lambda params: torch.optim.SGD(params[:1], lr=0.1),
        asks_again=torch.optim.LBFGS,
        takes_sparse=torch.optim.SparseAdam,
    )
