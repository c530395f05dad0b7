"""Why a pooling runs on all samples, though some share a unique one: its parts show it, or a trial
on the first unique samples that it is handed."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from recd_plugins.embedding.unexpanded import Unexpanded
from recd_plugins.sparse.rows.counted import counted_rows, note_counted

__all__ = ["MAKES_OTHERS", "each_expanded", "note_no_rows", "why_all_samples", "why_of_all"]

NORMALISES = "it normalises over the samples of a batch, and unique ones have other means"
DRAWS = (
    "it draws at random, as dropout does, and each sample draws by itself; if those that share a "
    "unique sample may share what it draws, let it say so by draws_once = True"
)
MAKES_OTHERS = (
    "it returns something else than one vector for each row, which nothing puts beside the samples"
)
KEEPS = (
    "it keeps numbers of all that it is handed (buffers or attributes), and those of unique "
    "samples are others"
)
MIXES = (
    "what it makes of a row depends on how often others are in the batch, and unique samples are "
    "there once"
)
NORMS = (
    *(nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm),
    *(nn.LazyBatchNorm1d, nn.LazyBatchNorm2d, nn.LazyBatchNorm3d),
)
OF_MODULES = frozenset(vars(nn.Module()))
"""The attributes that every module of torch has."""
DROPOUTS = nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout


def why_all_samples(pooling: nn.Module) -> str:
    """Why a pooling runs on all samples while it trains, as far as its parts show; "" where they
    show no reason."""
    parts = list(pooling.modules())
    if any(isinstance(part, NORMS) for part in parts):
        return NORMALISES
    draws = any(isinstance(part, DROPOUTS) and part.p for part in parts)
    return DRAWS if draws and not _draws_once(pooling) else ""


@dataclass
class _Tried:
    """What was found out about a pooling when it was first handed unique samples."""

    norms: tuple[Any, ...]
    """Its parts that may normalise over samples."""
    dropouts: tuple[Any, ...]
    """Its parts that may draw at random, now or once somebody sets their `p`."""
    draws: bool | None = None
    """Whether it draws at random while it trains; None before it was handed a value."""
    makes_rows: bool = True
    """Whether it made a vector for each row of all that it was handed."""
    keeps: bool | None = None
    """Whether its buffers or attributes differ after unique samples and after all samples; None
    before any sample repeats."""
    mixes: bool | None = None
    """Whether rows' vectors change if some rows come twice; None before it was handed two rows."""


TRIED = "recd_tried"
"""The attribute of a pooling that holds it."""


def why_of_all(
    pooling: nn.Module,
    pool: Callable[..., Tensor],
    unique: Sequence[Tensor],
    every: Sequence[Tensor],
) -> str:
    """Why a pooling would make something else of `unique` samples, by `pool`, than of `every`
    sample; "" where it would not."""
    tried: _Tried | None = vars(pooling).get(TRIED)
    if tried is None:
        parts = [*pooling.modules()]
        norms, dropouts = (
            tuple(part for part in parts if isinstance(part, kinds)) for kinds in (NORMS, DROPOUTS)
        )
        tried = vars(pooling)[TRIED] = _Tried(norms, dropouts)
    if not tried.makes_rows:
        return MAKES_OTHERS
    for norm in tried.norms:
        if norm.training or norm.running_mean is None:
            return NORMALISES
    draws_once, has_values = _draws_once(pooling), bool(unique[0].numel())
    if has_values and not draws_once and any(one.training and one.p for one in tried.dropouts):
        return DRAWS
    if not pooling.training:
        return KEEPS if tried.keeps else MIXES if tried.mixes else ""
    if has_values and None in (tried.draws, tried.keeps, tried.mixes):
        _try(tried, pooling, pool, unique, every)
    if tried.keeps:
        return KEEPS
    if tried.mixes:
        return MIXES
    return DRAWS if tried.draws and not draws_once else ""


def note_no_rows(pooling: nn.Module) -> None:
    """Note that a pooling that was tried made something else than a vector for each row."""
    vars(pooling)[TRIED].makes_rows = False


def _try(
    tried: _Tried,
    pooling: nn.Module,
    pool: Callable[..., Tensor],
    unique: Sequence[Tensor],
    every: Sequence[Tensor],
) -> None:
    """Find out what a pooling does beside returning its result, and undo all of it.

    Whether there are gradients is as it will be: whoever is first to wait for what a sharded
    collection yields, as the pooling may by an attribute, decides it for all others.
    """
    device = unique[0].device
    before, kept = _random_state(device), _buffers(pooling)
    numbers = _numbers(pooling)
    with _on_copies(pooling):
        made = pool(*map(_copied, unique))
        by_unique = _numbers(pooling)
    tried.draws = not torch.equal(before, _random_state(device))
    _restore(before, device)
    keeps = not _alike_all(numbers, by_unique)
    if tried.draws or keeps or len(unique) > 3:  # the same again differs; or it is a `pool_unique`
        tried.mixes = False
    elif twice := _with_rows_twice(*map(_copied, unique)):
        given = [*map(_copied, twice)]
        _set_buffers(pooling, kept)
        with _on_copies(pooling):
            tried.mixes = _differ(made, pool(*twice))
        with _without_zeros(pooling, device) as changed:
            if changed and not tried.mixes:
                _set_buffers(pooling, kept)
                with _on_copies(pooling):
                    made = pool(*map(_copied, unique))
                _set_buffers(pooling, kept)
                with _on_copies(pooling):
                    tried.mixes = _differ(made, pool(*given))
        _restore(before, device)
    if not keeps:
        tried.keeps = False
    elif every[1].numel() > unique[1].numel():
        _set_buffers(pooling, kept)
        with _on_copies(pooling):
            pooling.forward(*map(_copied, each_expanded(*every)))
            tried.keeps = not _alike_all(by_unique, _numbers(pooling))
        _restore(before, device)
    _set_buffers(pooling, kept)


