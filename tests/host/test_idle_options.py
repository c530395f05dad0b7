"""Value tests: an option that does nothing beside the others is named by a notice, once."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from forked import run_module

import recd_plugins as rp
from recd_plugins.config import Config, idle_options
from recd_plugins.errors import CapabilityError
from recd_plugins.notices import NoticeWarning
from recd_plugins.registry import Registry
from recd_plugins.stack.usage import Usage

PLUGINS = ["recd_dlrm", "recd_dedup", "recd_dsi", "recd_flexshard", "recd_scars"]
RANDOM = {"use": "random", "samples": 64, "test_samples": 64}
COLUMNS = {"session_id": None, "timestamp": None}
ITEM = {"name": "item", "num_ids": 9}
USER = {"name": "user", "num_ids": 9, "kind": "user"}
SESSIONS = {"use": "sessions", "samples": 64, "features": [ITEM]}
JSON = {"columns": {**COLUMNS, "sparse": [ITEM]}, "request_id": "id"}
LOGGED = {"use": "logged", "messages": JSON}


def files(**schema: Any) -> dict[str, Any]:
    return {"use": "parquet", "train": "train", "test": "test", "schema": {**COLUMNS, **schema}}


def idle(slot: str, value: Any) -> list[str]:
    """What the notices of a registry with this slot are of."""
    of_log = isinstance(value, dict) and "messages" in value
    log = {"log": "zstd_shards"} if of_log else {}
    registry = Registry.load({"plugins": PLUGINS, slot: value, **log})
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        Usage(registry).as_written(2)
    assert all(one.category is NoticeWarning for one in found)
    return [str(one.message).split(" is not used")[0] for one in found]


@pytest.mark.parametrize(
    ("slot", "value", "options"),
    [
        ("etl", [{"use": "cluster_by_session", "spark_master": "local[1]"}], ["spark_master"]),
        ("reader", {"shuffle": False, "window": 4}, ["window"]),
        ("reader", {"shuffle": False, "sessions": "together"}, ["sessions"]),
        ("reader", {"window": 0, "sessions": "together"}, ["sessions"]),
        ("reader", {"use": "service", "window": 0, "sessions": "together"}, ["sessions"]),
        ("reader", {"use": "service", "cache_mib": 9}, ["cache_mib"]),
        ("reader", {"use": "service", "key": "key.pem"}, ["key"]),
        (
            "reader",
            {"use": "service", "coordinator": "a:1", "buffer_mib": 9, "cache_mib": 9},
            ["buffer_mib", "cache_mib"],
        ),
        (
            "dedup",
            {
                "use": "exact",
                "groups": [["a"]],
                "features": ["a"],
                "min_factor": 2,
                "weigh": "bytes",
            },
            ["features", "min_factor", "weigh"],
        ),
        (
            "sharding",
            {"use": "flexshard", "profile": "p.arrow", "profile_batches": 2},
            ["profile_batches"],
        ),
        (
            "sharding",
            {
                "use": "flexshard",
                "others": {
                    "use": "torchrec",
                    "constraints": {"t": {"sharding_types": ["row_wise"], "min_partition": 8}},
                },
            },
            ["constraints.t.min_partition"],
        ),
        (
            "sharding",
            {"constraints": {"t": {"compute_kernels": ["fused"], "cache_algorithm": "lfu"}}},
            ["constraints.t.cache_algorithm"],
        ),
        ("cache", {"use": "scars", "hot_batches": False, "window": 4}, ["window"]),
        (
            "cache",
            {"use": "scars", "size": "hit_rate", "hit_rate": 0.5, "memory_gb": 1,
             "activation_bytes": 9},
            ["memory_gb", "activation_bytes"],
        ),
        (
            "cache",
            {"use": "scars", "profile": "p.arrow", "profile_batches": 2},
            ["profile_batches"],
        ),
        ("callbacks", [{"use": "clipping", "value": 1.0, "norm_type": 1.0}], ["norm_type"]),
        ("dataset", {**RANDOM, "dense": 0, "dense_distribution": "normal"}, ["dense_distribution"]),
        ("dataset", {**RANDOM, "lookups": 1, "fixed_lookups": True}, ["fixed_lookups"]),
        ("dataset", {"use": "synthetic_trace", "profiled_accesses": 9}, ["profiled_accesses"]),
        (
            "dataset",
            {**SESSIONS, "dense": 0, "label": {"dense": 0.1, "affinity": 0.1, "history": 0.1}},
            ["label.dense", "label.affinity", "label.history"],
        ),
        ("dataset", files(sparse=[{**ITEM, "hash_seed": 1}]), ["schema.sparse[0].hash_seed"]),
        ("dataset", files(sparse=[ITEM], timestamp_unit="s"), ["schema.timestamp_unit"]),
        (
            "dataset",
            {**files(sparse=[ITEM]), "snapshot": 1, "snapshot_test": 0},
            ["snapshot", "snapshot_test"],
        ),
        ("dataset", {**LOGGED, "join": {"window_ms": 9}}, ["join.window_ms"]),
        (
            "dataset",
            {**LOGGED, "use": "growing_log", "origin": 10**12, "join": {"remember_ms": 9}},
            ["join.remember_ms"],
        ),
    ],
)  # fmt: skip
def test_an_option_that_does_nothing_is_named(slot: str, value: Any, options: list[str]) -> None:
    where = f"{slot}[0]" if isinstance(value, list) else slot
    if "others" in value:
        where = f"{slot}.others"
    assert idle(slot, value) == [f"{where}: {option}" for option in options]


@pytest.mark.parametrize(
    ("slot", "value"),
    [
        ("reader", {"window": 4, "sessions": "together"}),
        ("reader", {"shuffle": False, "sessions": "whole"}),  # packs them all the same
        ("reader", {"use": "service", "cache": "cache", "cache_mib": 9}),
        ("reader", {"use": "service", "certificate": "c.pem", "key": "key.pem"}),
        ("dedup", {"use": "exact", "min_factor": 2, "weigh": "bytes"}),
        ("sharding", {"use": "flexshard", "profile_batches": 2}),
        (
            "sharding",
            {"constraints": {"t": {"sharding_types": ["column_wise"], "min_partition": 8}}},
        ),
        ("cache", {"use": "scars", "window": 4, "memory_gb": 1, "activation_bytes": 9}),
        ("callbacks", [{"use": "clipping", "norm": 1.0, "norm_type": 1.0}]),
        ("dataset", {**RANDOM, "dense_distribution": "normal", "fixed_lookups": True}),
        ("dataset", {**SESSIONS, "features": [ITEM, USER], "label": {"affinity": 0.1}}),
        ("dataset", files(sparse=[{**ITEM, "ids": "hash", "hash_seed": 1}])),
        ("dataset", {**files(sparse=[ITEM]), "format": "delta", "snapshot": 1}),
        ("dataset", {**LOGGED, "join": {"remember_ms": 9, "window_ms": 0}}),
    ],
)  # fmt: skip
def test_an_option_that_does_something_is_not(slot: str, value: Any) -> None:
    assert idle(slot, value) == []


@dataclass(frozen=True, kw_only=True)
class Part(Config):
    on: bool = False
    size: int = 1

    def idle_options(self) -> Mapping[str, str]:
        return {} if self.on else dict.fromkeys(self.set_among("size"), "it is off")


@dataclass(frozen=True, kw_only=True)
class Whole(Config):
    first: Part
    more: tuple[Part, ...] = ()
    named: Mapping[str, Part]


def test_a_config_is_asked_and_each_that_it_holds() -> None:
    whole = Whole(
        first=Part(size=2),
        more=(Part(), Part(size=3), Part(on=True, size=3)),
        named={"a": Part(size=4)},
    )
    names = ["first.size", "more[1].size", "named.a.size"]
    assert [*idle_options(whole)] == [(name, "it is off") for name in names]


def test_strict_makes_an_error_of_it() -> None:
    dataset = {**RANDOM, "dense": 0, "dense_distribution": "normal"}
    stack = rp.load({"plugins": PLUGINS, "dataset": dataset, "strict": True})
    with pytest.raises(CapabilityError, match="dataset: dense_distribution is not used"):
        stack.check_options()


def test_commands_say_it_once(tmp_path: Path) -> None:
    (tmp_path / "registry.yaml").write_text(
        "plugins: [recd_dlrm]\nmodel: {use: dlrm}\ntrain: {batch_size: 16}\n"
        "reader: {shuffle: false, window: 9}\n"
        "dataset: {use: random, samples: 64, test_samples: 64, num_ids: [10], lookups: 1, "
        "fixed_lookups: true}\n"
    )
    names = ["dataset: fixed_lookups", "reader: window"]
    for command in (["data", "prepare"], ["plan"], ["train", "train.steps=1"]):
        done = run_module("recd_plugins", *command, folder=tmp_path)
        assert done.code == 0, done.err
        lines = (done.out + done.err).splitlines()
        found = [line for line in lines if line.startswith("notice: ")]
        assert [line.split(" is not used")[0] for line in found] == [
            f"notice: {name}" for name in names
        ], command
