"""Two gloo ranks: a resumed run steps by the rates and numbers that optimizers had."""

from __future__ import annotations

import io
import json
import warnings
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest
from test_callbacks import OPTIMIZERS, registry, same, trained

from recd_plugins.testing.gloo import GlooPool, RanksFailed
from recd_plugins.trainer.checkpoints.files import checkpoint_of
from recd_plugins.trainer.checkpoints.storage import JsonReader

TABLES = {name: value for name, value in OPTIMIZERS.items() if name.startswith("tables")}


def made(folder: Path, *callbacks: Any, optimizer: Any = None, **train: Any) -> dict[str, Any]:
    if optimizer is None:
        return registry(folder, *callbacks, **train)
    return registry(folder, *callbacks, optimizer=TABLES, **train) | {"optimizer": optimizer}


def said(values: dict[str, Any], resume: bool = False) -> tuple[str, list[str]]:
    """On a rank: what a run printed, and what it warned of."""
    with redirect_stdout(io.StringIO()) as out, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trained(values, resume)
    return out.getvalue(), [str(one.message) for one in caught]


@pytest.mark.parametrize(
    ("callbacks", "optimizer"),
    [
        (["drops"], None),
        (["torchs_own"], {"use": "counting", "where": "group"}),
        ([], {"use": "counting", "where": "state"}),
    ],
    ids=["rates lowered once", "torch's scheduler, counted in groups", "counted in states"],
)
def test_resumed_steps_are_those_of_an_uninterrupted_run(
    tmp_path: Path, gloo_pool: GlooPool, callbacks: list[str], optimizer: Any
) -> None:
    def run(name: str, steps: int) -> dict[str, Any]:
        return made(tmp_path / name, *callbacks, optimizer=optimizer, steps=steps)

    whole = gloo_pool.run(trained, run("whole", 5))
    gloo_pool.run(trained, run("parts", 3))
    same(gloo_pool.run(trained, run("parts", 5), True), whole)


@pytest.mark.parametrize("dense", ["adam", "sgd"])
def test_parameters_without_a_gradient_have_no_state_in_a_resumed_run_either(
    tmp_path: Path, gloo_pool: GlooPool, dense: str
) -> None:
    def idle(folder: Path, **train: Any) -> dict[str, Any]:
        momentum = {"dense_options": {"momentum": 0.9}} if dense == "sgd" else {}
        optimizer = {**OPTIMIZERS, "dense": dense, **momentum}
        made = registry(folder, optimizer=optimizer, **train)
        return made | {"model": {"use": "probe", "idle": True}}

    whole = gloo_pool.run(trained, idle(tmp_path / "whole", steps=4))
    gloo_pool.run(trained, idle(tmp_path / "parts", steps=2))
    same(gloo_pool.run(trained, idle(tmp_path / "parts", steps=4), True), whole)
    states = [
        {name for name in _kept(tmp_path / run / "run") if name.startswith("optimizer.")}
        for run in ("whole", "parts")
    ]
    assert states[0] == states[1]
    assert any("over.weight" in name for name in states[0])
    assert not any("idle" in name for name in states[0])


def _kept(run: Path) -> set[str]:
    return set(JsonReader(checkpoint_of(run)).read_metadata().state_dict_metadata)


def test_rates_are_the_registrys_where_it_or_the_callbacks_changed(
    tmp_path: Path, gloo_pool: GlooPool
) -> None:
    """It is said where they are others than those before."""
    gloo_pool.run(trained, made(tmp_path, "drops", steps=4))
    begins = "the rate of the {} is {} to begin with, as registry.yaml says, and was {}: the call"
    dense, tables = begins.format("dense parameters", 0.1, 0.01), begins.format("tables", 0.5, 0.05)
    printed, _ = gloo_pool.run(said, made(tmp_path, "drops", steps=5), True)[0]
    assert "to begin with" not in printed
    printed, _ = gloo_pool.run(said, made(tmp_path, steps=6), True)[0]
    assert dense in printed
    assert tables in printed
    job = json.loads((tmp_path / "run/checkpoints/step-00000006/job.json").read_text())
    (group,) = job["optimizers"]["groups"]
    assert group["lr"] == 0.1
    assert {*job["optimizers"]["tables"].values()} == {0.5}
    lower = {**OPTIMIZERS, "dense_lr": 0.03}
    printed, _ = gloo_pool.run(said, made(tmp_path, steps=7), True)[0]
    assert "to begin with" not in printed
    values = registry(tmp_path, steps=8, optimizer=lower)
    printed, _ = gloo_pool.run(said, values, True)[0]
    assert "train.optimizer.dense_lr is 0.03 from here on; it was 0.1" in printed
    assert "to begin with" not in printed


