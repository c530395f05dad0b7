"""The steps of a batch's sparse features on the way to the model: `preprocess`, then `dedup`."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, Any, cast
from weakref import ReferenceType, ref

from recd_plugins.data.dataset import Tables
from recd_plugins.data.preprocess.steps import (
    ChosenTransform,
    Step,
    completed,
    joined_by,
    made_of,
    narrowed,
    needed,
    schema_of_keys,
    steps_of,
)
from recd_plugins.data.schema import Schema
from recd_plugins.errors import (
    CapabilityError,
    PluginError,
    RegistryError,
    check_made,
    listed,
    nearest,
    shown,
)
from recd_plugins.notices import Notice, Unused
from recd_plugins.patterns import check_patterns
from recd_plugins.planning.access.look import Look
from recd_plugins.planning.cluster.cluster import Cluster
from recd_plugins.registry.checked_groups import (
    check_converter_groups,
    check_group_features,
    check_unique_shares,
)
from recd_plugins.registry.choice import Choice
from recd_plugins.registry.contexts import Contexts
from recd_plugins.registry.plugin_code import made_by
from recd_plugins.registry.registry import Registry
from recd_plugins.slots import DedupConverter, Explains, Loader, ModelRecord, Reader

if TYPE_CHECKING:
    from torch import nn
    from torch.distributed import ProcessGroup
    from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

    from recd_plugins.data.batch import Batch
    from recd_plugins.data.preprocess.batch_transform import BatchTransform
    from recd_plugins.data.preprocess.conversion import Conversion
    from recd_plugins.registry.delivered_batches import DeliveredBatches
    from recd_plugins.sparse.groups import Groups
    from recd_plugins.sparse.id_bounds import IdBounds
    from recd_plugins.sparse.own_batches import FeaturesOf

__all__ = ["FeatureSteps"]

DECIDING_KEYS = ("dataset", "etl", "reader", "dedup", "preprocess", "model", "pooling")
"""The keys of registry.yaml that decide about batches and about what they are for."""


class FeatureSteps:
    """The chosen transforms and converter, each built once, for batches of a registry's dataset or
    of a trainer's own."""

    def __init__(
        self,
        registry: Registry,
        contexts: Contexts,
        prepare: Callable[[], Tables],
        found: Callable[[Sequence[Notice]], None],
        columns: Collection[str] | None = None,
    ) -> None:
        """`prepare` gives the tables, whole; `found` is handed the notices of the converter.
        `columns` are those that are read from the tables, if another process has already found
        them."""
        self._found = found
        self._columns = columns
        self._registry = registry
        self._contexts = contexts
        self._prepare = prepare
        self._looked_at: tuple[KeyedJaggedTensor, ...] = ()
        """The features of some of the trainer's own batches."""
        self._model: ReferenceType[nn.Module] | None = None
        """The trainer's model, before it is adapted."""
        self._converts = False
        self.group: ProcessGroup | None = None
        """The ranks that train, if these are not all ranks of the job; else None."""

    def take_model(self, model: nn.Module) -> None:
        """Take the model that the trainer is about to adapt."""
        self._model = ref(model)

    @property
    def model(self) -> nn.Module | None:
        """The model that the trainer adapted last; None if there is none or it is gone."""
        return None if self._model is None else self._model()

    def look_at(self, batches: Iterable[Any], features: FeaturesOf | None) -> None:
        """Have the converter choose by some of the trainer's batches on rank 0."""
        if not self._registry.chosen("dedup"):
            return
        import torch.distributed as dist

        from recd_plugins.planning.together import agreed, together
        from recd_plugins.sparse.own_batches import sample_size, sampled_features

        if "converter" in self.__dict__:
            raise CapabilityError(
                "stack.adapt: it was decided which features are deduplicated before stack.adapt "
                "looked at batches: convert batches after stack.adapt, and call it once, with "
                "`batches`."
            )
        group = self.group or (dist.GroupMember.WORLD if dist.is_initialized() else None)
        plans = group is None or group.rank() == 0
        with Look(batches) as look:
            # Every rank reads as many as rank 0, since a loader may call collectives.
            count = agreed(lambda: sample_size(look.first, features), self.group)
            found: tuple[KeyedJaggedTensor, ...] = ()

            def read() -> int:
                nonlocal found
                reading = islice(look, count)
                if plans:
                    found = sampled_features(reading, features)
                return sum(1 for _ in reading)

            _ = read() if group is None else together(group, read)
            self._looked_at = agreed(lambda: found, self.group)
        for known in ("columns", "steps", "_all_steps", "tables"):
            self.__dict__.pop(known, None)  # they were for the dataset's batches

    @property
    def of_own_batches(self) -> bool:
        """Whether a trainer's own batches are converted, rather than those of a dataset."""
        return self._converts or bool(self._looked_at) or not self._registry.has_dataset

    def conversion(self) -> Conversion:
        """The conversion of a trainer's own KJT by these steps."""
        from recd_plugins.data.preprocess.conversion import Conversion, check_own

        check_own(self.transforms)
        self._converts = True
        return Conversion(self.transforms, self.converter, self._who_converts)

    @property
    def transforms(self) -> list[ChosenTransform]:
        """The transforms that `preprocess` chose, built."""
        return [one for one, _ in self._chosen_transforms]

    @cached_property
    def _chosen_transforms(self) -> list[tuple[ChosenTransform, Choice]]:
        chosen = []
        for choice in self._registry.chosen("preprocess"):
            where = self._registry.source.locate(choice.where)
            transform = ChosenTransform(
                who=f"{where or choice.where}: preprocess {choice.record.name!r} of "
                f"{choice.provider}",
                where=where,
                features=choice.features,
                transform=choice.build(self._contexts.of("preprocess")),
                label=choice.record.name,
            )
            chosen.append((transform, choice))
        return chosen

    @cached_property
    def steps(self) -> list[Step]:
        """The steps of `preprocess`, in order."""
        if self.columns is None:
            return self._all_steps
        return narrowed(self._all_steps, self.read_schema)

    @cached_property
    def _all_steps(self) -> list[Step]:
        """The steps for all features, whether they are read or not."""
        return steps_of(self.transforms, self.whole_schema) if self.transforms else []

    @property
    def whole_schema(self) -> Schema:
        """The whole schema of the tables, or that of the trainer's own batches."""
        if self._looked_at:
            from recd_plugins.data.preprocess.conversion import check_own

            check_own(self.transforms)
            return schema_of_keys(self._looked_at[0].keys())
        if self._registry.has_dataset:
            return self._prepare().schema
        raise CapabilityError(
            "preprocess: it is not known which features there are, because registry.yaml has no "
            "dataset. Pass your own batches: `stack.adapt(model, batches=loader)`."
        )

    @property
    def read_schema(self) -> Schema:
        """The schema of what `preprocess` gets."""
        return self.whole_schema if self.columns is None else self.whole_schema.having(self.columns)

    @property
    def schema(self) -> Schema:
        """The schema of what comes out of `preprocess`."""
        return self.steps[-1].after() if self.steps else self.read_schema

    @property
    def schema_from_whole(self) -> Schema:
        """The schema that would come out of `preprocess` if all columns were read."""
        return self._all_steps[-1].after() if self._all_steps else self.whole_schema

    @cached_property
    def columns(self) -> Collection[str] | None:
        """The features and dense columns that are read from the tables: those that the registry's
        model takes, those from which a transform makes them, and those that `dataset.features`
        names. None if that is all, or if it is unknown what the model takes."""
        if self._columns is not None or not self.says_what_it_takes:
            return self._columns
        (choice,) = self._registry.chosen("model")
        takes = cast("ModelRecord[Any]", choice.record).takes
        assert takes is not None  # it says what it takes
        with choice.named("when asked what its model takes"):
            taken = takes(choice.config, self.schema_from_whole)
        _check_taken(taken, self.schema_from_whole, f"{choice.who}: its `takes`")
        wanted = completed(self._all_steps, needed(self._all_steps, taken) | self._named)
        every = (*self.whole_schema.dense, *self.whole_schema.sparse_names)
        kept = tuple(name for name in every if name in wanted)
        return None if kept == every else kept

    @property
    def says_what_it_takes(self) -> bool:
        """Whether the tables are read for a model whose record says what it takes."""
        choices = self._registry.chosen("model")
        if self._looked_at or not self._registry.has_dataset or not choices:
            return False
        return cast("ModelRecord[Any]", choices[0].record).takes is not None

    @property
    def _named(self) -> frozenset[str]:
        """The names in `dataset.features`, without globs, if the dataset can select."""
        config: Any = self._registry.one("dataset").config
        asked = getattr(config, "features", ()) if hasattr(config, "without") else ()
        return frozenset([asked] if isinstance(asked, str) else asked)

    @cached_property
    def tables(self) -> Tables:
        """The tables with the columns that are read."""
        return self.read_of(self._prepare())

    def read_of(self, whole: Tables) -> Tables:
        """Tables with the columns that are read."""
        columns = self.columns
        if columns is None:
            return whole
        return Tables(train=whole.train.having(columns), test=whole.test.having(columns))

    @property
    def left_out(self) -> tuple[str, ...]:
        """The tables' features that are not read."""
        read = {*self.read_schema.sparse_names}
        return tuple(name for name in self.whole_schema.sparse_names if name not in read)

    def unneeded(self, looked_up: Collection[str]) -> tuple[str, ...]:
        """The tables' features that no lookup needs: neither they nor what a transform makes of
        them is looked up. A feature that `dataset.features` names is not among them."""
        named = self._named if self.says_what_it_takes else frozenset()
        wanted = completed(self.steps, needed(self.steps, looked_up) | named)
        return tuple(name for name in self.read_schema.sparse_names if name not in wanted)

    def weighing(
        self, looked_up: Collection[str], *, own: bool
    ) -> Iterator[tuple[Choice, tuple[str, ...]]]:
        """The transforms that give weights to ids, each with the features whose ids get them.
        `own`: for a trainer's own batches, of which only what its model has `looked_up` is
        known."""
        chosen = [one for one in self.transforms if not own or not one.dense]
        if not chosen:
            return
        try:
            keys = schema_of_keys(sorted(looked_up))
            steps = steps_of(chosen, keys) if own and not self._looked_at else self._all_steps
        except RegistryError:  # a step names features that the trainer's model does not look up
            return
        choices = {id(one.transform): choice for one, choice in self._chosen_transforms}
        for step in steps:
            if not step.dense and step.takes and (names := step.weighed):
                yield choices[id(step.transform)], names

    def check(self) -> None:
        """Check that the features that `preprocess` and `pooling` name exist, and that the model
        can take those that it asks for, as far as its record says that."""
        _ = self.columns
        names = self.schema_from_whole.sparse_names
        for choice in self._registry.chosen("pooling"):
            where = self._registry.source.locate(choice.where)
            check_patterns(choice.features, names, kind="feature", where=where)

    @cached_property
    def converter(self) -> DedupConverter | None:
        if not self._registry.chosen("dedup"):
            return None
        reads = self._registry.has_dataset
        tables = self.tables if reads else None
        schema = self.read_schema if reads or self._looked_at else None
        context = self._contexts.of("dedup", schema, tables)
        context = dataclasses.replace(
            context,
            looked_at=self._looked_at,
            left_out=self.left_out if schema is not None else (),
            delivered=None if tables is None or self._looked_at else self._delivered(tables),
            model=self._model_as_it_is,
            preprocessed=self._preprocessed,
            joined=joined_by(self.steps) if schema is not None else (),
            made=made_of(self.steps) if schema is not None else {},
            cluster=Cluster.of(self._registry.topology, self._world_size),
            group=self.group,
        )
        choice = self._registry.one("dedup")
        converter: DedupConverter = choice.build(context)
        self._found(choice.notices(converter))
        return converter

    def _delivered(self, tables: Tables) -> DeliveredBatches:
        from recd_plugins.registry.delivered_batches import DeliveredBatches

        reader: Reader = self._registry.one("reader").build(self._contexts.of("reader"))
        train, world_size = self._registry.train, self._world_size

        def open_loader(rank: int, transform: Callable[[Batch], Batch]) -> Loader:
            return reader.loader(
                tables.train,
                rank=rank,
                world_size=world_size,
                batch_size=train.batch_size,
                split="train",
                transform=transform,
            )

        values = self._registry.source.values
        # What `dedup` chooses by these batches has no effect on them.
        decides = {slot: values.get(slot) for slot in DECIDING_KEYS if slot != "dedup"}
        stripes = [(one.file.name, one.group, one.num_rows) for one in tables.train.stripes]
        settings = [train.batch_size, train.seed, train.threads, world_size, train.device]
        makers = [made_by(one) for slot in DECIDING_KEYS for one in self._registry.chosen(slot)]
        text = json.dumps([decides, stripes, settings, makers], sort_keys=True, default=str)
        return DeliveredBatches(
            open_loader,
            world_size=world_size,
            batch_size=train.batch_size,
            digest=hashlib.sha256(text.encode()).hexdigest()[:16],
        )

    def _model_as_it_is(self) -> nn.Module | None:
        """The trainer's model, or else the registry's; building it does not change later random
        numbers."""
        model = self.model
        if model is None and self._registry.has_dataset and self._registry.chosen("model"):
            import torch

            with torch.random.fork_rng(devices=[]):
                context = self._contexts.of("model", self.schema)
                model = self._registry.one("model").build(context)
        return model

    def _preprocessed(self, features: KeyedJaggedTensor) -> KeyedJaggedTensor:
        from recd_plugins.data.preprocess.batch_transform import BatchTransform, row_wise

        made, _ = BatchTransform(row_wise(self.steps)).of(features)
        return made

    @property
    def _world_size(self) -> int:
        import torch.distributed as dist

        joined = dist.is_available() and dist.is_initialized()
        return dist.get_world_size(self.group) if joined else self._registry.train.ranks

    @cached_property
    def groups(self) -> Groups:
        """The features that are deduplicated in batches, by group."""
        if self.converter is None:
            return ()
        groups: Groups | None = getattr(self.converter, "groups", None)
        if groups is None:
            raise CapabilityError(
                f"{self._who_converts}: {type(self.converter).__name__} does not name the features "
                "that it deduplicates, so no model can be adapted to its batches. Give the "
                "converter an attribute `groups`, a tuple of tuples of features."
            )
        check_converter_groups(groups, self._who_converts)
        if self._registry.has_dataset or self._looked_at:
            known = self.whole_schema.sparse_names
            check_group_features(groups, known, made_of(self.steps), self._who_converts)
        if not groups and not isinstance(self.converter, Explains):  # else it says why
            choice = self._registry.one("dedup")
            self._found([_takes_none(choice)])
        for step in self.steps if groups else []:
            groups = step.groups(groups)
        return groups

    @property
    def are_advised(self) -> bool:
        """Whether the converter chose the groups itself."""
        return bool(getattr(self.converter, "advised", False))

    @property
    def unique_shares(self) -> Sequence[float] | None:
        """Each group's unique samples over the batch size; None if the converter does not know
        them."""
        shares: Sequence[float] | None = getattr(self.converter, "unique_shares", None)
        if shares is None:
            return None
        of: Groups = getattr(self.converter, "groups", ())
        check_unique_shares(shares, of, self._who_converts)
        return shares

    def explain(self) -> str:
        """Why batches are deduplicated as they are; empty if the converter does not explain it."""
        converter: object = self.converter
        if not isinstance(converter, Explains):
            return ""
        with self._registry.one("dedup").named("when asked why batches are deduplicated so"):
            why = converter.explain()
        whose = f"{self._who_converts}: its `explain` returned"
        check_made(why, str, whose, "Return why batches are deduplicated so, in words.")
        return why

    @property
    def transform(self) -> BatchTransform | None:
        """The transform that a reader's batches go through; None if they stay as they are."""
        converter = self.converter
        self._found([*self._for_nothing()])
        if getattr(converter, "groups", None) == ():
            converter = None  # it would only cost some microseconds for each batch
        if not self.steps and not converter:
            return None
        if getattr(converter, "groups", None) or any(step.changes_keys for step in self.steps):
            _ = self.groups  # it refuses wrong ones, and steps that unique samples do not allow
        from recd_plugins.data.preprocess.batch_transform import BatchTransform, batch_steps

        bounds = self._id_bounds(converter)
        return BatchTransform(batch_steps(self.steps), converter, bounds, self._who_converts)

    def _id_bounds(self, converter: DedupConverter | None) -> IdBounds:
        """The rows of each feature's table, and who makes its ids if it is not the reader."""
        from recd_plugins.sparse.id_bounds import IdBounds

        num_ids = {one.name: one.num_ids for one in self.schema.sparse}
        makers = {}
        if converter is not None:
            who = f"{self._who_converts} made"
            taken = getattr(converter, "groups", None) or ()
            makers = {name: who for group in taken for name in group}
        for step in (one for one in self.steps if one.takes):
            names = step.made_of_dense().sparse_names if step.dense else step.names(step.takes)
            makers |= dict.fromkeys(names, f"{step.who} made")
        return IdBounds(num_ids, makers)

    def _for_nothing(self) -> Iterator[Notice]:
        """Notices of transforms whose features or columns are not read at all."""
        left = {id(step.transform) for step in self.steps}
        choices = {id(one.transform): choice for one, choice in self._chosen_transforms}
        for step in self._all_steps if self.columns is not None else ():
            if step.takes and id(step.transform) not in left:
                kind = "dense column" if step.dense else "feature"
                yield Unused(
                    what=choices[id(step.transform)].what,
                    why=f"nothing reads {listed(step.takes, kind=kind)}, because the model takes "
                    "neither that nor what is made of it",
                    cure="Take it out, or let the model take the result: models of recd_dlrm do by "
                    "`model.features`.",
                )

    @property
    def _who_converts(self) -> str:
        """The converter's record and its place in registry.yaml, for messages."""
        return self._registry.one("dedup").who if self._registry.chosen("dedup") else "dedup"


def _takes_none(choice: Choice) -> Unused:
    return Unused(
        what=choice.what,
        why="its converter has no `groups`, so batches stay as they are",
        cure="Let it name features in `groups`, or give the reason why it takes none in an "
        "`explain`; or take `dedup` out of registry.yaml.",
    )


def _check_taken(taken: Any, schema: Schema, whose: str) -> None:
    """`PluginError` if a model's record says that its model takes features that do not exist."""
    known = (*schema.dense, *schema.sparse_names)
    if not isinstance(taken, Collection) or isinstance(taken, str):
        raise PluginError(
            f"{whose} returned {shown(taken)}, where it must return a list of the features and "
            "dense columns that its model takes."
        )
    for name in taken:
        if name not in known:
            raise PluginError(
                f"{whose} names {shown(name)}, which does not exist; {nearest(str(name), known)}"
            )
