"""Rung 3 (ranks): the batch that docs/tiers.md follows by hand goes the way that the page says."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torchrec.distributed import DistributedModelParallel
from torchrec.modules.embedding_configs import EmbeddingConfig
from torchrec.modules.embedding_modules import EmbeddingCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recd_plugins.planning.tier_plans.tier_plan import TablePlan, TierPlan
from recd_plugins.registry.settings import OptimizerSettings
from recd_plugins.testing.arrange import BySharding
from recd_plugins.testing.gloo import GlooPool
from recd_plugins.testing.trained import gather_table
from recd_plugins.tiers.peers import Peers
from recd_plugins.tiers.routed_batch import RoutedBatch
from recd_plugins.tiers.sharder import ShardedTiers, tier_sharders

PAGE = Path(__file__).parents[2] / "docs" / "tiers.md"

WIDTHS = 38, 16, 16, 16
RANKS, NUM_ROWS, DIM = 3, 10, 4
IDS = [[5, 2, 4, 4, 7], [9, 7, 1, 5], [2, 3, 2, 0]]
"""The ids that each rank looks up."""
REPLICATED = np.array([2, 5, 8, 9])
PLAN = TierPlan(
    tables={
        "t": TablePlan(
            table="t",
            replicated=REPLICATED,
            per_node=np.array([0, 7]),
            coalesce="rank",
        )
    },
    n_nodes=1,
    ranks_per_node=RANKS,
)


class Looked(nn.Module):
    """A table of ten rows, looked up by one feature."""

    def __init__(self) -> None:
        super().__init__()
        table = EmbeddingConfig(
            name="t", embedding_dim=DIM, num_embeddings=NUM_ROWS, feature_names=["f"]
        )
        self.rows = EmbeddingCollection(tables=[table], device=torch.device("meta"))

    def forward(self, features: KeyedJaggedTensor) -> Tensor:
        found: Tensor = self.rows(features)["f"].values()
        return found


def followed() -> list[tuple[str, str]]:
    """On a rank: what the batch comes to, step by step, each with its name in the code."""
    model = Looked()
    arranged = BySharding("row_wise")(model, OptimizerSettings(tables="sgd", tables_lr=1.0))
    sharded = DistributedModelParallel(
        model,
        device=torch.device("cpu"),
        plan=arranged.plan,
        sharders=tier_sharders(ShardedTiers(PLAN), arranged.sharders),
    )
    ((table, home),) = sharded.state_dict().items()
    (part,) = home.local_shards()
    rows = torch.arange(len(part.tensor)) + part.metadata.shard_offsets[0]
    part.tensor.copy_(10.0 * rows.unsqueeze(1))

    batches = _routed_by(sharded)
    patches = pytest.MonkeyPatch()
    sent = _sent_by_peers(patches)
    ids = torch.tensor(IDS[dist.get_rank()])
    lengths = torch.tensor([len(ids)])
    output = sharded(KeyedJaggedTensor(keys=["f"], values=ids, lengths=lengths))
    group: Any = batches[0].groups[0]
    asked, answer = group.asked, group.answer
    replicated, per_node = group.replicas.replicated_tier, group.replicas.per_node_tier
    home_ids = group.home_ids.result
    filled = replicated.share.rows.clone()
    steps = [
        ("home", rows),
        ("replicated_tier.rows / 10", replicated.rows[: len(REPLICATED), 0] / 10),
        ("replicated_tier.share.rows / 10", filled[:, 0] / 10),
        ("per_node_tier.share.rows / 10", per_node.share.rows[:, 0] / 10),
        ("ids", ids),
        ("routed.missed", group.routed.missed),
        ("routed.replicated.at", group.routed.replicated.at),
        ("routed.replicated.positions", group.routed.replicated.positions),
        ("routed.per_node.at", group.routed.per_node.at),
        ("routed.per_node.positions", group.routed.per_node.positions),
        ("home_ids.ids", home_ids.ids),
        ("home_ids.inverse", home_ids.inverse),
        ("asked.ids", asked.ids),
        ("asked.counts", asked.counts),
        ("answer.exchange.ids", answer.exchange.ids),
        ("output", output[:, 0]),
    ]
    (output.sum() * RANKS).backward()
    patches.undo()
    touched = answer.touched.result
    steps += [
        ("addresses", group.addresses),
        ("touched.mine", touched.mine.flatten().nonzero()),
        ("touched.anywhere", touched.anywhere.flatten().nonzero()),
        ("filled - replicated_tier.share.rows", (filled - replicated.share.rows)[:, 0]),
        ("replicated_tier.rows", replicated.rows[: len(REPLICATED), 0]),
        ("per_node_tier.share.rows", per_node.share.rows[:, 0]),
    ]
    after = gather_table(sharded.state_dict()[table])[rows, 0]
    in_words = [(name, _words(values)) for name, values in [*steps, ("state_dict", after)]]
    return in_words + [(name, " ".join(map(str, each))) for name, each in sent.items()]


def _routed_by(sharded: DistributedModelParallel) -> list[RoutedBatch]:
    """The batches that the model's tiers have routed, once they have."""
    (tiers,) = (module.tiers for module in sharded.modules() if hasattr(module, "tiers"))
    batches: list[RoutedBatch] = []
    route = tiers.route

    def routed(features: KeyedJaggedTensor) -> RoutedBatch:
        batches.append(route(features))
        return batches[-1]

    tiers.route = routed
    return batches


def _sent_by_peers(patches: pytest.MonkeyPatch) -> dict[str, list[int]]:
    """The bytes of what each method of Peers is handed, by who calls it, once they have been."""
    sent: dict[str, list[int]] = {}

    def counted(name: str) -> Any:
        method = getattr(Peers, name)

        def called(self: Peers, mine: Tensor, *rest: Any) -> Any:
            if self.size > 1:
                caller = sys._getframe(1).f_code.co_name
                sent.setdefault(f"{caller}: {name}", []).append(mine.nbytes)
            return method(self, mine, *rest)

        return called

    for name in ("all_reduce", "most", "all_gather", "reduce_scatter", "all_to_all"):
        patches.setattr(Peers, name, counted(name))
    return sent


def _words(values: Tensor) -> str:
    return " ".join(f"{number:g}" for number in values.flatten().tolist()) or "-"


def test_a_batch_goes_the_way_that_the_page_says(gloo_pool: GlooPool) -> None:
    by_rank = gloo_pool.run(followed, world_size=RANKS)
    lines = [
        "".join(f"{text:<{width}}" for text, width in zip(line, WIDTHS, strict=True)).rstrip()
        for line in (
            (step[0][0], *(found for _, found in step)) for step in zip(*by_rank, strict=True)
        )
    ]
    page = re.findall(r"^```\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    shown = [line for block in page for line in block.splitlines()]
    assert [line for line in shown if not line.startswith(" ")] == lines
