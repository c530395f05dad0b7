"""The context that a record is built in: all that it may know."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from recd_plugins.data.dataset import Tables
from recd_plugins.data.schema import Schema
from recd_plugins.errors import CapabilityError, PluginError, RegistryError
from recd_plugins.planning.fused_params import fused_by_table
from recd_plugins.planning.planner_bases import HoldsRowWise, Tiered
from recd_plugins.planning.prices.codecs import Codecs, carried
from recd_plugins.planning.sharders import default_sharders

if TYPE_CHECKING:
    from torch import nn
    from torch.distributed import ProcessGroup
    from torchrec.distributed.planner.types import ParameterConstraints
    from torchrec.distributed.types import ModuleSharder
    from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

    from recd_plugins.planning.access.access_profile import Profile
    from recd_plugins.planning.cluster.cluster import Cluster
    from recd_plugins.registry.delivered_batches import DeliveredBatches
    from recd_plugins.registry.delivery import Delivery
    from recd_plugins.slots.builds import Planner
    from recd_plugins.sparse.own_batches import FeaturesOf

__all__ = ["Context"]


@dataclass(frozen=True, kw_only=True)
class Context:
    """The context of a record's `build`: all that it may know."""

    device: Literal["cpu", "cuda"] = "cpu"
    """The device that training runs on."""
    seed: int = 0
    """`train.seed`; 0 for `dataset` and `etl`, whose tables runs of any seed share."""
    folder: Path = Path("data")
    """The folder of prepared tables, logs and caches of this registry."""
    batch_size: int = 512
    """Samples per rank and step."""
    fused: Mapping[str, Any] = field(default_factory=dict)
    """The optimizer of registry.yaml's tables (`train.optimizer`), as TorchRec's `fused_params`.
    A trainer of one's own may have another one: ask `sharders` and `fused_by_table`."""
    codecs: Codecs | None = None
    """The codecs of registry.yaml's tables (`train.codecs`), as TorchRec's sharders take them."""
    own_sharders: Callable[[], Sequence[ModuleSharder[nn.Module]]] | None = None
    """The sharders that a trainer gave to `stack.plan`; there for `sharding` and `cache`."""
    schema: Schema | None = None
    """The batches' schema; there from the `model` slot on. For `dedup`, which comes before
    `preprocess`, that of the tables."""
    tables: Tables | None = None
    """The prepared tables, as `preprocess` finds them; there for `dedup`."""
    left_out: tuple[str, ...] = ()
    """The tables' features that are not read, since the model needs none of them; there for
    `dedup`, whose options may name them."""
    looked_at: tuple[KeyedJaggedTensor, ...] = ()
    """The features of some of the trainer's own batches, alike on all ranks; there for `dedup`,
    where the trainer handed batches over."""
    delivered: DeliveredBatches | None = None
    """Batches of the train split as the reader hands them to `dedup`, from all over the epoch;
    there for `dedup`, where registry.yaml says what is read."""
    model: Callable[[], nn.Module | None] | None = None
    """The model before it takes unique samples, its tables on the meta device: the trainer's own,
    or the registry's; None where it is not known. There for `dedup`."""
    preprocessed: Callable[[KeyedJaggedTensor], KeyedJaggedTensor] | None = None
    """The features that `preprocess` makes of a batch's; there for `dedup`."""
    joined: tuple[tuple[str, ...], ...] = ()
    """The features that `preprocess` combines into others. Those that are combined must be
    deduplicated as one group or not at all; there for `dedup`."""
    made: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The features that `preprocess` makes under a new name, each with the features and dense
    columns that it is made of. One that is made of a group's features joins that group; there for
    `dedup`."""
    cluster: Cluster | None = None
    """Ranks and links, as prices count with them; there for `dedup`."""
    group: ProcessGroup | None = None
    """The ranks that build it, where the trainer says that these are not all of the job's; there
    for `dedup`, which `agreed` takes it from."""
    batches: Callable[[], Iterable[Any]] | None = None
    """This rank's batches, as its model gets them: the train split's, or a trainer's
    own of any type; there for `sharding` and `cache`, once a plan is asked for."""
    features: FeaturesOf | None = None
    """The function from a batch to its sparse features, if the trainer says: `profile_batches`
    takes it."""
    profile: Profile | None = None
    """The tables' access distributions, instead of batches, if the trainer knows them."""
    constraints: Mapping[str, ParameterConstraints] = field(default_factory=dict)
    """TorchRec's constraints of tables by name, as a trainer gave them to `stack.plan`; there for
    `sharding` and `cache`."""
    data_parallel: bool = False
    """Whether TorchRec's planner may make tables data-parallel unasked, if no optimizer is named
    for them. So it is in a trainer of one's own: its dense optimizer steps them then, as it would
    without this project."""
    delivery: Callable[[], Delivery] | None = None
    """The delivery that another process needs to make the same batches; there for `reader`, where
    its loader is handed the registry's own transform."""
    neighbours: Mapping[str, Any] = field(default_factory=dict)
    """The builds of the slots named in the record's `uses`."""
    others: Planner | None = None
    """The planner behind: it plans what this record's planner leaves to it, where the record stands
    in front of one (`in_front`)."""
    where: str = ""
    """The path in registry.yaml of what is built, for messages."""
    name: str = ""
    """The record's name, for the same messages."""

    def sharders(self) -> list[ModuleSharder[nn.Module]]:
        """The trainer's own sharders, or else TorchRec's default ones with `fused` and `codecs`.

        A trainer passes its own when it asks for a plan, so a planner reads them here when it
        plans.
        """
        if self.own_sharders is not None:
            return list(self.own_sharders())
        return default_sharders(self.fused, self.codecs)

    def fused_by_table(self, model: nn.Module) -> dict[str, dict[str, Any]]:
        """The fused params of each of the model's tables, by `apply_optimizer_in_backward` and by
        the trainer's sharders."""
        return fused_by_table(model, self.sharders())

    def carried(self, model: nn.Module) -> float:
        """The bytes in which exchanges carry rows, sums and gradients, over those of float32: less
        than 1 where the sharders have codecs."""
        return carried(model, self.sharders())

    def require_schema(self) -> Schema:
        """The schema; a `PluginError` where it is not known yet."""
        if self.schema is None:
            cure = ""
            if self.where == "dedup":
                cure = (
                    " A registry without `dataset`, of a trainer that converts its own batches, "
                    "has none: hand some over by `stack.adapt(model, batches=...)`, or let the "
                    "record do without it, by options that name its features; `context.schema` "
                    "is None then."
                )
            raise PluginError(
                f"{self._who}the schema is not known when this slot is built: it follows the "
                f"dataset.{cure}"
            )
        return self.schema

    def require_tables(self) -> Tables:
        """The tables; a `PluginError` where they are not known yet."""
        if self.tables is None:
            raise PluginError(
                f"{self._who}the prepared tables are not known when this slot is built: they "
                "follow the dataset, and are there for dedup alone."
            )
        return self.tables

    @property
    def _who(self) -> str:
        return f"{self.where}: {self.name}: " if self.where else ""

    def require_others(self) -> HoldsRowWise:
        """The planner behind; an error if no planner can stand in front of it."""
        others, where = self.others, self.where or "the planner"
        planner = f"{where}: {self.name}" if self.name else where
        if others is None:
            raise PluginError(
                f"{where}: no planner is behind it. Declare its record with `in_front=True`, so "
                "that the host builds one."
            )
        behind = "`sharding: {use: torchrec}`"
        if self.where != "cache":
            behind = f"`{self.where or 'sharding'}.others` to torchrec"
        if isinstance(others, Tiered):
            raise RegistryError(
                f"{planner} gives rows replicas, and so does the sharding slot's planner "
                f"({type(others).__name__}) behind it, but a table has one tier plan. Set "
                f"{behind}, or take `{self.where or 'one of them'}` out."
            )
        if not isinstance(others, HoldsRowWise):
            raise CapabilityError(
                f"{planner} needs its tables row-wise, but the sharding slot's planner "
                f"({type(others).__name__}) behind it has no `may_be_row_wise` and `row_wise` of "
                "recd_plugins.api.planning.HoldsRowWise, by which it would be asked: it must "
                f"inherit from that. Set {behind}."
            )
        return others
