"""The model and the batches that an advice is on: those of a registry, or those of a trainer of
one's own."""

from __future__ import annotations

import copy
import importlib
import json
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from functools import cached_property, partial
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torchrec.sparse.jagged_tensor import JaggedTensor, KeyedJaggedTensor

from recd_plugins.advise.computed import LARGEST, computed
from recd_plugins.config import path_of
from recd_plugins.data.batch import Batch
from recd_plugins.data.preprocessing import schema_of_keys
from recd_plugins.data.table import Progress
from recd_plugins.errors import DataError, RecdError, listed, nearest
from recd_plugins.planning.access.sample import FIRST, Spread, count_sample
from recd_plugins.sparse.features import SparseFeatures
from recd_plugins.sparse.own_batches import all_features_of, in_own_memory
from recd_plugins.stack import Stack
from recd_plugins.stack.looked_up import behind_collisions

if TYPE_CHECKING:
    from recd_plugins.data.schema import Schema
    from recd_plugins.planning.access.access_profile import Counted, Profile
    from recd_plugins.planning.step.compute import Compute
    from recd_plugins.sparse.own_batches import FeaturesOf

__all__ = ["ModelAndBatches", "OfRegistry", "OfTrainer"]

PLACES = 8
"""The places of an epoch whose batches are looked at."""
MOST_IDS = 1 << 26
"""The ids of a trainer's batches that are held, about."""


class ModelAndBatches(ABC):
    """The model and the batches of outlooks; each method gets the stack of a registry that is
    weighed."""

    @abstractmethod
    def schema(self, stack: Stack, progress: Progress) -> Schema:
        """The columns of the batches, before any `etl` step."""

    @abstractmethod
    def model(self, stack: Stack, progress: Progress) -> nn.Module:
        """The model, adapted to what the stack deduplicates."""

    @abstractmethod
    def profile(self, stack: Stack, counted: Mapping[str, Counted]) -> Profile:
        """The lookups to come, of batches as the adapted model gets them."""

    @abstractmethod
    def compute(self, stack: Stack, ranks: int, ranks_here: int) -> Compute:
        """The compute of the model, by the stack of a registry that deduplicates nothing."""

    @abstractmethod
    def spread(self, stack: Stack, ranks: int) -> list[Batch]:
        """Some batches from all over what is trained on; none where nobody can begin there."""


