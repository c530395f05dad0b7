"""Rung 1 and 2 (values, a loader's workers): a trainer's own batches, converted."""

from __future__ import annotations

import inspect
import pickle
import random
from collections import UserDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils.data import DataLoader, Dataset
from torch.utils.data._utils.pin_memory import pin_memory
from torchdata.stateful_dataloader import StatefulDataLoader
from torchrec.datasets.random import RandomRecDataset
from torchrec.datasets.utils import Batch as RecBatch
from torchrec.modules.embedding_configs import EmbeddingBagConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from torchrec.modules.feature_processor_ import PositionWeightedModuleCollection
from torchrec.modules.fp_embedding_modules import FeatureProcessedEmbeddingBagCollection
from torchrec.sparse.jagged_tensor import ComputeKJTToJTDict, KeyedJaggedTensor

import recd_plugins
from recd_plugins.errors import CapabilityError, DataError, PluginError, RegistryError
from recd_plugins.notices import NoticeWarning
from recd_plugins.sparse.features import SparseFeatures
from recd_plugins.sparse.own_batches import all_features_of, features_of, replaced, with_parts
from recd_plugins.testing.batches import from_lists, to_lists

GROUPS = [["history", "brands"], ["region"]]
LISTS = {
    "item": [[1], [2], [3], [4]],
    "history": [[5, 6], [5, 6], [], [5, 6]],
    "region": [[7], [8], [7], [8]],
    "brands": [[1], [1], [], [2]],
    "none": [[], [], [], []],
}


def stack_of(**slots: Any) -> recd_plugins.Stack:
    dedup = {"dedup": {"use": "exact", "groups": GROUPS, "validate": True}}
    return recd_plugins.load({"plugins": ["recd_dedup"], **dedup, **slots})


def looks_up(*keys: str) -> EmbeddingBagCollection:
    """A model, of the features of all batches here by default."""
    tables = [
        EmbeddingBagConfig(name=f"t_{key}", embedding_dim=4, num_embeddings=9, feature_names=[key])
        for key in keys or [*LISTS, "seen", "bought"]
    ]
    return EmbeddingBagCollection(tables=tables, device=torch.device("meta"))


def alike(one: KeyedJaggedTensor, other: KeyedJaggedTensor) -> bool:
    """To the bit, in one order of keys."""
    parts = [(kjt.values(), kjt.lengths(), kjt.weights_or_none()) for kjt in (one, other)]
    return one.keys() == other.keys() and all(
        a is b is None or (a.dtype == b.dtype and torch.equal(a, b))
        for a, b in zip(*parts, strict=True)
    )


def with_types(kjt: KeyedJaggedTensor, ids: torch.dtype, weighted: bool) -> KeyedJaggedTensor:
    values = kjt.values()
    return KeyedJaggedTensor(
        keys=kjt.keys(),
        values=values.to(ids),
        lengths=kjt.lengths().to(torch.int32),
        weights=values.float() / 2 if weighted else None,
    )


@pytest.mark.parametrize("ids", [torch.int32, torch.int64])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("size", [0, 1, 3, 4])
def test_what_is_converted_stands_for_the_kjt(ids: torch.dtype, weighted: bool, size: int) -> None:
    kjt = with_types(from_lists({k: rows[:size] for k, rows in LISTS.items()}), ids, weighted)
    made = stack_of().convert(kjt)
    assert isinstance(made, SparseFeatures)
    assert isinstance(made, KeyedJaggedTensor)  # a model may ask which branch to take
    assert made.plain.keys() == ["item", "none"]
    assert made.dedup is not None
    assert made.dedup.unique_counts == {0: (0, 0), 1: (1, 1), 3: (2, 2), 4: (3, 2)}[size]
    moved = made.to(torch.device("cpu"), non_blocking=True)
    leaves, how = pytree.tree_flatten(moved)
    for one in (made, moved, pickle.loads(pickle.dumps(made)), pytree.tree_unflatten(leaves, how)):
        assert alike(one.to_kjt(), kjt)
        assert (one.keys(), one.stride(), one.device()) == (kjt.keys(), size, kjt.device())
        assert torch.equal(one.values(), kjt.values())
        assert torch.equal(one.offsets(), kjt.offsets())
        assert one.length_per_key() == kjt.length_per_key()
        if size:  # TorchRec's own KJT without samples has no features by key
            assert torch.equal(one["region"].values(), kjt["region"].values())
            assert list(one.to_dict()) == kjt.keys()
        first, rest = one.split([2, 3])
        assert (first.keys(), rest.keys()) == (kjt.keys()[:2], kjt.keys()[2:])
    with pytest.raises(AttributeError, match="no attribute 'weight'"):
        _ = made.weight


