"""Value tests: what the package shows, that all of it is documented, and what it costs."""

from __future__ import annotations

import dataclasses
import inspect
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_type_hints

import pytest

import recd_plugins
from recd_plugins.config import Config
from recd_plugins.describe import field_docs, nested
from recd_plugins.hooks import specs
from recd_plugins.hooks.catalog import Catalog
from recd_plugins.hooks.imported import available
from recd_plugins.hooks.specs import ADDITIONS, HOOKS
from recd_plugins.registry import KEYS
from recd_plugins.registry.settings import TrainSettings
from recd_plugins.slots import HOST_USES, SLOTS, Record

SPECS = (
    specs.TableSpecs,
    specs.BatchSpecs,
    specs.PlacementSpecs,
    specs.ModelSpecs,
    specs.RunSpecs,
)
HEAVY = ("torch", "torchrec", "fbgemm_gpu", "pyarrow", "numpy", "numba", "recd_dlrm")


def loaded_after(code: str) -> set[str]:
    """The modules of an interpreter of its own that ran `code`."""
    code += "\nimport sys\nprint('\\n'.join(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300
    )
    return set(done.stdout.split())


def builtins() -> list[Record[Any, Any]]:
    ours = [name for name, (point, *_) in available().items() if point.value.startswith("recd_")]
    return [claim.record for claim in Catalog(ours, Path()).claims]


def configs(config: type, seen: tuple[type, ...] = ()) -> Iterator[type]:
    """A config and those that it holds."""
    yield config
    for part in nested(config):
        if part not in seen:
            yield from configs(part, (*seen, part))


def test_the_package_exports_this_and_no_more() -> None:
    assert recd_plugins.__all__ == ["Stack", "__version__", "hookimpl", "load"]
    for name in recd_plugins.__all__:
        assert getattr(recd_plugins, name) is not None
    from recd_plugins import Stack, load
    from recd_plugins.stack import Stack as Original

    assert Stack is Original
    assert get_type_hints(load)["return"] is Original
    with pytest.raises(AttributeError, match="'recd_plugins' has no attribute 'laod'"):
        _ = recd_plugins.laod


def test_the_root_of_the_package_holds_at_most_eight_modules() -> None:
    assert len(list(Path(recd_plugins.__path__[0]).glob("*.py"))) <= 8


def test_importing_the_package_loads_nothing_heavy_and_no_plugin() -> None:
    assert not loaded_after("import recd_plugins") & {*HEAVY, "yaml", "recd_plugins.stack"}


def test_a_registry_is_checked_without_torch() -> None:
    code = "from recd_plugins.registry import Registry\nRegistry.load({'train': {'device': 'cpu'}})"
    assert not loaded_after(code) & {"torch", "torchrec", "fbgemm_gpu"}


def test_a_coordinator_without_workers_is_light() -> None:
    code = "import recd_dsi.service.coordinator, recd_dsi.service.page, recd_dsi.service.cli"
    assert not loaded_after(code) & {"torch", "torchrec", "fbgemm_gpu"}


def test_pytest_loads_nothing_heavy_on_our_account() -> None:
    assert not loaded_after("import recd_plugins.testing.plugin") & set(HEAVY)


def test_help_imports_nothing_heavy() -> None:
    code = """
import contextlib, io, sys
from recd_plugins.cli.main import main
sys.argv = ["recd", "--help"]
with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()) as out:
    main()
assert all(f" {command} " in out.getvalue() for command in ("train", "plugins", "data", "doctor"))
"""
    loaded = loaded_after(code)
    assert not loaded & set(HEAVY)
    assert len(loaded) < 550  # 0.3 s of a processor; 424 of them when this was written


def test_each_slot_has_its_record_its_hook_and_its_key() -> None:
    assert {f"recd_{slot}": slot for slot in SLOTS} == HOOKS
    specified = {name for spec in SPECS for name in vars(spec) if name.startswith("recd_")}
    assert specified == set(HOOKS)
    assert [name for name in vars(specs.AdviceSpecs) if name.startswith("recd_")] == [ADDITIONS]
    for slot, kind in SLOTS.items():
        assert kind.slot == slot
        assert kind.fills in ("one", "many", "by feature")
        assert slot in KEYS
    assert set(HOST_USES) < set(SLOTS)


@pytest.mark.parametrize("slot", SLOTS)
def test_each_slot_is_documented_by_its_record(slot: str) -> None:
    doc = SLOTS[slot].__doc__ or ""
    # A dataclass without a docstring gets one of its signature.
    assert not doc.startswith(SLOTS[slot].__name__)
    assert doc.splitlines()[0].endswith(".")


@pytest.mark.parametrize("spec", SPECS)
def test_each_hook_is_documented_and_says_what_it_returns(spec: type) -> None:
    assert spec.__doc__
    for name, hook in vars(spec).items():
        if name.startswith("recd_"):
            assert (hook.__doc__ or "").endswith("."), name
            assert SLOTS[HOOKS[name]].__name__ in inspect.get_annotations(hook)["return"]


@pytest.mark.parametrize("record", builtins(), ids=lambda record: f"{record.slot}-{record.name}")
def test_each_option_of_a_built_in_record_is_documented(record: Record[Any, Any]) -> None:
    assert record.summary.endswith(".")
    for config in configs(record.config):
        assert issubclass(config, Config)
        docs = field_docs(config)
        assert [field.name for field in dataclasses.fields(config)] == list(docs)
        assert all(docs.values())


def test_each_option_of_training_is_documented() -> None:
    assert set(configs(TrainSettings)) >= {TrainSettings}
    for config in configs(TrainSettings):
        assert {field.name for field in dataclasses.fields(config)} == {
            name for name, doc in field_docs(config).items() if doc
        }


def test_the_built_ins_are_plugins_like_anyones() -> None:
    assert "recd_dlrm" in available()
    assert len(builtins()) > 10


def test_a_name_that_is_to_go_works_and_says_what_stands_in_its_place() -> None:
    from recd_plugins.api import planning

    with pytest.warns(DeprecationWarning, match="is called ProfiledTable; .* 0.3.0"):
        assert planning.SequenceTable is planning.ProfiledTable
    with pytest.raises(AttributeError, match="has no attribute 'SequenceTables'"):
        planning.SequenceTables  # noqa: B018
