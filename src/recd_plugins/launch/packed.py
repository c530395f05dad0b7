"""Calls and their results between a process and its ranks, pickled: both run on this machine,
and no other process has the pipe.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import io
import pickle
import sys
from types import FunctionType
from typing import TYPE_CHECKING, Any, TypeGuard

if TYPE_CHECKING:
    import numpy.typing as npt
    from torch import Tensor

__all__ = ["ModuleFiles", "pack", "unpack"]

ARRAYS = frozenset(
    ["bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64"]
)
"""The number types that torch and numpy both have."""

ModuleFiles = dict[str, tuple[str, str]]
"""The name of a module as it is pickled, to the module to import and its file on this machine."""


def pack(value: object) -> tuple[bytes, ModuleFiles]:
    """`value` pickled, and where the modules come from that it refers to."""
    file = io.BytesIO()
    pickler = _Pickler(file)
    pickler.dump(value)
    return file.getvalue(), pickler.modules


def unpack(payload: bytes, modules: ModuleFiles) -> Any:
    """The value that was packed; the modules that it refers to are imported from their files."""
    return _Unpickler(payload, modules).load()


class _Pickler(pickle.Pickler):
    """Notes which file each module comes from that it refers to. Tensors go as arrays of numpy,
    which takes a tenth of the time that torch's own way takes for small ones."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self.modules: ModuleFiles = {}

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, type | FunctionType):
            if "<" in value.__qualname__:
                raise pickle.PicklingError(
                    f"{value.__qualname__} of {value.__module__} cannot be sent to a rank: "
                    "define it at the top of its module."
                )
            module = sys.modules.get(value.__module__)
            file = getattr(module, "__file__", None)
            if file is not None:
                spec = getattr(module, "__spec__", None)
                name = "__mp_main__" if value.__module__ == "__main__" else value.__module__
                self.modules[value.__module__] = (spec.name if spec else name, file)
        elif _is_array(value):
            return _tensor_of, (value.numpy(),)
        return NotImplemented


def _is_array(value: Any) -> TypeGuard[Tensor]:
    """Whether it is a tensor of which an array of numpy says all."""
    torch = sys.modules.get("torch")
    return (
        torch is not None
        and type(value) is torch.Tensor
        and value.is_cpu
        and value.layout == torch.strided
        and value.is_contiguous()
        and not value.requires_grad
        and not value.is_neg()
        and not value.__dict__
        and str(value.dtype).removeprefix("torch.") in ARRAYS
    )


def _tensor_of(array: npt.NDArray[Any]) -> Tensor:
    import torch

    return torch.from_numpy(array)


class _Unpickler(pickle.Unpickler):
    """Imports modules that only pytest knew how to import, by their file."""

    def __init__(self, payload: bytes, modules: ModuleFiles) -> None:
        super().__init__(io.BytesIO(payload))
        self._modules = modules

    def find_class(self, module: str, name: str) -> Any:
        if module in self._modules:
            module, file = self._modules[module]
            _import(module, file)
        return super().find_class(module, name)


def _import(name: str, file: str) -> None:
    """Import module `name` from `file`: by its name if that leads there, else by its path."""
    if name not in sys.modules and name != "__mp_main__":
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    if getattr(sys.modules.get(name), "__file__", None) == file:
        return
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
