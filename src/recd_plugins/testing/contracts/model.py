"""The `model` slot: from a batch to a loss, over tables that TorchRec can shard."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor, nn

from recd_plugins.data.batch import Batch
from recd_plugins.errors import so_many
from recd_plugins.planning.tables.embedding_collections import embedding_collections
from recd_plugins.slots import ModelRecord
from recd_plugins.testing.batches import random_batch
from recd_plugins.testing.contracts.subject import Subject
from recd_plugins.testing.reference import unsharded

__all__ = ["check_model"]

BATCH = 12


def check_model(subject: Subject) -> None:
    schema = subject.context.require_schema()
    takes = subject.record.takes if isinstance(subject.record, ModelRecord) else None
    if takes is not None:
        taken, there = takes(subject.config, schema), (*schema.dense, *schema.sparse_names)
        subject.hold(
            {*taken} <= {*there},
            f"what it takes must be some of {', '.join(there)}, but is {', '.join(taken)}",
            "Let `takes(config, schema)` return names of the schema.",
        )
        schema = schema.having(taken)
        context = dataclasses.replace(subject.context, schema=schema)
        subject = dataclasses.replace(subject, context=context)
    torch.manual_seed(0)
    model = subject.build()
    _check_tables(subject, model)
    unsharded(model, seed=0)
    batch = random_batch(schema, BATCH, seed=0)
    loss = _forward(subject, model, batch)
    loss.backward()
    for name, parameter in model.named_parameters():
        subject.hold(
            parameter.grad is not None and bool(parameter.grad.isfinite().all()),
            f"parameter {name!r} must get a finite gradient in every step, or DDP waits for it",
            "Remove it if it is not used.",
        )
    _forward(subject, model, random_batch(schema, BATCH, seed=1, longest=0))
    # Weight 0 marks a padding row: its content must not matter.
    weights = torch.ones(BATCH, device="cpu")
    weights[-1] = 0
    padded = [dataclasses.replace(batch, weights=weights, labels=batch.labels.clone())]
    padded.append(dataclasses.replace(padded[0], labels=batch.labels.clone()))
    padded[1].labels[-1] = 1 - padded[1].labels[-1]
    with torch.no_grad():
        left, right = (_forward(subject, model, each) for each in padded)
    subject.hold(
        torch.equal(left, right),
        "a sample of weight 0 must not count in the loss, but its label changed it",
        "loss = (weights * losses).sum() / weights.sum().",
    )


def _check_tables(subject: Subject, model: nn.Module) -> None:
    schema = subject.context.require_schema()
    largest: dict[str, int] = {}
    for _, module, configs in embedding_collections(model):
        for config in configs:
            for feature in config.feature_names:
                largest[feature] = config.num_embeddings
        for parameter in module.parameters():
            subject.hold(
                parameter.device.type == "meta",
                f"its tables must be on the meta device, but one is on {parameter.device}",
                "Pass device=torch.device('meta') to TorchRec's embedding modules.",
            )
    for feature in schema.sparse:
        if feature.name in largest:
            subject.hold(
                largest[feature.name] >= feature.num_ids,
                f"the table of {feature.name!r} must have {so_many(feature.num_ids, 'row')} or "
                f"more, but has {largest[feature.name]}",
                "Size tables by context.schema.table_sizes().",
            )
    subject.hold(
        bool(largest),
        "it must look features up in TorchRec's embedding modules, but has none",
        "Use EmbeddingCollection or EmbeddingBagCollection.",
    )


def _forward(subject: Subject, model: nn.Module, batch: Batch) -> Tensor:
    """The loss, after a check of everything that forward returns."""
    fix = "Return loss, (loss.detach(), logits.detach(), batch.labels, batch.weights)."
    match model(batch):
        case (Tensor() as loss, (Tensor() as detached, Tensor() as logits, labels, weights)):
            pass
        case result:
            subject.hold(
                False,
                f"forward must return (loss, (loss, logits, labels, weights)), not {result!r}",
                fix,
            )
    subject.hold(
        loss.dim() == 0 and bool(loss.isfinite()),
        f"the loss must be one finite number, but is {loss}",
        "Reduce it over the batch.",
    )
    subject.hold(
        logits.shape == batch.labels.shape
        and not logits.requires_grad
        and not detached.requires_grad,
        f"logits must be {list(batch.labels.shape)} and detached, as the loss beside them, but are "
        f"{list(logits.shape)}",
        fix,
    )
    subject.hold(
        torch.equal(detached, loss.detach())
        and torch.equal(labels, batch.labels)
        and torch.equal(weights, batch.weights),
        "loss, labels and weights must come back as they are",
        fix,
    )
    return loss
