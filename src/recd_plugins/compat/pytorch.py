"""All of torch's private names that we use, each with the reason; as of torch 2.10 to 2.14."""

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

# `pytree` and `TorchDispatchMode` are torch's own ways to take a structure apart and to see each
# operator. They are documented, but in no public module. `StoredBytes` says where torch's file
# storage put a tensor, and `narrow_tensor_by_index` cuts one as its planner asks.

flash_attention_on_cpu = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
"""The function that torch's public attention calls; only this one returns what its backward
needs."""
flash_attention_on_cpu_backward = (
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
)
"""The backward of `flash_attention_on_cpu`."""


def attends_rows(values: Tensor) -> bool:
    """Whether `attention_of_rows` can take what layers compute from such values, under autocast
    too."""
    if not values.is_cuda or torch.version.cuda is None:
        return False
    made = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else values.dtype
    if made == torch.bfloat16:  # Ampere is the first with kernels for it.
        return torch.cuda.get_device_capability(values.device) >= (8, 0)
    return made in (torch.float32, torch.float16)


def attention_of_rows(
    q: Tensor, k: Tensor, v: Tensor, bounds: tuple[Tensor, Tensor], longest: tuple[int, int]
) -> Tensor:
    """[m, H, E]: each of the queries [m, H, E] sees only the keys of its own row, among all rows'
    keys and values [n, H, E]. `bounds`, int32, say where rows begin and end, in queries and in
    keys. There are fewer than 2**16 rows.

    This is what torch's public attention calls for nested tensors, whose Python class takes longer.
    Its kernels read 16 bytes at a time: heads are padded to that with zeros.
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
"""The gather into one tensor, under its older name if torch has no newer one."""
reduce_scatter_single: Callable[..., dist.Work | None] = (
    dist.reduce_scatter_single
    if hasattr(dist, "reduce_scatter_single")
    else dist.reduce_scatter_tensor
)
"""The reduction into one tensor, likewise."""


class EagerDispatchMode(TorchDispatchMode):
    """A mode for operators that are never compiled. For other modes torch keeps its compiler out,
    which takes a third of the time that `Rounding` adds to an operator."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False


def at_end_of_backward(function: Callable[[], None]) -> None:
    """Call the function once the running backward is done, before `backward()` returns, as DDP
    does."""
    Variable._execution_engine.queue_callback(function)


def running_backward() -> int:
    """The number of the backward that runs on this thread, unique in the process."""
    number: int = torch._C._current_graph_task_id()
    return number


def first_step_in_parts(mib: float) -> dict[str, Any]:
    """The options with which DDP all-reduces gradients in parts of `mib` MiB in the first step too,
    and not only in later steps, for which it reorders them. Empty before torch 2.11."""
    known = "bucket_cap_mb_list" in inspect.signature(DistributedDataParallel).parameters
    return {"bucket_cap_mb_list": [mib]} if known else {}


@contextmanager
def nothing_on_stdout() -> Iterator[None]:
    """Inside, everything printed goes to stderr: before torch 2.11, gloo prints who is connected to
    stdout, where a command's JSON goes."""
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
    """The store where the ranks of the default process group met, and can exchange short values. It
    has a connection of its own, which waits for no other. torch's types leave out `clone`."""
    default: Any = _get_default_store()
    store: Store = default.clone()
    return store


def own_gloo(group: ProcessGroup, name: str, timeout: timedelta | None) -> Any:
    """gloo among the ranks of a group. All ranks call this, once per name.

    It is in no group of torch's, and is not counted in the numbers by which torch names groups.
    Ranks wait for each other for `timeout`, by default as long as in the group's own gloo, whose
    time its maker may have set; where it has none, as in torch's groups.
    """
    store = PrefixStore(f"recd_plugins/{group.group_name}/{name}", _get_default_store())
    patience = timeout or _gloo_timeout(group) or default_pg_timeout
    return dist.ProcessGroupGloo(store, group.rank(), group.size(), patience)


