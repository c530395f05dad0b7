"""Value tests: plugins are found where registry.yaml says, believed when checked, distinguished."""

from __future__ import annotations

import importlib
import json
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from plugins import POOLING, write_distribution, write_module
from recd_plugins.cli.main import app
from recd_plugins.config import parse
from recd_plugins.errors import PluginError, RecdError, RegistryError
from recd_plugins.hooks.catalog import Catalog
from recd_plugins.hooks.imported import available
from recd_plugins.hooks.specs import HOOKS
from recd_plugins.registry import Registry
from recd_plugins.slots import HOST_USES, SLOTS, Context

RECORD = """
from recd_plugins.slots import SLOTS

@hookimpl
def recd_{slot}():
    yield SLOTS["{slot}"](name="mine", summary="Mine.", config=Options, build=build)
"""

READS = """
@hookimpl
def recd_dataset():
    return [DatasetRecord(name="reads", summary="Reads.", config=Options, build=build,
                          uses=("{slot}",))]
"""

OBJECT = """
class Plugin:
    @hookimpl
    def recd_pooling(self):
        return [PoolingRecord(name="own", summary="Its own.", config=Options, build=build)]

plugin = Plugin()
"""


def pooling(name: str) -> str:
    return POOLING.replace("exact", name)


def names(catalog: Catalog, slot: str = "pooling") -> list[str]:
    return [claim.record.name for claim in catalog.of(slot)]


def refused(plugins: list[str], base: Path, kind: type[RecdError] = PluginError) -> str:
    with pytest.raises(kind) as caught:
        Catalog(plugins, base)
    return str(caught.value)


@pytest.mark.parametrize("hook", HOOKS)
def test_a_record_of_each_hook_is_found_listed_and_chosen(
    hook: str, site: Path, tmp_path: Path
) -> None:
    slot = HOOKS[hook]
    body = RECORD.format(slot=slot)
    choice = {"use": "mine", "size": 3}
    chosen: dict[str, Any] = {"one": choice, "many": [choice], "by feature": {"history": choice}}
    registry = {"plugins": ["plugin_of_mine"], slot: chosen[SLOTS[slot].fills]}
    if slot not in HOST_USES:  # such a slot must be read by a record
        body += READS.format(slot=slot)
        registry["dataset"] = {"use": "reads"}
    write_distribution(site, "pkg-of-mine", "4.5", "plugin_of_mine", body)

    loaded = Registry.load(registry)
    (found,) = loaded.chosen(slot)
    assert isinstance(found.record, SLOTS[slot])
    assert found.record.name == "mine"
    assert str(found.provider) == "pkg-of-mine 4.5"
    built = found.record.build(found.config, Context())  # its config, which no slot takes
    assert built.size == 3

    file = tmp_path / "registry.yaml"
    file.write_text(json.dumps(registry))
    listed = CliRunner().invoke(app, ["plugins", "--registry", str(file), "--json"])
    assert listed.exit_code == 0, listed.output
    (mine,) = [record for record in json.loads(listed.output) if record["name"] == "mine"]
    assert mine["slot"] == slot
    assert mine["provider"] == "pkg-of-mine 4.5"
    assert mine["plugin"] == "plugin_of_mine"
    assert mine["chosen"]


def test_nothing_is_imported_that_is_not_named(site: Path) -> None:
    write_distribution(site, "pkg-a", "1.0", "quiet_plugin", "raise RuntimeError('imported')")
    assert [point.value for point in available()["quiet_plugin"]] == ["quiet_plugin"]
    assert names(Catalog([], Path())) == []


def test_an_entry_point_names_a_module_or_an_object_in_it(site: Path) -> None:
    write_distribution(site, "pkg-a", "1.0", "plugin_module", entry="a")
    write_distribution(site, "pkg-b", "2.0", "plugin_object", OBJECT, entry="b")
    points = site / "pkg_b-2.0.dist-info/entry_points.txt"
    points.write_text("[recd_plugins]\nb = plugin_object:plugin\n")
    catalog = Catalog(["a", "b"], Path())
    assert [(c.record.name, str(c.provider)) for c in catalog.of("pooling")] == [
        ("exact", "pkg-a 1.0"),
        ("own", "pkg-b 2.0"),
    ]


