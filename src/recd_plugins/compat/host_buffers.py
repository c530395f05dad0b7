"""The buffers in which fbgemm's kernels on the CPU keep rows and optimizer state; as of fbgemm and
TorchRec 1.7 to 1.9.

fbgemm accepts buffers from outside (`preallocated_host_buffers`), and TorchRec hands a kernel the
fused params of its tables. But TorchRec has no public way to set them for only some tables of a
collection: it reads the parameters' `_optimizer_kwargs`, which
`torchrec.optim.apply_optimizer_in_backward` writes.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

from fbgemm_gpu.split_embedding_configs import EmbOptimType
from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
    SplitTableBatchedEmbeddingBagsCodegen,
)
from torch import Tensor, nn
from torchrec.distributed.types import ShardedModule

from recd_plugins.compat.torchrec import own_fused_params

__all__ = [
    "KernelBuffers",
    "StateWidth",
    "before_lookups",
    "kernels_over",
    "state_width",
    "takes_buffers",
]

StateWidth = Literal["none", "one", "row"]
"""How many numbers of optimizer state a row of D numbers has: 0, 1 or D."""

WIDTHS: dict[EmbOptimType, StateWidth] = {
    EmbOptimType.EXACT_SGD: "none",
    EmbOptimType.EXACT_ROWWISE_ADAGRAD: "one",
    EmbOptimType.EXACT_ADAGRAD: "row",
}


@dataclass(frozen=True, kw_only=True)
class KernelBuffers:
    """The memory of one kernel: flat tensors of zeros, of the size that it needs on this rank."""

    parameters: tuple[str, ...]
    """Names, in the collection, of the tables that the kernel holds."""
    weights: Tensor | None
    """None if this rank has no rows of them."""
    state: Tensor | None


def takes_buffers() -> bool:
    """Whether fbgemm's kernels can keep rows in memory that they are given, as they can since
    1.7."""
    known = inspect.signature(SplitTableBatchedEmbeddingBagsCodegen.__init__).parameters
    return "preallocated_host_buffers" in known


def state_width(fused_params: Mapping[str, Any]) -> StateWidth | None:
    """The width of the state that the optimizer keeps for a row; None if it is not one that we
    know."""
    return WIDTHS.get(fused_params.get("optimizer", EmbOptimType.EXACT_SGD))


@contextmanager
def kernels_over(module: nn.Module, kernels: Iterable[KernelBuffers]) -> Iterator[None]:
    """Inside, tables that are sharded get kernels that keep their rows in these buffers.

    TorchRec puts tables of equal fused params in one kernel, so the tables of each of `kernels`
    must also agree in everything else by which it groups tables. If they do not, fbgemm finds the
    sizes wrong.
    """
    parameters = dict(module.named_parameters())
    before: dict[str, Any] = {}
    try:
        for kernel in kernels:
            buffers = _Buffers(kernel)
            for name in kernel.parameters:
                own = own_fused_params(parameters[name])
                before[name] = vars(parameters[name]).get("_optimizer_kwargs")
                vars(parameters[name])["_optimizer_kwargs"] = [
                    {**own, "preallocated_host_buffers": buffers}
                ]
        yield
    finally:
        for name, kwargs in before.items():
            if kwargs is None:
                del vars(parameters[name])["_optimizer_kwargs"]
            else:
                vars(parameters[name])["_optimizer_kwargs"] = kwargs


def before_lookups(
    sharded: ShardedModule[Any, Any, Any, Any], before: Callable[[Tensor, Tensor, int], None]
) -> None:
    """Have `before(buffer, at, width)` called before kernels with given buffers look rows up.

    The kernels then read the numbers [at, at + width) of the buffer, for each of `at` [n], in
    forward or in backward.
    """

    def hook(module: Any, _: tuple[()], kwargs: Mapping[str, Any]) -> None:
        kernel = module._preallocated_host_buffers.kernel
        indices, offsets = kwargs["indices"].long(), kwargs["offsets"]
        if not len(indices):
            return
        slots = module.feature_table_map  # by feature
        bounds = offsets[:: (len(offsets) - 1) // len(slots)].tolist()
        for slot, table in enumerate(slots):
            rows = indices[bounds[slot] : bounds[slot + 1]]
            dim = module.embedding_specs[table][1]
            before(kernel.weights, rows * dim + module.weights_offsets[slot], dim)
            if kernel.state is not None:
                width = 1 if len(kernel.state) < len(kernel.weights) else dim
                before(kernel.state, rows * width + module.momentum1_offsets[slot], width)

    for lookup in sharded._lookups:
        for module in lookup.modules():
            if isinstance(module, SplitTableBatchedEmbeddingBagsCodegen) and isinstance(
                module._preallocated_host_buffers, _Buffers
            ):
                module.register_forward_pre_hook(hook, with_kwargs=True)


class _Buffers(dict[str, Tensor]):
    """fbgemm's argument. It can be hashed, as TorchRec's fused params must be."""

    def __init__(self, kernel: KernelBuffers) -> None:
        self.kernel = kernel
        named = {"weights": kernel.weights, "momentum1": kernel.state}
        super().__init__({name: tensor for name, tensor in named.items() if tensor is not None})

    def __hash__(self) -> int:  # type: ignore[override]
        return id(self)

    def __eq__(self, other: object) -> bool:
        return self is other

    def __repr__(self) -> str:
        """The buffers are shown without their numbers: fbgemm writes its arguments to the log."""
        return f"buffers { ({name: tuple(tensor.shape) for name, tensor in self.items()}) }"
