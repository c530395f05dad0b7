"""Rung 3 (ranks): tables that are read or written at home while replicas have newer rows: whoever
does so is told, on two gloo ranks."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from tiered import Bags, ByTiers, Sequences, own_batch, sharded, train_step
from torch import Tensor, nn
from torch.distributed.optim import _get_in_backward_optimizers
from torchrec.distributed import DistributedModelParallel
from torchrec.distributed.types import ShardedTensor

from recd_plugins.errors import CapabilityError
from recd_plugins.notices import NoticeWarning
from recd_plugins.testing.gloo import GlooPool

Model = DistributedModelParallel
Habit = Callable[[Model], object]

TIERS = ByTiers(ranks_per_node=2, seed=3)
KINDS: dict[str, tuple[type[nn.Module], ByTiers]] = {
    "sequences": (Sequences, TIERS),
    "bags": (Bags, TIERS),
    "row bags": (Bags, ByTiers(ranks_per_node=2, seed=3, coalesce="rank")),
}


def behind_tiers(kind: str) -> Model:
    """Behind a step, which leaves hot rows in replicas."""
    make, tiers = KINDS[kind]
    model = sharded(tiers, make)
    train_step(model, 0)
    return model


def table_of(model: Model) -> nn.Parameter:
    return next(one for name, one in model.named_parameters() if "songs" in name)


def norms(model: Model) -> None:
    table_of(model).norm(dim=1)


def a_copy(model: Model) -> None:
    table_of(model).detach().clone()


def a_moving_average(model: Model) -> None:
    weights = table_of(model)
    torch.zeros_like(weights).lerp_(weights, 0.5)


def all_at_once(model: Model) -> None:
    torch._foreach_norm([one for one in model.parameters() if one.dim() > 1])


def zeros_by_data(model: Model) -> None:
    table_of(model).data.zero_()


def the_state_of_the_tables_alone(model: Model) -> None:
    inner = [one for one in model.modules() if isinstance(one, nn.ModuleDict)]
    for one in inner:
        one.state_dict()


def said_by(model: Model, habit: Habit) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        habit(model)
    return [str(one.message) for one in caught if issubclass(one.category, NoticeWarning)]


HABITS: list[Habit] = [
    norms,
    a_copy,
    a_moving_average,
    all_at_once,
    zeros_by_data,
    the_state_of_the_tables_alone,
]


def told_of(kind: str) -> dict[str, list[str]]:
    """On a rank: what is said of each habit, once; and that nothing is where rows are at home."""
    said = {}
    for habit in HABITS:
        model = behind_tiers(kind)
        said[habit.__name__] = said_by(model, habit) + said_by(model, habit)
        model = behind_tiers(kind)
        model.state_dict()
        assert said_by(model, habit) == []
    return said


@pytest.mark.parametrize("kind", KINDS)
def test_weights_that_are_read_at_home_are_told_of(gloo_pool: GlooPool, kind: str) -> None:
    for said in gloo_pool.run(told_of, kind):
        assert len(said) == len(HABITS)
        for each in said.values():
            (one,) = (text for text in each if "songs" in text)
            assert "the weights of table 'songs', or their optimizer's state, are read while" in one
            assert "Call model.state_dict() on every rank" in one


def written_by_data(kind: str) -> str:
    """On a rank: what is said where weights are swapped for others, as for an evaluation by their
    averages."""
    model = behind_tiers(kind)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NoticeWarning)  # that they are read
        for one in model.parameters():
            one.data.copy_(one.data / 2)
    with pytest.raises(CapabilityError) as caught, torch.no_grad():
        model(own_batch(1))
    return str(caught.value)


@pytest.mark.parametrize("kind", KINDS)
def test_weights_that_are_written_by_data_are_not_lost_silently(
    gloo_pool: GlooPool, kind: str
) -> None:
    for said in gloo_pool.run(written_by_data, kind):
        assert "the weights of table 'songs' were changed while rows of it were in" in said


def written_at_home(kind: str) -> None:
    """On a rank: behind a state dict they are written so, and looked up."""
    model = behind_tiers(kind)
    model.state_dict()
    for name, one in model.named_parameters():
        if "embedding" in name or "sequences" in name:
            one.data.zero_()
    with torch.no_grad():
        logits = model(own_batch(1))[1][1]
    bias = next(one for name, one in model.named_parameters() if name.endswith("over.bias"))
    torch.testing.assert_close(logits, bias.expand_as(logits), rtol=0, atol=0)


@pytest.mark.parametrize("kind", KINDS)
def test_behind_a_state_dict_weights_are_written_by_data(gloo_pool: GlooPool, kind: str) -> None:
    gloo_pool.run(written_at_home, kind)


def ask_what_they_are(model: Model) -> None:
    """As trainers do that count parameters, freeze them, and look at gradients."""
    for one in model.parameters():
        assert one.numel() == one.size(0) * one.stride(0) or one.dim() < 2
        assert (one.shape, one.dtype, one.device.type) == (one.size(), torch.float32, "cpu")
        one.requires_grad_(one.requires_grad)
        torch.empty_like(one)
        assert one.grad is None or one.grad.shape == one.shape
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)


def stay_where_they_are(model: Model) -> None:
    """As trainers do before an evaluation, or behind one, be it needed or not."""
    model.to("cpu")
    model.to(torch.device("cpu"), torch.float32)
    model.cpu().float()


def quiet(kind: str) -> list[str]:
    """On a rank: what is said of that, and of training, evaluation and state dicts."""
    make, tiers = KINDS[kind]
    model = sharded(tiers, make)

    def habit(model: Model) -> None:
        for number in range(3):
            train_step(model, number)
            ask_what_they_are(model)
            stay_where_they_are(model)
            with torch.no_grad():
                model(own_batch(9))
            state = model.state_dict()
            model.fused_optimizer.load_state_dict(model.fused_optimizer.state_dict())
            model.load_state_dict(state)

    return said_by(model, habit)


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_said_of_who_asks_what_parameters_are(gloo_pool: GlooPool, kind: str) -> None:
    assert gloo_pool.run(quiet, kind) == [[], []]


def saves_old_states(kind: str, folder: Path) -> list[list[str]]:
    """On a rank: what is said where state dicts of before the last step are saved, one by one."""

    def by_torch(state: dict[str, Any]) -> None:
        torch.save(state, folder / f"{dist.get_rank()}.pt")

    def in_parts(state: dict[str, Any]) -> None:
        dcp.save(state, checkpoint_id=folder / "parts")

    said = []
    for of in ("model", "optimizer"):
        for save in (by_torch, in_parts):
            model = behind_tiers(kind)
            states = {"model": model.state_dict(), "optimizer": model.fused_optimizer.state_dict()}
            fresh = pickle.dumps(states[of])
            train_step(model, 1)
            said.append(said_by(model, lambda _: save(states[of])))  # noqa: B023  # called in this turn
            assert b"recd" not in fresh + pickle.dumps(states[of])  # others may load it
    return said


@pytest.mark.parametrize("kind", KINDS)
def test_state_dicts_that_are_saved_a_step_too_late_are_told_of(
    gloo_pool: GlooPool, tmp_path: Path, kind: str
) -> None:
    for said in gloo_pool.run(saves_old_states, kind, tmp_path):
        assert len(said) == 4
        for each in said:
            assert any("are read while rows of it are in replicas" in one for one in each)


def another_step(model: Model) -> None:
    train_step(model, 2)


def writes_states_late(kind: str) -> list[str]:
    """On a rank: what is said, by a state dict and by a step, where the optimizer's states are set
    to 0 by a state dict of before the last step."""
    said = []
    for then in (Model.state_dict, another_step):
        model = behind_tiers(kind)
        old = model.fused_optimizer.state_dict()["state"]
        train_step(model, 1)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", NoticeWarning)  # that they are read
            for states in old.values():
                for state in states.values():
                    state.local_shards()[0].tensor.zero_()
        with pytest.raises(CapabilityError) as caught:
            then(model)
        said.append(str(caught.value))
    return said


@pytest.mark.parametrize("kind", KINDS)
def test_states_that_are_written_late_are_not_lost_silently(gloo_pool: GlooPool, kind: str) -> None:
    for said in gloo_pool.run(writes_states_late, kind):
        for one in said:
            assert "the optimizer's states of table 'songs' were changed while rows of it" in one


def states_of_parameters(kind: str) -> None:
    """On a rank: the optimizers that torch finds with the parameters have the states as they are,
    those of hot rows too."""
    model = behind_tiers(kind)
    own: list[Tensor] = [
        shard.tensor.clone()
        for optimizer in _get_in_backward_optimizers(model)
        for states in optimizer.state_dict()["state"].values()
        for state in states.values()
        for shard in state.local_shards()
    ]
    states = model.fused_optimizer.state_dict()["state"]
    every: list[ShardedTensor] = [one for each in states.values() for one in each.values()]
    whole = [shard.tensor for state in every for shard in state.local_shards()]
    assert sorted(float(one.sum()) for one in own) == sorted(float(one.sum()) for one in whole)
    assert sum(float(one.sum()) for one in own) > 0


@pytest.mark.parametrize("kind", KINDS)
def test_the_optimizers_of_parameters_have_the_states_of_hot_rows(
    gloo_pool: GlooPool, kind: str
) -> None:
    gloo_pool.run(states_of_parameters, kind)