def test_it_answers_all_that_a_kjt_answers() -> None:
    """What a model asks its KJT, by a method or a property, it may ask in its place: all but what
    makes another KJT, or sends it."""
    kjt = from_lists(LISTS)
    made = stack_of().convert(kjt)
    of_class = ("concat", "copy_", "dist_init", "empty", "empty_like", "from_jt_dict")
    of_class += ("from_lengths_sync", "from_offsets_sync", "clear_storage")
    public = [name for name in vars(KeyedJaggedTensor) if not name.startswith("_")]
    assert [name for name in public if not hasattr(made, name)] == sorted(
        {*public} & {*of_class}, key=public.index
    )
    assert made.sync() is made
    assert made.unsync() is made
    assert made.dist_labels() == kjt.dist_labels()
    assert made.stride_per_key_per_rank() == kjt.stride_per_key_per_rank()
    with pytest.raises(AttributeError, match=r"'concat'.*KeyedJaggedTensor: `.to_kjt\(\)` makes"):
        _ = made.concat


def test_torchrecs_functions_take_it_for_a_kjt() -> None:
    """They read what is a KJT's own."""
    kjt, other = from_lists(LISTS), from_lists({"more": [[1], [], [2, 3], [4]]})
    made = stack_of().convert(kjt)
    expected = KeyedJaggedTensor.concat([kjt, other])
    assert alike(KeyedJaggedTensor.concat([made, other]), expected)
    as_dicts = [ComputeKJTToJTDict()(one) for one in (made, kjt)]
    assert list(as_dicts[0]) == list(as_dicts[1]) == kjt.keys()
    for key, jagged in as_dicts[0].items():
        assert torch.equal(jagged.values(), as_dicts[1][key].values())
    weigh = PositionWeightedModuleCollection({"history": 4}, torch.device("cpu"))
    assert alike(weigh(made), weigh(kjt))


@pytest.mark.parametrize("use", ["exact", "partial"])
def test_lengths_may_have_a_row_for_each_key(use: str) -> None:
    kjt = from_lists(LISTS)
    by_key = KeyedJaggedTensor(
        keys=kjt.keys(), values=kjt.values(), lengths=kjt.lengths().view(len(kjt.keys()), -1)
    )
    made = stack_of(dedup={"use": use, "groups": [["region"]]}).convert(by_key)
    assert alike(made.to_kjt(), kjt)


def test_a_key_that_comes_twice_is_refused() -> None:
    twice = KeyedJaggedTensor(
        keys=["region", "item", "region"],
        values=torch.arange(6),
        lengths=torch.ones(6, dtype=torch.int32),
    )
    convert = stack_of(dedup={"use": "exact", "groups": [["region"]]}).convert
    with pytest.raises(DataError, match=r"has the key 'region' 2 times.*take `dedup`"):
        convert(twice)
    assert stack_of(dedup=None).convert(twice) is twice
    assert stack_of(dedup="none").convert(twice) is twice


def test_the_next_look_is_at_what_it_was_made_of() -> None:
    convert = stack_of().convert
    made = convert(from_lists(LISTS))
    assert convert(made) is made
    kjt = from_lists(LISTS)
    assert stack_of(dedup=None).convert(kjt) is kjt
    assert stack_of(dedup="none").convert(kjt) is kjt


def test_what_cannot_be_converted_is_refused() -> None:
    convert = stack_of().convert
    ragged = KeyedJaggedTensor(
        keys=["a", "b"],
        values=torch.arange(3),
        lengths=torch.ones(3, dtype=torch.int32),
        stride_per_key_per_rank=[[1], [2]],
    )
    with pytest.raises(DataError, match="differ in batch size"):
        convert(ragged)
    with pytest.raises(DataError, match=r"was given a dict.*stack.converting"):
        convert({"features": from_lists(LISTS)})
    with pytest.raises(PluginError, match="'region', which does not exist; did you mean 'regio'"):
        convert(from_lists({"history": [[1]], "brands": [[1]], "regio": [[2]]}))
    with pytest.raises(RegistryError, match="'a' is named twice"):
        _ = stack_of(dedup={"use": "exact", "groups": [["a", "a"]]}).convert


