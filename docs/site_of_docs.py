"""Builds the documentation as a site: `make docs`, or `python docs/site_of_docs.py TARGET`.

Pages lie in the repository as they lie in the site, so that a link holds in both. Files that pages
link to and that are no pages become pages that show them; folders become lists of what is in them.
A link that leads nowhere ends the build.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from runpy import run_path
from typing import Any

import yaml

__all__ = ["NAVIGATION", "pages", "stage"]

ROOT = Path(__file__).parents[1]
NAVIGATION: dict[str, list[str]] = {
    "Tutorials": [
        "own-data",
        "daily",
        "tutorial",
        "own-trainer",
        "cluster",
        "notebooks",
        "install",
    ],
    "How to": [
        *("training", "cuda", "plugins", "tier_planners", "advise", "schema", "storage", "service"),
        *("report", "schedulers", "kafka", "spark", "ray", "checkpoints", "export"),
    ],
    "Papers": ["recd", "flexshard", "scars", "dsi", "together"],
    "Reference": [
        *("slots", "train", "commands", "messages", "formats", "metrics", "api"),
        *("glossary", "compatibility", "reliability"),
    ],
    "Explanation": ["architecture", "tiers", "scale", "limits", "compared"],
}
"""The parts of the site, by what a reader wants; every page of docs/ is in one of them."""
WRITTEN = {"messages": "messages_page"}
"""Pages that functions of reference.py write for the site alone."""
AROUND = ("RESULTS.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
"""Pages that lie in the root of the repository."""
LINK = re.compile(r"(\]\()([^)\s#:]+)(#[^)\s]*)?(\))")
AS_THEY_ARE = (".md", ".png", ".svg")
SEARCH = "docs/iframe-worker.js"
"""What the search of a site on a disk needs; its name tells mkdocs-material that it is there."""
LANGUAGES = {".py": "python", ".yaml": "yaml", ".yml": "yaml", ".sh": "bash", ".toml": "toml"}


def pages() -> list[Path]:
    """Every page, relative to the repository."""
    found = [Path("README.md"), *map(Path, AROUND)]
    found += [path.relative_to(ROOT) for path in sorted(ROOT.glob("docs/**/*.md"))]
    return found


def stage(folder: Path) -> None:
    """Write what the site is built of: the pages, and pages of what they link to."""
    linked: dict[Path, None] = {}
    for page in pages():
        relink = partial(_relinked, page=page, linked=linked)
        _write(folder / page, LINK.sub(relink, (ROOT / page).read_text()))
    for name, page_of in WRITTEN.items():
        written = run_path(str(ROOT / "docs" / "reference.py"))[page_of]()
        _write(folder / "docs" / f"{name}.md", written)
    for target in linked:
        _write(folder / _page_of(target), _shown(target))
    for file in (*ROOT.glob("docs/pictures/*"), ROOT / SEARCH):
        copy = folder / file.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, copy)


def _relinked(link: re.Match[str], page: Path, linked: dict[Path, None]) -> str:
    """The link as it is in the site; what it leads to is noted in `linked`."""
    opening, path, anchor, closing = link.groups()
    target = (ROOT / page.parent / path).resolve()
    if not target.is_relative_to(ROOT) or not target.exists() or target.suffix in AS_THEY_ARE:
        return link[0]  # another site's, a page's or a picture's: mkdocs checks those
    linked[target.relative_to(ROOT)] = None
    depth = "../" * (len(page.parts) - 1)
    return f"{opening}{depth}{_page_of(target.relative_to(ROOT))}{anchor or ''}{closing}"


def _page_of(target: Path) -> Path:
    if (ROOT / target).is_dir():
        return target / "index.md"
    return target.with_name(f"{target.name}.md")


def _shown(target: Path) -> str:
    path = ROOT / target
    if path.is_dir():
        return "\n".join([f"# {target}", "", *_listed(path)])
    if path.suffix == ".ipynb":
        return "\n\n".join(_cells(path)) + "\n"
    language = LANGUAGES.get(path.suffix, "text")
    return f"# {target}\n\n`````{language}\n{path.read_text()}`````\n"


def _cells(notebook: Path) -> Iterator[str]:
    for cell in json.loads(notebook.read_text())["cells"]:
        text = "".join(cell["source"])
        yield f"```python\n{text}\n```" if cell["cell_type"] == "code" else text


def _listed(folder: Path) -> Iterator[str]:
    known = pages()
    for path in sorted(folder.iterdir()):
        if path.relative_to(ROOT) in known:
            title = path.read_text().splitlines()[0].removeprefix("# ")
            yield f"- [{path.stem.split('-')[0]}: {title}]({path.name})"
        elif not path.name.startswith(("_", ".")):
            yield f"- {path.name}"


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def _settings(source: Path, target: Path) -> dict[str, Any]:
    parts = [{title: [f"docs/{name}.md" for name in names]} for title, names in NAVIGATION.items()]
    parts[-1]["Explanation"].append("docs/decisions/index.md")
    return {
        "site_name": "recd-plugins",
        "docs_dir": str(source),
        "site_dir": str(target),
        "use_directory_urls": False,  # so that it can be read from a disk
        "theme": {
            "name": "material",
            "font": False,  # no network
            "features": ["navigation.tabs", "navigation.top", "content.code.copy"],
            "palette": [
                {
                    "media": f"(prefers-color-scheme: {name})",
                    "scheme": scheme,
                    "primary": "indigo",
                    "toggle": {"icon": icon, "name": f"to {other}"},
                }
                for name, scheme, icon, other in (
                    ("light", "default", "material/weather-night", "dark"),
                    ("dark", "slate", "material/weather-sunny", "light"),
                )
            ],
        },
        "plugins": ["search", "offline"],  # a site on a disk is searched too
        "extra": {"polyfills": [SEARCH]},
        "markdown_extensions": [
            "attr_list",
            "md_in_html",
            "tables",
            {"toc": {"permalink": True}},
            "pymdownx.highlight",
            "pymdownx.superfences",
        ],
        "validation": {
            "links": {"not_found": "warn", "unrecognized_links": "warn", "anchors": "warn"},
            "nav": {"omitted_files": "ignore"},
        },
        "nav": [
            {"recd-plugins": "README.md"},
            *parts,
            {"Project": list(AROUND)},
        ],
    }


def build(target: Path) -> None:
    """The site, in a folder."""
    with tempfile.TemporaryDirectory(prefix="recd-site-") as name:
        source = Path(name) / "pages"
        stage(source)
        settings = Path(name) / "mkdocs.yml"
        settings.write_text(yaml.safe_dump(_settings(source, target.resolve()), sort_keys=False))
        command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "-f", settings]
        quiet = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
        if subprocess.run(command, env=quiet).returncode:
            raise SystemExit(
                "error: the site was not built; mkdocs says above which page is wrong."
            )
    print(f"{target}/index.html")


if __name__ == "__main__":
    build(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "build" / "site")
