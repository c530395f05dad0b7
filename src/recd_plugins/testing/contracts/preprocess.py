"""The `preprocess` slot: a transform of jagged features, row by row, or of dense columns."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recd_plugins.data.preprocess.dense_step import DenseStep
from recd_plugins.data.preprocess.steps import ChosenTransform, steps_of, takes_dense
from recd_plugins.data.schema import Schema
from recd_plugins.errors import so_many
from recd_plugins.sparse.groups import Groups
from recd_plugins.sparse.ikjt import InverseKeyedJaggedTensor
from recd_plugins.sparse.partial import PartialInverseKeyedJaggedTensor
from recd_plugins.sparse.row_wise import KjtTransform, RowWise
from recd_plugins.testing.batches import from_lists, random_batch, to_lists
from recd_plugins.testing.contracts.subject import Subject

__all__ = ["check_preprocess"]

ROWS = 12


def check_preprocess(subject: Subject) -> None:
    transform = subject.build()
    schema = subject.context.require_schema()
    if takes_dense(transform):
        _check_dense(subject, transform, schema)
        return
    own: tuple[str, ...] | None = getattr(transform, "takes", None)
    if own is not None:
        schema = dataclasses.replace(schema, sparse=tuple(map(schema.feature, own)))
    after = transform.schema(schema)
    subject.hold(
        isinstance(after, Schema) and bool(after.sparse),
        f"`schema` must return a Schema of the features that come out, but made {after!r}",
        "Change them by schema.replace([...]), add to them by schema.add([...]).",
    )
    changes_keys = after.sparse_names != schema.sparse_names
    on_unique = RowWise(transform, (lambda keys: after.sparse_names) if changes_keys else None)
    groups = (schema.sparse_names,) if changes_keys else None
    for seed in range(3):
        features = random_batch(schema, ROWS, seed=seed).features
        before = [part.clone() for part in (features.values(), features.lengths())]
        result = transform(features)
        _check_shape(subject, features, result, after)
        subject.hold(
            torch.equal(before[0], features.values())
            and torch.equal(before[1], features.lengths()),
            "it must leave its input as it is",
            "Do not work in place.",
        )
        _check_ids(subject, result, after)
        rows = to_lists(result)
        subject.hold(to_lists(transform(features)) == rows, "it must be repeatable", "Seed it.")
        if not changes_keys:
            _check_each(subject, transform, features, rows)
            _check_of_rows(subject, transform, features, result)
        if getattr(transform, "row_wise", True):
            _check_rows(subject, transform, on_unique, groups, features, seed)


def _check_dense(subject: Subject, transform: Any, schema: Schema) -> None:
    """Each sample's result fits its `schema`, and is the same among other samples and alone."""
    chosen = ChosenTransform(who="preprocess", where="", features=("*",), transform=transform)
    (step,) = steps_of([chosen], schema)
    run = DenseStep(step)
    for seed in range(3):
        batch = random_batch(schema, ROWS, seed=seed)
        before = batch.dense.clone()
        dense, features = run(batch.dense, batch.features)
        after = step.after()
        subject.hold(
            torch.equal(before, batch.dense), "it must leave its input as it is", "Copy it first."
        )
        _check_shape(subject, batch.features, features, after)
        _check_ids(subject, features, after)
        again, rows = run(batch.dense, batch.features), to_lists(features)
        subject.hold(
            torch.equal(again[0], dense) and to_lists(again[1]) == rows,
            "it must be repeatable",
            "Seed it.",
        )
        order = torch.randperm(ROWS, generator=torch.Generator().manual_seed(seed), device="cpu")
        for some in (order, order[:1]):
            part, made = run(batch.dense[some], _take(batch.features, some))
            expected = {key: [ids[row] for row in some.tolist()] for key, ids in rows.items()}
            subject.hold(
                torch.equal(part, dense[some]) and to_lists(made) == expected,
                "a sample's result must not depend on the other samples, but it does",
                "Transform each sample by itself.",
            )


def _check_each(
    subject: Subject,
    transform: KjtTransform,
    features: KeyedJaggedTensor,
    rows: dict[str, list[list[int]]],
) -> None:
    """A feature's rows come out the same if it is transformed alone."""
    every = to_lists(features)
    for key in features.keys():  # noqa: SIM118  # not a mapping
        try:
            alone: object = to_lists(transform(from_lists({key: every[key]})))
        except Exception as error:  # whatever its author raises if a feature is missing
            alone = f"raises {type(error).__name__}: {error}"
        subject.hold(
            alone == {key: rows[key]},
            f"where features keep their names each is transformed by itself, but {key!r} "
            f"{alone if isinstance(alone, str) else 'comes out otherwise'} alone",
            "Give what it makes of several features a name of its own.",
        )