class OfRegistry(ModelAndBatches):
    """The registry's own model and dataset."""

    def __init__(self) -> None:
        self._models: dict[str, nn.Module] = {}
        """The models, not adapted, by all that they are built of."""

    def schema(self, stack: Stack, progress: Progress) -> Schema:
        return stack.prepare(progress).schema

    def model(self, stack: Stack, progress: Progress) -> nn.Module:
        """Built once for all that have it alike: shapes and names are what counts of it."""
        stack.prepare(progress)
        model = self._built(stack)
        return stack.adapt(_copy_of(model) if stack.registry.chosen("dedup") else model)

    def _built(self, stack: Stack) -> nn.Module:
        registry, values = stack.registry, stack.registry.source.values
        made_of = [(one.record.name, str(one.provider)) for one in registry.chosen("model")]
        parts = [values.get(name) for name in ("model", "pooling", "train")]
        key = json.dumps([made_of, parts, stack.schema.to_json()], sort_keys=True, default=str)
        if key not in self._models:
            self._models[key] = stack.model()
        return self._models[key]

    def profile(self, stack: Stack, counted: Mapping[str, Counted]) -> Profile:
        return stack.profile(counted)

    def compute(self, stack: Stack, ranks: int, ranks_here: int) -> Compute:
        """By a batch, and one of a quarter of its samples, so that what does not grow shows."""

        def batches() -> Iterator[Batch]:
            size = min(stack.registry.train.batch_size, LARGEST)
            for some in dict.fromkeys((max(1, size // 4), size)):
                with closing(Stack(stack.registry.with_batch_size(some)).read(0, ranks)) as loader:
                    yield next(iter(loader))

        model = partial(self._built, stack)
        return computed(stack, model, batches, lambda batch: batch.features, ranks_here)

    def spread(self, stack: Stack, ranks: int) -> list[Batch]:
        with closing(stack.read(0, ranks)) as loader:
            if not isinstance(loader, Spread):
                return []
            return [batch for _, batch in loader.spread(range(min(PLACES, loader.places)), 1)]


class OfTrainer(ModelAndBatches):
    """The model of a trainer of one's own, and the first batches of its loader, unconverted."""

    def __init__(
        self,
        model: nn.Module,
        loader: Iterable[Any],
        features: FeaturesOf | None = None,
        *,
        name: str = "the trainer",
    ) -> None:
        """`features(batch)` gives a batch's KJT, or a list of several, of which the first may be
        deduplicated; by default the only one that it holds. `name` is for messages. As many batches
        are held as planners count of a trainer's loader, unless they have more than `MOST_IDS`;
        they are read when the first of them is asked for."""
        self._model, self._loader, self.features, self.name = model, loader, features, name
        self.of_no_row: Mapping[str, float] = {}
        """The share of the ids of a table's lookups that are of no row, once they are counted."""
        self.collided: Sequence[str] = ()
        """The tables behind a managed collision, which gives ids rows that nobody counts."""

    @classmethod
    def named(cls, name: str) -> OfTrainer:
        """What a function returns that `FILE.py:FUNCTION` or `MODULE:FUNCTION` names: a model and a
        loader of batches that it takes; and, where batches hold more than one KJT, `features`."""
        place, _, called = name.rpartition(":")
        if not place or not called:
            raise DataError(
                f"{name!r} names no function of a trainer. Write its file, or its module, and the "
                "function: my_trainer.py:parts."
            )
        module = _module(place, name)
        make = getattr(module, called, None)
        if not callable(make):
            known = [key for key, value in vars(module).items() if _is_own(value, module)]
            raise DataError(f"{name}: {place} has no function {called!r}; {nearest(called, known)}")
        with _named(name, "it"):
            made = make()
        match made:
            case (nn.Module() as model, loader) if hasattr(loader, "__iter__"):
                return cls(model, loader, name=name)
            case (nn.Module() as model, loader, features) if hasattr(loader, "__iter__"):
                return cls(model, loader, features, name=name)
        kind = type(made).__name__
        what = ", ".join(type(one).__name__ for one in made) if isinstance(made, tuple) else kind
        raise DataError(
            f"{name}: it must return its model and its loader, as `return model, loader`, and may "
            f"return a third thing, `lambda batch: batch.sparse_features`; but it returned {what}."
        )

    @property
    def batch_size(self) -> int:
        """The samples of a rank and step."""
        return int(self._kjt(self._batches[0]).stride())

    def schema(self, stack: Stack, progress: Progress) -> Schema:
        return schema_of_keys(self._kjt(self._batches[0]).keys())

    def model(self, stack: Stack, progress: Progress) -> nn.Module:
        """The trainer's own where it stays as it is, or else a copy with the same parameters: none
        is trained, and what names their optimizers goes with them."""
        if not stack.registry.chosen("dedup"):
            return self._model
        model = _copy_of(self._model)
        return stack.adapt(model, batches=self._batches, features=self.features)

    def profile(self, stack: Stack, counted: Mapping[str, Counted]) -> Profile:
        convert = stack.converting(features=self.features)
        # An iterator: these batches are no epoch, but the first ones of it.
        batches = (convert(batch) for batch in self._batches)
        most = len(self._batches)
        counts = count_sample(batches, counted, most=most, features=self.features)
        profile = counts.profile()
        if not stack.groups:  # unique samples bring other shares of the same ids
            self._check_rows(counts.shares_of_no_row(profile))
        return profile

    def _check_rows(self, shares: Mapping[str, float]) -> None:
        """`DataError` where nobody knows which rows are looked up, by the `shares` of ids that are
        of none."""
        self.collided = behind_collisions(self._model)
        self.of_no_row = {name: one for name, one in shares.items() if name not in self.collided}
        if strange := [name for name, share in self.of_no_row.items() if share > 0.5]:
            raise DataError(
                f"{self.name}: most ids of its batches for {listed(strange, kind='table')} are of "
                "no row, as where a model maps ids before it looks them up, so that nobody knows "
                "which rows are looked up. Have it return a third thing, `lambda batch: ...`, "
                "which gives a KeyedJaggedTensor of the ids that the model looks up; or map them "
                "in the loader."
            )

    def compute(self, stack: Stack, ranks: int, ranks_here: int) -> Compute:
        with self._named("its model, called with a batch as TorchRec's pipeline calls it,"):
            return computed(stack, lambda: self._model, self._timed, self._kjt, ranks_here)

    def spread(self, stack: Stack, ranks: int) -> list[Batch]:
        """The sparse features alone, which say what samples look up."""
        found = []
        for batch in self._batches[:PLACES]:
            features = self._kjt(batch)
            each = torch.ones(features.stride())
            found.append(Batch(dense=each[:, None], features=features, labels=each, weights=each))
        return found

    @cached_property
    def _batches(self) -> list[Any]:
        found: list[Any] = []
        ids = 0
        with self._named("its loader"):
            for batch in islice(self._loader, FIRST):
                found.append(in_own_memory(batch))
                ids += self._kjt(batch).values().numel()
                if ids >= MOST_IDS:
                    break
        if not found:
            raise DataError(
                f"{self.name}: its loader is empty, so that there is nothing to advise on."
            )
        return found

    def _timed(self) -> list[Any]:
        """The batch that the model is timed with."""
        batch, *_ = self._batches
        if not hasattr(batch, "to"):
            kind = type(batch).__name__
            raise DataError(
                f"{self.name}: its batches have no method `to`, so that none goes to a device: "
                f"write `{kind}.to(device, non_blocking=False)`, as TorchRec's pipelines ask."
            )
        return [batch]

    def _kjt(self, batch: Any) -> KeyedJaggedTensor:
        """All that its samples look up, as one."""
        with self._named("what gives a batch's features"):
            every = all_features_of(batch, self.features)
        kjts = []
        for one in every:
            if isinstance(one, SparseFeatures) or not isinstance(one, KeyedJaggedTensor):
                raise DataError(
                    f"{self.name}: its batches hold a {type(one).__name__}, but advice is on "
                    "batches as they are before anything is deduplicated. Have its loader give a "
                    "KeyedJaggedTensor."
                )
            kjts.append(one)
        return kjts[0] if len(kjts) == 1 else self._as_one(kjts)

    def _as_one(self, kjts: Sequence[KeyedJaggedTensor]) -> KeyedJaggedTensor:
        """Their features, without weights: which ids are looked up is what counts."""
        sizes = [kjt.stride() for kjt in kjts]
        if len(set(sizes)) > 1:
            raise DataError(
                f"{self.name}: the KeyedJaggedTensors of a batch have {sizes} samples, so that "
                "nobody knows which go together. Name those alone that have as many."
            )
        by_key: dict[str, JaggedTensor] = {}
        for kjt in kjts:
            by_key = {**kjt.to_dict(), **by_key}
        return KeyedJaggedTensor(
            keys=list(by_key),
            values=torch.cat([one.values() for one in by_key.values()]),
            lengths=torch.cat([one.lengths() for one in by_key.values()]),
        )

    def _named(self, what: str) -> AbstractContextManager[None]:
        return _named(self.name, what)


def _copy_of(model: nn.Module) -> nn.Module:
    """A copy with the same parameters and buffers, themselves."""
    kept = [*model.parameters(), *model.buffers()]
    return copy.deepcopy(model, {id(one): one for one in kept})


@contextmanager
def _named(name: str, what: str) -> Iterator[None]:
    """Inside, an error of the trainer's own code is named as such."""
    try:
        yield
    except RecdError:
        raise
    except Exception as error:
        raise DataError(
            f"{name}: {what} raised {type(error).__name__}{_sentence(error)} Run with --debug for "
            "its traceback."
        ) from error


def _sentence(error: Exception) -> str:
    """What an error says, with a full stop at its end."""
    text = str(error).strip()
    if not text:
        return "."
    return f": {text}" if text[-1] in ".!?" else f": {text}."


def _is_own(value: object, module: ModuleType) -> bool:
    return callable(value) and getattr(value, "__module__", "") == module.__name__


def _module(place: str, name: str) -> ModuleType:
    """The module of a file, or of a dotted name, which is looked for beside the file, or here."""
    if not place.endswith(".py") and ("/" in place or Path(place).is_file()):
        raise DataError(
            f"{name}: {place} is no file of Python. Name one that ends in .py, or a module: "
            "my_trainer.py:parts."
        )
    file = path_of(place, name).resolve() if place.endswith(".py") else None
    if file is not None and not file.is_file():
        raise DataError(f"{name}: there is no file {file}.")
    folder, called = (file.parent, file.stem) if file else (Path.cwd(), place)
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
    with _named(name, "its import"):
        module = importlib.import_module(called)
    if file is not None and Path(module.__file__ or "").resolve() != file:
        raise DataError(
            f"{name}: the name {called!r} is taken by {module.__file__}. Rename the file."
        )
    return module
