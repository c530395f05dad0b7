"""What `recd advise` takes on a hundred large tables, and its regret over a search.

    python -m benchmarks.advise [--quick] [--json]

The search: 40 registries and more, of clustering, deduplication, plans and hot batches, on an
emulated cluster of 2 x 2 ranks (needs root), each trained beside what is advised, in turns. Regret
is how much longer a step of what is advised takes than the best of them.
"""

from __future__ import annotations

import os

from benchmarks.advise.large import large
from benchmarks.advise.regret import BUDGET_GB, SETTINGS, regrets
from benchmarks.harness import Report, main


def measure(quick: bool) -> Report:
    if quick:
        figures = [*large(20, 10**6, 8_192)]
        figures += regrets(SETTINGS[:1], samples=8_192, rounds=2, steps=2, most=6)
    else:
        figures = [*large(100, 10**7, 32_768)]
        figures += regrets(SETTINGS, samples=32_768, rounds=5, steps=6)
    settings = {
        "cluster": "2 network namespaces of 2 gloo ranks of one thread, which share the processor",
        "budget": f"{BUDGET_GB} GB a rank",
        "load": f"{os.getloadavg()[0]:.1f}",
    }
    return Report(figures=figures, settings=settings)


if __name__ == "__main__":
    main("advise", measure)
