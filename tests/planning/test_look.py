"""Ladder: what batches of any type look up, and a look that leaves them; then counts on ranks."""

from __future__ import annotations

import itertools
import multiprocessing
import random
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from multiprocessing import shared_memory
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import torch.distributed as dist
from tensordict import TensorDict
from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler, TensorDataset
from torch.utils.data.distributed import DistributedSampler
from torchdata.nodes import Batcher, IterableWrapper, Loader, Mapper, MapStyleWrapper, Prefetcher
from torchdata.stateful_dataloader import StatefulDataLoader
from torchrec.datasets.random import RandomRecDataset
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recd_plugins.errors import DataError
from recd_plugins.notices import NoticeWarning
from recd_plugins.planning.access.access_profile import Counted, Profile, Tally
from recd_plugins.planning.access.batches_of_ranks import BatchesOfRanks, gathered
from recd_plugins.planning.access.contents import MOST_BYTES
from recd_plugins.planning.access.look import Look, Peeked
from recd_plugins.planning.access.lookups import batch_lookups
from recd_plugins.planning.access.sample import count_sample, sample_of
from recd_plugins.planning.together import together
from recd_plugins.sparse.ikjt import InverseKeyedJaggedTensor
from recd_plugins.testing.gloo import GlooPool, RanksFailed


def kjt(*ids: int, key: str = "item") -> KeyedJaggedTensor:
    """One id a sample."""
    return KeyedJaggedTensor([key], torch.tensor(ids), lengths=torch.ones(len(ids), dtype=int))


@dataclass
class Clicks:
    dense: torch.Tensor
    sparse: KeyedJaggedTensor


class Inputs(NamedTuple):
    clicks: Any
    labels: torch.Tensor


def nested(batch: KeyedJaggedTensor) -> TensorDict:
    jagged = torch.nested.nested_tensor_from_jagged(batch.values(), batch.offsets())
    return TensorDict({"item": jagged}, batch_size=[batch.stride()])


def unique(batch: KeyedJaggedTensor) -> InverseKeyedJaggedTensor:
    return InverseKeyedJaggedTensor.from_kjt(batch, [["item"]])


@pytest.mark.parametrize(
    ("batch", "features"),
    [
        (kjt(3, 1, 3), None),
        (Clicks(torch.rand(3, 2), kjt(3, 1, 3)), None),
        (Inputs({"sparse": kjt(3, 1, 3)}, torch.rand(3)), None),
        ((kjt(3, 1, 3), torch.rand(3)), None),
        (nested(kjt(3, 1, 3)), None),
        ({"dense": TensorDict({"a": torch.rand(3)}, [3]), "sparse": kjt(3, 1, 3)}, None),
        ({"a": kjt(3, 1, 3), "b": kjt(1, 1, key="shop")}, lambda batch: batch["a"]),
        ({"a": kjt(3, 1, 3), "b": kjt(1, 1, key="shop")}, lambda batch: list(batch.values())),
        ({"a": kjt(3, 1, 3), "b": kjt(1, 1, key="shop")}, lambda batch: batch),
        ({"a": kjt(3, 1, 3), "b": kjt(1, 1, key="shop")}, lambda batch: batch.values()),
    ],
)
def test_the_features_of_a_batch_are_found_or_named(
    batch: Any, features: Callable[[Any], Any] | None
) -> None:
    found = batch_lookups(batch, features)
    assert found.samples == 3
    assert found["item"].tolist() == [3, 1, 3]


def test_a_key_of_two_kjts_is_looked_up_for_both() -> None:
    found = batch_lookups({"query": kjt(3, 1), "document": kjt(1, 2)}, lambda batch: batch)
    assert found.samples == 2
    assert found["item"].tolist() == [3, 1, 1, 2]
    assert found.lengths["item"].tolist() == [1, 1, 1, 1]