def _check_of_rows(
    subject: Subject, transform: Any, features: KeyedJaggedTensor, result: KeyedJaggedTensor
) -> None:
    """If the transform has `of_rows`, that gives the same result as for a KJT: batches may go
    through either."""
    if (of_rows := getattr(transform, "of_rows", None)) is None:
        return
    made = of_rows(features.values(), features.lengths(), features.weights_or_none())
    expected = (result.values(), result.lengths(), result.weights_or_none())
    subject.hold(
        isinstance(made, tuple)
        and len(made) == len(expected)
        and all(
            one is other is None
            or (isinstance(one, Tensor) and isinstance(other, Tensor) and torch.equal(one, other))
            for one, other in zip(made, expected, strict=True)
        ),
        "`of_rows` must give the ids, lengths and weights that it makes of a KJT, but gives others",
        "Let it call `of_rows` for a KJT too, or take the method away.",
    )


def _check_rows(
    subject: Subject,
    transform: KjtTransform,
    on_unique: RowWise,
    groups: Groups | None,
    features: KeyedJaggedTensor,
    seed: int,
) -> None:
    """Each row's result is the same in any order, among fewer rows, and as a unique sample of an
    IKJT."""
    rows, draw = to_lists(transform(features)), torch.Generator().manual_seed(seed)
    order = torch.randperm(ROWS, generator=draw, device="cpu")
    repeated = torch.randint(0, ROWS // 2, (2 * ROWS,), generator=draw, device="cpu")
    for chosen in (order, order[:1], repeated):
        part = _take(features, chosen)
        expected = {key: [ids[row] for row in chosen.tolist()] for key, ids in rows.items()}
        for key, found in to_lists(transform(part)).items():
            subject.hold(
                found == expected[key],
                f"a row's result must not depend on the other rows, but that of {key!r} does",
                "Transform each row by itself, or let it say `row_wise = False`: dedup then "
                "refuses it, since it runs transforms on unique samples alone.",
            )
        exact = on_unique(InverseKeyedJaggedTensor.from_kjt(part, groups))
        subject.hold(
            to_lists(exact.to_kjt()) == expected,
            "on the unique samples of an IKJT it must give what it gives on all samples",
            "Mind the rows of length 0 that an IKJT may end in.",
        )
        shared = on_unique(PartialInverseKeyedJaggedTensor.from_kjt(part, groups))
        subject.hold(
            to_lists(shared.to_kjt()) == expected,
            "on the shared values of a partial IKJT it must give what it gives on all samples",
            "`elementwise = True` is for what takes each id by itself and keeps rows' lengths.",
        )


def _check_shape(
    subject: Subject, features: KeyedJaggedTensor, result: object, after: Schema
) -> None:
    keys = list(after.sparse_names)
    subject.hold(
        isinstance(result, KeyedJaggedTensor)
        and result.keys() == keys
        and result.stride() == features.stride(),
        f"it must return a KeyedJaggedTensor of the keys that its `schema` says, {keys}, and "
        f"{so_many(features.stride(), 'row')}",
        "Keep the keys, their order and the number of rows; new ones are in `schema` too.",
    )


def _check_ids(subject: Subject, result: KeyedJaggedTensor, schema: Schema) -> None:
    for feature in schema.sparse:
        ids = result[feature.name].values()
        subject.hold(
            ids.dtype == torch.int64 and bool(((ids >= 0) & (ids < feature.num_ids)).all()),
            f"ids of {feature.name!r} must be int64 in [0, {feature.num_ids}), which its `schema` "
            f"says, but lie in [{_least(ids)}, {-_least(-ids)}] as {ids.dtype}",
            "Let `schema` give the num_ids of the ids that come out.",
        )


def _least(ids: Tensor) -> int:
    return int(ids.min()) if ids.numel() else 0


def _take(features: KeyedJaggedTensor, rows: Tensor) -> KeyedJaggedTensor:
    return from_lists({key: [ids[row] for row in rows] for key, ids in to_lists(features).items()})
