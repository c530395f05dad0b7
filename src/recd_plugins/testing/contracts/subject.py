"""A record under check, and how a broken rule is reported."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recd_plugins.config import Config
from recd_plugins.data.batch import Batch
from recd_plugins.errors import PluginError
from recd_plugins.planning.torchrec_plan.torchrec_planner import TorchRecPlannerConfig
from recd_plugins.slots import Context, Record
from recd_plugins.slots.built import check_built
from recd_plugins.testing.neighbours import OTHERS, with_neighbours

if TYPE_CHECKING:
    from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

    from recd_plugins.testing.gloo import GlooPool

__all__ = ["ContractBroken", "Subject"]


class ContractBroken(AssertionError):
    """A record breaks a rule of its slot."""


@dataclass(frozen=True, kw_only=True)
class Subject:
    """The subject of a contract: everything that is needed to check a record."""

    record: Record[Any, Any]
    config: Config
    context: Context
    folder: Path
    """An empty folder to write in."""
    pool: GlooPool | None = None
    expand: Callable[[Batch], KeyedJaggedTensor] | None = None
    others: TorchRecPlannerConfig = OTHERS
    """The options of TorchRec's planner behind a record that stands in front of one."""

    def build(self) -> Any:
        context = with_neighbours(self.record, self.context, self.others)
        built = self.record.build(self.config, context)
        try:
            check_built(self.record.slot, built, f"{self.record.slot} {self.record.name!r}")
        except PluginError as error:
            raise ContractBroken(str(error)) from None
        return built

    def hold(self, kept: bool, rule: str, fix: str) -> None:
        """Raise `ContractBroken` if the rule is not kept, with who breaks it and how to fix it."""
        __tracebackhide__ = True
        if not kept:
            rule = rule.rstrip().rstrip(".")  # it may end in another error's message
            raise ContractBroken(f"{self.record.slot} {self.record.name!r}: {rule}. {fix}")
