"""Tables that were written from something that has changed since."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from recd_plugins.notices import Outdated
from recd_plugins.registry.choice import Choice

__all__ = ["first_outdated"]


def first_outdated(
    choices: Sequence[Choice],
    folders: Sequence[Path],
    note: str,
    changed: Callable[[Choice, Path], str | None],
) -> Iterator[Outdated]:
    """A notice of the first of the choices for whose folder something has `changed`, in words, if
    any; all later tables were made from that folder's. The `note` in the folder shows the
    change."""
    for at, (choice, folder) in enumerate(zip(choices, folders, strict=True)):
        if (why := changed(choice, folder)) is None:
            continue
        behind = " ".join(str(one) for one in folders[at:])
        yield Outdated(
            what=choice.what,
            why=f"{why}, whose rows are taken as they are",
            cure=f"Have them written anew, `rm -r {behind}`; or, where the change makes no other "
            f"rows, `rm {folder / note}`.",
        )
        return
