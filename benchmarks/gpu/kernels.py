"""Conversion and copies to the device, and kernels against torch's own."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Tensor

from benchmarks.gpu.parts import Part, Setting, synchronised
from benchmarks.harness import Figure, alternate, spread
from recd_plugins.embedding.expand import cells_of, expand_values
from recd_plugins.sparse.ikjt import InverseKeyedJaggedTensor
from recd_plugins.sparse.jagged import Jagged, WeightedJagged
from recd_plugins.sparse.rows.unique import unique_rows_on_device
from recd_plugins.tiers.exchange.home_ids import coalesce_by_table
from recd_plugins.tiers.routing.bitmap_router import BitmapRouter
from recd_plugins.tiers.routing.routed_ids import Segments
from recd_plugins.tiers.routing.sorted_router import SortedRouter

__all__ = ["KERNELS"]

GROUPS = (("a", "b"), ("c", "d"))
KEYS = tuple(key for group in GROUPS for key in group)


def _conversion(setting: Setting) -> Iterator[Figure]:
    yield from setting.on_ranks(_convert, setting.quick)[0]


def _convert(device: torch.device, quick: bool) -> list[Figure]:
    """A batch's way to the device: deduplicated on the CPU, on the device, or as it is."""
    rounds, batch_size = (1, 256) if quick else (20, 4096)
    rows = _rows(batch_size)
    kjt = WeightedJagged.joined(list(rows.values()))
    here = {key: Jagged(one.values, one.lengths) for key, one in rows.items()}
    ikjt = InverseKeyedJaggedTensor.from_jagged(here, GROUPS)
    there = {
        key: Jagged(one.values.to(device), one.lengths.to(device)) for key, one in rows.items()
    }
    sides: dict[str, Callable[[], object]] = {
        "convert on the CPU": lambda: InverseKeyedJaggedTensor.from_jagged(here, GROUPS),
        "convert on the device": lambda: InverseKeyedJaggedTensor.from_jagged(there, GROUPS),
    }
    found = _seconds(sides, device, rounds)
    figures = [_against(found, "convert on the device", "convert on the CPU", f"B = {batch_size}")]
    plain, unique = (kjt.values, kjt.lengths), (*_tensors(ikjt),)
    copies: dict[str, Callable[[], object]] = {
        "copy of the KJT": lambda: [one.to(device) for one in plain],
        "copy of the IKJT": lambda: [one.to(device) for one in unique],
    }
    if device.type == "cuda":
        pinned = [[one.pin_memory() for one in tensors] for tensors in (plain, unique)]
        copies |= {
            "pinned copy of the KJT": lambda: [o.to(device, non_blocking=True) for o in pinned[0]],
            "pinned copy of the IKJT": lambda: [o.to(device, non_blocking=True) for o in pinned[1]],
        }
    else:
        copies = {
            "copy of the KJT": lambda: [one.clone() for one in plain],
            "copy of the IKJT": lambda: [one.clone() for one in unique],
        }
    found = _seconds(copies, device, rounds)
    sizes = [sum(one.nbytes for one in tensors) / 1e6 for tensors in (plain, unique)]
    for kind in ("", "pinned "):
        if f"{kind}copy of the KJT" in found:
            note = f"{sizes[0]:.1f} and {sizes[1]:.1f} MB"
            figures.append(
                _against(found, f"{kind}copy of the IKJT", f"{kind}copy of the KJT", note)
            )
    return figures


def _kernels(setting: Setting) -> Iterator[Figure]:
    yield from setting.on_ranks(_kernels_on, setting.quick)[0]


