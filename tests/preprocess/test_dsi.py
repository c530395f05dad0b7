"""Rung 1 and 2 (values, properties): the transforms of recd_dsi against plain Python, on all
samples and on unique ones, of ids and of dense columns."""

from __future__ import annotations

import dataclasses
import math
import pickle
import zipfile
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from drawn import at_most
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torchrec.modules.embedding_configs import EmbeddingBagConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

import recd_plugins as rp
from benchmarks.dsi.plain import PLAIN, PLAIN_DENSE, compute_score, float32
from recd_dsi import recd_preprocess
from recd_dsi.transforms import Bucketize, ComputeScore, GetLocalHour, MapId, Sampling, export
from recd_dsi.transforms.mixing import fold, fold_by_torch
from recd_dsi.transforms.new_features import (
    Cartesian,
    CartesianConfig,
    NGram,
    NGramConfig,
    Rows,
    in_rows,
    in_rows_by_torch,
)
from recd_plugins.config import parse
from recd_plugins.data.preprocess.batch_transform import BatchTransform, batch_steps
from recd_plugins.data.preprocess.steps import ChosenTransform, steps_of
from recd_plugins.data.schema import Schema, SparseFeature, Vector
from recd_plugins.errors import CapabilityError, PluginError, RecdError, RegistryError
from recd_plugins.notices import NoticeWarning
from recd_plugins.slots import Context
from recd_plugins.sparse.ikjt import InverseKeyedJaggedTensor
from recd_plugins.sparse.row_wise import RowWise
from recd_plugins.stack.looked_up import compare_features
from recd_plugins.testing.batches import from_lists, random_batch, to_lists
from recd_plugins.testing.conformance import check_record

RECORDS = {record.name: record for record in recd_preprocess()}
INT64 = torch.iinfo(torch.int64)
ANY = st.integers(INT64.min, INT64.max) | st.sampled_from([INT64.min, -1, 0, 1, INT64.max])
FEW = st.integers(0, 5)
SECONDS = st.integers(0, 4_102_444_799)  # 2099-12-31
MANY = {id_: id_ % 7 for id_ in range(-3, 40)}

IDS: dict[str, tuple[dict[str, Any], Any]] = {
    "sigrid_hash": ({"modulo": 2**40 + 1, "salt": 3}, ANY),
    "positive_modulus": ({"modulo": 97}, ANY),
    "clamp": ({"low": 3, "high": 60}, ANY),
    "map_id": ({"ids": {5: 1, 2**40: 7, -1: 3}, "other": 4}, ANY | st.sampled_from([5, 2**40])),
    "get_local_hour": ({"zone": "America/New_York"}, SECONDS),
    "first_x": ({"n": 2}, ANY),
    "sampling": ({"share": 0.4, "salt": 1}, ANY),
}
NEW: dict[str, dict[str, Any]] = {
    "n_gram": {"of": ["a"], "n": 2, "modulo": 1000, "salt": 5},
    "cartesian": {"left": "a", "right": "b", "modulo": 1000},
    "intersection": {"left": "a", "right": "b"},
    "union": {"left": "a", "right": "b"},
    "enumerate": {"of": "a", "longest": 3},
}
DENSE: dict[str, dict[str, Any]] = {
    "bucketize": {"borders": [-1.5, 0.0, 0.1, 7.0]},
    "logit": {"eps": 0.01},
    "box_cox": {"lam": 0.3, "shift": 1.0},
    "onehot": {"n": 3},
    "clamp_dense": {"low": -1.0, "high": 0.5},
}
SCHEMA = Schema(
    session_id=None,
    timestamp=None,
    sparse=tuple(SparseFeature(name=name, num_ids=50) for name in "ab"),
)


def built(name: str, options: dict[str, Any]) -> Any:
    record = RECORDS[name]
    return record.build(parse(record.config, options, name), Context())


def rows(ids: Any, count: int) -> Any:
    return st.lists(st.lists(ids, max_size=6), min_size=count, max_size=count)


def weighted(features: KeyedJaggedTensor) -> KeyedJaggedTensor:
    """The weight of an id depends on the id, and on its place in its row."""
    lengths = features.lengths()
    begins = (lengths.cumsum(0) - lengths).repeat_interleave(lengths)
    places = torch.arange(features.values().numel()) - begins
    return KeyedJaggedTensor(
        keys=features.keys(),
        values=features.values(),
        lengths=lengths,
        weights=(features.values() % 5 + places / 8).float(),
    )