def test_lengths_may_have_a_row_for_each_key() -> None:
    """TorchRec takes lengths of [K, B]; each key's are its own all the same."""
    lengths = torch.tensor([[1, 0, 2], [0, 2, 1]])
    found = batch_lookups(KeyedJaggedTensor(["a", "b"], torch.arange(6), lengths=lengths))
    assert {key: rows.tolist() for key, rows in found.lengths.items()} == {
        "a": [1, 0, 2],
        "b": [0, 2, 1],
    }


def test_unique_samples_are_looked_up_once() -> None:
    found = batch_lookups({"batch": unique(kjt(3, 1, 3))})
    assert found.samples == 3
    assert sorted(found["item"].tolist()) == [1, 3]


@pytest.mark.parametrize(
    ("batch", "features", "says"),
    [
        ([torch.rand(3)], None, r"a list has no KeyedJaggedTensor .* features=lambda batch"),
        (
            Clicks(kjt(1), kjt(2)),  # type: ignore[arg-type]
            None,
            r"2 sets .*batch\.dense, batch\.sparse.* features=lambda batch: \[batch\.dense, batch",
        ),
        (Clicks(torch.rand(1), kjt(2)), lambda batch: batch.dense, "gives a Tensor, which has no"),
        (None, lambda batch: [], r"of a batch \(NoneType\) it gives nothing. Let it give the"),
    ],
)
def test_features_that_are_not_to_be_found_are_asked_for(
    batch: Any, features: Callable[[Any], Any] | None, says: str
) -> None:
    with pytest.raises(DataError, match=says):
        batch_lookups(batch, features)


class Noisy(Dataset[KeyedJaggedTensor]):
    """Its samples draw from every random state that there is."""

    def __init__(self) -> None:
        self.own = torch.Generator().manual_seed(1)
        self.numpy = np.random.default_rng(2)
        self.python = random.Random(3)
        self.legacy = np.random.RandomState(4)
        self.system = random.SystemRandom()  # which has no state

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> KeyedJaggedTensor:
        own = int(torch.randint(1000, (1,), generator=self.own))
        drawn = int(torch.randint(1000, (1,))) + int(np.random.randint(1000))
        drawn += random.randrange(1000) + self.python.randrange(1000)
        drawn += int(self.legacy.randint(1000))
        return kjt(index, own, drawn + int(self.numpy.integers(1000)))


class Counting(IterableDataset[KeyedJaggedTensor]):
    """It goes on where it was left, as torchdata has datasets do; its state is handed out as it is,
    and one that is loaded is come to when it is read."""

    def __init__(self) -> None:
        self.at = {"number": 0}
        self.loaded: dict[str, int] | None = None

    def __iter__(self) -> Iterator[KeyedJaggedTensor]:
        if self.loaded is not None:
            self.at, self.loaded = dict(self.loaded), None
        while True:
            self.at["number"] += 1
            yield kjt(self.at["number"])

    def state_dict(self) -> dict[str, int]:
        return self.at

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.loaded = state


class GoesOn:
    """Iterated anew, it goes on where it was left, and tells nobody where that is."""

    def __init__(self) -> None:
        self.number = 0

    def __iter__(self) -> Iterator[KeyedJaggedTensor]:
        while True:
            self.number += 1
            yield kjt(self.number)


class GoesOnAsDataset(GoesOn, IterableDataset[KeyedJaggedTensor]):
    """The same as a dataset of torch."""


class GoesOnFromState(GoesOn):
    """It tells where it was left, and goes on from where it is told."""

    def state_dict(self) -> dict[str, int]:
        return {"number": self.number}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.number = state["number"]


class CountsEpochs:
    """A framework's wrapper of a loader, whose sampler draws each epoch anew."""

    def __init__(self) -> None:
        samples = [kjt(number) for number in range(9)]
        self.sampler = DistributedSampler(samples, num_replicas=1, rank=0)  # type: ignore[arg-type]
        self.loader = DataLoader(samples, batch_size=None, sampler=self.sampler)  # type: ignore[arg-type]
        self.iterated = 0

    def __iter__(self) -> Iterator[KeyedJaggedTensor]:
        self.sampler.set_epoch(self.iterated)
        self.iterated += 1
        return iter(self.loader)


