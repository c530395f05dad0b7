"""DSI: a table with columns in the order of what jobs read, and its transforms as one program.

`python examples/dsi.py [SAMPLES]` runs in one process, on generated sessions.
"""

import subprocess
import sys
from pathlib import Path

import recd_plugins as rp
from recd_plugins.api.batch import TransformProgram
from recd_plugins.api.testing import scratch_folder

NAMES = [f"f{n}" for n in range(40)]
OFTEN = {"kind": "user", "stay": 0.9, "length": 20, "num_ids": 10_000}
SPARSE = [{"name": n, **OFTEN} for n in NAMES]
USED = ["f3", "f17", "f31"]  # three of forty features
STEPS = [
    {"use": "n_gram", "of": ["f3"], "n": 2, "modulo": 50_000, "into": "f3_pairs"},
    {"use": "cartesian", "left": "f17", "right": "f31", "modulo": 50_000, "into": "f17_f31"},
    {"use": "sigrid_hash", "features": "f*", "modulo": 5_000},
    {"use": "bucketize", "features": "dense_0", "borders": [-1, 0, 1]},
    {"use": "clamp_dense", "features": "dense_*", "low": -3, "high": 3},
]


def recd(*arguments):
    subprocess.run([sys.executable, "-m", "recd_plugins", "data", *arguments], check=True)


if __name__ == "__main__":
    samples = int([*sys.argv, "4000"][1])
    with scratch_folder() as folder:
        made = {"use": "sessions", "samples": samples, "dense": 2, "features": SPARSE}
        registry: dict[str, object] = {"plugins": ["recd_dlrm", "recd_dedup"], "folder": folder}
        by_session = {"dataset": made, "etl": ["cluster_by_session"]}
        table = rp.load(registry | by_session).prepare().train.path
        columns = [part for name in USED for part in ("--column", name)]
        recd("layout", str(table), *columns)
        first = [part for name in USED for part in ("--first", name)]
        recd("rewrite", str(table), f"{folder}/laid_out", *first)
        recd("layout", f"{folder}/laid_out", *columns)

        laid_out = {"use": "parquet", "train": f"{folder}/laid_out", "test": f"{folder}/laid_out"}
        dedup = {"use": "exact", "groups": [["f3"], ["f17", "f31"]]}
        registry |= {"dataset": laid_out, "preprocess": STEPS, "dedup": dedup}
        registry["reader"] = {"use": "local", "sessions": "whole"}
        stack = rp.load(registry)
        batch = next(iter(stack.loader(rank=0, world_size=1)))
        print(
            "transformed:", ", ".join(stack.schema.sparse_names[-3:]), "of", len(batch), "samples"
        )
        factor = batch.dedup.dedupe_factor("f3")
        print(f"{factor:.1f}x fewer ids of f3 are transformed than trained on")
        file = Path(folder, "program.json")
        file.write_text(stack.program().to_json())
        program = TransformProgram.from_json(file.read_text())
        program.check(stack.prepare().test.schema)
        print(f"the chain is {file.stat().st_size:,} bytes of JSON, {program.digest[:12]}")
