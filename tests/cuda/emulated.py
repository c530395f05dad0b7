"""A device that says that it is cuda:0, and computes on the CPU.

    with EmulatedCuda() as device:
        ids = torch.arange(4, device="cuda")

Its tensors have their numbers in CPU memory, where operators of torch and fbgemm find them. But
they refuse what a GPU's refuse: `.numpy()`, their address, and an operator on them and on a tensor
of the CPU. What a GPU would have the processor wait for is counted, by the line of ours that asks.

Its streams launch in the order of the program. It notes what would be wrong if each went at its own
pace: a tensor that a stream reads without having waited for the one that made it, and memory that
goes back to the stream it was made on while another may still read it (`record_stream`).
"""

from __future__ import annotations

import sys
import weakref
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from recd_plugins.compat.pytorch import TorchDispatchMode, pytree, without_memory
from recd_plugins.embedding import unexpanded
from recd_plugins.embedding.unexpanded import Unexpanded

__all__ = ["CUDA", "EmulatedCuda", "held", "on_device"]

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
SIZES = {
    "fbgemm::jagged_index_select": 3,
    "fbgemm::jagged_index_select_2d_forward_v2": 4,
}
"""The argument by which those are told the size."""
TABLES = "fbgemm::split_embedding"
"""Operators of fbgemm's tables, which a test leaves on the CPU."""
COPIES = ("aten::_to_copy", "aten::copy_")


class Stream:
    """A stream: how far it has come, and how far it knows that others have."""

    def __init__(self, device: EmulatedCuda) -> None:
        self._emulated = device
        self.device = CUDA
        self.seen: Counter[Stream] = Counter()

    def now(self) -> int:
        """Launch something: the time on this stream."""
        self.seen |= self._emulated.known
        self.seen[self] += 1
        return self.seen[self]

    def wait_stream(self, other: Stream) -> None:
        self.seen |= other.seen

    def synchronize(self) -> None:
        """Have the processor wait: whatever is launched from now on comes after."""
        self._emulated.waits[f"{_asker()}: stream"] += 1
        self._emulated.known |= self.seen


@dataclass(eq=False)
class Memory:
    """The memory of some tensors of the device, views of each other."""

    made_on: Stream
    made_by: str
    tensors: int = 0
    written: tuple[Stream, int] | None = None
    """The stream that wrote it last, and when."""
    used: Counter[Stream] = field(default_factory=Counter)
    """When each stream used it last."""
    recorded: set[Stream] = field(default_factory=set)

    def read_too_early(self, stream: Stream) -> bool:
        return self.written is not None and stream.seen[self.written[0]] < self.written[1]

    def freed_too_early(self) -> bool:
        """The allocator hands it on once those streams are past it that it knows to use it."""
        return any(
            all(one.seen[stream] < time for one in {self.made_on} | self.recorded)
            for stream, time in self.used.items()
        )


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
        if EmulatedCuda.entered is not None:
            EmulatedCuda.entered.hold(made)
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

    def record_stream(self, stream: Any) -> None:
        if EmulatedCuda.entered is not None:
            EmulatedCuda.entered.memory[_place(self)].recorded.add(stream)

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


def _without_memory(kind: type[Tensor], like: Tensor, num_rows: int) -> Any:
    """As `compat.pytorch.without_memory`, which would ask torch for a device that is not there."""
    return without_memory(kind, held(like), num_rows)


