"""The model and the batches that an advice is on: those of a registry, or those of a user's own
trainer."""

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

from recd_plugins.advise.rank_compute import LARGEST, rank_compute
from recd_plugins.config import path_of
from recd_plugins.data.batch import Batch
from recd_plugins.data.preprocess.steps import schema_of_keys
from recd_plugins.data.progress import Progress
from recd_plugins.errors import DataError, RecdError, listed, nearest
from recd_plugins.planning.access.sample import FIRST, SpreadsBatches, count_sample
from recd_plugins.sparse.features import SparseFeatures
from recd_plugins.sparse.own_batches import all_features_of, in_own_memory
from recd_plugins.stack import Stack
from recd_plugins.stack.looked_up import behind_collisions

if TYPE_CHECKING:
    from recd_plugins.data.schema import Schema
    from recd_plugins.planning.access.access_profile import Counted, Profile
    from recd_plugins.planning.step.compute import Compute
    from recd_plugins.sparse.own_batches import FeaturesOf

__all__ = ["ModelAndBatches", "ModelOfRegistry", "ModelOfTrainer"]

COUNTING = "batches counted"
"""What is reported while batches are counted."""
PLACES = 8
"""The number of places in an epoch whose batches are sampled."""
MOST_IDS = 1 << 26
"""About the most ids of a trainer's batches that are held."""


class ModelAndBatches(ABC):
    """The model and the batches of outlooks; each method gets the stack of the registry that is
    being weighed."""

    @abstractmethod
    def schema(self, stack: Stack, progress: Progress) -> Schema:
        """The columns of the batches, before any `etl` step."""

    @abstractmethod
    def model(self, stack: Stack, progress: Progress) -> nn.Module:
        """The model, adapted to what the stack deduplicates."""

    @abstractmethod
    def profile(self, stack: Stack, counted: Mapping[str, Counted], progress: Progress) -> Profile:
        """The forecast lookups, for batches as the adapted model gets them."""

    @abstractmethod
    def compute(self, stack: Stack, ranks: int, ranks_here: int) -> Compute:
        """The compute of the model; the stack is that of a registry that deduplicates nothing."""

    @abstractmethod
    def spread(self, stack: Stack, ranks: int) -> list[Batch]:
        """Some batches from all over the epoch; empty if its loader cannot begin anywhere."""


