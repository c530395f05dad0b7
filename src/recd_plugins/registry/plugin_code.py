"""The code of a stranger's plugin, by its digest. If it has changed since it wrote tables, they
may have other rows than it would write now; a process with other code makes other batches; and a
resumed run trains with other code than before."""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from recd_plugins.compat.packages import DISTRIBUTION
from recd_plugins.hooks.markers import PROJECT
from recd_plugins.hooks.plugin_files import files_of
from recd_plugins.notices import Outdated
from recd_plugins.registry.choice import Choice
from recd_plugins.registry.outdated import first_outdated
from recd_plugins.registry.registry import Registry
from recd_plugins.storage.whole_file import write_whole

__all__ = [
    "NOTE",
    "changed_code",
    "code_of",
    "is_by_other_code",
    "made_by",
    "note_code",
    "outdated_by_code",
]

NOTE = "code.sha256"
"""The file beside the tables of a plugin: the digest of its code when it wrote them."""


def made_by(choice: Choice) -> str:
    """The provider of a choice with its version; for a stranger's plugin, also the digest of its
    code."""
    digest = _digest_of(choice)
    return f"{choice.provider}" if digest is None else f"{choice.provider} (code {digest[:12]})"


def code_of(registry: Registry) -> dict[str, str]:
    """The digests of the code of the strangers' plugins that fill a registry's slots, by plugin."""
    chosen = [choice for choices in registry.choices.values() for choice in choices]
    chosen += [choice.others for choice in chosen if choice.others is not None]
    digests = {choice.provider.plugin: _digest_of(choice) for choice in chosen}
    return {plugin: digest for plugin, digest in digests.items() if digest is not None}


def changed_code(before: Mapping[str, str], now: Mapping[str, str]) -> Iterator[str]:
    """A line for each plugin whose code has changed."""
    for plugin, digest in now.items():
        if before.get(plugin, digest) != digest:
            yield f"the code of {plugin} has changed: what it says now holds from here on"


def note_code(choice: Choice, folder: Path) -> None:
    """Record beside tables that are about to be written which code writes them."""
    if (digest := _digest_of(choice)) is not None:
        with contextlib.suppress(OSError):  # tables can be written all the same
            write_whole(folder / NOTE, digest)


def is_by_other_code(choice: Choice, folder: Path) -> bool:
    """Whether the content of a folder was begun by other code of a stranger's plugin, or by
    unknown code."""
    if (digest := _digest_of(choice)) is None:
        return False
    try:
        return (folder / NOTE).read_text() != digest
    except OSError:
        return True


def outdated_by_code(choices: Sequence[Choice], folders: Sequence[Path]) -> Iterator[Outdated]:
    """A notice of the first of the choices whose code has changed since its tables were written, if
    any."""

    def changed(choice: Choice, folder: Path) -> str | None:
        try:
            noted = (folder / NOTE).read_text()
        except OSError:
            return None  # there is no record
        if noted == _digest_of(choice):
            return None
        return f"the code of {choice.provider} has changed since it wrote {folder}"

    return first_outdated(choices, folders, NOTE, changed)


def _digest_of(choice: Choice) -> str | None:
    """The digest of a plugin's files, with those of what builds its record, or of the archives that
    they are in; None for our plugins, whose version is enough."""
    build = choice.record.build
    while isinstance(build, partial):
        build = build.func
    if choice.provider.distribution == DISTRIBUTION:
        return None
    names: dict[Path, str] = {}
    for module in (sys.modules.get(choice.provider.module), inspect.getmodule(build)):
        if module is None or module.__name__.partition(".")[0] == PROJECT:
            continue
        if (found := files_of(module)) is None:
            continue
        if archive := next(filter(Path.is_file, (found.folder, *found.folder.parents)), None):
            names[archive] = ""  # a zip, or a wheel
        else:
            names |= {one: f"{one.relative_to(found.folder)}\n" for one in found.files}
    digest = hashlib.sha256()
    try:
        for file, name in names.items():
            digest.update(name.encode())
            digest.update(file.read_bytes())
    except OSError:  # it was removed after it was imported
        return None
    return digest.hexdigest() if names else None
