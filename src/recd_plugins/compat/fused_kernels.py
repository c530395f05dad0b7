"""fbgemm's kernels, in which TorchRec has fused the lookup of tables with their optimizer: what
they do, and the few things that we have them do otherwise; as of TorchRec 1.5 to 1.9."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from fbgemm_gpu.split_embedding_configs import SparseType
from fbgemm_gpu.split_table_batched_embeddings_ops_common import BoundsCheckMode, PoolingMode
from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
    SplitTableBatchedEmbeddingBagsCodegen,
)
from torch import Tensor, nn
from torchrec.distributed.types import ShardedModule
from torchrec.optim.keyed import KeyedOptimizer

from recd_plugins.compat.torchrec import lookups_of

__all__ = [
    "bounds_check_of",
    "clips_at",
    "count_forward",
    "flush_kernels",
    "fused_arithmetic",
    "fused_kernels",
    "kernel_tensors",
    "leave_clipping",
    "leave_weights",
    "next_forward",
    "output_type",
    "pools",
    "purge_kernels",
]


def fused_kernels(model: nn.Module) -> Iterator[SplitTableBatchedEmbeddingBagsCodegen]:
    """fbgemm's kernels of the sharded modules in a model, which are not submodules of it. Some come
    more than once."""
    for module in model.modules():
        if isinstance(module, ShardedModule) and hasattr(module, "_lookups"):
            for lookup in lookups_of(module):
                for kernel in lookup.modules():
                    if isinstance(kernel, SplitTableBatchedEmbeddingBagsCodegen):
                        yield kernel


def kernel_tensors(model: nn.Module) -> Iterator[tuple[bool, Tensor]]:
    """The tensors that fbgemm's kernels keep for a sharded model's tables on this rank. Each comes
    with True if it has rows, or False if it has the fused optimizer's state of rows."""
    for kernel in fused_kernels(model):
        for name, tensor in (*kernel.named_parameters(), *kernel.named_buffers()):
            if name.endswith(("_dev", "_host", "_uvm")):
                yield name.startswith("weights"), tensor


def fused_arithmetic(optimizer: KeyedOptimizer) -> tuple[str, Any]:
    """The arithmetic that steps the rows of a fused kernel: fbgemm's name of the optimizer, and its
    arguments."""
    kernel: Any = optimizer._emb_module
    return kernel.optimizer.name, kernel.optimizer_args


def next_forward(optimizer: KeyedOptimizer) -> tuple[float, int]:
    """The learning rate that a fused kernel's next forward will hand to its backward, and the
    number of that forward, with which the Adams and LAMBs correct their moments."""
    kernel: Any = optimizer._emb_module
    counted = int(kernel.iter_cpu) or (0 if kernel.iter.is_cuda else int(kernel.iter))
    if not counted and _steps_by_count(kernel):
        counted = int(kernel.iter)  # from a checkpoint; this waits for the device at the first step
    return kernel.get_learning_rate(), counted + 1


def count_forward(sharded: ShardedModule[Any, Any, Any, Any]) -> None:
    """Have kernels that step by the number of forwards count one that they do not run."""
    for lookup in lookups_of(sharded):
        for kernel in lookup.modules():
            if isinstance(kernel, SplitTableBatchedEmbeddingBagsCodegen) and _steps_by_count(
                kernel
            ):
                kernel.iter_cpu.fill_(int(kernel.iter_cpu) or int(kernel.iter)).add_(1)
                kernel.iter.add_(1)


def _steps_by_count(kernel: Any) -> bool:
    return "ADAM" in kernel.optimizer.name or "LAMB" in kernel.optimizer.name


def bounds_check_of(optimizer: KeyedOptimizer) -> BoundsCheckMode:
    """What a fused kernel does with an id that is not one of its rows."""
    kernel: Any = optimizer._emb_module
    return BoundsCheckMode(kernel.bounds_check_mode_int)


def pools(optimizer: KeyedOptimizer) -> bool:
    """Whether a fused kernel sums bags, rather than yielding rows."""
    kernel: Any = optimizer._emb_module
    return bool(kernel.pooling_mode != PoolingMode.NONE)


def output_type(optimizer: KeyedOptimizer) -> torch.dtype:
    """The type of the embeddings that a fused kernel yields, whatever its table's type."""
    kernel: Any = optimizer._emb_module
    kind: torch.dtype = SparseType.from_int(kernel.output_dtype).as_dtype()
    return kind


def clips_at(optimizer: KeyedOptimizer) -> float | None:
    """The bound to which a fused kernel clips each number of its outputs' gradients; None if it
    does not clip."""
    _, arguments = fused_arithmetic(optimizer)
    return float(arguments.max_gradient) if arguments.gradient_clipping else None


def leave_clipping(optimizer: KeyedOptimizer) -> None:
    """Have a fused kernel take the gradients of its outputs without clipping them."""
    kernel: Any = optimizer._emb_module
    kernel.optimizer_args = kernel.optimizer_args._replace(gradient_clipping=False)


def leave_weights(model: nn.Module) -> None:
    """Have fused kernels skip the gradients of weights of ids that are not trained.

    fbgemm computes gradients for all weights, and autograd drops them: on a CPU they take longer
    than the rest of a pooled lookup, forward and backward. Weights that are trained, such as
    TorchRec's position weights, keep theirs.
    """
    for kernel in fused_kernels(model):
        kernel.register_forward_pre_hook(_without_gradients, with_kwargs=True)


def _without_gradients(
    kernel: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    weights: Tensor | None = kwargs.get("per_sample_weights")
    if weights is None or weights.requires_grad:
        return None
    features: list[int] = kernel.feature_table_map  # type: ignore[assignment]
    none = torch.zeros(len(features), dtype=torch.int32, device=weights.device)
    return args, kwargs | {"feature_requires_grad": none}


def flush_kernels(sharded: ShardedModule[Any, Any, Any, Any]) -> None:
    """Write rows that kernels cache (UVM) back, so that the tables can be read."""
    for lookup in lookups_of(sharded):
        lookup.flush()


def purge_kernels(sharded: ShardedModule[Any, Any, Any, Any]) -> None:
    """Have kernels forget the rows that they cache (UVM), because the tables were written to."""
    for lookup in lookups_of(sharded):
        lookup.purge()
