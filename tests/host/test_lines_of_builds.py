"""Value tests: what refuses to be built from its options names the line of the registry that has
them."""

from __future__ import annotations

from pathlib import Path

import pytest

import recd_plugins as rp
from recd_plugins.errors import PluginError, RecdError, RegistryError

PLUGIN = """
from dataclasses import dataclass

from recd_plugins.api import Callback, CallbackRecord, Config, RegistryError, hookimpl


@dataclass(frozen=True, kw_only=True)
class Options(Config):
    how: str = "not at all"
    size: int = 3


def build(config, context):
    match config.how:
        case "as Python does":
            raise ValueError("size must be even")
        case "by its option":
            raise RegistryError("must be even, but is 3.", "size")
        case "by its path":
            raise RegistryError("must be even, but is 3.", f"{context.where}.size")
        case "in words":
            raise RegistryError(f"{context.where}.size: must be even, but is 3.")
        case "by another key":
            raise RegistryError("must be even, too.", "train.batch_size")
        case "of another key":
            raise RegistryError("train.batch_size: must be even, too.")
        case "without a place":
            raise RegistryError("what is this?")
        case "by none":
            return None
    return Callback()


@hookimpl
def recd_callbacks():
    return [CallbackRecord(name="refuses", summary="S.", config=Options, build=build)]
"""
WHO = "callbacks[0]: callbacks 'refuses' of ./refuses.py"
SAYS = {
    "as Python does": f"4: {WHO} raised ValueError in build (refuses.py:16) when built: size must "
    "be even. Run recd with --debug for its traceback.",
    "by its option": "6: callbacks[0].size: must be even, but is 3.",
    "by its path": "6: callbacks[0].size: must be even, but is 3.",
    "in words": "4: callbacks[0].size: must be even, but is 3.",
    "by another key": "8: train.batch_size: must be even, too.",
    "of another key": "train.batch_size: must be even, too.",
    "without a place": f"4: {WHO}: what is this?",
    "by none": f"4: {WHO} built nothing: its `build` returned None. Return what the slot takes "
    "(docs/slots.md).",
}


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A registry beside the plugin: a process imports one plugin of a name."""
    folder = tmp_path_factory.mktemp("refuses")
    (folder / "refuses.py").write_text(PLUGIN)
    planning = PLUGIN.replace("CallbackRecord", "ShardingRecord")
    (folder / "refuses_plans.py").write_text(planning.replace("recd_callbacks", "recd_sharding"))
    return folder / "registry.yaml"


@pytest.mark.parametrize("how", SAYS)
def test_what_refuses_its_options_names_their_line(how: str, registry: Path) -> None:
    registry.write_text(
        "plugins: [./refuses.py]\n\ncallbacks:\n  - use: refuses\n"
        f"    how: {how}\n    size: 3\ntrain:\n  batch_size: 4\n"
    )
    with pytest.raises(RecdError) as caught:
        rp.load(registry).callbacks()
    is_plugins = how in ("as Python does", "by none")
    assert type(caught.value) is (PluginError if is_plugins else RegistryError)
    line = SAYS[how]
    assert str(caught.value) == (f"{registry}:{line}" if line[0].isdecimal() else line)


def test_a_mapping_has_no_lines_and_an_override_is_named(registry: Path) -> None:
    values = {
        "plugins": [str(registry.parent / "refuses.py")],
        "callbacks": [{"use": "refuses", "how": "by its option"}],
    }
    with pytest.raises(RegistryError, match=r"^callbacks\[0\]\.size: must be even, but is 3\.$"):
        rp.load(values).callbacks()
    registry.write_text("plugins: [./refuses.py]\ncallbacks:\n  - use: refuses\n")
    with pytest.raises(RegistryError) as caught:
        rp.load(registry, ["callbacks.0.how=by its option", "callbacks.0.size=5"]).callbacks()
    assert str(caught.value).startswith("override 'callbacks.0.size=5': callbacks[0].size: must")


def test_what_stands_behind_another_planner_names_its_own_line(registry: Path) -> None:
    registry.write_text(
        "plugins: [./refuses_plans.py, recd_flexshard]\nsharding:\n  use: flexshard\n"
        "  others:\n    use: refuses\n    how: by its option\n    size: 3\n"
    )
    with pytest.raises(RegistryError) as caught:
        rp.load(registry).planner()
    assert str(caught.value) == f"{registry}:7: sharding.others.size: must be even, but is 3."