def _gloo_timeout(group: ProcessGroup) -> timedelta | None:
    """The time that ranks wait for each other in a group's gloo; None if it has none, as one of
    NCCL alone."""
    try:
        backend: Any = group._get_backend(torch.device("cpu"))
    except RuntimeError:
        return None
    found: timedelta | None = getattr(getattr(backend, "options", None), "_timeout", None)
    return found


def own_group(groups: Tensor, world: ProcessGroup) -> ProcessGroup | None:
    """Make all `groups` [n, size] of the ranks of `world`, and return the group of this rank; None
    if groups have one rank. All ranks of `world` call this."""
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
    """Have the ranks of a group give the same name to the next group that they make. All of them
    call this.

    They meet under a name, which torch takes from the number of groups that a rank has made. Since
    torch 2.14 that includes groups that some ranks make by themselves
    (`use_local_synchronization`), and ranks with different numbers wait for each other until they
    time out.
    """
    number = torch.tensor([_world.group_count], device=device_of(group))
    dist.all_reduce(number, dist.ReduceOp.MAX, group)
    _world.group_count = int(number)


def was_written_to(tensor: Tensor) -> bool:
    """Whether a tensor was changed in place since it was made."""
    return writes_to(tensor) > 0


def is_watched(tensor: Tensor) -> bool:
    """Whether somebody wants the gradient of a tensor: by a hook, or by `retain_grad`."""
    return tensor.retains_grad or bool(tensor._backward_hooks)


def writes_to(tensor: Tensor) -> int:
    """How often a tensor, or a view that shares its version, was changed in place; 0 for tensors of
    inference mode, which do not count this."""
    return 0 if tensor.is_inference() else tensor._version


def recorded_events(profiler: Any) -> Iterator[Any]:
    """The events that a `torch.profiler.profile` recorded, without the profiler's own. torch has no
    public name for events as they are recorded."""
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
    """What begins inside is in no profile of this thread, and neither is its end."""
    torch._C._autograd._enable_record_function(False)
    try:
        yield
    finally:
        torch._C._autograd._enable_record_function(True)


def ranks_of(group: Any) -> list[int]:
    """The ranks of a group in the form that torch hands to a collective's operator: boxed, or by
    name."""
    found = group_of_name(group) if isinstance(group, str) else ProcessGroup.unbox(group)
    return get_process_group_ranks(found)


def group_of_name(name: str) -> ProcessGroup:
    """The process group of a name, by which operators are handed it."""
    named: Any = name
    found: ProcessGroup = _resolve_process_group(named)
    return found


def backend_of(group: ProcessGroup, device: str) -> str | None:
    """The backend by which a group's ranks exchange tensors on this kind of device; None if it has
    none."""
    config = dist.get_backend_config(group)
    return dict(each.split(":") for each in config.split(",")).get(device)


def device_of(group: ProcessGroup) -> torch.device:
    """The device that a group's collectives take tensors from. It is the CPU if they can take them
    from there; groups with only NCCL cannot."""
    if backend_of(group, "cpu"):
        return torch.device("cpu")
    return torch.device("cuda", torch.cuda.current_device())


def yielded_by(iterator: object) -> int | None:
    """How many batches a DataLoader's iterator has yielded; None for any other object."""
    return iterator._num_yielded if isinstance(iterator, _BaseDataLoaderIter) else None


def without_memory(kind: type[Tensor], like: Tensor, num_rows: int) -> Any:
    """A tensor of a subclass, without memory, with `num_rows` rows like those of `like`."""
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
    """The names of the arguments that an operator changes in place."""
    for argument in schema_of(operator).arguments:
        if argument.alias_info is not None and argument.alias_info.is_write:
            yield argument.name


def is_innermost(mode: TorchDispatchMode) -> bool:
    """Whether a mode is the last one entered: the one that torch leaves next."""
    return _get_current_dispatch_mode() is mode
