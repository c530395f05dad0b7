"""A notice, before torch is imported, that the system may allow this process too few addresses."""

from __future__ import annotations

import warnings

from recd_plugins.launch.machine_memory import address_space
from recd_plugins.notices import NoticeWarning

__all__ = ["warn_of_few_addresses"]

ADDRESSES = 2.3 * 2**30
"""The bytes of addresses that a rank of a small job takes on a CPU: with 2.4 GiB it trained, and
with 1.9 GiB it could start no thread."""


def warn_of_few_addresses() -> None:
    """Give the notice where a job may lack addresses. It then ends in whatever error torch, or a
    library beside it, meets first, or by a signal."""
    allowed = address_space()
    if allowed is not None and allowed < ADDRESSES:
        message = (
            f"`ulimit -v` allows this process {allowed / 2**30:.2g} GiB of addresses, and a rank "
            f"takes about {ADDRESSES / 2**30:.2g} GiB: torch may fail by errors that do not say "
            "so, or by a signal. Write `ulimit -v unlimited`, or have the scheduler give the job "
            "more memory."
        )
        warnings.warn(message, NoticeWarning, stacklevel=2)
