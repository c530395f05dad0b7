"""Which foreign trainers there can be."""

from __future__ import annotations

from trio import MINOR

# Its trainers have pipelines that TorchRec has since 1.6.
collect_ignore = ["test_trainers.py"] if MINOR < 6 else []
