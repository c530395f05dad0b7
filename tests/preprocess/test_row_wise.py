"""Rung 1 and 2 (values, properties): transforms of a KJT on the unique samples of an IKJT."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from itertools import chain
from typing import Any, NamedTuple

import pytest
import torch
from drawn import at_most
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recd_dsi.transforms import Clamp, FirstX, SigridHash
from recd_dsi.transforms.in_place import InPlace, InRows
from recd_plugins.errors import PluginError
from recd_plugins.sparse.ikjt import InverseKeyedJaggedTensor
from recd_plugins.sparse.keyed import with_feature, with_ids
from recd_plugins.sparse.partial import PartialInverseKeyedJaggedTensor
from recd_plugins.sparse.row_wise import RowWise
from recd_plugins.sparse.transformed import TransformedFeatures
from recd_plugins.testing.batches import from_lists, to_lists

KEYS = ("a", "b", "c", "d")
GROUPINGS = [
    [["a"], ["b"], ["c"], ["d"]],
    [["a", "b"], ["c", "d"]],
    [["d", "b"], ["a", "c"]],
    [["a", "b", "c", "d"]],
]


class Scripted(NamedTuple):
    """A module that is scripted when a test of it runs: that takes a second."""

    kind: type[nn.Module]


@pytest.fixture(scope="module")
def transform(request: pytest.FixtureRequest) -> Any:
    if not isinstance(request.param, Scripted):
        return request.param
    with warnings.catch_warnings():  # torch 2.13 would rather see it exported
        warnings.filterwarnings("ignore", "`torch.jit.script` is deprecated")
        warnings.filterwarnings("ignore", "TorchScript will treat type", UserWarning)  # the KJT's
        return torch.jit.script(request.param.kind())


class Twice(nn.Module):
    """Written for TorchScript: doubles ids, knows nothing of us."""

    def forward(self, features: KeyedJaggedTensor) -> KeyedJaggedTensor:
        return KeyedJaggedTensor(
            keys=features.keys(),
            values=features.values() * 2,
            lengths=features.lengths(),
            weights=features.weights_or_none(),
        )


def fill_empty(features: KeyedJaggedTensor) -> KeyedJaggedTensor:
    """A row without ids gets the id 99; a plain function, and one that touches padding rows."""
    lengths, weights = features.lengths(), features.weights_or_none()
    filled = lengths.clamp(min=1)
    values = features.values().new_full((int(filled.sum()),), 99)
    kept = torch.repeat_interleave(lengths > 0, filled)
    values[kept] = features.values()
    if weights is not None:
        weights = weights.new_ones(len(values)).masked_scatter(kept, weights)
    return with_ids(features, values, lengths=filled, weights=weights)


def reverse_rows(features: KeyedJaggedTensor) -> KeyedJaggedTensor:
    """Each row backwards."""
    lists = to_lists(features)
    return from_lists({key: [row[::-1] for row in rows] for key, rows in lists.items()})


TRANSFORMS = [
    SigridHash(31, salt=5),
    FirstX(2),
    Clamp(2, 3),
    nn.Sequential(SigridHash(31), FirstX(1)),
    Twice(),
    Scripted(Twice),
    fill_empty,
    reverse_rows,
]


def named(transform) -> str:
    if isinstance(transform, Scripted):
        return transform.kind.__name__
    return getattr(transform, "__name__", "") or "nn"


@st.composite
def samples(draw) -> KeyedJaggedTensor:
    """B samples of few different rows, so that they repeat."""
    pool = draw(st.lists(st.lists(st.integers(0, 5), max_size=3), min_size=1, max_size=4))
    batch = draw(st.integers(1, 8))
    row = st.sampled_from(pool)
    return from_lists({key: [draw(row) for _ in range(batch)] for key in KEYS})


SOME = st.sampled_from([None, ("b",), ("a", "c"), ("b", "c"), ("a", "b", "c", "d"), ("d", "x")])


@pytest.mark.parametrize("transform", TRANSFORMS, ids=named, indirect=True)
@settings(max_examples=at_most(30))
@given(features=samples(), groups=st.sampled_from(GROUPINGS), some=SOME)
def test_on_unique_samples_as_on_all(transform, features, groups, some):
    wrapped = RowWise(transform)
    on_all = to_lists(wrapped(features, some))
    assert list(on_all) == list(KEYS)
    ikjt = InverseKeyedJaggedTensor.from_kjt(features, groups)
    result = wrapped(ikjt, some)
    assert to_lists(result.to_kjt()) == on_all
    assert result.inverse_lookup is ikjt.inverse_lookup
    assert (result.groups, result.unique_counts) == (ikjt.groups, ikjt.unique_counts)
    result.validate()
    before, after = to_lists(features), to_lists(transform(features))
    chosen = [key for key in KEYS if some is None or key in some]
    assert on_all == {key: (after if key in chosen else before)[key] for key in KEYS}


@pytest.mark.parametrize("transform", TRANSFORMS, ids=named, indirect=True)
@settings(max_examples=at_most(30))
@given(features=samples(), groups=st.sampled_from(GROUPINGS), some=SOME)
def test_on_shared_values_as_on_all(transform, features, groups, some):
    wrapped = RowWise(transform)
    partial = PartialInverseKeyedJaggedTensor.from_kjt(features, groups)
    result = wrapped(partial, some).validate()
    assert to_lists(result.to_kjt()) == to_lists(wrapped(features, some))


@pytest.mark.parametrize(
    "transform", [SigridHash(31), FirstX(1), fill_empty], ids=named, indirect=True
)
def test_weights_come_along(transform):
    features = KeyedJaggedTensor(
        keys=["a", "b"],
        values=torch.tensor([4, 5, 4, 5, 6, 4, 5, 7]),
        lengths=torch.tensor([2, 2, 0, 1, 2, 1]),
        weights=torch.tensor([1.0, 2.0, 1.0, 2.0, 3.0, 1.0, 2.0, 4.0]),
    )
    wrapped = RowWise(transform)
    expanded = wrapped(InverseKeyedJaggedTensor.from_kjt(features)).to_kjt()
    on_all = wrapped(features)
    assert to_lists(expanded) == to_lists(on_all)
    assert expanded.weights().tolist() == on_all.weights().tolist()


def test_it_runs_once_on_each_unique_sample():
    seen = []

    def look(features: KeyedJaggedTensor) -> KeyedJaggedTensor:
        seen.append(features)
        return features

    features = from_lists({"a": [[1, 2], [1, 2], [3]], "b": [[4], [5], [6]]})
    ikjt = InverseKeyedJaggedTensor.from_kjt(features)
    result = RowWise(look)(ikjt)
    assert seen == [ikjt.kjt]
    assert to_lists(seen[0]) == {"a": [[1, 2], [3], []], "b": [[4], [5], [6]]}
    assert result.kjt is ikjt.kjt


def test_it_is_given_no_more_padding_than_its_keys_need():
    """`b` has three unique samples, but is not taken; `c` has two, and `a` one."""
    seen = []

    def look(features: KeyedJaggedTensor) -> KeyedJaggedTensor:
        seen.append(to_lists(features))
        return fill_empty(features)

    rows = {"a": [[1]] * 3, "b": [[4], [5], [6]], "c": [[7], [], [7]]}
    ikjt = InverseKeyedJaggedTensor.from_kjt(from_lists(rows))
    result = RowWise(look)(ikjt, ["a", "c"]).validate()
    assert seen == [{"a": [[1], []], "c": [[7], []]}]
    assert to_lists(result.kjt) == {
        "a": [[1], [], []],
        "b": [[4], [5], [6]],
        "c": [[7], [99], []],
    }


def test_on_partial_it_runs_once_on_each_unique_sample():
    seen = []

    def look(features: KeyedJaggedTensor) -> KeyedJaggedTensor:
        seen.append(to_lists(features))
        return FirstX(2)(features)

    rows = {"a": [[1, 2, 3], [1, 2, 3], [2, 3, 4]]}
    result = RowWise(look)(PartialInverseKeyedJaggedTensor.from_kjt(from_lists(rows)))
    assert seen == [{"a": [[1, 2, 3], [2, 3, 4]]}]
    assert result.kjt.values().tolist() == [1, 2, 3]
    assert to_lists(result.to_kjt()) == {"a": [[1, 2], [1, 2], [2, 3]]}


def test_padding_rows_stay_empty():
    ikjt = InverseKeyedJaggedTensor.from_kjt(from_lists({"a": [[1], [1], []], "b": [[], [5], [6]]}))
    filled = RowWise(fill_empty)(ikjt)
    assert to_lists(filled.kjt) == {"a": [[1], [99], []], "b": [[99], [5], [6]]}


# What a transform says of itself


class Rank(nn.Module):
    """Each id becomes its rank among all ids: depends on the other rows, and says so."""

    row_wise = False

    def forward(self, features: KeyedJaggedTensor) -> KeyedJaggedTensor:
        return with_ids(features, features.values().argsort().argsort())


class ScriptedRank(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.row_wise = False

    def forward(self, features: KeyedJaggedTensor) -> KeyedJaggedTensor:
        return features


def rank(features: KeyedJaggedTensor) -> KeyedJaggedTensor:
    return features


rank.row_wise = False  # type: ignore[attr-defined]

FEATURES = from_lists({"a": [[1, 2], [1, 2], [3]], "b": [[4], [4], [4]]})


@pytest.mark.parametrize(
    ("transform", "name"),
    [(Rank(), "Rank"), (Scripted(ScriptedRank), "ScriptedRank"), (rank, "rank")],
    indirect=["transform"],
)
def test_what_depends_on_other_rows_is_refused_by_name(transform, name):
    wrapped = RowWise(transform)
    for kind in (InverseKeyedJaggedTensor, PartialInverseKeyedJaggedTensor):
        with pytest.raises(PluginError, match=rf"{name} says `row_wise = False`.* of b\. Leave"):
            wrapped(kind.from_kjt(FEATURES), ["b"])
    assert to_lists(wrapped(FEATURES)) == to_lists(transform(FEATURES))
    ikjt = InverseKeyedJaggedTensor.from_kjt(FEATURES)
    assert wrapped(ikjt, ["elsewhere"]) is ikjt


class Sum:
    """Features of a group become one: the ids of all, one after another."""

    changes_keys = True

    def __call__(self, features: KeyedJaggedTensor) -> KeyedJaggedTensor:
        rows = zip(*to_lists(features).values(), strict=True)
        return from_lists({"+".join(features.keys()): [list(chain(*row)) for row in rows]})


def test_declared_keys_replace_those_of_their_group():
    features = from_lists(
        {"a": [[1], [1], [2]], "b": [[3], [3], [4]], "c": [[5], [6], [5]], "d": [[7], [7], [7]]}
    )
    ikjt = InverseKeyedJaggedTensor.from_kjt(features, [["a", "b"], ["c", "d"]])
    result = RowWise(Sum())(ikjt, ["a", "b", "c"]).validate()
    assert result.groups == (("a+b",), ("c", "d"))
    assert to_lists(result.to_kjt()) == {
        "a+b": [[1, 3], [1, 3], [2, 4]],
        "c": [[5], [6], [5]],
        "d": [[7], [7], [7]],
    }
    assert RowWise(Sum())(features, ["a", "b"]).keys() == ["c", "d", "a+b"]
    partial = PartialInverseKeyedJaggedTensor.from_kjt(features, [["a", "b"], ["c", "d"]])
    found = RowWise(Sum())(partial, ["a", "b", "c"]).validate()
    assert found.groups == result.groups
    assert to_lists(found.to_kjt()) == to_lists(result.to_kjt())


class Count:
    """Adds how many ids a row of `b` has, as an id."""

    takes = ("b",)
    changes_keys = True

    def made(self, features: KeyedJaggedTensor) -> tuple[Tensor, Tensor, None]:
        lengths = features["b"].lengths()
        return lengths.long(), torch.ones_like(lengths), None

    def __call__(self, features: KeyedJaggedTensor) -> KeyedJaggedTensor:
        return with_feature(features, "count", *self.made(features))


class CountAmongOthers(Count):
    adds = "count"


@settings(max_examples=at_most(30))
@given(
    features=samples(),
    groups=st.sampled_from(GROUPINGS),
    dtype=st.sampled_from([torch.int32, torch.int64]),
    weighed=st.booleans(),
)
def test_what_says_that_it_adds_is_copied_once_to_the_same(features, groups, dtype, weighed):
    features = with_ids(
        features,
        features.values().to(dtype),
        lengths=features.lengths(),
        weights=features.values().float() if weighed else None,
    )
    kinds = (InverseKeyedJaggedTensor, PartialInverseKeyedJaggedTensor)
    forms = [features, *(kind.from_kjt(features, groups) for kind in kinds)]
    for form in forms:
        found, whole = (
            RowWise(one, lambda keys: [*keys, "count"])(form, ["b"])
            for one in (CountAmongOthers(), Count())
        )
        found, whole = (
            one if isinstance(one, KeyedJaggedTensor) else one.validate().kjt
            for one in (found, whole)
        )
        assert found.keys() == whole.keys()
        assert torch.equal(found.values(), whole.values())
        assert torch.equal(found.lengths(), whole.lengths())
        assert found.length_per_key() == whole.length_per_key()
        if weighed:
            assert torch.equal(found.weights(), whole.weights())
        assert (found.weights_or_none() is None) == (not weighed)


class Lengths:
    """Adds how many ids a row of one feature has, as an id; with a weight or without."""

    changes_keys = True

    def __init__(self, of: str, adds: str, weight: float | None = None) -> None:
        self.of, self.adds, self.weight = of, adds, weight

    def made(self, features: KeyedJaggedTensor) -> tuple[Tensor, Tensor, Tensor | None]:
        lengths = features[self.of].lengths()
        weights = None if self.weight is None else torch.full((len(lengths),), self.weight)
        return lengths.long(), torch.ones_like(lengths), weights

    def __call__(self, features: KeyedJaggedTensor) -> KeyedJaggedTensor:
        return with_feature(features, self.adds, *self.made(features))


IN_A_ROW = [
    *((("a",), Lengths("a", "x")), (("b",), Lengths("b", "y", 0.5))),
    *((("x",), Lengths("x", "z")), (("c", "d"), Lengths("d", "w"))),
    *((("a", "x"), SigridHash(31)), (("b", "w"), FirstX(1)), (("absent",), Lengths("absent", "v"))),
    *((tuple("abcdwxyz"), SigridHash(31, 2)), (tuple("abcdwxyz"), FirstX(2))),
]


@settings(max_examples=at_most(60))
@given(
    features=samples(),
    groups=st.sampled_from([GROUPINGS[1], GROUPINGS[3]]),
    dtype=st.sampled_from([torch.int32, torch.int64]),
    weighed=st.booleans(),
    steps=st.lists(st.sampled_from(IN_A_ROW), unique_by=id),
)
def test_several_in_a_row_make_what_one_after_another_makes(
    features, groups, dtype, weighed, steps
):
    weights = features.values().float() if weighed else None
    features = with_ids(
        features, features.values().to(dtype), lengths=features.lengths(), weights=weights
    )
    kinds = (InverseKeyedJaggedTensor, PartialInverseKeyedJaggedTensor)
    for whole in [features, *(kind.from_kjt(features, groups) for kind in kinds)]:
        at_once = TransformedFeatures(whole)
        for names, transform in steps:
            adds = getattr(transform, "adds", None)
            step = RowWise(transform, adds and (lambda keys, adds=adds: [*keys, adds]))
            at_once.apply(step, names)
            whole = step(whole, names)
        found = at_once.whole
        if not isinstance(found, KeyedJaggedTensor):
            assert found.groups == whole.groups
            found, whole = found.validate().kjt, whole.kjt
        assert found.keys() == whole.keys()
        assert found.length_per_key() == whole.length_per_key()
        for theirs, ours in [
            (whole.values(), found.values()),
            (whole.lengths(), found.lengths()),
            (whole.weights_or_none(), found.weights_or_none()),
        ]:
            assert (theirs is None) == (ours is None)
            assert theirs is None or (theirs.dtype == ours.dtype and torch.equal(theirs, ours))


class Constant:
    changes_keys = True

    def __call__(self, features: KeyedJaggedTensor) -> KeyedJaggedTensor:
        return from_lists({"one": [[1]] * features.stride()})


def test_keys_that_cannot_be_followed():
    for kind in (InverseKeyedJaggedTensor, PartialInverseKeyedJaggedTensor):
        with pytest.raises(PluginError, match="makes the same key from two feature groups"):
            RowWise(Constant())(kind.from_kjt(FEATURES))


def test_an_elementwise_transform_keeps_lengths():
    truncating = FirstX(1)
    truncating.elementwise = True
    with pytest.raises(PluginError, match="FirstX says `elementwise = True`, but changes how many"):
        RowWise(truncating)(PartialInverseKeyedJaggedTensor.from_kjt(FEATURES))


class OfRows(FirstX):
    """Cuts a KJT's rows as ever, and makes something else of mere rows."""

    def __init__(self, of_rows: Callable[..., object]) -> None:
        super().__init__(1)
        self.made = of_rows

    def of_rows(self, ids: Tensor, lengths: Tensor, weights: Tensor | None) -> object:
        return self.made(ids, lengths, weights)


