"""Value tests on the command line: each mistake gives one message, exit code 2, and no file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from trio import MINOR, OTHER_FBGEMM
from typer.testing import CliRunner, Result

from plugins import write_distribution, write_module
from recd_plugins.cli.main import app
from recd_plugins.data.schema import Schema, SparseFeature
from recd_plugins.notices import hide_logs

GOOD = """
plugins: [recd_dlrm]
dataset: {use: random, samples: 64}
model: {use: dlrm}
train: {steps: 1}
"""


@pytest.fixture(autouse=True)
def logs() -> None:
    """As the program's `main` has them, which these tests do not call."""
    hide_logs()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty working folder, in which a mistake must leave nothing but what the test wrote."""
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    assert not (tmp_path / "runs").exists()
    assert not (tmp_path / "data").exists()


def train(registry: str, *arguments: str) -> Result:
    Path("registry.yaml").write_text(registry)
    return CliRunner().invoke(app, ["train", *arguments])


def message(result: Result) -> str:
    """The one message of a command that failed as it should."""
    assert result.exit_code == 2, (result.output, result.exception)
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("error: ") == 1
    assert "Traceback" not in result.output
    return result.stderr


REGISTRIES = {
    "broken yaml": (
        "plugins: [recd_dlrm\nmodel: {use: dlrm}\n",
        ["registry.yaml:2: not valid YAML", "Check indentation"],
    ),
    "a tab": (
        GOOD.replace("train: {steps: 1}", "train:\n\tsteps: 1"),
        ["registry.yaml:6: not valid YAML", "YAML takes no tab there: indent by blanks."],
    ),
    "an empty file": (
        "",
        [
            "registry.yaml: is empty, or has comments alone: nothing fills the slot",
            "`recd plugins",
            "lists what all installed plugins provide",
        ],
    ),
    "a key twice": (
        GOOD + "train: {steps: 2}\n",
        ["registry.yaml:6: 'train' stands twice in one mapping; keep one."],
    ),
    "no mapping": ("- a\n", ["registry.yaml: must hold a mapping of slots"]),
    "unknown key": (
        GOOD + "modle: {use: dlrm}\n",
        ["registry.yaml:6: modle: unknown key 'modle'; did you mean 'model'?"],
    ),
    "unknown plugin": (
        GOOD.replace("[recd_dlrm]", "[recd_dlrn]"),
        [
            "registry.yaml:2: plugins[0]: plugin 'recd_dlrn' is not an installed entry point",
            "did you mean 'recd_dlrm'?",
        ],
    ),
    "unknown record": (
        GOOD.replace("use: dlrm", "use: dlmr"),
        [
            "registry.yaml:4: model.use: no enabled plugin provides model 'dlmr'",
            "did you mean 'dlrm'?",
        ],
    ),
    "plugin not enabled": (
        GOOD.replace("[recd_dlrm]", "[]"),
        [
            "no enabled plugin provides",
            "Installed and not enabled: recd_dedup, recd_dlrm, ",
            "`recd plugins NAME` prints the line to write for a record, `recd plugins dataset`",
        ],
    ),
    "unknown option": (
        GOOD.replace("samples: 64", "sample: 64"),
        ["registry.yaml:3: dataset.sample: unknown option 'sample'; did you mean 'samples'?"],
    ),
    "an option of a record that nobody named": (
        GOOD + "sharding: {goal: auto}\n",
        [
            "registry.yaml:6: sharding.goal: unknown option 'goal'",
            "No `use` is written, so these are the options of 'torchrec'.",
        ],
    ),
    "what is written beside options": (
        GOOD.replace("[recd_dlrm]", "[recd_dlrm, recd_flexshard]")
        + "sharding: {use: flexshard, other: {use: torchrec}}\n",
        ["registry.yaml:6: sharding.other: unknown option 'other'; did you mean 'others'?"],
    ),
    "use misspelt": (
        GOOD + "sharding: {uses: torchrec}\n",
        ["registry.yaml:6: sharding.uses: unknown option 'uses'; did you mean 'use'?"],
    ),
    "features misspelt": (
        GOOD.replace("[recd_dlrm]", "[recd_dlrm, recd_dsi]")
        + "preprocess: [{use: sigrid_hash, feature: [a], modulo: 9}]\n",
        ["preprocess[0].feature: unknown option 'feature'; did you mean 'features'?"],
    ),
    "unknown train option": (
        GOOD.replace("steps: 1", "step: 1"),
        ["registry.yaml:5: train.step: unknown option 'step'; did you mean 'steps'?"],
    ),
    "wrong type": (
        GOOD.replace("steps: 1", "steps: many"),
        ["registry.yaml:5: train.steps: expected an integer, got 'many' (str)."],
    ),
    "out of range": (
        GOOD.replace("steps: 1", "steps: 0"),
        ["registry.yaml:5: train.steps: must be >= 1, but is 0."],
    ),
    "a slot without a record": (
        GOOD.replace("use: dlrm", "embedding_dim: 4"),
        ["registry.yaml:4: model: `use` must name a record", "dlrm_dcn"],
    ),
    "a slot that nobody uses": (
        GOOD + "pooling: {a: {use: sum}}\n",
        [
            "registry.yaml:6: pooling: is set, but no chosen record uses a pooling",
            "or take `pooling` out: `pooling=null` on a command line.",
        ],
    ),
    "a list where one is meant": (
        GOOD + "etl: {use: x}\n",
        ["registry.yaml:6: etl: expected a list, as [{use: ...}]"],
    ),
    "unknown topology": (
        GOOD + "topology: locl\n",
        ["registry.yaml:6: topology: unknown preset 'locl'; did you mean 'local'?"],
    ),
    "no model": (
        GOOD.replace("model: {use: dlrm}", ""),
        ["nothing fills the slot 'model'. Add `model: {use: ...}`", "dlrm"],
    ),
}


@pytest.mark.parametrize("mistake", REGISTRIES)
def test_a_mistake_in_the_registry(mistake: str, folder: Path) -> None:
    registry, says = REGISTRIES[mistake]
    printed = message(train(registry))
    for part in says:
        assert part in printed


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("train.batch_size=big", "override 'train.batch_size=big': train.batch_size: expected"),
        ("train.batchsize=1", "unknown option 'batchsize'; did you mean 'batch_size'?"),
        ("sharding.use=torchreck", "provides sharding 'torchreck'; did you mean 'torchrec'?"),
        ("train", "override 'train': write key=value"),
        ("steps=5", "override 'steps=5': steps: unknown key 'steps'; did you mean 'train.steps'?"),
        ("plugins.x=1", "plugins is a list of 1, in which 'x' is not a position; count from 0."),
        ("train.steps.x=1", "override 'train.steps.x=1': train.steps is 1, which holds no options"),
    ],
)
def test_a_mistake_in_an_override(override: str, says: str, folder: Path) -> None:
    assert says in message(train(GOOD, override))


def test_an_empty_registry_is_called_empty_whatever_overrides_add(folder: Path) -> None:
    for text in ("", "# model: {use: dlrm}\n"):
        printed = message(train(text, "train.steps=3"))
        assert "registry.yaml: is empty, or has comments alone: nothing fills" in printed
    assert "is empty" not in message(train("train: {steps: 3}\n"))


def test_no_registry(folder: Path) -> None:
    result = CliRunner().invoke(app, ["train", "--registry", "none.yaml"])
    assert "none.yaml: there is no such registry" in message(result)


def test_nothing_to_resume(folder: Path) -> None:
    assert "--resume: runs/latest/checkpoints holds no checkpoint" in message(
        train(GOOD, "--resume")
    )


def test_two_distributions_claim_one_name(
    folder: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = tmp_path_factory.mktemp("site")
    write_distribution(site, "pkg-a", "1.2", "claims_a")
    write_distribution(site, "pkg-b", "0.3", "claims_b")
    monkeypatch.syspath_prepend(site)
    registry = GOOD.replace("[recd_dlrm]", "[recd_dlrm, claims_a, claims_b]").replace(
        "use: dlrm", "use: sequence_dlrm"
    )
    printed = message(train(registry + "pooling: {a: {use: exact}}\n"))
    assert "`pooling: exact` is provided by pkg-a 1.2 and pkg-b 0.3" in printed
    assert "name one as pkg-a:exact in registry.yaml" in printed
    # Named so, it is found; what is wrong then is the feature's name.
    printed = message(train(registry + "pooling: {a: {use: pkg-b:exactt}}\n"))
    assert "provides pooling 'pkg-b:exactt'; did you mean 'exact'?" in printed


BROKEN_PLUGINS: dict[str, tuple[str, list[str]]] = {
    "misspelt_hook": (
        "@hookimpl\ndef recd_poolin():\n    return []\n",
        ["plugin './misspelt_hook'", "does not exist: 'recd_poolin'", "did you mean 'recd_pool"],
    ),
    "raises_on_import": (
        "raise RuntimeError('no licence')\n",
        ["plugin './raises_on_import' raised RuntimeError on import: no licence", "--debug"],
    ),
    "misses_an_import": (
        "import not_a_module\n",
        ["plugin './misses_an_import' raised ModuleNotFoundError", "not_a_module"],
    ),
    "raises_in_a_hook": (
        "@hookimpl\ndef recd_model():\n    raise KeyError('x')\n",
        ["plugin './raises_in_a_hook'", "its hook recd_model raised KeyError"],
    ),
    "wrong_record": (
        "@hookimpl\ndef recd_model():\n    return ['dlrm']\n",
        ["its hook recd_model must return ModelRecord records, but returned 'dlrm'"],
    ),
    "no_hook": ("", ["plugin './no_hook' (./no_hook) implements no hook"]),
    "unknown_need": (
        "@hookimpl\ndef recd_model():\n    return [ModelRecord(name='m', summary='', "
        "config=Options, build=build, needs=('gpu',))]\n",
        ["model 'm' of ./unknown_need needs 'gpu', which is no capability that the host knows"],
    ),
}


@pytest.mark.parametrize("name", BROKEN_PLUGINS)
def test_a_broken_plugin_is_named(name: str, folder: Path) -> None:
    body, says = BROKEN_PLUGINS[name]
    write_module(folder, name, body)
    registry = GOOD.replace("[recd_dlrm]", f"[recd_dlrm, ./{name}]")
    if name == "unknown_need":
        registry = registry.replace("use: dlrm", "use: m")
    printed = message(train(registry))
    for part in says:
        assert part in printed


def test_debug_shows_the_plugins_traceback(folder: Path) -> None:
    write_module(folder, "raises_for_debug", "raise RuntimeError('no licence')\n")
    result = train(GOOD.replace("[recd_dlrm]", "[./raises_for_debug]"), "--debug")
    assert result.exit_code == 2
    assert "Traceback" in result.stderr
    assert "raises_for_debug/__init__.py" in result.stderr


def test_a_plugin_that_raises_in_build_is_named(folder: Path) -> None:
    body = """
