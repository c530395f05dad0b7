"""Ladder: two ranks. `train.retier_every` moves replicas while training; losses stay TorchRec's."""

from __future__ import annotations

import io
import json
import shutil
from contextlib import nullcontext, redirect_stdout
from pathlib import Path
from typing import Any, cast

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recd_plugins.data.batch import Batch
from recd_plugins.errors import CapabilityError
from recd_plugins.planning.planner_bases import Retiers, Tiered
from recd_plugins.planning.tier_plans.tier_plan import TierPlan
from recd_plugins.stack import load
from recd_plugins.testing.gloo import GlooPool
from recd_plugins.trainer.checkpoints.weights import checkpoint_reader
from recd_plugins.trainer.retiering import Retiering

REGISTRY: dict[str, Any] = {
    "plugins": ["recd_dlrm", "recd_flexshard"],
    "dataset": {"use": "sessions", "samples": 2048, "test_fraction": 0.0625},
    "reader": {"use": "local", "prefetch": False},
    "model": {"use": "sequence_dlrm", "embedding_dim": 8, "bottom": [8], "top": [8]},
    "topology": {"ranks_per_node": 1, "inter_node_gbps": 0.01},
    "train": {
        "device": "cpu",
        "batch_size": 32,
        "steps": 7,
        "log_every": 1,
        "checkpoint_every": 0,
        "retier_batches": 2,
        # The optimizer that shows a wrong gradient.
        "optimizer": {"tables": "sgd", "tables_lr": 0.5, "dense": "sgd", "dense_lr": 0.05},
    },
}
FLEXSHARD = {
    "use": "flexshard",
    "goal": "min_communication",
    "profile_batches": 1,
    "others": {"search": "greedy"},
}
TORCHREC = {"use": "torchrec", "search": "greedy"}


def registry(folder: Path, run: str, sharding: Any, **train: Any) -> dict[str, Any]:
    train = {**REGISTRY["train"], "run": str(folder / run), **train}
    return {**REGISTRY, "folder": str(folder / "data"), "sharding": sharding, "train": train}


def hot_rows(values: dict[str, Any]) -> dict[str, list[int]]:
    """On a rank: train; the rows that had replicas at the end."""
    from recd_plugins.trainer.run import train

    stack = load(values)
    train(stack, torch.device("cpu"))
    planner = stack.planner()
    if not isinstance(planner, Tiered) or planner.tier_plan is None:
        return {}
    return {name: t.replicated.tolist() for name, t in planner.tier_plan.tables.items()}


def losses(run: Path) -> list[float]:
    lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [line["loss"] for line in lines if line["kind"] in ("train", "test")]


def test_replicas_move_and_losses_stay(gloo_pool: GlooPool, tmp_path: Path) -> None:
    moved, same = gloo_pool.run(
        hot_rows, registry(tmp_path, "moved", FLEXSHARD, retier_every=3, eval_every=4)
    )
    stayed, _ = gloo_pool.run(hot_rows, registry(tmp_path, "stayed", FLEXSHARD, eval_every=4))
    assert gloo_pool.run(hot_rows, registry(tmp_path, "plain", TORCHREC, eval_every=4))[0] == {}
    assert moved == same
    assert moved.keys() == stayed.keys() != set()
    assert moved != stayed
    expected = losses(tmp_path / "plain")
    assert len(expected) == 7 + 2
    # Means below 1 are rounded to 2**-25, and SGD divides by nothing that noise could be small in:
    # in 7 steps units in the last place add up, and grow no other way.
    assert losses(tmp_path / "moved") == pytest.approx(expected, abs=1e-6)
    assert losses(tmp_path / "stayed") == pytest.approx(expected, abs=1e-6)


DEDUP = {
    "plugins": ["recd_dlrm", "recd_flexshard", "recd_dedup"],
    "dedup": {"use": "exact", "groups": [["history", "history_category"]]},
    "sharding": {**FLEXSHARD, "coalesce": "rank", "tiers": 3},
}
CACHE = {
    "plugins": ["recd_dlrm", "recd_scars"],
    "sharding": TORCHREC,
    "cache": {
        "use": "scars",
        "size": "hit_rate",
        "hit_rate": 0.9,
        "window": 3,
        "profile_batches": 1,
    },
}
"""Hot batches, whose windows are of other steps than the moves."""


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
@pytest.mark.parametrize("more", [{}, DEDUP, CACHE], ids=["rows", "unique", "hot batches"])
def test_a_resumed_run_is_exact(gloo_pool: GlooPool, tmp_path: Path, more: dict[str, Any]) -> None:
    """From before the first move, from the step of a move, and from between two: every bit of what
    is trained and the rows that have replicas."""

    def values(run: str, **train: int) -> dict[str, Any]:
        # More batches than the pipeline reads ahead: some of them are those of the checkpoint.
        moves = {"retier_every": 3, "retier_batches": 5, "eval_every": 4}
        return registry(tmp_path, run, FLEXSHARD, **moves, **train) | more

    gloo_pool.run(hot_rows, values("whole", checkpoint_every=1, keep_checkpoints=7))
    whole = tmp_path / "whole/checkpoints"
    expected = stored(whole / "step-00000007")
    rows = [TierPlan.load(whole / f"step-{step:08}/replicas.arrow") for step in (2, 7)]
    assert rows[0].tables != rows[1].tables  # they have moved
    for step in (2, 3, 4):
        run, name = tmp_path / f"from-{step}", f"step-{step:08}"
        shutil.copytree(whole / name, run / "checkpoints" / name)
        shutil.copy(tmp_path / "whole/pins.json", run)
        assert "planned anew" not in gloo_pool.run(printed, values(run.name), True)[0]
        end = run / "checkpoints/step-00000007"
        found = stored(end)
        assert [name for name, one in expected.items() if not torch.equal(one, found[name])] == []
        assert TierPlan.load(end / "replicas.arrow") == rows[1]
        assert losses(run) == losses(tmp_path / "whole")[-len(losses(run)) :]


