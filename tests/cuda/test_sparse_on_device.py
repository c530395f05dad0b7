"""Rung 1 (values): conversion, expansion and routing on CUDA's way, held to the CPU's."""

from __future__ import annotations

import torch
from emulated import EmulatedCuda, held
from torch import Tensor
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recd_plugins.data.batch import Batch
from recd_plugins.embedding.expand import expand_columns, expand_rows, expand_values
from recd_plugins.embedding.lookup import BatchSamples, rows_of
from recd_plugins.sparse.ikjt import InverseKeyedJaggedTensor
from recd_plugins.sparse.partial import PartialInverseKeyedJaggedTensor
from recd_plugins.sparse.rows.coalesce import coalesce
from recd_plugins.tiers.exchange.home_ids import coalesce_by_table
from recd_plugins.tiers.routing.bitmap_router import BitmapRouter
from recd_plugins.tiers.routing.routed_ids import Segments
from recd_plugins.tiers.routing.sorted_router import SortedRouter

GROUPS = (("a", "b"), ("c",))


def features() -> KeyedJaggedTensor:
    draw = torch.Generator().manual_seed(0)
    rows = torch.randint(0, 5, (3, 24), generator=draw)
    lengths = rows % 4
    values = [
        torch.arange(int(length)) + 10 * int(row)
        for row, length in zip(rows.flatten(), lengths.flatten(), strict=True)
    ]
    return KeyedJaggedTensor(
        keys=["a", "b", "c"], values=torch.cat(values), lengths=lengths.flatten().int()
    )


def alike(ikjt: InverseKeyedJaggedTensor, other: InverseKeyedJaggedTensor) -> None:
    assert ikjt.unique_counts == other.unique_counts
    for one, its in (
        (ikjt.inverse_lookup, other.inverse_lookup),
        (ikjt.kjt.values(), other.kjt.values()),
        (ikjt.kjt.lengths(), other.kjt.lengths()),
    ):
        assert torch.equal(held(one), held(its))


def test_an_ikjt_is_made_there_as_here() -> None:
    kjt = features()
    here = InverseKeyedJaggedTensor.from_kjt(kjt, GROUPS)
    with EmulatedCuda():
        there = InverseKeyedJaggedTensor.from_kjt(kjt.to(torch.device("cuda")), GROUPS)
        assert there.inverse_lookup.is_cuda
        alike(there, here)
        alike(here.to(torch.device("cuda")), here)
        back = there.to_kjt(["c", "a"])
        partial = PartialInverseKeyedJaggedTensor.from_ikjt(there).to_kjt(["c", "a"])
        joined = InverseKeyedJaggedTensor.concat([there, there])
        picked = there.select(torch.tensor([3, 3, 0], device="cuda"))
        bytes_of = there.to_bytes()
    assert torch.equal(held(back.values()), here.to_kjt(["c", "a"]).values())
    assert torch.equal(held(partial.values()), held(back.values()))
    alike(joined, InverseKeyedJaggedTensor.concat([here, here]))
    alike(picked, here.select(torch.tensor([3, 3, 0])))
    alike(InverseKeyedJaggedTensor.from_bytes(bytes_of), here)


def test_a_copy_waits_for_nothing_but_itself() -> None:
    here = InverseKeyedJaggedTensor.from_kjt(features(), GROUPS)
    with EmulatedCuda() as device:
        here.to(torch.device("cuda"), non_blocking=True)
        assert not device.waits


def test_a_batch_of_unique_samples_is_waited_for_once() -> None:
    """To count what its sequences are expanded to."""
    kjt = features()
    dedup = InverseKeyedJaggedTensor.from_kjt(kjt, GROUPS)
    dedup.kjt.unsync()  # as transforms leave it
    with EmulatedCuda() as device:
        there = Batch(
            dense=torch.zeros(24, 1),
            features=KeyedJaggedTensor(
                keys=["d"], values=kjt["a"].values(), lengths=kjt["a"].lengths()
            ),
            labels=torch.zeros(24),
            weights=torch.ones(24),
            dedup=dedup,
        ).to(torch.device("cuda"), non_blocking=True)
        rows = rows_of(there.sparse, ["c", "d", "a"])
        assert not device.waits
        samples = BatchSamples(there.sparse, sequences=True)
        assert sum(device.waits.values()) == 1
        ids, lengths = there.sparse.rows["c"].values, there.sparse.rows["c"].lengths
        _, lookup = samples.of("c")
        assert lookup is not None
        embedded = ids.float().unsqueeze(1).requires_grad_()
        sizes = lengths, lookup, samples.counts["c"].num_values
        expanded = [expand_values(one, *sizes) for one in (ids, embedded)]
        expanded[1].sum().backward()
        assert sum(device.waits.values()) == 1, device.waits
    assert rows.keys() == ["c", "d", "a"]
    for one in expanded:
        assert torch.equal(held(one).flatten().long(), kjt["c"].values())


def test_unique_samples_are_expanded_with_their_gradients() -> None:
    draw = torch.Generator().manual_seed(0)
    lengths, lookup = torch.tensor([2, 0, 3]), torch.tensor([2, 0, 0, 1, 2])
    rows, values = torch.randn(3, 4, generator=draw), torch.randn(5, 4, generator=draw)

    def both(device: str) -> list[Tensor]:
        unique, of_ids = (one.to(device).requires_grad_() for one in (rows, values))
        there, sizes = lookup.to(device), lengths.to(device)
        found = [
            expand_rows(unique, there),
            expand_values(of_ids, sizes, there),
            expand_columns([unique, unique], [there, there.flip(0)]),
        ]
        torch.cat([one.flatten() for one in found]).square().sum().backward()
        assert unique.grad is not None
        assert of_ids.grad is not None
        return [held(one) for one in (*found, unique.grad, of_ids.grad)]

    with EmulatedCuda():
        there = both("cuda")
    for one, other in zip(there, both("cpu"), strict=True):
        torch.testing.assert_close(one, other)


def test_ids_are_coalesced_and_routed() -> None:
    draw = torch.Generator().manual_seed(0)
    ids = torch.randint(-1, 41, (60,), generator=draw)  # one row too many, and one too few
    tiers = [[torch.arange(0, 9), torch.arange(3)], [torch.arange(20, 25), torch.arange(7, 9)]]
    segments = Segments((20, 0, 40), (1, 0, 0))
    here = BitmapRouter([40, 12], *tiers).route(ids, segments)
    with EmulatedCuda() as device:
        there = SortedRouter([40, 12], *([rows.to("cuda") for rows in tier] for tier in tiers))
        given = ids.to("cuda")
        device.waits.clear()
        found = there.route(given, segments)
        routing = dict(device.waits)
        parts = coalesce_by_table(given, [20, 40])
        other = coalesce(given)
    for one, its in ((found.missed, here.missed), (found.per_node.at, here.per_node.at)):
        assert torch.equal(held(one), its)
    for tier, its_tier in ((found.replicated, here.replicated), (found.per_node, here.per_node)):
        assert torch.equal(held(tier.positions), its_tier.positions)
    assert found.outside == here.outside
    assert torch.equal(held(parts.ids)[held(parts.inverse_lookup)], ids)
    assert torch.equal(held(other.ids)[held(other.inverse_lookup)], ids)
    assert sum(routing.values()) == 1, routing