def broken(config, context):
    return 1 / 0

@hookimpl
def recd_dataset():
    return [DatasetRecord(name="mine", summary="", config=Options, build=broken)]
"""
    write_module(folder, "raises_in_build", body)
    registry = GOOD.replace("[recd_dlrm]", "[recd_dlrm, ./raises_in_build]")
    printed = message(train(registry.replace("use: random, samples: 64", "use: mine")))
    assert "dataset 'mine' of ./raises_in_build raised ZeroDivisionError in broken " in printed
    assert "(raises_in_build/__init__.py:" in printed
    assert ") when built: division by zero. Run recd with --debug" in printed


def test_a_plugin_that_builds_nothing_is_named(folder: Path) -> None:
    body = """
def forgotten(config, context):
    pass

@hookimpl
def recd_dataset():
    return [DatasetRecord(name="mine", summary="", config=Options, build=forgotten)]
"""
    write_module(folder, "builds_nothing", body)
    registry = GOOD.replace("[recd_dlrm]", "[recd_dlrm, ./builds_nothing]")
    printed = message(train(registry.replace("use: random, samples: 64", "use: mine")))
    assert "dataset 'mine' of ./builds_nothing built nothing: its `build` returned None" in printed


@pytest.mark.parametrize(
    ("need", "says"),
    [
        ("cuda", "needs a CUDA device, but training runs on the CPU"),
        ("import:nowhere", "needs the package 'nowhere', which is not installed"),
        ("command:nowhere", "needs the program 'nowhere', which is not on PATH"),
        ("slot:tier", "needs the slot 'tier' filled too. Add `tier:` to registry.yaml"),
    ],
)
def test_a_missing_capability(need: str, says: str, folder: Path) -> None:
    name = f"needs_{need.partition(':')[0]}"
    body = f"""
