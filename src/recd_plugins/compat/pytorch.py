"""torch's private names, all that we touch, each with the reason; as of torch 2.10 to 2.14."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Variable
from torch.autograd.profiler_util import _filter_name
from torch.distributed import PrefixStore, ProcessGroup, Store, get_process_group_ranks
from torch.distributed._shard._utils import narrow_tensor_by_index
from torch.distributed.checkpoint.filesystem import _StorageInfo as StoredBytes
from torch.distributed.constants import default_pg_timeout
from torch.distributed.distributed_c10d import (
    _get_default_store,
    _resolve_process_group,
    _world,
)
from torch.nn.parallel import DistributedDataParallel
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode
from torch.utils.data.dataloader import _BaseDataLoaderIter

__all__ = [
    "EagerDispatchMode",
    "StoredBytes",
    "TorchDispatchMode",
    "all_gather_single",
    "argument_names",
    "at_end_of_backward",
    "attends_rows",
    "attention_of_rows",
    "backend_of",
    "device_of",
    "first_step_in_parts",
    "flash_attention_on_cpu",
    "flash_attention_on_cpu_backward",
    "group_of_name",
    "is_innermost",
    "is_watched",
    "narrow_tensor_by_index",
    "nothing_on_stdout",
    "own_gloo",
    "own_group",
    "own_store",
    "pytree",
    "ranks_of",
    "recorded_events",
    "reduce_scatter_single",
    "running_backward",
    "schema_of",
    "unseen_by_checkpoints",
    "unseen_by_profilers",
    "was_written_to",
    "without_memory",
    "writes_to",
    "written_arguments",
    "yielded_by",
]

# `pytree` and `TorchDispatchMode` are torch's own answer to "take this apart" and "see each
# operator", documented and yet without a public module. `StoredBytes` says where torch's file
# storage put a tensor, and `narrow_tensor_by_index` cuts one as its planner asks.

flash_attention_on_cpu = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
"""What torch's public attention calls; it alone returns what its backward needs."""
flash_attention_on_cpu_backward = (
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
)
"""The backward of `flash_attention_on_cpu`."""


def attends_rows(values: Tensor) -> bool:
    """Whether `attention_of_rows` takes what layers make of such values, under autocast too."""
    if not values.is_cuda or torch.version.cuda is None:
        return False
    made = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else values.dtype
    if made == torch.bfloat16:  # Ampere is the first with kernels for it.
        return torch.cuda.get_device_capability(values.device) >= (8, 0)
    return made in (torch.float32, torch.float16)


