"""SCARS: logs in Criteo's format, their hot rows, and DLRM with and without a cache of these.

`python examples/scars.py [STEPS] [LOG.tsv]` trains on two gloo ranks; without a log it generates
one.
"""

import sys
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

import recd_plugins as rp
from recd_plugins.api.planning import Tiered
from recd_plugins.api.testing import GlooPool, scratch_folder, train_quietly
from recd_scars.cache_curve import CacheCurve, rows_of_all

MODEL = {"use": "dlrm", "embedding_dim": 16, "bottom": [32, 16], "top": [32]}
TRAIN = {"device": "cpu", "ranks": 2, "batch_size": 512, "log_every": 6}
LINK = {"ranks_per_node": 1, "inter_node_gbps": 0.025}  # what a cache is for: 200 mbit
SIDES = {"TorchRec": None, "SCARS": {"use": "scars", "size": "hit_rate", "hit_rate": 0.6}}


def made_up(path):
    ids = (draw := np.random.default_rng(0)).zipf(1.2, (30_000, 26)) % 20_000
    labels = draw.random(30_000) < 0.1 + 0.5 * (ids[:, :4] % 2).mean(1)
    rows = np.column_stack([labels, draw.integers(0, 99, (30_000, 13)), ids])
    np.savetxt(path, rows, fmt="\t".join(["%d"] * 14 + ["%08x"] * 26))
    return path


if __name__ == "__main__":
    steps = [*sys.argv, "24"][1]
    if not steps.isdecimal() or int(steps) < 8:
        sys.exit(f"{steps}: say 8 steps at least; bytes are not counted at a run's ends")
    table = Table("a step", "ms", "MB all-to-all", "MB others", "training loss", "test loss")
    with scratch_folder() as folder, GlooPool(deadline=300) as ranks:
        log = Path(sys.argv[2]).resolve() if sys.argv[2:] else made_up(Path(folder, "log.tsv"))
        job = {"plugins": ["recd_dlrm", "recd_scars"], "folder": folder, "model": MODEL}
        job |= {"dataset": {"use": "criteo", "train": [str(log)]}, "topology": LINK}
        for side, cache in SIDES.items():
            train = TRAIN | {"steps": int(steps), "run": f"{folder}/{side}"}
            registry = job | {"cache": cache, "train": train}
            summary, *_ = ranks.run(train_quietly, registry, world_size=2)
            sent = {to: sum(of.values()) / 1e6 for to, of in summary["cost"]["traffic"].items()}
            shown = [summary["cost"]["step_ms"], sent.pop("all_to_all", 0), sum(sent.values())]
            losses = [f"{summary[split]['loss']:.6f}" for split in ("train", "test")]
            table.add_row(side, *(f"{number:.2f}" for number in shown), *losses)
        stack = rp.load(registry)
        planner = stack.planned_for(stack.model(), world_size=2)  # as `recd plan` does
    assert isinstance(planner, Tiered)
    assert planner.profile is not None
    rows = rows_of_all(list(planner.profile.rows.values()))
    hottest = {count: f"{rows.coverage(count):.0%}" for count in (100, 1000, 10000)}
    print(stack.explain().splitlines()[0], f"lookups of the hottest rows: {hottest}", sep="\n")
    Console().print(table)
    CacheCurve.of(rows, width=16, batch_size=512, least_batch=128).save(Path("scars.png"))
    print("hits by cache portion, and what crosses the link: scars.png")