def test_transforms_run_on_unique_samples() -> None:
    steps = [
        {"use": "first_x", "features": "history", "n": 1},
        {"use": "sigrid_hash", "features": ["item", "region", "history"], "modulo": 1000},
    ]
    kjt = from_lists(LISTS)
    made = stack_of(preprocess=steps).convert(kjt)
    plain = stack_of(dedup=None, preprocess=steps).convert(kjt)
    assert type(plain) is KeyedJaggedTensor
    assert alike(made.to_kjt(), plain)
    assert made.dedup.kjt.values().numel() < plain.values().numel()
    with pytest.raises(RegistryError, match="no feature matches 'histroy'"):
        stack_of(preprocess=[{"use": "first_x", "features": "histroy", "n": 1}]).convert(kjt)


def test_keys_come_in_one_order_whatever_is_deduplicated() -> None:
    """A model may cut its KJT by places: with features that are made of others, too."""
    steps = [
        {"use": "n_gram", "into": "pairs", "of": ["brands"], "n": 2, "modulo": 9, "keep": True},
        {"use": "union", "into": "both", "left": "history", "right": "brands"},
        {"use": "enumerate", "into": "places", "of": "item", "longest": 3},
    ]
    kjt = from_lists(LISTS)
    plain = stack_of(dedup=None, preprocess=steps).convert(kjt)
    for use in ("exact", "partial"):
        made = stack_of(dedup={"use": use, "groups": GROUPS}, preprocess=steps).convert(kjt)
        assert made.keys() == plain.keys()
        for ours, theirs in zip(made.split([2, 6]), plain.split([2, 6]), strict=True):
            assert alike(ours, theirs)


@pytest.mark.parametrize("use", ["exact", "partial"])
@pytest.mark.parametrize("weights", [torch.float16, torch.bfloat16, torch.int32])
def test_weights_of_other_types_come_as_they_are(use: str, weights: torch.dtype) -> None:
    kjt = from_lists(LISTS)
    kjt = KeyedJaggedTensor(
        keys=kjt.keys(),
        values=kjt.values(),
        lengths=kjt.lengths(),
        weights=torch.arange(len(kjt.values())).remainder(2).to(weights),
    )
    steps = [
        {"use": "first_x", "features": "history", "n": 1},
        {"use": "union", "into": "both", "left": "history", "right": "brands"},
    ]
    dedup = {"use": use, "groups": GROUPS, "validate": True}
    made, plain = (stack_of(dedup=d, preprocess=steps).convert(kjt) for d in (dedup, None))
    assert alike(made.to_kjt(), plain)
    assert plain.weights().dtype == weights
    assert alike(stack_of(dedup=dedup).convert(kjt).to_kjt(), kjt)


@pytest.mark.parametrize("use", ["exact", "partial"])
@pytest.mark.parametrize("ids", [torch.int16, torch.uint8])
def test_ids_of_small_types_are_taken_as_a_table_takes_them(use: str, ids: torch.dtype) -> None:
    kjt = from_lists(LISTS)
    small = KeyedJaggedTensor(kjt.keys(), kjt.values().to(ids), lengths=kjt.lengths())
    made = stack_of(dedup={"use": use, "groups": GROUPS}).convert(small)
    assert to_lists(made.to_kjt()) == to_lists(small)


class Pair(NamedTuple):
    features: Any
    labels: Tensor


@dataclass(frozen=True)
class Frozen:
    sparse: Any
    labels: Tensor


class Slots:
    __slots__ = ("kjt", "labels")

    def __init__(self, kjt: Any, labels: Tensor) -> None:
        self.kjt, self.labels = kjt, labels


KINDS: dict[str, Callable[[Any, Tensor], Any]] = {
    "kjt": lambda kjt, labels: kjt,
    "tuple": lambda kjt, labels: (kjt, labels),
    "list": lambda kjt, labels: [labels, kjt],
    "named tuple": Pair,
    "frozen dataclass": Frozen,
    "object": lambda kjt, labels: SimpleNamespace(ids=kjt, labels=labels),
    "slots": Slots,
    "mapping": lambda kjt, labels: {"x": {"kjt": kjt}, "labels": labels},
    "nested": lambda kjt, labels: Pair(Frozen((kjt, "v1"), labels), labels),
}


