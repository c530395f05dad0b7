"""Checks registry.yaml, and makes a choice of each record that it names. All is checked before
anything is built."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any, get_args

from recd_plugins.config import Config, option_path, parse, path_of
from recd_plugins.config.yaml_text import read_yaml
from recd_plugins.data.foreign import ForeignSchema
from recd_plugins.data.importing.schema_file import load_schema, options_of_schema
from recd_plugins.describe import type_hints
from recd_plugins.errors import (
    PluginError,
    RecdError,
    RegistryError,
    listed,
    nearest,
    shown,
)
from recd_plugins.hooks.catalog import Catalog
from recd_plugins.notices import Empty, LeftOut
from recd_plugins.planning.cluster.topology import PRESETS, Topology, topology_and_notices
from recd_plugins.planning.remembered import remembered
from recd_plugins.registry.capability import check_needs
from recd_plugins.registry.choice import KEYS, Choice, slot_of
from recd_plugins.registry.settings import TrainSettings
from recd_plugins.registry.source import Source
from recd_plugins.slots import (
    HOST_USES,
    SLOTS,
    Record,
    ShardingRecord,
    stands_in_front,
)
from recd_plugins.storage.uri import location_of

__all__ = ["Registry", "plugin_names"]

DEFAULT_USES = {"reader": "local", "sharding": "torchrec"}
"""The records that fill slots which registry.yaml does not name: plain TorchRec."""


@dataclass(frozen=True, kw_only=True)
class Registry:
    """A checked registry: what fills each slot, and how and on what to train."""

    plugins: tuple[str, ...]
    choices: Mapping[str, tuple[Choice, ...]]
    topology: Topology
    train: TrainSettings
    folder: Path
    """The folder of prepared tables."""
    strict: bool
    """Whether it is an error, and not only a warning, if something is switched on and not used."""
    source: Source = field(repr=False)
    catalog: Catalog = field(repr=False)
    empty: tuple[Empty, ...]
    """Notices of the keys of a topology's file that have nothing behind them."""

    @classmethod
    def load(
        cls,
        registry: str | Path | Mapping[str, Any],
        overrides: Sequence[str] = (),
        folder: Path | None = None,
    ) -> Registry:
        """Read, override and check a registry; `RecdError` says what is wrong with it.

        Relative paths of plugins start from the folder of the registry's file; for a mapping, from
        `folder`.
        """
        source = dataclasses.replace(Source.read(registry, overrides), folder=folder)
        try:
            loaded = _checked(source)
        except RegistryError as error:
            located = source.locate(error.where)
            message = f"{located}: {error.message}" if located else error.message
            raise RegistryError(message) from error
        return loaded

    def chosen(self, slot: str) -> tuple[Choice, ...]:
        return self.choices.get(slot, ())

    def chosen_or_all(self, slot: str) -> tuple[tuple[Choice, ...], tuple[LeftOut, ...]]:
        """The records that registry.yaml chose for a slot. If it does not name the slot, all
        records that there are, with default options, and notices of those that cannot be used
        so."""
        if slot in self.choices:
            return self.choices[slot], ()
        found, left_out = [], []
        for claim in self.catalog.of(slot):
            record, where = claim.record, f"{slot} {claim.record.name!r} of {claim.provider}"
            try:
                check_needs(record, self.train.device, self.choices.keys(), slot, claim.provider)
                config: Config = parse(record.config, {}, where)
            except RecdError as error:
                cure = f"Choose it in registry.yaml, `{slot}: [{{use: {record.name}, ...}}]`."
                left_out.append(LeftOut(what=f"{slot}: {record.name}", why=str(error), cure=cure))
                continue
            found.append(Choice(record=record, config=config, provider=claim.provider, where=slot))
        return tuple(found), tuple(left_out)

    @property
    def has_dataset(self) -> bool:
        """Whether registry.yaml names a dataset; else all batches are the trainer's own."""
        return "dataset" in self.choices

    def written(self, *path: str) -> Mapping[str, Any]:
        """The values under a path in registry.yaml itself, without defaults."""
        values: Mapping[str, Any] = self.source.values
        for key in path:
            values = values.get(key) or {}
        return values

    def with_batch_size(self, batch_size: int) -> Registry:
        """The same registry with `batch_size` samples per rank."""
        values = dict(self.source.values)
        values["train"] = {**(values.get("train") or {}), "batch_size": batch_size}
        return dataclasses.replace(
            self,
            train=dataclasses.replace(self.train, batch_size=batch_size),
            source=dataclasses.replace(self.source, values=values),
        )

    def with_streams(self, streams: int | None) -> Registry:
        """The same registry whose reader has so many streams; this registry itself if `streams` is
        None or unchanged."""
        if streams is None:
            return self
        reader, values = self.one("reader"), dict(self.source.values)
        config: Any = reader.config
        if config.streams == streams:
            return self
        reader = dataclasses.replace(reader, config=dataclasses.replace(config, streams=streams))
        values["reader"] = {**values["reader"], "streams": streams}
        return dataclasses.replace(
            self,
            choices={**self.choices, "reader": (reader,)},
            source=dataclasses.replace(self.source, values=values),
        )

    def having(self, values: Mapping[str, Any]) -> Registry:
        """A checked registry of other values in the same folder; `RecdError` says what is wrong
        with them."""
        source = Source.read(values, ())
        return _checked(dataclasses.replace(source, folder=self.source.base))

    def one(self, slot: str) -> Choice:
        """The choice of a slot that takes one record; `RegistryError` if nothing fills it."""
        choices = self.chosen(slot)
        if not choices:
            known = [claim.record.name for claim in self.catalog.of(slot)]
            path, lines = self.source.path, self.source.lines
            blank = f"{path}: is empty, or has comments alone: " if path and not lines else ""
            raise RegistryError(
                f"{blank}nothing fills the slot {slot!r}. Add `{slot}: {{use: ...}}` to "
                f"{self.source.path or 'registry.yaml'}; {nearest('', known)} "
                f"`recd plugins {slot}` lists what all installed plugins provide."
            )
        return choices[0]


