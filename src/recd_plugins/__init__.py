"""recd-plugins: standard TorchRec in the middle, plugins at its edges.

    import recd_plugins as rp
    stack = rp.load("registry.yaml")

Importing the package loads no plugin, and neither torch nor torchrec nor pluggy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from recd_plugins.hooks.markers import hookimpl
    from recd_plugins.stack import Stack, load

__all__ = ["Stack", "__version__", "hookimpl", "load"]

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name in ("Stack", "load"):
        from recd_plugins import stack

        return getattr(stack, name)
    if name == "hookimpl":
        from recd_plugins.hooks.markers import hookimpl

        return hookimpl
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