@pytest.mark.parametrize("kind", KINDS)
def test_batches_of_any_type(kind: str) -> None:
    kjt, labels = from_lists(LISTS), torch.arange(4)
    batch = KINDS[kind](kjt, labels)
    made = stack_of().converting()(batch)
    assert type(made) is (SparseFeatures if kind == "kjt" else type(batch))
    assert alike(features_of(made).to_kjt(), kjt)
    assert features_of(batch) is kjt  # it stays as it is: a dataset may yield it again
    again = replaced(made, features_of(made), kjt)
    assert features_of(again) is kjt
    if kind == "object":
        assert made.labels is labels


@dataclass
class Shifted:
    """Its labels count from 1, whatever it is made of."""

    kjt: Any
    labels: Tensor
    epoch: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self.labels = self.labels + 1

    @cached_property
    def items(self) -> Any:
        return self.kjt["item"]


class Counted(Pair):
    """Its labels count from 1, too."""

    __slots__ = ()

    def __new__(cls, features: Any, labels: Tensor) -> Counted:
        return super().__new__(cls, features, labels + 1)


def test_what_a_batch_does_to_its_parts_is_done_once() -> None:
    kjt = from_lists(LISTS)
    pair = Counted(kjt, torch.arange(4))
    assert stack_of().converting()(pair).labels is pair.labels
    batch = Shifted(kjt, torch.arange(4))
    batch.epoch = 7
    cached = batch.items
    made = stack_of().converting()(batch)
    assert isinstance(made.kjt, SparseFeatures)
    assert made.labels is batch.labels
    assert made.epoch == 7
    assert made.items is not cached
    some = with_parts(batch, {"kjt": kjt, "labels": batch.labels[:2]})
    assert some.labels.tolist() == [1, 2]


class Three(tuple[Any, ...]):
    """Takes its parts one by one, and has them as attributes too."""

    def __new__(cls, features: Any, labels: Tensor, day: str = "today") -> Three:
        made = super().__new__(cls, (labels, features, None))
        made.features, made.day = features, day
        return made

    features: Any
    day: str

    @cached_property
    def items(self) -> Any:
        return self.features["item"]


class Whole(UserDict[str, Any]):
    """Has a part as an attribute too."""

    def __init__(self, features: Any, labels: Tensor) -> None:
        super().__init__(labels=labels, features=features)
        self.features, self.day = features, "monday"


class Dated(Pair):
    """A named tuple with an attribute."""

    day = "today"


def test_tuples_and_mappings_keep_their_attributes_and_take_what_a_class_makes_them_of() -> None:
    """A tuple that takes its parts one by one was an error, and others lost what was set on them,
    or had it as it is by default, without a word."""
    kjt, labels = from_lists(LISTS), torch.arange(4)
    dated = Dated(kjt, labels)
    dated.day = "monday"
    for batch in (Three(kjt, labels, "monday"), Whole(kjt, labels), dated):
        cached = batch.items if isinstance(batch, Three) else None
        made = stack_of().converting()(batch)
        assert type(made) is type(batch)
        assert (made.day, batch.features) == ("monday", kjt)
        assert isinstance(made.features, SparseFeatures)
        assert made.features is features_of(made)
        if isinstance(batch, Three):
            assert made.items is not cached
    size = torch.Size([2, 3])
    assert type(with_parts(size, {0: 4, 1: 3})) is torch.Size


class Stored:
    """Whatever it is given lies in a store, which its attributes are read of."""

    def __init__(self, **parts: Any) -> None:
        self.__dict__["store"] = parts

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self.__dict__["store"][name]

    def __setattr__(self, name: str, value: Any) -> None:
        self.__dict__["store"][name] = value


class Sealed:
    """It cannot be written to once it is made."""

    def __init__(self, kjt: Any, labels: Tensor) -> None:
        self.__dict__.update(kjt=kjt, labels=labels)

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"{name} is sealed")


@pytest.mark.parametrize("kind", [Stored, Sealed])
def test_a_batch_is_converted_whatever_its_class_makes_of_assignments(kind: Any) -> None:
    kjt, labels = from_lists(LISTS), torch.arange(4)
    batch = kind(kjt=kjt, labels=labels)
    made = stack_of().converting()(batch)
    assert type(made) is kind
    assert isinstance(made.kjt, SparseFeatures)
    assert alike(made.kjt.to_kjt(), kjt)
    assert (made.labels, batch.kjt) == (labels, kjt)


