"""A tensor of all samples that is still one of unique samples.

It knows its shape and type, and expands once, when a torch operation first reads it. Code that
knows it takes the unique samples instead, and saves the work.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, TypeGuard
from weakref import ref

import torch
from torch import Tensor

from recd_plugins.compat.pytorch import (
    argument_names,
    is_watched,
    pytree,
    unseen_by_checkpoints,
    was_written_to,
    without_memory,
    written_arguments,
)
from recd_plugins.compat.tracing import outside_of_graphs
from recd_plugins.embedding.expand import (
    cells_of,
    expand_columns,
    expand_rows,
    expand_values,
    sum_cells,
)
from recd_plugins.errors import CapabilityError

__all__ = ["StandsFor", "Unexpanded"]


StandsFor: TypeAlias = tuple[Tensor, Tensor, Tensor | None, int]
"""What an `Unexpanded` stands for: its `of_unique`, `inverse_lookup` and `lengths`, and the number
of its rows, B or N. A plain tuple, since a class would take as many calls as the tensor itself."""


class Unexpanded(Tensor):
    """Stands for [B, ...] or [N, ...] of all samples; holds `of_unique` [U, ...] or [N_u, ...].

    Any torch operation on it, and any operator or index of Python's, is done on `expanded()`.
    Gradients that come by the expansion and by `of_unique` add up. Moves and casts (`to`,
    `float`, `detach`, ...) stay unexpanded.

    Once the expansion is changed in place, or its gradient is asked for, `is_unique` is false and
    only the expansion counts. Once somebody `took` the unique samples, that gradient can no longer
    be asked for.
    """

    of_unique: Tensor
    """The tensor that is kept, with its gradient; it may end in rows of padding that no sample
    has."""
    inverse_lookup: Tensor
    """[B]: which unique sample each sample has."""
    lengths: Tensor | None
    """[U]: how many of the values each unique sample has; None where it is one row."""
    _expanded: Tensor | None
    _only_expansion: bool = False
    """Whether the expansion was handed out in a way that lets it change without torch seeing it."""
    _is_watched: bool = False
    """Whether somebody waits for its gradient: then the gradients of all uses of the expansion come
    here."""
    _before: Tensor | None = None
    """The expansion before somebody began to wait for its gradient, whose memory it shares."""
    _was_taken: bool = False
    """Whether somebody computes with the unique samples instead of all samples."""
    _detached_of: Callable[[], Unexpanded | None] | None = None
    """The tensor that it was detached from, whose memory it shares; None once that is gone."""

    @classmethod
    def rows(cls, unique: Tensor, inverse_lookup: Tensor) -> Unexpanded:
        """Stands for [B, ...], of unique [U, ...]: rows, or the rows' lengths."""
        return _stands([(unique, inverse_lookup, None, inverse_lookup.numel())])[0]

    @classmethod
    def each(cls, those: Sequence[StandsFor]) -> list[Unexpanded]:
        """One for each of `those`, as `rows` and `values` make them; made together they take fewer
        calls."""
        return _stands(those)

    @classmethod
    def values(  # type: ignore[override]
        cls,
        unique: Tensor,
        lengths: Tensor,
        inverse_lookup: Tensor,
        num_values: int | None = None,
    ) -> Unexpanded:
        """Stands for [N, ...] end to end, of unique [N_u, ...] in U rows of `lengths`.

        A caller that knows N gives it; otherwise it is counted, and the processor waits for CUDA.
        """
        if num_values is None:
            num_values = int(lengths[inverse_lookup].sum())
        return _stands([(unique, inverse_lookup, lengths, num_values)])[0]

    @outside_of_graphs
    def expanded(self) -> Tensor:
        """The tensor it stands for: an ordinary one, always the same."""
        if self._expanded is None:
            # The expansion outlives its first reader, whose no_grad, inference_mode or hooks of a
            # checkpoint (of which only the innermost count) must not hold for the next one.
            with torch.inference_mode(False), torch.enable_grad(), unseen_by_checkpoints():
                self._expanded = _Read.apply(self) if self._gets_gradient else self._made()
        return self._expanded

    def _made(self) -> Tensor:
        """The expansion, whose gradient goes to the unique samples."""
        if self._before is not None:
            return self._before
        if (source := self._source) is not None:
            return source.expanded().detach()
        return self._expand(self.of_unique)

    def took(self) -> Tensor:
        """`of_unique`, for code that computes with it instead of the expansion."""
        self._was_taken = True
        return self.of_unique

    @property
    def is_unique(self) -> bool:
        """Whether `of_unique` holds everything: nobody changed the expansion in place, or waits for
        its gradient."""
        if self._only_expansion or self._gets_gradient:
            return False
        if (source := self._source) is not None and not source.is_unique:
            return False
        made = self._expanded
        return made is None or not (was_written_to(made) or is_watched(made))

    @property
    def _gets_gradient(self) -> bool:
        """Whether the gradient of the expansion must come here, and not to the unique samples,
        since somebody waits for it or an autograd function returned this."""
        if self._is_watched or self.of_unique.requires_grad:
            return self._is_watched
        with torch.DisableTorchFunctionSubclass():
            return self.requires_grad

    @property
    def _source(self) -> Unexpanded | None:
        return None if self._detached_of is None else self._detached_of()

    def shares_lookup(self, other: Unexpanded) -> bool:
        """Whether sample i has the same unique sample in both, as far as is known without
        comparing."""
        ours, theirs = self.inverse_lookup, other.inverse_lookup
        return ours is theirs or (ours.data_ptr(), ours.shape, ours.stride()) == (
            theirs.data_ptr(),
            theirs.shape,
            theirs.stride(),
        )

    def _expand(self, unique: Tensor) -> Tensor:
        if self.lengths is None:
            return expand_rows(unique, self.inverse_lookup)
        return expand_values(unique, self.lengths, self.inverse_lookup, self.shape[0])

    def _like(self, unique: Tensor) -> Unexpanded:
        """The same samples of other values, or on another device."""
        lookup = self.inverse_lookup.to(unique.device)
        lengths = None if self.lengths is None else self.lengths.to(unique.device)
        return _stands([(unique, lookup, lengths, self.shape[0])])[0]

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        kept = list(self.of_unique.shape)
        return f"Unexpanded({list(self.shape)}, unique={kept}, dtype={self.dtype})"

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func in METADATA and args and args[0]._expanded is None:  # they take one tensor
            with torch.DisableTorchFunctionSubclass():
                return func(*args, **kwargs or {})
        if not all(issubclass(kind, Tensor) for kind in types):
            return NotImplemented  # TorchRec's awaitables wait, and ask again with tensors
        kwargs = kwargs or {}
        tensor = args[0] if args else None
        if isinstance(tensor, Unexpanded) and tensor.is_unique and func in ON_UNIQUE:
            rest, kwargs = pytree.tree_map(_expanded, (args[1:], kwargs))
            unique = func(tensor.of_unique, *rest, **kwargs)
            if unique is tensor.of_unique:
                return tensor
            made = tensor._like(unique)
            if func in DETACHES:
                made._detached_of = ref(tensor)
            else:
                tensor._was_taken = True
            return made
        if func in ASKS_FOR_GRADIENTS:
            _check_not_taken(args[1] if func is torch.autograd.grad else tensor)
        if isinstance(tensor, Unexpanded) and func in HANDS_OUT:
            _leave_unique(tensor)
        if isinstance(tensor, Unexpanded) and func in OF_GRADIENT and _has_gradient(tensor, func):
            _watch(tensor, func, *args[1:], **kwargs)
            with torch.DisableTorchFunctionSubclass():
                return func(*args, **kwargs)
        if func in SIDE_BY_SIDE and (columns := _columns(*args, **kwargs)) is not None:
            return columns if func is torch.stack else columns.flatten(1)
        args, kwargs = pytree.tree_map(_expanded, (tuple(args), dict(kwargs)))
        return func(*args, **kwargs)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Handle what bypasses `__torch_function__`, such as an autograd function's arguments.

        The layer above handles the gradient, by the node that `_Stands` left.
        """
        kwargs = kwargs or {}
        if func is torch.ops.aten.detach.default and args[0].is_unique:
            return args[0]._like(args[0].of_unique.detach())
        given = {**dict(zip(argument_names(func), args, strict=False)), **kwargs}
        for name in written_arguments(func):
            if any(isinstance(leaf, Unexpanded) for leaf in pytree.tree_leaves(given.get(name))):
                raise RuntimeError(
                    f"{func} would change an unexpanded tensor in place, which torch would not "
                    "see: pass its .expanded()."
                )
        args, kwargs = pytree.tree_map(_data, (tuple(args), dict(kwargs)))
        return func(*args, **kwargs)


def _leave_unique(tensor: Unexpanded) -> None:
    """From now on only the expansion counts; so it does for the tensor that this was detached
    from."""
    tensor._only_expansion = True
    if (source := tensor._source) is not None:
        _leave_unique(source)


def _has_gradient(tensor: Unexpanded, func: Callable[..., Any]) -> bool:
    """Whether a question about the gradient is about the tensor itself, and not about its
    expansion."""
    return tensor._is_watched or tensor._expanded is None or func in MAKES_LEAVES


def _watch(tensor: Unexpanded, func: Callable[..., Any], *given: Any, **named: Any) -> None:
    """Have all gradients of the expansion come to the tensor itself, if `func` asks for them."""
    wanted = [*given, *named.values(), True][0]
    if func in MAKES_LEAVES and wanted != tensor.requires_grad:
        tensor._before, tensor._expanded = tensor._expanded, None
        tensor._is_watched = bool(wanted)
    elif func in ASKS_FOR_GRADIENTS and tensor.requires_grad:
        tensor._is_watched = True


def _check_not_taken(asked: Any) -> None:
    """`CapabilityError` where gradients are asked for of a tensor whose unique samples were
    taken."""
    for leaf in pytree.tree_leaves(asked):
        if isinstance(leaf, Unexpanded) and leaf._was_taken and leaf.requires_grad:
            raise CapabilityError(
                "dedup: the gradient of embeddings is asked for (register_hook, retain_grad or "
                "torch.autograd.grad) after their unique samples were pooled or put side by side, "
                "so it is not the gradient of all samples. Call `.retain_grad()` or "
                "`.register_hook(...)` on them before that: then all samples are pooled. Or keep "
                "the poolings as they are with stack.adapt(model, pool_unique=False)."
            )


class _Read(torch.autograd.Function):
    """The expansion of a tensor that an autograd function returned; its gradient goes to that
    tensor."""

    @staticmethod
    def forward(ctx: Any, stand: Unexpanded) -> Tensor:
        return stand._made().detach()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient


class _Stands(torch.autograd.Function):
    """Tensors without memory that stand for expansions, and the gradients of these."""

    @staticmethod
    def forward(ctx: Any, those: Sequence[StandsFor], *uniques: Tensor) -> tuple[Unexpanded, ...]:
        ctx.set_materialize_grads(False)
        ctx.those = [(unique.shape[0], lookup, lengths) for unique, lookup, lengths, _ in those]
        return tuple([without_memory(Unexpanded, unique, rows) for unique, _, _, rows in those])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        found: list[Tensor | None] = [None]
        for gradient, (num_unique, lookup, lengths) in zip(gradients, ctx.those, strict=True):
            if gradient is None:
                found.append(None)
                continue
            cells = lookup if lengths is None else cells_of(lengths, lookup, len(gradient))
            found.append(sum_cells(gradient, cells, num_unique))
        return tuple(found)


def _stands(those: Sequence[StandsFor]) -> list[Unexpanded]:
    """One for each of `those`, all behind one node of autograd, which costs more than all else
    here."""
    learnt = [one for one in those if one[0].requires_grad]  # not lengths, say
    with_gradient = iter(_Stands.apply(learnt, *[one[0] for one in learnt]) if learnt else ())
    every = []
    for unique, lookup, lengths, rows in those:
        learns = unique.requires_grad
        made = next(with_gradient) if learns else without_memory(Unexpanded, unique, rows)
        made.of_unique, made.inverse_lookup, made.lengths = unique, lookup, lengths
        made._expanded = None
        every.append(made)
    return every


SIDE_BY_SIDE = {torch.stack, torch.cat, torch.concat, torch.concatenate}


def _columns(tensors: Sequence[Tensor], dim: int = 0, **others: Any) -> Tensor | None:
    """[B, F, D] of F features' rows [B, D], expanded in one gather; None where that is not
    possible."""
    if dim != 1 or others:
        return None
    uniques: list[Tensor] = []
    lookups: list[Tensor | None] = []
    stands: list[Unexpanded] = []
    alike = set()
    for tensor in tensors:
        if _is_column(tensor):
            lookup, unique = tensor.inverse_lookup, tensor.of_unique
            num_rows = lookup.numel()  # asking the stand itself takes ten times as long
            stands.append(tensor)
        else:
            lookup, unique = None, _expanded(tensor)
            num_rows = unique.shape[0] if unique.dim() else 0
        uniques.append(unique)
        lookups.append(lookup)
        alike.add((num_rows, unique.shape[1:], unique.dtype, unique.device))
    if len(alike) > 1 or uniques[0].dim() != 2 or len(stands) < 2:
        return None
    for stand in stands:
        stand._was_taken = True
    # In a checkpoint's second run some may be expanded already, which saves nothing.
    with unseen_by_checkpoints():
        return expand_columns(uniques, lookups)


def _is_column(tensor: Tensor) -> TypeGuard[Unexpanded]:
    """Whether it has a row for each sample, and nobody has expanded it."""
    return (
        isinstance(tensor, Unexpanded)
        and tensor._expanded is None
        and tensor.lengths is None
        and tensor.is_unique
    )


def _expanded(value: Any) -> Any:
    return value.expanded() if isinstance(value, Unexpanded) else value


def _data(value: Any) -> Any:
    """The value without its gradient, which the layer above handles."""
    if not isinstance(value, Unexpanded):
        return value
    if value._expanded is not None:
        return value._expanded.detach()
    return value._expand(value.of_unique.detach())


PROPERTIES = (
    "device",
    "dtype",
    "grad_fn",
    "is_cpu",
    "is_cuda",
    "is_leaf",
    "is_meta",
    "is_nested",
    "is_quantized",
    "is_sparse",
    "layout",
    "ndim",
    "requires_grad",
    "shape",
)

METADATA = {
    *(getattr(Tensor, name).__get__ for name in PROPERTIES),
    Tensor.__len__,
    Tensor.dim,
    Tensor.get_device,
    Tensor.is_complex,
    Tensor.is_contiguous,
    Tensor.is_floating_point,
    Tensor.is_signed,
    Tensor.ndimension,
    Tensor.nelement,
    Tensor.numel,
    Tensor.size,
    Tensor.stride,
    torch.is_complex,
    torch.is_floating_point,
    torch.numel,
}
"""Answered without expanding."""

ON_UNIQUE = {
    Tensor.bfloat16,
    Tensor.contiguous,
    Tensor.cpu,
    Tensor.cuda,
    Tensor.detach,
    Tensor.double,
    Tensor.float,
    Tensor.half,
    Tensor.int,
    Tensor.long,
    Tensor.to,
    torch.detach,
}
"""Done on the unique samples: moves and casts, which change only the type and the device of
values."""

DETACHES = {Tensor.detach, torch.detach}
"""Those of these that return the same memory."""

ASKS_FOR_GRADIENTS = {Tensor.register_hook, Tensor.retain_grad, torch.autograd.grad}
"""Functions that ask for the gradient of their first arguments."""

DATA: Any = Tensor.data
GRAD: Any = Tensor.grad
REQUIRES_GRAD: Any = Tensor.requires_grad

HANDS_OUT = {DATA.__get__, DATA.__set__}
"""Functions that change the expansion, or hand it out to be changed, without a new version."""

MAKES_LEAVES = {REQUIRES_GRAD.__set__, Tensor.requires_grad_}
"""Functions that have the gradient of the expansion kept, and not that of the unique samples."""

OF_GRADIENT = {
    *MAKES_LEAVES,
    GRAD.__get__,
    GRAD.__set__,
    Tensor.register_hook,
    Tensor.retain_grad,
}
"""Functions that are about the gradient of their first argument."""
