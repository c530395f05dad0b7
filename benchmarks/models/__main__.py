"""Print a model's registry at a scale: python -m benchmarks.models rm1 0.25 > rm1_small.yaml"""

from __future__ import annotations

import argparse
import sys

import yaml

from benchmarks.models import MODELS, SMALL, registry

if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.models")
    parser.add_argument("model", choices=MODELS)
    parser.add_argument("scale", type=float, nargs="?", default=SMALL)
    options = parser.parse_args()
    yaml.safe_dump(registry(options.model, options.scale), sys.stdout, sort_keys=False)
