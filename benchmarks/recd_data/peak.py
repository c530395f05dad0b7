"""Cluster a table in this process and print the most memory that it took, in MB."""

from __future__ import annotations

import sys
from pathlib import Path

from benchmarks.peak_memory import peak_memory
from recd_dedup.etl.cluster import ClusterBySession, ClusterConfig
from recd_plugins.data.table import Table


def main(source: str, target: str) -> None:
    ClusterBySession(ClusterConfig()).run(Table.open(Path(source)), Path(target))
    print(peak_memory() / 1e6)


if __name__ == "__main__":
    main(*sys.argv[1:])