def _checked(source: Source) -> Registry:
    """The registry that a source has; `RegistryError` says what is wrong with it, and where."""
    for key in source.values:
        if key not in KEYS:
            of_train = option_path(TrainSettings, str(key))
            hint = f"did you mean 'train.{of_train}'?" if of_train else nearest(str(key), KEYS)
            raise RegistryError(f"unknown key {shown(key)}; {hint}", str(key))
    settings = _mapping(source.values.get("train"), "train")
    _check_level(settings, TrainSettings, "train")
    train = parse(TrainSettings, settings, "train")
    topology, empty = _topology(source.values.get("topology"), source.base)
    plugins = plugin_names(source.values.get("plugins"))
    catalog = _catalog(plugins, source)
    source = _with_schema(source, catalog)
    values = source.values
    filled = {slot: {"use": use} for slot, use in DEFAULT_USES.items()}
    filled.update({slot: values[slot] for slot in SLOTS if values.get(slot) is not None})
    choices = {
        slot: tuple(_choices(slot, filled[slot], catalog)) for slot in SLOTS if slot in filled
    }
    if "cache" in choices:
        (cache,), (sharding,) = choices["cache"], choices["sharding"]
        choices["cache"] = (_before_sharding(cache, sharding, values),)
    choices = {slot: tuple(_with_lines(one, source) for one in of) for slot, of in choices.items()}
    chosen = [choice for group in choices.values() for choice in group]
    every = [each for choice in chosen for each in _with_others(choice)]
    for choice in every:
        check_needs(choice.record, train.device, choices.keys(), choice.where, choice.provider)
    _check_uses(every, choices.keys())
    return Registry(
        plugins=plugins,
        choices=choices,
        topology=topology,
        train=train,
        folder=_folder(values.get("folder")),
        strict=_strict(values.get("strict")),
        source=source,
        catalog=catalog,
        empty=tuple(empty.values()),
    )


def _catalog(plugins: Sequence[str], source: Source) -> Catalog:
    """The records of these plugins; an error in a plugin says where registry.yaml names it."""
    named = Catalog, *plugins, source.base
    catalog = remembered(named, lambda: Catalog(plugins, source.base, strict=False))
    for name, error in catalog.broken.items():
        # If a name stands there twice, the second is the wrong one.
        places = [index for index, one in enumerate(plugins) if one == name]
        where = f"plugins[{places[:2][-1]}]" if places else "plugins"
        if isinstance(error, RegistryError):
            raise RegistryError(str(error), where) from error
        raise PluginError(f"{source.locate(where)}: {error}") from error
    return catalog