@dataclass
class MakesItsOwn:
    """It is made of ids, and makes a KJT of them."""

    lists: dict[str, list[list[int]]]
    labels: Tensor
    kjt: Any = field(init=False)
    size: int = field(init=False)

    def __post_init__(self) -> None:
        self.kjt, self.size = from_lists(self.lists), len(self.labels)


def test_a_kjt_that_a_dataclass_makes_itself_is_converted() -> None:
    batch = MakesItsOwn(LISTS, torch.arange(4))
    made = stack_of().converting()(batch)
    assert isinstance(made.kjt, SparseFeatures)
    assert alike(made.kjt.to_kjt(), batch.kjt)
    assert (made.lists, made.labels, made.size) == (LISTS, batch.labels, 4)
    some = with_parts(batch, {"kjt": made.kjt, "labels": batch.labels[:2], "lists": LISTS})
    assert (some.kjt, some.size) == (made.kjt, 2)


def test_which_kjt_is_meant() -> None:
    kjt, other = from_lists(LISTS), from_lists({"item": [[1]]})
    two = (
        r"holds 2 KeyedJaggedTensors \(batch.features, batch.labels\), .* batch: batch.features\.$"
    )
    with pytest.raises(DataError, match=two):
        features_of(Pair(kjt, other))
    assert features_of(Pair(kjt, other), lambda batch: batch.features) is kjt
    assert features_of(Pair(kjt, other), lambda batch: [batch.labels, batch.features]) is other
    assert features_of(Pair(kjt, other), lambda batch: [batch.labels]) is other
    assert all_features_of(Pair(kjt, other), tuple) == (kjt, other)
    for wrong in ([], [kjt, None]):
        with pytest.raises(DataError, match="returns a list for a Pair"):
            all_features_of(Pair(kjt, other), lambda batch, wrong=wrong: wrong)
    with pytest.raises(DataError, match=r"a dict holds no KeyedJaggedTensor, .* batch.sparse_"):
        features_of({"labels": torch.zeros(1)})
    with pytest.raises(DataError, match="returns a Tensor for a Pair"):
        features_of(Pair(kjt, torch.zeros(1)), lambda batch: batch.labels)
    made = stack_of().converting(features=lambda batch: from_lists(LISTS))
    with pytest.raises(DataError, match=r"itself, so nothing can take its place.*collate"):
        made(Pair(kjt, torch.zeros(1)))


class Samples(Dataset[int]):
    def __len__(self) -> int:
        return 32

    def __getitem__(self, index: int) -> int:
        return index


def collate(samples: list[int]) -> Pair:
    kjt = from_lists({key: [rows[i % 4] for i in samples] for key, rows in LISTS.items()})
    return Pair(kjt, torch.tensor(samples))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_and_its_workers_convert(workers: int) -> None:
    stack = stack_of()
    options: dict[str, Any] = {"batch_size": 8, "num_workers": workers}
    plain = list(DataLoader(Samples(), collate_fn=collate, **options))
    loader = DataLoader(Samples(), collate_fn=stack.converting(collate), **options)
    outside = stack.converted(DataLoader(Samples(), collate_fn=collate, **options))
    assert len(outside) == 4
    assert outside.batch_size == 8
    for made, again, batch in zip(loader, outside, plain, strict=True):
        for one in (made, again):
            assert isinstance(one.features, SparseFeatures)
            assert alike(one.features.to_kjt(), batch.features)
            assert torch.equal(one.labels, batch.labels)


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")  # torchdata's own call
def test_a_converted_loader_has_the_state_of_its_loader() -> None:
    """Frameworks save the state of a loader that has one, which they see without asking it."""
    for kind, has_one in ((DataLoader, False), (StatefulDataLoader, True)):
        converted = stack_of().converted(kind(Samples(), collate_fn=collate, batch_size=8))
        for name in ("state_dict", "load_state_dict"):
            assert hasattr(converted, name) == has_one
            assert (inspect.getattr_static(converted, name, None) is not None) == has_one
    batches = iter(converted)
    first, state = next(batches), converted.state_dict()
    converted.load_state_dict(state)
    second = next(iter(converted))
    assert (first.labels.tolist(), second.labels[0].item()) == ([*range(8)], 8)


class Shuffled:
    """A loader that draws its order anew for each epoch that it is told of."""

    epoch = 0

    def __iter__(self) -> Iterator[Pair]:
        order = random.Random(self.epoch).sample(range(32), 32)
        return map(collate, [order[first : first + 8] for first in range(0, 32, 8)])


