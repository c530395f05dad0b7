"""Two gloo ranks: what a model has beside parameters and buffers, a resumed run has too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from test_callbacks import ran, registry, same, trained

from recd_plugins.errors import PluginError, RecdError
from recd_plugins.stack import load
from recd_plugins.testing.gloo import GlooPool
from recd_plugins.trainer.checkpoints.reshard import reshard
from recd_plugins.trainer.checkpoints.weights import load_weights


def counting(folder: Path, kind: str, **train: Any) -> dict[str, Any]:
    return registry(folder, **train) | {"model": {"use": "probe", "counts": kind}}


@pytest.mark.parametrize("kind", ["mapping", "tensor"])
def test_each_rank_goes_on_with_the_extra_states_of_its_modules(
    kind: str, tmp_path: Path, gloo_pool: GlooPool
) -> None:
    whole = gloo_pool.run(trained, counting(tmp_path / "whole", kind))
    gloo_pool.run(trained, counting(tmp_path / "parts", kind, steps=4))
    same(gloo_pool.run(trained, counting(tmp_path / "parts", kind), True), whole)
    model: Any = load(counting(tmp_path / "whole", kind)).model()
    assert load_weights(model, tmp_path / "whole/run") == 8
    assert model.over.count == 8
    reshard(tmp_path / "whole/run", tmp_path / "wide", 3)
    wide = counting(tmp_path / "whole", kind, run=str(tmp_path / "wide"))
    found = gloo_pool.run(counted, wide, world_size=3)
    assert found == [8, 16, 8]  # a rank that is new has rank 0's


def counted(values: dict[str, Any]) -> int:
    """On a rank: what the last layer of a resumed run has counted."""
    _, model = ran(values, True)
    (count,) = (one.count for one in model.modules() if hasattr(one, "count"))
    return int(count)


def refused(values: dict[str, Any]) -> str:
    """On a rank: the message that a run ends with."""
    try:
        trained(values)
    except RecdError as error:
        return f"{type(error).__name__}: {error}"
    return ""


def test_what_no_checkpoint_keeps_is_refused_before_anything_is_trained(
    tmp_path: Path, gloo_pool: GlooPool
) -> None:
    for message in gloo_pool.run(refused, counting(tmp_path, "set")):
        assert message.startswith(PluginError.__name__)
        assert "model: a checkpoint cannot keep 'over._extra_state' of its state" in message
        assert "Have get_extra_state of over return one tensor, or numbers, texts" in message
    assert not (tmp_path / "run").exists()
