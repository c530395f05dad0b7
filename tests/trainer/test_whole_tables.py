"""Ladder: values on whole tables, then one, two and four gloo ranks under every sharding."""

from __future__ import annotations

from functools import partial
from typing import Any, Literal

import pytest
import torch
from torch import Tensor, nn
from torchrec.distributed import DistributedModelParallel
from torchrec.modules.embedding_configs import EmbeddingBagConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection

from recd_plugins.data.schema import Schema, SparseFeature
from recd_plugins.registry.settings import OptimizerSettings
from recd_plugins.testing.arrange import BySharding
from recd_plugins.testing.gloo import GlooPool
from recd_plugins.testing.probe import Probe
from recd_plugins.testing.reference import unsharded
from recd_plugins.testing.trained import gather_table
from recd_plugins.trainer.initial_tables import (
    BLOCK,
    initialise_tables,
    table_initialisers,
    table_name,
)

ROWS = 2 * BLOCK + 1000
"""Blocks are torn between ranks, and the last one is short."""

SCHEMA = Schema(
    session_id=None,
    timestamp=None,
    sparse=(
        SparseFeature(name="item", num_ids=ROWS),
        SparseFeature(name="twin", num_ids=ROWS),
        SparseFeature(name="small", num_ids=3),
        SparseFeature(name="history", num_ids=ROWS, sequence=True),
    ),
)

Kind = Literal["row_wise", "table_wise", "column_wise"]


def tables_of(model: nn.Module) -> dict[str, Tensor]:
    named = {table_name(name): value for name, value in model.state_dict().items()}
    return {name: gather_table(value) for name, value in named.items() if name}


def whole(seed: int = 0) -> dict[str, Tensor]:
    """The tables as they start in one process, unsharded."""
    model = Probe(SCHEMA)
    unsharded(model, seed)
    return tables_of(model)


def sharded(kind: Kind, seed: int) -> dict[str, Tensor]:
    """On a rank: the tables as they start, gathered from all."""
    model = Probe(SCHEMA)
    initialisers = table_initialisers(model)
    arranged = BySharding(kind)(model, OptimizerSettings())
    parallel = DistributedModelParallel(
        arranged.model, device=torch.device("cpu"), plan=arranged.plan, sharders=arranged.sharders
    )
    initialise_tables(parallel, initialisers, seed)
    return tables_of(parallel)


@pytest.mark.parametrize("world_size", [1, 2, 4])
@pytest.mark.parametrize("kind", ["row_wise", "table_wise", "column_wise"])
def test_tables_start_alike_under_every_plan_and_world_size(
    kind: Kind, world_size: int, gloo_pool: GlooPool
) -> None:
    expected = whole(seed=5)
    (found, *others) = gloo_pool.run(sharded, kind, 5, world_size=world_size)
    assert found.keys() == expected.keys() == {"item", "twin", "small", "history"}
    for name, table in expected.items():
        assert torch.equal(found[name], table), name
        for other in others:
            assert torch.equal(other[name], table), name


def test_another_seed_and_another_table_start_differently() -> None:
    one, other = whole(seed=0), whole(seed=1)
    for name, table in one.items():
        assert (table == other[name]).float().mean() < 0.01, name
    assert (one["item"] == one["twin"]).float().mean() < 0.01
    assert torch.equal(one["item"], whole(seed=0)["item"])


def test_no_block_repeats_another() -> None:
    table = whole()["item"]
    assert not torch.equal(table[:1000], table[BLOCK : BLOCK + 1000])
    assert not torch.equal(table[:1000], table[2 * BLOCK :])
    assert len(table.unique(dim=0)) == ROWS


def test_values_are_uniform_in_torchrecs_range() -> None:
    bound = ROWS**-0.5
    for table in (whole()["item"], whole()["history"]):
        assert table.abs().max() <= bound
        # Quartiles of 139,072 uniform values: the standard error of each is 0.0012 of a bound.
        expected = torch.tensor([-bound / 2, 0.0, bound / 2])
        found = table.flatten().quantile(torch.tensor([0.25, 0.5, 0.75]))
        assert (found - expected).abs().max() < 0.006 * bound
    assert whole()["small"].abs().max() <= 3**-0.5


class Tables(nn.Module):
    """Two tables with a start of their own, and dense layers named like them."""

    def __init__(self) -> None:
        super().__init__()
        configs = [
            EmbeddingBagConfig(
                name="a",
                embedding_dim=4,
                num_embeddings=10,
                feature_names=["a"],
                init_fn=partial(nn.init.constant_, val=7.0),
            ),
            EmbeddingBagConfig(
                name="b",
                embedding_dim=4,
                num_embeddings=10,
                feature_names=["b"],
                weight_init_min=2.0,
                weight_init_max=3.0,
            ),
        ]
        self.bags = EmbeddingBagCollection(tables=configs)
        self.a = nn.Linear(4, 4)
        self.parts = nn.ModuleDict({"b": nn.Linear(4, 4)})


def test_a_table_starts_as_its_config_says() -> None:
    model = Tables()
    initialise_tables(model, table_initialisers(model), seed=0)
    tables = tables_of(model)
    assert (tables["a"] == 7).all()
    assert tables["b"].min() >= 2
    assert tables["b"].max() <= 3
    assert tables["b"].std() > 0.1


def test_dense_layers_are_left_alone_whatever_their_names() -> None:
    model = Tables()
    before: dict[str, Any] = {
        name: value.clone() for name, value in model.state_dict().items() if "bags" not in name
    }
    assert {"a.weight", "parts.b.weight"} < before.keys()
    initialise_tables(model, table_initialisers(model), seed=0)
    for name, value in before.items():
        assert torch.equal(model.state_dict()[name], value)


def test_what_others_draw_is_not_disturbed() -> None:
    model = Tables()
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    initialise_tables(model, table_initialisers(model), seed=1)
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.parametrize(
    ("parameter", "table"),
    [
        ("sparse.embedding_bags.items.weight", "items"),
        ("sequences.embeddings.items.weight", "items"),
        ("embeddings.items.weight", "items"),
        ("over.0.weight", ""),
        ("items.weight", ""),
        ("embeddings.items.bias", ""),
        ("embeddings.items.weight.more", ""),
    ],
)
def test_a_parameter_names_its_table(parameter: str, table: str) -> None:
    assert table_name(parameter) == table