def test_what_a_converted_loader_is_given_is_its_loaders() -> None:
    loader = Shuffled()
    converted = stack_of().converted(loader)
    converted.epoch = 3
    assert loader.epoch == converted.epoch == 3
    expected = [batch.labels.tolist() for batch in loader]
    assert [batch.labels.tolist() for batch in converted] == expected
    del converted.epoch
    assert loader.epoch == 0


def test_what_a_worker_is_sent_is_small() -> None:
    """A copy of the converter, whatever the stack has seen: no table, no batch, no plan."""
    stack = stack_of(
        dedup={"use": "exact", "weigh": "bytes"}, preprocess=[{"use": "first_x", "n": 2}]
    )
    model = looks_up()
    stack.adapt(model, batches=[from_lists({k: rows * 2000 for k, rows in LISTS.items()})])
    sent = pickle.dumps(stack.converting(collate))
    assert len(sent) < 5_000
    assert alike(pickle.loads(sent)([0, 1]).features.to_kjt(), collate([0, 1]).features)


def test_torchrecs_own_dataset_yields_the_same_batches_again() -> None:
    keys = list(LISTS)
    dataset = RandomRecDataset(
        keys, batch_size=16, hash_size=3, ids_per_feature=2, num_dense=3, num_batches=4,
        num_generated_batches=2, manual_seed=0,
    )  # fmt: skip
    loader = DataLoader(dataset, batch_size=None, collate_fn=stack_of().converting())
    first, second, third, _ = list(loader)
    assert alike(first.sparse_features.to_kjt(), third.sparse_features.to_kjt())
    assert not alike(first.sparse_features.to_kjt(), second.sparse_features.to_kjt())
    assert isinstance(next(iter(dataset)).sparse_features, KeyedJaggedTensor)
    moved = first.to(torch.device("cpu"), non_blocking=True)
    assert alike(moved.sparse_features.to_kjt(), first.sparse_features.to_kjt())
    assert moved.sparse_features.dedup.unique_counts == first.sparse_features.dedup.unique_counts


def sessions(seed: int, weighted: bool = False) -> KeyedJaggedTensor:
    """Sixteen samples a session: two features stay within one, `item` does not."""
    draw = torch.Generator().manual_seed(seed)
    first = torch.randint(0, 10_000, (16, 4), generator=draw).repeat_interleave(16, 0)
    columns = {
        "seen": first,
        "item": torch.randint(0, 10_000, (256, 1), generator=draw),
        "bought": first + 1,
    }
    kjt = from_lists({key: rows.tolist() for key, rows in columns.items()})
    return with_types(kjt, torch.int64, True) if weighted else kjt


@pytest.mark.parametrize("weighted", [False, True])
def test_auto_looks_at_the_trainers_batches(weighted: bool) -> None:
    stack = stack_of(dedup={"use": "exact", "groups": "auto", "weigh": "bytes"})
    taken = []

    def loader() -> Iterator[Pair]:
        for seed in range(100):
            taken.append(seed)
            yield Pair(sessions(seed, weighted), torch.zeros(256))

    class Loader:
        __iter__ = staticmethod(loader)

    with pytest.raises(RegistryError, match=r"neither a dataset .* nor batches.*stack.adapt"):
        _ = stack.convert
    stack.adapt(looks_up(), batches=Loader(), features=lambda batch: batch.features)
    assert len(taken) == 8
    made = stack.convert(sessions(500, weighted))
    assert made.dedup.groups == (("seen", "bought"),)
    assert made.plain.keys() == ["item"]
    head, *reasons = stack.explain().splitlines()
    assert head == "dedup: 8 batches of 256 samples: 1 group"
    assert "  item: left as it is, factor 1.0" in "\n".join(reasons)
    with pytest.raises(CapabilityError, match="decided which features are deduplicated before"):
        stack.adapt(looks_up(), batches=Loader())


