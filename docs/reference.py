"""Writes docs/slots.md and docs/train.md from the docstrings: `python docs/reference.py`.

tests/docs/test_reference.py holds the files to what this prints.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from recd_plugins import slots
from recd_plugins.describe import nested, options_of
from recd_plugins.hooks.manager import Catalog
from recd_plugins.hooks.specs import HOOKS
from recd_plugins.registry.settings import TrainSettings

HERE = Path(__file__).parent
BUILDS = {
    "log": slots.LogStore,
    "dataset": slots.Dataset,
    "etl": slots.Etl,
    "stats": slots.TableStats,
    "reader": slots.Reader,
    "dedup": slots.DedupConverter,
    "preprocess": slots.Preprocess,
    "sharding": slots.Planner,
    "cache": slots.Planner,
    "pooling": slots.Pooling,
}
FORM = {
    "one": "`{slot}: {{use: name, option: value}}`",
    "many": "`{slot}: [{{use: name, option: value}}, ...]`, in order",
    "by feature": "`{slot}: {{feature: {{use: name, option: value}}}}`; `*` for every feature",
}


def slots_page() -> str:
    catalog = Catalog(["recd_dlrm", "recd_dedup", "recd_flexshard", "recd_scars"], HERE)
    return "\n".join(_slots_page(catalog)) + "\n"


def train_page() -> str:
    return "\n".join(["# The `train` key", "", *_options(TrainSettings)]) + "\n"


def _slots_page(catalog: Catalog) -> Iterator[str]:
    yield "# Slots"
    yield ""
    yield "Written by `python docs/reference.py` from the docstrings; `recd plugins` says the same."
    for slot, record in slots.SLOTS.items():
        yield f"\n## {slot}\n"
        yield inspect.getdoc(record) or ""
        yield ""
        (hook,) = (name for name, of in HOOKS.items() if of == slot)
        yield f"- hook: `{hook}()`, which returns `{record.__name__}` records"
        yield f"- registry.yaml: {FORM[record.fills].format(slot=slot)}"
        if slot in BUILDS:
            doc = (inspect.getdoc(BUILDS[slot]) or "").split("\n")[0]
            yield f"- builds `{BUILDS[slot].__name__}`: {doc}"
            yield from _methods(BUILDS[slot])
        for claim in catalog.of(slot):
            yield f"\n### {slot}: {claim.record.name}\n"
            yield f"{claim.record.summary} From `{claim.provider.plugin}`.\n"
            yield from _options(claim.record.config)


def _methods(kind: type) -> Iterator[str]:
    for name, member in vars(kind).items():
        public = not name.startswith("_") or name in ("__call__", "__iter__", "__len__")
        if public and inspect.isfunction(member):
            signature = str(inspect.signature(member)).replace("'", "")
            signature = re.sub(r"<function (\w+) at 0x\w+>", r"\1", signature)
            doc = (inspect.getdoc(member) or "").split("\n")[0]
            yield f"    - `{name}{signature}`" + (f": {doc}" if doc else "")


def _options(config: type[Any]) -> Iterator[str]:
    options = options_of(config)
    if not options:
        yield "No options."
        return
    yield "| option | takes | default | |"
    yield "|---|---|---|---|"
    for option in options:
        takes, default = option.takes.replace("|", "or"), option.default
        shown = default if default in ("", "required", "...") else f"`{default}`"
        yield f"| `{option.name}` | {takes} | {shown} | {option.doc} |"
    for part in nested(config):
        yield f"\n`{part.__name__}`: {inspect.getdoc(part)}\n"
        yield from _options(part)


if __name__ == "__main__":
    (HERE / "slots.md").write_text(slots_page())
    (HERE / "train.md").write_text(train_page())
