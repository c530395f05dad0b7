"""The only file that touches TorchRec's private names, each with the reason and the version."""

from __future__ import annotations

__all__ = ["forget_collective_validation"]


def forget_collective_validation() -> None:
    """Let the next DistributedModelParallel of this process agree again on collective checks.

    TorchRec 1.8 broadcasts that setting in the first constructor of a process alone. A process
    that has been in another group before skips the broadcast, and a new one waits for it forever.
    """
    from torchrec.distributed import collective_utils

    collective_utils._INITIALIZED = False