@contextmanager
def _without_zeros(pooling: nn.Module, device: torch.device) -> Iterator[bool]:
    """Inside, parameters that are all zeros are other numbers, since a gate that begins at zero
    hides what it will let through; whether there are any."""
    plain = [
        one for one in pooling.parameters() if type(one) is nn.Parameter and one.is_floating_point()
    ]
    has = torch.stack([one.any().to(device) for one in plain]).tolist() if plain else []
    zeros = [(one, one.data) for one, some in zip(plain, has, strict=True) if not some]
    for one, _ in zeros:  # other memory: a backward may be to come that needs what it holds
        numbers = torch.linspace(0.5, 1, one.numel(), dtype=one.dtype, device=one.device)
        one.data = numbers.reshape(one.shape)
    try:
        yield bool(zeros)
    finally:
        for one, held in zeros:
            one.data = held


def _with_rows_twice(values: Tensor, lengths: Tensor, *queries: Tensor) -> list[Tensor]:
    """What a pooling takes, followed by the first half of its rows once more; nothing if these have
    no values."""
    rows = lengths.numel() // 2
    if not rows:
        return []
    ends = lengths.cumsum(0)
    half, every = torch.stack([ends[rows - 1], ends[-1]]).tolist()  # one wait
    if not half:
        return []
    return [
        torch.cat([values[:every], values[:half]]),
        *(torch.cat([one, one[:rows]]) for one in (lengths, *queries)),
    ]


def _differ(made: Any, again: Any) -> bool:
    """Whether the vectors of the same first rows differ by more than rounding."""
    if not isinstance(made, Tensor) or not isinstance(again, Tensor) or not made.numel():
        return False  # other checks say what is wrong with it
    if not made.dim() or again.shape[1:] != made.shape[1:] or len(again) < len(made):
        return False
    device = made.device.type
    kind = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else made.dtype
    rounding = max(1e-3, 16 * torch.finfo(kind).eps) if kind.is_floating_point else 0
    off = (made - again[: len(made)]).abs().max()
    return bool(off > rounding * made.abs().max())


def _copied(given: Any) -> Any:
    """A copy of a tensor, which a pooling may change in place or put hooks on."""
    if not isinstance(given, Tensor):
        return given
    with torch.enable_grad():
        copied = given.detach().requires_grad_(given.requires_grad).clone()
    if (counted := counted_rows(given)) is not None:
        note_counted(copied, counted)
    return copied


@contextmanager
def _on_copies(pooling: nn.Module) -> Iterator[None]:
    """What its attributes hold is changed inside in copies; afterwards they are what they were."""
    owned = [(vars(part), dict(vars(part))) for part in pooling.modules()]
    for now, before in owned:
        for name, value in before.items():
            if name not in OF_MODULES and type(value) is Tensor:
                now[name] = _copied(value)
            elif name not in OF_MODULES and isinstance(value, (list, dict, set, deque)):
                now[name] = copy.copy(value)
    try:
        yield
    finally:
        for now, before in owned:
            for name in now.keys() - before.keys():
                del now[name]
            now.update(before)


def _buffers(pooling: nn.Module) -> dict[str, Tensor]:
    """Copies of its buffers, by name."""
    return {name: buffer.clone() for name, buffer in pooling.named_buffers() if not is_lazy(buffer)}


def _numbers(pooling: nn.Module) -> dict[str, Tensor]:
    """Copies of the numbers that it keeps in buffers and attributes, by name, without integers of
    Python, which may count its rows."""
    found = _buffers(pooling)
    for path, part in pooling.named_modules():
        for name, value in vars(part).items():
            if name not in OF_MODULES and (type(value) is Tensor or isinstance(value, float)):
                tensor = value if isinstance(value, Tensor) else torch.tensor(value, device="cpu")
                found[f"{path}.{name}"] = tensor.detach().clone()
    return found


def _set_buffers(pooling: nn.Module, kept: Mapping[str, Tensor]) -> None:
    """Have its buffers be what they were."""
    for name, buffer in [*pooling.named_buffers()]:
        if name in kept and buffer.shape != kept[name].shape:
            path, _, own = name.rpartition(".")
            setattr(pooling.get_submodule(path), own, kept[name])
        elif name in kept and not torch.equal(buffer, kept[name]):
            buffer.copy_(kept[name])


def _alike_all(some: Mapping[str, Tensor], others: Mapping[str, Tensor]) -> bool:
    """Whether numbers are the same, but for rounding."""
    return some.keys() == others.keys() and all(map(_alike_numbers, some.values(), others.values()))


def _alike_numbers(some: Tensor, others: Tensor) -> bool:
    if some.shape != others.shape or some.dtype != others.dtype:
        return False
    return torch.equal(some, others) or (
        some.is_floating_point() and torch.allclose(some.double(), others.double(), equal_nan=True)
    )


def _random_state(device: torch.device) -> Tensor:
    """The state of what operations on a device draw from."""
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()


def _restore(state: Tensor, device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.set_rng_state(state, device)
    else:
        torch.set_rng_state(state)


def _draws_once(pooling: nn.Module) -> bool:
    """Whether samples that share a unique one may share what it draws: not unless it says so."""
    return bool(getattr(pooling, "draws_once", False))


def each_expanded(*given: Tensor) -> list[Tensor]:
    """The same of all samples."""
    return [one.expanded() if isinstance(one, Unexpanded) else one for one in given]