class Shuffles:
    """A stage of a pipeline, which is iterated by another name."""

    def __init__(self) -> None:
        self.epoch = 0

    def run(self, batches: Iterable[KeyedJaggedTensor]) -> list[KeyedJaggedTensor]:
        self.epoch += 1
        return random.Random(self.epoch).sample(list(batches), 9)


class Stages(IterableDataset[KeyedJaggedTensor]):
    """As webdataset has them."""

    def __init__(self) -> None:
        self.stages = [Shuffles()]

    def __iter__(self) -> Iterator[KeyedJaggedTensor]:
        batches: Iterable[KeyedJaggedTensor] = [kjt(number) for number in range(9)]
        for stage in self.stages:
            batches = stage.run(batches)
        return iter(batches)


class Loads:
    """A pipeline of one stage, which loads the batches of a loader."""

    def __init__(self) -> None:
        self.pipeline = [DataLoader(Stages(), batch_size=None)]

    def __iter__(self) -> Iterator[KeyedJaggedTensor]:
        yield from self.pipeline[0]


class ShufflesInPlace:
    """A loader that shuffles what it holds, itself, at the start of each epoch."""

    def __init__(self, order: Any) -> None:
        self.order = order

    def __iter__(self) -> Iterator[KeyedJaggedTensor]:
        if isinstance(self.order, np.ndarray):
            np.random.shuffle(self.order)
        elif isinstance(self.order, torch.Tensor):
            self.order.copy_(self.order[torch.randperm(len(self.order))])
        else:
            random.shuffle(self.order)
        for number in self.order:
            yield kjt(int(number))


class ShufflesLate(ShufflesInPlace):
    """A thread that reads it ahead shuffles when the loader has long been asked for its state."""

    def __iter__(self) -> Iterator[KeyedJaggedTensor]:
        time.sleep(0.03)
        yield from super().__iter__()


class CountsInPlace(IterableDataset[KeyedJaggedTensor]):
    """It counts in what it holds, and keeps the last batches in a buffer."""

    def __init__(self) -> None:
        self.at = {"epochs": 0, "place": [0]}
        self.numbers = np.zeros(1, dtype=np.int64)
        self.buffer: deque[int] = deque()

    def __iter__(self) -> Iterator[KeyedJaggedTensor]:
        self.at["epochs"] += 1  # type: ignore[operator]
        while True:
            self.at["place"][0] += 1  # type: ignore[index]
            self.numbers += 2
            self.buffer.append(int(self.numbers[0]))
            yield kjt(self.at["place"][0], sum(self.buffer))  # type: ignore[index]


class CountsShared(IterableDataset[KeyedJaggedTensor]):
    """It counts epochs where its workers count, too, and shuffles by their number."""

    def __init__(self, epochs: Any) -> None:
        self.epochs = epochs

    def __iter__(self) -> Iterator[KeyedJaggedTensor]:
        if hasattr(self.epochs, "value"):
            self.epochs.value += 1
            seed = self.epochs.value
        else:
            self.epochs[0] += 1
            seed = int(self.epochs[0])
        yield from map(kjt, random.Random(seed).sample(range(99), 9))


class ReadsAhead(IterableDataset[KeyedJaggedTensor]):
    """Its threads live on in what it adds to itself, until its next pass ends them; its epoch lies
    in memory that other ranks have, too."""

    def __init__(self) -> None:
        memory = shared_memory.SharedMemory(create=True, size=8)
        self._at = SharedEpoch(memory)
        weakref.finalize(self, lambda: (memory.close(), memory.unlink()))

    @property
    def next_epoch(self) -> int:
        return self._at.memory.buf[0]

    @next_epoch.setter
    def next_epoch(self, epoch: int) -> None:
        self._at.memory.buf[0] = epoch

    def __iter__(self) -> Iterator[KeyedJaggedTensor]:
        if hasattr(self, "_end"):
            self._end.set()
            self._thread.join()
            if self._failed:
                raise RuntimeError("a thread failed")
        self._end, self._failed = threading.Event(), list[bool]()
        self._order = random.Random(self.next_epoch).sample(range(99), 9)
        self.next_epoch += 1
        self._thread = threading.Thread(target=self._read, args=(self._failed,), daemon=True)
        self._thread.start()
        yield from map(kjt, self._order)

    def _read(self, failed: list[bool]) -> None:
        end = self._end
        while not end.wait(0.001):
            if not hasattr(self, "_order"):
                failed.append(True)


