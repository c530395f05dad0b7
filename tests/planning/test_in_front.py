"""Value tests: which planner plans the others, behind FlexShard, SCARS and a stranger's planner."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import recd_plugins as rp
from recd_plugins.errors import CapabilityError, PluginError, RegistryError
from recd_plugins.planning.torchrec_plan.torchrec_planner import TorchRecPlanner
from recd_plugins.slots import Context

PLUGIN = """
from recd_plugins.api import CacheRecord, Config, ShardingRecord, hookimpl
from recd_plugins.api.planning import HoldsRowWise, TorchRecPlannerConfig, build_torchrec_planner

class Front:
    def __init__(self, config, context):
        self.others, self.where = context.require_others(), context.where

class Behind(HoldsRowWise):
    may_be_row_wise = row_wise = propose = sharders = explain = None
    def __init__(self, config, context):
        self.where = context.where

class Looks:  # like one that holds tables row-wise, and declares nothing
    def may_be_row_wise(self, table): ...
    def row_wise(self, tables, kernels=None): ...

def record(kind, name, build, **more):
    return kind(name=name, summary="One.", config=Config, build=build, **more)

@hookimpl
def recd_sharding():
    yield record(ShardingRecord, "front", Front, in_front=True)
    yield record(ShardingRecord, "behind", Behind)
    yield record(ShardingRecord, "looks", lambda *_: Looks())
    yield record(ShardingRecord, "needy", Behind, needs=("import:no_such_package",))

@hookimpl
def recd_cache():
    yield record(CacheRecord, "front", Front)
"""


@pytest.fixture(scope="module")
def planner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    file: Path = tmp_path_factory.mktemp("plugins") / "planners_in_front.py"
    file.write_text(PLUGIN)
    plugins = ["recd_flexshard", "recd_scars", str(file)]

    def built(**slots: Any) -> Any:
        return rp.load({"plugins": plugins, **slots}).planner()

    yield built
    sys.path.remove(str(file.parent))


def constrained(**more: str) -> dict[str, Any]:
    return {**more, "constraints": {"big": {"sharding_types": ["table_wise"]}}}


@pytest.mark.parametrize("front", ["front", "flexshard"])
def test_a_sharding_names_the_planner_of_the_others_under_it(planner: Any, front: str) -> None:
    """TorchRec's by default; the same for a stranger's planner as for ours."""
    assert isinstance(others_of(planner(sharding=front)), TorchRecPlanner)
    own = others_of(planner(sharding={"use": front, "others": constrained()}))
    assert isinstance(own, TorchRecPlanner)
    assert not own.may_be_row_wise("big")
    named = others_of(planner(sharding={"use": front, "others": {"use": "behind"}}))
    assert (type(named).__name__, named.where) == ("Behind", "sharding.others")
    assert type(others_of(planner(sharding={"use": front, "others": "behind"}))) is type(named)


@pytest.mark.parametrize("front", ["front", "scars"])
def test_a_cache_stands_in_front_of_the_sharding_slot_or_of_its_own_others(
    planner: Any, front: str
) -> None:
    assert isinstance(others_of(planner(cache=front)), TorchRecPlanner)
    assert not others_of(planner(cache=front, sharding=constrained())).may_be_row_wise("big")
    named = others_of(planner(cache=front, sharding="behind"))
    assert named.where == "sharding"
    own = others_of(planner(cache={"use": front, "others": constrained(use="torchrec")}))
    assert not own.may_be_row_wise("big")
    with pytest.raises(
        RegistryError, match=r"cache\.others: names the planner .* but `sharding` names it"
    ):
        planner(cache={"use": front, "others": "behind"}, sharding="behind")


def others_of(front: Any) -> Any:
    return front.others


@pytest.mark.parametrize(
    ("slots", "kind", "says"),
    [
        (
            {"cache": "scars", "sharding": "flexshard"},
            RegistryError,
            "cache.size: is optimum, but sharding: flexshard gives rows replicas too, and a table "
            "has one tier plan. Set `size: plan`",
        ),
        (
            {"sharding": {"use": "flexshard", "others": {"use": "flexshard"}}},
            RegistryError,
            "Set `sharding.others` to torchrec, or take `sharding` out.",
        ),
        (
            {"cache": "front", "sharding": "looks"},
            CapabilityError,
            "(Looks) behind it has no `may_be_row_wise` and `row_wise` of "
            "recd_plugins.api.planning.HoldsRowWise, by which it would be asked: it must inherit",
        ),
        (
            {"sharding": {"use": "torchrec", "others": {}}},
            RegistryError,
            "sharding.others: is for a planner that stands in front of another, but 'torchrec'",
        ),
        (
            {"sharding": {"use": "front", "others": {"serch": "greedy"}}},
            RegistryError,
            "sharding.others.serch: unknown option 'serch'; did you mean 'search'",
        ),
        (
            {"sharding": {"use": "front", "others": "torchrek"}},
            RegistryError,
            "sharding.others.use: no enabled plugin provides sharding 'torchrek'",
        ),
        (
            {"sharding": {"use": "front", "others": "needy"}},
            CapabilityError,
            "sharding.others: sharding 'needy' of ",
        ),
    ],
)
def test_what_cannot_stand_so_is_reported(
    planner: Any, slots: dict[str, Any], kind: type[Exception], says: str
) -> None:
    with pytest.raises(kind) as caught:
        planner(**slots)
    assert says in str(caught.value)


def test_a_record_that_does_not_declare_it_has_no_others() -> None:
    with pytest.raises(PluginError, match="Declare its record with `in_front=True`"):
        Context().require_others()