def test_every_transform_is_tried() -> None:
    assert RECORDS.keys() == {*IDS, *NEW, *DENSE, "compute_score", "exported"}
    assert {*IDS, *NEW} == PLAIN.keys()
    assert DENSE.keys() == PLAIN_DENSE.keys()


@pytest.mark.parametrize("name", sorted({*IDS, *NEW, *DENSE, "compute_score"}))
def test_it_keeps_the_contract(name: str) -> None:
    options = {
        **{key: given for key, (given, _) in IDS.items()},
        **DENSE,
        "compute_score": {"scale": 2.0, "power": 0.5},
        "n_gram": NEW["n_gram"] | {"of": ["seen", "history"], "into": "made"},
        "cartesian": NEW["cartesian"] | {"left": "item", "right": "history", "into": "made"},
        "intersection": {"left": "item", "right": "seen", "into": "made"},
        "union": {"left": "item", "right": "shop", "into": "made", "keep": False},
        "enumerate": {"of": "history", "longest": 3, "into": "made", "sequence": True},
    }
    check_record(RECORDS[name], options=options[name])


@pytest.mark.parametrize("name", sorted({*IDS, *NEW}))
@settings(max_examples=at_most(12))
@given(data=st.data())
def test_it_is_its_formula_on_all_samples_and_on_unique_ones(name: str, data: Any) -> None:
    options, ids = IDS.get(name) or (NEW[name] | {"into": "made"}, FEW | ANY)
    lists = {key: data.draw(rows(ids, 4)) for key in "ab"}
    taken = ["a", "b"] if "left" in options else ["a"]
    if "of" in options:
        given_lists = {"a": lists["a"]}
    else:
        given_lists = lists if "left" in options else {"a": lists["a"]}
    transform = built(name, options)
    asked = {
        key: value for key, value in options.items() if key not in {"of", "into", "left", "right"}
    }
    expected = PLAIN[name](*(lists[key] for key in taken), **asked)
    result = to_lists(transform(from_lists(given_lists)))
    assert result["made" if "into" in options else "a"] == expected

    spread = [0, 1, 2, 3, 2, 1, 0, 0]
    every = weighted(
        from_lists({key: [own[row] for row in spread] for key, own in given_lists.items()})
    )
    part = dataclasses.replace(SCHEMA, sparse=tuple(SCHEMA.feature(key) for key in given_lists))
    after = transform.schema(part).sparse_names
    makes = (lambda keys: after) if "into" in options else None
    on_unique = RowWise(transform, makes)(
        InverseKeyedJaggedTensor.from_kjt(every, [list(given_lists)])
    ).to_kjt()
    on_all = transform(every)
    assert to_lists(on_unique) == to_lists(on_all)
    assert torch.equal(on_unique.weights(), on_all.weights())


@settings(max_examples=at_most(20))
@given(data=st.data())
def test_each_way_to_compute_gives_the_same(data: Any) -> None:
    """What runs on CUDA, on the CPU; rows long enough for a table; ids in an array and hashed."""
    left, right = (data.draw(rows(FEW | ANY, 3)) for _ in range(2))
    right[1] += list(range(100))
    one, other = (
        Rows(
            torch.tensor([id_ for row in lists for id_ in row], dtype=torch.int64),
            torch.tensor([len(row) for row in lists]),
        )
        for lists in (left, right)
    )
    for pair in ((one, other), (other, one)):
        assert torch.equal(in_rows(*pair), in_rows_by_torch(*pair))
    pair = {"left": "a", "right": "b", "into": "c", "modulo": 13, "salt": 4}
    cartesian = Cartesian(CartesianConfig(**pair))
    both = from_lists({"a": left, "b": right})
    assert torch.equal(cartesian.made(both).ids, cartesian._by_torch(one, other))
    grams = NGram(NGramConfig(of=("b",), n=3, into="c", modulo=13))
    found = grams.made(both)
    assert torch.equal(found.ids, grams._by_torch(other, found.lengths))
    for modulo in (0, 13):
        columns = [other.ids, other.ids.flip(0)]
        assert torch.equal(fold(columns, 7, modulo), fold_by_torch(columns, 7, modulo))
    for transform in (
        MapId({3: 1, 0: 9}),
        MapId(MANY, 5),
        MapId({2**50 + n: n for n in range(50)}),
    ):
        made = transform(from_lists({"a": left})).values()
        assert torch.equal(made, transform.by_search(one.ids))
    drawn = Sampling(0.4, 2)
    assert torch.equal(drawn._drawn(one.ids, one.lengths), drawn.by_torch(one.ids, one.lengths))
    for unit in ("s", "ms"):
        hours = GetLocalHour("Australia/Lord_Howe", unit)
        times = one.ids % 2**31
        features = from_lists({"a": [times.tolist()]})
        assert torch.equal(hours(features).values(), hours.by_search(times))


