"""Rung 2 (properties): samples in other batches have the ids that they had, whatever their keys."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from drawn import at_most
from hypothesis import given, settings
from hypothesis import strategies as st
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recd_plugins.data.batch import Batch
from recd_plugins.sparse.joined import JoinedFeatures
from recd_scars.hot_batches.window_samples import WindowSamples

ONE = st.just(1)
"""Of each key of each batch, how long its rows are: often of one id each."""
LENGTHS = st.sampled_from(
    [ONE, ONE, st.integers(0, 3), st.just(0), st.integers(1, 2), st.integers(0, 12)]
)


@st.composite
def batches(draw: st.DrawFn) -> list[Batch]:
    keys = [f"key_{number}" for number in range(draw(st.integers(0, 4)))]
    sizes = draw(st.lists(st.integers(0, 6), min_size=1, max_size=4))
    of_key = [draw(LENGTHS) for _ in keys]
    weighted, number = draw(st.booleans()), 0
    made = []
    for size in sizes:
        lengths = [draw(length) for length in of_key for _ in range(size)]
        ids = torch.arange(number, number := number + sum(lengths))
        rows = torch.arange(size) + 100.0 * len(made)
        features = KeyedJaggedTensor(
            keys=keys,
            values=ids,
            weights=ids / 8 if weighted else None,
            lengths=torch.tensor(lengths, dtype=torch.int32),
            stride=size,
        )
        dense = rows[:, None].repeat(1, 3)
        made.append(Batch(dense=dense, features=features, labels=rows, weights=-rows))
    return made


def ids_of(features: KeyedJaggedTensor, values: torch.Tensor) -> list[list[list[float]]]:
    """Of each sample, of each key."""
    rows = [part.tolist() for part in values.split(features.lengths().tolist())]
    size = features.stride()
    return [rows[sample::size] for sample in range(size)]


def samples_of(parts: Sequence[Batch]) -> list[object]:
    found: list[object] = []
    for batch in parts:
        features, weights = batch.features, batch.features.weights_or_none()
        ids = ids_of(features, features.values())
        given_weights = ids if weights is None else ids_of(features, weights)
        others = (batch.dense.tolist(), batch.labels.tolist(), batch.weights.tolist())
        found += zip(ids, given_weights, *others, strict=True)
    return found


@settings(max_examples=at_most(100))
@given(parts=batches(), data=st.data())
def test_samples_keep_all_that_is_theirs(parts: list[Batch], data: st.DataObject) -> None:
    every = samples_of(parts)
    places = st.lists(st.integers(0, len(every) - 1), max_size=8) if every else st.just([])
    samples = WindowSamples(parts, [len(part) for part in parts])
    for _ in range(2):
        chosen = data.draw(places)
        batch = samples.batch(np.array(chosen, np.int64))
        assert samples_of([batch]) == [every[place] for place in chosen]
        features = batch.features
        assert features.lengths().dtype == torch.int32
        again = KeyedJaggedTensor(
            keys=features.keys(),
            values=features.values(),
            lengths=features.lengths(),
            stride=features.stride(),
        )
        assert features.length_per_key() == again.length_per_key()
        assert features.offset_per_key() == again.offset_per_key()


def test_lengths_of_one_id_each_go_on_to_one_batch_each() -> None:
    """Nobody who changes one batch's changes another's; and none keeps memory of more than it."""

    def of_one_id(lengths: torch.Tensor) -> KeyedJaggedTensor:
        return KeyedJaggedTensor(
            keys=["a", "b"], values=torch.arange(len(lengths)), lengths=lengths, stride=3
        )

    apart, together = torch.ones(6, dtype=torch.int32), torch.ones(8, dtype=torch.int32)
    joined = JoinedFeatures([of_one_id(apart), of_one_id(together[:6])])
    taken = [joined.take(np.array(rows)).lengths() for rows in ([0, 1], [3, 1, 5], [0, 4, 2])]
    assert [one.tolist() for one in taken] == [[1] * 4, [1] * 6, [1] * 6]
    assert [one.dtype for one in taken] == [torch.int32] * 3
    memory = [one.untyped_storage() for one in (*taken, apart, together)]
    assert len({one.data_ptr() for one in memory}) == 4  # one batch has those that lie apart
    assert [one.nbytes() for one in memory[:3]] == [16, 24, 24]
