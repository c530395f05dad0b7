"""The files that a dataset is made from."""

from __future__ import annotations

import json
from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path

from recd_plugins.errors import DataError

__all__ = ["check_sources", "fingerprint"]


def check_sources(option: str, paths: Iterable[Path]) -> None:
    """Every path exists, or `DataError` names it and the option that says it."""
    for path in paths:
        if not path.exists():
            raise DataError(
                f"{path}: there is no such file. Correct `{option}` in registry.yaml; "
                f"a relative path counts from {Path.cwd()}."
            )


def fingerprint(paths: Iterable[Path]) -> str:
    """Changes when a file is replaced, written to or touched: by sizes and times, unread."""
    files = [
        file
        for path in paths
        for file in (sorted(path.rglob("*")) if path.is_dir() else [path])
        if file.is_file()
    ]
    stats = [(str(file), file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    return sha256(json.dumps(stats).encode()).hexdigest() if stats else ""
