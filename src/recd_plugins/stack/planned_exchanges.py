"""What the ranks of a plan exchange, how it travels, and words for both."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from recd_plugins.planning.cluster.topology import Topology
from recd_plugins.planning.prices.codecs import codecs_in_words

if TYPE_CHECKING:
    from torch import nn
    from torch.distributed import ProcessGroup
    from torchrec.distributed.types import ModuleSharder, ShardingPlan

    from recd_plugins.dense_gradients.data_parallel import DenseGradients

__all__ = ["PlannedExchanges"]


class PlannedExchanges:
    """The exchanges of the last plan: those of lookups, by its sharders, and those of dense
    gradients."""

    def __init__(self) -> None:
        self.rows: dict[str, str] = {}
        """By table, why its rows come one by one; "" where they come as bags of one."""
        self.dense_bytes = 0
        """The bytes of trained parameters that are in no planned table."""
        self.planned_on: Topology | None = None
        self._dense: DenseGradients | None = None
        self._codecs = ""
        """The precisions in which embeddings travel, in words; "" where all are their own."""
        self._exchanges = ""
        """How ranks exchange, in words; "" where torch's own way is unchanged."""

    def take(
        self,
        plan: ShardingPlan,
        model: nn.Module,
        on: Topology,
        sharders: Sequence[ModuleSharder[nn.Module]],
        group: ProcessGroup,
    ) -> None:
        """Take this plan, on this topology, as the one that trains from now on."""
        from recd_plugins.planning.cluster.exchanges import exchange_as_measured

        self.rows = {}
        self.dense_bytes = _bytes_beside(model, plan)
        self.planned_on = on
        self._codecs = codecs_in_words(model, sharders)
        self._exchanges = exchange_as_measured(on, group)

    def data_parallel(self, topology: Topology, **options: Any) -> DenseGradients:
        """The wrapper by which dense gradients travel."""
        from recd_plugins.dense_gradients.data_parallel import DenseGradients

        self._dense = DenseGradients(self.dense_bytes, topology, **options)
        return self._dense

    @property
    def dense_handed(self) -> float:
        """The bytes of dense gradients that a rank hands to collectives in a step."""
        return self.dense_bytes if self._dense is None else self._dense.handed

    def explain(self) -> Iterator[str]:
        """A line for each kind of exchange that is not TorchRec's default."""
        if self.rows:
            from recd_plugins.embedding.bags_of_one import explain_rows

            yield f"lookups of rows: {explain_rows(self.rows)}"
        if self._codecs:
            yield f"codecs: {self._codecs}"
        if self._dense is not None and self._dense.explained:
            yield f"dense gradients: {self._dense.explained}"
        if self._exchanges:
            yield f"exchanges of ids, rows and gradients: {self._exchanges}"


def _bytes_beside(model: nn.Module, plan: ShardingPlan) -> int:
    """The bytes of the parameters that are in no module which the plan shards."""
    sharded = tuple(f"{path}." if path else "" for path in plan.plan)
    return sum(
        parameter.numel() * parameter.element_size()
        for name, parameter in model.named_parameters()
        if parameter.requires_grad and not name.startswith(sharded)
    )
