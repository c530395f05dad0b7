"""The paper's three models and a DLRM, as registries at full size, and one knob that makes them
smaller.

`registry("rm1")` is rm1.yaml as it stands; `registry("rm1", 1 / 4)` has every size times 1/4:
how many element-wise and dense features there are, ids a sample, rows of a table, D, widths of
the MLPs, samples a batch. Sequences and their groups all stay. A step costs about scale^4.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from recd_dlrm.datasets.sessions.dataset import SessionsConfig
from recd_plugins.config import parse

__all__ = ["MODELS", "SMALL", "groups", "registry", "sessions"]

MODELS = ("rm1", "rm2", "rm3", "dlrm")
SMALL = 1 / 4
"""The scale for two cores."""

Registry = dict[str, Any]


def registry(name: str, scale: float = 1.0) -> Registry:
    """What `recd_plugins.load` takes: a model with all its sizes times `scale`."""
    values = copy.deepcopy(_read(name))
    if scale == 1:
        return values
    dataset, model, train = values["dataset"], values["model"], values["train"]
    dataset["dense"] = _times(dataset["dense"], scale)
    dataset["features"] = list(_features(dataset["features"], scale))
    model["embedding_dim"] = _times(model["embedding_dim"], scale, multiple=8)  # of 2 heads, too
    for layers in ("bottom", "top"):
        model[layers] = [_times(width, scale) for width in model[layers]]
    train["batch_size"] = _times(train["batch_size"], scale)
    return values


def sessions(
    name: str, scale: float, *, samples: int, seed: int = 0, **options: Any
) -> SessionsConfig:
    """A model's table, as the `sessions` dataset's config."""
    settings = registry(name, scale)["dataset"] | {"samples": samples, "seed": seed, **options}
    del settings["use"]
    return parse(SessionsConfig, settings, f"{name}: dataset")


def groups(values: Registry) -> tuple[tuple[str, ...], ...]:
    """The feature groups that are deduplicated: user features, those that change together as one.

    What `groups: auto` finds at the registry's own S; fixed, for other S.
    """
    found: dict[str, list[str]] = {}
    for feature in values["dataset"]["features"]:
        if feature["kind"] == "user":
            found.setdefault(feature.get("group", feature["name"]), []).append(feature["name"])
    return tuple(map(tuple, found.values()))


@cache
def _read(name: str) -> Registry:
    """A file of a thousand lines, which takes YAML 0.15 s."""
    values: Registry = yaml.safe_load((Path(__file__).parent / f"{name}.yaml").read_text())
    return values


def _features(features: list[Mapping[str, Any]], scale: float) -> Iterator[dict[str, Any]]:
    """All sequences, and of the other user and item features the first ones."""
    others = {
        kind: [f["name"] for f in features if f["kind"] == kind and not f.get("sequence")]
        for kind in ("user", "item")
    }
    kept = {name for names in others.values() for name in names[: _times(len(names), scale)]}
    for feature in features:
        if not feature.get("sequence") and feature["name"] not in kept:
            continue
        smaller = {"length": max(1.0, feature["length"] * scale)}
        smaller["num_ids"] = _times(feature["num_ids"], scale)
        if "max_length" in feature:
            smaller["max_length"] = _times(feature["max_length"], scale)
        yield {**feature, **smaller}


def _times(size: int, scale: float, multiple: int = 1) -> int:
    """`size` times `scale`, at least 1, rounded to a multiple."""
    return max(1, round(size * scale / multiple)) * multiple
