"""Value tests, and a training on two ranks: features that `preprocess` adds or renames."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from crossing_plugin import recd_preprocess
from stack_plugin import SCHEMA

import recd_plugins as rp
from recd_plugins.data.batch import Batch
from recd_plugins.errors import PluginError, RecdError, RegistryError
from recd_plugins.notices import NoticeWarning
from recd_plugins.testing.batches import to_lists
from recd_plugins.testing.conformance import ContractBroken, check_record
from recd_plugins.testing.gloo import GlooPool
from recd_plugins.testing.training import train_quietly

HERE = Path(__file__).parent
CROSS = {"use": "cross", "features": "user_*"}


@pytest.fixture
def registry(tmp_path: Path) -> dict[str, Any]:
    """Rows with ids i (user_a), i + 1 (item) and 2 i (user_b)."""
    return {
        "plugins": [str(HERE / "stack_plugin.py"), str(HERE / "crossing_plugin.py"), "recd_dedup"],
        "folder": str(tmp_path / "data"),
        "dataset": {"use": "counting", "log": str(tmp_path / "log")},
        "reader": {"use": "local", "shuffle": False, "prefetch": False},
        "model": "keeper",
        "train": {"batch_size": 4, "device": "cpu"},
    }


def all_rows(batch: Batch) -> dict[str, list[list[int]]]:
    found = to_lists(batch.features)
    if batch.dedup is not None:
        batch.dedup.validate()
        found |= to_lists(batch.dedup.to_kjt())
    return found


EXPECTED = {
    "user_a": [[i] for i in range(4)],
    "item": [[i + 1] for i in range(4)],
    "user_b": [[2 * i] for i in range(4)],
    "crossed": [[15 * i % 97] for i in range(4)],
}


def test_what_is_neither_looked_up_nor_made_into_something_is_not_needed(
    registry: dict[str, Any],
) -> None:
    stack = rp.load({**registry, "preprocess": [CROSS]})
    steps = stack._features
    assert steps.unneeded({"crossed"}) == ("item",)
    assert steps.unneeded({"item"}) == ("user_a", "user_b")
    assert steps.unneeded({"crossed", "item"}) == ()
    stack._usage.unneeded(())  # a warning would fail the test
    with pytest.warns(NoticeWarning) as caught:
        stack._usage.unneeded(("user_a", "user_b"))
    (notice,) = (str(warning.message) for warning in caught)
    assert "dataset: user_a, user_b is not needed" in notice
    assert "`dataset.without: [user_a, user_b]`" in notice


@pytest.mark.parametrize("kind", ["exact", "partial"])
@pytest.mark.parametrize("groups", [(), (("item",),), (("user_a", "item", "user_b"),)])
def test_a_new_feature_is_in_schema_batch_groups_and_model(
    registry: dict[str, Any], kind: str, groups: tuple[tuple[str, ...], ...]
) -> None:
    registry["preprocess"] = [CROSS]
    if groups:
        registry["dedup"] = {"use": kind, "groups": [list(group) for group in groups]}
    stack = rp.load(registry)
    assert stack.schema.sparse[:3] == SCHEMA.sparse
    assert stack.schema.feature("crossed").num_ids == 97
    assert stack.schema.feature("crossed").kind == "user"
    model: Any = stack.model()
    assert model.context.schema == stack.schema
    (first, *_) = stack.loader(0, 1)
    assert all_rows(first) == EXPECTED
    if groups:
        assert first.dedup.groups == stack._features.groups
        (mine,) = stack._features.groups
        assert ("crossed" in mine) == ("user_a" in mine)


def test_a_later_transform_takes_what_an_earlier_one_made(registry: dict[str, Any]) -> None:
    registry["preprocess"] = [
        CROSS,
        {"use": "modulo", "n": 10, "features": "crossed"},
        {"use": "rename", "name": "my_", "features": ["crossed", "item"]},
    ]
    registry["dedup"] = {"use": "exact", "groups": [["user_a", "user_b"], ["item"]]}
    stack = rp.load(registry)
    assert stack.schema.sparse_names == ("user_a", "user_b", "my_item", "my_crossed")
    assert stack.schema.feature("my_crossed").num_ids == 10
    (first, *_) = stack.loader(0, 1)
    assert (
        first.dedup.groups
        == stack._features.groups
        == (("user_a", "user_b", "my_crossed"), ("my_item",))
    )
    assert all_rows(first) == {
        "user_a": EXPECTED["user_a"],
        "user_b": EXPECTED["user_b"],
        "my_item": EXPECTED["item"],
        "my_crossed": [[15 * i % 97 % 10] for i in range(4)],
    }
    registry["preprocess"][1]["features"] = "crosed"
    with pytest.raises(RegistryError, match=r"no feature matches 'crosed'; .*'crossed'"):
        rp.load(registry).check()


@pytest.mark.parametrize(
    ("step", "dedup", "message"),
    [
        (
            CROSS | {"name": "item"},
            None,
            r"preprocess\[0\]: preprocess 'cross' of .*crossing_plugin\.py makes a feature 'item' "
            r"beside the one that is there\. Give it another name",
        ),
        (CROSS | {"name": "d"}, None, "makes a feature 'd' beside"),
        (
            CROSS | {"name": "user_b"},
            None,
            r"'cross' .*: its `schema` takes no user_a, user_b: column 'user_b' is named twice",
        ),
        (
            {"use": "nothing"},
            None,
            r"preprocess 'nothing' .*: its `schema` makes Schema\(.* of user_a, item, user_b\. Let",
        ),
        (
            CROSS,
            [["user_a"], ["user_b"]],
            r"'cross' .* different groups: user_a \| user_b\. Deduplicate them as one group",
        ),
        (CROSS, [["user_a"]], r"groups: user_b \| user_a\. .* or leave all of them"),
        (CROSS, [["crossed"]], "'crossed'"),
    ],
)
def test_what_cannot_be_is_refused_before_a_batch_is_read(
    registry: dict[str, Any],
    step: dict[str, Any],
    dedup: list[list[str]] | None,
    message: str,
) -> None:
    registry["preprocess"] = [step]
    if dedup:
        registry["dedup"] = {"use": "exact", "groups": dedup}
    with pytest.raises(RecdError) as caught:
        rp.load(registry).loader(0, 1)
    assert re.search(message, str(caught.value)), caught.value


@pytest.mark.parametrize("dedup", [None, [["user_a", "user_b"]]])
def test_a_schema_that_says_what_is_not_made_is_named(
    registry: dict[str, Any], dedup: list[list[str]] | None
) -> None:
    registry["preprocess"] = [CROSS | {"announced": "crosed"}]
    if dedup:
        registry["dedup"] = {"use": "exact", "groups": dedup}
    says = r"'crossed'\] of .* its `schema` says .*'crosed'\]"
    with pytest.raises(
        PluginError, match=rf"^preprocess\[0\]: preprocess 'cross' of .* made the keys .*{says}"
    ):
        list(rp.load(registry).loader(0, 1))


@pytest.mark.parametrize("groups", [None, [["cat_0", "cat_1"], ["cat_2"]]])
def test_a_model_trains_on_a_new_feature(
    registry: dict[str, Any],
    groups: list[list[str]] | None,
    gloo_pool: GlooPool,
    tmp_path: Path,
) -> None:
    registry |= {
        "plugins": [*registry["plugins"], "recd_dlrm"],
        "dataset": {"use": "random", "samples": 256, "test_samples": 64},
        "model": {"use": "dlrm", "embedding_dim": 8, "bottom": [8], "top": [8]},
        "train": {"batch_size": 32, "device": "cpu", "steps": 4, "run": str(tmp_path / "run")},
    }
    registry["preprocess"] = [{"use": "cross", "features": ["cat_0", "cat_1"]}]
    if groups:
        registry["dedup"] = {"use": "exact", "groups": groups}
    stack = rp.load(registry)
    table = dict(stack.adapt(stack.model()).named_parameters())
    assert any(name.endswith("crossed.weight") for name in table)
    summaries = gloo_pool.run(train_quietly, registry, world_size=2)
    assert [summary["step"] for summary in summaries] == [4, 4]


@pytest.mark.parametrize("record", [*recd_preprocess()][:2], ids=lambda record: record.name)
def test_the_kit_takes_new_features_that_a_schema_says(record: Any) -> None:
    check_record(record)
    if record.name == "cross":
        with pytest.raises(ContractBroken, match=r"of the keys that its `schema` says, .*'crosed'"):
            check_record(record, options={"announced": "crosed"})
