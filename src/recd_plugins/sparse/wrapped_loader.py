"""A loader in front of another one."""

from __future__ import annotations

from typing import Any

__all__ = ["WrappedLoader"]


class WrappedLoader:
    """Acts as the loader behind it, except for what a subclass defines. Every other attribute that
    is read or set, such as `state_dict` or the number of the epoch, is that of the loader behind
    it. Only an attribute whose name begins with `_` is set on this one.
    """

    _loader: Any

    def __len__(self) -> int:
        return len(self._loader)

    def __getattr__(self, name: str) -> Any:
        # An object that is being copied or unpickled has no loader yet.
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
