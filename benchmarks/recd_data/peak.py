"""Cluster a table in this process and print the most memory that it took, in MB."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from recd_dedup.etl.cluster import ClusterBySession, ClusterConfig
from recd_plugins.data.table import Table


def main(source: str, target: str) -> None:
    ClusterBySession(ClusterConfig()).run(Table.open(Path(source)), Path(target))
    # Not ru_maxrss: Linux hands that on from the process that started this one.
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    print(int(found[1]) * 1024 / 1e6)


if __name__ == "__main__":
    main(*sys.argv[1:])