class SharedEpoch(NamedTuple):
    memory: shared_memory.SharedMemory


def tables(**options: Any) -> RandomRecDataset:
    return RandomRecDataset(
        keys=["item"], batch_size=4, hash_size=1000, ids_per_feature=2, num_dense=1, **options
    )


def resumed(workers: int) -> StatefulDataLoader[KeyedJaggedTensor]:
    """As a trainer that goes on in the midst of an epoch has it."""
    first = StatefulDataLoader(Counting(), batch_size=None, num_workers=workers)
    reading = iter(first)
    for _ in range(3):
        next(reading)
    second = StatefulDataLoader(Counting(), batch_size=None, num_workers=workers)
    second.load_state_dict(first.state_dict())
    return second


def asked() -> StatefulDataLoader[KeyedJaggedTensor]:
    """As a trainer has it that asks for the state before it trains: the iterator is there."""
    loader = StatefulDataLoader(Noisy(), batch_size=None, shuffle=True)
    loader.state_dict()
    return loader


class SaysItIsOne:
    """A wrapper that says it were the DataLoader in it, as accelerate has it, and whose state is
    that of a loader that may have none."""

    def __init__(self, loader: DataLoader[KeyedJaggedTensor]) -> None:
        self.loader = loader

    @property
    def __class__(self) -> type[Any]:  # type: ignore[override]
        return type(self.loader)

    def __reduce__(self) -> tuple[Any, ...]:
        raise AssertionError("a copy would be another loader")

    def __iter__(self) -> Iterator[KeyedJaggedTensor]:
        yield from self.loader

    def state_dict(self) -> dict[str, Any]:
        return self.loader.state_dict()  # type: ignore[attr-defined, no-any-return]

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.loader.load_state_dict(state)  # type: ignore[attr-defined]


class LoadsAlways(IterableDataset[KeyedJaggedTensor]):
    """Each iteration begins where it was told to, which its state does not say until it is read, as
    Hugging Face has it."""

    def __init__(self) -> None:
        self.first = 5
        self.state: dict[str, int] = {"number": 0}

    def __iter__(self) -> Iterator[KeyedJaggedTensor]:
        self.state = {"number": self.first}
        while True:
            self.state["number"] += 1
            yield kjt(self.state["number"])

    def state_dict(self) -> dict[str, int]:
        return dict(self.state)

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.first = state["number"]


class DrawsLate(RandomSampler):
    """A thread that reads it ahead draws when the loader has long been asked for its state."""

    def __iter__(self) -> Iterator[int]:
        time.sleep(0.03)
        yield from super().__iter__()


def nodes(resumed: bool) -> Loader[KeyedJaggedTensor]:
    """Stages of torchdata, whose sampler draws from a generator, the deepest of all."""

    def made() -> Loader[KeyedJaggedTensor]:
        samples = list(range(40))
        sampler = DrawsLate(samples, generator=torch.Generator().manual_seed(3))
        batches = Batcher(MapStyleWrapper(samples, sampler), 2)
        return Loader(Prefetcher(Mapper(batches, lambda ids: kjt(*ids)), 2))

    first, second = made(), made()
    if not resumed:
        return first
    values(first_of(first, 3))
    second.load_state_dict(first.state_dict())
    return second


class ReadsOn:
    """It reads a file that is open over all epochs."""

    def __init__(self) -> None:
        self.lines = Path(__file__).open()  # noqa: SIM115

    def __iter__(self) -> Iterator[KeyedJaggedTensor]:
        for line in self.lines:
            yield kjt(len(line))

    def __del__(self) -> None:
        self.lines.close()


