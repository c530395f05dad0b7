"""Value tests: what a registry chooses, by default and by name, checked before it is built."""

from __future__ import annotations

import json
import re
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from plugins import write_module
from recd_plugins.config import Config
from recd_plugins.errors import CapabilityError, PluginError, RecdError, RegistryError
from recd_plugins.planning.cluster.topology import PRESETS, Topology
from recd_plugins.planning.torchrec_plan.torchrec_planner import TorchRecPlannerConfig
from recd_plugins.registry import KEYS, Choice, Registry
from recd_plugins.registry.settings import TrainSettings
from recd_plugins.slots import SLOTS, Context

PLUGIN = """
from recd_plugins.slots import DedupRecord, EtlRecord, LogRecord, PreprocessRecord

def record(kind, name, build=build, **fields):
    return kind(name=name, summary="A record.", config=Options, build=build, **fields)

def broken(config, context):
    raise ArithmeticError("cannot count")

def asks(config, context):
    return context.require_schema()

@hookimpl
def recd_model():
    yield record(ModelRecord, "plain")
    yield record(ModelRecord, "pools", uses=("pooling",))
    yield record(ModelRecord, "broken", build=broken)
    yield record(ModelRecord, "asks", build=asks)

@hookimpl
def recd_pooling():
    yield record(PoolingRecord, "sum")
    yield record(PoolingRecord, "logged", uses=("log",))
    yield record(PoolingRecord, "circular", uses=("cache",))

@hookimpl
def recd_cache():
    yield record(CacheRecord, "circular", uses=("pooling",))

@hookimpl
def recd_log():
    yield record(LogRecord, "files")

@hookimpl
def recd_etl():
    yield record(EtlRecord, "sort")

@hookimpl
def recd_dedup():
    yield record(DedupRecord, "exact", needs=("slot:etl",))

@hookimpl
def recd_preprocess():
    yield record(PreprocessRecord, "first")
    yield record(PreprocessRecord, "hash")
"""


@pytest.fixture
def plugin(site: Path) -> str:
    """A plugin with records to choose from; their build returns their config."""
    write_module(site, "choices", PLUGIN)
    return "choices"


def refused(registry: Mapping[str, Any], *overrides: str) -> str:
    with pytest.raises(RecdError) as caught:
        Registry.load(registry, overrides)
    return str(caught.value)


def test_an_empty_registry_is_plain_torchrec() -> None:
    registry = Registry.load({})
    assert {slot: [c.record.name for c in chosen] for slot, chosen in registry.choices.items()} == {
        "reader": ["local"],
        "sharding": ["torchrec"],
    }
    assert registry.one("sharding").config == TorchRecPlannerConfig()
    assert registry.train == TrainSettings()
    assert registry.topology == Topology() == PRESETS["local"]
    assert registry.folder == Path("data")
    assert registry.chosen("etl") == ()


def test_a_slot_is_filled_by_what_it_names(plugin: str) -> None:
    registry = Registry.load(
        {
            "plugins": [plugin],
            "model": {"use": "pools", "size": 3},
            "pooling": {"history": "sum", "*": {"use": "sum", "size": 2}},
            "preprocess": [
                "first",
                {"use": "hash", "features": "user_*", "size": 4},
                {"use": "hash", "features": ["a", "b_*"]},
            ],
            "sharding": {"search": "greedy"},
            "folder": "elsewhere",
        }
    )
    chosen = [
        (choice.where, choice.record.name, choice.features, getattr(choice.config, "size", None))
        for slot in ("preprocess", "pooling", "model")
        for choice in registry.chosen(slot)
    ]
    assert chosen == [
        ("preprocess[0]", "first", ("*",), 1),
        ("preprocess[1]", "hash", ("user_*",), 4),
        ("preprocess[2]", "hash", ("a", "b_*"), 1),
        ("pooling.history", "sum", ("history",), 1),
        ("pooling.*", "sum", ("*",), 2),
        ("model", "pools", ("*",), 3),
    ]
    assert registry.one("sharding").config == TorchRecPlannerConfig(search="greedy")
    assert registry.folder == Path("elsewhere")
    assert str(registry.one("model").provider) == "choices"