def _with_schema(source: Source, catalog: Catalog) -> Source:
    """The source with the foreign schema itself in place of the file that `dataset.schema` names.
    So whatever any process makes from a registry is identified by the content of that file."""
    dataset = source.values.get("dataset")
    if not isinstance(dataset, Mapping) or not isinstance(dataset.get("schema"), str | Path):
        return source
    records = [claim.record for claim in catalog.of("dataset")]
    called = str(dataset.get("use")).rpartition(":")[2]
    hints = [type_hints(one.config).get("schema") for one in records if one.name == called]
    if not any(ForeignSchema in get_args(hint) for hint in hints):
        return source
    where, file = "dataset.schema", location_of(dataset["schema"])
    try:
        schema = load_schema(source.base / path_of(file, where) if isinstance(file, Path) else file)
    except RecdError as error:
        raise RegistryError(str(error), where) from None
    values = {**source.values, "dataset": {**dataset, "schema": options_of_schema(schema)}}
    return dataclasses.replace(source, values=values)


def _choices(slot: str, value: Any, catalog: Catalog) -> Iterator[Choice]:
    match SLOTS[slot].fills:
        case "one":
            yield _choice(slot, value, slot, catalog)
        case "many":
            if not isinstance(value, list):
                raise RegistryError(
                    f"expected a list, as [{{use: ...}}], got {shown(value)}.", slot
                )
            for index, item in enumerate(value):
                yield _choice(slot, item, f"{slot}[{index}]", catalog)
        case "by feature":
            if not isinstance(value, Mapping) or "use" in value:
                raise RegistryError(
                    "expected a mapping from feature to record, as {history: {use: sum}}; "
                    "'*' stands for every feature.",
                    slot,
                )
            for feature, item in value.items():
                yield _choice(slot, item, f"{slot}.{feature}", catalog, (str(feature),))


def _choice(
    slot: str, value: Any, where: str, catalog: Catalog, features: tuple[str, ...] = ("*",)
) -> Choice:
    known = [claim.record.name for claim in catalog.of(slot)]
    _check_quoted(value, known, where)
    options = dict(_mapping({"use": value} if isinstance(value, str) else value, where))
    chosen = "use" in options
    use = options.pop("use", DEFAULT_USES.get(slot))
    if not isinstance(use, str):
        _check_quoted(use, known, f"{where}.use")
        among = "" if chosen or not options else f", and is not among {listed(options, 8)}"
        hint = nearest(str(use or ""), known)
        raise RegistryError(f"`use` must name a record{among}; {hint}", where)
    if slot == "preprocess":
        features = _features(options.pop("features", "*"), f"{where}.features")
    try:
        claim = catalog.find(slot, use)
    except RegistryError as error:
        raise RegistryError(error.message, f"{where}.use") from None
    others = None
    if "others" in options or slot == "sharding":
        others = _others(claim.record, options, where, catalog)
    beside = [] if chosen else ["use"]
    beside += ["features"] * (slot == "preprocess") + ["others"] * stands_in_front(claim.record)
    _check_level(options, claim.record.config, where, beside)
    try:
        asked = parse, claim.record.config, repr(options), where, *beside
        config: Config = remembered(
            asked, lambda: parse(claim.record.config, options, where, beside)
        )
    except RegistryError as error:
        if chosen:
            raise
        by_default = f"No `use` is written, so these are the options of {use!r}."
        raise RegistryError(f"{error.message} {by_default}", error.where) from None
    return Choice(
        record=claim.record,
        config=config,
        provider=claim.provider,
        where=where,
        features=features,
        others=others,
    )


def _check_quoted(value: Any, known: Sequence[str], where: str) -> None:
    """Raises `RegistryError` for the name of a record that YAML takes for a number, or for true or
    false."""
    if not isinstance(value, int | float):
        return
    for name in known:
        with suppress(RegistryError):  # a name that is no value of YAML
            read = read_yaml(name, where).values
            if type(read) is type(value) and read == value:
                break
    else:
        return
    raise RegistryError(
        f"{name} without quotes is no text in YAML: to name that record, write '{name}'.", where
    )


def _check_level(
    options: Mapping[str, Any], config: type, where: str, beside: Sequence[str] = ()
) -> None:
    """`RegistryError` for the first name that is not one of the options but belongs elsewhere in
    registry.yaml: its line is indented too far, or under another key."""
    for name in options:
        of_train = option_path(TrainSettings, str(name))
        if option_path(config, str(name)) or name in beside or not (name in KEYS or of_train):
            continue
        place = name if name in KEYS else f"train.{of_train}"
        slot = slot_of(where)
        known = nearest("", {*type_hints(config), *beside})
        raise RegistryError(
            f"unknown option {shown(name)}; did you mean {place!r}, which stands beside {slot!r} "
            f"in registry.yaml? {known}",
            f"{where}.{name}",
        )


