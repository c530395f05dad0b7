"""All papers in one registry: unique samples, replicas of hot rows, hot batches; one row for each.

Four gloo ranks stand for two nodes with a slow link between them. They run on one machine, so
compare the bytes, not the times.
"""

import sys
import warnings

from rich.console import Console
from rich.table import Table

import recd_plugins as rp
from recd_plugins.api.testing import GlooPool, scratch_folder, train_quietly

item = {"name": "item", "num_ids": 2_000, "table": "items", "skew": 1.3}
history = item | {"name": "history", "kind": "user", "sequence": True, "length": 8, "stay": 0.9}
PLAIN = {
    "plugins": ["recd_dlrm", "recd_dedup", "recd_flexshard", "recd_scars"],
    "dataset": {"use": "sessions", "samples": 40_000, "samples_per_session": 12,
                "features": [history, item]},
    "etl": [{"use": "cluster_by_session"}],
    "reader": {"use": "local", "sessions": "whole"},
    "model": {"use": "sequence_dlrm", "embedding_dim": 64, "bottom": [64], "top": [32]},
    "sharding": {"use": "torchrec", "constraints": {"*": {"sharding_types": ["row_wise"]}}},
    "topology": {"ranks_per_node": 2, "inter_node_gbps": 0.02, "intra_node_gbps": 2},
}  # fmt: skip
TRAIN = {"device": "cpu", "ranks": 4, "batch_size": 256, "log_every": 6}
RECD = PLAIN | {"dedup": {"use": "exact", "groups": [["history"]]}}
TIERS = {"use": "flexshard", "goal": "budget", "tiers": 2, "budget_gb": 2e-4, "coalesce": "rank"}
FLEXSHARD = RECD | {"sharding": TIERS}
SCARS = FLEXSHARD | {"cache": {"use": "scars", "size": "plan", "window": 8}}
SIDES = {"row-wise": PLAIN, "+ RecD": RECD, "+ FlexShard": FLEXSHARD, "+ SCARS": SCARS}

if __name__ == "__main__":
    warnings.simplefilter("ignore")  # TorchRec's own
    steps = [*sys.argv, "24"][1]
    if not steps.isdecimal() or int(steps) < 8:
        sys.exit(f"{steps}: say 8 steps at least; bytes are not counted at a run's ends")
    caption = "a step's time, MB of one step through all-to-alls and other collectives, loss"
    table = Table("", "ms", "all-to-all", "others", "train", "test", caption=caption)
    with scratch_folder() as folder, GlooPool(deadline=300) as ranks:
        for side, values in SIDES.items():
            settings = TRAIN | {"steps": int(steps), "run": f"{folder}/{side}"}
            registry = values | {"folder": folder, "train": settings}
            stack = rp.load(registry)
            stack.planned_for(stack.adapt(stack.model()), world_size=4)  # as `recd plan` does
            print(side, stack.explain(), "", sep="\n")
            summary, *_ = ranks.run(train_quietly, registry, world_size=4)
            losses = [f"{summary[split]['loss']:.6f}" for split in ("train", "test")]
            sent = {to: sum(of.values()) / 1e6 for to, of in summary["cost"]["traffic"].items()}
            shown = [summary["cost"]["step_ms"], sent.pop("all_to_all", 0.0), sum(sent.values())]
            table.add_row(side, *(f"{number:.2f}" for number in shown), *losses)
    Console().print(table)
