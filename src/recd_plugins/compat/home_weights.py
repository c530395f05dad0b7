"""The home weights of tables, as TorchRec's parameters and state dicts have them. They report each
read, because replicas may have newer rows. As of TorchRec 1.5 to 1.9."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary
from torchrec.distributed.composable.table_batched_embedding_slice import TableBatchedEmbeddingSlice
from torchrec.distributed.types import ShardedTensor

__all__ = ["HomeWeights", "report_reads", "report_reads_of_shards"]

Report = Callable[[str], bool]
"""A method that is called with the name of a table when somebody reads it. It returns whether
replicas have rows of that table."""

DATA: Callable[..., Any] = Tensor.data.__get__  # type: ignore[attr-defined]
"""The function that torch calls for the attribute `data`."""

VIEWS = frozenset({"data", "T", "H", "mT", "mH", "real", "imag"})
"""The attributes of a tensor that read its numbers; the others only describe it."""

NO_NUMBERS = frozenset(
    {
        *("dim", "ndimension", "size", "numel", "nelement", "stride", "storage_offset", "data_ptr"),
        *("element_size", "untyped_storage", "get_device", "has_names", "result_type", "__len__"),
        *("is_complex", "is_conj", "is_contiguous", "is_distributed", "is_floating_point"),
        *("is_inference", "is_neg", "is_pinned", "is_same_size", "is_shared", "is_signed"),
        *("register_hook", "register_post_accumulate_grad_hook", "retain_grad"),
        *("empty_like", "full_like", "ones_like", "zeros_like"),
        *("rand_like", "randint_like", "randn_like"),
        "_has_compatible_shallow_copy_type",  # of Module.to and the like
        *("new_empty", "new_full", "new_ones", "new_tensor", "new_zeros"),
    }
)
"""Functions of torch that ask what a tensor is, and not what numbers it has."""

READ_BY = ("local_shards", "__getstate__")
"""The methods of a ShardedTensor that read its numbers."""


class HomeWeights(TableBatchedEmbeddingSlice):
    """TorchRec's parameter of a table, which reports each function of torch that reads it.

    It does not report writes: `HomeTable.writes` counts those.
    """

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if any(kind is not cls for kind in types):
            return NotImplemented  # ShardedTensors, for example, know what to do
        named = dict(kwargs or {})
        read = [*_read(func, args, named)]
        if func == DATA:
            held = [report(table) for table, report in _reports(read)]
            if any(held):
                func = Tensor.detach  # the same, but writes to the result are counted
            return super().__torch_function__(func, types, tuple(args), named)
        made = super().__torch_function__(func, types, tuple(args), named)
        # A tensor that is moved to its own device, or cast to its own type, is returned itself.
        for table, report in _reports(one for one in read if one is not made):
            report(table)
        return made


REPORTS: WeakIdKeyDictionary = WeakIdKeyDictionary()
"""For each of these parameters, its table and a weak reference to the method it reports to."""

NONE: tuple[str, Callable[[], None]] = "", lambda: None
"""The entry of a tensor that has replaced one of these, as by `torch.utils.swap_tensors`."""


def _reports(read: Iterable[HomeWeights]) -> Iterator[tuple[str, Report]]:
    """The table of each of these parameters, and the method it reports to, while that lives."""
    for weights in read:
        table, method = REPORTS.get(weights, NONE)
        if (report := method()) is not None:
            yield table, report


def report_reads(parameter: nn.Parameter, table: str, report: Report) -> None:
    """Have the parameter of a table report each read, while the method's owner lives."""
    if type(parameter) is TableBatchedEmbeddingSlice:
        REPORTS[parameter] = table, weakref.WeakMethod(report)
        parameter.__class__ = HomeWeights


def report_reads_of_shards(sharded: object, table: str, report: Report) -> None:
    """Have a ShardedTensor of a state dict (a table, or its optimizer's state) report each access
    to this rank's shards and each pickling of them. What is pickled stays as it was."""
    if isinstance(sharded, ShardedTensor) and READ_BY[0] not in vars(sharded):
        here, method = weakref.ref(sharded), weakref.WeakMethod(report)
        for name in READ_BY:
            vars(sharded)[name] = partial(_reported, name, here, table, method)


def _reported(
    name: str,
    here: Callable[[], ShardedTensor | None],
    table: str,
    method: Callable[[], Report | None],
) -> Any:
    if (report := method()) is not None:
        report(table)
    return getattr(ShardedTensor, name)(here())


def _read(
    func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Iterator[HomeWeights]:
    """The parameters whose numbers a function of torch reads."""
    name = getattr(func, "__name__", "")
    attribute = getattr(getattr(func, "__self__", None), "__name__", "")
    if name in NO_NUMBERS or name in ("__set__", "__delete__"):
        return
    if name == "__get__" and attribute not in VIEWS:
        return
    writes = name.endswith("_") and not name.endswith("__")
    for given in (*args[writes:], *kwargs.values()):
        for one in given if isinstance(given, list | tuple) else [given]:
            if isinstance(one, HomeWeights):
                yield one
