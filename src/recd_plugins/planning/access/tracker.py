"""The lookups that TorchRec's delta tracker recorded for a sharded model, as a profile."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from recd_plugins.errors import DataError
from recd_plugins.planning.access.access_profile import Counted, Profile, Tally
from recd_plugins.planning.access.batches_of_ranks import gathered
from recd_plugins.planning.access.distribution import Integers
from recd_plugins.planning.access.forecast import FOLDS
from recd_plugins.planning.access.row_counter import RowCounter
from recd_plugins.planning.together import together

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup
    from torchrec.distributed.model_tracker.model_delta_tracker import ModelDeltaTrackerTrec

__all__ = ["profile_tracker"]


def profile_tracker(
    tracker: ModelDeltaTrackerTrec, *, batch_size: int, group: ProcessGroup | None = None
) -> Profile:
    """The lookups that `model.get_delta_tracker()` of TorchRec's DistributedModelParallel has
    recorded since it was made, for all tables that it tracks. Every rank calls this.

    Each step had `batch_size` samples on each rank. Rank 0 gets the profile; on the others it is
    empty. The tracker stays as it is. It must not have been read before, and must not compact its
    records, because then it knows which rows were looked up, but not how often.
    """
    import torch.distributed as dist

    over = group or dist.GroupMember.WORLD
    if over is None:
        raise DataError("profile: a tracker is of ranks, but there is no process group.")
    world = over.size()
    parts: list[_TrackedTable] = []

    def read() -> int:
        parts.extend(_tables(tracker, over.rank()))
        return len({index for part in parts for index, _ in part.batches})

    steps = together(over, read)
    counted = {part.name: part.counted for part in parts}
    tally, recorded = Tally(counted=counted), Tally(counted=counted)
    first = min((index for part in parts for index, _ in part.batches), default=0)
    for part in parts:
        counter = recorded.counters.pop(part.name)
        # A row of a sharded table is recorded on its own rank, in one batch of all ranks' samples;
        # a row of a replicated table on each rank, in the rank's own batch.
        ranks = (world if over.rank() == 0 else 0) if part.sharded else 1
        folds = np.arange(steps) * FOLDS // steps
        for step, ids in part.batches:
            counter.add(ids, 0, int(folds[min(step - first, steps - 1)]))
        counts, (_, *others) = counter.state()
        if isinstance(counter, RowCounter) or counter.exact is not None:
            batches = np.bincount(folds, minlength=FOLDS) * min(ranks, 1)
            samples = batches * ranks * batch_size
            numbers = (*samples.tolist(), *batches.tolist(), others[-1])
        else:
            numbers = (steps * ranks * batch_size, *others)
        tally.counters[part.name].merge(counts, numbers)
    tally.samples, tally.batches = steps * batch_size, steps
    tally = gathered(tally, over)
    return tally.profile() if over.rank() == 0 else Profile(rows={})


class _TrackedTable:
    """One table, with the ids that were looked up in its part on this rank."""

    def __init__(self, name: str, module: Any, lookups: Any, rank: int) -> None:
        self.name = name
        sharding = module.module_sharding_plan[name]
        spec = sharding.sharding_spec
        self.sharded = spec is not None
        first, copies = 0, 1
        if spec is None:
            collection = getattr(module, "embedding_bags", None) or module.embeddings
            num_rows = collection[name].weight.shape[0]
        else:
            num_rows = max(one.shard_offsets[0] + one.shard_sizes[0] for one in spec.shards)
            mine = [one for one in spec.shards if one.placement.rank() == rank]
            # The same rows are looked up in all column parts: those of the first are counted.
            copies = len(mine) if any(one.shard_offsets[1] == 0 for one in mine) else 0
            first = mine[0].shard_offsets[0] if mine else 0
        self.counted = Counted(num_rows=num_rows, features=(name,))
        self.batches: list[tuple[int, Integers]] = [
            (one.batch_idx, first + np.sort(one.ids.cpu().numpy().astype(np.int64))[::copies])
            for one in lookups
            if copies
        ]


def _tables(tracker: ModelDeltaTrackerTrec, rank: int) -> Iterator[_TrackedTable]:
    read = [index for index in tracker.per_consumer_batch_idx.values() if index >= 0]
    if read or tracker.curr_compact_index:
        raise DataError(
            "profile: the tracker was read before, or compacts its records "
            "(DeltaTrackerConfig.auto_compact): it knows which rows were looked up, but not how "
            "often. Use a tracker only for the profile, with auto_compact off."
        )
    recorded = tracker.store.per_fqn_lookups
    if not tracker.curr_batch_idx:
        raise DataError("profile: the tracker has recorded no step. Train some first.")
    for module in tracker.tracked_modules.values():
        for name in module.module_sharding_plan:
            fqn = tracker.table_to_fqn[name]
            yield _TrackedTable(name, module, recorded.get(fqn, ()), rank)