@pytest.mark.filterwarnings("ignore::recd_plugins.notices.NoticeWarning")  # nothing is left
@pytest.mark.parametrize(
    ("pairs", "groups"),
    [
        ([("seen", "bought")], (("seen", "bought", "made_0"),)),  # which are one group
        ([("seen", "item")], (("bought",),)),
        ([("seen", "bought"), ("made_0", "item")], ()),
    ],
)
def test_auto_takes_all_features_that_a_transform_joins_or_none(
    pairs: list[tuple[str, str]], groups: tuple[tuple[str, ...], ...]
) -> None:
    """A user's feature together with an item's is the same for no two samples."""
    steps = [
        {"use": "union", "left": left, "right": right, "into": f"made_{number}"}
        for number, (left, right) in enumerate(pairs)
    ]
    slots: dict[str, Any] = {"plugins": ["recd_dedup", "recd_dsi"], "preprocess": steps}
    stack = stack_of(dedup={"use": "exact", "groups": "auto", "weigh": "bytes"}, **slots)
    stack.adapt(looks_up("bought"), batches=[sessions(0), sessions(1)])
    assert stack.groups == groups
    joined = "item, so all of them would have to be one group"
    assert (joined in stack.explain_groups()) == (pairs[-1][1] == "item")
    made, plain = stack.convert(sessions(2)), stack_of(dedup=None, **slots).convert(sessions(2))
    assert to_lists(made.to_kjt() if groups else made) == to_lists(plain)


def test_auto_leaves_what_a_module_looks_up_that_takes_no_unique_samples() -> None:
    bags = EmbeddingBagCollection(
        tables=[
            EmbeddingBagConfig(
                name="t", embedding_dim=4, num_embeddings=20_000, feature_names=["seen"]
            )
        ],
        is_weighted=True,
    )
    processed = FeatureProcessedEmbeddingBagCollection(
        bags, PositionWeightedModuleCollection({"seen": 4})
    )
    model = torch.nn.ModuleDict({"bags": processed, "rest": looks_up("item", "bought")})
    stack = stack_of(dedup={"use": "exact", "groups": "auto", "weigh": "bytes"})
    stack.adapt(model, batches=[sessions(0), sessions(1)])
    assert stack.groups == (("bought",),)
    said = (
        "seen: left as it is, factor 16.00: the module of the model that looks it up takes no uniq"
    )
    assert said in stack.explain_groups()
    kjt = sessions(2)
    assert torch.equal(processed(stack.convert(kjt))["seen"], processed(kjt)["seen"])


class OneMemory:
    """A loader that writes each batch over the one before, as one with buffers of its own."""

    def __init__(self, batches: list[KeyedJaggedTensor]) -> None:
        self._batches = batches
        first = batches[0]
        self._values, self._lengths = first.values().clone(), first.lengths().clone()

    def __iter__(self) -> Iterator[KeyedJaggedTensor]:
        for batch in self._batches:
            self._values.copy_(batch.values())
            self._lengths.copy_(batch.lengths())
            yield KeyedJaggedTensor(batch.keys(), self._values, lengths=self._lengths)


def test_auto_sees_each_batch_of_a_loader_that_writes_them_over_each_other() -> None:
    batches = [sessions(seed) for seed in range(7)]
    alone = torch.arange(256 * 9) % 10_000  # the last batch has no two samples alike
    lengths = sessions(0).lengths()
    batches.append(KeyedJaggedTensor(sessions(0).keys(), alone, lengths=lengths))
    found = []
    for loader in (batches, OneMemory(batches)):
        stack = stack_of(dedup={"use": "exact", "groups": "auto", "weigh": "bytes"})
        stack.adapt(looks_up(), batches=loader)
        found.append((stack.groups, stack.explain_groups()))
    assert found[0] == found[1]
    assert found[0][0] == (("seen", "bought"),)


@pytest.mark.filterwarnings("ignore::recd_plugins.notices.NoticeWarning")  # as the timings are
def test_a_trainer_draws_what_it_draws_without_auto() -> None:
    """Rank 0 alone times kernels, and would shuffle otherwise than the others from then on."""

    def drawn() -> list[float]:
        return [torch.rand(()).item(), float(np.random.rand()), random.random()]

    for seed in (torch.manual_seed, np.random.seed, random.seed):
        seed(1)
    expected = drawn()
    for seed in (torch.manual_seed, np.random.seed, random.seed):
        seed(1)
    stack = stack_of(dedup={"use": "exact", "groups": "auto"})
    stack.adapt(looks_up(), batches=[sessions(0), sessions(1)])
    assert "ms of conversion" in stack.explain()  # which was timed
    assert drawn() == expected


