"""Checkpoints of tables behind tiers on other numbers of ranks: gloo, four to two to one to four.

What is loaded is what was saved, weights and optimizer states; and training goes on as it would.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from tiered import Bags, ByTiers, Sequences, batch_of, held
from torch import Tensor, nn
from torchrec.distributed import DistributedModelParallel
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recd_plugins.data.batch import Batch
from recd_plugins.registry.settings import OptimizerSettings
from recd_plugins.testing.arrange import Arrangement, BySharding
from recd_plugins.testing.gloo import GlooPool
from recd_plugins.testing.parity import assert_alike
from recd_plugins.testing.rounding import plain_of
from recd_plugins.testing.trained import gather_table
from recd_plugins.trainer.checkpoints.storage import JsonReader, JsonWriter
from recd_plugins.trainer.initial_tables import initialise_tables, table_initialisers

PLAIN = BySharding("row_wise")
STEPS = 1
"""On each number of ranks."""

Model = DistributedModelParallel


def build(kind: Callable[[], nn.Module], arrange: Arrangement, tables: Any, seed: int) -> Model:
    torch.manual_seed(seed)
    model = kind()
    initialisers = table_initialisers(model)
    arranged = arrange(model, OptimizerSettings(tables=tables, tables_lr=0.1, tables_eps=1e-4))
    sharded = DistributedModelParallel(
        model, device=torch.device("cpu"), plan=arranged.plan, sharders=arranged.sharders
    )
    initialise_tables(sharded, initialisers, seed)
    return sharded


def batch(step: int) -> Batch:
    """This rank's part of four batches of 3 samples, the same on any number of ranks."""
    parts, ranks = [batch_of(4 * step + n, 3) for n in range(4)], dist.get_world_size()
    mine = parts[dist.get_rank() * 4 // ranks : (dist.get_rank() + 1) * 4 // ranks]
    keys = mine[0].features.keys()
    features = [[part.features[key] for part in mine] for key in keys]
    return Batch(
        dense=torch.empty(3 * len(mine), 0),
        features=KeyedJaggedTensor(
            keys=keys,
            values=torch.cat([one.values() for key in features for one in key]),
            lengths=torch.cat([one.lengths() for key in features for one in key]),
        ),
        labels=torch.cat([part.labels for part in mine]),
        weights=torch.cat([part.weights for part in mine]),
    )


def whole(model: Model) -> dict[str, Tensor]:
    """What a checkpoint holds, with every tensor in full, on every rank."""
    return {name: gather_table(value) for name, value in held(model).items()}


def go_on(
    kind: Callable[[], nn.Module],
    arrange: Arrangement,
    tables: str,
    before: Path | None,
    after: Path,
    steps: range,
    rounding: AbstractContextManager[object] | None = None,
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """On a rank: load, train, save; what was loaded and what was saved, in full."""
    model = build(kind, arrange, tables, seed=0 if before is None else 1)
    if before is not None:
        model(batch(99))[0].backward()  # so that rows and states are elsewhere
        filled = held(model)
        dcp.load(filled, storage_reader=JsonReader(before))
        states = model.fused_optimizer.state_dict()
        for name, own in states["state"].items():
            own.update({key: filled[f"optimizer.{name}/{key}"] for key in own})
        model.load_state_dict(
            {name.removeprefix("model."): v for name, v in filled.items() if name[:6] == "model."}
        )
        model.fused_optimizer.load_state_dict(states)
    loaded = whole(model)
    dense = torch.optim.SGD(model.module.over.parameters(), lr=0.1)
    with rounding or nullcontext():
        for step in steps:
            dense.zero_grad()
            model(batch(step))[0].backward()
            dense.step()
            model.fused_optimizer.step()
    dcp.save(held(model), storage_writer=JsonWriter(after))
    return loaded, whole(model)


@pytest.mark.parametrize(
    ("kind", "tables", "coalesce"),
    [
        (Sequences, "rowwise_adagrad", "none"),
        (Bags, "adagrad", "none"),
        (Bags, "rowwise_adagrad", "rank"),
    ],
    ids=["sequences", "bags", "row bags"],
)
def test_from_tiers_to_other_ranks_and_back(
    gloo_pool: GlooPool, tmp_path: Path, kind: Any, tables: str, coalesce: Any
) -> None:
    ways: list[tuple[int, Arrangement]] = [
        (4, ByTiers(ranks_per_node=2, seed=3, coalesce=coalesce)),
        (2, PLAIN),
        (1, PLAIN),
        (4, ByTiers(ranks_per_node=4, seed=5, coalesce=coalesce)),
    ]
    before, saved = None, None
    for number, (ranks, arrange) in enumerate(ways):
        after = tmp_path / str(number)
        after.mkdir()
        steps = range(number * STEPS, (number + 1) * STEPS)
        loaded, now = gloo_pool.run(
            go_on, kind, arrange, tables, before, after, steps, world_size=ranks
        )[0]
        if saved is not None:
            assert loaded.keys() == saved.keys()
            for name, tensor in loaded.items():
                torch.testing.assert_close(tensor, saved[name], atol=0, rtol=0)
        before, saved = after, now
    assert any(name.startswith("optimizer.") for name in now)

    def straight(rounding: AbstractContextManager[object]) -> dict[str, Tensor]:
        steps = range(4 * STEPS)
        return gloo_pool.run(
            go_on, kind, PLAIN, tables, None, tmp_path, steps, rounding, world_size=4
        )[0][1]

    assert_alike(now, *plain_of(straight))
