"""A temporary folder for a script that tries something."""

from __future__ import annotations

import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["scratch_folder"]


@contextmanager
def scratch_folder() -> Iterator[str]:
    """A temporary folder, which is removed at the end. Inside, Ctrl-C ends the script as it ends
    `recd`: by exit code 130, with a line in place of a traceback."""
    try:
        with tempfile.TemporaryDirectory() as folder:
            yield folder
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        raise SystemExit(128 + signal.SIGINT) from None