@pytest.mark.parametrize(
    ("of_rows", "message"),
    [
        (lambda *rows: [*rows], "`of_rows` gave a list, but must give"),
        (
            lambda ids, lengths, weights: (ids, lengths[1:], weights),
            "made (5 rows of 6|3 rows of 4)",
        ),
        (
            lambda ids, lengths, weights: (ids[1:], lengths, weights),
            r"made \d+ ids, and lengths that add up to \d+\. Give each row",
        ),
        (
            lambda ids, lengths, weights: (ids, lengths + 1, weights),
            r"made \d+ ids, and lengths that add up to \d+\. Give each row",
        ),
        (
            lambda ids, lengths, weights: (
                ids,
                lengths + lengths.diff(append=lengths[:1]) * 9,
                weights,
            ),
            r"made a row of -\d+ ids\. Give a row without ids the length 0\.",
        ),
        (
            lambda ids, lengths, weights: (ids.float(), lengths, weights),
            r"made ids of torch\.float32, where they must be integers",
        ),
    ],
)
def test_rows_that_are_none(of_rows, message):
    for features in (FEATURES, InverseKeyedJaggedTensor.from_kjt(FEATURES, [FEATURES.keys()])):
        with pytest.raises(PluginError, match=message):
            TransformedFeatures(features).apply(RowWise(OfRows(of_rows)), FEATURES.keys())