class _Named(TorchFunctionMode):
    """Has `cuda` named with its number, where torch would ask the driver which one is meant; and
    what is made of Python's numbers made on the CPU, and copied."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.device and len(args) == 2:  # it is given the number
            return func(*args)
        args, kwargs = pytree.tree_map(_numbered, (args, dict(kwargs or {})))
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

    entered: EmulatedCuda | None = None

    def __init__(self) -> None:
        super().__init__()
        self.waits: Counter[str] = Counter()
        """What was waited for, by file, function and kind."""
        self.launches: Counter[str] = Counter()
        """The operators that were launched, by file and function: not views, nor empty tensors."""
        self.races: Counter[str] = Counter()
        """What is read, or handed on, too early: by the lines that made it and that read it, or the
        one that made it."""
        self.known: Counter[Stream] = Counter()
        """How far each stream was when the processor waited for it last."""
        self.stream = Stream(self)
        """The current one."""
        self.memory: dict[int, Memory] = {}
        self._patches = pytest.MonkeyPatch()
        self._named = _Named()

    def __enter__(self) -> EmulatedCuda:
        # torch would first look for a driver.
        self._patches.setattr(torch.cuda, "_lazy_init", lambda: None)
        self._patches.setattr(torch.cuda, "current_device", lambda: 0)
        self._patches.setattr(torch.cuda, "current_stream", lambda *_: self.stream)
        self._patches.setattr(torch.cuda, "Stream", lambda *_, **__: Stream(self))
        self._patches.setattr(torch.cuda, "stream", self._on)
        self._patches.setattr(torch.cuda, "get_rng_state", lambda *_: torch.get_rng_state())
        self._patches.setattr(
            torch.cuda, "set_rng_state", lambda state, *_: torch.set_rng_state(state)
        )
        self._patches.setattr(unexpanded, "without_memory", _without_memory)
        for name in ("device", "is_cuda"):
            self._patches.setattr(Unexpanded, name, property(attrgetter(f"unique.{name}")))
        self._patches.setattr(Tensor, "record_stream", lambda *_: None)  # of the CPU's
        self._patches.setattr(Tensor, "pin_memory", lambda tensor, *_: tensor)
        EmulatedCuda.entered = self
        super().__enter__()
        self._named.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._named.__exit__(*error)
        super().__exit__(*error)
        EmulatedCuda.entered = None
        self._patches.undo()

    @contextmanager
    def _on(self, stream: Stream | None) -> Iterator[None]:
        before = self.stream
        self.stream = stream or before
        try:
            yield
        finally:
            self.stream = before

    def hold(self, tensor: OnDevice) -> None:
        """Note who has memory, until the last tensor of it goes."""
        place = _place(tensor)
        memory = self.memory.setdefault(place, Memory(self.stream, _asker()))
        memory.tensors += 1
        weakref.finalize(tensor, self._let_go, place).atexit = False

    def _let_go(self, place: int) -> None:
        memory = self.memory[place]
        memory.tensors -= 1
        if not memory.tensors:
            del self.memory[place]
            if EmulatedCuda.entered is self and memory.freed_too_early():
                self.races[f"{memory.made_by}: handed on while it is read"] += 1

    def _use(self, func: Any, read: list[OnDevice], made: list[OnDevice]) -> None:
        """Note what an operator reads and makes, on the current stream; a view does neither."""
        if any(
            one.alias_info is not None and not one.alias_info.is_write for one in _returns(func)
        ):
            return
        if "empty" not in func._schema.name:
            self.launches[_asker()] += 1
        stream, time = self.stream, self.stream.now()
        for tensor in read:
            memory = self._memory_of(tensor)
            if memory.read_too_early(stream):
                self.races[f"{memory.made_by}: read by {_asker()} before it is there"] += 1
            memory.used[stream] = time
        # What is written comes first, in operators of torch as in collectives.
        in_place = func._schema.name.endswith("_") or func._schema.is_mutable
        held_before = {_place(one) for one in read}
        written = [one for one in made if _place(one) not in held_before]
        for tensor in [*written, *(read[:1] if in_place else ())]:
            memory = self._memory_of(tensor)
            memory.used[stream], memory.written = time, (stream, time)

    def _memory_of(self, tensor: OnDevice) -> Memory:
        return self.memory.setdefault(_place(tensor), Memory(self.stream, "before"))

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
        made: list[OnDevice] = []

        def back(one: Any) -> Any:
            if not isinstance(one, Tensor):
                return one
            if id(one) in mine:
                return mine[id(one)]
            if not there:
                return one
            made.append(OnDevice(one))
            return made[-1]

        handed = pytree.tree_map(back, found)
        if mine or made:
            self._use(func, [*mine.values()], made)
        return handed

    def _check(self, name: str, func: Any, tensors: list[Tensor]) -> None:
        of_cpu = any(not isinstance(one, OnDevice) for one in tensors)
        if of_cpu and name.startswith("c10d::") and _asker().startswith("peers.py"):
            raise RuntimeError(f"NCCL takes no tensor of the CPU, as {func} was given")
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
        told = SIZES.get(name)
        if told is not None and args[told:] not in ((), (None,)):
            kind = None
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
            self.known |= self.stream.seen


def _place(tensor: OnDevice) -> int:
    """What tells memory apart."""
    return int(tensor.held.untyped_storage()._cdata)


def _returns(func: Any) -> Any:
    return func._schema.returns


def _asker() -> str:
    """The innermost line of the project, outside of this file, that is being run."""
    frame: Any = sys._getframe(2)
    while frame is not None:
        file = frame.f_code.co_filename
        if file.startswith(OURS) and file != __file__:
            return f"{Path(file).name} {frame.f_code.co_name}"
        frame = frame.f_back
    return "torch"