@hookimpl
def recd_cache():
    return [CacheRecord(name="hot", summary="", config=Options, build=build, needs=("{need}",))]
"""
    write_module(folder, name, body)
    registry = GOOD.replace("[recd_dlrm]", f"[recd_dlrm, ./{name}]") + "cache: {use: hot}\n"
    printed = message(train(registry, "train.device=cpu"))
    assert f"cache: cache 'hot' of ./{name} " in printed
    assert says in printed


SCHEMA = Schema(
    session_id=None, timestamp=None, dense=("d",), sparse=(SparseFeature(name="item", num_ids=10),)
)


def write_parquet(path: Path, ids: list[int], **drop: Any) -> None:
    """A split whose feature holds `ids`, one a row, without the columns named in `drop`."""
    columns: dict[str, Any] = {
        "label": pa.array([0.0] * len(ids), pa.float32()),
        "d": pa.array([0.0] * len(ids), pa.float32()),
        "item": pa.array([[value] for value in ids], pa.list_(pa.int64())),
    }
    table = pa.table({name: column for name, column in columns.items() if name not in drop})
    path.mkdir()
    pq.write_table(
        table.replace_schema_metadata({b"recd_schema": SCHEMA.to_json().encode()}),
        path / "part.parquet",
    )


PARQUET = GOOD.replace(
    "{use: random, samples: 64}", "{use: parquet, train: t/train, test: t/test}"
).replace("{use: dlrm}", "{use: dlrm, embedding_dim: 4, bottom: [4], top: [4]}")


@pytest.mark.parametrize("worst", [-1, 10])
def test_ids_out_of_the_tables_range(worst: int, folder: Path) -> None:
    Path("t").mkdir()
    write_parquet(Path("t/train"), [1, worst, 2])
    write_parquet(Path("t/test"), [1])
    printed = message(train(PARQUET))
    assert f"t/train/part.parquet, row group 0: feature 'item' holds id {worst}" in printed
    assert "outside [0, 10). " in printed
    assert ("Raise its num_ids in the schema" if worst > 0 else "`missing: [-1]`") in printed


def test_a_column_that_is_missing(folder: Path) -> None:
    Path("t").mkdir()
    write_parquet(Path("t/train"), [1], item=None)
    printed = message(train(PARQUET))
    assert "t/train/part.parquet: lacks column 'item', which the schema names; Known: d" in printed


def test_a_table_that_is_missing(folder: Path) -> None:
    Path("t/trian").mkdir(parents=True)
    Path("t/other").mkdir()
    printed = message(train(PARQUET))
    assert "dataset.train: t/train: there is no such table" in printed
    assert f"It is relative to {folder}, where you are. {folder}/t has no 'train'; " in printed
    assert "'train'; it holds trian, other." in printed
    printed = message(CliRunner().invoke(app, ["advise", "--table", "t/otter"]))
    assert "--table: t/otter: there is no such table" in printed
    printed = message(CliRunner().invoke(app, ["init", "s/none", "--out", "r.yaml"]))
    assert f"TABLE: s/none: there is no such table. Check the path. It is relative to {folder}" in (
        printed
    )
    assert f"{folder} has no 's'; it holds t." in printed
    Path("empty").mkdir()
    printed = message(CliRunner().invoke(app, ["init", "empty/none", "--out", "r.yaml"]))
    assert "empty has no 'none', and no other folder or Parquet file." in printed


@pytest.mark.parametrize("name", ["t/train", "t/tr*n"])
def test_a_table_beside_the_registry_is_not_taken_but_named(name: str, folder: Path) -> None:
    """Paths of tables start where one is, though those of plugins start at registry.yaml."""
    Path("conf/t").mkdir(parents=True)
    write_parquet(Path("conf/t/train"), [1])
    Path("conf/registry.yaml").write_text(PARQUET.replace("t/train", name))
    printed = message(CliRunner().invoke(app, ["train", "-r", "conf/registry.yaml"]))
    assert f"in {folder}, where paths of tables start; it lies beside conf/registry.yaml" in printed
    assert f"Write `train: conf/{name}`, or start from {folder}/conf." in printed
    checked = CliRunner().invoke(app, ["data", "check", "conf/registry.yaml"])
    assert f"Write `train: conf/{name}`" in message(checked)


def test_a_file_cut_short(folder: Path) -> None:
    Path("t").mkdir()
    write_parquet(Path("t/train"), [1, 2, 3])
    file = Path("t/train/part.parquet")
    file.write_bytes(file.read_bytes()[:-20])
    printed = message(train(PARQUET))
    assert "t/train/part.parquet: not a whole Parquet file" in printed
    assert "write it again, or take it out of the table" in printed


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "version", "says"),
    [
        ("torchrec", "1.0.0", f"and torchrec 1.{MINOR}, but here is torchrec 1.0.0"),
        (OTHER_FBGEMM, f"1.{MINOR}.0", "fbgemm-gpu and fbgemm-gpu-cpu are both installed"),
    ],
)
def test_versions_that_do_not_fit(
    name: str,
    version: str,
    says: str,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    site = tmp_path_factory.mktemp("site")
    info = site / f"{name}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    monkeypatch.syspath_prepend(site)
    printed = message(train(GOOD))
    assert says in printed
    assert "pip install --no-deps -r requirements/c" in printed
    doctor = CliRunner().invoke(app, ["doctor", "--ranks", "1"])
    assert doctor.exit_code == 2
    assert says in doctor.output
