"""Poolings on unique samples (O7): a history that S samples share is pooled once, not S times."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, Protocol, TypeGuard, runtime_checkable
from weakref import WeakSet

import torch
from torch import Tensor, nn

from recd_plugins.compat.outputs import awaited
from recd_plugins.embedding.expand import first_rows
from recd_plugins.embedding.pooled_check import check_unique
from recd_plugins.embedding.pooling_trial import (
    MAKES_OTHERS,
    each_expanded,
    note_no_rows,
    why_all_samples,
    why_of_all,
)
from recd_plugins.embedding.unexpanded import Unexpanded

__all__ = ["DedupPooling", "PoolsUnique", "explain_pooling"]

LOG = logging.getLogger(__name__)


@runtime_checkable
class PoolsUnique(Protocol):
    """A pooling that reads unique histories, though each sample has a query of its own.

    A class that inherits it and has a `forward` of its own pools by that `forward`, unless it has a
    `pool_unique` of its own too.
    """

    def pool_unique(
        self, values: Tensor, lengths: Tensor, query: Tensor, inverse_lookup: Tensor
    ) -> Tensor:
        """[B, D]: row i pools unique history `inverse_lookup[i]` for `query[i]`, of query [B, D].

        Histories are values [N_u, D] in rows of `lengths` [U]. The result and its gradients equal
        those of the pooling on the expansion. A method with one more argument `num_values` is
        given N, the number of the expansion's values, for which it would else wait on CUDA.
        """


class DedupPooling(nn.Module):
    """A pooling that also takes `Unexpanded` values [N, D] and lengths [B].

    - Without a query, or a use for it (`needs_query = False`), it runs on the unique samples;
      so it does on a query that is `Unexpanded` by the same lookup. The result [B, D] is
      `Unexpanded` too.
    - Where no sample repeats another, on a CPU, nothing is copied and nothing shared: the pooling
      runs as it is.
    - Where a row depends on the batch's other rows, it keeps numbers of all that it is handed, or
      draws at random while it trains, it runs on the expansion, since unique samples would give
      another result. A pooling says by `draws_once = True` that what it draws may be shared. It
      also runs on the expansion where it returns something else than one vector for each row,
      such as weights beside them.
    - On a query for each sample it runs `pool_unique`, if the pooling has it beside its `forward`
      (`PoolsUnique`).
    - Otherwise it runs on the expansion, and says so once in the log; `explain_pooling` says it
      before.

    `DedupPooling(pooling)` is `pooling` itself, its class replaced by a subclass of both, as
    torch's parametrizations do. A module around it would put a prefix in front of its parameters'
    names, or have to repeat all that is done with a module; and whoever else holds the pooling
    would keep the old one.
    """

    def __new__(cls, pooling: nn.Module | None = None) -> DedupPooling:
        """The pooling itself; without one, an empty instance, as torch's parametrizations need for
        copies."""
        if pooling is None:
            made: DedupPooling = super().__new__(cls)
            return made
        if not isinstance(pooling, DedupPooling):
            pooling.__class__ = _subclass(type(pooling))
        return pooling  # type: ignore[return-value]

    def __init__(self, pooling: nn.Module) -> None:
        """Do nothing: `pooling` was made before, and nn.Module's would empty it."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _remade, (type(self).__bases__[1],), self.__dict__

    def forward(self, values: Tensor, lengths: Tensor, query: Tensor | None = None) -> Tensor:
        """[B, D] of values [N, D] in rows of `lengths` [B], and a query [B, D]."""
        pool: Callable[..., Tensor] = super().forward
        if query is not None:
            query = awaited(query)  # it may be a sharded collection's, and still on its way
        asked = () if query is None else (query,)
        if not isinstance(values, Unexpanded):
            return pool(values, lengths, *asked)
        if not (isinstance(lengths, Unexpanded) and _alike(values, lengths)):
            _warn_once(self, CHANGED if not values.is_unique else UNLIKE)
            return pool(*each_expanded(values, lengths, *asked))
        lookup = values.inverse_lookup
        of_unique: tuple[Tensor, ...] | None = None
        if query is None or not _needs_query(self):
            of_unique = ()
        elif isinstance(query, Unexpanded) and _alike(values, query):
            of_unique = (first_rows(query.of_unique, lengths.of_unique.numel()),)
        if of_unique is not None:
            shared = values.of_unique, lengths.of_unique, *of_unique
            if why := why_of_all(self, pool, shared, (values, lengths, *asked)):
                _warn_once(self, why)
                return pool(*each_expanded(values, lengths, *asked))
            for one in (values, query):
                if isinstance(one, Unexpanded):
                    one.took()
            pooled = pool(*shared)
            if not _has_rows(pooled, lengths.of_unique.numel()):
                check_unique(self, values.of_unique, lengths.of_unique, pooled)
                note_no_rows(self)
                _warn_once(self, MAKES_OTHERS)
                return pool(*each_expanded(values, lengths, *asked))
            return Unexpanded.rows(pooled, lookup)
        if _repeats_nothing(lookup, lengths.of_unique.numel()):
            return pool(values.took(), lengths.of_unique, query)
        assert query is not None  # else it needs none
        pool_unique = _pool_unique(self)
        if pool_unique is None:
            _warn_once(self, PER_SAMPLE)
            return pool(*each_expanded(values, lengths, query))
        if _takes_num_values(pool_unique):
            pool_unique = partial(pool_unique, num_values=values.shape[0])
        of_all = values.of_unique, lengths.of_unique, query, lookup
        if why := why_of_all(self, pool_unique, of_all, (values, lengths, query)):
            _warn_once(self, why)
            return pool(*each_expanded(values, lengths, query))
        values.took()
        return pool_unique(*of_all)