def test_what_no_checkpoint_keeps_and_what_nobody_takes_is_said(
    tmp_path: Path, gloo_pool: GlooPool
) -> None:
    optimizer = {"use": "counting", "past": True, "late": True}
    values = made(tmp_path, optimizer=optimizer, checkpoint_every=2, steps=4)
    (_, notices), (_, others) = gloo_pool.run(said, values)
    lost = [one for one in notices if one.startswith("optimizer: of the states of Counting")]
    assert lost == [
        "optimizer: of the states of Counting a checkpoint does not have 'past', a list: a resumed "
        "run begins them anew. Keep tensors and numbers in an optimizer's state."
    ]
    assert not any(one.startswith("optimizer: of the states") for one in others)
    values = made(tmp_path, optimizer=optimizer, steps=5)
    printed, _ = gloo_pool.run(said, values, True)[0]
    assert "optimizer.over.bias/late, optimizer.over.weight/late have no taker now" in printed


def test_states_of_other_shapes_on_ranks_are_named_as_they_are_to_be_saved(
    tmp_path: Path, gloo_pool: GlooPool
) -> None:
    says = (
        r"optimizer: the state 'ranks' of \S+ has the shape \[1\] on rank 0 and \[2\] on rank 1, so"
    )
    with pytest.raises(RanksFailed, match=says):
        gloo_pool.run(trained, made(tmp_path, optimizer={"use": "counting", "by_rank": True}))
    assert not list(tmp_path.glob("run/checkpoints/step-*"))


def test_the_states_of_tables_of_other_ranks_have_a_taker(
    tmp_path: Path, gloo_pool: GlooPool
) -> None:
    """Where whole tables lie on some ranks, a rank has the states of its own alone."""
    whole = {"constraints": {"*": {"sharding_types": ["table_wise"]}}}
    adagrad = {"tables": "adagrad", "tables_lr": 0.1}
    made = registry(tmp_path, steps=2, optimizer=adagrad) | {"sharding": whole}
    gloo_pool.run(trained, made)
    made = registry(tmp_path, steps=3, optimizer=adagrad) | {"sharding": whole}
    printed, _ = gloo_pool.run(said, made, True)[0]
    assert "resumed after step 2" in printed
    assert "no taker" not in printed


def test_of_tables_without_states_none_begin_anew(tmp_path: Path, gloo_pool: GlooPool) -> None:
    def sgd(steps: int) -> dict[str, Any]:
        return registry(tmp_path, steps=steps, optimizer={**OPTIMIZERS, "tables": "sgd"})

    gloo_pool.run(trained, sgd(2))
    printed, _ = gloo_pool.run(said, sgd(3), True)[0]
    assert "resumed after step 2" in printed
    assert "anew" not in printed


@pytest.mark.parametrize("tables", ["adagrad", "sgd"])
def test_a_table_that_another_optimizer_steps_by_a_new_plan_begins_anew_there(
    tmp_path: Path, gloo_pool: GlooPool, tables: str
) -> None:
    """From either plan to the other; by the same plan, it goes on."""

    def planned(way: str, steps: int) -> dict[str, Any]:
        optimizer = {"tables": tables, "tables_lr": 0.1, "dense": "adam"}
        made = registry(tmp_path, optimizer=optimizer, steps=steps)
        return made | {"sharding": {"constraints": {"shop": {"sharding_types": [way]}}}}

    before, after = "data_parallel", "table_wise"
    gloo_pool.run(trained, planned(before, 1))
    for step in (1, 3):
        printed, _ = gloo_pool.run(said, planned(after, step + 1), True)[0]
        assert "another optimizer steps bags.embedding_bags.shop.weight by this plan" in printed
        left = printed.partition("the checkpoint's ")[2].partition("no taker")[0]
        assert ("shop.weight/" in left) == ((tables, before) != ("sgd", "table_wise"))
        printed, _ = gloo_pool.run(said, planned(after, step + 2), True)[0]
        assert f"resumed after step {step + 1}" in printed
        assert "another optimizer steps" not in printed
        before, after = after, before
