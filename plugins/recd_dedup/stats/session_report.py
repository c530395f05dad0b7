"""The report of counts: values for programs, tables for the console, and the paper's figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from recd_dedup.stats.measure import SessionCounts
from recd_dedup.stats.repeats import agreement, groups
from recd_plugins.api import so_many
from recd_plugins.api.data import StatsReport, StatsTable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

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


def report(measured: SessionCounts) -> StatsReport:
    values = _values(measured)
    return StatsReport(
        values=values,
        tables=[_summary(values), _duplicates(values), _dedupe(values), _groups(values)],
        figures={
            "samples_per_session": partial(_draw_samples_per_session, values),
            "duplicates": partial(_draw_duplicates, values),
        },
    )


def _values(measured: SessionCounts) -> dict[str, Any]:
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
            "clustered": measured.clustered.dedupe(feature.name),
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
        "is_clustered": measured.was_clustered,
        "batch_size": measured.config.batch_size,
        "samples_per_session": {
            "table": sessions.sizes.values(),
            "batch_stored": measured.stored.sizes.values(),
            "batch_clustered": measured.clustered.sizes.values(),
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
            f"Of {so_many(values['rows'], 'row')}, {values['measured_rows']:,} were measured: "
            "whole sessions, and batches evenly spaced."
        )
    return StatsTable(
        title=f"{so_many(values['measured_rows'], 'sample')} of "
        f"{so_many(sizes['table']['sessions'], 'session')}, batches of {values['batch_size']:,}",
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


INK, FAINT = "#2b2b2b", "#d9d9d9"
DASHED = (0, (4, 3))
KINDS = {"user": "#3b6ea5", "item": "#d08a3c"}
NAMED = 3.0
"""The least width at which a bar has its name, in % of all."""


def _draw_samples_per_session(values: Mapping[str, Any], figure: Figure) -> None:
    """Figure 3: sessions by their number of samples, in the table and in a batch."""
    sizes, batch = values["samples_per_session"], values["batch_size"]
    figure.set_size_inches(9, 3.6)
    left, right = figure.subplots(1, 2, sharey=True)
    shown = (
        (left, sizes["table"], "in the table"),
        (right, sizes["batch_stored"], f"in a batch of {batch:,}, as stored"),
    )
    # Both sides have the same bins, so that they can be compared.
    edges = _edges(max(found["max"] for _, found, _ in shown))
    for axes, found, where in shown:
        counts, weights = np.array(found["histogram"], np.float64).T
        axes.hist(
            counts,
            bins=edges,
            weights=weights / weights.sum() * 100,
            color=KINDS["user"],
            edgecolor="white",
            linewidth=0.5,
        )
        axes.axvline(found["mean"], color=INK, linewidth=1, linestyle=DASHED)
        axes.set_xscale("log", base=2)
        axes.set_xticks(4.0 ** np.arange(np.log(edges[-1]) // np.log(4) + 1))
        axes.set_yscale("log")
        axes.xaxis.set_major_formatter(lambda x, _: f"{x:g}")
        axes.set_xlabel("samples of a session")
        axes.set_xlim(edges[0], edges[-1])
        _title(axes, f"{where}\nmean {found['mean']:.2f} (dashed), most {found['max']:,}")
        _bare(axes)
    left.yaxis.set_major_formatter(lambda y, _: f"{y:g}")
    left.set_ylabel("sessions (%)")


def _draw_duplicates(values: Mapping[str, Any], figure: Figure) -> None:
    """Figure 4: the share of duplicates of each feature, exact and partial.

    A bar is as wide as its feature's share of all ids.
    """
    features: Sequence[Mapping[str, Any]] = values["features"]
    figure.set_size_inches(9, 4.2)
    for axes, share, what in zip(
        figure.subplots(1, 2, sharey=True),
        ("exact", "partial"),
        ("exact: the same list", "partial: the same ids"),
        strict=True,
    ):
        ordered = sorted(features, key=lambda feature: -feature[share])
        _draw_shares(axes, ordered, share)
        mean, by_bytes = values["duplicates"][share], values["duplicates"][f"{share}_by_bytes"]
        _title(axes, f"{what}\nmean {mean:.1%}, by bytes {by_bytes:.1%}")
        axes.axhline(values["duplicates"]["most"] * 100, color=INK, linewidth=1, linestyle=DASHED)
    figure.axes[0].set_ylabel("duplicates within a session (%)")
    _legend(figure, [kind for kind in KINDS if any(one["kind"] == kind for one in features)])


def _draw_shares(axes: Axes, features: Sequence[Mapping[str, Any]], share: str) -> None:
    widths = np.array([max(feature["length"], 1e-9) for feature in features])
    widths *= 100 / widths.sum()
    lefts = np.cumsum(widths) - widths
    axes.bar(
        lefts,
        [feature[share] * 100 for feature in features],
        widths,
        align="edge",
        color=[KINDS[feature["kind"]] for feature in features],
        edgecolor="white",
        linewidth=0.6,
    )
    for feature, start, width in zip(features, lefts, widths, strict=True):
        if width >= NAMED:
            height = feature[share] * 100
            inside = height >= 50
            axes.text(
                start + width / 2,
                height - 2 if inside else height + 2,
                feature["name"],
                rotation=90,
                ha="center",
                va="top" if inside else "bottom",
                color="white" if inside else INK,
                fontsize=8,
            )
    axes.set_xlim(0, 100)
    axes.set_ylim(0, 100)
    axes.set_xlabel("features, by their share of the bytes (%)")
    _bare(axes)


def _edges(largest: int) -> NDArray[np.float64]:
    """The edges of bins of whole numbers, two bins per doubling."""
    steps = np.arange(2 * np.ceil(np.log2(largest + 1)) + 1)
    edges: NDArray[np.float64] = np.unique(np.rint(2 ** (steps / 2))) - 0.5
    return edges


def _title(axes: Axes, text: str) -> None:
    axes.set_title(text, fontsize=10, loc="left", color=INK)


def _legend(figure: Figure, kinds: Sequence[str]) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    figure.legend(
        handles=[
            *(Patch(color=KINDS[kind], label=f"{kind} features") for kind in kinds),
            Line2D(
                [], [], color=INK, linewidth=1, linestyle=DASHED, label="(S \N{MINUS SIGN} 1) / S"
            ),
        ],
        loc="outside lower center",
        ncols=len(kinds) + 1,
        frameon=False,
        fontsize=9,
    )


def _bare(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(INK)
    axes.grid(axis="y", color=FAINT, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(colors=INK, labelsize=9)
