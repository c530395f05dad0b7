"""Rung 1 and 4 (values, a loader's run): the exact converter, its groups given or advised."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
import torch
from dedup_plugin import EXACT, NONE

import recd_plugins
from recd_dedup.dedup.converters import Exact, GroupsConfig, build_exact
from recd_plugins.config import parse
from recd_plugins.data.batch import Batch
from recd_plugins.data.dataset import Tables
from recd_plugins.data.preprocess.batch_transform import BatchTransform
from recd_plugins.data.schema import Schema, SparseFeature
from recd_plugins.data.table import Table
from recd_plugins.data.table_writer import write_table
from recd_plugins.errors import RegistryError
from recd_plugins.notices import NoticeWarning
from recd_plugins.slots import Context, DedupConverter
from recd_plugins.testing.batches import random_batch, to_lists
from recd_plugins.testing.conformance import check_record
from recd_plugins.testing.probe import SCHEMA

SESSIONS = Schema(
    sparse=tuple(
        SparseFeature(name=name, num_ids=100_000, sequence=True)
        for name in ("seen", "bought", "item")
    )
)


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Table:
    """Sessions of 8 rows, side by side: `seen` and `bought` stay within one, `item` does not."""
    draw = torch.Generator().manual_seed(0)
    rows = torch.arange(2000)
    first = torch.randint(0, 100_000, (250, 4), generator=draw).repeat_interleave(8, 0)
    columns = {
        SESSIONS.session_id: rows // 8,
        SESSIONS.timestamp: rows,
        SESSIONS.label: rows % 2.0,
        "seen": first,
        "bought": first + 1,
        "item": torch.randint(0, 100_000, (2000, 2), generator=draw),
    }
    arrow = SESSIONS.arrow()
    chunk = pa.table({name: columns[name].tolist() for name in arrow.names}, schema=arrow)
    return write_table(tmp_path_factory.mktemp("sessions") / "table", SESSIONS, [chunk])


@pytest.mark.parametrize("validate", [False, True])
@pytest.mark.parametrize(
    "groups", [[["item"]], [["history", "shop"], ["item"]], [["history", "item", "seen", "shop"]]]
)
def test_exact_keeps_the_contract(groups, validate):
    check_record(EXACT, options={"groups": groups, "validate": validate})


def left_alone(converter: DedupConverter, batch: Batch) -> bool:
    done = BatchTransform([], converter)(batch)
    return done.features is batch.features and done.dedup is None


def test_none_keeps_the_contract_and_the_batch():
    check_record(NONE, expand=lambda batch: batch.features)
    batch = random_batch(SCHEMA, 4, seed=0)
    assert left_alone(NONE.build(NONE.config(), Context()), batch)


def test_what_is_not_in_a_group_stays_a_kjt():
    batch = random_batch(SCHEMA, 8, seed=0)
    converted = BatchTransform([], Exact((("shop", "item"),)))(batch)
    before = to_lists(batch.features)
    assert list(to_lists(converted.features)) == ["seen", "history"]
    assert to_lists(converted.features) | to_lists(converted.dedup.to_kjt()) == before
    assert converted.dedup.groups == (("shop", "item"),)
    whole = BatchTransform([], Exact((("history",), ("item", "seen", "shop"))))(batch)
    assert whole.features.keys() == []
    assert whole.features.stride() == whole.dedup.batch_size == 8
    assert to_lists(whole.dedup.to_kjt()) == before


def test_groups_are_held_against_the_schema():
    reason = "dedup.groups: .*no feature 'histry'; did you mean 'history'"
    with pytest.raises(RegistryError, match=reason):
        build_exact(GroupsConfig(groups=(("histry",),)), Context(schema=SCHEMA))


def test_options_of_a_registry():
    assert parse(GroupsConfig, {}, "dedup").groups == "auto"
    assert parse(GroupsConfig, {"groups": [["a", "b"]]}, "dedup").groups == (("a", "b"),)
    for options, reason in (
        ({"groups": "every"}, "dedup.groups: expected"),
        ({"groups": ["a"]}, "dedup.groups: expected"),
        ({"min_factor": 0.5}, "dedup.min_factor: must be >= 1"),
        ({"features": []}, "dedup.features: names no feature"),
        ({"groups": [["shop"], ["shop"]]}, "dedup.groups: 'shop' is named twice"),
        ({"groups": []}, "dedup.groups: .*Name one feature at least"),
        ({"groups": [["shop"], []]}, "dedup.groups: .*Name one feature at least"),
    ):
        with pytest.raises(RegistryError, match=reason):
            parse(GroupsConfig, options, "dedup")


def test_auto_asks_the_advisor_and_says_why(table):
    context = Context(tables=Tables(train=table, test=table), batch_size=512)
    advised = build_exact(GroupsConfig(), context)
    assert advised.groups == (("seen", "bought"),)
    head, *reasons = advised.explain().splitlines()
    assert head.startswith("dedup: ")
    assert [line.split(":")[0].strip() for line in reasons] == [f.name for f in table.schema.sparse]
    assert "  item: left as it is" in advised.explain()
    assert Exact((("item",),)).explain() == ""
    nothing = build_exact(GroupsConfig(min_factor=100), context)
    batch = random_batch(SESSIONS, 4, seed=0)
    assert left_alone(nothing, batch)


def test_auto_takes_the_features_that_it_may(table):
    context = Context(tables=Tables(train=table, test=table), batch_size=512)
    assert build_exact(GroupsConfig(features=("*en", "item")), context).groups == (("seen",),)
    some = build_exact(GroupsConfig(features=("bought",)), context)
    assert some.groups == (("bought",),)
    assert "  seen: left as it is, factor" in some.explain()
    assert "it is not among dedup.features" in some.explain()
    with pytest.raises(RegistryError, match=r"dedup\.features: no feature.*'sen'.*mean 'seen'"):
        build_exact(GroupsConfig(features=("sen",)), context)


def test_auto_without_a_table_says_so():
    with pytest.raises(RegistryError, match=r"nothing to measure.*batches=loader"):
        build_exact(GroupsConfig(), Context(schema=SCHEMA))


@pytest.mark.parametrize(
    ("groups", "workers"), [("auto", 0), ([["item"], ["bought", "seen"]], 1)], ids=["auto", "given"]
)
def test_a_loader_yields_deduplicated_batches(table, tmp_path, groups, workers):
    def loaded(dedup):
        registry = {
            "plugins": [str(Path(__file__).with_name("dedup_plugin.py"))],
            "dataset": {"use": "parquet", "train": str(table.path), "test": str(table.path)},
            "reader": {"use": "local", "workers": workers, "sessions": "whole"},
            "folder": str(tmp_path),
            "train": {"batch_size": 64, "device": "cpu"},
            **dedup,
        }
        return list(recd_plugins.load(registry).loader(rank=0, world_size=1))

    dedup = {"use": "exact", "groups": groups, "weigh": "bytes"}
    found, plain = loaded({"dedup": dedup}), loaded({})
    assert len(found) == len(plain) > 1
    for batch, whole in zip(found, plain, strict=True):
        back = to_lists(batch.features) | to_lists(batch.dedup.validate().to_kjt())
        assert back == to_lists(whole.features)
        assert torch.equal(batch.labels, whole.labels)


def test_the_stack_says_why(table, tmp_path):
    registry = {
        "plugins": [str(Path(__file__).with_name("dedup_plugin.py"))],
        "dataset": {"use": "parquet", "train": str(table.path), "test": str(table.path)},
        "folder": str(tmp_path),
        "train": {"batch_size": 64, "device": "cpu"},
    }
    auto = {"use": "exact", "groups": "auto", "weigh": "bytes"}
    with pytest.warns(NoticeWarning, match=r"is clustered, but its rows are shuffled.*whole"):
        why = recd_plugins.load({**registry, "dedup": auto}).explain()
    assert why.startswith("dedup: ")
    assert "\n  item: " in why
    assert why.splitlines()[-1] == "No plan has been made yet."
    assert recd_plugins.load(registry).explain() == "No plan has been made yet."


def test_who_asks_for_none_is_told_nothing_to_mend(table, tmp_path, recwarn):
    registry = {
        "plugins": ["recd_dedup"],
        "dataset": {"use": "parquet", "train": str(table.path), "test": str(table.path)},
        "folder": str(tmp_path),
        "dedup": "none",
    }
    stack = recd_plugins.load(registry)
    assert stack.groups == ()
    assert stack.explain().startswith("dedup: none, so that every feature stays a plain KJT")
    assert not [one for one in recwarn if "is not used" in str(one.message)]


def test_groups_of_what_preprocess_makes_say_what_to_name_instead(table, tmp_path):
    bucketize = {"use": "bucketize", "features": ["dense_0"], "borders": [0]}
    grams = {"use": "n_gram", "of": ["seen", "bought"], "into": "grams", "modulo": 9}
    pairs = {"use": "cartesian", "left": "grams", "right": "item", "into": "pairs", "modulo": 9}

    def groups(*named, dataset):
        registry = {
            "plugins": ["recd_dedup", "recd_dlrm", "recd_dsi"],
            "dataset": dataset,
            "folder": str(tmp_path),
            "preprocess": [bucketize] if dataset == RANDOM else [grams, pairs],
            "dedup": {"use": "exact", "groups": [named]},
        }
        return recd_plugins.load(registry).groups

    read = {"use": "parquet", "train": str(table.path), "test": str(table.path)}
    with pytest.raises(RegistryError) as refused:
        groups("pairs", dataset=read)
    assert str(refused.value).endswith(
        "dedup.groups: 'pairs' is a feature that `preprocess` makes of item, seen, bought. Groups "
        "are of the features that come to `preprocess`: name item, seen, bought in one group, "
        "which pairs then joins by itself. Known: bought, item, seen."
    )
    assert groups("seen", "bought", "item", dataset=read) == (
        ("seen", "bought", "item", "grams", "pairs"),
    )
    with pytest.raises(RegistryError, match=r"makes of dense_0\. .*: take dense_0_bucket out"):
        groups("dense_0_bucket", dataset=RANDOM)


RANDOM = {"use": "random", "samples": 20}
