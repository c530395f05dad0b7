"""Example runs: what the guides for clusters, checkpoints and engines say, done or checked."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

import pytest
import yaml
from snippets import Reader, blocks

from recd_plugins.errors import CapabilityError
from recd_plugins.registry import Registry

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


@pytest.mark.slow
def test_weights_leave_a_run_and_are_served_in_int8(tmp_path: Path) -> None:
    reader = Reader(tmp_path)
    reader.read(DOCS / "checkpoints.md")
    reader.read(DOCS / "export.md")
    assert reader.ran == ["recd train", "python weights.py", "python states.py", "python serve.py"]
    registry, again = tmp_path / "registry.yaml", tmp_path / "again.md"
    unique = "plugins: [recd_dlrm, recd_dedup]\ndedup: {use: exact, groups: [[history]]}"
    registry.write_text(registry.read_text().replace("plugins: [recd_dlrm]", unique))
    again.write_text("```console\n$ python serve.py\ntables of int8: clicks part by\n```\n")
    reader.read(again)  # as the registries of `recd init` have it
    assert "dedup" in registry.read_text()
    assert reader.ran[-2:] == ["python serve.py"] * 2


@pytest.mark.slow
def test_a_model_is_trained_every_day(tmp_path: Path) -> None:
    """A day's items keep their ids in the next one's table, new ones share the ids of others; each
    run has one table to train on, or the window."""
    for day in (1, 2, 3):
        raw = tmp_path / "raw" / f"2026-03-0{day}"
        raw.mkdir(parents=True)
        rows = [
            f"{day * 1000 + row // 3},{1772323200 + day * 86400 + row},{row % 2},u{row % 31},"
            f"{row % (20 + 5 * day)}\n"
            for row in range(600)
        ]
        (raw / "clicks.csv").write_text("session,time,click,user,item\n" + "".join(rows))
    reader = Reader(tmp_path)
    reader.read(DOCS / "daily.md")
    assert len(reader.ran) == 8
    tables = [tmp_path / "days" / f"2026-03-0{day}" for day in (1, 2, 3)]
    schemas = {(table / "schema.yaml").read_text() for table in tables}
    assert len(schemas) == 1
    for run, first in (("2026-03-01", "01"), ("2026-03-02", "02"), ("anew", "01")):
        summary = json.loads((tmp_path / "runs" / run / "summary.json").read_text())
        assert summary["finished"]
        registry = yaml.safe_load((tmp_path / "runs" / run / "registry.yaml").read_text())
        assert f"days/2026-03-{first}" in registry["dataset"]["train"]


@pytest.mark.slow
def test_one_registry_goes_to_a_cluster(tmp_path: Path) -> None:
    reader = Reader(tmp_path)
    reader.read(DOCS / "cluster.md")
    assert any("recd plan --ranks 16" in command for command in reader.ran)


@pytest.mark.parametrize("page", ["kafka", "spark", "ray"])
def test_the_registry_of_a_guide_names_what_there_is(page: str) -> None:
    """Its options are checked before it is said that a package or Java is missing."""
    (text,) = (text for language, text in blocks(DOCS / f"{page}.md") if language == "yaml")
    with suppress(CapabilityError):
        assert Registry.load(yaml.safe_load(text)).has_dataset


def test_the_job_of_kubernetes_starts_the_ranks_of_the_registry() -> None:
    folder = ROOT / "examples" / "a100_cluster"
    service, job = yaml.safe_load_all((folder / "job.yaml").read_text())
    spec = job["spec"]
    pod = spec["template"]["spec"]
    (container,) = pod["containers"]
    nodes, each = (
        int(one.partition("=")[2])
        for one in container["command"]
        if one.startswith(("--nnodes", "--nproc"))
    )
    ranks = yaml.safe_load((folder / "registry.yaml").read_text())["train"]["ranks"]
    assert nodes * each == ranks
    assert spec["completions"] == spec["parallelism"] == nodes
    assert container["resources"]["limits"]["nvidia.com/gpu"] == each
    assert service["metadata"]["name"] == pod["subdomain"]
    (grace,) = (
        int(one["value"])
        for one in container["env"]
        if one["name"] == "TORCH_ELASTIC_SHUTDOWN_TIMEOUT"
    )
    assert 0 < grace < pod["terminationGracePeriodSeconds"]  # torchrun kills ranks, not the kubelet
    names = {one["name"] for one in pod["volumes"]}
    assert names == {one["name"] for one in container["volumeMounts"]}