def test_a_feature_that_is_added_fills_its_rows():
    class TooFew(CountAmongOthers):
        def made(self, features: KeyedJaggedTensor) -> tuple[Tensor, Tensor, None]:
            ids, lengths, _ = super().made(features)
            return ids[1:], lengths, None

    with pytest.raises(PluginError, match=r"TooFew made 2 ids, and lengths that add up to 3\."):
        RowWise(TooFew(), lambda keys: [*keys, "count"])(FEATURES, ["b"])


def test_no_kjt_is_made_between_transforms_of_rows(monkeypatch):
    made, steps = [], [RowWise(SigridHash(31)), RowWise(FirstX(1)), RowWise(SigridHash(7))]
    init = KeyedJaggedTensor.__init__

    def counted(kjt: KeyedJaggedTensor, *args: Any, **more: Any) -> None:
        made.append(kjt)
        init(kjt, *args, **more)

    monkeypatch.setattr(KeyedJaggedTensor, "__init__", counted)
    some = InverseKeyedJaggedTensor.from_kjt(FEATURES, [FEATURES.keys()])
    for features in (FEATURES, some):
        expected = features
        for step in steps:
            expected = step(expected)
        at_once = TransformedFeatures(features)
        made.clear()
        for step in steps:
            at_once.apply(step, FEATURES.keys())
        assert not made
        found = at_once.whole
        assert len(made) == 1
        found, expected = (getattr(one, "kjt", one) for one in (found, expected))
        assert to_lists(found) == to_lists(expected)


