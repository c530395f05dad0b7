"""A budget that no plan keeps to."""

from __future__ import annotations

from recd_plugins.api import CapabilityError
from recd_plugins.api.planning import GB

__all__ = ["too_little"]


def too_little(least: float, budget: float) -> CapabilityError:
    """Plans take `least` extra bytes a rank or more; `budget` is below that."""
    return CapabilityError(
        f"flexshard: budget_gb asks for {-budget:,.0f} bytes ({-budget / GB:.3g} GB) a rank to be "
        f"saved, but {-least:,.0f} ({-least / GB:.3g} GB) can be at most. Raise "
        "sharding.budget_gb."
    )
