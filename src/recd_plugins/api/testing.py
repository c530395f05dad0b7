"""The kit that plugin authors test with; its pytest fixture `gloo_pool` is always there."""

from recd_plugins.testing.arrange import Arranged, Arrangement
from recd_plugins.testing.batches import (
    from_lists,
    random_batch,
    random_batches,
    random_table,
    to_lists,
)
from recd_plugins.testing.conformance import ContractBroken, check_record
from recd_plugins.testing.gloo import GlooPool, RanksFailed
from recd_plugins.testing.parity import check_parity
from recd_plugins.testing.probe import Probe
from recd_plugins.testing.resume import check_resume
from recd_plugins.testing.scratch_folder import scratch_folder
from recd_plugins.testing.training import train_quietly

__all__ = [
    "Arranged",
    "Arrangement",
    "ContractBroken",
    "GlooPool",
    "Probe",
    "RanksFailed",
    "check_parity",
    "check_record",
    "check_resume",
    "from_lists",
    "random_batch",
    "random_batches",
    "random_table",
    "scratch_folder",
    "to_lists",
    "train_quietly",
]
