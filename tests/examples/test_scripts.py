"""Example runs: the scripts of examples/, as a user starts them."""

from __future__ import annotations

import difflib
import importlib.util
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from forked import TORCHRUN, run_module

from recd_plugins.testing.gloo import GlooPool

EXAMPLES = Path(__file__).parents[2] / "examples"
OWN = EXAMPLES / "own_trainer"


@pytest.mark.parametrize("script", sorted(one.stem for one in EXAMPLES.glob("*.py")))
def test_a_script_stays_thin(script: str) -> None:
    most = 90 if script == "my_cache" else 60  # a whole planner, which no script is
    assert len((EXAMPLES / f"{script}.py").read_text().splitlines()) < most


def test_a_trainer_with_recd_plugins_dropped_in_learns(tmp_path: Path) -> None:
    script = str(OWN / "after.py")
    done = run_module("torch.distributed.run", *TORCHRUN, script, folder=tmp_path)
    assert done.code == 0, done.err
    losses_line = re.search(r"loss (\d\.\d+) -> (\d\.\d+)", done.out)
    assert losses_line is not None, done.out
    first, last = map(float, losses_line.groups())
    assert last < first - 0.02
    assert "NoticeWarning" not in done.err  # all that its registry switches on is used


def test_eight_lines_drop_it_in() -> None:
    before, after = ((OWN / name).read_text().splitlines() for name in ("before.py", "after.py"))
    lines = list(difflib.unified_diff(before, after, n=0))[2:]
    changed = [line for line in lines if line[0] in "+-"]
    assert 0 < len(changed) <= 8
    readme = (EXAMPLES.parent / "README.md").read_text()
    for line in changed:
        if line.startswith("+") and "rp.load" not in line:
            assert line[1:].strip() in readme


def trained(name: str, checkpoint: Path, steps: int) -> tuple[list[float], list[str]]:
    """The losses of a trainer that starts from a checkpoint and writes one, as each rank has them;
    and the modules that are ours."""
    spec = importlib.util.spec_from_file_location(name, OWN / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    sys.modules[name] = script  # where its dataclass looks for its annotations
    spec.loader.exec_module(script)
    kinds: list[str] = []
    made = script.TrainPipelineSparseDist

    def pipeline(model: Any, *rest: Any) -> Any:
        kinds.extend(type(part).__name__ for part in model.modules())
        return made(model, *rest)

    script.TrainPipelineSparseDist = pipeline
    losses = script.main(steps=steps, checkpoint=checkpoint)
    return losses, [kind for kind in kinds if kind.startswith("Tier")]


def test_it_trains_as_before_and_its_checkpoints_fit(gloo_pool: GlooPool, tmp_path: Path) -> None:
    """Losses within 1e-6, from a checkpoint of the plain trainer, and back to it."""
    start, left, right = (tmp_path / name for name in ("start", "left", "right"))
    gloo_pool.run(trained, "before", start, 4)
    for copy in (left, right):
        shutil.copytree(start, copy)
    before, after = (
        gloo_pool.run(trained, name, folder, 12)
        for name, folder in (("before", left), ("after", right))
    )
    again = [gloo_pool.run(trained, "before", folder, 6) for folder in (left, right)]
    for rank in (0, 1):
        assert before[rank][1] == []
        assert after[rank][1] != []
        assert after[rank][0] == pytest.approx(before[rank][0], rel=1e-6)
        assert again[1][rank][0] == pytest.approx(again[0][rank][0], rel=1e-6)


def test_a_pooling_in_one_file_trains(tmp_path: Path) -> None:
    arguments = ["--registry", str(EXAMPLES.parent / "registry.yaml"), "--ranks=1"]
    arguments += ["plugins=[recd_dlrm, ./examples/last_pooling.py]", "pooling.history.use=last"]
    arguments += ["dataset.samples=40000", "sharding={use: torchrec, search: greedy}"]
    arguments += ["train.steps=30"]
    done = run_module("recd_plugins", "train", *arguments, folder=tmp_path)
    assert done.code == 0, done.err
    losses = [float(loss) for loss in re.findall(r"train step .* loss (\d\.\d+)", done.out)]
    assert len(losses) == 2
    assert losses[-1] < losses[0]


def test_a_sharding_in_one_file_plans_and_trains(tmp_path: Path) -> None:
    arguments = [
        "--registry",
        str(EXAMPLES.parent / "registry.yaml"),
        "--ranks=2",
        "train.steps=20",
    ]
    arguments += ["plugins=[recd_dlrm, ./examples/by_size.py]", "sharding=by_size"]
    arguments += ["dataset.samples=40000"]
    printed = {}
    for command in ("plan", "train"):
        done = run_module("recd_plugins", command, *arguments, folder=tmp_path)
        assert done.code == 0, done.err
        printed[command] = done.out
    held = re.search(r"by_size: ([\d,]+), ([\d,]+) numbers", printed["plan"])
    assert held is not None
    assert all(int(size.replace(",", "")) > 0 for size in held.groups())
    assert re.search(r"train step 20/20  loss \d\.\d+", printed["train"])


def test_the_last_of_a_sequence() -> None:
    import torch

    sys.path.insert(0, str(EXAMPLES))
    try:
        from last_pooling import Last
    finally:
        sys.path.remove(str(EXAMPLES))
    values = torch.arange(6.0).view(3, 2)
    pooled = Last()(values, torch.tensor([0, 2, 0, 1, 0]))
    assert pooled.tolist() == [[0, 0], [2, 3], [0, 0], [4, 5], [0, 0]]
