"""`python -m benchmarks.faults.started FOLDER ARGUMENT...`: `recd` in that folder, with so much
memory."""

from __future__ import annotations

import os
import resource
import sys

from benchmarks.faults.programs import SCARCE

if __name__ == "__main__":
    _, folder, *arguments = sys.argv
    os.chdir(folder)
    if SCARCE in os.environ:
        most = int(os.environ.pop(SCARCE))
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
    sys.argv = ["recd", *arguments]
    from recd_plugins.cli.main import main

    main()
