"""The control groups of this process, which set the limits of a container or a cluster's job."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

__all__ = ["own_groups", "text_of"]


def own_groups(root: Path, controller: str) -> Iterator[Path]:
    """The folders of the control groups that this process is in, its own group first: of version 1,
    which has a tree for each controller, and of version 2.

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
    """The text of a file of the system; empty if there is none to read."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