PER_SAMPLE = (
    "each sample has a query of its own, and it has no pool_unique, or inherits that of another "
    "forward; if it ignores the query, let it say so by needs_query = False"
)

CHANGED = "its values were changed in place, or somebody waits for their gradient"
UNLIKE = "its values' and lengths' unique samples are not the same"


def explain_pooling(pooling: nn.Module) -> str:
    """The way in which a pooling, adapted or about to be, takes deduplicated samples, in words."""
    name = type(pooling).__name__.removeprefix("Dedup")
    if why := why_all_samples(pooling):
        return f"{name} runs on all samples where it trains: {why}"
    if not _needs_query(pooling):
        return f"{name} runs on unique samples"
    if _pool_unique(pooling) is not None:
        return f"{name} reads unique samples, and weighs them for each sample's query"
    return f"{name} runs on unique samples if it has no query; else on all: {PER_SAMPLE}"


_SUBCLASSES: dict[type[nn.Module], type[DedupPooling]] = {}


def _subclass(cls: type[nn.Module]) -> type[DedupPooling]:
    if cls not in _SUBCLASSES:
        made = type(f"Dedup{cls.__name__}", (DedupPooling, cls), {"__doc__": cls.__doc__})
        _SUBCLASSES[cls] = made
    return _SUBCLASSES[cls]


def _remade(cls: type[nn.Module]) -> DedupPooling:
    return object.__new__(_subclass(cls))


def _needs_query(pooling: nn.Module) -> bool:
    """Whether its result depends on a query: it may, unless it says otherwise."""
    return bool(getattr(pooling, "needs_query", True))


def _pool_unique(pooling: nn.Module) -> Callable[..., Tensor] | None:
    """Its `pool_unique`, unless a class that inherits it has a `forward` of its own: its author
    trained with that one."""
    found: Callable[..., Tensor] | None = getattr(pooling, "pool_unique", None)
    if found is None or "pool_unique" in vars(pooling):
        return found
    for kind in type(pooling).__mro__:
        if "pool_unique" in vars(kind):
            break
        if kind is not DedupPooling and "forward" in vars(kind):
            return None
    return found


def _takes_num_values(pool_unique: Callable[..., Tensor]) -> bool:
    return _has_num_values(getattr(pool_unique, "__func__", pool_unique))


@lru_cache(maxsize=256)  # every step of a job asks for the same
def _has_num_values(function: Callable[..., Tensor]) -> bool:
    try:
        own = inspect.signature(function, follow_wrapped=False).parameters
        wrapped = inspect.signature(function).parameters
    except (TypeError, ValueError):  # a function of TorchScript's, say
        return False
    # A decorator may show the arguments of what it wraps, and hand on fewer.
    takes_any = any(one.kind is inspect.Parameter.VAR_KEYWORD for one in own.values())
    return "num_values" in own or (takes_any and "num_values" in wrapped)


def _alike(values: Unexpanded, rows: Unexpanded) -> bool:
    """Whether `rows` has a row for each of the unique samples that `values` has values of."""
    return (
        rows.lengths is None
        and values.lengths is not None
        and values.is_unique
        and rows.is_unique
        and values.shares_lookup(rows)
    )


def _has_rows(pooled: Any, num_rows: int) -> TypeGuard[Tensor]:
    return isinstance(pooled, Tensor) and pooled.dim() > 0 and pooled.shape[0] == num_rows


def _repeats_nothing(inverse_lookup: Tensor, num_unique: int) -> bool:
    """Whether each sample is a unique one of its own, all in the same order. Nobody asks a GPU,
    which would have to be waited for."""
    if inverse_lookup.numel() != num_unique or inverse_lookup.is_cuda:
        return False
    dtype, device = inverse_lookup.dtype, inverse_lookup.device
    return torch.equal(inverse_lookup, torch.arange(num_unique, dtype=dtype, device=device))


_WARNED: WeakSet[nn.Module] = WeakSet()


def _warn_once(pooling: nn.Module, why: str) -> None:
    if pooling not in _WARNED:
        _WARNED.add(pooling)
        LOG.warning("%s pools all samples, duplicates included: %s.", type(pooling).__name__, why)
