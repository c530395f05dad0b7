"""The additions to a registry that RecD offers `recd advise`."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from recd_plugins.api import Addition, NotHere, Situation

__all__ = ["ADDITIONS"]

Values = Mapping[str, Any]
CLUSTER, THIN = "cluster_by_session", "downsample_samples"


def _cluster(situation: Situation) -> Values | NotHere:
    if not situation.use("dataset"):
        return NotHere(
            "batches come from the trainer's own loader, which decides on the order of samples: "
            "let it keep the samples of a session together, and ask again"
        )
    if situation.schema.session_id is None:
        return NotHere(
            "the table names no session, so it is unknown which samples belong together: name the "
            "column as `dataset.schema.session_id` if there is one"
        )
    if not situation.schema.sparse:
        return NotHere("the table has no features of ids, and only those repeat in a session")
    made: dict[str, Any] = {"etl": [*_steps(situation.values), {"use": CLUSTER}]}
    if situation.use("reader") in ("", "local"):
        made["reader"] = {"use": "local", **situation.options("reader"), "sessions": "whole"}
    return made


def _in_time(values: Values) -> Values:
    """The values without clustering: the table in its own order, with samples shuffled singly."""
    left = dict(values)
    left["etl"] = [step for step in _steps(values) if _use(step) != CLUSTER]
    reader = values.get("reader")
    if isinstance(reader, Mapping):
        left["reader"] = {name: value for name, value in reader.items() if name != "sessions"}
    return {name: value for name, value in left.items() if value != []}


def _deduplicate(situation: Situation) -> Values | NotHere:
    if not situation.tables:
        return NotHere("the model has no TorchRec table that could take unique samples")
    return {"dedup": {"use": "exact", "groups": "auto"}}


def _deduplicate_sequences(situation: Situation) -> Values | NotHere:
    sequences = _features(situation, pooled=False)
    if not sequences or not _features(situation, pooled=True) - sequences:
        return NotHere("the model has no sequences beside features that it sums")
    return _of(sequences)


def _deduplicate_users(situation: Situation) -> Values | NotHere:
    kinds = {feature.name: feature.kind for feature in situation.schema.sparse}
    every = _features(situation, pooled=True) | _features(situation, pooled=False)
    users = {name for name in every if kinds.get(name) == "user"}
    if not users or users == every:
        return NotHere("the table does not mark which features are those of users")
    return _of(users)


def _of(features: Collection[str]) -> Values:
    return {"dedup": {"use": "exact", "groups": "auto", "features": sorted(features)}}


def _features(situation: Situation, *, pooled: bool) -> set[str]:
    tables = situation.tables.values()
    return {name for table in tables if table.pooled is pooled for name in table.features}


def _fewer_of_a_session(values: Values) -> Values:
    """The values with half of the samples, drawn one by one: this about halves S."""
    return {**values, "etl": [{"use": THIN, "keep": 0.5}, *_steps(values)]}


def _steps(values: Values) -> Sequence[Any]:
    return values.get("etl") or []


def _use(step: Any) -> str:
    return str(step.get("use") if isinstance(step, Mapping) else step).rpartition(":")[2]


ADDITIONS = (
    Addition(
        name="clustering",
        summary="A session's samples lie and train together, so that batches repeat.",
        add=_cluster,
        without=_in_time,
        what_ifs={"half as many samples of a session": _fewer_of_a_session},
    ),
    Addition(
        name="unique samples",
        summary="Samples that are equal are exchanged, looked up and pooled once (IKJT).",
        add=_deduplicate,
        after=("clustering",),
        # For features with one id per sample, coalescing also looks up each id once, and needs no
        # extra exchanges.
        variants={
            "of sequences alone": _deduplicate_sequences,
            "of features of users alone": _deduplicate_users,
        },
    ),
)
