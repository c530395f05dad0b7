"""Value tests: a plan of very many tables is shown in short, and no line that is unlike is lost."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torchrec.distributed.types import ParameterSharding, ShardingPlan
from torchrec.modules.embedding_configs import EmbeddingConfig
from torchrec.modules.embedding_modules import EmbeddingCollection

from recd_plugins.planning.access.parametric import zipf
from recd_plugins.planning.cluster.cluster import Cluster
from recd_plugins.planning.cluster.topology import Topology
from recd_plugins.planning.explain.plan_report import PlanReport
from recd_plugins.planning.planner_bases import Tiered
from recd_plugins.planning.prices.cost import Prices
from recd_plugins.planning.prices.ledger import Ledger
from recd_plugins.planning.tables.profiled_table import ProfiledTable
from recd_plugins.planning.tier_plans.table_sizes import TableSizes
from recd_plugins.stack.plan_in_short import MOST_ALIKE, PlanInShort

ROWS, DIM = 256, 16
WHOLE = "`--all` prints them"


def in_short(text: str, tables: int, planner: object) -> list[str]:
    """The lines of this explanation of a plan that has every table data-parallel on two ranks."""
    names = [f"t{number}" for number in range(tables)]
    configs = [
        EmbeddingConfig(name=name, embedding_dim=DIM, num_embeddings=ROWS, feature_names=[name])
        for name in names
    ]
    model = nn.ModuleDict({"rows": EmbeddingCollection(configs, device=torch.device("meta"))})
    how = ParameterSharding(sharding_type="data_parallel", compute_kernel="dense")
    plan = ShardingPlan(plan={"rows": dict.fromkeys(names, how)})  # type: ignore[arg-type]
    return PlanInShort(plan, model, 2).explained(text, planner, WHOLE).splitlines()


def report(tables: int) -> PlanReport:
    topology = Topology(ranks_per_node=1, inter_node_gbps=0.02, intra_node_gbps=2)
    names = [f"t{number}" for number in range(tables)]
    return PlanReport(
        ledger=Ledger.of(
            {name: ProfiledTable(name=name, rows=zipf(ROWS, 20), dim=DIM) for name in names},
            dict.fromkeys(names, TableSizes(replicated=16)),
            Prices(cluster=Cluster.of(topology, 2), batch_size=8, k=1),
        ),
        goal="auto",
        budget=0.0,
    )


def test_of_very_many_tables_the_sums_come_first_and_a_few_lines_of_each_look() -> None:
    tables = 300
    planner = Tiered()
    planner.report = report(tables)
    text = [*planner.report.lines(), "table t7 is left to TorchRec, for its kernel"]
    assert len(text) > 3 * tables
    lines = in_short("\n".join(text), tables, planner)
    size = tables * ROWS * DIM * 4 / 2**20
    assert lines[0] == f"300 tables: 300 data_parallel; a rank has {size:.3g} MiB of their rows"
    assert lines[1].startswith(f"expected step: {planner.report.ledger.ms:.3g} ms, ")
    assert lines[1].endswith("than TorchRec's own plan")
    assert lines[-1] == text[-1]
    assert len(lines) < 50
    left = [int(line.split()[2]) for line in lines if line.endswith(WHOLE)]
    assert len(lines) - 2 - len(left) + sum(left) == len(text)
    assert f"... and {tables - 8} lines more like these: {WHOLE}" in lines


@pytest.mark.parametrize("tables", [MOST_ALIKE, MOST_ALIKE + 1])
def test_a_plan_of_fewer_tables_is_shown_as_it_is(tables: int) -> None:
    text = "\n".join(f"t{number}  row_wise  {number / 7:.3f}" for number in range(tables))
    assert ("\n".join(in_short(text, tables, Tiered())) == text) == (tables <= MOST_ALIKE)
