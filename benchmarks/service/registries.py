"""One table of sessions, and the registries over it, which yield KJTs or IKJTs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import recd_plugins as rp
from recd_dsi.service.loader import ServiceLoader
from recd_plugins.stack import Stack

__all__ = ["KINDS", "LOCAL", "MODULO", "SEQUENCES", "service", "stack_of"]

LOCAL = {"use": "local", "sessions": "whole"}
SEQUENCES = ("clicks", "views", "likes", "searches")
MODULO = 50_000
"""The modulo of the hash of all ids."""
KINDS: dict[str, dict[str, Any]] = {
    "KJT": {},
    "IKJT": {"dedup": {"use": "exact", "groups": [[name] for name in SEQUENCES]}},
}
_USER = {"kind": "user", "num_ids": 100_000, "stay": 0.95, "sequence": True, "shift": True}
_FEATURES = [
    *({"name": name, "length": 40, "max_length": 80, **_USER} for name in SEQUENCES),
    *({"name": f"item_{n}", "num_ids": 100_000} for n in range(4)),
]


def stack_of(
    folder: Path, kind: str, reader: Mapping[str, Any], *, samples: int, batch_size: int
) -> Stack:
    """A stack that reads the table. The first stack of a folder makes the table."""
    return rp.load(
        {
            "plugins": ["recd_dlrm", "recd_dedup", "recd_dsi"],
            "folder": str(folder),
            "dataset": {"use": "sessions", "samples": samples, "dense": 8, "features": _FEATURES},
            "etl": ["cluster_by_session"],
            "preprocess": [{"use": "sigrid_hash", "features": "*", "modulo": MODULO}],
            "reader": dict(reader),
            "train": {"batch_size": batch_size, "device": "cpu"},
            **KINDS[kind],
        }
    )


def service(stack: Stack) -> ServiceLoader:
    """The loader of the only rank, whose workers run."""
    loader = stack.loader(0, 1)
    assert isinstance(loader, ServiceLoader)
    loader.fleet()
    return loader
