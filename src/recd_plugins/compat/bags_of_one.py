"""Rows that fbgemm's kernels for the CPU yield one by one, looked up as bags of one id.

The weights are the same. But the gradients of single rows are summed by a hash table with a vector
for each row, which takes microseconds per row; those of bags are summed by a sort, which takes a
tenth of that.

A kernel has the rows of all its tables one after another. So where all have the same width, a
lookup can treat them as a single table, in which the ids of a feature begin at its table's first
row. As of fbgemm 1.6 to 1.9.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from fbgemm_gpu.split_embedding_configs import EmbOptimType, SparseType
from fbgemm_gpu.split_table_batched_embeddings_ops_common import BoundsCheckMode, PoolingMode
from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
    SplitTableBatchedEmbeddingBagsCodegen,
)
from torch import Tensor, nn

from recd_plugins.compat.fused_kernels import fused_kernels
from recd_plugins.compat.host_buffers import StateWidth, state_width
from recd_plugins.compat.versions import fbgemm_minor

__all__ = ["FEWEST_IDS", "look_up_as_bags"]

DECAYS = (0, 1, 2)
"""fbgemm's `WeightDecayMode` NONE, L2 and DECOUPLE, which do nothing if the decay is 0. If it is
not 0, the two kernels decay rows differently."""
FEWEST_IDS = 512
"""The number of ids for which a lookup takes the same time either way. Fewer are looked up one by
one."""
SLOW_FROM = 9
"""The minor version of fbgemm from which a CPU steps rows of bags by row-wise Adagrad in ten times
the time: rows of 32 numbers as fast as single rows, or faster, but rows of 128 at half the
speed."""
UNCHECKED = BoundsCheckMode.NONE.value
OWN = "_bags_of_one"
"""The attribute of a kernel that holds its `_OneTable`."""


def look_up_as_bags(module: nn.Module) -> dict[str, str]:
    """Have the kernels of a sharded module, or a single kernel, look rows up as bags of one, where
    that trains the same weights.

    Returns, for each table that is looked up by rows, the reason why its lookups stay as they are:
    an empty string if they are bags of one from now on.
    """
    found: dict[str, str] = {}
    alone = isinstance(module, SplitTableBatchedEmbeddingBagsCodegen)
    for kernel in [module] if alone else fused_kernels(module):
        if kernel.pooling_mode != PoolingMode.NONE:
            continue
        why = _why_not(kernel)
        if not why and OWN not in vars(kernel):
            vars(kernel)[OWN] = _OneTable.of(kernel)
            kernel.register_forward_pre_hook(_begin, with_kwargs=True)
            kernel.register_forward_hook(_end, always_call=True)
        names: Any = kernel.table_names
        found |= dict.fromkeys(names or [""], why)
    return found


def _why_not(kernel: Any) -> str:
    """Why a kernel's rows must still come one by one: a clause, or an empty string if they need
    not."""
    dims = {dim for _, dim, *_ in kernel.embedding_specs}
    kinds = {kernel.weights_precision, SparseType.from_int(kernel.output_dtype)}
    state, arguments = _state_of(kernel), kernel.optimizer_args
    if not kernel.use_cpu:
        return "only a CPU's kernel is slower by rows"
    if kernel.optimizer == EmbOptimType.EXACT_ROWWISE_ADAGRAD and fbgemm_minor() >= SLOW_FROM:
        return "fbgemm 1.9 and newer step the rows of bags slowly by row-wise Adagrad"
    if len(dims) > 1:
        return "one kernel has them and rows of other widths"
    if others := kinds - {SparseType.FP32}:
        return f"numbers are {others.pop().value}, and not fp32"
    if state is None:
        optimizer = kernel.optimizer.value
        return f"it is not known whether {optimizer} trains them in the same way by both kernels"
    if arguments.weight_decay or arguments.weight_decay_mode not in DECAYS:
        return "with weight decay the two kernels train rows in different ways"
    # The state of a row lies where the row does.
    if state != "none" and not torch.equal(
        kernel.momentum1_offsets * (dims.pop() if state == "one" else 1), kernel.weights_offsets
    ):
        return "the optimizer's state does not lie as the rows do"
    return ""


def _state_of(kernel: Any) -> StateWidth | None:
    """How many numbers of optimizer state a row has; None if it is not known whether both kernels
    train it alike."""
    return state_width({"optimizer": kernel.optimizer})


@dataclass
class _OneTable:
    """What a kernel has during a lookup of bags, in place of its own attributes."""

    first_rows: Tensor
    """[F] int64: the row, counted over all tables, at which the table of a feature begins."""
    buffers: dict[str, Tensor]
    width: int
    num_rows: int
    """Rows of all tables together."""
    before: dict[str, Any] = field(default_factory=dict)
    """The kernel's own attributes, kept during a lookup."""

    @classmethod
    def of(cls, kernel: Any) -> _OneTable:
        width: int = kernel.embedding_specs[0][1]
        cumulated = kernel.hash_size_cumsum
        buffers = {
            "weights_offsets": kernel.weights_offsets[:1] * 0,
            "weights_placements": kernel.weights_placements[:1],
            "D_offsets": kernel.D_offsets.new_tensor([0, width]),
            "hash_size_cumsum": torch.stack([cumulated[0] * 0, cumulated[-1]]),
        }
        if _state_of(kernel) != "none":
            buffers["momentum1_offsets"] = kernel.momentum1_offsets[:1] * 0
            buffers["momentum1_placements"] = kernel.momentum1_placements[:1]
        return cls(kernel.weights_offsets // width, buffers, width, int(cumulated[-1]))

    def swap(self, kernel: Any) -> None:
        """Make the kernel one of a single table whose bags are summed and whose ids are already
        checked."""
        one = {
            "pooling_mode": PoolingMode.SUM,
            "total_D": self.width,
            "bounds_check_mode_int": UNCHECKED,
        }
        own = vars(kernel)
        self.before = {name: own[name] for name in one}
        self.before["_buffers"] = own["_buffers"]
        own.update(one, _buffers={**own["_buffers"], **self.buffers})

    def swap_back(self, kernel: Any) -> None:
        vars(kernel).update(self.before)
        self.before = {}


def _begin(
    kernel: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """Hand the kernel bags of one id.

    Some lookups stay as they are: those of few ids, those without gradients, those of rows that
    have a weight decay by now, and those with other arguments than ids and offsets.
    """
    if args or set(kwargs) != {"indices", "offsets"} or not torch.is_grad_enabled():
        return None
    if kernel.optimizer_args.weight_decay:  # by `update_hyper_parameters`
        return None
    one: _OneTable = vars(kernel)[OWN]
    ids, offsets = kwargs["indices"], kwargs["offsets"].to(kwargs["indices"].dtype)
    num_features = len(one.first_rows)
    if len(ids) < FEWEST_IDS or (len(offsets) - 1) % num_features:
        return None
    if kernel.bounds_check_mode_int != UNCHECKED:
        torch.ops.fbgemm.bounds_check_indices(
            kernel.rows_per_table,
            ids,
            offsets,
            kernel.bounds_check_mode_int,
            kernel.bounds_check_warning,
        )
    if ids.min() < 0:  # pruned ids, which are not rows of any table
        return None
    if one.num_rows > torch.iinfo(ids.dtype).max:  # ids of this type cannot number all tables' rows
        return None
    if num_features > 1:
        counts = offsets[:: (len(offsets) - 1) // num_features].diff()
        ids = ids + one.first_rows.to(ids.dtype).repeat_interleave(counts, output_size=len(ids))
    one.swap(kernel)
    bags = torch.arange(len(ids) + 1, dtype=ids.dtype, device="cpu")
    return args, {"indices": ids, "offsets": bags}


def _end(kernel: Any, args: tuple[Any, ...], output: Any) -> None:
    one: _OneTable = vars(kernel)[OWN]
    if one.before:
        one.swap_back(kernel)