def _kernels_on(device: torch.device, quick: bool) -> list[Figure]:
    rounds, batch_size, num_rows = (1, 256, 100_000) if quick else (20, 4096, 30_000_000)
    figures = []
    rows = next(iter(_rows(batch_size).values()))
    values, offsets = rows.values.to(device), rows.offsets.to(device)
    longest = [int(rows.lengths.max())]

    def padded() -> Tensor:
        each: Tensor = torch.ops.fbgemm.jagged_to_padded_dense(
            values[:, None], [offsets], longest, -1
        )
        return each.squeeze(2)

    sides: dict[str, Callable[[], object]] = {
        "different rows": lambda: unique_rows_on_device(values, offsets),
        "torch.unique of padded rows": lambda: torch.unique(padded(), dim=0, return_inverse=True),
    }
    found = _seconds(sides, device, rounds)
    note = f"{batch_size} rows of {rows.values.numel()} ids"
    figures.append(_against(found, "different rows", "torch.unique of padded rows", note))

    draw = torch.Generator().manual_seed(0)
    count = 10_000 if quick else 1_000_000
    ids = (num_rows * torch.rand(count, generator=draw) ** 4).long()
    hot, warm = torch.arange(num_rows // 100), torch.arange(num_rows // 100, num_rows // 20)
    kind = BitmapRouter if device.type == "cpu" else SortedRouter
    router = kind([num_rows], [hot.to(device)], [warm.to(device)])
    there, segments = ids.to(device), Segments((count,), (0,))
    parts = [count // 4] * 4
    four = there % (num_rows // 4)
    sides = {
        "routing": lambda: router.route(there, segments),
        "coalescing of four tables": lambda: coalesce_by_table(four[: sum(parts)], parts),
        "torch.unique of each": lambda: [
            torch.unique(one, return_inverse=True) for one in four[: sum(parts)].split(parts)
        ],
    }
    found = _seconds(sides, device, rounds)
    nanoseconds = [1e9 * one / count for one in found["routing"]]
    figures.append(
        Figure(
            name="routing, an id",
            value=statistics.median(nanoseconds),
            unit="ns",
            spread=spread(nanoseconds),
            note=f"{count:,} ids of {num_rows:,} rows, both tiers",
        )
    )
    figures.append(
        _against(found, "coalescing of four tables", "torch.unique of each", f"{count:,} ids")
    )

    unique = rows.select(torch.arange(0, batch_size, 8))
    lookup = (torch.arange(batch_size) // 8).to(device)
    embedded = torch.randn(unique.values.numel(), 64, device=device)
    lengths = unique.lengths.long().to(device)
    sides = {
        "expanding": lambda: expand_values(embedded, lengths, lookup),
        "gather": lambda: embedded[cells_of(lengths, lookup)],
    }
    found = _seconds(sides, device, rounds)
    note = f"{unique.values.numel()} values of D = 64, eightfold"
    figures.append(_against(found, "expanding", "gather", note))
    return figures


def _rows(batch_size: int) -> dict[str, WeightedJagged]:
    """Eight samples a session, which have their rows in common; features of up to 50 ids."""
    draw = torch.Generator().manual_seed(0)
    found = {}
    for key in KEYS:
        lengths = torch.randint(0, 50, (batch_size // 8,), generator=draw)
        values = torch.randint(0, 1 << 20, (int(lengths.sum()),), generator=draw)
        unique = WeightedJagged(values, lengths.int())
        found[key] = unique.select(torch.arange(batch_size) // 8)
    return found


def _tensors(ikjt: InverseKeyedJaggedTensor) -> tuple[Tensor, ...]:
    return (ikjt.kjt.values(), ikjt.kjt.lengths(), ikjt.inverse_lookup)


def _seconds(
    sides: Mapping[str, Callable[[], object]], device: torch.device, rounds: int
) -> dict[str, list[float]]:
    waited = {name: synchronised(side, device) for name, side in sides.items()}
    measured = alternate(waited, rounds, of=", ".join(sides))
    return {name: [one.wall for one in each] for name, each in measured.items()}


def _against(found: Mapping[str, list[float]], name: str, other: str, note: str) -> Figure:
    pairs = zip(found[other], found[name], strict=True)
    gains = [theirs / ours for theirs, ours in pairs]
    times = [1e3 * statistics.median(found[side]) for side in (other, name)]
    return Figure(
        name=f"{name}, against {other}",
        value=statistics.median(gains),
        unit="x faster",
        baseline=1.0,
        spread=spread(gains),
        note=f"{times[0]:.3g} and {times[1]:.3g} ms; {note}",
    )


KERNELS = (
    Part(
        name="conversion",
        about="IKJTs made on the CPU and on the device; pinned copies of them, and of KJTs",
        run=_conversion,
    ),
    Part(
        name="kernels",
        about="different rows, routing, coalescing and expanding, against torch's own",
        run=_kernels,
    ),
)
