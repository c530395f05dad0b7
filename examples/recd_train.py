"""RecD while training: a small RM1 on plain KJTs, then on unique samples, from one registry.

The table is clustered by session, and both sides train on the same batches, so their losses agree.
"""

from rich.console import Console
from rich.table import Table

from recd_plugins.api.testing import GlooPool, scratch_folder, train_quietly

user = {"kind": "user", "num_ids": 20_000, "stay": 0.95}
history = user | {"sequence": True, "shift": True, "length": 20, "max_length": 40}
groups = {"clicks": 4, "views": 4, "likes": 3, "searches": 3, "follows": 2}
features = [
    history | {"name": f"{name}_{i}", "group": name} for name in groups for i in range(groups[name])
]
features += [user | {"name": f"user_{i}", "length": 1 + i % 4} for i in range(8)]
features += [{"name": f"item_{i}", "num_ids": 20_000} for i in range(4)]
REGISTRY = {
    "plugins": ["recd_dlrm", "recd_dedup"],
    "dataset": {"use": "sessions", "samples": 4_000, "features": features},
    "etl": ["cluster_by_session"],  # O1 to O4 are in examples/recd_data.py
    "reader": {"use": "local", "sessions": "whole"},
    "model": {"use": "sequence_dlrm", "embedding_dim": 16, "bottom": [32], "top": [64]},
    "pooling": {"*": {"use": "transformer"}},
    "sharding": {"use": "torchrec", "search": "greedy"},
}
TRAIN = {"device": "cpu", "batch_size": 128, "steps": 8, "log_every": 4}
SIDES = {"plain KJT": {}, "RecD": {"dedup": {"use": "exact", "groups": "auto"}}}  # O5 to O7


if __name__ == "__main__":
    caption = "a step's time and bytes through all-to-alls on a rank, its peak memory"
    table = Table("", "ms", "sent MB", "MiB", "train loss", "test loss", "AUC", caption=caption)
    with scratch_folder() as folder:
        for side, dedup in SIDES.items():
            run = {"train": TRAIN | {"run": f"{folder}/{side}"}, "folder": folder}
            with GlooPool(deadline=300) as ranks:
                summary, _ = ranks.run(train_quietly, REGISTRY | dedup | run, world_size=2)
            cost, losses = summary["cost"], [summary[split]["loss"] for split in ("train", "test")]
            sent = sum(cost["traffic"]["all_to_all"].values()) / 1e6
            shown = [f"{cost['step_ms']:,.0f}", f"{sent:.1f}", f"{cost['peak_memory_mib']:,.0f}"]
            shown += [f"{loss:.5f}" for loss in losses] + [f"{summary['test']['auc']:.4f}"]
            table.add_row(side, *shown)
    Console().print(table)