@settings(max_examples=at_most(25))
@given(st.lists(SECONDS, min_size=1, max_size=20))
def test_hours_are_those_of_the_zone_to_the_second(times: list[int]) -> None:
    for zone in ("Europe/Berlin", "Asia/Kolkata", "Africa/Monrovia"):
        transform = GetLocalHour(zone)
        edges = [t for at in transform._changes.tolist()[-20:] for t in (at - 1, at)]
        every = [times + edges + [0]]
        assert to_lists(transform(from_lists({"a": every})))["a"] == PLAIN["get_local_hour"](
            every, zone
        )


def test_scores_are_weights_made_over() -> None:
    features = weighted(from_lists({"a": [[1, 2], [], [3]]}))
    made = ComputeScore(scale=2.0, offset=1.0)(features)
    weights = features.weights().tolist()
    assert made.weights().tolist() == compute_score([weights], 2.0, 1.0)[0]
    roots = ComputeScore(power=0.5)(features)
    assert torch.equal(roots.weights(), features.weights().sqrt())
    assert ComputeScore(offset=1.0)(from_lists({"a": [[1]]})).weights().tolist() == [2.0]
    assert ComputeScore().schema(SCHEMA).feature("a").scored


FLOATS = st.floats(-100, 100, width=32)


@pytest.mark.parametrize("name", sorted(DENSE))
@settings(max_examples=at_most(20))
@given(columns=st.lists(st.tuples(FLOATS, FLOATS | st.sampled_from([0.0, 1.0, 2.0])), min_size=1))
def test_a_dense_one_is_its_formula(name: str, columns: list[tuple[float, float]]) -> None:
    schema = Schema(session_id=None, timestamp=None, dense=("x", "y"))
    options = DENSE[name]
    given_floats = torch.tensor(columns)
    made = built(name, options)(given_floats, schema)
    expected = [
        PLAIN_DENSE[name](
            column,
            **(
                options
                if name != "bucketize"
                else {"borders": [float32(b) for b in options["borders"]]}
            ),
        )
        for column in given_floats.t().tolist()
    ]
    if name == "bucketize":
        assert torch.equal(made[0], given_floats)
        found = to_lists(made[1])
        assert found == {
            f"{key}_bucket": [[id_] for id_ in ids] for key, ids in zip("xy", expected, strict=True)
        }
        return
    wanted = np.concatenate([np.array(one).reshape(len(columns), -1) for one in expected], axis=1)
    # Both round float64 to float32: one unit in the last place at most, where log differs.
    near = np.abs(made.numpy() - wanted) <= np.spacing(np.abs(wanted).astype(np.float32))
    assert near.all()


def transform_of(schema: Schema, *chosen: tuple[str, dict[str, Any], tuple[str, ...]]) -> Any:
    transforms = [
        ChosenTransform(
            who=f"preprocess {name!r}", where="", features=features, transform=built(name, options)
        )
        for name, options, features in chosen
    ]
    steps = steps_of(transforms, schema)
    return BatchTransform(batch_steps(steps)), steps[-1].after()