LOADERS: dict[str, Callable[[], Iterable[Any]]] = {
    "shuffled": lambda: DataLoader(Noisy(), batch_size=None, shuffle=True),
    "a generator of its own": lambda: DataLoader(
        Noisy(), batch_size=None, shuffle=True, generator=torch.Generator().manual_seed(4)
    ),
    "workers": lambda: DataLoader(Noisy(), batch_size=None, shuffle=True, num_workers=1),
    "workers that persist": lambda: DataLoader(
        Noisy(), batch_size=None, shuffle=True, num_workers=1, persistent_workers=True
    ),
    "with a state": GoesOnFromState,
    "of a dataset with a state": lambda: DataLoader(Counting(), batch_size=None),
    "of a dataset that goes on": lambda: DataLoader(GoesOnAsDataset(), batch_size=None),
    "a dataset that goes on": GoesOnAsDataset,
    "torchdata's": lambda: StatefulDataLoader(Counting(), batch_size=None),
    "torchdata's, resumed": lambda: resumed(0),
    "torchdata's, resumed, workers": lambda: resumed(2),
    "a wrapper that counts epochs": CountsEpochs,
    "a pipeline of stages": Loads,
    "torchdata's nodes": lambda: nodes(False),
    "torchdata's nodes, shuffled in place": lambda: Loader(
        Prefetcher(IterableWrapper(ShufflesLate(list(range(40)))), 2)
    ),
    "torchdata's nodes, resumed": lambda: nodes(True),
    "a wrapper that says it is one": lambda: SaysItIsOne(DataLoader(Noisy(), batch_size=None)),
    "such a wrapper, workers that persist": lambda: SaysItIsOne(
        DataLoader(Noisy(), batch_size=None, num_workers=1, persistent_workers=True)
    ),
    "a list that is shuffled": lambda: ShufflesInPlace(list(range(900))),
    "an array that is shuffled": lambda: ShufflesInPlace(np.arange(900)),
    "a tensor that is shuffled": lambda: ShufflesInPlace(torch.arange(900)),
    "what counts in what it holds": CountsInPlace,
    "what reads on in a file": ReadsOn,
    "of a dataset that does so": lambda: DataLoader(CountsInPlace(), batch_size=None),
    "of a dataset that shares its epoch": lambda: DataLoader(
        CountsShared(multiprocessing.Value("i", 0)), batch_size=None
    ),
    "one without a lock": lambda: CountsShared(multiprocessing.RawValue("i", 0)),
    "one in an array": lambda: CountsShared(multiprocessing.Array("i", 2)),
    "one in a tensor": lambda: CountsShared(torch.zeros(1, dtype=torch.int64).share_memory_()),
    "one in numpy": lambda: CountsShared(np.frombuffer(bytearray(8), dtype=np.int64)),
    "of workers that share their epoch": lambda: DataLoader(
        CountsShared(multiprocessing.Value("i", 0)), batch_size=None, num_workers=1
    ),
    "of a dataset whose threads read ahead": lambda: DataLoader(ReadsAhead(), batch_size=None),
    "of a dataset that always loads": lambda: DataLoader(LoadsAlways(), batch_size=None),
    "without end": lambda: DataLoader(tables(), batch_size=None),
    "without end, drawn anew": lambda: DataLoader(
        tables(num_generated_batches=-1, manual_seed=5), batch_size=None
    ),
    "a list": lambda: [kjt(1), kjt(2), kjt(3)],
}


def values(batches: Iterable[Any]) -> list[list[int]]:
    return [batch_lookups(batch)["item"].tolist() for batch in batches]


def first_of(batches: Iterable[Any], count: int) -> list[Any]:
    return [batch for _, batch in sample_of(batches, count)]


def trained_on(loader: Iterable[Any]) -> list[list[int]]:
    """The first batches of two epochs, and what is drawn after."""
    epochs = [values(first_of(loader, 5)) for _ in range(2)]
    return [*epochs[0], *epochs[1], torch.rand(2).tolist()]  # type: ignore[list-item]


def seeded() -> None:
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)


