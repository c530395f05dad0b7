"""Planners: what they count, what a choice costs, and the plans that they make."""

from recd_plugins.planning.access.parametric import exponential, half_normal, uniform, zipf
from recd_plugins.planning.cluster import Cluster
from recd_plugins.planning.constraints import CacheAlgorithm, TableConstraint
from recd_plugins.planning.cost import Cost, Prices
from recd_plugins.planning.explain.report import Frontier, PlanReport
from recd_plugins.planning.explain.words import aligned
from recd_plugins.planning.ledger import Ledger, SequenceTable, TableSizes, tier_plan
from recd_plugins.planning.merged import Merged
from recd_plugins.planning.model_tables import ModelTable, check_collections, model_tables
from recd_plugins.planning.plan import TorchRecPlannerConfig, build_torchrec_planner
from recd_plugins.planning.prices.pricing import PAPER_K, Pricing, priced
from recd_plugins.planning.prices.replica_memory import replica_factor, state_bytes
from recd_plugins.planning.prices.step_time import marginal_ms
from recd_plugins.planning.profile import Profile, profile_batches
from recd_plugins.planning.proposal import (
    HoldsRowWise,
    OrdersBatches,
    PlansOthers,
    Proposes,
    Retiers,
    Tiered,
)
from recd_plugins.planning.rows import Floats, Integers, RowDistribution, appears
from recd_plugins.planning.tier_plan import Coalesce, TablePlan, TierPlan
from recd_plugins.planning.topology import GB, Topology
from recd_plugins.tiers.planner import Chosen, TierPlanner

__all__ = [
    "GB",
    "PAPER_K",
    "CacheAlgorithm",
    "Chosen",
    "Cluster",
    "Coalesce",
    "Cost",
    "Floats",
    "Frontier",
    "HoldsRowWise",
    "Integers",
    "Ledger",
    "Merged",
    "ModelTable",
    "OrdersBatches",
    "PlanReport",
    "PlansOthers",
    "Prices",
    "Pricing",
    "Profile",
    "Proposes",
    "Retiers",
    "RowDistribution",
    "SequenceTable",
    "TableConstraint",
    "TablePlan",
    "TableSizes",
    "TierPlan",
    "TierPlanner",
    "Tiered",
    "Topology",
    "TorchRecPlannerConfig",
    "aligned",
    "appears",
    "build_torchrec_planner",
    "check_collections",
    "exponential",
    "half_normal",
    "marginal_ms",
    "model_tables",
    "priced",
    "profile_batches",
    "replica_factor",
    "state_bytes",
    "tier_plan",
    "uniform",
    "zipf",
]
