"""The values in an import's rows that the vocabularies do not know."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from recd_plugins.data.conform.vocabulary import (
    MANY_UNKNOWN,
    load_vocabulary,
)
from recd_plugins.data.dataset import Split
from recd_plugins.data.foreign import ForeignSchema
from recd_plugins.data.importing.import_folder import (
    IdCounts,
)

__all__ = ["id_counts", "notes_of_unknown"]


def id_counts(schema: ForeignSchema, parts: Mapping[Split, pa.Table]) -> IdCounts:
    """For each split and each feature with a vocabulary, the number of values, and how many of them
    the vocabulary does not know."""
    found: dict[Split, dict[str, tuple[int, int]]] = {}
    for split, rows in parts.items():
        found[split] = {}
        for one in schema.sparse:
            if one.vocabulary is not None:
                others = load_vocabulary(one.vocabulary).others
                ids = pc.list_flatten(rows[one.name]).to_numpy()
                found[split][one.name] = (ids.size, int((ids < others).sum()))
    return found


def notes_of_unknown(
    asked: ForeignSchema,
    schema: ForeignSchema,
    done: Sequence[Mapping[str, Any]],
    splits: Sequence[Split],
) -> Iterator[str]:
    """A note for each vocabulary that does not know many of the values in the segments `done`.

    A vocabulary made in this import (`asked` has none for its feature) was made of the train rows.
    It gets a note only if it knows far fewer values of other rows than of the train rows, since
    `num_ids` cuts off values of both alike.
    """
    made = {one.name for one in asked.sparse if one.vocabulary is None}
    for split, one in product(splits, schema.sparse):
        name = one.name
        if one.vocabulary is None or (name in made and split == "train"):
            continue
        share = _unknown(done, split, name)
        trained = _unknown(done, "train", name) if name in made else 0.0
        if share - trained <= MANY_UNKNOWN:
            continue
        where = f" of the {split} rows" if len(splits) > 1 else ""
        beside = f" (of the train rows {trained:.0%})" if trained else ""
        why = "new values since it was made, or other data"
        if trained or name not in made:
            why = (
                "new values since it was made, other data, or such as num_ids or "
                "--least-count left out"
            )
        yield (
            f"{name}: the vocabulary does not know {share:.0%} of its values{where}{beside}, "
            f"which share the ids of the others: {why}"
        )


def _unknown(done: Sequence[Mapping[str, Any]], split: Split, name: str) -> float:
    """The share of a feature's values that its vocabulary does not know."""
    values: int = sum(one["values"][split].get(name, 0) for one in done)
    unknown: int = sum(one["unknown"][split].get(name, 0) for one in done)
    return unknown / max(values, 1)
