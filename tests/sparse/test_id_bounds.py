"""Rung 1 and 2 (values, properties): a KJT's ids and lengths, held to bounds, as a loop says."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from drawn import at_most
from hypothesis import given, settings
from hypothesis import strategies as st
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recd_plugins.errors import DataError, PluginError
from recd_plugins.sparse.id_bounds import IdBounds

TYPES = [torch.int32, torch.int64]
BOUNDS = {"a": 3, "b": 1, "c": 2**31 - 1}


def by_a_loop(kjt: KeyedJaggedTensor) -> str | None:
    """The part that is wrong; an id by its feature."""
    lengths, ids = kjt.lengths().tolist(), kjt.values().tolist()
    if min(lengths, default=0) < 0:
        return "a row of"
    for key, size in zip(kjt.keys(), kjt.stride_per_key(), strict=True):
        own, lengths = lengths[:size], lengths[size:]
        if sum(own) > len(ids):
            return "add up to"
        for one in ids[: sum(own)]:
            if one < 0 or one >= BOUNDS.get(key, 2**63):
                return f"feature {key!r}, outside"
        ids = ids[sum(own) :]
    return "add up to" if ids else None


@st.composite
def kjts(draw: Any) -> KeyedJaggedTensor:
    keys = draw(st.permutations("abcd"))[: draw(st.integers(1, 4))]
    strides = [draw(st.integers(0, 4)) for _ in keys]
    if same := draw(st.booleans()):
        strides = strides[:1] * len(keys)
    rare = draw(st.sampled_from([-1, 0, 0, 0, 1]))
    lengths = [draw(st.sampled_from([0, 1, 2, 5])) for _ in range(sum(strides))]
    if lengths and draw(st.integers(0, 5)) == 0:
        lengths[draw(st.integers(0, len(lengths) - 1))] = draw(st.sampled_from([-1, 2**31 - 1]))
    count = max(0, sum(one for one in lengths if one < 9) + draw(st.sampled_from([0, 0, 0, rare])))
    ids = [0] * count
    if ids and draw(st.booleans()):
        ids[draw(st.integers(0, count - 1))] = draw(st.sampled_from([-1, 1, 2, 3, 2**31 - 1]))
    return KeyedJaggedTensor(
        list(keys),
        torch.tensor(ids, dtype=draw(st.sampled_from(TYPES))),
        lengths=torch.tensor(lengths, dtype=draw(st.sampled_from(TYPES))),
        **({"stride": strides[0]} if same else {"stride_per_key_per_rank": [[n] for n in strides]}),
    )


@given(kjts())
@settings(max_examples=at_most(200))
def test_ids_and_lengths_are_held_to_bounds_as_a_loop_says(kjt: KeyedJaggedTensor) -> None:
    bounds, wrong = IdBounds(BOUNDS), by_a_loop(kjt)
    if wrong is None:
        assert bounds.check(kjt, "R yielded")
        return
    with pytest.raises((DataError, PluginError)) as caught:
        bounds.check(kjt, "R yielded")
    assert str(caught.value).startswith("R yielded ")
    assert wrong in str(caught.value)


def test_who_made_an_id_is_named() -> None:
    kjt = KeyedJaggedTensor(["a", "b"], torch.tensor([1, 7, 0]), lengths=torch.tensor([2, 1]))
    with pytest.raises(
        DataError, match=r"^preprocess 'x' made id 7 of feature 'a', outside \[0, 3"
    ):
        IdBounds(BOUNDS, {"a": "preprocess 'x' made"}).check(kjt, "R yielded")


def test_who_made_a_row_of_fewer_than_no_ids_is_named() -> None:
    kjt = KeyedJaggedTensor(["a", "b"], torch.tensor([1, 0]), lengths=torch.tensor([1, 1, 2, -2]))
    with pytest.raises(PluginError, match=r"^preprocess 'x' made a row of -2 ids of feature 'b'\."):
        IdBounds(BOUNDS, {"b": "preprocess 'x' made"}).check(kjt, "R yielded")


def test_lengths_may_have_a_row_for_each_key() -> None:
    def check(ids: list[int]) -> bool:
        lengths = torch.tensor([[2, 0, 1], [0, 1, 1]])
        kjt = KeyedJaggedTensor(["a", "b"], torch.tensor(ids), lengths=lengths, stride=3)
        return IdBounds(BOUNDS).check(kjt, "R yielded")

    assert check([1, 2, 0, 0, 0])
    with pytest.raises(DataError, match="R yielded id 3 of feature 'a'"):
        check([1, 2, 3, 0, 0])


def test_what_lies_on_a_device_is_not_waited_for() -> None:
    kjt = KeyedJaggedTensor(["a"], torch.tensor([7]), lengths=torch.tensor([1]))
    assert not IdBounds(BOUNDS).check(kjt.to(torch.device("meta")), "R yielded")