def test_dense_columns_go_on_in_their_places() -> None:
    """A vector between two columns; one in place, one beside, one gone, one to a feature."""
    schema = Schema(
        session_id=None,
        timestamp=None,
        dense=("x", "v", "y"),
        vectors=(Vector(name="v", width=2),),
        sparse=(SparseFeature(name="item", num_ids=9, scored=True),),
    )
    batch = random_batch(schema, 5, seed=0)
    x, v, y = batch.dense[:, :1], batch.dense[:, 1:3], batch.dense[:, 3:]
    transform, after = transform_of(
        schema,
        ("clamp_dense", {"low": 0.0}, ("x", "y")),
        ("clamp_dense", {"high": 0.5, "suffix": "_low"}, ("v",)),
        ("bucketize", {"borders": [0.0, 1.0], "keep": False}, ("y", "v")),
        ("positive_modulus", {"modulo": 2}, ("y_bucket",)),
    )
    assert after.dense == ("x", "v_low")
    assert after.dense_width == 3
    assert after.sparse_names == ("item", "v_bucket", "y_bucket")
    done = transform(batch)
    assert torch.equal(done.dense, torch.cat((x.clamp(min=0), v.clamp(max=0.5)), dim=1))
    lists = to_lists(done.features)
    assert lists["v_bucket"] == torch.bucketize(v.contiguous(), torch.tensor([0.0, 1.0])).tolist()
    assert lists["y_bucket"] == [
        [0 if number <= 0 else 1 if number <= 1 else 0] for number in y.flatten().tolist()
    ]
    assert lists["item"] == to_lists(batch.features)["item"]
    assert done.features["item"].weights().tolist() == batch.features.weights().tolist()
    assert set(done.features["v_bucket"].weights().tolist()) == {1.0}
    assert batch.dense.shape[1] == 4


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        (("onehot", {"n": 2}, ("item",)), "no dense column matches 'item'; Known: x"),
        (("clamp", {"high": 2}, ("x",)), r"no feature matches 'x'"),
        (("intersection", {"left": "item", "right": "itme", "into": "i"}, ("*",)), "'itme'"),
        (
            ("enumerate", {"of": "item", "longest": 2, "into": "i"}, ("item",)),
            "Take `features` out",
        ),
        (
            ("enumerate", {"of": "item", "longest": 2, "into": "x"}, ("*",)),
            "makes a feature 'x' beside",
        ),
        (("bucketize", {"borders": [1.0], "suffix": ""}, ("x",)), "named twice|beside"),
    ],
)
def test_what_the_schema_does_not_have_is_named(chosen: Any, message: str) -> None:
    schema = Schema(
        session_id=None,
        timestamp=None,
        dense=("x",),
        sparse=(SparseFeature(name="item", num_ids=9),),
    )
    with pytest.raises(RecdError, match=message):
        transform_of(schema, chosen)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("bucketize", {"borders": [1.0, 1.0]}, "ascend as float32"),
        ("bucketize", {"borders": [1.0, 1.0 + 1e-12]}, "ascend as float32"),
        ("clamp_dense", {}, "needs `low`, `high` or both"),
        ("clamp_dense", {"low": -1e39}, r"low: must be >= -3.40282e\+38 and <= 3.40282e\+38"),
        ("clamp_dense", {"high": 1e308}, r"high: must be >= -3.40282e\+38 and <= 3.40282e\+38"),
        ("n_gram", {"of": ["a"], "into": " ", "modulo": 2}, "into: is empty, but must be a name"),
        ("map_id", {}, "needs either `ids` or `file`"),
        ("map_id", {"ids": {1: -1}}, "id 1 cannot become -1"),
        ("map_id", {"ids": {2**63: 1}}, r"ids: no id is 9223372036854775808: ids are integers of"),
        ("get_local_hour", {"zone": "Europe/Berln"}, "no time zone 'Europe/Berln'"),
        ("n_gram", {"of": [], "into": "m", "modulo": 2}, "at least one feature"),
        ("cartesian", {"left": "a", "right": "a", "into": "m", "modulo": 2}, "another feature"),
    ],
)
def test_options_that_cannot_be(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(RegistryError, match=message):
        built(name, options)


def test_a_map_comes_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "map.parquet"
    pq.write_table(pa.table({"id": [4, 9], "becomes": [1, 2]}), file)
    assert built("map_id", {"file": str(file), "other": 3})(
        from_lists({"a": [[9, 4, 5]]})
    ).values().tolist() == [2, 1, 3]
    pq.write_table(pa.table({"id": [4, 4], "becomes": [1, 2]}), file)
    with pytest.raises(RegistryError, match=r"names an id twice, or has nulls\. Have each row"):
        built("map_id", {"file": str(file)})
    pq.write_table(pa.table({"id": [4], "becomes": [1]}).slice(0, 0), file)
    with pytest.raises(
        RegistryError, match=r"file: .*map\.parquet has no row, where each names an"
    ):
        built("map_id", {"file": str(file)})


def test_own_batches_have_no_dense_columns() -> None:
    stack = rp.load({"plugins": ["recd_dsi"], "preprocess": [{"use": "logit"}]})
    with pytest.raises(CapabilityError, match=r"'logit' of .* takes dense columns, but `stack"):
        stack.convert(from_lists({"a": [[1]]}))


def test_recd_dedup_brings_the_transforms_that_it_had() -> None:
    for plugins in (["recd_dedup"], ["recd_dedup", "recd_dsi"], ["recd_dsi"]):
        stack = rp.load({"plugins": plugins, "preprocess": [{"use": "first_x", "n": 1}]})
        assert to_lists(stack.convert(from_lists({"a": [[4, 5]]}))) == {"a": [[4]]}


class Squares(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("by", torch.tensor([3]))

    def forward(
        self, ids: torch.Tensor, lengths: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return (ids * ids + self.by) % 11, lengths


@pytest.mark.slow
def test_a_module_of_ones_own_is_an_exported_program(tmp_path: Path) -> None:
    file = tmp_path / "squares.pt2"
    export(Squares(), file)
    options = {"file": str(file), "num_ids": 11}
    check_record(RECORDS["exported"], options=options)
    transform = pickle.loads(pickle.dumps(built("exported", options)))
    features = weighted(from_lists({"a": [[5, 6], [], [7]]}))
    made = transform(features)
    assert made.values().tolist() == [6, 6, 8]
    assert torch.equal(made.weights(), features.weights())
    with pytest.raises(RecdError, match="made ids from 6 to 8, but num_ids is 7"):
        built("exported", options | {"num_ids": 7})(features)
    with pytest.raises(RegistryError, match=r"has another one, .*Take the file that was chosen"):
        built("exported", options | {"sha256": "0"})
    with zipfile.ZipFile(file, "a") as archive:
        archive.writestr("archive/data/constants/custom_obj_0", pickle.dumps({}))
    with pytest.raises(RegistryError, match="could run any code"):
        built("exported", options)
    (tmp_path / "text.pt2").write_text("no")
    with pytest.raises(RegistryError, match=r"is no program .*transforms\.export wrote"):
        built("exported", options | {"file": str(tmp_path / "text.pt2")})


def test_a_dense_transform_that_makes_something_else_is_named() -> None:
    class Odd:
        dense = True
        takes: Any = ("x",)

        def __call__(self, columns: torch.Tensor, schema: Schema) -> Any:
            return columns.double()

        def schema(self, schema: Schema) -> Schema:
            return schema

    schema = Schema(session_id=None, timestamp=None, dense=("x",), sparse=SCHEMA.sparse)
    chosen = ChosenTransform(who="preprocess 'odd'", where="", features=("*",), transform=Odd())
    transform = BatchTransform(batch_steps(steps_of([chosen], schema)))
    wrong = r"'odd' made a tensor \[2, 1\] torch.float64, but its .*Let it return what"
    with pytest.raises(PluginError, match=wrong):
        transform(random_batch(schema, 2, seed=0))
    Odd.takes = "x"
    with pytest.raises(PluginError, match=r"'odd': its `takes` is a text, .* `takes = \(\"x\",\)`"):
        steps_of([chosen], schema)


FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False)


@settings(max_examples=at_most(100))
@given(
    borders=st.one_of(
        st.lists(FLOATS, min_size=1, max_size=40),
        st.lists(st.floats(1, 1.0000500679016113, width=32), min_size=1, max_size=40),
    ),
    numbers=st.lists(st.floats(width=32), max_size=20),
)
def test_buckets_are_those_of_torch(borders: list[float], numbers: list[float]) -> None:
    """At each border, next to it, and of what is not finite."""
    ends = torch.unique(torch.tensor(borders) + 0.0)  # no -0.0 beside 0.0
    infinite = torch.tensor(math.inf)
    beside = [torch.nextafter(ends, sign * infinite) for sign in (1, -1)]
    floats = torch.cat([torch.tensor(numbers), ends, *beside, infinite[None], -infinite[None]])
    bucketize = Bucketize(tuple(ends.tolist()))
    found = bucketize.buckets(floats[:, None], ends)
    assert torch.equal(found, torch.bucketize(floats[:, None], ends))


def test_buckets_are_those_of_torch_where_borders_crowd_or_are_beyond_float32() -> None:
    """Cells of the grid with one border, with twenty, and none between infinite borders."""
    nan, inf = math.nan, math.inf
    for borders in [
        (-1e6, *map(float, range(1, 41))),
        (*map(float, range(1, 41)), 1e6),
        (-1e39, 0.0, 1.0),
        (-1e39, 0.0, 1.0, 1e39),
        (-1e39, 2.0),
        (1e39,),
    ]:
        parse(RECORDS["bucketize"].config, {"borders": list(borders)}, "bucketize")
        bucketize = Bucketize(borders)
        numbers = torch.tensor([nan, -inf, -1e38, -1.0, 0.0, 0.5, 1.0, 2.0, 39.5, 50.0, 1e38, inf])
        found = bucketize.buckets(numbers[:, None], bucketize.borders)
        assert torch.equal(found, torch.bucketize(numbers[:, None], bucketize.borders))


@pytest.mark.parametrize("power", [0.0, 0.5, 1.0, 2.0])
def test_a_weight_of_zero_has_no_sign(power: float) -> None:
    weights = [0.0, -0.0, 4.0, -4.0]
    features = from_lists({"a": [[1, 2, 3, 4]]})
    features = KeyedJaggedTensor(
        ["a"], features.values(), torch.tensor(weights), lengths=features.lengths()
    )
    made = ComputeScore(scale=3.0, power=power, offset=1.0)(features).weights().tolist()
    assert made == [1.0, 1.0, 3 * 4.0**power + 1, -3 * 4.0**power + 1]


def test_a_column_of_the_name_of_weights_that_are_made() -> None:
    """Keys of a trainer's own batches are no columns: its weights of `a` go by no name."""
    scores = {"use": "compute_score", "features": ["a"], "scale": 2.0}
    own = from_lists({"a": [[1], [2]], "a_weights": [[3], []]})
    for features in (["a"], ["a", "a_weights"]):
        chain = [{**scores, "features": features}]
        made = rp.load({"plugins": ["recd_dsi"], "preprocess": chain}).convert(own)
        assert to_lists(made) == to_lists(own)
        assert made["a"].weights().tolist() == [2.0, 2.0]
    table = Schema(
        session_id=None,
        timestamp=None,
        sparse=tuple(SparseFeature(name=name, num_ids=9) for name in ("a", "a_weights")),
    )
    says = (
        r"preprocess 'compute_score'.*: column 'a_weights' is named twice: it is also the name "
        r"of the weights of 'a', which is scored\. Give the other column another name\."
    )
    for features in (("a",), ("a", "a_weights")):
        with pytest.raises(RecdError, match=says):
            transform_of(table, ("compute_score", {}, features))


@pytest.mark.parametrize(
    "step", [{"use": "first_x", "n": 1}, {"use": "union", "left": "a", "right": "b", "into": "c"}]
)
def test_weights_that_learn_get_their_gradients(step: dict[str, Any]) -> None:
    lists = from_lists({"a": [[1, 2], [3]], "b": [[2], []]})
    weights = torch.ones(4, requires_grad=True)
    own = KeyedJaggedTensor(lists.keys(), lists.values(), weights, lengths=lists.lengths())
    made = rp.load({"plugins": ["recd_dsi"], "preprocess": [step]}).convert(own)
    made.weights().sum().backward()
    assert weights.grad is not None
    assert weights.grad.sum() == len(made.values())


def test_weights_that_no_collection_takes_are_told() -> None:
    def bags(name: str, *, weighted: bool) -> nn.Module:
        table = EmbeddingBagConfig(
            name=f"table of {name}", num_embeddings=9, embedding_dim=4, feature_names=[name]
        )
        return EmbeddingBagCollection(tables=[table], is_weighted=weighted)

    chain = [{"use": "first_x", "n": 2}, {"use": "compute_score", "features": ["a", "b"]}]
    stack = rp.load({"plugins": ["recd_dsi"], "preprocess": chain})
    compared = partial(
        compare_features,
        registry=stack.registry,
        steps=stack._features,
        usage=stack._usage,
        own=True,
    )
    weighted = [bags("a", weighted=True), bags("b", weighted=True)]
    compared(nn.ModuleList(weighted))  # a warning would fail the test
    says = r"^preprocess\[1\]: compute_score is not needed: the ids of feature b get weights by it"
    with pytest.warns(NoticeWarning, match=says):
        compared(nn.ModuleList([weighted[0], bags("b", weighted=False)]))


CHAINS: list[list[dict[str, Any]]] = [
    [{"use": "sigrid_hash", "modulo": 31}, {"use": "first_x", "n": 1}],
    [{"use": "sampling", "share": 0.5}, {"use": "compute_score", "features": "a"}],
    [{"use": "clamp", "high": 3, "features": "b"}],
    [{"use": "n_gram", "of": ["a"], "n": 1, "modulo": 31, "into": "c"}, {"use": "first_x", "n": 1}],
    [{"use": "cartesian", "left": "a", "right": "b", "modulo": 31, "into": "c", "keep": False}],
    [{"use": "union", "left": "b", "right": "a", "into": "c"}, {"use": "sampling", "share": 0.5}],
    [{"use": "intersection", "left": "a", "right": "b", "into": "c"}],
    [{"use": "enumerate", "of": "b", "longest": 2, "into": "c"}],
]


@pytest.mark.parametrize("chain", CHAINS, ids=lambda chain: chain[0]["use"])
def test_the_type_of_ids_is_the_same_whether_or_not_there_are_some(chain: Any) -> None:
    """Ranks exchange ids by their bytes, and one of them may have a batch of empty lists alone."""
    stack = rp.load({"plugins": ["recd_dsi"], "preprocess": chain})
    kinds = set()
    for a in ([[1, 2], [3]], [[], []]):
        for b in ([[2], [3]], [[], []]):
            lists = from_lists({"a": a, "b": b, "other": [[1], [2]]})
            narrow = KeyedJaggedTensor(lists.keys(), lists.values().int(), lengths=lists.lengths())
            made = stack.convert(narrow)
            kinds.add((made.values().dtype, made.lengths().dtype))
    assert len(kinds) == 1


@pytest.mark.parametrize("chain", CHAINS, ids=lambda chain: chain[0]["use"])
@pytest.mark.parametrize("dedup", ["none", "exact", "partial"])
def test_lengths_of_keys_by_samples_are_taken_as_torchrec_takes_them(
    chain: Any, dedup: str
) -> None:
    registry: dict[str, Any] = {"plugins": ["recd_dedup", "recd_dsi"], "preprocess": chain}
    if dedup != "none":
        registry["dedup"] = {"use": dedup, "groups": [["a", "b"]]}
    stack = rp.load(registry)
    flat = from_lists({"a": [[1, 2], [1, 2], [5]], "b": [[2, 2], [2, 2], []]})
    by_key = KeyedJaggedTensor(
        flat.keys(), flat.values(), lengths=flat.lengths().view(2, 3), stride=3
    )
    found, expected = (stack.convert(one) for one in (by_key, flat))
    assert to_lists(found) == to_lists(expected)
    assert torch.equal(found.lengths(), expected.lengths())


@pytest.mark.parametrize("dedup", ["exact", "partial"])
def test_places_in_the_rows_of_the_first_of_several_groups(dedup: str) -> None:
    """Their lengths are those of the samples, in the same memory."""
    chain = [{"use": "enumerate", "of": "a", "longest": 9, "into": "c", "keep": False}]
    groups = [["a"], ["b"]]
    registry = {"plugins": ["recd_dedup", "recd_dsi"], "preprocess": chain}
    stack = rp.load({**registry, "dedup": {"use": dedup, "groups": groups}})
    features = from_lists({"a": [[7, 8], [9], [9]], "b": [[4], [], [5, 6]]})
    long = KeyedJaggedTensor(features.keys(), features.values(), lengths=features.lengths().long())
    assert to_lists(stack.convert(long)) == {"c": [[0, 1], [0], [0]], "b": [[4], [], [5, 6]]}


@pytest.mark.parametrize("dedup", [{}, {"dedup": {"use": "exact", "groups": [["a", "b"]]}}])
def test_a_compiled_function_may_convert(dedup: dict[str, Any]) -> None:
    chain = [
        {"use": "sigrid_hash", "modulo": 31},
        {"use": "union", "left": "a", "right": "b", "into": "c"},
    ]
    convert = rp.load({"plugins": ["recd_dedup", "recd_dsi"], "preprocess": chain, **dedup}).convert
    features = from_lists({"a": [[1, 2], [1, 2]], "b": [[2], [2]]})

    def total(features: KeyedJaggedTensor, scale: torch.Tensor) -> torch.Tensor:
        return (scale * convert(features).values()).sum()

    compiled = torch.compile(total, backend="eager")
    scale = torch.tensor(3)
    assert torch.equal(compiled(features, scale), total(features, scale))
