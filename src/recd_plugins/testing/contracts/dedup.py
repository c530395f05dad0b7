"""The `dedup` slot: what is deduplicated comes back, row for row."""

from __future__ import annotations

import torch
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recd_plugins.data.batch import Batch
from recd_plugins.testing.batches import from_lists, random_batch, to_lists
from recd_plugins.testing.contracts.subject import Subject

__all__ = ["check_dedup"]


def check_dedup(subject: Subject) -> None:
    schema = subject.context.require_schema()
    converter = subject.build()
    for seed in range(3):
        batch = _repetitive(random_batch(schema, 6, seed=seed), seed)
        converted = converter.convert(batch)
        subject.hold(
            isinstance(converted, Batch)
            and all(
                torch.equal(getattr(batch, name), getattr(converted, name))
                for name in ("dense", "labels", "weights")
            ),
            "convert must return a Batch with the same dense, labels and weights",
            "Use dataclasses.replace(batch, features=..., dedup=...).",
        )
        found = to_lists(_expand(subject, converted)) | to_lists(converted.features)
        for key, rows in to_lists(batch.features).items():
            subject.hold(
                found.get(key) == rows,
                f"every row of {key!r} must come back through expand, but they differ",
                "Keep each feature in `features` or in `dedup`; check the inverse lookup.",
            )


def _expand(subject: Subject, batch: Batch) -> KeyedJaggedTensor:
    if subject.expand is not None:
        return subject.expand(batch)
    to_kjt = getattr(batch.dedup, "to_kjt", None)
    subject.hold(
        to_kjt is not None,
        f"what it puts into batch.dedup ({type(batch.dedup).__name__}) must have `to_kjt()`",
        "Add it, or hand check_record an `expand` from the batch to its KeyedJaggedTensor.",
    )
    assert to_kjt is not None
    expanded: KeyedJaggedTensor = to_kjt()
    return expanded


def _repetitive(batch: Batch, seed: int) -> Batch:
    """24 samples, each one of the batch's, so that rows repeat within features and across."""
    chosen = torch.randint(0, len(batch), (24,), generator=torch.Generator().manual_seed(seed))
    lists = to_lists(batch.features)
    return Batch(
        dense=batch.dense[chosen],
        features=from_lists({key: [ids[row] for row in chosen] for key, ids in lists.items()}),
        labels=batch.labels[chosen],
        weights=batch.weights[chosen],
    )
