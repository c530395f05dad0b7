"""The columns of all features move at once as they do feature by feature."""

from __future__ import annotations

import pytest
import torch

from recd_plugins.tiers.collections.column_blocks import ColumnBlocks

CPU = torch.device("cpu")
EQUAL = ((6, 9), (0, 3), (3, 6))
OF_TWO_WIDTHS = ((16, 24), (0, 8), (8, 12), (12, 16))


@pytest.mark.parametrize("rows", [7, 0])
@pytest.mark.parametrize("edges", [EQUAL, OF_TWO_WIDTHS, ((0, 5),)])
def test_columns_are_gathered_and_added(edges: tuple[tuple[int, int], ...], rows: int) -> None:
    blocks = ColumnBlocks.of(edges, CPU)
    columns = torch.randn(rows, max(last for _, last in edges))
    wanted = columns.clone()
    alike = range(2) if len(edges) > 1 else range(1)  # they have one width, of two blocks or of one
    bags = torch.cat([columns[:, slice(*edges[feature])] for feature in alike])
    assert torch.equal(blocks.gather(columns, alike), bags)
    blocks.add(columns, alike, bags)
    for feature in alike:
        wanted[:, slice(*edges[feature])] *= 2
    assert torch.equal(columns, wanted)


@pytest.mark.parametrize("edges", [EQUAL, OF_TWO_WIDTHS, ((0, 5),)])
def test_some_rows_of_each_feature_move(edges: tuple[tuple[int, int], ...]) -> None:
    blocks = ColumnBlocks.of(edges, CPU)
    columns = torch.randn(7, max(last for _, last in edges))
    samples = [torch.tensor([0, 3, 6])[: 3 - feature] for feature in range(len(edges))]
    counts = list(map(len, samples))
    features = torch.arange(len(edges)).repeat_interleave(torch.tensor(counts))
    packed = torch.cat([torch.arange(count) for count in counts])
    target, wanted = torch.zeros(3, columns.shape[1]), torch.zeros(3, columns.shape[1])
    here = blocks.places(torch.cat(samples), features, counts)
    strided = columns.T.contiguous().T
    blocks.move(strided, here, target, blocks.places(packed, features, counts))
    for own, (first, last) in zip(samples, edges, strict=True):
        wanted[: len(own), first:last] = columns[own, first:last]
    assert torch.equal(target, wanted)
    assert blocks.places(packed[:0], features[:0], [0] * len(edges)).tolist() == []
