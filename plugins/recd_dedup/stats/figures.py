"""The paper's figures 3 and 4, of any table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["draw_duplicates", "draw_samples_per_session"]

INK, FAINT = "#2b2b2b", "#d9d9d9"
DASHED = (0, (4, 3))
KINDS = {"user": "#3b6ea5", "item": "#d08a3c"}
NAMED = 3.0
"""A bar is named from this width on, in % of all."""


def draw_samples_per_session(values: Mapping[str, Any], figure: Figure) -> None:
    """Figure 3: sessions by their samples, in the table and in a batch."""
    sizes, batch = values["samples_per_session"], values["batch_size"]
    figure.set_size_inches(9, 3.6)
    left, right = figure.subplots(1, 2, sharey=True)
    shown = (
        (left, sizes["table"], "in the table"),
        (right, sizes["batch_stored"], f"in a batch of {batch:,}, as stored"),
    )
    # The same bins on both sides, so that they compare.
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


def draw_duplicates(values: Mapping[str, Any], figure: Figure) -> None:
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
    """Bins of whole numbers, two to each doubling."""
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
