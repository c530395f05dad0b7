"""Bags of rows that come from home one by one, and are pooled on the rank that asks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torchrec.distributed.types import LazyAwaitable, LazyGetItemMixin
from torchrec.sparse.jagged_tensor import JaggedTensor, KeyedTensor

from recd_plugins.compat.outputs import HasOwnExchange, LazyKeyedTensor
from recd_plugins.embedding.tied import tied
from recd_plugins.tiers.collections.group_bags import Divisor, GroupBags, divide, divided_by
from recd_plugins.tiers.collections.sequences_output import rows_from_home
from recd_plugins.tiers.tables import TableFeature
from recd_plugins.tiers.tiers import Tiers
from recd_plugins.tiers.updates.update import GroupUpdate, Update

__all__ = ["PooledRows", "RowBagsAwaitable"]


class PooledRows(LazyAwaitable[Mapping[TableFeature, Tensor]]):
    """The bags [B, D] of each feature. Their rows are all of one dimension, and come from home."""

    def __init__(
        self,
        tiers: Tiers,
        update: Update,
        home: LazyAwaitable[dict[str, JaggedTensor]],
        divisors: Sequence[Divisor | None],
    ) -> None:
        """`divisors` are those of each feature's sums."""
        super().__init__()
        self._tiers = tiers
        self._update = update
        self._home = home
        self._divisors = divisors

    def _wait_impl(self) -> Mapping[TableFeature, Tensor]:
        with self._update.at_lookup():
            return self._pooled()

    def _pooled(self) -> Mapping[TableFeature, Tensor]:
        home: dict[str, JaggedTensor] = self._tiers.wait(self._home)
        batch = self._update.batch
        divisors = divided_by(batch, self._divisors)
        found: dict[TableFeature, Tensor] = {}
        for number, group in enumerate(batch.groups):
            own = slice(group.first_feature, group.first_feature + len(group.segments.lengths))
            features = self._tiers.features[own]
            # Backward, which the anchor brings here on every rank, hands the gradient of the rows
            # to TorchRec and accumulates that of the replicas.
            bags: Tensor = _PoolRows.apply(
                rows_from_home(home, [feature.name for feature in features], group),
                self._tiers.anchor,
                GroupBags.of(batch, group, rows_come=True),
                divisors[own],
                GroupUpdate(self._update, number),
            )
            found.update(zip(features, bags.unflatten(0, (len(features), -1)), strict=True))
        return found


class _PoolRows(Function):
    """Sums rows by bag, and divides the sums; backward accumulates the gradients of replicas."""

    @staticmethod
    def forward(
        ctx: Any,
        home: Tensor,
        anchor: Tensor,
        group: GroupBags,
        divisors: Sequence[Tensor | None],
        update: GroupUpdate,
    ) -> Tensor:
        ctx.group, ctx.divisors, ctx.update = group, divisors, update
        ctx.like, ctx.num_rows = home.new_empty(0), len(home)
        bags = group.sums(home)
        divide(bags.unflatten(0, (len(divisors), -1)), divisors)
        return bags.to(home.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None, None]:
        group: GroupBags = ctx.group
        divided = any(divisor is not None for divisor in ctx.divisors)
        sums = gradient.to(torch.float32, copy=divided).contiguous()
        divide(sums.unflatten(0, (len(ctx.divisors), -1)), ctx.divisors)
        sums = ctx.update.clipped(sums)
        ctx.update.accumulate(group.replica_gradients(sums))
        assert group.missed is not None
        home = group.missed.gradients(sums, ctx.num_rows)
        return home.to(ctx.like.dtype), None, None, None, None


class RowBagsAwaitable(HasOwnExchange, LazyGetItemMixin[str, Tensor], LazyAwaitable[KeyedTensor]):
    """The output of an EmbeddingBagCollection, from the bags of the rows of each dimension, and
    from the sums that TorchRec made of other tables."""

    def __init__(
        self,
        parts: Sequence[LazyAwaitable[Mapping[TableFeature, Tensor]] | LazyAwaitable[KeyedTensor]],
        names: Sequence[Mapping[Any, str]],
        keys: Sequence[str],
    ) -> None:
        """`names` maps what each part yields to its key in the output; `keys` are those of the
        whole output."""
        super().__init__()
        self._parts, self._names, self._keys = parts, names, keys

    def _wait_impl(self) -> KeyedTensor:
        found: dict[str, Tensor] = {}
        for part, names in zip(self._parts, self._names, strict=True):
            bags: Any = part.wait()
            each = bags.to_dict() if isinstance(bags, KeyedTensor) else bags
            found |= {names[feature]: tensor for feature, tensor in each.items()}
        outputs = tied([found[key] for key in self._keys])
        widths = [tensor.shape[1] for tensor in outputs]
        return LazyKeyedTensor(dict(zip(self._keys, outputs, strict=True)), widths)