def test_nothing_is_built_before_all_is_checked(plugin: str) -> None:
    broken = {"plugins": [plugin], "model": "broken"}
    registry = Registry.load(broken)
    with pytest.raises(PluginError) as caught:
        registry.one("model").build(Context())
    assert re.fullmatch(
        r"model: model 'broken' of choices raised ArithmeticError in broken "
        r"\(choices/__init__\.py:\d+\) when built: cannot count\. "
        r"Run recd with --debug for its traceback\.",
        str(caught.value),
    )
    assert isinstance(caught.value.__cause__, ArithmeticError)
    assert "unknown key 'modle'" in refused({**broken, "modle": {}})


EXITS = """
import argparse, os, signal, sys, threading
from recd_plugins.api import Config, PoolingRecord, hookimpl

def own(config, context):
    sys.exit(0)

def parser(config, context):
    argparse.ArgumentParser().parse_args(["--unknown"])

def builtin(config, context):
    exit()

def answer(*_):
    sys.exit(143)

def signalled(config, context):
    os.kill(os.getpid(), signal.SIGUSR1)
    threading.Event().wait(60)

@hookimpl
def recd_pooling():
    for build in (own, parser, builtin, signalled):
        yield PoolingRecord(name=build.__name__, summary="S.", config=Config, build=build)
"""


@pytest.mark.parametrize(
    ("name", "line", "says"), [("own", 21, ": 0"), ("parser", 24, ": 2"), ("builtin", 27, ": None")]
)
def test_a_record_that_ends_the_process_is_named(
    name: str, line: int, says: str, site: Path
) -> None:
    write_module(site, "exits", EXITS)
    claim = Registry.load({"plugins": ["exits"]}).catalog.find("pooling", name)
    choice = Choice(record=claim.record, config=Config(), provider=claim.provider, where="pooling")
    with pytest.raises(PluginError) as caught:
        choice.build(Context())
    assert str(caught.value) == (
        f"pooling: pooling {name!r} of exits raised SystemExit in {name} "
        f"(exits/__init__.py:{line}) when built{says}. Run recd with --debug for its traceback."
    )


@pytest.mark.parametrize("is_plugins", [False, True])
def test_a_trainer_that_ends_by_a_signal_meanwhile_does_so(is_plugins: bool, site: Path) -> None:
    """Be its answer in a package that is a plugin too, or not."""
    write_module(site, "exits", EXITS)
    claim = Registry.load({"plugins": ["exits"]}).catalog.find("pooling", "signalled")
    choice = Choice(record=claim.record, config=Config(), provider=claim.provider, where="pooling")
    answer = sys.modules["exits"].answer if is_plugins else lambda *_: sys.exit(143)
    before = signal.signal(signal.SIGUSR1, answer)
    try:
        with pytest.raises(SystemExit, match="143"):
            choice.build(Context())
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_an_error_meant_for_users_passes_as_it_is(plugin: str) -> None:
    asks = Registry.load({"plugins": [plugin], "model": "asks"}).one("model")
    with pytest.raises(
        PluginError, match=r"^model: asks: the schema is not known when this slot is built"
    ):
        asks.build(Context())
    with pytest.raises(PluginError, match=r"^the prepared tables are not known when this slot is"):
        Context().require_tables()
    with pytest.raises(
        PluginError, match=r"^dedup: mine: the schema .*stack\.adapt\(model, batches="
    ):
        Context(where="dedup", name="mine").require_schema()