def test_what_cannot_be_looked_at() -> None:
    def auto() -> recd_plugins.Stack:
        return stack_of(dedup={"use": "exact", "groups": "auto", "weigh": "bytes"})

    model = looks_up()
    with pytest.raises(DataError, match="batches: is an iterator"):
        auto().adapt(model, batches=iter([sessions(0)]))
    with pytest.raises(DataError, match="the loader is empty"):
        auto().adapt(model, batches=[])
    with pytest.raises(DataError, match="already converted"):
        auto().adapt(model, batches=[stack_of().convert(from_lists(LISTS))])


def test_batches_without_samples_say_nothing_of_groups() -> None:
    """Rank 0 may have some: a rank that has none left still trains with the others."""
    none = KeyedJaggedTensor(
        keys=["seen", "item", "bought"],
        values=torch.zeros(0, dtype=torch.int64),
        lengths=torch.zeros(0, dtype=torch.int64),
    )
    stack = stack_of(dedup={"use": "exact", "groups": "auto", "weigh": "bytes"})
    stack.adapt(looks_up(), batches=[none, sessions(0), none, none])
    assert stack.convert(sessions(1)).dedup.groups == (("seen", "bought"),)
    assert stack.convert(none).to_kjt().stride() == 0
    auto = stack_of(dedup={"use": "exact", "groups": "auto", "weigh": "bytes"})
    with pytest.raises(DataError, match="or no batch has a sample"):
        auto.adapt(looks_up(), batches=[none, none])


def test_groups_are_as_large_as_batches_show() -> None:
    stack = stack_of(dedup={"use": "exact", "groups": [["seen"], ["item"]]})
    stack.adapt(looks_up(), batches=[sessions(0), sessions(1)])
    assert stack._features.unique_shares == (1 / 16, pytest.approx(1, abs=0.05))
    assert to_lists(stack.convert(sessions(2)).to_kjt()) == to_lists(sessions(2))


def test_a_group_that_nobody_looks_up_is_said() -> None:
    with pytest.warns(NoticeWarning, match="dedup: exact is not used: .* looks up region on"):
        stack_of().adapt(looks_up("history", "item"))
    with pytest.raises(CapabilityError, match="looks up history, brands or region on"):
        stack_of(strict=True).adapt(torch.nn.Linear(1, 1))


def test_other_collections_read_the_expansion() -> None:
    """A feature processor's, where none of its features is deduplicated."""
    bags = EmbeddingBagCollection(
        tables=[
            EmbeddingBagConfig(
                name="t", embedding_dim=4, num_embeddings=9, feature_names=["item", "none"]
            )
        ],
        is_weighted=True,
    )
    positions = PositionWeightedModuleCollection({"item": 3, "none": 3})
    processed = FeatureProcessedEmbeddingBagCollection(bags, positions)
    model = torch.nn.ModuleDict({"bags": processed, "rest": looks_up()})
    stack, kjt = stack_of(), from_lists(LISTS)
    stack.adapt(model)
    assert type(processed._embedding_bag_collection) is EmbeddingBagCollection
    ours, plain = processed(stack.convert(kjt)), processed(kjt)
    assert torch.equal(ours["item"], plain["item"])
    groups = [["item"]]
    with pytest.raises(CapabilityError, match=r"cannot look up unique samples \(item\)"):
        stack_of(dedup={"use": "exact", "groups": groups}).adapt(model)


@pytest.mark.parametrize("weighted", [False, True])
def test_every_tensor_is_pinned_and_recorded(
    weighted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a loader with `pin_memory=True` and TorchRec's pipelines do, where there is a GPU."""
    kjt = with_types(from_lists(LISTS), torch.int64, weighted)
    batch = RecBatch(torch.zeros(4, 1), stack_of().convert(kjt), torch.zeros(4))
    pinned: list[Tensor] = []
    recorded: list[int] = []

    def pin(tensor: Tensor) -> Tensor:
        pinned.append(tensor.clone())
        return pinned[-1]

    monkeypatch.setattr(Tensor, "pin_memory", pin)
    monkeypatch.setattr(Tensor, "record_stream", lambda tensor, _: recorded.append(id(tensor)))
    made = pin_memory(batch)
    assert alike(made.sparse_features.to_kjt(), kjt)
    leaves, _ = pytree.tree_flatten(made.sparse_features)
    assert {id(leaf) for leaf in leaves} <= {id(tensor) for tensor in pinned}
    made.record_stream(None)
    assert {id(leaf) for leaf in leaves} <= set(recorded)