def _others(
    record: Record[Any, Any], options: dict[str, Any], where: str, catalog: Catalog
) -> Choice | None:
    """The planner that `others` names, by default TorchRec's; `others` is removed from the options.
    None if the record stands in front of no planner."""
    if stands_in_front(record):
        return _choice("sharding", options.pop("others", None), f"{where}.others", catalog)
    if "others" in options and isinstance(record, ShardingRecord):
        raise RegistryError(
            f"is for a planner that stands in front of another, but {record.name!r} does not stand "
            "in front of another: take it out, or choose a planner that does, such as flexshard.",
            f"{where}.others",
        )
    return None


def _before_sharding(cache: Choice, sharding: Choice, values: Mapping[str, Any]) -> Choice:
    """The cache, in front of the planner that its own `others` names, or else in front of the
    sharding slot's planner."""
    if cache.others is None:
        return dataclasses.replace(cache, others=sharding)
    if values.get("sharding") is not None:
        raise RegistryError(
            "names the planner that the cache stands in front of, but `sharding` names it too: "
            "keep one of the two.",
            cache.others.where,
        )
    return cache


def _with_lines(choice: Choice, source: Source) -> Choice:
    """The choice, and those that it stands in front of, whose messages name lines."""
    others = None if choice.others is None else _with_lines(choice.others, source)
    return dataclasses.replace(choice, others=others, source=source)


def _with_others(choice: Choice) -> Iterator[Choice]:
    """The choice, and the choices that it stands in front of by its own `others`."""
    yield choice
    if choice.others is not None and choice.others.where != "sharding":
        yield from _with_others(choice.others)


def _check_uses(choices: Sequence[Choice], filled: Any) -> None:
    """`RegistryError` if a slot is filled that no chosen record uses, or if records use one another
    in a circle."""
    used = {*HOST_USES, *(slot for choice in choices for slot in choice.record.uses)}
    for slot in filled:
        if slot not in used:
            raise RegistryError(
                f"is set, but no chosen record uses a {slot}: it would do nothing. Choose one "
                f"that does (`recd plugins` shows what each uses), or take `{slot}` out: "
                f"`{slot}=null` on a command line.",
                slot,
            )
    circles = TopologicalSorter[str]()
    for choice in choices:
        behind = [] if choice.others is None else [choice.others.record.slot]
        before = [slot for slot in behind if slot != choice.record.slot]
        circles.add(choice.record.slot, *choice.record.uses, *before)
    try:
        circles.prepare()
    except CycleError as error:
        circle = " uses ".join(reversed(error.args[1]))
        raise RegistryError(
            f"the chosen records use one another in a circle: {circle}. Choose another record "
            "for one of these slots.",
            error.args[1][0],
        ) from None


def plugin_names(value: Any) -> tuple[str, ...]:
    """The names under `plugins`."""
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise RegistryError(
            f"expected a list of names, as [recd_dlrm], got {shown(value)}.", "plugins"
        )
    return tuple(value)


def _topology(value: Any, base: Path) -> tuple[Topology, dict[str, Empty]]:
    """The topology, and a notice, by key, of each key of a file that has nothing behind it."""
    if value is None:
        return PRESETS["local"], {}
    if isinstance(value, str):
        if value.endswith((".yaml", ".yml")):
            return topology_and_notices(base / path_of(value, "topology"), "topology")
        if value not in PRESETS:
            raise RegistryError(
                f"unknown preset {shown(value)}; {nearest(value, PRESETS)}", "topology"
            )
        return PRESETS[value], {}
    options = dict(_mapping(value, "topology"))
    preset, empty = _topology(options.pop("use", None), base)
    topology = parse(Topology, {**dataclasses.asdict(preset), **options}, "topology")
    return topology, {key: one for key, one in empty.items() if key.split(".")[0] not in options}


def _features(value: Any, where: str) -> tuple[str, ...]:
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, list) or not names or not all(isinstance(n, str) for n in names):
        raise RegistryError(
            f"expected a feature, a glob or a list of them, got {shown(value)}.", where
        )
    return tuple(names)


def _folder(value: Any) -> Path:
    if value is not None and not isinstance(value, str | Path):
        raise RegistryError(f"expected a path, got {shown(value)}.", "folder")
    return path_of("data" if value is None else value, "folder")


def _strict(value: Any) -> bool:
    if value is not None and not isinstance(value, bool):
        raise RegistryError(f"expected true or false, got {shown(value)}.", "strict")
    return bool(value)


def _mapping(value: Any, where: str) -> Mapping[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise RegistryError(f"expected a mapping of options, got {shown(value)}.", where)
    return value
