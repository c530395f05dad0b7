"""The error of a run that diverged: where its numbers stop being finite, why, and what to do. The
folder of the run keeps the batches that led there."""

from __future__ import annotations

import torch.distributed as dist

from recd_plugins.errors import RecdError
from recd_plugins.stack import Stack
from recd_plugins.trainer.checkpoints.checkpoint import Checkpoints
from recd_plugins.trainer.measure.finite import FiniteInputs, FiniteLosses

__all__ = ["divergence"]


def divergence(
    stack: Stack,
    checkpoints: Checkpoints,
    losses: FiniteLosses,
    inputs: FiniteInputs,
    trained: int,
    what: str = "",
) -> RecdError:
    """The error that ends a run which cannot go on after `trained` steps; every rank must call it.

    Without `what`, a loss is not finite.
    """
    schema, step = stack.schema, losses.first()
    columns = [name for name in schema.dense for _ in range(schema.width(name) or 1)]
    culprit, large = inputs.culprit(columns), losses.too_large(step or trained, columns)
    kept = losses.keep(stack.registry.train.run / "diverged", step or trained)
    dist.barrier()
    whole = checkpoints.latest()
    goes_on = (
        "" if culprit or large else ": `recd train --resume` goes on from it, at lower rates too"
    )
    checkpoint = (
        f"The latest checkpoint, {whole}, is of before, and its weights are finite{goes_on}"
        if whole
        else "There is no checkpoint before it"
    )
    what = what or f"the loss of step {step} is not finite"
    return RecdError(f"{what}: {_why(stack, step, culprit, large)}. {kept}. {checkpoint}.")


def _why(stack: Stack, step: int, culprit: str, large: str) -> str:
    """Why training diverged, and what to do, from the first step whose loss is not finite."""
    if culprit:
        return (
            f"{culprit}. `recd data check` lists all such columns: give them a value there, or "
            "take out the preprocess step that makes it"
        )
    if large:
        return (
            f"{large} in the batches that led there, which no rate is low enough for. Give a dense "
            "column `scale: log` in the schema, or leave it out by dataset.without; scale a label "
            "or a weight where the table is made"
        )
    if step == 1:  # of weights that no rate has touched
        made = stack.registry
        who = [one.who for slot in ("model", "pooling") for one in made.chosen(slot)]
        return (
            "the model makes it of weights as they begin, before any rate has a part in it. "
            "Check by what its modules divide, and of what they take logarithms: "
            f"{'; '.join(who)}"
        )
    return "training diverged. Lower train.optimizer.tables_lr or dense_lr"
