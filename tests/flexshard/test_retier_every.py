"""Ladder: two ranks. `train.retier_every` moves replicas while training; losses stay TorchRec's."""

from __future__ import annotations

import io
import json
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest
import torch

from recd_plugins.errors import CapabilityError
from recd_plugins.planning.planner_bases import Tiered
from recd_plugins.stack import load
from recd_plugins.testing.gloo import GlooPool

REGISTRY: dict[str, Any] = {
    "plugins": ["recd_dlrm", "recd_flexshard"],
    "dataset": {"use": "sessions", "samples": 2048, "test_fraction": 0.0625},
    "reader": {"use": "local", "prefetch": False},
    "model": {"use": "sequence_dlrm", "embedding_dim": 8, "bottom": [8], "top": [8]},
    "topology": {"ranks_per_node": 1, "inter_node_gbps": 0.01},
    "train": {
        "device": "cpu",
        "batch_size": 32,
        "steps": 12,
        "log_every": 1,
        "checkpoint_every": 5,
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
    assert len(expected) == 12 + 3
    # Means below 1 are rounded to 2**-25, and SGD divides by nothing that noise could be small in:
    # in 12 steps units in the last place add up, and grow no other way.
    assert losses(tmp_path / "moved") == pytest.approx(expected, abs=1e-6)
    assert losses(tmp_path / "stayed") == pytest.approx(expected, abs=1e-6)


def test_a_resumed_run_says_that_replicas_are_planned_anew(
    gloo_pool: GlooPool, tmp_path: Path
) -> None:
    for name, every in (("moves", 3), ("stays", 0)):
        values = registry(tmp_path, name, FLEXSHARD, retier_every=every, steps=5)
        assert "planned anew" not in gloo_pool.run(printed, values)[0]
        again = registry(tmp_path, name, FLEXSHARD, retier_every=every, steps=6)
        assert ("replicas are planned anew" in gloo_pool.run(printed, again, True)[0]) == bool(
            every
        )


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
        values = registry(tmp_path, run, sharding, retier_every=every, log_every=12)
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
