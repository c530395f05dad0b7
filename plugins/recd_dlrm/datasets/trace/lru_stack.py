"""An LRU stack with operations of O(log n): numba kernels on plain arrays.

Ids are in slots, the least recently used first; an access moves its id to the first free slot. A
Fenwick tree over the slots counts the occupied ones, so slots can be turned into positions and
back. When no slot is free, the ids close ranks, which happens once in as many accesses as there are
ids.
"""

from __future__ import annotations

import numpy as np

from recd_dlrm.datasets.flat_columns import F64, I64
from recd_plugins.api.rows import kernel

__all__ = ["LruStack", "draw_accesses", "full_stack", "stack_distances"]

LruStack = tuple[I64, I64, I64]
"""Over n ids: the tree [2n + 1], the id last put into each slot [2n], each id's slot [n]."""


def full_stack(num_ids: int) -> LruStack:
    """Ids in order: 0 at the bottom, `num_ids - 1` on top."""
    tree = np.zeros(2 * num_ids + 1, np.int64)
    id_in = np.zeros(2 * num_ids, np.int64)
    slot_of = np.arange(num_ids)
    id_in[:num_ids] = slot_of
    occupy(tree, num_ids)
    return tree, id_in, slot_of


@kernel
def stack_distances(ids: I64, num_ids: int) -> I64:
    """Algorithm 1's d for each access of `ids` [N], all in [0, num_ids).

    It is the id's position from the top, 1 for the topmost; 0 for a new id.
    """
    tree = np.zeros(2 * num_ids + 1, np.int64)
    id_in = np.zeros(2 * num_ids, np.int64)
    slot_of = np.full(num_ids, -1)
    distances = np.zeros(len(ids), np.int64)
    seen = free = 0
    for i, accessed in enumerate(ids):
        if free == len(id_in):
            free = close_ranks(tree, id_in, slot_of)
        slot = slot_of[accessed]
        if slot < 0:
            seen += 1
        else:
            distances[i] = seen - occupied_below(tree, slot)
            add(tree, slot, -1)
        put_on_top(tree, id_in, slot_of, accessed, free)
        free += 1
    return distances


@kernel
def draw_accesses(
    stack: LruStack,
    free: int,
    seen: int,
    uniform: F64,
    distances: I64,
    until_seen: F64,
    once_seen: F64,
) -> tuple[I64, int, int]:
    """Algorithm 2, continued: ids [N] for `uniform` [N], then the new `free` and `seen`.

    p is over the ascending `distances` [K], of which the first is 0. It is given as two running
    sums [K]: one until all ids have been seen, and one from then on. Its support is the distances
    up to `seen`.
    """
    tree, id_in, slot_of = stack
    accesses = np.empty(len(uniform), np.int64)
    support = np.searchsorted(distances, seen, side="right")
    for i, share in enumerate(uniform):
        sums = (until_seen if seen < len(slot_of) else once_seen)[:support]
        drawn = np.searchsorted(sums, share * sums[-1], side="right")
        distance = distances[min(drawn, support - 1)]
        if free == len(id_in):
            free = close_ranks(tree, id_in, slot_of)
        # The unseen ids wait at the bottom, so the front of the paper's list is the bottom.
        slot = slot_at(tree, len(slot_of) - distance if distance else 0)
        if distance == 0:
            seen += 1
            while support < len(distances) and distances[support] <= seen:
                support += 1
        accesses[i] = id_in[slot]
        add(tree, slot, -1)
        put_on_top(tree, id_in, slot_of, accesses[i], free)
        free += 1
    return accesses, free, seen


@kernel
def put_on_top(tree: I64, id_in: I64, slot_of: I64, accessed: int, free: int) -> None:
    id_in[free] = accessed
    slot_of[accessed] = free
    add(tree, free, 1)


@kernel
def close_ranks(tree: I64, id_in: I64, slot_of: I64) -> int:
    """Move the ids down into the first slots, in order, and return the first free slot."""
    free = 0
    for slot, accessed in enumerate(id_in):
        if slot_of[accessed] == slot:
            id_in[free] = accessed
            slot_of[accessed] = free
            free += 1
    occupy(tree, free)
    return free


@kernel
def occupy(tree: I64, occupied: int) -> None:
    """Make the tree count the first `occupied` slots and no others."""
    for node in range(1, len(tree)):
        first = node - (node & -node)
        tree[node] = max(0, min(node, occupied) - first)


@kernel
def add(tree: I64, slot: int, change: int) -> None:
    node = slot + 1
    while node < len(tree):
        tree[node] += change
        node += node & -node


@kernel
def occupied_below(tree: I64, slot: int) -> int:
    """The number of occupied slots before `slot`: the position of its id from the bottom."""
    count, node = 0, slot
    while node > 0:
        count += tree[node]
        node -= node & -node
    return count


@kernel
def slot_at(tree: I64, position: int) -> int:
    """The slot of the id at `position` from the bottom, counted from 0: the inverse of
    `occupied_below`."""
    step = 1
    while 2 * step < len(tree):
        step *= 2
    node, left = 0, position
    while step > 0:
        if node + step < len(tree) and tree[node + step] <= left:
            node += step
            left -= tree[node]
        step //= 2
    return node
