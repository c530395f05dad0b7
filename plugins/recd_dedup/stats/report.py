"""Counts to what is shown: values for machines, tables for the console, figures to look at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from recd_dedup.stats.figures import draw_duplicates, draw_samples_per_session
from recd_dedup.stats.measure import Measured
from recd_dedup.stats.together import agreement, groups
from recd_plugins.api.data import StatsReport, StatsTable

__all__ = ["report"]

PAPER = {
    "samples a session, in the table": "16.5",
    "the most that a session has": "1,000+",
    "samples a session, in a batch": "1.15",
    "exact duplicates, mean of the features": "80.0%",
    "exact duplicates, by bytes": "81.6%",
    "partial duplicates, mean of the features": "83.9%",
    "partial duplicates, by bytes": "89.4%",
    "the most there could be, (S - 1) / S": "93.9%",
}


def report(measured: Measured) -> StatsReport:
    values = _values(measured)
    return StatsReport(
        values=values,
        tables=[_summary(values), _duplicates(values), _dedupe(values), _groups(values)],
        figures={
            "samples_per_session": partial(draw_samples_per_session, values),
            "duplicates": partial(draw_duplicates, values),
        },
    )


def _values(measured: Measured) -> dict[str, Any]:
    sessions, schema = measured.sessions, measured.table.schema
    features = [
        {
            "name": feature.name,
            "kind": feature.kind,
            "length": found.length,
            "stay": found.stay,
            "exact": found.exact,
            "partial": found.partial,
            "stored": measured.stored.dedupe(feature.name),
            "clustered": measured.coalesced.dedupe(feature.name),
        }
        for feature in schema.sparse
        for found in [sessions.features[feature.name]]
    ]
    counts = list(sessions.features.values())
    ids = max(1, sum(one.ids for one in counts))
    shares = agreement(sessions.changes)
    return {
        "rows": measured.table.num_rows,
        "measured_rows": measured.rows,
        "is_clustered": measured.clustered,
        "batch_size": measured.config.batch_size,
        "samples_per_session": {
            "table": sessions.sizes.values(),
            "batch_stored": measured.stored.sizes.values(),
            "batch_clustered": measured.coalesced.sizes.values(),
        },
        "duplicates": {
            "exact": _mean([one.exact for one in counts]),
            "exact_by_bytes": sum(one.exact_ids for one in counts) / ids,
            "partial": _mean([one.partial for one in counts]),
            "partial_by_bytes": sum(one.partial_ids for one in counts) / ids,
            "most": 1 - 1 / sessions.sizes.mean,
        },
        "features": features,
        "together": {
            "groups": groups(schema.sparse_names, shares, measured.config.together),
            "features": list(schema.sparse_names),
            "agreement": shares.tolist(),
        },
    }


def _mean(shares: Sequence[float]) -> float:
    return sum(shares) / max(1, len(shares))


def _summary(values: Mapping[str, Any]) -> StatsTable:
    sizes, shares = values["samples_per_session"], values["duplicates"]
    found = [
        f"{sizes['table']['mean']:,.2f}",
        f"{sizes['table']['max']:,}",
        f"{sizes['batch_stored']['mean']:,.2f}",
        *(
            f"{shares[share]:.1%}"
            for share in ("exact", "exact_by_bytes", "partial", "partial_by_bytes", "most")
        ),
    ]
    notes = []
    if values["measured_rows"] < values["rows"]:
        notes.append(
            f"Of {values['rows']:,} rows, {values['measured_rows']:,} were measured: whole "
            "sessions, and batches evenly spaced."
        )
    return StatsTable(
        title=f"{values['measured_rows']:,} samples of {sizes['table']['sessions']:,} sessions, "
        f"batches of {values['batch_size']:,}",
        columns=["", "here", "RecD's paper"],
        rows=[
            [what, here, paper] for (what, paper), here in zip(PAPER.items(), found, strict=True)
        ],
        notes=notes,
    )


def _duplicates(values: Mapping[str, Any]) -> StatsTable:
    return StatsTable(
        title="features: what repeats within a session",
        columns=["feature", "kind", "l(f)", "d(f)", "exact", "partial"],
        rows=[
            [
                feature["name"],
                feature["kind"],
                f"{feature['length']:,.1f}",
                f"{feature['stay']:.3f}",
                f"{feature['exact']:.1%}",
                f"{feature['partial']:.1%}",
            ]
            for feature in values["features"]
        ],
        notes=[
            "l(f): ids a sample. d(f): lists that stay, from sample to sample of a session.",
            "exact: samples whose list an earlier one of their session has, empty ones too.",
            "partial: ids that an earlier sample of the session has.",
        ],
    )


def _dedupe(values: Mapping[str, Any]) -> StatsTable:
    rows = []
    for feature in values["features"]:
        clustered, stored = feature["clustered"], feature["stored"]["dedupe_factor"]
        length, factor = clustered["dedupe_len"], clustered["dedupe_factor"]
        rows.append(
            [
                feature["name"],
                f"{length['formula']:,.0f}",
                f"{length['measured']:,.0f}",
                f"{factor['formula']:.2f}",
                f"{factor['measured']:.2f}",
                f"{stored['formula']:.2f}",
                f"{stored['measured']:.2f}",
            ]
        )
    state = "is" if values["is_clustered"] else "is not"
    return StatsTable(
        title="features: what an IKJT of a batch keeps, by the paper's formula and measured",
        columns=["feature", "len", "measured", "factor", "measured", "stored", "measured"],
        rows=rows,
        notes=[
            "len, factor: DedupeLen (ids kept) and DedupeFactor, clustered by session.",
            f"stored: DedupeFactor in the table's own order, which {state} clustered.",
            "Measured ones count equal lists of different sessions too.",
        ],
    )


def _groups(values: Mapping[str, Any]) -> StatsTable:
    found = [group for group in values["together"]["groups"] if len(group) > 1]
    return StatsTable(
        title="features that change together, from sample to sample",
        columns=["group", "features"],
        rows=[[str(number), ", ".join(group)] for number, group in enumerate(found, start=1)],
        notes=[] if found else ["None do."],
    )
