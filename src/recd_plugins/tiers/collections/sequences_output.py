"""The rows of a batch's ids: from home and from both tiers, put back in the order of the ids."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.autograd import Function
from torchrec.distributed.types import LazyAwaitable
from torchrec.sparse.jagged_tensor import JaggedTensor

from recd_plugins.compat.kernels import kernel
from recd_plugins.compat.outputs import HasOwnExchange
from recd_plugins.embedding.tied import tied
from recd_plugins.errors import DataError
from recd_plugins.sparse.rows.memory import all_below
from recd_plugins.sparse.rows.sums import summed_rows
from recd_plugins.tiers.gradients.entries import Entries, add_rows
from recd_plugins.tiers.routed_batch import RoutedGroup
from recd_plugins.tiers.tiers import Tiers
from recd_plugins.tiers.updates.update import GroupUpdate, ReplicaGradients, Update

__all__ = ["SequencesAwaitable", "rows_from_home"]


class SequencesAwaitable(HasOwnExchange, LazyAwaitable[dict[str, JaggedTensor]]):
    """The output of an EmbeddingCollection: the row of each id, waited for when it is first
    read."""

    def __init__(
        self,
        tiers: Tiers,
        update: Update,
        home: LazyAwaitable[dict[str, JaggedTensor]],
        yields_ids: bool,
    ) -> None:
        """`home` has the rows of the ids that missed. `yields_ids` says whether ids come with them,
        as of TorchRec's module."""
        super().__init__()
        self._tiers = tiers
        self._update = update
        self._home = home
        self._yields_ids = yields_ids

    def _wait_impl(self) -> dict[str, JaggedTensor]:
        batch = self._update.batch
        with self._update.at_lookup():
            rows = list(self._rows(self._tiers.wait(self._home)))
        ids = batch.given.split(batch.length_per_feature)
        return {
            feature.name: JaggedTensor(
                values=values, lengths=lengths, weights=own if self._yields_ids else None
            )
            for feature, values, lengths, own in zip(
                self._tiers.features, rows, batch.lengths, ids, strict=True
            )
        }

    def _rows(self, home: dict[str, JaggedTensor]) -> Iterator[Tensor]:
        """The rows of each feature's ids, feature by feature."""
        features = iter(self._tiers.features)
        groups = self._update.batch.groups
        joined: list[Tensor] = []
        for number, group in enumerate(groups):
            own = [next(features).name for _ in group.segments.lengths]
            rows = _JoinRows.apply(
                rows_from_home(home, own, group),
                self._tiers.anchor,
                group,
                GroupUpdate(self._update, number),
            )
            joined.append(rows)
        others = [
            _clipping(home[feature.name].values(), self._update, feature.max_gradient)
            for feature in features
        ]
        outputs = tied([*joined, *others])
        for group, rows in zip(groups, outputs, strict=False):
            # One feature is not split: the backward of a split would copy the gradient.
            lengths = list(group.segments.lengths)
            yield from rows.split(lengths) if len(lengths) > 1 else [rows]
        yield from outputs[len(groups) :]


def rows_from_home(
    home: dict[str, JaggedTensor], names: Sequence[str], group: RoutedGroup
) -> Tensor:
    """[u, D]: the rows of a group's ids that missed on this rank; where a node coalesced them, this
    runs an exchange."""
    parts = [home[name].values() for name in names]
    return group.home_ids.result.back(torch.cat(parts) if len(parts) > 1 else parts[0])


