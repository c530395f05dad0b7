"""Whole program: what is compiled ahead is all that reading and deduplicating a table takes."""

from __future__ import annotations

from pathlib import Path

from forked import run_module

DEDUPLICATES = """
import sys
from contextlib import closing
from numba.core.dispatcher import Dispatcher
from recd_plugins.data.compiled import compile_kernels
from recd_plugins.stack import load

compile_kernels()

def compiled():
    rooms = "recd_plugins.sparse", "recd_plugins.data"
    modules = [one for name, one in sys.modules.items() if name.startswith(rooms)]
    found = [one for module in modules for one in vars(module).values()]
    kernels = [one for one in found if isinstance(one, Dispatcher)]
    return {(str(one), str(own)) for one in kernels for own in one.signatures}

FEATURES = [
    {"name": "user", "num_ids": 100, "skew": 1.0, "kind": "user", "stay": 0.9},
    {"name": "history", "num_ids": 100, "skew": 1.0, "kind": "user", "stay": 0.9,
     "sequence": True, "length": 4.0},
    {"name": "item", "num_ids": 100, "skew": 1.0, "kind": "item"},
]
ahead = compiled()
stack = load({
    "plugins": ["recd_dlrm", "recd_dedup"],
    "folder": sys.argv[1],
    "dataset": {
        "use": "sessions", "samples": 16_384, "samples_per_session": 4, "features": FEATURES,
    },
    "model": {"use": "sequence_dlrm", "embedding_dim": 4, "bottom": [4], "top": [4]},
    "dedup": {"use": "exact", "groups": [["user", "history"], ["item"]]},
    "train": {"batch_size": 16},
})
stack.prepare()
with closing(stack.read(0, 1)) as loader:
    batch = next(iter(loader))
print(type(batch.dedup).__name__, *sorted(compiled() - ahead), sep="\\n")
"""


def test_what_is_compiled_ahead_is_all_that_deduplicating_a_table_takes(tmp_path: Path) -> None:
    (tmp_path / "deduplicates.py").write_text(DEDUPLICATES)
    done = run_module("deduplicates", str(tmp_path), folder=tmp_path)
    assert done.code == 0, done.err
    assert done.out.splitlines() == ["InverseKeyedJaggedTensor"]
