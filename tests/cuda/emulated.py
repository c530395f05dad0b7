"""A device that says that it is cuda:0, and computes on the CPU.

    with EmulatedCuda() as device:
        ids = torch.arange(4, device="cuda")

Its tensors have their numbers in CPU memory, where operators of torch and fbgemm find them. But
they refuse what a GPU's refuse: `.numpy()`, their address, and an operator on them and on a tensor
of the CPU. What a GPU would have the processor wait for is counted, by the line of ours that asks.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from recd_plugins.compat.pytorch import TorchDispatchMode, pytree

__all__ = ["EmulatedCuda", "held", "on_device"]

CUDA = torch.device("cuda", 0)
OURS = tuple(str(Path(__file__).parents[2] / folder) for folder in ("src", "plugins", "tests"))
WAITS = {
    "aten::_local_scalar_dense": "item",
    "aten::_unique2": "unique",
    "aten::bincount": "bincount",
    "aten::equal": "equal",
    "aten::masked_select": "masked_select",
    "aten::nonzero": "nonzero",
    "aten::unique_consecutive": "unique",
    "aten::unique_dim": "unique",
    "fbgemm::jagged_index_select": "size of the result",
    "fbgemm::jagged_index_select_2d_forward_v2": "size of the result",
}
"""Operators whose result has a size, or is a number, that the device alone knows."""
TABLES = "fbgemm::split_embedding"
"""Operators of fbgemm's tables, which a test leaves on the CPU."""
COPIES = ("aten::_to_copy", "aten::copy_")


class OnDevice(Tensor):
    """A tensor of that device; `held` has its numbers."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> OnDevice:
        outline = torch.empty_strided(
            held.shape, held.stride(), dtype=held.dtype, device=torch.device("meta")
        )
        made: OnDevice = Tensor._make_subclass(cls, outline)
        made.held = held
        return made

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return CUDA

    @property
    def is_cuda(self) -> bool:  # type: ignore[override]
        return True

    @property
    def is_meta(self) -> bool:  # type: ignore[override]
        return False

    def numpy(self, *, force: bool = False) -> Any:
        raise TypeError("can't convert cuda:0 device type tensor to numpy")

    def data_ptr(self) -> int:
        raise TypeError("the address of a tensor of cuda:0 is of no use on the CPU")

    def untyped_storage(self) -> torch.UntypedStorage:
        return self.held.untyped_storage()

    def storage_offset(self) -> Any:
        return self.held.storage_offset()

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def cpu(self, *_: Any, **__: Any) -> Tensor:
        return self.to("cpu")

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"OnDevice({self.held})"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """What happens outside of the device, and within its own operators, is not counted."""
        found = func(*pytree.tree_map(_numbers, args), **pytree.tree_map(_numbers, kwargs or {}))
        return pytree.tree_map(lambda one: OnDevice(one) if isinstance(one, Tensor) else one, found)


def _numbers(value: Any) -> Any:
    return value.held if isinstance(value, OnDevice) else value


def held(value: Tensor) -> Tensor:
    """The numbers of a tensor, on whichever device; for tests, which are not counted."""
    return value.held if isinstance(value, OnDevice) else value.detach()


def on_device(value: Tensor) -> Tensor:
    """A tensor of the device that has these very numbers: what is written to one is in both."""
    return OnDevice(value.detach())


class _Named(TorchFunctionMode):
    """Has `cuda` named with its number, where torch would ask the driver which one is meant; and
    what is made of Python's numbers made on the CPU, and copied."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args, kwargs = pytree.tree_map(_numbered, (args, dict(kwargs or {})))
        if func is Tensor.pin_memory:
            return args[0]
        if func is Tensor.new_tensor and isinstance(args[0], OnDevice):
            return torch.tensor(args[1], dtype=kwargs.get("dtype") or args[0].dtype).to(CUDA)
        if func in (Tensor.__getitem__, Tensor.__setitem__) and isinstance(args[0], OnDevice):
            places = [args[1]] if isinstance(args[1], list) else args[1]
            if isinstance(places, list | tuple):
                moved = (torch.tensor(o).to(CUDA) if isinstance(o, list) else o for o in places)
                args = (args[0], tuple(moved), *args[2:])
        if func in (torch.tensor, torch.as_tensor) and kwargs.get("device") is not None:
            device = kwargs.pop("device")
            return func(*args, **kwargs).to(device)
        return func(*args, **kwargs)


