"""Two gloo ranks: what a batch norm has counted of each rank's batches, a resumed run has too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from test_callbacks import lines, registry, same, trained
from torch import Tensor, nn

from recd_plugins.testing.gloo import GlooPool
from recd_plugins.trainer.checkpoints.rank_buffers import buffer_digests, differing
from recd_plugins.trainer.checkpoints.reshard import reshard

COUNTED = ("running_mean", "running_var")


def normed(folder: Path, **train: Any) -> dict[str, Any]:
    return registry(folder, **train) | {"model": {"use": "probe", "norm": True}}


def counted(weights: dict[str, Tensor]) -> list[Tensor]:
    return [weights[f"over.0.{name} 0"] for name in COUNTED]


def test_each_rank_goes_on_with_its_own_and_a_new_one_with_those_of_rank_0(
    tmp_path: Path, gloo_pool: GlooPool
) -> None:
    whole = gloo_pool.run(trained, normed(tmp_path / "whole"))
    (_, first), (_, second) = whole
    for one, other in zip(counted(first), counted(second), strict=True):
        assert not torch.equal(one, other)
    gloo_pool.run(trained, normed(tmp_path / "parts", steps=4))
    same(gloo_pool.run(trained, normed(tmp_path / "parts"), True), whole)
    tests = [
        next(one for one in lines(tmp_path / name / "run", "test") if one["step"] == 8)
        for name in ("whole", "parts")
    ]
    assert tests[0]["loss"] == tests[1]["loss"]

    for ranks in (1, 3):
        run = tmp_path / str(ranks)
        reshard(tmp_path / "whole/run", run, ranks)
        values = normed(tmp_path / "whole", run=str(run))
        found = gloo_pool.run(trained, values, True, world_size=ranks)
        for rank, (_, weights) in enumerate(found):
            expected = (whole[rank] if rank < len(whole) else whole[0])[1]
            assert all(map(torch.equal, counted(weights), counted(expected)))


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16, torch.bool, torch.int64])
def test_buffers_that_are_the_same_have_one_digest(kind: torch.dtype) -> None:
    def digests(*values: int) -> list[str]:
        model = nn.Module()
        model.register_buffer("same", torch.ones(3, dtype=kind))
        model.register_buffer("other", torch.tensor(values).to(kind).view(-1, 2).T)
        model.register_buffer("none", torch.empty(0, dtype=kind))
        model.register_buffer("unsaved", torch.tensor(values), persistent=False)
        kept = {f"model.{name}": one for name, one in model.state_dict().items()}
        return buffer_digests(model, kept)

    assert differing([digests(0, 1), digests(0, 1)]) == set()
    assert differing([digests(0, 1), digests(1, 0), digests(0, 1)]) == {"model.other"}
