"""TorchRec's codecs: rows, sums and their gradients that travel between ranks in fewer bits.

Lookups, sums and steps are in 32 bits anyway.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from recd_plugins.errors import RegistryError
from recd_plugins.planning.sharders import sharded_modules

if TYPE_CHECKING:
    import torch
    from torch import nn
    from torchrec.distributed.types import ModuleSharder

__all__ = [
    "BYTES",
    "Codecs",
    "Precision",
    "carried",
    "check_codecs_agree",
    "codecs_in_words",
    "torchrec_codecs",
]

Precision = Literal["fp32", "fp16", "bf16"]
Codecs = Mapping[str, Any]
"""The codecs of each kind of exchange, as a sharder has them (`qcomm_codecs_registry`)."""
BYTES: Mapping[Precision, int] = {"fp32": 4, "fp16": 2, "bf16": 2}


def torchrec_codecs(
    forward: Precision, backward: Precision, backward_scale: float, device: str
) -> Codecs | None:
    """The codecs of these precisions; None where both are 32 bits."""
    if forward == backward == "fp32":
        return None
    import torch
    from torchrec.distributed.fbgemm_qcomm_codec import (
        CommType,
        QCommsConfig,
        get_qcomm_codecs_registry,
    )

    def kind(precision: Precision) -> CommType:
        # On a CPU TorchRec takes fp16 for bf16, and logs a warning for each kind of exchange.
        return CommType["FP16" if precision == "bf16" and device == "cpu" else precision.upper()]

    config = QCommsConfig(
        forward_precision=kind(forward),
        backward_precision=kind(backward),
        backward_loss_scale=None if backward_scale == 1.0 else backward_scale,
    )
    found: Codecs | None = get_qcomm_codecs_registry(config, device=torch.device(device))
    return found


def carried(model: nn.Module, sharders: Sequence[ModuleSharder[Any]]) -> float:
    """The bytes of rows, sums and gradients as exchanges carry them, over those of float32, forward
    and backward on average; where sharders differ, the most."""
    each = [sum(one.itemsize for one in pair) for pair in _precisions(model, sharders)]
    return max(each) / (2 * BYTES["fp32"]) if each else 1.0


def codecs_in_words(model: nn.Module, sharders: Sequence[ModuleSharder[Any]]) -> str:
    """The precisions in which embeddings travel; nothing where all are float32."""
    named = [
        [str(one).removeprefix("torch.") for one in pair] for pair in _precisions(model, sharders)
    ]
    coded = sorted(pair for pair in named if set(pair) != {"float32"})
    return "; ".join(
        f"rows and sums travel as {forward}, their gradients as {backward}"
        for forward, backward in coded
    )


def check_codecs_agree(
    model: nn.Module, sharders: Sequence[ModuleSharder[Any]], wanted: Codecs | None
) -> None:
    """`RegistryError` where registry.yaml says other precisions than the model's sharders have."""
    if not wanted:
        return
    says = {(one.forward.quantized_dtype, one.backward.quantized_dtype) for one in wanted.values()}
    if _precisions(model, sharders) - says:
        has = codecs_in_words(model, sharders) or "rows, sums and gradients travel as float32"
        raise RegistryError(
            "the codecs of registry.yaml differ from those of the trainer's sharders: with these, "
            f"{has}. Set them in one place: take `forward` and `backward` out, or give each of the "
            "sharders the same `qcomm_codecs_registry`.",
            "train.codecs",
        )


def _precisions(
    model: nn.Module, sharders: Sequence[ModuleSharder[Any]]
) -> set[tuple[torch.dtype, torch.dtype]]:
    """The precisions, forward and backward, of each kind of exchange of the model's sharders."""
    import torch
    from torchrec.distributed.types import CommOp

    kinds = (
        CommOp.POOLED_EMBEDDINGS_ALL_TO_ALL,
        CommOp.POOLED_EMBEDDINGS_REDUCE_SCATTER,
        CommOp.SEQUENCE_EMBEDDINGS_ALL_TO_ALL,
    )
    found = set()
    for _, _, sharder in sharded_modules(model, sharders):
        registry: Codecs = sharder.qcomm_codecs_registry or {}
        for kind in kinds:
            codecs = registry.get(kind.name)
            if codecs is None:
                found.add((torch.float32, torch.float32))
            else:
                found.add((codecs.forward.quantized_dtype, codecs.backward.quantized_dtype))
    return found