@pytest.mark.parametrize(
    "make",
    [
        lambda numbers: multiprocessing.Array("i", numbers),
        lambda numbers: multiprocessing.RawArray("i", numbers),
        lambda numbers: torch.zeros(numbers, dtype=torch.int64).share_memory_(),
    ],
    ids=["with a lock", "without one", "in a tensor"],
)
def test_more_shared_numbers_than_are_put_back_are_told(make: Callable[[int], Any]) -> None:
    loader = CountsShared(make(9_000))
    with pytest.warns(NoticeWarning) as found, Look(loader) as look:
        values(first_of(look, 3))
    (one,) = found
    assert "changed CountsShared.epochs, which other processes share" in str(one.message)
    assert "`loader = stack.peek(loader)`" in str(one.message)
    loader.epochs = make(32)
    with Look(loader) as look:  # put back: a warning would be an error
        values(first_of(look, 3))
    assert loader.epochs[0] == 0


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # of torchdata 0.11
@pytest.mark.parametrize("make", LOADERS.values(), ids=LOADERS)
def test_training_gets_what_it_gets_without_a_look(make: Callable[[], Iterable[Any]]) -> None:
    seeded()
    expected = trained_on(make())
    seeded()
    loader = make()
    with Look(loader) as look:
        assert look.first is not None
        looked_at = values(first_of(look, 3))
    assert looked_at == expected[:3]
    assert trained_on(loader) == expected


def test_an_iterator_that_training_has_begun_goes_on() -> None:
    """A trainer may make its first iterator before it plans, and its workers may persist."""
    loader = DataLoader(
        [kjt(number) for number in range(6)],  # type: ignore[arg-type]
        batch_size=None,
        num_workers=1,
        persistent_workers=True,
    )
    training = iter(loader)
    assert values([next(training)]) == [[0]]
    with Look(loader) as look:
        assert values(first_of(look, 3)) == [[0], [1], [2]]
    assert values(training) == [[1], [2], [3], [4], [5]]
    assert len(values(loader)) == 6


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # of torchdata 0.11
@pytest.mark.parametrize("make", [asked, lambda: SaysItIsOne(asked())])
def test_an_iterator_that_is_there_for_a_state_is_for_training(
    make: Callable[[], Iterable[Any]],
) -> None:
    """It has drawn what it reads, and the look draws for itself."""
    seeded()
    expected = trained_on(make())
    seeded()
    loader = make()
    with Look(loader) as look:
        assert len(values(first_of(look, 3))) == 3
    assert trained_on(loader) == expected