def test_a_slot_that_nothing_fills_names_what_could(plugin: str) -> None:
    registry = Registry.load({"plugins": [plugin]})
    with pytest.raises(
        RegistryError, match=r"nothing fills the slot 'model'.*asks, broken, plain, pools"
    ):
        registry.one("model")
    with pytest.raises(
        RegistryError, match=r"nothing fills the slot 'stats'.*there are none to choose"
    ):
        registry.one("stats")


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"model": "plian"}, "model.use: no enabled plugin provides model 'plian'; did you mean"),
        (
            {"model": {"size": 3}},
            "model: `use` must name a record, and is not among size; Known: asks, broken, plain, "
            "pools.",
        ),
        ({"model": {"use": 3}}, "model: `use` must name a record"),
        ({"model": ["plain"]}, "model: expected a mapping of options, got ['plain']."),
        ({"model": {"use": "plain", "sise": 1}}, "model.sise: unknown option 'sise'; did you mean"),
        ({"model": {"use": "plain", "size": 11}}, "model.size: must be >= 1 and <= 10, but is 11."),
        (
            {"model": {"use": "plain", "batch_size": 1}},
            "model.batch_size: unknown option 'batch_size'; did you mean 'train.batch_size', which "
            "stands beside 'model' in registry.yaml? Known: size.",
        ),
        (
            {"train": {"model": "plain"}},
            "train.model: unknown option 'model'; did you mean 'model', which stands beside",
        ),
        (
            {"train": {"tables_lr": 1}},
            "train.tables_lr: unknown option 'tables_lr'; did you mean 'train.optimizer.tables_lr'",
        ),
        ({"tables_lr": 1}, "tables_lr: unknown key 'tables_lr'; did you mean 'train.optimizer.tab"),
        (
            {"dataset": {"use": "parquet", "train": "${DATA}/a", "test": "b"}},
            "dataset.train: '${DATA}/a' contains ${DATA}",
        ),
        (
            {"dataset": {"use": "parquet", "train": ["a", "$DATA/a"], "test": "b"}},
            "dataset.train[1]: '$DATA/a' contains $DATA",
        ),
        ({"folder": ""}, "folder: is empty, but must be a path."),
        ({"folder": "${DATA}/x"}, "folder: '${DATA}/x' contains ${DATA}, but variables are not"),
        ({"etl": "sort"}, "etl: expected a list, as [{use: ...}], got 'sort'."),
        ({"etl": ["sort", {"use": "sorted"}]}, "etl[1].use: no enabled plugin provides etl"),
        ({"model": "pools", "pooling": ["sum"]}, "pooling: expected a mapping from feature to"),
        ({"model": "pools", "pooling": {"use": "sum"}}, "pooling: expected a mapping from feature"),
        ({"model": "pools", "pooling": {"a": {}}}, "pooling.a: `use` must name a record"),
        (
            {"model": "plain", "pooling": {"a": "sum"}},
            "pooling: is set, but no chosen record uses a pooling: it would do nothing.",
        ),
        (
            {"model": "pools", "pooling": {"a": "circular"}, "cache": "circular"},
            "cache: the chosen records use one another in a circle: cache uses pooling uses cache.",
        ),
        ({"log": "files"}, "log: is set, but no chosen record uses a log"),
        ({"preprocess": [{"use": "first", "features": 3}]}, "preprocess[0].features: expected a f"),
        ({"preprocess": [{"use": "first", "features": []}]}, "preprocess[0].features: expected a"),
        ({"preprocess": [{"use": "first", "features": [1]}]}, "preprocess[0].features: expected"),
        (
            {"plugins": "choices"},
            "plugins: expected a list of names, as [recd_dlrm], got 'choices'.",
        ),
        ({"plugins": [3]}, "plugins: expected a list of names, as [recd_dlrm], got [3]."),
        ({"folder": 3}, "folder: expected a path, got 3."),
        ({"train": 3}, "train: expected a mapping of options, got 3."),
        ({"train": {"threads": 2**31}}, "train.threads: must be >= 0 and <= 1024"),
        ({"train": {"optimizer": {"tables": "adam"}}}, "train.optimizer.tables: unknown value"),
        ({"topology": "a100"}, "topology: unknown preset 'a100'; did you mean 'a100_dgx'"),
        ({"topology": "gone.yaml"}, "topology: gone.yaml: there is no such file"),
        ({"topology": {"use": "locl"}}, "topology: unknown preset 'locl'; did you mean 'local'?"),
        ({"topology": {"ranks": 1}}, "topology.ranks: unknown option 'ranks'; did you mean"),
        (
            {"topology": {"host_memory_gb": 0}},
            "topology.host_memory_gb: must be >= 1e-09 and <= 1e+09",
        ),
        ({"sharding": {"reserve": 1}}, "sharding.reserve: must be >= 0 and < 1, but is 1.0."),
    ],
)
def test_what_does_not_fit_is_named(values: dict[str, Any], says: str, plugin: str) -> None:
    assert refused({"plugins": [plugin], **values}).startswith(says)


def test_a_slot_is_used_by_any_chosen_record(plugin: str) -> None:
    Registry.load(
        {
            "plugins": [plugin],
            "model": "pools",
            "pooling": {"history": "logged"},
            "log": "files",
        }
    )


