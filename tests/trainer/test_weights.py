"""Two gloo ranks train; one process takes their weights, and hears what it leaves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from test_callbacks import trained
from test_rank_buffers import normed
from torch import nn

from recd_plugins.errors import DataError
from recd_plugins.notices import NoticeWarning
from recd_plugins.stack import load
from recd_plugins.testing.gloo import GlooPool
from recd_plugins.trainer.checkpoints.weights import load_weights


def test_weights_that_a_model_has_no_place_for_are_named(
    tmp_path: Path, gloo_pool: GlooPool
) -> None:
    values = normed(tmp_path, steps=2)
    weights = gloo_pool.run(trained, values)[0][1]
    model: Any = load(values).model()
    assert load_weights(model, tmp_path / "run") == 2  # a warning would be an error
    assert torch.equal(model.over[1].weight, weights["over.1.weight 0"])
    model.over[0] = nn.BatchNorm1d(model.over[0].num_features, affine=False)
    no_place = (
        "step-00000002: the model has no place for over.0.bias, over.0.weight, and without it"
    )
    with pytest.warns(NoticeWarning, match=no_place):
        load_weights(model, tmp_path / "run")
    assert torch.equal(model.over[0].running_mean, weights["over.0.running_mean 0"])
    model.renamed = model.over
    with pytest.raises(DataError, match=r"has no 'renamed\.0\."):
        load_weights(model, tmp_path / "run")