def test_a_module_path_is_imported_and_its_distribution_named(site: Path) -> None:
    write_module(site, "outer")
    write_module(site / "outer", "inner", pooling("deep"))
    write_distribution(site, "pkg-c", "3.0", "brought", pooling("brought"), entry="other")
    (site / "pkg_c-3.0.dist-info/top_level.txt").write_text("brought\n")
    catalog = Catalog(["outer.inner", "brought"], Path())
    assert [(c.record.name, str(c.provider)) for c in catalog.of("pooling")] == [
        ("deep", "outer.inner"),
        ("brought", "pkg-c 3.0"),
    ]


def test_a_folder_and_a_file_are_found_from_the_registry(
    site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = tmp_path / "project"
    write_module(base / "local", "as_folder", pooling("folder"))
    file = write_module(base, "as_package", pooling("file")) / "__init__.py"
    file.rename(base / "as_file.py")
    catalog = Catalog(["local/as_folder", "as_file.py"], base)
    assert [(c.record.name, str(c.provider)) for c in catalog.of("pooling")] == [
        ("folder", "local/as_folder"),
        ("file", "as_file.py"),
    ]
    # The same ones from where they lie, as absolute paths.
    again = Catalog([str(base / "local/as_folder"), str(base / "as_file.py")], Path("/"))
    assert names(again) == ["folder", "file"]
    # And from the user's folder.
    monkeypatch.setenv("HOME", str(base))
    assert names(Catalog(["~/as_file.py"], Path("/"))) == ["file"]


def test_a_package_is_named_by_its_folder_or_its_first_file(site: Path, tmp_path: Path) -> None:
    package = tmp_path / "parted_pkg"
    package.mkdir()
    (package / "__init__.py").write_text("from .inner import recd_pooling\n")
    write_module(package, "inner", POOLING)
    (package / "outer.py").write_text("from .inner import recd_pooling\n")
    assert names(Catalog(["./parted_pkg/__init__.py"], tmp_path)) == ["exact"]
    refusal = refused(["./parted_pkg/outer.py"], tmp_path)
    assert "A file of a package is no plugin by itself: name the package's folder." in refusal


def test_a_path_without_a_plugin_is_named(tmp_path: Path) -> None:
    message = refused(["./nowhere"], tmp_path)
    assert message.startswith(f"plugin './nowhere': {tmp_path / 'nowhere'} does not exist")
    (tmp_path / "empty").mkdir()
    message = refused(["./empty"], tmp_path)
    assert f"{tmp_path / 'empty' / '__init__.py'} does not exist" in message


def test_a_path_whose_name_is_taken_is_named(site: Path, tmp_path: Path) -> None:
    for folder in ("one", "two"):
        write_module(tmp_path / folder, "twin_plugin")
    write_module(tmp_path, "json")
    message = refused(["./one/twin_plugin", "./two/twin_plugin"], tmp_path)
    assert "'./two/twin_plugin': the name 'twin_plugin' is taken by" in message
    assert str(tmp_path / "one") in message
    assert "Rename the folder or file." in message
    assert "the name 'json' is taken by" in refused(["./json"], tmp_path)
    (tmp_path / "mine.txt").write_text("")
    (tmp_path / "my.own").mkdir()
    (tmp_path / "my.own" / "__init__.py").write_text("")
    for name in ("./mine.txt", "./my.own"):
        assert f"plugin '{name}': Python cannot import a module of that name" in refused(
            [name], tmp_path
        )


def test_a_module_beside_a_plugin_is_not_taken_for_another_ones(site: Path, tmp_path: Path) -> None:
    """A module of Python itself is the one meant, whatever lies there."""
    for folder, name in (("one", "first_of_two"), ("two", "second_of_two")):
        made = write_module(tmp_path / folder, name, "import json, beside_both\n" + POOLING)
        (made / "__init__.py").rename(made.parent / f"{name}.py")
        (made.parent / "json.py").touch()
        (made.parent / "beside_both.py").touch()
    names(Catalog(["./one/first_of_two.py"], tmp_path))
    assert refused(["./two/second_of_two.py"], tmp_path) == (
        "plugin './two/second_of_two.py' imports beside_both.py, which lies beside it, but in this "
        f"process that name is taken by {tmp_path / 'one/beside_both.py'}. Rename "
        f"{tmp_path / 'two/beside_both.py'} or the other one."
    )
    (tmp_path / "two/beside_both.py").unlink()
    assert names(Catalog(["./two/second_of_two.py"], tmp_path)) == ["exact"]


def test_a_plugin_named_twice_is_refused(site: Path, tmp_path: Path) -> None:
    write_distribution(site, "pkg-a", "1.0", "named_twice")
    message = refused(["named_twice", "named_twice"], tmp_path, RegistryError)
    assert message == "plugin 'named_twice' is named twice under `plugins`."
    message = refused(["named_twice", "./site/named_twice"], tmp_path)
    assert "'./site/named_twice' is the same module as another one under `plugins`" in message


def test_a_distribution_that_is_listed_twice_counts_once(
    site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_distribution(site, "pkg-a", "1.0", "editable_twin")
    other = tmp_path / "editable"
    write_distribution(other, "pkg-a", "1.0", "editable_twin")
    points = other / "pkg_a-1.0.dist-info/entry_points.txt"
    points.write_text(points.read_text() + "editable_twin = editable_twin\n")
    # Not by `syspath_prepend`, whose undoing would put `site` back, too.
    monkeypatch.setattr(sys, "path", [str(other), *sys.path])
    importlib.invalidate_caches()
    assert len(available()["editable_twin"]) == 1
    assert names(Catalog(["editable_twin"], Path())) == ["exact"]


def test_two_distributions_with_one_entry_point_are_both_named(site: Path) -> None:
    write_distribution(site, "pkg-a", "1.0", "module_a", pooling("of_a"), entry="shared_name")
    write_distribution(site, "pkg-b", "0.2", "module_b", pooling("of_b"), entry="shared_name")
    message = refused(["shared_name"], Path())
    assert "plugin 'shared_name' is an entry point of" in message
    for part in ("pkg-a 1.0", "pkg-b 0.2", "module_a", "module_b", "uninstall one, or name"):
        assert part in message
    # As it says: the modules can be named, one or both.
    assert names(Catalog(["module_b", "module_a"], Path())) == ["of_b", "of_a"]


def test_two_distributions_of_one_module_cannot_be_distinguished_by_it(
    site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a fork that was installed beside its origin."""
    write_distribution(site, "pkg-a", "1.0", "forked_plugin")
    write_distribution(tmp_path / "fork", "pkg-fork", "2.0", "forked_plugin")
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path / "fork")])
    importlib.invalidate_caches()
    message = refused(["forked_plugin"], Path())
    assert "is an entry point of pkg-a 1.0 and pkg-fork 2.0; uninstall one: both are" in message
    assert "both are the module forked_plugin, so only one of them runs." in message


def test_a_name_that_two_claim_is_distinguished_by_its_provider(site: Path, tmp_path: Path) -> None:
    write_distribution(site, "pkg-a", "1.0", "claim_a", entry="a")
    write_distribution(site, "pkg-b", "0.2", "claim_b", entry="b")
    write_module(tmp_path, "claim_local")
    catalog = Catalog(["a", "b", "./claim_local"], tmp_path)
    with pytest.raises(RegistryError) as caught:
        catalog.find("pooling", "exact")
    assert str(caught.value) == (
        "`pooling: exact` is provided by pkg-a 1.0 and pkg-b 0.2 and ./claim_local; name one as "
        "pkg-a:exact in registry.yaml."
    )
    for owner, provider in (
        ("pkg-a", "pkg-a 1.0"),
        ("pkg-b", "pkg-b 0.2"),
        ("b", "pkg-b 0.2"),  # the plugin's name will do too
        ("./claim_local", "./claim_local"),
    ):
        assert str(catalog.find("pooling", f"{owner}:exact").provider) == provider
    with pytest.raises(RegistryError, match=r"did you mean 'pkg-a:exact'\?.*pkg-b:exact"):
        catalog.find("pooling", "pkga:exact")
    with pytest.raises(RegistryError, match=r"provides pooling 'pkg-a:exat'; did you mean 'exact'"):
        catalog.find("pooling", "pkg-a:exat")


def test_two_plugins_of_one_distribution_are_distinguished_by_their_names(site: Path) -> None:
    write_distribution(site, "pkg-a", "1.0", "first_of_two")
    write_module(site, "second_of_two")
    points = site / "pkg_a-1.0.dist-info/entry_points.txt"
    points.write_text(points.read_text() + "second_of_two = second_of_two\n")
    catalog = Catalog(["first_of_two", "second_of_two"], Path())
    with pytest.raises(RegistryError) as caught:
        catalog.find("pooling", "exact")
    assert str(caught.value) == (
        "`pooling: exact` is provided by plugin first_of_two of pkg-a 1.0 and plugin "
        "second_of_two of pkg-a 1.0; name one as first_of_two:exact in registry.yaml."
    )
    assert catalog.find("pooling", "second_of_two:exact").provider.plugin == "second_of_two"


def test_what_only_one_provides_needs_no_provider(site: Path) -> None:
    write_distribution(site, "pkg-a", "1.0", "claims_alone")
    catalog = Catalog(["claims_alone"], Path())
    assert catalog.find("pooling", "exact") is catalog.find("pooling", "pkg-a:exact")
    for use in ("exact", "pkg-a:exact"):
        with pytest.raises(RegistryError, match="no enabled plugin provides model") as caught:
            catalog.find("model", use)
        assert "choose from. Slots that have one of that name: pooling. " in str(caught.value)
    with pytest.raises(RegistryError) as caught:
        catalog.find("model", "pkg-b:exact")
    assert "Slots that" not in str(caught.value)


def test_the_hosts_own_records_come_first_and_are_its(site: Path) -> None:
    claim = Catalog([], Path()).find("sharding", "torchrec")
    assert claim.provider.distribution == "recd-plugins"
    body = pooling("x") + RECORD.format(slot="sharding")
    write_distribution(site, "pkg-a", "1.0", "shards_too", body)
    assert names(Catalog(["shards_too"], Path()), "sharding") == ["torchrec", "mine"]


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (
            "@hookimpl\ndef recd_pooling(context):\n    return []\n",
            "Argument(s) {'context'} are declared in the hookimpl but can not be found in the "
            "hookspec. A hook takes no arguments: options and context come to the `build` of a",
        ),
        (
            POOLING + "    \n" + POOLING.replace("recd_pooling", "recd_poolings"),
            "implements a hook that does not exist: 'recd_poolings'; did you mean 'recd_pooling'?",
        ),
        (
            "@hookimpl\ndef recd_pooling():\n    yield 1 / 0\n",
            "its hook recd_pooling raised ZeroDivisionError in recd_pooling "
            "(broken_plugin/__init__.py:18): division by zero. Run recd with --debug",
        ),
        (
            "@hookimpl\ndef recd_pooling():\n    exit(0)\n",
            "its hook recd_pooling raised SystemExit in recd_pooling "
            "(broken_plugin/__init__.py:18): 0. Run recd with --debug",
        ),
        (
            "@hookimpl\ndef recd_pooling():\n    raise StopIteration\n",
            "raised StopIteration in recd_pooling (broken_plugin/__init__.py:18). Run recd with",
        ),
        (
            "@hookimpl\ndef recd_pooling():\n    return 3\n",
            "its hook recd_pooling must return a list of records, but returned one int.",
        ),
        (
            "@hookimpl\nasync def recd_pooling():\n    yield 3\n",
            "but returned one async_generator. Write it without `async`.",
        ),
        (
            "@hookimpl\ndef recd_dataset():\n    return [DatasetRecord(name='d', summary='D.', "
            "config=Config, build=build, free=('wait',))]\n",
            "a record 'd' whose `free` names 'wait', which is no option",
        ),
        (
            "@hookimpl\ndef recd_model():\n    return [ModelRecord(name='m', summary='M.', "
            "config=Config, build=build, takes=['a'])]\n",
            "a record 'm' whose `takes` is ['a']: let it be a function of config and schema.",
        ),
        (
            POOLING.replace("recd_pooling()", "recd_model()"),
            "its hook recd_model must return ModelRecord records, but returned PoolingRecord(",
        ),
        (
            POOLING.replace("return [", "return 2 * ["),
            "its hook recd_pooling returns two records named 'exact'. Rename one of them.",
        ),
        (
            "import sys\nsys.exit(3)\n",
            "raised SystemExit on import: 3 (broken_plugin/__init__.py:17).",
        ),
        (
            "raise KeyboardInterrupt\n",
            "raised KeyboardInterrupt on import (broken_plugin/__init__.py:16).",
        ),
        (
            "class Odd(BaseException): ...\nraise Odd('x')\n",
            "raised Odd on import: x (broken_plugin/__init__.py:17).",
        ),
        ("import recd_plugins.absent\n", "raised ModuleNotFoundError on import"),
        ("import recd_plugins.absent\n", "__init__.py:16). This is recd-plugins 0."),
        (
            "from recd_plugins.api import PoolingRecrd\n",
            "docs/api.md has the names of it: did you mean 'PoolingRecord'? Run recd with --debug",
        ),
        ("x = (\n", "raised SyntaxError on import"),
        (
            POOLING.replace("@hookimpl\n", ""),
            "has a function recd_pooling which is no hook, so nothing would call it: put",
        ),
        (
            POOLING + "def recd_dedup():\n    return []\n",
            "has a function recd_dedup which is no hook, so nothing would call it: put "
            "@recd_plugins.hookimpl above it, or rename it.",
        ),
        (
            OBJECT.replace("    @hookimpl\n", "") + POOLING + "recd_dedup = plugin.recd_pooling\n"
            "def recd_model(): return []\n",
            "has a function recd_model which is no hook",
        ),
    ],
)
def test_a_plugin_is_not_believed_unchecked(body: str, says: str, site: Path) -> None:
    write_distribution(site, "pkg-a", "1.0", "broken_plugin", body)
    message = refused(["broken_plugin"], Path())
    assert "broken_plugin" in message
    assert says in message


def test_ctrl_c_while_a_plugin_is_imported_is_not_the_plugins(site: Path) -> None:
    body = "import signal\nsignal.raise_signal(signal.SIGINT)\n"
    write_distribution(site, "pkg-a", "1.0", "slow_plugin", body)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            Catalog(["slow_plugin"], Path())
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize(
    ("given", "becomes", "says"),
    [
        ('name="exact"', "name=None", "a record None whose name registry.yaml cannot say: let"),
        ('name="exact"', 'name=""', "a record '' whose name registry.yaml cannot say"),
        ('name="exact"', 'name="a:b"', "a record 'a:b' whose name registry.yaml cannot say"),
        ("config=Options", "config=Options()", "a record 'exact' whose `config` is "),
        ("config=Options", "config=dict", "whose `config` is <class 'dict'>: let it be a class"),
        (
            "config=Options",
            "config=type('C', (Options,), {'__annotations__': {'n': int}})",
            "above C.",
        ),
        ('summary="A pooling."', "summary=None", "whose `summary` is None: let it be a text"),
        ("build=build", "build=None", "whose `build` is None: let it be a function"),
        (
            "build=build",
            "build=build, needs='cuda'",
            "whose `needs` are 'cuda': let them be a tuple, as `(\"import:ray\",)`.",
        ),
        (
            "build=build",
            "build=lambda config: None",
            "whose `build` takes (config), where it is called with two arguments: let it be a",
        ),
        (
            "build=build",
            "build=build, uses=('poolin',)",
            "that uses 'poolin', which is no slot; did you",
        ),
    ],
)
def test_the_fields_of_a_record_are_not_believed_unchecked(
    given: str, becomes: str, says: str, site: Path
) -> None:
    assert given in POOLING
    write_distribution(site, "pkg-a", "1.0", "odd_plugin", POOLING.replace(given, becomes))
    message = refused(["odd_plugin"], Path())
    assert message.startswith("plugin 'odd_plugin' (pkg-a 1.0): its hook recd_pooling returns a")
    assert says in message


OPTIONS = """
from __future__ import annotations
from collections.abc import Callable
from datetime import date
from enum import Enum
from numbers import Real
from typing import TYPE_CHECKING, Protocol, TypedDict
from torch import dtype
from recd_plugins.api import *
from dataclasses import dataclass
if TYPE_CHECKING:
    from pathlib import Path

class Hue(Enum):
    RED = "red"
    BLUE = 2

class Named(TypedDict):
    name: str

class Sized(Protocol):
    size: int

@dataclass(frozen=True, kw_only=True)
class Inner:
    size: {inner} = 1

@dataclass(frozen=True, kw_only=True)
class Options(Config):
    {name}: {kind} = None

@hookimpl
def recd_{slot}():
    return [{record}(name="odd", summary="Odd.", config=Options, build=print)]
"""


@pytest.mark.parametrize(
    ("name", "kind", "says"),
    [
        ("a", "list[int]", "'a' of Options is of a type that registry.yaml cannot fill, list[int]"),
        ("a", "dict[str, set[str]] | None", "set[str]: write tuple[str, ...] in its place."),
        ("a", "Callable[[int], int]", "cannot fill, collections.abc.Callable[[int], int]: let it"),
        ("a", "tuple[Inner, ...]", "'size' of Inner is of a type that registry.yaml cannot fill"),
        ("a", "Hue", "cannot fill, Hue: write Literal['red', 2] in its place."),
        ("a", "Named", "registry.yaml cannot fill, <class 'odd_options.Named'>: let it be made of"),
        ("a", "Sized | None", "registry.yaml cannot fill, <class 'odd_options.Sized'>: let it be"),
        (
            "a",
            "tuple[date, ...]",
            "'a' of Options is of a type that registry.yaml cannot fill, <class",
        ),
        (
            "a",
            "dtype | None",
            "registry.yaml cannot fill, <class 'torch.dtype'>: let it be",
        ),
        ("a", "Path", "not there when it runs (Options: name 'Path' is not defined): import them"),
        ("use", "int", "option 'use' nobody can set, since `use:` in registry.yaml is the host's"),
        ("features", "tuple[str, ...]", "option 'features' nobody can set, since `features:` in"),
    ],
)
def test_options_that_nobody_can_set_are_refused(
    name: str, kind: str, says: str, site: Path
) -> None:
    """They are so before anything of the registry is looked at, be they written there or not."""
    inner = "list[int]" if "Inner" in kind else "int"
    body = OPTIONS.format(
        name=name, kind=kind, inner=inner, slot="preprocess", record="PreprocessRecord"
    )
    (site / "odd_options.py").write_text(body)
    message = refused(["odd_options"], site)
    assert message.startswith("plugin 'odd_options' (odd_options): its hook recd_preprocess ret")
    assert says in message


@pytest.mark.parametrize("kind", ["str | date", "Real | None", "float | dtype | None"])
def test_options_of_a_wider_class_can_be_set(kind: str, site: Path) -> None:
    """What registry.yaml can hold is enough: the plugin's own code may make the others."""
    body = OPTIONS.format(
        name="a", kind=kind, inner="int", slot="preprocess", record="PreprocessRecord"
    )
    (site / "wide_options.py").write_text(body)
    config = Catalog(["wide_options"], Path()).find("preprocess", "odd").record.config
    assert parse(config, {"a": 1.5 if "str" not in kind else "today"}, "preprocess[0]").a


DEFAULT = """
from dataclasses import field

@dataclass(frozen=True, kw_only=True)
class Sizes(Config):
    size: {kind} = {default}

@hookimpl
def recd_pooling():
    return [PoolingRecord(name="sized", summary="Sized.", config=Sizes, build=build)]
"""


@pytest.mark.parametrize(
    ("kind", "default", "says"),
    [
        ("int", "'one'", "expected an integer, got 'one' (str). Mend the default, or the type"),
        ("int", "True", "expected an integer, got True (bool)"),
        ("tuple[str, ...]", "'one'", "got 'one' (str)"),
        ("int", "None", ""),  # which stands for an option that nobody set
        ("float", "1", ""),
        ("'int | str'", "'auto'", ""),
        ("tuple[float, ...]", "(1, 2.5)", ""),
        ("int", "field(init=False, default=3)", ""),  # no option at all
    ],
)
def test_a_default_that_nobody_could_write_is_refused(
    kind: str, default: str, says: str, site: Path
) -> None:
    body = DEFAULT.format(kind=kind, default=default)
    write_distribution(site, "pkg-a", "1.0", "default_plugin", body)
    if not says:
        assert names(Catalog(["default_plugin"], Path())) == ["sized"]
        return
    message = refused(["default_plugin"], Path())
    assert "whose option 'size' of Sizes has a default that nobody could write" in message
    assert says in message


def test_a_default_out_of_its_own_bounds_is_its_authors(site: Path) -> None:
    body = DEFAULT.format(kind="Annotated[int, Range(ge=2)]", default="1")
    write_distribution(site, "pkg-a", "1.0", "bounded_plugin", body)
    config = Catalog(["bounded_plugin"], Path()).find("pooling", "sized").record.config
    says = r"must be >= 2, but is 1\. That is the default which Sizes gives it: write another"
    with pytest.raises(RegistryError, match=rf"pooling\.history\.size: {says}"):
        parse(config, {}, "pooling.history")
    assert parse(config, {"size": 2}, "pooling.history").size == 2
    with pytest.raises(RegistryError, match=r"must be >= 2, but is 0\.$"):
        parse(config, {"size": 0}, "pooling.history")


def test_a_hook_that_has_nothing_to_give_gives_nothing(site: Path) -> None:
    write_distribution(site, "pkg-a", "1.0", "shy_plugin", "@hookimpl\ndef recd_pooling(): ...\n")
    catalog = Catalog(["shy_plugin"], Path())
    assert names(catalog) == []
    with pytest.raises(RegistryError, match="hook recd_pooling of shy_plugin returned None: let"):
        catalog.find("pooling", "mine")
    with pytest.raises(RegistryError, match="no enabled plugin provides model 'mine'") as caught:
        catalog.find("model", "mine")
    assert "returned None" not in str(caught.value)


@pytest.mark.parametrize("name", ["recd_dlrn", "no.such.module", "no such module"])
def test_an_unknown_plugin_is_named_with_the_nearest(name: str, tmp_path: Path) -> None:
    message = refused([name], tmp_path)
    assert message.startswith(f"plugin {name!r} is not an installed entry point, module or path; ")
    assert "recd_dlrm" in message
    assert ("did you mean 'recd_dlrm'?" in message) == (name == "recd_dlrn")
    assert "./my_plugin" in message


def test_what_a_plugin_brings_and_is_not_there_is_said_to_be_its(tmp_path: Path) -> None:
    """For registry.yaml does not have the name."""
    write_module(tmp_path, "bringing", pooling("own") + '\nbrings = ("./not_there",)\n')
    said = refused(["./bringing"], tmp_path)
    assert said.startswith(f"plugin './not_there': {tmp_path}/not_there does not exist")
    assert said.endswith(" Plugin './bringing' brings it.")
