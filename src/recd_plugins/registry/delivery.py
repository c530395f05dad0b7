"""The values of a registry that decide on its batches: with them another process makes the same
batches."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recd_plugins.data.dataset import Split, Tables
from recd_plugins.data.progress import silent
from recd_plugins.data.reader.local_reader import table_digest
from recd_plugins.data.table import Table
from recd_plugins.errors import RegistryError, nearest
from recd_plugins.registry.contexts import Contexts
from recd_plugins.registry.feature_steps import FeatureSteps
from recd_plugins.registry.option_files import paths_of
from recd_plugins.registry.periods import Periods
from recd_plugins.registry.plugin_code import made_by
from recd_plugins.registry.prepare import prepared
from recd_plugins.registry.program import digest_of
from recd_plugins.registry.registry import Registry

if TYPE_CHECKING:
    from recd_plugins.data.batch import Batch
    from recd_plugins.sparse.groups import Groups

__all__ = ["Delivery", "OpenDelivery"]

STEPS_OF_BATCHES = ("dedup", "preprocess")
"""The slots whose records change a batch."""
SLOTS_OF_BATCHES = ("log", "dataset", "etl", *STEPS_OF_BATCHES)
"""The slots whose records make a batch from a table's rows, apart from the reader."""
FIELDS = {"values", "base", "providers", "columns"}


@dataclass(frozen=True, kw_only=True)
class Delivery:
    """The part of a registry that decides what a row of its tables becomes in a batch.

    It travels as JSON. Nothing in it is code: a process that opens it imports the plugins that it
    names, as `recd train` does.
    """

    values: Mapping[str, Any]
    """The values as registry.yaml has them, with `dedup.groups` as they were chosen, never
    `auto`."""
    base: str
    """The folder from which relative paths of plugins start."""
    providers: Mapping[str, str]
    """The plugins, with their versions or the digests of their code, that fill each slot; with the
    digests of the files that steps of batches read."""
    columns: Collection[str] | None = None
    """The features and dense columns that are read from the tables; None if all are read."""

    @classmethod
    def of(
        cls, registry: Registry, groups: Groups | None, columns: Collection[str] | None = None
    ) -> Delivery:
        """The delivery of a registry; `groups` are those that its converter takes, if it has
        one."""
        source, train = registry.source.values, registry.train
        values: dict[str, Any] = {
            key: source[key] for key in ("plugins", *SLOTS_OF_BATCHES) if source.get(key)
        }
        if groups is not None and "dedup" in values:
            # Choosing groups anew needs the model and could end differently, so `auto` is replaced.
            dedup, written = registry.one("dedup"), values["dedup"]
            if getattr(dedup.config, "groups", None) == "auto":
                options = dict(written) if isinstance(written, Mapping) else {"use": written}
                values["dedup"] = {**options, "groups": [list(group) for group in groups]}
                if not groups:  # the converter leaves batches as they are
                    del values["dedup"]
        values["folder"] = str(Path(registry.folder).resolve())
        values["train"] = {
            "seed": train.seed,
            "batch_size": train.batch_size,
            "device": "cpu",
        }
        providers = {
            slot: _makers(registry, slot)
            for slot in SLOTS_OF_BATCHES
            if registry.chosen(slot) and slot in values
        }
        plain = json.loads(json.dumps(values, default=str))
        return cls(
            values=plain,
            base=str(registry.source.base.resolve()),
            providers=providers,
            columns=None if columns is None else list(columns),
        )

    @classmethod
    def from_text(cls, text: str) -> Delivery:
        """The delivery that `text` wrote; `RegistryError` if this text is not one."""
        try:
            found = json.loads(text)
        except ValueError as error:
            raise RegistryError(f"a delivery is not JSON ({error}): send it again.") from None
        if not isinstance(found, dict) or found.keys() != FIELDS:
            raise RegistryError(
                f"a delivery has {', '.join(sorted(FIELDS))}, but this has "
                f"{', '.join(map(str, found)) if isinstance(found, dict) else found!r}. Install "
                "the same version of recd-plugins where it is sent and where it is opened."
            )
        return cls(**found)

    def text(self) -> str:
        """The delivery as JSON."""
        return json.dumps({name: getattr(self, name) for name in FIELDS}, sort_keys=True)

    @cached_property
    def digest(self) -> str:
        """A digest of what rows become, which does not depend on where tables and plugins lie."""
        text = json.dumps(self.decides, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @property
    def decides(self) -> Mapping[str, Any]:
        """The values behind the digest: two deliveries that differ here make different
        batches."""
        decides = {key: self.values[key] for key in SLOTS_OF_BATCHES if key in self.values}
        train = {key: self.values["train"][key] for key in ("seed", "batch_size")}
        if self.columns is not None:
            decides["columns"] = list(self.columns)
        return {**decides, "train": train, "providers": dict(self.providers)}

    def open(self) -> OpenDelivery:
        """Read and check it as a registry, ready to make batches."""
        registry = Registry.load(self.values, folder=Path(self.base))
        for slot, theirs in self.providers.items():
            ours = _makers(registry, slot)
            if ours != theirs:
                raise RegistryError(
                    f"{slot}: the trainer has it from {theirs}, but here it is from {ours}; "
                    f"{nearest(theirs, [ours])} Install the same versions, and have the same files."
                )
        return OpenDelivery(registry, self)


class OpenDelivery:
    """The tables and the transform of a delivery, each made when it is asked for."""

    def __init__(self, registry: Registry, delivery: Delivery) -> None:
        self.delivery = delivery
        self._registry = registry
        self._contexts = Contexts(registry=registry, device="cpu", sharders=list)
        self._found = 0
        """The number of the period that was found last; the next search starts there."""

    @property
    def tables(self) -> Tables:
        """The dataset's tables after every `etl` step, with the columns that are read. For a
        dataset that grows, those of its first period with rows."""
        return self._steps.tables

    def table(self, split: Split, digest: str) -> Table | None:
        """The table of a split with this digest, from the dataset or one of its periods; None if
        there is none."""
        if self._periods is None:
            table = self.tables[split]
            return table if table_digest(table) == digest else None
        for begin in sorted({self._found, 0}, reverse=True):
            for number, tables in self._periods.closed(begin):
                table = self._steps.read_of(tables)[split]
                if table_digest(table) == digest:
                    self._found = number
                    return table
        return None

    @cached_property
    def _periods(self) -> Periods | None:
        return Periods.of(self._registry, self._contexts.of)

    @cached_property
    def transform(self) -> Callable[[Batch], Batch] | None:
        """The steps that `dedup` and `preprocess` take with a batch; None if batches stay as they
        are."""
        return self._steps.transform

    @cached_property
    def _steps(self) -> FeatureSteps:
        def found(notices: object) -> None:
            """Ignores notices, since the trainer's own stack has given them."""

        tables = cache(lambda: prepared(self._registry, self._contexts.of, silent))
        return FeatureSteps(self._registry, self._contexts, tables, found, self.delivery.columns)


def _makers(registry: Registry, slot: str) -> str:
    """The providers of a slot. Steps of batches include the digests of the files that they read;
    tables have their own digests."""
    makers = []
    for choice in registry.chosen(slot):
        paths = paths_of(choice) if slot in STEPS_OF_BATCHES else []
        files = [f"{path.name} {digest_of(path)[:12]}" for path in paths if path.is_file()]
        makers.append(" with ".join([made_by(choice), *files]))
    return ", ".join(makers)