def test_a_need_of_a_neighbour_is_checked_against_what_is_filled(plugin: str) -> None:
    registry = {"plugins": [plugin], "dedup": "exact"}
    with pytest.raises(CapabilityError) as caught:
        Registry.load(registry)
    assert str(caught.value) == (
        "dedup: dedup 'exact' of choices needs the slot 'etl' filled too. Add `etl:` to "
        "registry.yaml."
    )
    Registry.load({**registry, "etl": ["sort"]})


def test_a_slot_set_to_nothing_is_not_set(plugin: str) -> None:
    registry = Registry.load({"plugins": [plugin], "model": None, "etl": None, "sharding": None})
    assert registry.choices.keys() == {"reader", "sharding"}
    assert Registry.load({"plugins": None, "train": None, "topology": None}).plugins == ()


@pytest.mark.parametrize(
    ("name", "written"), [("1.50", "1.5"), ("true", "true"), ("7", "7")], ids=str
)
def test_a_name_that_yaml_takes_for_another_value_is_to_be_quoted(
    name: str, written: str, site: Path
) -> None:
    models = f"""
@hookimpl
def recd_model():
    for name in ("[x", {name!r}):
        yield ModelRecord(name=name, summary="A model.", config=Options, build=build)
"""
    write_module(site, "named_oddly", models)
    registry = {"plugins": ["named_oddly"]}
    assert Registry.load(registry, [f"model='{name}'"]).one("model").record.name == name
    for key in ("model", "model.use"):
        assert refused(registry, f"{key}={written}") == (
            f"override '{key}={written}': {key}: {name} without quotes is no text in YAML: to name "
            f"that record, write '{name}'."
        )


def test_a_topology_is_a_preset_with_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Registry.load({"topology": "local"}).topology == PRESETS["local"]
    assert Registry.load({"topology": {"host_memory_gb": 4}}).topology == Topology(host_memory_gb=4)
    changed = Registry.load({"topology": "local"}, ["topology.ranks_per_node=2"]).topology
    assert changed == Topology(ranks_per_node=2)
    monkeypatch.setitem(PRESETS, "ours", Topology(ranks_per_node=8, host_memory_gb=4))
    changed = Registry.load({"topology": {"use": "ours", "host_memory_gb": 2}}).topology
    assert changed == Topology(ranks_per_node=8, host_memory_gb=2)


def test_every_slot_has_its_key() -> None:
    assert ("plugins", "folder", *SLOTS, "topology", "train", "strict") == KEYS


def test_a_plugin_that_is_named_twice_is_reported_by_its_second_line(tmp_path: Path) -> None:
    file = tmp_path / "registry.yaml"
    file.write_text("plugins:\n  - recd_dlrm\n  - recd_dlrm\n")
    with pytest.raises(RegistryError) as caught:
        Registry.load(file)
    assert str(caught.value) == (
        f"{file}:3: plugins[1]: plugin 'recd_dlrm' is named twice under `plugins`."
    )


def test_a_mistake_of_a_file_is_reported_by_its_line(tmp_path: Path, plugin: str) -> None:
    file = tmp_path / "registry.yaml"
    file.write_text(f"plugins: [{plugin}]\nmodel:\n  use: plain\n  size: 3\n")
    assert (
        Registry.load(file).one("model").config
        == Registry.load({"plugins": [plugin], "model": {"use": "plain", "size": 3}})
        .one("model")
        .config
    )
    with pytest.raises(RegistryError) as caught:
        Registry.load(file, ["model.size=4", "train.seed=x"])
    assert str(caught.value) == (
        "override 'train.seed=x': train.seed: expected an integer, got 'x' (str)."
    )
    file.write_text(file.read_text().replace("3", "30"))
    with pytest.raises(RegistryError) as caught:
        Registry.load(file, ["train.seed=1"])
    assert str(caught.value) == f"{file}:4: model.size: must be >= 1 and <= 10, but is 30."


def test_plugins_are_found_from_the_registrys_folder(
    tmp_path: Path, site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_module(tmp_path / "project", "beside_registry")
    file = tmp_path / "project/registry.yaml"
    file.write_text(json.dumps({"plugins": ["./beside_registry"]}))
    monkeypatch.chdir("/")
    assert Registry.load(file).plugins == ("./beside_registry",)