def test_what_is_too_large_to_be_put_back_is_told() -> None:
    numbers = np.arange(MOST_BYTES // 8 + 1)
    with (
        pytest.warns(NoticeWarning, match=r"changed ShufflesInPlace\.order in place.*stack\.peek"),
        Look(ShufflesInPlace(numbers)) as look,
    ):
        assert look.first is not None
    data = TensorDataset(torch.from_numpy(numbers), torch.full(numbers.shape, torch.nan))
    with Look(DataLoader(data, batch_size=2)) as look:  # which reading leaves alone
        assert look.first is not None


class Infinite(DataLoader[KeyedJaggedTensor]):
    """Its workers, if any, live over all epochs, as those of vision's trainers do."""

    def __init__(self, **options: Any) -> None:
        super().__init__([kjt(number) for number in range(900)], batch_size=None, **options)  # type: ignore[arg-type]
        self.iterator = super().__iter__()

    def __iter__(self) -> Iterator[KeyedJaggedTensor]:  # type: ignore[override]
        for _ in range(5):
            yield next(self.iterator)


class KeepsIterator:
    def __init__(self, numbers: Iterator[int]) -> None:
        self.numbers = numbers

    def __iter__(self) -> Iterator[KeyedJaggedTensor]:
        for number in self.numbers:
            yield kjt(number)


KEPT: dict[str, Callable[[], Iterable[Any]]] = {
    "Infinite.iterator": Infinite,
    "KeepsIterator.numbers": lambda: KeepsIterator(iter(range(50))),
    "KeepsIterator.numbers on, an iterator": lambda: KeepsIterator(number for number in range(50)),
}


@pytest.mark.parametrize("told", KEPT)
def test_an_iterator_that_a_loader_keeps_is_told_of_once_it_has_moved(told: str) -> None:
    loader = KEPT[told]()
    with pytest.warns(NoticeWarning, match=f"moved {told}.*stack.peek"), Look(loader) as look:
        assert values(first_of(look, 3)) == [[0], [1], [2]]
    loader = KEPT[told]()
    peeked = Peeked(loader)
    with Look(peeked) as look:
        assert values(first_of(look, 3)) == [[0], [1], [2]]
    assert values(first_of(peeked, 4)) == [[0], [1], [2], [3]]


class Prefetches:
    """A loader whose thread counts, whoever reads."""

    def __init__(self) -> None:
        self.count = 0
        self.lock = threading.Lock()

    def __iter__(self) -> Iterator[KeyedJaggedTensor]:
        while True:
            self.count += 1
            yield kjt(self.count)


def test_what_lives_while_nobody_reads_is_left_alone() -> None:
    loader = Prefetches()
    with Look(loader) as look:
        assert values(first_of(look, 3)) == [[1], [2], [3]]
    assert loader.count == 3


def endless() -> Iterator[KeyedJaggedTensor]:
    number = 0
    while True:
        yield kjt(number)
        number += 1


class Pipe:
    """An iterator with what trainers ask of a loader, as the one of AMD's Primus-DLRM."""

    def __init__(self) -> None:
        self.sampler, self.epoch, self.read = object(), 0, 0

    def __len__(self) -> int:
        return 10

    def __iter__(self) -> Pipe:
        return self

    def __next__(self) -> KeyedJaggedTensor:
        self.read += 1
        return kjt(self.read)

    def state_dict(self) -> dict[str, int]:
        return {"read": self.read}


def test_a_peeked_loader_has_what_the_trainer_asks_of_it() -> None:
    pipe = Pipe()
    batches = Peeked(pipe)
    with Look(batches) as look:
        assert len(list(itertools.islice(look, 3))) == 3
        assert len(look) == 10
    batches.epoch = 5
    assert (len(batches), batches.sampler, pipe.epoch) == (10, pipe.sampler, 5)
    assert next(batches).values().tolist() == kjt(1).values().tolist()
    assert not hasattr(batches, "state_dict")  # that of `pipe` is three batches ahead
    with pytest.raises(AttributeError, match="ahead of training by the batches"):
        batches.load_state_dict({"read": 0})
    with pytest.raises(AttributeError, match="no attribute 'dataset'"):
        batches.dataset  # noqa: B018
    no_length = Peeked(kjt(1) for _ in range(9))
    assert bool(no_length)
    with pytest.raises(TypeError, match="has no len"):
        len(no_length)


def test_an_iterator_is_looked_into_once_it_keeps_what_is_read() -> None:
    with pytest.raises(DataError, match=r"is an iterator, .* `batches = stack\.peek\(batches\)`"):
        Look(endless())
    batches = Peeked(endless())
    for _ in range(2):
        with Look(batches) as look:
            assert values(first_of(look, 3)) == [[0], [1], [2]]
    assert values(first_of(batches, 5)) == [[0], [1], [2], [3], [4]]
    assert values(first_of(batches, 2)) == [[5], [6]]
    few = Peeked([kjt(1)])
    with Look(few) as look:
        assert values(look) == [[1]]
    assert values(few) == [[1]]
    with Look([]) as look:
        assert look.first is None


def over_each_other(buffers: int, kind: str) -> Iterator[Any]:
    """Batches in a few buffers, which are filled again and again."""
    ids = [np.zeros(3, np.int64) if kind == "array" else torch.zeros(3) for _ in range(buffers)]
    for number in range(100):
        one: Any = ids[number % buffers]
        one[:] = number + 1
        yield {"key": kjt(number), "ids": one[: 1 + number % 3]}


@pytest.mark.parametrize("kind", ["array", "tensor"])
def test_a_loader_that_writes_over_what_is_kept_is_told_so(kind: str) -> None:
    told = r"writes batches over earlier ones.*batch\['ids'\].*stack\.peek keeps batches"
    with Look(Peeked(over_each_other(2, kind))) as look:
        assert len(first_of(look, 2)) == 2
    with pytest.raises(DataError, match=told), Look(Peeked(over_each_other(2, kind))) as look:
        first_of(look, 3)


def test_a_loader_may_yield_a_batch_many_times() -> None:
    batches = Peeked([{"ids": torch.tensor([1.0, torch.nan])}] * 5)
    with Look(batches) as look:
        assert len(list(look)) == 5
    assert len(list(batches)) == 5


def test_one_process_reads_the_batches_of_a_few_ranks() -> None:
    def read(rank: int, world_size: int) -> Iterable[tuple[int, int]]:
        return [(rank, batch) for batch in range(world_size)]

    assert first_of(BatchesOfRanks(read, 3), 2) == [(r, b) for r in range(3) for b in (0, 1)]
    assert [r for r, _ in first_of(BatchesOfRanks(read, 64), 1)] == list(range(0, 64, 8))


TABLES = {
    "item": Counted(num_rows=500, features=("item",)),
    "large": Counted(num_rows=900, features=("item",)),
}


def batches_of(rank: int) -> list[KeyedJaggedTensor]:
    """Ranks have other rows, and other numbers of batches."""
    draw = np.random.default_rng(rank)
    return [kjt(*((draw.zipf(1.3, 64) + rank) % 500)) for _ in range(5 + rank)]


def merged(exact_rows: int) -> Profile | None:
    group, rank = dist.group.WORLD, dist.get_rank()
    assert group is not None
    tally = Tally(counted=TABLES, exact_rows=exact_rows)
    together(group, lambda: tally.add(batches_of(rank)).samples)
    tally.variable = frozenset({"item"} if rank == 1 else ())
    tally.weighted = tally.variable
    tally = gathered(tally, group)
    assert rank or tally.variable == tally.weighted == {"item"}
    return tally.profile() if rank == 0 else None


def failing() -> None:
    group = dist.group.WORLD
    assert group is not None

    def count() -> int:
        if group.rank() == 1:
            raise KeyError("sparse")
        return 1

    together(group, count)


@pytest.mark.parametrize("world_size", [2, 3])
def test_rank_0_has_what_all_ranks_counted(gloo_pool: GlooPool, world_size: int) -> None:
    """Exactly, and in sketches with room for all rows, as if one process had read for all."""
    every = [batches_of(rank) for rank in range(world_size)]
    for exact_rows in (2000, 600):
        profile, *others = gloo_pool.run(merged, exact_rows, world_size=world_size)
        assert others == [None] * (world_size - 1)
        assert profile is not None
        one = Tally(counted=TABLES, exact_rows=exact_rows)
        for batches in every:
            one.add(batches)
        expected = one.profile()
        assert (profile.samples, profile.batch_size) == (expected.samples, 64)
        for name in TABLES:
            for part in ("counts", "p", "presence", "ids", "error", "uncertainty"):
                assert np.array_equal(
                    getattr(profile[name], part), getattr(expected[name], part)
                ), (name, part)


def alike(seeds: tuple[int, ...]) -> bool:
    group = dist.group.WORLD
    batches = batches_of(seeds[dist.get_rank()])
    return count_sample(batches, TABLES, most=3, group=group).alike


@pytest.mark.parametrize("world_size", [2, 3])
def test_ranks_that_read_the_same_batches_are_known(gloo_pool: GlooPool, world_size: int) -> None:
    same, apart = (7,) * world_size, (*(7,) * (world_size - 1), 8)
    assert gloo_pool.run(alike, same, world_size=world_size) == [True] * world_size
    assert gloo_pool.run(alike, apart, world_size=world_size) == [False] * world_size


def test_a_rank_that_cannot_count_ends_all(gloo_pool: GlooPool) -> None:
    with pytest.raises(RanksFailed, match="rank 1 could not count its batches") as ended:
        gloo_pool.run(failing)
    assert "KeyError: 'sparse'" in str(ended.value)