def stored(checkpoint: Path) -> dict[str, torch.Tensor]:
    """All tensors of a checkpoint."""
    reader = checkpoint_reader(checkpoint)
    listed = reader.read_metadata().state_dict_metadata
    tensors = {
        name: torch.empty(tuple(one.size), dtype=one.properties.dtype)
        for name, one in listed.items()
    }
    dcp.load(dict(tensors), storage_reader=reader, no_dist=True)
    return tensors


def test_a_resumed_run_says_where_replicas_are_planned_anew(
    gloo_pool: GlooPool, tmp_path: Path
) -> None:
    """By other options of the planner, and from a checkpoint of before they were kept."""
    for name, every in (("moves", 3), ("stays", 0)):
        values = registry(tmp_path, name, FLEXSHARD, retier_every=every, steps=4)
        assert "planned anew" not in gloo_pool.run(printed, values)[0]
    other = {**FLEXSHARD, "goal": "budget", "budget_gb": 1e-6}
    again = registry(tmp_path, "moves", other, retier_every=3, steps=5)
    assert "replicas are planned anew" in gloo_pool.run(printed, again, True)[0]
    again = registry(tmp_path, "stays", FLEXSHARD, retier_every=0, steps=5)
    assert "planned anew" not in gloo_pool.run(printed, again, True)[0]
    again = registry(tmp_path, "stays", FLEXSHARD, retier_every=3, steps=6)
    assert "replicas are planned anew" in gloo_pool.run(printed, again, True)[0]
    for steps in (4, 5):  # one rank has none that could move
        values = registry(tmp_path, "alone", FLEXSHARD, retier_every=3, steps=steps)
        assert "planned anew" not in gloo_pool.run(printed, values, steps == 5, world_size=1)[0]


def printed(values: dict[str, Any], resume: bool = False) -> str:
    """On a rank: train; what it prints."""
    from recd_plugins.trainer.run import train

    with redirect_stdout(io.StringIO()) as out:
        train(load(values), torch.device("cpu"), resume=resume)
    return out.getvalue()


KEEPER = """
from recd_dlrm.models.sequence_dlrm import SequenceDlrmConfig, build_sequence_dlrm
from recd_plugins import hookimpl
from recd_plugins.slots import ModelRecord

def build(config, context):
    model = build_sequence_dlrm(config, context)
    model.register_forward_hook(lambda module, inputs, out: (out[0], (out[0], *out[1][1:])))
    return model

@hookimpl
def recd_model():
    config, uses = SequenceDlrmConfig, ("pooling",)
    return [ModelRecord(name="keeper", summary="", config=config, build=build, uses=uses)]
"""
"""A model whose outputs, which a window of metrics keeps, hold its loss with all of its graph."""


def test_unique_samples_and_kept_outputs_do_not_hinder(gloo_pool: GlooPool, tmp_path: Path) -> None:
    (tmp_path / "keeper.py").write_text(KEEPER)
    plugins = [*REGISTRY["plugins"], "recd_dedup", str(tmp_path / "keeper.py")]
    losses_of = {}
    for run, sharding, every in (("moved", FLEXSHARD, 3), ("plain", TORCHREC, 0)):
        values = registry(tmp_path, run, sharding, retier_every=every, log_every=7)
        values |= {"plugins": plugins, "model": REGISTRY["model"] | {"use": "keeper"}}
        if every:
            values["dedup"] = {"use": "exact", "groups": [["history", "history_category"]]}
        hot = gloo_pool.run(hot_rows, values)
        assert (hot[0] != {}) == (every > 0)
        losses_of[run] = losses(tmp_path / run)
    # As above; unique samples are pooled in another order too.
    assert losses_of["moved"] == pytest.approx(losses_of["plain"], abs=1e-6)


def test_a_planner_that_cannot_is_reported_at_once(tmp_path: Path) -> None:
    with pytest.raises(CapabilityError, match=r"retier_every: the planner of 'torchrec'"):
        load(registry(tmp_path, "run", TORCHREC, retier_every=3)).check()


class Kept:
    """A `dedup` of a plugin's own."""

    def to(self, device: torch.device, non_blocking: bool = False) -> Kept:
        return self


class Anywhere(Tiered, Retiers):
    tier_plan = TierPlan(tables={}, n_nodes=1, ranks_per_node=1)

    def retier(self, batches: Any, group: Any) -> None:
        raise AssertionError("no step was made")


def written(folder: str, dedup: Any) -> list[str]:
    """On a rank: what a checkpoint gets beside the latest batches."""
    moves = Retiering(
        Anywhere(), start=0, every=3, keep=2, named=lambda when: nullcontext(), fill=lambda: None
    )
    features = KeyedJaggedTensor(["f"], torch.tensor([1]), lengths=torch.tensor([1]))
    one = torch.ones(1)
    batch = Batch(dense=one.view(1, 1), features=features, labels=one, weights=one, dedup=dedup)
    moves.on_batch(cast("Any", None), batch, "train")
    moves.save(Path(folder), ahead=0)
    return sorted(path.name for path in Path(folder).iterdir())


def test_batches_that_do_not_travel_end_no_run(gloo_pool: GlooPool, tmp_path: Path) -> None:
    """Its checkpoints are then without the rows that have replicas, and it is resumed as before."""
    (found,) = gloo_pool.run(written, str(tmp_path), Kept(), world_size=1)
    assert found == []
    (found,) = gloo_pool.run(written, str(tmp_path), None, world_size=1)
    assert found == ["latest-batches.arrow", "replicas.arrow"]
