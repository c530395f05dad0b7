"""Write requirements/cpu.txt and cuda.txt anew: `python requirements/refresh.py [cpu] [cuda]`.

pip's resolver is asked once, here, in a dry run; whoever installs uses `--no-deps`, because
torchrec names the CUDA fbgemm even where the CPU one is right. To move the trio, change
TRIO (fbgemm's minor is torch's minus 5, torchrec's equals fbgemm's), run this, run the tests.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
TRIO = {
    "cpu": ("torch==2.13.0", "fbgemm-gpu-cpu==1.8.0", "torchrec==1.8.0"),
    # `===` takes the registry's CUDA build, never a local +cpu one.
    "cuda": ("torch===2.13.0", "fbgemm-gpu==1.8.0", "torchrec==1.8.0"),
}


def resolve(requirements: list[str]) -> dict[str, str]:
    """Name to version of everything that pip would install."""
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed"]
    command += ["--quiet", "--report", "-", *requirements, "-r", str(HERE / "base.in")]
    report = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    return {
        item["metadata"]["name"]: item["metadata"]["version"].split("+")[0]
        for item in report["install"]
    }


def refresh(target: str) -> None:
    torch, fbgemm, torchrec = TRIO[target]
    versions = resolve([torch, fbgemm])
    name, _, version = torchrec.partition("==")
    versions[name] = version
    pins = sorted(f"{name.lower()}=={version}" for name, version in versions.items())
    lines = [
        f"# Written by requirements/refresh.py {target}; install with: pip install --no-deps -r",
        *(torch if pin.startswith("torch==") else pin for pin in pins),
    ]
    (HERE / f"{target}.txt").write_text("\n".join(lines) + "\n")
    print(f"{target}.txt: {len(pins)} packages")


if __name__ == "__main__":
    for target in sys.argv[1:] or TRIO:
        refresh(target)
