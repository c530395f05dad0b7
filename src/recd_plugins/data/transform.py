"""What happens to a batch between the table and the trainer: dedup, then transforms."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recd_plugins.data.batch import Batch
from recd_plugins.errors import PluginError
from recd_plugins.sparse.ikjt import InverseKeyedJaggedTensor
from recd_plugins.sparse.partial import PartialInverseKeyedJaggedTensor
from recd_plugins.sparse.row_wise import RowWise

if TYPE_CHECKING:
    from recd_plugins.slots import DedupConverter, Preprocess

__all__ = ["BatchTransform"]

KINDS = (KeyedJaggedTensor, InverseKeyedJaggedTensor, PartialInverseKeyedJaggedTensor)


class BatchTransform:
    """Applies the `dedup` converter, then each `preprocess` transform to its features.

    What is deduplicated is so before it is transformed, and each transform runs once for every
    unique sample: on `batch.dedup` as on `batch.features`, with results as if on all samples.
    """

    def __init__(
        self,
        steps: Sequence[tuple[Sequence[str], Preprocess]],
        dedup: Sequence[DedupConverter] = (),
    ) -> None:
        self._steps = [(names, RowWise(transform)) for names, transform in steps]
        self._dedup = dedup

    def __call__(self, batch: Batch) -> Batch:
        for converter in self._dedup:
            batch = converter.convert(batch)
        features, dedup = batch.features, batch.dedup
        for names, transform in self._steps:
            features = transform(features, names)
            if isinstance(dedup, KINDS):
                dedup = transform(dedup, names)
            elif dedup is not None:
                _check_reached(features, names, dedup, transform)
        return dataclasses.replace(batch, features=features, dedup=dedup)


def _check_reached(
    features: KeyedJaggedTensor, names: Sequence[str], dedup: object, transform: RowWise
) -> None:
    gone = [name for name in names if name not in features.keys()]  # noqa: SIM118  # no mapping
    if gone:
        raise PluginError(
            f"preprocess: {transform.name} is for {', '.join(gone)}, which dedup put into a "
            f"{type(dedup).__name__}. Let the converter make an InverseKeyedJaggedTensor, or take "
            "the transform off these features."
        )