def _numbered(value: Any) -> Any:
    known = isinstance(value, str | torch.device) and str(value) == "cuda"
    return CUDA if known else value


class EmulatedCuda(TorchDispatchMode):
    """While entered, `cuda` is that device; what waits for it is counted."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: Counter[str] = Counter()
        """What was waited for, by file, function and kind."""
        self._patches = pytest.MonkeyPatch()
        self._named = _Named()

    def __enter__(self) -> EmulatedCuda:
        # torch would first look for a driver.
        self._patches.setattr(torch.cuda, "_lazy_init", lambda: None)
        self._patches.setattr(torch.cuda, "current_stream", lambda *_: self)
        super().__enter__()
        self._named.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._named.__exit__(*error)
        super().__exit__(*error)
        self._patches.undo()

    def synchronize(self) -> None:
        """What has the processor wait for the device's one stream."""
        self.waits[f"{_asker()}: stream"] += 1

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        name = func._schema.name
        if name.startswith(TABLES):
            return func(*pytree.tree_map(_numbers, args), **pytree.tree_map(_numbers, kwargs))
        tensors = [one for one in pytree.tree_leaves((args, kwargs)) if isinstance(one, Tensor)]
        mine = {id(one.held): one for one in tensors if isinstance(one, OnDevice)}
        wanted = kwargs.get("device")
        there = bool(mine)
        if wanted is not None and torch.device(wanted).type != "cpu":
            kwargs["device"], there = torch.device("cpu"), True
        elif wanted is not None and name == "aten::_to_copy":
            there = False
        self._check(name, func, tensors)
        self._count(name, args, kwargs, tensors, there)
        own_args, own_kwargs = pytree.tree_map(_numbers, (args, kwargs))
        found = func(*own_args, **own_kwargs)

        def back(one: Any) -> Any:
            if not isinstance(one, Tensor):
                return one
            if id(one) in mine:
                return mine[id(one)]
            return OnDevice(one) if there else one

        return pytree.tree_map(back, found)

    def _check(self, name: str, func: Any, tensors: list[Tensor]) -> None:
        if name in COPIES or name.startswith("c10d::") or len(tensors) < 2:
            return
        elsewhere = [one for one in tensors if not isinstance(one, OnDevice) and one.dim()]
        if elsewhere and len(elsewhere) < len(tensors):
            raise RuntimeError(
                f"Expected all tensors to be on the same device, but {func} was given some of "
                f"cuda:0 and one of the CPU, of shape {list(elsewhere[0].shape)}"
            )

    def _count(self, name: str, args: Any, kwargs: Any, tensors: list[Tensor], there: bool) -> None:
        here = any(isinstance(one, OnDevice) for one in tensors)
        kind = WAITS.get(name) if here else None
        if name in ("aten::index", "aten::index_put_", "aten::index_put") and here:
            masks = [one for one in args[1] if one is not None and one.dtype == torch.bool]
            kind = "mask" if masks else None
        elif name == "aten::repeat_interleave" and here:
            given = kwargs.get("output_size", args[-1] if len(args) > 1 else None)
            kind = None if isinstance(given, int) else "repeat_interleave"
        elif name in COPIES and tensors:
            source = tensors[1] if name == "aten::copy_" else tensors[0]
            target = isinstance(tensors[0], OnDevice) if name == "aten::copy_" else there
            if isinstance(source, OnDevice) != target and not kwargs.get("non_blocking"):
                kind = "to the device" if target else "to the host"
        if kind is not None:
            self.waits[f"{_asker()}: {kind}"] += 1


def _asker() -> str:
    """The innermost line of the project, outside of this file, that is being run."""
    frame: Any = sys._getframe(2)
    while frame is not None:
        file = frame.f_code.co_filename
        if file.startswith(OURS) and file != __file__:
            return f"{Path(file).name} {frame.f_code.co_name}"
        frame = frame.f_back
    return "torch"
