"""What happens to one batch (O3, O4): conversion, preprocessing, bytes to the trainer."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import chain

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from benchmarks.harness import Figure, Limit, Round, alternate
from benchmarks.limits import copies, one_after_another, reads
from benchmarks.models import SMALL, sessions
from benchmarks.recd_data.quotient import quotient
from benchmarks.recd_data.reading import batches, steps
from recd_plugins.data.table import Table
from recd_plugins.sparse.arrow import jagged_to_arrow
from recd_plugins.sparse.groups import Groups
from recd_plugins.sparse.ikjt import InverseKeyedJaggedTensor
from recd_plugins.sparse.jagged import Jagged
from recd_plugins.sparse.partial import PartialInverseKeyedJaggedTensor
from recd_plugins.sparse.row_wise import RowWise
from recd_plugins.sparse.wire import to_bytes

__all__ = ["conversions", "padded_unique", "preprocessing", "wire"]

Columns = Mapping[str, Jagged]
BATCHES = 4
LEAST = (
    "every id is read once, and the unique samples' ids, their lengths and the inverse lookups are "
    "copied once; to find out which are alike is left out"
)
PAD = -1


def conversions(table: Table, groups: Groups, batch_size: int, rounds: int) -> list[Figure]:
    """Conversions to tensors, of batches of columns in memory, each column in its own place, like
    those of a file."""
    inputs = _columns(table, groups, batch_size)
    lists = tuple(group for group in groups if table.schema.feature(group[0]).sequence)
    listed = [{key: columns[key] for key in chain(*lists)} for columns in inputs]
    measured = alternate(
        {
            "exact": _each(inputs, partial(InverseKeyedJaggedTensor.from_jagged, groups=groups)),
            "cat": _each(inputs, _cat),
            "concatenate": _each(inputs, _concatenate),
            "memcpy": _memcpy(inputs),
            "least": _least(inputs, groups),
            "exact, lists": _each(
                listed, partial(InverseKeyedJaggedTensor.from_jagged, groups=lists)
            ),
            "cat, lists": _each(listed, _cat),
            "concatenate, lists": _each(listed, _concatenate),
            "memcpy, lists": _memcpy(listed),
            "least, lists": _least(listed, lists),
        },
        rounds * 3,
        of="IKJT conversion",
    )
    plain = ("cat", "concatenate")
    cheapest = min(plain, key=lambda name: _median(measured[name]))
    cheapest_of_lists = min(
        (f"{name}, lists" for name in plain), key=lambda n: _median(measured[n])
    )
    ikjts = [InverseKeyedJaggedTensor.from_jagged(columns, groups) for columns in inputs]
    factor = statistics.mean(ikjt.dedupe_factor() for ikjt in ikjts)

    def limit(over: str, under: str) -> Limit:
        return Limit(value=_median(measured[over]) / _median(measured[under]), of=LEAST)

    return [
        quotient(
            "IKJT conversion, time over the cheapest plain KJT conversion's",
            measured["exact"],
            measured[cheapest],
            target=1.25,
            at_most=True,
            limit=limit("least", cheapest),
            note=f"DedupeFactor {factor:.2f}; the cheapest is by {cheapest}; {len(groups)} groups, "
            "most of one to six ids a sample: a row's cost beside that of its bytes",
        ),
        quotient(
            "IKJT conversion, time over the cheapest plain KJT conversion's, sequences alone",
            measured["exact, lists"],
            measured[cheapest_of_lists],
            target=1.25,
            at_most=True,
            limit=limit("least, lists", cheapest_of_lists),
            note=f"{len(lists)} groups, as the paper's RM1 has them",
        ),
        quotient(
            "IKJT conversion, speed over memcpy's",
            measured["memcpy"],
            measured["exact"],
            target=0.5,
            limit=limit("memcpy", "least"),
            note=f"{len(groups)} groups, most of one to six ids a sample: a row's cost beside "
            "that of its bytes",
        ),
        quotient(
            "IKJT conversion, speed over memcpy's, sequences alone",
            measured["memcpy, lists"],
            measured["exact, lists"],
            target=0.5,
            limit=limit("memcpy, lists", "least, lists"),
            note=f"{len(lists)} groups, as the paper's RM1 has them",
        ),
        *_against_unique(inputs, groups, rounds),
        *_partial(inputs, groups, rounds),
    ]


def _against_unique(inputs: Sequence[Columns], groups: Groups, rounds: int) -> list[Figure]:
    measured = alternate(
        {
            "exact": _each(inputs, partial(InverseKeyedJaggedTensor.from_jagged, groups=groups)),
            "unique": _each(
                inputs, lambda columns: [padded_unique(columns, group) for group in groups]
            ),
            "least": _least(inputs, groups),
        },
        rounds,
        of="conversion vs padded torch.unique",
    )
    return [
        quotient(
            "conversion vs padded torch.unique(dim=0)",
            measured["unique"],
            measured["exact"],
            target=15,
            unit="x faster",
            limit=Limit(value=_median(measured["unique"]) / _median(measured["least"]), of=LEAST),
            note="the same unique samples",
        )
    ]


def _partial(inputs: Sequence[Columns], groups: Groups, rounds: int) -> list[Figure]:
    """The figures of the groups whose lists shift when they change."""
    shift = {one.name for one in sessions("rm1", SMALL, samples=1).features if one.shift}
    shifted = tuple(group for group in groups if group[0] in shift)
    kjts = [_concatenate({key: columns[key] for key in chain(*shifted)}) for columns in inputs]
    kinds = {"exact": InverseKeyedJaggedTensor, "partial": PartialInverseKeyedJaggedTensor}
    measured = alternate(
        {name: _each(kjts, partial(kind.from_kjt, groups=shifted)) for name, kind in kinds.items()},
        rounds * 3,
        of="partial conversion",
    )
    kept = {
        name: sum(kind.from_kjt(kjt, shifted).kjt.values().numel() for kjt in kjts)
        for name, kind in kinds.items()
    }
    return [
        quotient(
            "partial conversion, time over exact conversion's",
            measured["partial"],
            measured["exact"],
            target=4,
            at_most=True,
            note=f"{len(shifted)} groups whose lists shift",
        ),
        Figure(
            name="partial conversion, fewer values kept than exact",
            value=100 * (1 - kept["partial"] / kept["exact"]),
            unit="%",
            baseline=0.0,
            target=5,
            note=f"{kept['partial']:,} and {kept['exact']:,}, of the same groups",
        ),
    ]


def preprocessing(table: Table, groups: Groups, batch_size: int, rounds: int) -> list[Figure]:
    """SigridHash and FirstX on the deduplicated features of batches."""
    keys = list(chain(*groups))
    transforms = [
        (RowWise(transform), [name for name in names if name in keys])
        for names, transform in steps(table.schema)
    ]
    ikjts = [
        InverseKeyedJaggedTensor.from_jagged(columns, groups)
        for columns in _columns(table, groups, batch_size)
    ]
    factor = statistics.mean(ikjt.dedupe_factor() for ikjt in ikjts)

    def run(features: KeyedJaggedTensor | InverseKeyedJaggedTensor) -> None:
        for transform, names in transforms:
            features = transform(features, names)

    sides = {
        "kjt": _each([ikjt.to_kjt() for ikjt in ikjts], run),
        "ikjt": _each(ikjts, run),
    }
    measured = alternate(sides, rounds * 3, of="preprocessing")
    return [
        quotient(
            "preprocessing on unique samples",
            measured["kjt"],
            measured["ikjt"],
            target=0.8 * factor,
            unit="x faster",
            limit=Limit(value=factor, of="the DedupeFactor: as much work a unique id as an id"),
            note=f"target: 0.8 x DedupeFactor {factor:.2f}",
        )
    ]


def wire(table: Table, groups: Groups, batch_size: int) -> list[Figure]:
    """Arrow IPC streams of the deduplicated features: lists, and an IKJT."""
    plain = ours = 0
    factors = []
    for columns in _columns(table, groups, batch_size):
        lists = {key: jagged_to_arrow(column) for key, column in columns.items()}
        plain += to_bytes(pa.record_batch(lists)).size
        ikjt = InverseKeyedJaggedTensor.from_jagged(columns, groups)
        ours += ikjt.to_bytes().size
        factors.append(ikjt.dedupe_factor())
    factor = statistics.mean(factors)
    return [
        Figure(
            name="bytes from reader to trainer",
            value=plain / ours,
            unit="x fewer",
            baseline=1.0,
            target=0.9 * factor,
            limit=Limit(
                value=factor,
                of="the DedupeFactor: unique ids alone; lengths and inverse lookups are left out",
            ),
            note=f"target: 0.9 x DedupeFactor {factor:.2f}; {plain / len(factors) / 1e6:,.2f} and "
            f"{ours / len(factors) / 1e6:,.2f} MB a batch, as Arrow; {len(groups)} inverse lookups "
            "and lists' lengths keep it below the DedupeFactor",
        )
    ]


def _columns(table: Table, groups: Groups, batch_size: int) -> list[Columns]:
    """The features of the groups in some batches, each column in its own memory."""
    found: list[Columns] = []
    for batch in batches(table, batch_size, BATCHES):
        features = batch.features.to_dict()
        found.append(
            {
                key: Jagged(features[key].values().clone(), features[key].lengths().clone())
                for key in chain(*groups)
            }
        )
    return found


def _each(inputs: Sequence[object], convert: Callable[..., object]) -> Callable[[], None]:
    """A call that converts all inputs and keeps nothing: otherwise every round would use fresh
    pages."""

    def run() -> None:
        for one in inputs:
            convert(one)

    return run


def _median(side: Sequence[Round]) -> float:
    return statistics.median(one.wall for one in side)


def _cat(columns: Columns) -> KeyedJaggedTensor:
    parts = list(columns.values())
    return KeyedJaggedTensor(
        keys=list(columns),
        values=torch.cat([part.values for part in parts]),
        lengths=torch.cat([part.lengths for part in parts]),
    )


def _concatenate(columns: Columns) -> KeyedJaggedTensor:
    parts = list(columns.values())
    values = torch.empty(sum(part.values.numel() for part in parts), dtype=torch.int64)
    lengths = torch.empty(sum(part.lengths.numel() for part in parts), dtype=torch.int32)
    # numpy, since torch.cat wakes threads, which a reader should leave to the model.
    np.concatenate([part.values.numpy() for part in parts], out=values.numpy())
    np.concatenate(
        [part.lengths.numpy() for part in parts], out=lengths.numpy(), casting="same_kind"
    )
    stride = lengths.numel() // len(columns)
    return KeyedJaggedTensor(keys=list(columns), values=values, lengths=lengths, stride=stride)


def _memcpy(inputs: Sequence[Columns]) -> Callable[[], None]:
    """A call that copies every id into memory that exists already."""
    return copies([column.values.numpy() for columns in inputs for column in columns.values()])


def _least(inputs: Sequence[Columns], groups: Groups) -> Callable[[], None]:
    """A call that reads every id, and copies the content of an IKJT of them into memory that exists
    already."""
    ids = [column.values.numpy() for columns in inputs for column in columns.values()]
    ikjts = [InverseKeyedJaggedTensor.from_jagged(columns, groups) for columns in inputs]
    held = [(one.kjt.values(), one.kjt.lengths(), one.inverse_lookup) for one in ikjts]
    return one_after_another(reads(ids), copies([part.numpy() for parts in held for part in parts]))


def padded_unique(columns: Columns, group: Sequence[str]) -> tuple[list[Jagged], Tensor]:
    """A group's unique samples, and the inverse lookup, in torch's own way."""
    widths = [int(columns[key].lengths.max()) for key in group]
    rows = torch.cat(
        [
            torch.ops.fbgemm.jagged_to_padded_dense(
                columns[key].values,
                [torch.ops.fbgemm.asynchronous_complete_cumsum(columns[key].lengths)],
                [width],
                PAD,
            )
            for key, width in zip(group, widths, strict=True)
        ],
        dim=1,
    )
    unique, inverse_lookup = torch.unique(rows, dim=0, return_inverse=True)
    kept = []
    for part in unique.split(widths, dim=1):
        held = part != PAD
        kept.append(Jagged(part[held], held.sum(dim=1)))
    return kept, inverse_lookup
