"""Value tests: tables start by the seed and their names, however many threads draw them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torchrec.modules.embedding_configs import EmbeddingBagConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection

from recd_plugins.trainer import initial_tables
from recd_plugins.trainer.initial_tables import BLOCK, initialise_tables, table_initialisers


def normal(table: Tensor) -> Tensor:
    return torch.nn.init.normal_(table, std=0.1)


def model() -> EmbeddingBagCollection:
    """Tables of several blocks, the last one with few rows; one has its own function."""
    rows = {"a": 3 * BLOCK + 5, "b": BLOCK, "own": BLOCK + 1}
    return EmbeddingBagCollection(
        tables=[
            EmbeddingBagConfig(
                name=name,
                num_embeddings=count,
                embedding_dim=4,
                feature_names=[name],
                init_fn=normal if name == "own" else None,
            )
            for name, count in rows.items()
        ]
    )


def drawn(seed: int = 3) -> dict[str, Tensor]:
    made, before = model(), torch.random.get_rng_state()
    initialise_tables(made, table_initialisers(made), seed)
    assert torch.equal(torch.random.get_rng_state(), before)
    return {name: table.clone() for name, table in made.state_dict().items()}


def test_several_threads_draw_what_one_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(initial_tables, "_threads", lambda: 1)
    one = drawn()
    monkeypatch.setattr(initial_tables, "_threads", lambda: 4)
    four = drawn()
    assert all(torch.equal(table, four[name]) for name, table in one.items())
    other = drawn(seed=4)
    assert not any(torch.equal(table, other[name]) for name, table in one.items())


def test_a_function_of_ones_own_draws_as_torchs_range_would(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By torch's one generator, and the range by one of its own: the same numbers."""
    ranged = drawn()
    takes = initial_tables._takes_a_generator
    monkeypatch.setattr(initial_tables, "_takes_a_generator", lambda initialise: False)
    assert all(torch.equal(table, ranged[name]) for name, table in drawn().items())
    assert not takes(normal)


def test_ranks_of_a_machine_share_its_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda process: set(range(24)))
    monkeypatch.setattr("recd_plugins.launch.machine_cores.own_groups", lambda *_: ())
    for ranks, threads in (("1", 16), ("8", 3), ("64", 1)):
        monkeypatch.setenv("LOCAL_WORLD_SIZE", ranks)
        assert initial_tables._threads() == threads
