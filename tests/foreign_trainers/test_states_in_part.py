"""Rung 3 (ranks): states that have other keys than the model, or a part of them, and tables that
are drawn anew: two gloo ranks answer with tiers, and on unique samples, as plain TorchRec does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from foreign import Job, Side, job
from torch import Tensor

from recd_plugins.testing.gloo import GlooPool
from recd_plugins.testing.trained import gather_table

State = dict[str, Any]
Change = Callable[[State], State]


def strange_keys(state: State) -> State:
    """Of no table, within collections and beside them."""
    strange = ("bags.strange.weight", "scored.odd", "history.also.odd", "other.weight")
    return state | {key: torch.zeros(2) for key in strange}


def another_name(state: State) -> State:
    key = "bags.embedding_bags.users.weight"
    return {name.replace(".users.", ".people."): one for name, one in state.items()} | {
        key.replace(".users.", ".others."): state[key]
    }


def two_tables(state: State) -> State:
    """No other table of their collections, and no dense parameter. TorchRec's sequences are refused
    where one of their tables is left out, so theirs is there."""
    return {name: one for name, one in state.items() if ".tags." in name or ".songs." in name}


def answers(own: Job, change: Change, *, strict: bool) -> State:
    """What is answered, of the model as DistributedModelParallel has it and by itself, and what
    came of the weights."""
    start = {name: gather_table(one) for name, one in own.model.state_dict().items()}
    (batch,) = own.batches(1)
    found: State = {}
    for number, model in enumerate((own.model, own.model.module)):
        own.model(batch)[0].backward()
        given = {name: one / (2 + number) for name, one in start.items()}
        try:
            keys = model.load_state_dict(change(given), strict=strict)
            found[f"{number} missing"] = sorted(keys.missing_keys)
            found[f"{number} unexpected"] = sorted(keys.unexpected_keys)
        except RuntimeError as error:
            _, *found[f"{number} refused"] = str(error).splitlines()  # first comes the class
        for name, one in own.model.state_dict().items():
            found[f"{number} {name}"] = torch.equal(gather_table(one), given[name])
    return found


def loads_as_plainly(side: Side, change: Change) -> None:
    """On a rank."""
    for strict in (True, False):
        plain, ours = (answers(job(one), change, strict=strict) for one in ("plain", side))
        assert ours == plain


@pytest.mark.parametrize("change", [strange_keys, another_name, two_tables])
@pytest.mark.parametrize("side", ["tiers", "tiers and dedup"])
def test_keys_that_a_model_lacks_or_has_besides_are_answered_as_plainly(
    gloo_pool: GlooPool, side: Side, change: Change
) -> None:
    gloo_pool.run(loads_as_plainly, side, change)


def draws_anew(side: Side) -> None:
    """On a rank: as trainers do that call `reset_parameters` of all modules that have it."""
    own = job(side)

    def now() -> dict[str, Tensor]:
        return {name: gather_table(one) for name, one in own.model.state_dict().items()}

    before = now()
    for module in own.model.modules():
        if callable(reset := getattr(module, "reset_parameters", None)):
            reset()
    assert [name for name, one in now().items() if torch.equal(one, before[name])] == []


@pytest.mark.parametrize("side", ["plain", "tiers", "tiers and dedup"])
def test_all_tables_are_drawn_anew(gloo_pool: GlooPool, side: Side) -> None:
    gloo_pool.run(draws_anew, side)