class _JoinRows(Function):
    """Puts the rows of a group's ids in the order of the ids: [N, D].

    Backward, which the anchor brings here on every rank, yields the gradient of `home` [u, D] to
    TorchRec, and hands that of the replicas to the update.
    """

    @staticmethod
    def forward(
        ctx: Any,
        home: Tensor,
        anchor: Tensor,
        group: RoutedGroup,
        update: GroupUpdate,
    ) -> Tensor:
        ctx.group, ctx.update, ctx.num_home = group, update, len(home)
        sources = list(_sources(group, home))
        count = sum(len(at) for at, _, _ in sources)
        for at, rows, which in sources:
            if len(at) == count:
                chosen = _chosen(rows, which)
                return chosen.to(home.dtype, copy=chosen is home)
        joined = home.new_empty(count, home.shape[1])
        for at, rows, which in sources:
            _put(joined, at, rows, which)
        return joined

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        group: RoutedGroup = ctx.group
        routed, asked = group.routed, group.asked
        gradient = ctx.update.clipped(gradient)
        per_node = None
        if asked is not None:
            per_node = _summed(gradient, routed.per_node.at, asked.inverse, len(asked.ids)).float()
        addresses = group.addresses
        # Where all ids are in the tier, each has the gradient of its own number.
        at = None if len(addresses) == len(gradient) else routed.replicated.at
        ctx.update.accumulate(ReplicaGradients(Entries(addresses, gradient.float(), at), per_node))
        home = _summed(gradient, routed.missed, group.home_ids.result.inverse, ctx.num_home)
        return home, None, None, None


def _sources(group: RoutedGroup, home: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor | None]]:
    """The sources of the rows of a group's ids: which ids have theirs there, [n]; the rows; and
    which of the rows each of these ids has, [n], or None where the i-th has row i. `home` are the
    rows that came from home for this rank."""
    routed = group.routed
    yield routed.missed, home, group.home_ids.result.inverse
    replicated, which = group.replicated_source
    if replicated is not None:
        yield routed.replicated.at, replicated, which
    if group.asked is not None:
        assert group.node_rows is not None
        yield routed.per_node.at, group.node_rows.wait(), group.asked.inverse


def _chosen(rows: Tensor, which: Tensor | None) -> Tensor:
    return rows if which is None else rows.index_select(0, which)


def _put(joined: Tensor, at: Tensor, rows: Tensor, which: Tensor | None) -> None:
    """`joined[at[i]] = rows[which[i]]` for each i; by default row i is the i-th."""
    types = {joined.dtype, rows.dtype}
    if joined.is_cuda or types != {torch.float32}:
        joined.index_copy_(0, at, _chosen(rows, which).to(joined.dtype))
        return
    which = at.new_empty(0) if which is None else which.contiguous()
    if not _put_rows(joined.numpy(), at.numpy(), rows.detach().contiguous().numpy(), which.numpy()):
        raise DataError(
            f"tiers: some id is none of {len(joined)}, or its row none of {len(rows)} that came. "
            "This happens if tier plans differ between ranks: give all ranks the same plan."
        )


@kernel
def _put_rows(
    joined: npt.NDArray[np.float32],
    at: npt.NDArray[np.int64],
    rows: npt.NDArray[np.float32],
    which: npt.NDArray[np.int64],
) -> bool:
    """Copies rows `which` to the places `at`; without `which`, the i-th row to the i-th of these
    places. If a place or a row does not exist, copies nothing and returns False."""
    rows_there = all_below(which, len(rows)) if which.size else len(at) <= len(rows)
    if not (rows_there and all_below(at, len(joined))):
        return False
    for i in range(len(at)):
        row = rows[np.uintp(which[i] if which.size else i)]
        target = joined[np.uintp(at[i])]
        for column in range(len(row)):
            target[column] = row[column]
    return True


def _summed(gradient: Tensor, at: Tensor, inverse: Tensor | None, count: int) -> Tensor:
    """The gradients of `count` rows: ids `at` have one row each, or `inverse` says which row each
    has."""
    whole = len(at) == len(gradient)
    if inverse is not None and not gradient.is_cuda and gradient.dtype == torch.float32:
        sums = gradient.new_zeros(count, gradient.shape[1])
        add_rows(sums, inverse, gradient, None if whole else at)
        return sums
    own = gradient if whole else gradient.index_select(0, at)
    if inverse is None:
        return own
    return summed_rows(own, inverse, count)


class _Clip(Function):
    @staticmethod
    def forward(ctx: Any, output: Tensor, update: Update, most: float) -> Tensor:
        ctx.update, ctx.most = update, most
        return output.view_as(output)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return ctx.update.clipped(gradient, ctx.most), None, None


def _clipping(output: Tensor, update: Update, most: float | None) -> Tensor:
    """The same tensor; its gradient is clipped, if there is a bound."""
    if most is None:
        return output
    clipped: Tensor = _Clip.apply(output, update, most)
    return clipped
