"""A loader in front of another one."""

from __future__ import annotations

from typing import Any

__all__ = ["WrappedLoader"]


class WrappedLoader:
    """A loader of which only what a class below it says differs from the loader behind it: whatever
    else that has, or is given, as `state_dict` or a number of its epoch, is its own. What it is
    given whose name begins with `_` is this one's.
    """

    _loader: Any

    def __len__(self) -> int:
        return len(self._loader)

    def __getattr__(self, name: str) -> Any:
        # What is copied or unpickled asks before it has a loader.
        if name.startswith("__") or "_loader" not in self.__dict__:
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        return getattr(self._loader, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("_"):
            super().__setattr__(name, value)
        else:
            setattr(self._loader, name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self._loader, name)
