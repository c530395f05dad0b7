"""FlexShard: profile a table, plan replicas of hot rows, explain the plan, and compare with
row-wise.

Four gloo ranks stand for two nodes with a slow link between them. They run on one machine, so
compare the bytes, not the times.
"""

import sys
import warnings

from rich.console import Console
from rich.table import Table

import recd_plugins as rp
from recd_plugins.api.planning import Tiered
from recd_plugins.api.testing import GlooPool, scratch_folder, train_quietly

item = {"name": "item", "num_ids": 50_000, "table": "items", "skew": 1.2}
history = item | {"name": "history", "kind": "user", "sequence": True, "length": 20}
REGISTRY = {
    "plugins": ["recd_dlrm", "recd_flexshard"],
    "dataset": {"use": "sessions", "samples": 30_000, "features": [history, item]},
    "model": {"use": "sequence_dlrm", "embedding_dim": 64, "bottom": [64], "top": [32]},
    "topology": {"ranks_per_node": 2, "inter_node_gbps": 0.02, "intra_node_gbps": 2},
}
TRAIN = {"device": "cpu", "ranks": 4, "batch_size": 256, "log_every": 6}
SIDES = {
    "row-wise": {"use": "torchrec", "constraints": {"*": {"sharding_types": ["row_wise"]}}},
    "FlexShard": {"use": "flexshard", "goal": "auto", "others": {"search": "greedy"}},
}


if __name__ == "__main__":
    warnings.simplefilter("ignore")  # TorchRec's own
    steps = [*sys.argv, "24"][1]
    if not steps.isdecimal() or int(steps) < 8:
        sys.exit(f"{steps}: say 8 steps at least; bytes are not counted at a run's ends")
    caption = "a step's time, MB through a rank's all-to-alls and other collectives, loss"
    table = Table("", "ms", "all-to-all", "others", "train", "test", caption=caption)
    with scratch_folder() as folder, GlooPool(deadline=300) as ranks:
        for side, sharding in SIDES.items():
            settings = TRAIN | {"steps": int(steps), "run": f"{folder}/{side}"}
            registry = REGISTRY | {"folder": folder, "sharding": sharding, "train": settings}
            stack = rp.load(registry)
            planner = stack.planned_for(stack.model(), world_size=4)  # as `recd plan` does
            print(side, stack.explain(), "", sep="\n")
            summary, *_ = ranks.run(train_quietly, registry, world_size=4)
            losses = [f"{summary[split]['loss']:.6f}" for split in ("train", "test")]
            sent = {to: sum(of.values()) / 1e6 for to, of in summary["cost"]["traffic"].items()}
            shown = [summary["cost"]["step_ms"], sent.pop("all_to_all"), sum(sent.values())]
            table.add_row(side, *(f"{number:.2f}" for number in shown), *losses)
    assert isinstance(planner, Tiered)
    assert planner.profile is not None
    share = planner.profile["t_items"].coverage
    print("lookups of the hottest rows:", {n: f"{share(n):.0%}" for n in (100, 1_000, 10_000)})
    Console().print(table)
