"""The control groups of this process, which set the limits of a container or a cluster's job."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

__all__ = ["own_groups", "text_of"]


def own_groups(root: Path, controller: str) -> Iterator[Path]:
    """The folder of this process's group, and those of the groups that it is in: of either version,
    of which the first has a tree for each controller.

    A container may see its own group as the topmost.
    """
    groups: dict[str, str] = {}
    for line in text_of(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        groups |= dict.fromkeys(controllers.split(","), path)
    for tree in ("", controller):
        group = PurePosixPath(groups.get(tree, "/"))
        for one in (group, *group.parents):
            yield root / "sys/fs/cgroup" / tree / str(one).lstrip("/")


def text_of(path: Path) -> str:
    """The text of a file of the system; nothing where there is none to read."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