def attention_of_rows(
    q: Tensor, k: Tensor, v: Tensor, bounds: tuple[Tensor, Tensor], longest: tuple[int, int]
) -> Tensor:
    """[m, H, E]: each of the queries [m, H, E] sees the keys of its own row, of all rows' keys and
    values [n, H, E]; `bounds`, int32, say where rows begin and end, in queries and in keys. There
    are fewer than 2**16 rows.

    What torch's public attention calls for nested tensors, whose class in Python takes longer. Its
    kernels read 16 bytes at a time: zeros fill heads up to that.
    """
    width = q.shape[-1]
    spare = -width % (16 // q.element_size())
    q, k, v = (F.pad(one, (0, spare)) if spare else one for one in (q, k, v))
    seen: Tensor = torch.ops.aten._efficient_attention_forward(
        q.unsqueeze(0),
        k.unsqueeze(0),
        v.unsqueeze(0),
        None,
        *bounds,
        *longest,
        dropout_p=0.0,
        custom_mask_type=0,
        compute_log_sumexp=True,
        scale=width**-0.5,
    )[0]
    return seen.squeeze(0)[..., :width]


all_gather_single: Callable[..., dist.Work | None] = (
    dist.all_gather_single if hasattr(dist, "all_gather_single") else dist.all_gather_into_tensor
)
"""The gather into one tensor, under its older name where torch has no other."""
reduce_scatter_single: Callable[..., dist.Work | None] = (
    dist.reduce_scatter_single
    if hasattr(dist, "reduce_scatter_single")
    else dist.reduce_scatter_tensor
)
"""The reduction into one tensor, likewise."""


class EagerDispatchMode(TorchDispatchMode):
    """A mode for operators that nobody compiles: torch keeps its compiler out of other modes, which
    takes a third of the time that `Rounding` adds to an operator."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False


def at_end_of_backward(function: Callable[[], None]) -> None:
    """Call it once the running backward is done, before `backward()` returns. DDP does likewise."""
    Variable._execution_engine.queue_callback(function)


def running_backward() -> int:
    """The number of the backward that runs on this thread, which no other of the process has."""
    number: int = torch._C._current_graph_task_id()
    return number


def first_step_in_parts(mib: float) -> dict[str, Any]:
    """The options by which DDP all-reduces the first step's gradients in parts of so many MiB, too,
    and not only those after it, for which it orders them anew. Before torch 2.11 it has none."""
    known = "bucket_cap_mb_list" in inspect.signature(DistributedDataParallel).parameters
    return {"bucket_cap_mb_list": [mib]} if known else {}


@contextmanager
def nothing_on_stdout() -> Iterator[None]:
    """What is printed goes to stderr meanwhile: before torch 2.11 gloo says on stdout, where a
    command's JSON goes, who is connected."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)


def own_store() -> Store:
    """The store where the ranks of the default process group met, and can leave each other words;
    by a connection of one's own, which waits for nobody else's. Torch's types leave `clone` out."""
    default: Any = _get_default_store()
    store: Store = default.clone()
    return store


def own_gloo(group: ProcessGroup, name: str, timeout: timedelta | None = None) -> Any:
    """gloo among the ranks of a group, which all call it, each name once. No group of torch's has
    it, and it is in none of the numbers by which torch names those. Ranks wait for each other for
    `timeout`, by default as in torch's groups."""
    store = PrefixStore(f"recd_plugins/{group.group_name}/{name}", _get_default_store())
    return dist.ProcessGroupGloo(store, group.rank(), group.size(), timeout or default_pg_timeout)


def own_group(groups: Tensor, world: ProcessGroup) -> ProcessGroup | None:
    """Make all `groups` [n, size] of the ranks of `world`, which all call it, and return the group
    of this rank; None where a group has one rank."""
    if groups.shape[1] == 1:
        return None
    _number_groups_alike(world)
    own = None
    for ranks in groups.tolist():
        group = dist.new_group(ranks)
        if dist.get_rank() in ranks:
            own = group
    return own


def _number_groups_alike(group: ProcessGroup) -> None:
    """Have the ranks of a group, which all call it, name the next group that they make alike.

    They meet under a name, which torch takes from the number of groups that a rank has made. Since
    torch 2.14 it counts those too that some ranks make by themselves (`use_local_synchronization`),
    and ranks with unlike numbers wait for each other until the time is over.
    """
    number = torch.tensor([_world.group_count], device=device_of(group))
    dist.all_reduce(number, dist.ReduceOp.MAX, group)
    _world.group_count = int(number)


def was_written_to(tensor: Tensor) -> bool:
    """Whether a tensor was changed in place since it was made."""
    return writes_to(tensor) > 0


def is_watched(tensor: Tensor) -> bool:
    """Whether somebody asked for the gradient that comes to a tensor: by a hook, or to keep it."""
    return tensor.retains_grad or bool(tensor._backward_hooks)


def writes_to(tensor: Tensor) -> int:
    """How often a tensor, or a view that shares its version, was changed in place; those of
    inference mode do not count it."""
    return 0 if tensor.is_inference() else tensor._version


def recorded_events(profiler: Any) -> Iterator[Any]:
    """The events that a `torch.profiler.profile` recorded, but for those of its own, which it has
    no public name for as they are recorded."""
    for event in profiler.profiler.kineto_results.events():
        if not (_filter_name(event.name()) or event.is_hidden_event()):
            yield event


def unseen_by_checkpoints() -> AbstractContextManager[None]:
    """Inside, tensors that are saved for gradients are kept as they are: only the innermost hooks
    count, so an activation checkpoint around this sees none of them."""
    return torch.autograd.graph.saved_tensors_hooks(_same, _same)


def _same(tensor: Tensor) -> Tensor:
    return tensor


@contextmanager
def unseen_by_profilers() -> Iterator[None]:
    """What begins within is in no profile of this thread, nor is its end."""
    torch._C._autograd._enable_record_function(False)
    try:
        yield
    finally:
        torch._C._autograd._enable_record_function(True)


def ranks_of(group: Any) -> list[int]:
    """The ranks of the group that a collective's operator was handed as torch dispatches it: boxed,
    or by name."""
    found = group_of_name(group) if isinstance(group, str) else ProcessGroup.unbox(group)
    return get_process_group_ranks(found)


def group_of_name(name: str) -> ProcessGroup:
    """The process group that operators are handed by its name."""
    named: Any = name
    found: ProcessGroup = _resolve_process_group(named)
    return found


def backend_of(group: ProcessGroup, device: str) -> str | None:
    """The backend by which a group's ranks exchange tensors on this kind of device; None if it has
    none."""
    config = dist.get_backend_config(group)
    return dict(each.split(":") for each in config.split(",")).get(device)


def device_of(group: ProcessGroup) -> torch.device:
    """The device that a group's collectives take tensors from: the CPU, where they take them from
    both; NCCL's alone take none from there."""
    if backend_of(group, "cpu"):
        return torch.device("cpu")
    return torch.device("cuda", torch.cuda.current_device())


def yielded_by(iterator: object) -> int | None:
    """How many batches an iterator of a DataLoader has yielded; None of what is no such one."""
    return iterator._num_yielded if isinstance(iterator, _BaseDataLoaderIter) else None


def without_memory(kind: type[Tensor], like: Tensor, num_rows: int) -> Any:
    """A tensor of a subclass that has so many rows like those of `like`, and nothing in it."""
    shape = (num_rows, *like.shape[1:])
    return Tensor._make_wrapper_subclass(kind, shape, dtype=like.dtype, device=like.device)


def schema_of(operator: Any) -> torch.FunctionSchema:
    """An operator's name, as `c10d::allreduce_`, its arguments and what it returns."""
    schema: torch.FunctionSchema = operator._schema
    return schema


def argument_names(operator: Any) -> list[str]:
    """The names of an operator's arguments, in order."""
    return [argument.name for argument in schema_of(operator).arguments]


def written_arguments(operator: Any) -> Iterator[str]:
    """The names of those arguments that an operator changes in place."""
    for argument in schema_of(operator).arguments:
        if argument.alias_info is not None and argument.alias_info.is_write:
            yield argument.name


def is_innermost(mode: TorchDispatchMode) -> bool:
    """Whether a mode was entered last of all that are entered: torch leaves that one."""
    return _get_current_dispatch_mode() is mode
