"""A trainer's own batches, converted: as they are made, or as a loader yields them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from recd_plugins.data.transform import Conversion
from recd_plugins.sparse.own_batches import FeaturesOf, features_of, replaced

__all__ = ["ConvertedLoader", "Converting"]


class Converting:
    """Makes batches as `make_batch` does, with converted features in place of their KJT.

    The batch that was made stays as it is: a dataset may yield it again.
    """

    def __init__(
        self,
        convert: Conversion,
        make_batch: Callable[..., Any] | None = None,
        features: FeaturesOf | None = None,
    ) -> None:
        self._convert = convert
        self._make_batch = make_batch
        self._features = features

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        batch = args[0] if self._make_batch is None else self._make_batch(*args, **kwargs)
        features = features_of(batch, self._features)
        return replaced(batch, features, self._convert(features))


class ConvertedLoader:
    """A loader whose batches are converted; whatever else it has, as `state_dict`, is its own."""

    def __init__(self, loader: Iterable[Any], convert: Callable[[Any], Any]) -> None:
        self._loader = loader
        self._convert = convert

    def __iter__(self) -> Iterator[Any]:
        return map(self._convert, self._loader)

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "_loader":
            raise AttributeError(name)
        return getattr(self._loader, name)