class ModelOfRegistry(ModelAndBatches):
    """The registry's own model and dataset."""

    def __init__(self) -> None:
        self._models: dict[str, nn.Module] = {}
        """The models before they are adapted, by all that they are built from."""

    def schema(self, stack: Stack, progress: Progress) -> Schema:
        return stack.prepare(progress).schema

    def model(self, stack: Stack, progress: Progress) -> nn.Module:
        """The adapted model; it is built once for all registries that have the same model, since
        only its shapes and names count."""
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

    def profile(self, stack: Stack, counted: Mapping[str, Counted], progress: Progress) -> Profile:
        return stack.profile(counted, met=lambda count: progress(COUNTING, count, None))

    def compute(self, stack: Stack, ranks: int, ranks_here: int) -> Compute:
        """The compute by a batch and by one with a quarter of its samples, so that the time that
        does not grow with the batch is known."""

        def batches() -> Iterator[Batch]:
            size = min(stack.registry.train.batch_size, LARGEST)
            for some in dict.fromkeys((max(1, size // 4), size)):
                with closing(Stack(stack.registry.with_batch_size(some)).read(0, ranks)) as loader:
                    yield next(iter(loader))

        model = partial(self._built, stack)
        return rank_compute(stack, model, batches, lambda batch: batch.features, ranks_here)

    def spread(self, stack: Stack, ranks: int) -> list[Batch]:
        with closing(stack.read(0, ranks)) as loader:
            if not isinstance(loader, SpreadsBatches):
                return []
            return [batch for _, batch in loader.spread(range(min(PLACES, loader.places)), 1)]


class ModelOfTrainer(ModelAndBatches):
    """The model of a user's own trainer, and the first batches of its loader, not converted."""

    def __init__(
        self,
        model: nn.Module,
        loader: Iterable[Any],
        features: FeaturesOf | None = None,
        *,
        name: str = "the trainer",
    ) -> None:
        """`features(batch)` gives a batch's KJT, or a list of several, of which the first may be
        deduplicated; by default the only KJT in the batch. `name` is for messages. It holds as many
        batches as planners count from a trainer's loader, unless they have more than `MOST_IDS`
        ids; they are read when the first is needed."""
        self._model, self._loader, self.features, self.name = model, loader, features, name
        self.of_no_row: Mapping[str, float] = {}
        """The share of each table's looked-up ids that belong to no row; empty until they are
        counted."""
        self.collided: Sequence[str] = ()
        """The tables behind a managed collision, which maps ids to rows, so that these are not
        counted."""

    @classmethod
    def named(cls, name: str) -> ModelOfTrainer:
        """The trainer of the function that `FILE.py:FUNCTION` or `MODULE:FUNCTION` names. The
        function returns a model and a loader of batches for it, and also `features` if batches hold
        more than one KJT."""
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
        """The trainer's own model if it stays unchanged, or else a copy that shares its parameters.
        None of these is trained, and whatever names their optimizers stays attached to them."""
        if not stack.registry.chosen("dedup"):
            return self._model
        model = _copy_of(self._model)
        return stack.adapt(model, batches=self._batches, features=self.features)

    def profile(self, stack: Stack, counted: Mapping[str, Counted], progress: Progress) -> Profile:
        convert = stack.converting(features=self.features)
        # An iterator, since these batches are not an epoch but only its first ones.
        batches = (convert(batch) for batch in self._batches)
        most = len(self._batches)
        counts = count_sample(
            batches,
            counted,
            most=most,
            features=self.features,
            met=lambda count: progress(COUNTING, count, most),
        )
        profile = counts.profile()
        if not stack.groups:  # unique samples have other shares of the same ids
            self._check_rows(counts.shares_of_no_row(profile))
        return profile

    def _check_rows(self, shares: Mapping[str, float]) -> None:
        """`DataError` if most ids of a table belong to no row, by the `shares` of such ids, so that
        it is unknown which rows are looked up."""
        self.collided = behind_collisions(self._model)
        self.of_no_row = {name: one for name, one in shares.items() if name not in self.collided}
        if strange := [name for name, share in self.of_no_row.items() if share > 0.5]:
            raise DataError(
                f"{self.name}: most ids of its batches for {listed(strange, kind='table')} have no "
                "row. So the model may map ids before it looks them up, and it is unknown which "
                "rows it looks up. Let the function return a third thing, `lambda batch: ...`, "
                "which gives a KeyedJaggedTensor of the ids that the model looks up; or map them "
                "in the loader."
            )

    def compute(self, stack: Stack, ranks: int, ranks_here: int) -> Compute:
        with self._named("its model, called with a batch as TorchRec's pipeline calls it,"):
            return rank_compute(stack, lambda: self._model, self._timed, self._kjt, ranks_here)

    def spread(self, stack: Stack, ranks: int) -> list[Batch]:
        """Batches with only the sparse features, which show what samples look up."""
        found = []
        for batch in self._batches[:PLACES]:
            features = self._kjt(batch)
            each = torch.ones(features.stride(), device="cpu")
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
                f"{self.name}: its loader is empty, so there is nothing to advise on. Let it yield "
                "batches as they are trained on."
            )
        return found

    def _timed(self) -> list[Any]:
        """The batch that the model is timed with."""
        batch, *_ = self._batches
        if not hasattr(batch, "to"):
            kind = type(batch)
            own = "write" if kind.__module__ != "builtins" else "make them of a class that has"
            raise DataError(
                f"{self.name}: its batches, {kind.__name__}, have no method `to`, so none can go "
                f"to a device: {own} `to(self, device, non_blocking=False)`, as TorchRec's "
                "pipelines ask."
            )
        return [batch]

    def _kjt(self, batch: Any) -> KeyedJaggedTensor:
        """All that a batch's samples look up, as one KJT."""
        with self._named("what gives a batch's features"):
            every = all_features_of(batch, self.features)
        kjts = []
        for one in every:
            if isinstance(one, SparseFeatures) or not isinstance(one, KeyedJaggedTensor):
                raise DataError(
                    f"{self.name}: its batches hold a {type(one).__name__}, but advice needs "
                    "batches as they are before anything is deduplicated. Let its loader give a "
                    "KeyedJaggedTensor."
                )
            kjts.append(one)
        return kjts[0] if len(kjts) == 1 else self._as_one(kjts)

    def _as_one(self, kjts: Sequence[KeyedJaggedTensor]) -> KeyedJaggedTensor:
        """One KJT with the features of all, without weights, since only the looked-up ids count."""
        sizes = [kjt.stride() for kjt in kjts]
        if len(set(sizes)) > 1:
            raise DataError(
                f"{self.name}: the KeyedJaggedTensors of a batch have {sizes} samples, so it is "
                "unknown which belong together. Name only those that have the same number."
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
    """A copy of the model that shares its parameters and buffers."""
    kept = [*model.parameters(), *model.buffers()]
    return copy.deepcopy(model, {id(one): one for one in kept})


@contextmanager
def _named(name: str, what: str) -> Iterator[None]:
    """Inside, an error in the trainer's code becomes a `DataError` that names the trainer."""
    try:
        yield
    except RecdError:
        raise
    except (Exception, SystemExit) as error:
        raise DataError(
            f"{name}: {what} raised {type(error).__name__}{_sentence(error)} Run recd with --debug "
            "for its traceback."
        ) from error


def _sentence(error: BaseException) -> str:
    """The message of an error as the end of a sentence, with a full stop."""
    text = str(error).strip()
    if not text:
        return "."
    return f": {text}" if text[-1] in ".!?" else f": {text}."


def _is_own(value: object, module: ModuleType) -> bool:
    return callable(value) and getattr(value, "__module__", "") == module.__name__


def _module(place: str, name: str) -> ModuleType:
    """The module of a file, or of a dotted name; imports also search the file's folder, or the
    current one."""
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
