"""Planners: what they count, what a choice costs, and the plans that they make."""

import warnings

from recd_plugins.planning.access.access_profile import Profile, profile_batches
from recd_plugins.planning.access.distribution import Floats, Integers, RowDistribution, appears
from recd_plugins.planning.access.parametric import exponential, half_normal, uniform, zipf
from recd_plugins.planning.access.tracker import profile_tracker
from recd_plugins.planning.cluster.cluster import Cluster
from recd_plugins.planning.cluster.topology import GB, Link
from recd_plugins.planning.constraints import CacheAlgorithm, TableConstraint
from recd_plugins.planning.explain.plan_report import Considered, Frontier, PlanReport
from recd_plugins.planning.explain.words import aligned, in_share
from recd_plugins.planning.fused_params import fused_by_table, state_bytes
from recd_plugins.planning.homes import boundless
from recd_plugins.planning.kernels_without_rows import has_rows_on_all
from recd_plugins.planning.planner_bases import (
    HoldsRowWise,
    OrdersBatches,
    Proposes,
    Retiers,
    TakesContext,
    Tiered,
)
from recd_plugins.planning.prices.cost import PAPER_K, Cost, Prices, Pricing, priced
from recd_plugins.planning.prices.ledger import Ledger
from recd_plugins.planning.prices.milliseconds import marginal_ms
from recd_plugins.planning.prices.replica_factor import replica_factor, replica_passes
from recd_plugins.planning.prices.row_wise_cost import home_load
from recd_plugins.planning.prices.sharded_cost import sharded_cost
from recd_plugins.planning.prices.table_ledger import TableLedger, travelling_shares
from recd_plugins.planning.remembered import remembered
from recd_plugins.planning.sharders import default_sharders, sharded_modules
from recd_plugins.planning.step.compute import Compute, FeatureCompute
from recd_plugins.planning.step.step_forecast import StepForecast
from recd_plugins.planning.tables.model_tables import ModelTable, model_tables
from recd_plugins.planning.tables.planned_shards import PlannedShards
from recd_plugins.planning.tables.profiled_table import ProfiledTable
from recd_plugins.planning.tier_plans.merged_rows import MergedRows
from recd_plugins.planning.tier_plans.plan_of_sizes import tier_plan
from recd_plugins.planning.tier_plans.table_sizes import AS_TORCHREC, TableSizes
from recd_plugins.planning.tier_plans.tier_plan import Coalesce, TablePlan, TierPlan
from recd_plugins.planning.together import LeastOfRanks, agreed, from_rank_0
from recd_plugins.planning.torchrec_plan.torchrec_planner import (
    TorchRecPlannerConfig,
    build_torchrec_planner,
)
from recd_plugins.tiers.planner.chosen_sizes import ChosenSizes
from recd_plugins.tiers.planner.tier_planner import TierPlanner

__all__ = [
    "AS_TORCHREC",
    "GB",
    "PAPER_K",
    "CacheAlgorithm",
    "ChosenSizes",
    "Cluster",
    "Coalesce",
    "Compute",
    "Considered",
    "Cost",
    "FeatureCompute",
    "Floats",
    "Frontier",
    "HoldsRowWise",
    "Integers",
    "LeastOfRanks",
    "Ledger",
    "Link",
    "MergedRows",
    "ModelTable",
    "OrdersBatches",
    "PlanReport",
    "PlannedShards",
    "Prices",
    "Pricing",
    "Profile",
    "ProfiledTable",
    "Proposes",
    "Retiers",
    "RowDistribution",
    "StepForecast",
    "TableConstraint",
    "TableLedger",
    "TablePlan",
    "TableSizes",
    "TakesContext",
    "TierPlan",
    "TierPlanner",
    "Tiered",
    "TorchRecPlannerConfig",
    "agreed",
    "aligned",
    "appears",
    "boundless",
    "build_torchrec_planner",
    "default_sharders",
    "exponential",
    "from_rank_0",
    "fused_by_table",
    "half_normal",
    "has_rows_on_all",
    "home_load",
    "in_share",
    "marginal_ms",
    "model_tables",
    "priced",
    "profile_batches",
    "profile_tracker",
    "remembered",
    "replica_factor",
    "replica_passes",
    "sharded_cost",
    "sharded_modules",
    "state_bytes",
    "tier_plan",
    "travelling_shares",
    "uniform",
    "zipf",
]


def __getattr__(name: str) -> type[ProfiledTable]:
    if name != "SequenceTable":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    warnings.warn(
        "recd_plugins.api.planning.SequenceTable, which is of bags too, is called ProfiledTable; "
        "the old name goes in 0.3.0.",
        DeprecationWarning,
        stacklevel=2,
    )
    return ProfiledTable
