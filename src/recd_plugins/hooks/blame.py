"""The plugin whose code an error came from that nobody expected: its frames say so.

Most calls of what a record built name the record themselves. A forward, a loader's iteration or an
optimizer's step is called by torch, deep below the host.
"""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import TYPE_CHECKING

from recd_plugins.compat.packages import OURS

if TYPE_CHECKING:
    from recd_plugins.hooks.manager import Provider

__all__ = ["blamed", "remember"]

_imported: dict[Path, tuple[str, Provider | None]] = {
    Path(__file__).resolve().parents[1]: ("recd_plugins", None)
}
"""By its file, or the folder of its package, each plugin that this process has imported; and the
host. Those that come with it have no provider: what they raise is a defect of ours."""


def remember(name: str, plugin: object, provider: Provider) -> None:
    """Know from now on which files are those of a plugin: a module, or an object in one."""
    module = inspect.getmodule(plugin) or inspect.getmodule(type(plugin))
    if module is not None and module.__file__ is not None:
        file = Path(module.__file__).resolve()
        whole = file.parent if file.name == "__init__.py" else file
        _imported[whole] = (name, None if provider.distribution == OURS else provider)


def blamed(error: BaseException) -> str | None:
    """The message of an error that a stranger's plugin raised, or what it called that is neither
    ours nor a plugin's; none of any other error."""
    frames, at = [], error.__traceback__
    while at is not None:
        frames.append(at)
        at = at.tb_next
    for frame in reversed(frames):
        code = frame.tb_frame.f_code
        file = Path(code.co_filename).resolve()
        found = next((_imported[one] for one in (file, *file.parents) if one in _imported), None)
        if found is None:
            continue
        name, provider = found
        if provider is None:
            return None
        what = str(error).partition("\nException raised from ")[0].strip()
        return (
            f"plugin {name!r} ({provider}) raised {type(error).__name__} in {code.co_qualname} "
            f"({file.name}:{frame.tb_lineno}){f': {what}' if what else ''}. Run with --debug for "
            "its traceback."
        )
    return None
