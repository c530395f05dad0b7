"""A page to test: two made-up runs with all that runs record, and what commands print."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from recd_plugins.report.sources import Sources, read_sources
from recd_plugins.trainer.measure.breakdown import PARTS
from recd_plugins.trainer.measure.memory import OWNERS
from recd_scars.cache_curve import CacheCurve
from recd_scars.curve_source import of_law

GB = 1e9


def sources_of(folder: Path) -> Sources:
    """Of runs whose names are such as would break a page that does not escape them."""
    runs = [f"plain & <simple>={write_run(folder / 'a', 1.0)}", str(write_run(folder / "b", 0.4))]
    printed = {"plan.json": {"plan": "why", "tiers": tiers()}, "advice.json": advice()}
    printed |= {"stats.json": stats(), "curve.json": curve()}
    for name, values in printed.items():
        (folder / name).write_text(json.dumps(values))
    return read_sources([*runs, *(str(folder / name) for name in printed)])


def write_run(folder: Path, scale: float, *, ended: bool = True) -> Path:
    """A run of 60 steps; times and bytes go by `scale`."""
    folder.mkdir(parents=True)
    lines: list[dict[str, Any]] = []
    for step in range(10, 61, 10):
        loss = 0.6 - 0.1 * scale * step / 60
        metrics = {"loss": loss, "ne": 0.9, "auc": 0.6 + step / 600}
        rate = {"samples": 5120, "samples_per_second": 1000 / scale}
        lines.append({"kind": "train", "step": step, **metrics, **rate})
        lines.append({"kind": "cost", "step": step, **cost(scale)})
        lines.append({"kind": "repeats", "step": step, "groups": [GROUP, OTHER_GROUP]})
        lines.append({"kind": "test", "step": step, **metrics, "samples": 100})
        bins = [[i / 20, min(1.0, i / 20 * scale), 5.0] for i in range(20)]
        lines.append({"kind": "calibration", "step": step, "labels": {"click": bins}})
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "registry.yaml").write_text("model: {use: dlrm}  # <b>\n")
    environment = {"begun": "2026-01-01 00:00 UTC", "ranks": 2, "ranks_per_node": 1}
    environment |= {"backend": "gloo", "device": "CPU", "cores": 2, "versions": {"torch": "2"}}
    files: dict[str, Any] = {
        "plan": {"plan": "as cheap as can be", "tiers": tiers() if scale < 1 else None},
        "environment": environment,
        "timeline": {"ranks": [timeline(scale), timeline(0.9 * scale)]},
    }
    if ended:
        files["summary"] = {
            "samples_per_second": 1000 / scale,
            "cost": cost(scale),
            "parts_ms": {part: 10 * scale * n for n, part in enumerate(PARTS, 1)},
            "forecasts": forecasts(),
        }
    for name, values in files.items():
        (folder / f"{name}.json").write_text(json.dumps(values))
    return folder


def cost(scale: float) -> dict[str, Any]:
    way = {"ids": 2e5 * scale, "forward": 3e6 * scale, "backward": 3e6 * scale}
    return {
        "steps": 10,
        "step_ms": 50 * scale,
        "data_wait": 0.05 * scale,
        "dedupe_factor": 4.2,
        "peak_memory_mib": 700 * scale,
        "traffic": {"all_to_all": way, "all_reduce": {"backward": 1e6}, "send": {"forward": 2e5}},
        "reading_ms": {"I/O": 1.0, "decode": 20.0 * scale, "gather": 9.0, "hand over": 0.1},
        "by_rank": {"step_ms": [50 * scale] * 2, "wait_ms": [1.0, 4.0]},
        "sent": [[2e6, 1e6], [1.5e6, 2.5e6]],
        "memory_mib": {owner: [10.0 * n, 12.0 * n] for n, owner in enumerate(OWNERS, 1)},
    }


GROUP = {"features": {"history": 6.5, "clicks": 4.1}, "samples": 512, "unique": 90,
         "copies": [[1, 10], [2, 20], [5, 30], [10, 31]]}  # fmt: skip
OTHER_GROUP = {**GROUP, "features": {"a_feature_whose_name_is_as_long_as_names_get": 1.2}}


def timeline(scale: float) -> dict[str, Any]:
    ends = [scale * 5.0 * n for n in range(len(PARTS) + 1)]
    parts = zip(PARTS, ends[:-1], ends[1:], strict=True)
    flights = [["all_to_all", ends[1], ends[4]], ["all_reduce", ends[2], ends[3]]]
    return {"ms": ends[-1], "thread": [list(one) for one in parts], "collectives": flights}


def forecasts() -> list[dict[str, Any]]:
    one = {"what": "bytes of collectives, a rank and step (all_to_all)", "unit": "bytes"}
    one |= {"forecast": 1000.0, "interval": None, "fact": 1900.0, "note": "cluster the table"}
    share = {"what": "table_of_a_long_name: lookups that replicated serves, sketched: no interval"}
    share |= {"unit": "share", "forecast": 0.5, "interval": [0.4, 0.6], "fact": 0.55, "note": ""}
    return [one, share, {**one, "what": "hot", "unit": "batches", "forecast": None}]


def tiers() -> dict[str, Any]:
    """As `PlanReport.values` has them."""
    plans = {"torchrec": 12.0, "row_wise": 11.9, "row_wise_coalesced": 8.0, "plan": 3.0}
    links = ("a2a_global", "a2a_intra", "a2a_cross", "ar_global", "ar_cross")

    def tier(rows: int, of: float) -> dict[str, Any]:
        return {"rows": rows, "share": of, "memory": 1e5, "ms": 1.0, "interval": [of, of]}

    table = {"replicated": tier(100, 0.6), "per_node": tier(300, 0.2), "row_wise": tier(9600, 0.2)}
    table["coverage"] = [[10**n, 0.25 * n] for n in range(5)]  # type: ignore[assignment]
    return {
        "ms": plans,
        "memory": {name: 1e6 * (13 - ms) for name, ms in plans.items()},
        "exchanged": {name: 1e5 * ms for name, ms in plans.items()},
        "bytes_by_collective": {
            name: {link: 1e4 * ms * n for n, link in enumerate(links)} for name, ms in plans.items()
        },
        "frontier": [[1e6 * n, 12 / (n + 1)] for n in range(11)],
        "tables": {"items": table, "a_table_of_a_long_name_indeed": table},
    }


def advice() -> dict[str, Any]:
    """As `RegistryAdvice.summary` has it."""
    outlook = {"ms": 34.4, "samples_per_second": 29_800.0, "between_nodes": 1e6, "memory": GB}
    outlook["ms_by_part"] = {"fixed": 1.0, "dense": 3.0, "a2a_global": 30.0, "dense_reduce": 1.0}  # type: ignore[assignment]
    outlook["ms_hidden"] = {"exchange": 0.6}  # type: ignore[assignment]
    addition = {"name": "coalescing", "verdict": "kept", "why": "it pays", "outlook": outlook}
    return {
        "objective": "samples_per_second",
        "baseline": outlook,
        "additions": [addition, {**addition, "name": "hot batches", "outlook": None}],
        "advised": {"additions": ["coalescing"], **outlook, "ms": 10.0},
    }


def stats() -> dict[str, Any]:
    factor = {"formula": 6.0, "measured": 6.2}
    feature = {"name": "history", "kind": "user", "length": 20.0, "exact": 0.85, "partial": 0.9}
    sizes = {"mean": 6.8, "max": 112, "histogram": [[1, 5], [3, 40], [7, 30], [112, 1]]}
    features = [{**feature, "clustered": {"dedupe_factor": factor}}]
    return {
        "path": "clicks",
        "stats": {"sessions": {"samples_per_session": {"table": sizes}, "features": features}},
    }


def curve() -> dict[str, Any]:
    source = of_law("zipf:1.05", 100_000, 5.0, 64)
    drawn = CacheCurve.of(source.rows, width=64, batch_size=1024)
    return {"source": source.name, **drawn.values()}


class Tags(HTMLParser):
    """Sees that all that opens closes; collects what a page would fetch, and its figures."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.fetched: list[str] = []
        self.ids: list[str] = []
        self.images: list[str] = []
        """What stands for each drawing where nobody sees it."""
        self.tables = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        if tag not in ("meta", "br", "link"):
            self.open.append(tag)
        self.tables += tag == "table"
        if "id" in found:
            self.ids.append(found["id"] or "")
        if found.get("role") == "img":
            self.images.append(found["aria-label"] or "")
        for name in ("src", "href", "xlink:href"):
            value = found.get(name)
            if value and not value.startswith(("#", "data:")):
                self.fetched.append(value)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in ("meta", "br", "link"):
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag
