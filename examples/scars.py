"""SCARS: Criteo-format logs, their hot rows, what caching those saves; then DLRM with and without.

`python examples/scars.py [STEPS] [LOG.tsv]`, on two gloo ranks; without a log it makes one up.
"""

import contextlib
import io
import sys
import tempfile
import warnings
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

import recd_plugins as rp
from recd_plugins.testing.gloo import GlooPool
from recd_plugins.trainer.run import train
from recd_scars.curve import Curve
from recd_scars.sources import together

DLRM = {"use": "dlrm", "embedding_dim": 16, "bottom": [32, 16], "top": [32]}
TRAIN = {"device": "cpu", "ranks": 2, "batch_size": 512, "log_every": 6}
SIDES = {"TorchRec": None, "SCARS": {"use": "scars", "size": "hit_rate", "hit_rate": 0.6}}


def made_up(path):
    draw = np.random.default_rng(0)
    ids = draw.zipf(1.2, (30_000, 26)) % 20_000
    labels = draw.random(30_000) < 0.1 + 0.5 * (ids[:, :4] % 2).mean(1)
    rows = zip(labels, draw.integers(0, 99, (30_000, 13)), ids, strict=True)
    said = ([int(label), *dense, *map("{:08x}".format, row)] for label, dense, row in rows)
    path.write_text("".join("\t".join(map(str, row)) + "\n" for row in said))
    return path


def on_a_rank(registry):
    with contextlib.redirect_stdout(io.StringIO()):
        return train(rp.load(registry), torch.device("cpu"))


if __name__ == "__main__":
    warnings.simplefilter("ignore")  # TorchRec's own
    table = Table("a step", "ms", "MB all-to-all", "MB others", "training loss", "test loss")
    with tempfile.TemporaryDirectory() as folder, GlooPool(deadline=300) as ranks:
        log = Path(sys.argv[2]).resolve() if sys.argv[2:] else made_up(Path(folder, "log.tsv"))
        for side, cache in SIDES.items():
            steps = {"steps": int(sys.argv[1]) if sys.argv[1:] else 24, "run": f"{folder}/{side}"}
            registry = {"plugins": ["recd_dlrm", "recd_scars"], "folder": folder, "model": DLRM}
            registry |= {"dataset": {"use": "criteo", "train": [str(log)]}, "train": TRAIN | steps}
            registry |= {"sharding": {"use": "torchrec", "search": "greedy"}, "cache": cache}
            said, *_ = ranks.run(on_a_rank, registry, world_size=2)
            sent = {to: sum(of.values()) / 1e6 for to, of in said["cost"]["traffic"].items()}
            shown = [said["cost"]["step_ms"], sent.pop("all_to_all", 0), sum(sent.values())]
            losses = [f"{said[split]['loss']:.6f}" for split in ("train", "test")]
            table.add_row(side, *(f"{number:.2f}" for number in shown), *losses)
        stack = rp.load(registry)
        planner = stack.propose(stack.model(), world_size=2)  # as `recd plan` does
    print(stack.explain().splitlines()[0])
    rows = together(list(planner.profile.rows.values()))
    print(
        "lookups of the hottest rows:", {n: f"{rows.coverage(n):.0%}" for n in (100, 1000, 10000)}
    )
    Console().print(table)
    curve = Curve.of(rows, width=DLRM["embedding_dim"], batch_size=512, least_batch=128)
    curve.save(Path("scars.png"))
    print("hits by cache portion, and what crosses the link: scars.png")
