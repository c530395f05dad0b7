"""What a run has left in its folder so far, read back: its lines of metrics as curves, its summary,
and what it was made of."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recd_plugins.errors import DataError

__all__ = ["Curve", "RunLog", "read_run"]

KEPT = ("summary", "plan", "timeline", "environment")
"""The names of a run's files apart from its metrics and its registry, without their ending."""


@dataclass(frozen=True, kw_only=True)
class Curve:
    """One number over the steps of a run; steps at which it is not defined are left out."""

    steps: Sequence[int]
    values: Sequence[float]


@dataclass(frozen=True, kw_only=True)
class RunLog:
    """What a run has left in its folder so far."""

    name: str
    lines: Sequence[Mapping[str, Any]]
    """The lines of metrics.jsonl, of the kinds train, test, cost and profile."""
    summary: Mapping[str, Any]
    """Empty until the run has ended."""
    plan: Mapping[str, Any]
    """The plan as `recd plan --json` prints it, and where TorchRec placed the tables."""
    timeline: Sequence[Mapping[str, Any]]
    """A profiled step of each rank; empty if none was profiled."""
    environment: Mapping[str, Any]
    """Versions, and the machine."""
    registry: str
    """The text of registry.yaml; empty if the folder has none."""
    cut_off: bool = False
    """Whether the run has finished, and the last line of its metrics.jsonl has no end."""

    def curve(self, kind: str, value: str) -> Curve:
        """The curve of a value in the lines of `kind`: curve("test", "auc")."""
        lines = [
            line for line in self.lines if line["kind"] == kind and line.get(value) is not None
        ]
        return Curve(steps=[line["step"] for line in lines], values=[line[value] for line in lines])


def read_run(folder: Path, name: str | None = None) -> RunLog:
    """The run in `folder`, whether it has ended or not."""
    file = folder / "metrics.jsonl"
    if not file.exists():
        why = "holds no metrics.jsonl, so no run" if folder.exists() else "there is no such path"
        raise DataError(
            f"{folder}: {why}. Name a folder to which a run went (train.run), by default "
            "runs/latest."
        )
    registry = folder / "registry.yaml"
    try:
        every = file.read_text(encoding="utf-8").splitlines(keepends=True)
        lines = [
            _line(line, number)
            for number, line in enumerate(every, start=1)
            if line.endswith("\n")  # the last one may still be being written
        ]
        kept = {one: _kept(folder / f"{one}.json") for one in KEPT}
        chosen = registry.read_text(encoding="utf-8") if registry.exists() else ""
    except (ValueError, RecursionError) as error:
        raise DataError(
            f"{folder}: a file of the run is damaged: {error}. Restore it from a copy of the run, "
            "or leave the run out."
        ) from error
    return RunLog(
        name=name or folder.name,
        lines=lines,
        summary=kept["summary"],
        plan=kept["plan"],
        timeline=kept["timeline"].get("ranks", ()),
        environment=kept["environment"],
        registry=chosen,
        cut_off=bool(kept["summary"].get("finished") and every and not every[-1].endswith("\n")),
    )


def _line(line: str, number: int) -> Mapping[str, Any]:
    try:
        values = json.loads(line)
    except ValueError as error:
        raise ValueError(f"line {number} of metrics.jsonl is not JSON ({error})") from error
    if not isinstance(values, dict) or not {"kind", "step"} <= values.keys():
        raise ValueError(f"line {number} of metrics.jsonl has no `kind` and `step` of metrics")
    return values


def _kept(file: Path) -> Mapping[str, Any]:
    """The values in a file of a run; empty if an older version, which lacked the file, made the
    run."""
    try:
        values = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    except ValueError as error:
        raise ValueError(f"{file.name} is not JSON ({error})") from error
    if not isinstance(values, dict):
        raise ValueError(f"{file.name} holds no mapping")
    return values
