"""Draws README's picture, what is swapped where: `python docs/picture.py`.

The names are those that the plugins of this repository provide, and tests/docs/test_reference.py
holds the files to what this prints.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

from recd_plugins.hooks.catalog import Catalog

HERE = Path(__file__).parent
PLUGINS = ("recd_dlrm", "recd_dedup", "recd_dsi", "recd_flexshard", "recd_scars")
STAGES: Mapping[str, tuple[str, ...]] = {
    "logs and tables": ("log", "dataset", "etl"),
    "batches": ("reader", "dedup", "preprocess"),
    "model": ("model", "pooling"),
    "plan": ("sharding", "cache"),
    "training": ("optimizer", "callbacks"),
}
"""The slots of a stage, in the order in which a sample meets them."""
TORCHREC = (
    "Parquet",
    "KeyedJaggedTensor",
    "EmbeddingBagCollection",
    "ShardingPlan",
    "DistributedModelParallel, TrainPipelineSparseDist",
)
"""What stands below each stage, and is not forked."""
WIDTH, STAGE, GAP, TOP = 1000, 186, 12, 76
CHIP, LINE, MOST = 20, 24, 5
"""The height of a name, from one to the next, and how many a slot shows."""


@dataclass(frozen=True, kw_only=True)
class Theme:
    """Colours for one background."""

    text: str
    faint: str
    box: str
    border: str
    plugins: tuple[str, ...]
    """Of the host, then of PLUGINS."""


THEMES = {
    "light": Theme(
        text="#1f2328",
        faint="#59636e",
        box="#f6f8fa",
        border="#d1d9e0",
        plugins=("#e4e8ed", "#cfe3ff", "#c9efd2", "#ffe7b8", "#ffd5cc", "#e6d8fb"),
    ),
    "dark": Theme(
        text="#e6edf3",
        faint="#9198a1",
        box="#161b22",
        border="#3d444d",
        plugins=("#343b45", "#12396b", "#15512a", "#5c4400", "#6b2417", "#43297a"),
    ),
}


def picture(theme: Theme) -> str:
    """The whole SVG."""
    provided = dict(_provided())
    stages = list(_stages(provided, theme))
    height = max(bottom for _, bottom in stages)
    body = [part for part, _ in stages]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height + 116}" '
            'font-family="system-ui, sans-serif" font-size="12" role="img">',
            "<title>registry.yaml fills slots around an unchanged TorchRec job</title>",
            *_legend(theme),
            *body,
            *_torchrec(height + 20, theme),
            "</svg>",
            "",
        ]
    )


def _provided() -> Iterator[tuple[str, list[tuple[str, int]]]]:
    """The names of each slot's records, with their plugin's place in PLUGINS; 0 is the host."""
    catalog = Catalog(PLUGINS, HERE)
    plugins = {name: number for number, name in enumerate(PLUGINS, 1)}
    for slots in STAGES.values():
        for slot in slots:
            yield (
                slot,
                [
                    (one.record.name, plugins.get(one.provider.plugin, 0))
                    for one in catalog.of(slot)
                ],
            )


def _stages(
    provided: Mapping[str, list[tuple[str, int]]], theme: Theme
) -> Iterator[tuple[str, int]]:
    """Each stage with its slots, and where it ends."""
    for number, (stage, slots) in enumerate(STAGES.items()):
        x, y = 10 + number * (STAGE + GAP), TOP
        parts = [_text(x + STAGE / 2, y - 12, stage, theme.text, anchor="middle", bold=True)]
        if number:
            middle = x - GAP / 2
            parts.append(f'<path d="M{middle - 4} {y - 21} l8 5 l-8 5 z" fill="{theme.faint}"/>')
        for slot in slots:
            names = provided[slot]
            shown = names if len(names) <= MOST else names[: MOST - 1]
            rows = max(1, len(shown) + (len(names) > len(shown)))
            parts.append(
                f'<rect x="{x}" y="{y}" width="{STAGE}" height="{28 + rows * LINE}" rx="8" '
                f'fill="{theme.box}" stroke="{theme.border}"/>'
            )
            parts.append(_text(x + 10, y + 18, f"{slot}:", theme.faint, mono=True))
            for row, (name, plugin) in enumerate(shown):
                top = y + 26 + row * LINE
                parts.append(
                    f'<rect x="{x + 8}" y="{top}" width="{STAGE - 16}" height="{CHIP}" rx="5" '
                    f'fill="{theme.plugins[plugin]}"/>'
                )
                parts.append(_text(x + 16, top + 14, name, theme.text, mono=True))
            if rest := len(names) - len(shown):
                parts.append(
                    _text(x + 16, y + 40 + len(shown) * LINE, f"and {rest} more", theme.faint)
                )
            elif not names:
                parts.append(_text(x + 16, y + 40, "yours", theme.faint))
            y += 28 + rows * LINE + 10
        yield "\n".join(parts), y


def _torchrec(y: float, theme: Theme) -> Iterator[str]:
    """What stays as it is."""
    yield (
        f'<rect x="10" y="{y}" width="{WIDTH - 20}" height="84" rx="8" fill="none" '
        f'stroke="{theme.faint}" stroke-dasharray="5 4"/>'
    )
    yield _text(WIDTH / 2, y + 24, "what stays as it is", theme.text, anchor="middle", bold=True)
    for number, words in enumerate(TORCHREC):
        x = 10 + number * (STAGE + GAP) + STAGE / 2
        for row, one in enumerate(words.split(", ")):
            yield _text(x, y + 48 + 18 * row, one, theme.faint, anchor="middle", mono=True)


def _legend(theme: Theme) -> Iterator[str]:
    yield _text(10, 24, "registry.yaml chooses:", theme.text, bold=True)
    x = 170
    for colour, name in zip(theme.plugins, ("the host", *PLUGINS), strict=True):
        yield f'<rect x="{x}" y="11" width="16" height="16" rx="4" fill="{colour}"/>'
        yield _text(x + 22, 24, name, theme.text, mono=True)
        x += 38 + 8 * len(name)
    yield _text(x, 24, "or a plugin of yours", theme.faint)


def _text(
    x: float,
    y: float,
    words: str,
    colour: str,
    *,
    anchor: str = "start",
    bold: bool = False,
    mono: bool = False,
) -> str:
    weight = ' font-weight="600"' if bold else ""
    family = ' font-family="ui-monospace, monospace" font-size="11"' if mono else ""
    return (
        f'<text x="{x:g}" y="{y:g}" fill="{colour}" text-anchor="{anchor}"{weight}{family}>'
        f"{escape(words)}</text>"
    )


def files() -> dict[Path, str]:
    """Each file and its text."""
    return {HERE / "pictures" / f"slots-{name}.svg": picture(one) for name, one in THEMES.items()}


if __name__ == "__main__":
    for path, text in files().items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
