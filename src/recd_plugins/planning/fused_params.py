"""The fused params of tables: which optimizer steps their rows, and what it keeps for each.

A trainer says how tables are trained in two places, which TorchRec merges when it shards them:
`apply_optimizer_in_backward` of a table's parameter, and the `fused_params` of its sharder. Both
are read here, so that nobody has to say it twice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from recd_plugins.errors import RegistryError
from recd_plugins.planning.sharders import sharded_modules

if TYPE_CHECKING:
    from torch import nn
    from torchrec.distributed.types import ModuleSharder

__all__ = ["check_registry_agrees", "fused_by_table", "fused_in_words", "state_bytes"]

DEFAULTS: Mapping[str, float] = {"learning_rate": 0.01, "eps": 1e-8}
"""What fbgemm's kernels take where nobody says it; the optimizer is then EXACT_SGD."""
SAYS = {"tables": "optimizer", "tables_lr": "learning_rate", "tables_eps": "eps"}
"""What an option of `train.optimizer` is called in fused params."""
STATE_BYTES: Mapping[str, Callable[[int], int]] = {
    "EXACT_ADAGRAD": lambda dim: 4 * dim,
    "EXACT_ROWWISE_ADAGRAD": lambda _: 4,
    "ADAM": lambda dim: 8 * dim,
    "LAMB": lambda dim: 8 * dim,
    "PARTIAL_ROWWISE_ADAM": lambda dim: 4 * dim + 4,
    "PARTIAL_ROWWISE_LAMB": lambda dim: 4 * dim + 4,
}
"""Optimizer state of a row of D elements; none for SGD."""


def fused_by_table(
    model: nn.Module, sharders: Sequence[ModuleSharder[Any]]
) -> dict[str, dict[str, Any]]:
    """The fused params of each table that is sharded: its sharder's, under those of its own."""
    from recd_plugins.compat.torchrec import own_fused_params

    return {
        table: {**(getattr(sharder, "fused_params", None) or {}), **own_fused_params(parameter)}
        for _, module, sharder in sharded_modules(model, sharders)
        for table, parameter in sharder.shardable_parameters(module).items()
    }


def state_bytes(fused: Mapping[str, Any], dim: int) -> int:
    """The bytes that the fused optimizer keeps for a row."""
    optimizer: str = getattr(fused.get("optimizer"), "name", "EXACT_SGD")
    return STATE_BYTES[optimizer](dim) if optimizer in STATE_BYTES else 0


class TablesOptimizer(Protocol):
    """`train.optimizer` of registry.yaml."""

    def fused_params(self) -> dict[str, Any]:
        """The options of tables, as TorchRec's `fused_params`."""


def check_registry_agrees(
    model: nn.Module,
    sharders: Sequence[ModuleSharder[Any]],
    named: Sequence[str],
    settings: TablesOptimizer,
) -> None:
    """`RegistryError` where registry.yaml says another optimizer of tables than they have.

    `named` are those of the `settings` that registry.yaml has.
    """
    if not named:
        return
    wanted = settings.fused_params()
    for table, own in fused_by_table(model, sharders).items():
        has = {"optimizer": type(wanted["optimizer"]).EXACT_SGD, **DEFAULTS, **own}
        wrong = [name for name in named if has[SAYS[name]] != wanted[SAYS[name]]]
        if has["optimizer"].name == "EXACT_SGD":  # it has no epsilon
            wrong = [name for name in wrong if name != "tables_eps"]
        if wrong:
            raise RegistryError(
                f"registry.yaml says {fused_in_words(wanted)}, but the trainer's table {table!r} "
                f"has {fused_in_words(own)}, by apply_optimizer_in_backward or by the fused_params "
                f"of its sharder. Set it in one place: take {', '.join(wrong)} out, or let the "
                "trainer set the same.",
                "train.optimizer",
            )


def fused_in_words(fused: Mapping[str, Any]) -> str:
    """The optimizer that fused params name, in words: `EXACT_SGD, learning_rate 0.2`."""
    kind: str = getattr(fused.get("optimizer"), "name", "EXACT_SGD")
    named = [f"learning_rate {fused.get('learning_rate', DEFAULTS['learning_rate']):g}"]
    if kind not in ("EXACT_SGD", "SGD"):
        named.append(f"eps {fused.get('eps', DEFAULTS['eps']):g}")
    others = ("weight_decay", "weight_decay_mode", "max_norm", "max_gradient", "beta1", "beta2")
    named += [f"{name} {fused[name]}" for name in others if fused.get(name)]
    return ", ".join([kind, *named])
