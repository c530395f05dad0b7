"""The ids of a batch before any is routed."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from fbgemm_gpu.split_table_batched_embeddings_ops_common import BoundsCheckMode
from torch import Tensor
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recd_plugins.compat.fused_kernels import bounds_check_of
from recd_plugins.errors import CapabilityError, DataError, nearest, so_many
from recd_plugins.tiers.home_tables import rows_looked_up

if TYPE_CHECKING:
    from recd_plugins.tiers.routed_batch import GroupIds
    from recd_plugins.tiers.tables import TableFeature

__all__ = ["InputIds"]


class InputIds:
    """The ids that batches come with, as tiers look them up: in the order of the tables' features,
    and with a row in place of each id that is of none."""

    def __init__(self, features: Sequence[TableFeature], world_size: int) -> None:
        """`features` are those of all the collection's tables, in the order of the tiers."""
        self._features = features
        self._world_size = world_size
        self._keys: list[str] | None = None
        """The keys of the latest KJT."""
        self._order: list[int] = []
        """The index of each of the features among these keys."""
        self._order_tensor = torch.empty(0, dtype=torch.int32, device="cpu")
        """The same on the KJT's device."""
        self._reported_no_row = False

    def arranged(self, features: KeyedJaggedTensor) -> KeyedJaggedTensor:
        """The KJT with a key for each feature of each table, in their order."""
        if features.variable_stride_per_key():
            raise CapabilityError(
                "tiers: the KJT's keys differ in batch size (variable batch per feature), which "
                "replicas do not support. Pass the unique samples of an IKJT, or a plain KJT."
            )
        keys = features.keys()
        if keys != self._keys:
            self._order = [_index_among(keys, one) for one in self._features]
            self._keys = list(keys)
            # Made once: TorchRec would copy it to the device for each batch, and wait.
            self._order_tensor = torch.tensor(
                self._order, dtype=torch.int32, device=features.device()
            )
        if self._order == list(range(len(keys))):
            return features
        return features.permute(self._order, self._order_tensor)

    def looked_up(self, given: Tensor, group_ids: Sequence[GroupIds]) -> Tensor:
        """A copy of the ids [N] int64, in which those of no row are replaced by the rows that
        TorchRec looks up for them. Such ids are rare, so only batches that have some are searched
        for them twice."""
        ids = given.to(torch.int64, copy=True)
        bits = 8 * given.element_size()
        for one in group_ids:
            group, start = one.replicas.group, one.start
            check = bounds_check_of(group.optimizer)
            if check not in (BoundsCheckMode.WARNING, BoundsCheckMode.IGNORE):
                continue  # TorchRec refuses such an id, or does not look
            for feature, length, table in zip(
                group.features, one.segments.lengths, one.segments.tables, strict=True
            ):
                own, num_rows = ids[start : start + length], group.num_rows[table]
                rows = rows_looked_up(own, num_rows, self._world_size, bits=bits)
                if check is BoundsCheckMode.WARNING and not self._reported_no_row:
                    self._report_no_row(feature, num_rows, own, rows)
                own.copy_(rows)
                start += length
        return ids

    def _report_no_row(
        self, feature: TableFeature, num_rows: int, ids: Tensor, rows: Tensor
    ) -> None:
        """Warn once of an id of no row, as fbgemm does for its tables."""
        changed = (ids != rows).nonzero()
        if len(changed):
            first = changed[0, 0]
            warnings.warn(
                f"table {feature.table!r} has {so_many(num_rows, 'row')}, but feature "
                f"{feature.feature!r} has the id {int(ids[first])}. Row {int(rows[first])} is "
                "looked up instead, as TorchRec does. Map the ids into the table, or give it more "
                "rows.",
                stacklevel=2,
            )
            self._reported_no_row = True


def _index_among(keys: list[str], feature: TableFeature) -> int:
    """The index of a table's feature among the keys of a KJT."""
    if feature.feature not in keys:
        raise DataError(
            f"tiers: the batch has no feature {feature.feature!r}, which table {feature.table!r} "
            f"looks up; {nearest(feature.feature, keys)}"
        )
    return keys.index(feature.feature)
