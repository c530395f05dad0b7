"""What a setting of `make test-rounding` changes on this machine: printed before the tests run
under it, since what changes nothing shows nothing.

    python tests/rounded.py MKL_CBWR=COMPATIBLE
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping

import numpy as np


def digests() -> dict[str, str]:
    """Of results that processors compute otherwise, by what computes them."""
    import torch

    draw = np.random.default_rng(0)
    found = {}

    def add(what: str, values: Iterable[np.ndarray]) -> None:
        found[what] = hashlib.sha256(b"".join(one.tobytes() for one in values)).hexdigest()

    numbers = draw.random(4096)
    singles = torch.from_numpy(numbers.astype(np.float32))
    square, large = singles.view(64, 64), torch.from_numpy(draw.random(1 << 20, np.float32))
    drawn = torch.randn(4096, generator=torch.Generator().manual_seed(0))
    elementwise = [singles.exp(), singles.sigmoid(), singles.log(), singles.view(64, 64).softmax(1)]
    add("torch's matrices", [(square @ square).numpy()])
    add("torch's functions", [one.numpy() for one in elementwise])
    add("torch's sums", [singles.sum().numpy(), large.sum().numpy(), large.norm().numpy()])
    add("torch's draws", [drawn.numpy()])
    matrix = numbers.reshape(64, 64)
    add("numpy's matrices", [matrix @ matrix])
    add("numpy's functions", [np.exp(numbers), np.log(numbers), numbers**1.3, np.log1p(numbers)])
    add("numpy's sums", [numbers.sum(), numbers.astype(np.float32).sum()])
    libm = [math.exp, math.log1p, math.sin, math.tanh]
    add("the C library's functions", [np.array([f(one) for f in libm for one in numbers])])
    return found


def under(setting: Mapping[str, str]) -> dict[str, str]:
    """`digests`, in a process of its own with these variables of the environment."""
    done = subprocess.run(
        [sys.executable, __file__], env=os.environ | setting, capture_output=True, check=True
    )
    return dict(json.loads(done.stdout))


def main(settings: list[str]) -> None:
    if not settings:
        print(json.dumps(digests()))
        return
    own, other = under({}), under(dict(one.split("=", 1) for one in settings))
    changed = ", ".join(what for what in own if own[what] != other[what])
    print(" ".join(settings), "changes here:", changed or "nothing that was looked at", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