class Weighing(InPlace):
    """The same rows, whose ids weigh so many times as much; at 0, nothing is said of weights."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self.times = times

    def of_rows(self, ids: Tensor, lengths: Tensor, weights: Tensor | None) -> InRows:
        assert weights is not None
        return ids, lengths, self.times * weights if self.times else None


@pytest.mark.parametrize("times", [3, 0])
def test_other_weights_of_the_same_rows_come_out_of_a_kjt_and_of_rows(times):
    """A transform of all features is handed rows, and one of some a KJT of these."""
    rows = FEATURES.values(), FEATURES.lengths()
    weights = torch.arange(1.0, 1 + len(FEATURES.values()))
    weighed = with_ids(FEATURES, rows[0], lengths=rows[1], weights=weights)
    at_once = TransformedFeatures(weighed)
    at_once.apply(RowWise(Weighing(times)), FEATURES.keys())
    for found in (at_once.whole, Weighing(times)(weighed)):
        assert to_lists(found) == to_lists(FEATURES)
        if times:
            assert torch.equal(found.weights(), 3 * weights)
        else:
            assert found.weights_or_none() is None


class Uncut(FirstX):
    """Cuts rows of ids, and leaves their weights as they are."""

    def of_rows(self, ids: Tensor, lengths: Tensor, weights: Tensor | None) -> InRows:
        return *super().of_rows(ids, lengths, weights)[:2], weights

    def forward(self, features: KeyedJaggedTensor) -> KeyedJaggedTensor:
        rows = features.values(), features.lengths(), features.weights_or_none()
        ids, lengths, weights = self.of_rows(*rows)
        return with_ids(features, ids, lengths=lengths, weights=weights)


def test_weights_are_as_many_as_ids():
    weights = torch.arange(1.0, 1 + len(FEATURES.values()))
    weighed = with_ids(FEATURES, FEATURES.values(), lengths=FEATURES.lengths(), weights=weights)
    says = r"Uncut made 8 weights of 6 ids\. Give each id its own"
    with pytest.raises(PluginError, match=says):
        RowWise(Uncut(1))(weighed)
    with pytest.raises(PluginError, match=says):
        TransformedFeatures(weighed).apply(RowWise(Uncut(1)), FEATURES.keys())


class NoneOdd(SigridHash):
    """Written before there was `of_rows`: a `forward` around that of a built-in transform."""

    def forward(self, features: KeyedJaggedTensor) -> KeyedJaggedTensor:
        hashed = super().forward(features)
        return with_ids(hashed, hashed.values() // 2 * 2)


def test_a_forward_of_ones_own_is_not_passed_by():
    step, features = NoneOdd(31), TransformedFeatures(FEATURES)
    features.apply(RowWise(step), FEATURES.keys())
    assert to_lists(features.whole) == to_lists(step(FEATURES))
    assert to_lists(features.whole) != to_lists(SigridHash(31)(FEATURES))


class Doubled(CountAmongOthers):
    """Has a call of its own around that which adds a feature."""

    def __call__(self, features: KeyedJaggedTensor) -> KeyedJaggedTensor:
        counted = super().__call__(features)
        return with_ids(counted, 2 * counted.values())


def test_a_call_of_ones_own_is_not_passed_by_where_a_feature_is_added():
    expected = {**to_lists(FEATURES), "b": [[8]] * 3, "count": [[2]] * 3}
    for features in (FEATURES, InverseKeyedJaggedTensor.from_kjt(FEATURES, [["a", "b"]])):
        at_once = TransformedFeatures(features)
        at_once.apply(RowWise(Doubled(), lambda keys: [*keys, "count"]), ["b"])
        found = at_once.whole
        kjt = found if isinstance(found, KeyedJaggedTensor) else found.to_kjt()
        assert to_lists(kjt) == expected


def renamed(features: KeyedJaggedTensor) -> KeyedJaggedTensor:
    return from_lists({key + "!": rows for key, rows in to_lists(features).items()})


def shorter(features: KeyedJaggedTensor) -> KeyedJaggedTensor:
    return from_lists({key: rows[1:] for key, rows in to_lists(features).items()})


@pytest.mark.parametrize(
    ("transform", "message"),
    [
        (renamed, r"renamed made the keys \['a!', 'b!'\] of \['a', 'b'\]. Keep them"),
        (shorter, r"shorter made 1 row of 2. Keep one row for each"),
        (to_lists, "to_lists made a dict of a KeyedJaggedTensor"),
    ],
)
def test_results_that_are_none(transform, message):
    with pytest.raises(PluginError, match=message):
        RowWise(transform)(InverseKeyedJaggedTensor.from_kjt(FEATURES))


def test_a_transform_with_a_schema_is_to_name_its_keys_there():
    """`changes_keys` is for transforms that have none."""
    says = r"Keep them and their order, or let its `schema` name those that come out, as"
    with pytest.raises(PluginError, match=says):
        RowWise(renamed, who="registry.yaml:6: preprocess 'q'")(FEATURES)
    with pytest.raises(PluginError, match="or let the transform say `changes_keys = True`"):
        RowWise(renamed)(FEATURES)


def of_other(ids=lambda ids: ids, weights=None):
    """What makes a KJT of the same lengths."""

    def transform(features):
        made = ids(features.values())
        return KeyedJaggedTensor(
            features.keys(), made, lengths=features.lengths(), weights=weights and weights(made)
        )

    return transform


@pytest.mark.parametrize(
    ("transform", "message"),
    [
        (of_other(lambda ids: ids[:-2]), "made 7 ids, and lengths that add up to 9. Give each row"),
        (of_other(lambda ids: torch.cat([ids, ids])), "made 18 ids, and lengths that add up to 9"),
        (of_other(torch.Tensor.float), r"made ids of torch\.float32, where they must be integers"),
        (
            of_other(weights=torch.ones_like),
            "made weights, but its `schema` has no",
        ),
    ],
)
def test_ids_that_do_not_fill_their_rows_are_told_of_the_record(transform, message):
    plain = from_lists({"a": [[1, 2], [], [3]], "b": [[4], [5, 6, 7], [8, 9]]})
    wrapped = RowWise(transform, name="q", who="registry.yaml:6: preprocess 'q'", weighs=False)
    with pytest.raises(PluginError, match=f"^registry.yaml:6: preprocess 'q' {message}"):
        wrapped(plain)
