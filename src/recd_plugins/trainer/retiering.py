"""Moves replicas while a run trains: every so many steps, to the rows that are hot by then.

A checkpoint has what the next moves depend on:

    replicas.arrow         the tier plan: the rows that have replicas
    latest-batches.arrow   the latest batches that rank 0 has trained, as they travel
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import torch
import torch.distributed as dist

from recd_plugins.data.batch import Batch
from recd_plugins.data.wired_batch import WIRED_SCHEMA, batch_to_record, batches_from_record
from recd_plugins.errors import PluginError
from recd_plugins.planning.planner_bases import Tiered
from recd_plugins.planning.tier_plans.tier_plan import TierPlan
from recd_plugins.planning.together import on_every_rank
from recd_plugins.slots import Callback
from recd_plugins.slots.batch_check import Named
from recd_plugins.storage.whole_file import whole_file
from recd_plugins.trainer.checkpoints.files import damaged_file, refused
from recd_plugins.trainer.training import Training

if TYPE_CHECKING:
    from recd_plugins.data.dataset import Split
    from recd_plugins.planning.planner_bases import Retiers

__all__ = ["Retiering"]

REPLICAS = "replicas.arrow"
LATEST = "latest-batches.arrow"


class Retiering(Callback):
    """Keeps the latest batches of rank 0 and hands them to the planner."""

    def __init__(
        self,
        planner: Retiers,
        *,
        start: int,
        every: int,
        keep: int,
        named: Named,
        fill: Callable[[], None],
    ) -> None:
        """Inside `named(when)`, an error of the planner names the planner. `fill` has the pipeline
        read as far ahead as it does between steps."""
        self._planner, self._named, self._fill = planner, named, fill
        self._start = start
        self._every = every
        self._restored = False
        """Whether replicas are where they were when a checkpoint was made."""
        self._recent: deque[Batch] = deque(maxlen=keep if dist.get_rank() == 0 else 0)

    def on_batch(self, training: Training, batch: Batch, split: Split) -> Batch:
        if split == "train":
            self._recent.append(batch)
        return batch

    def before_step(self, training: Training) -> None:
        """Move replicas if it is time; no backward may be pending."""
        step = training.step
        if step == 0 or step % self._every or (step == self._start and not self._restored):
            return
        if step == self._start:
            # The checkpoint was made before this move, by which no batch was routed that the
            # pipeline had ahead.
            self._fill()
        group = dist.group.WORLD
        assert group is not None  # a job has one
        with self._named("when it moved replicas"):
            self._planner.retier(self._recent, group)

    @property
    def _plan(self) -> TierPlan | None:
        """The rows that have replicas, if the planner says so and any have."""
        return self._planner.tier_plan if isinstance(self._planner, Tiered) else None

    def save(self, folder: Path, ahead: int) -> None:
        """On rank 0, write what `restore` takes; `ahead` of the latest batches are not trained yet.

        Nothing is written of a planner without a tier plan, nor beside batches that do not travel.
        """
        plan = self._plan
        if plan is None:
            return
        trained = list(self._recent)[: max(0, len(self._recent) - ahead)]
        try:
            records = [batch_to_record(batch.to(torch.device("cpu"))) for batch in trained]
        except PluginError:  # a `dedup` of a plugin's own
            return
        plan.save(folder / REPLICAS)
        _write(folder / LATEST, records)

    def restore(self, folder: Path) -> bool:
        """Move replicas to where they were when a checkpoint was made, so that the next moves are
        those of an uninterrupted run; whether that worked. Every rank calls it before the first
        batch."""
        files = (folder / REPLICAS, folder / LATEST)
        if not all(on_every_rank(lambda: all(file.exists() for file in files))):
            return isinstance(self._planner, Tiered) and self._plan is None  # so that none move
        plan = TierPlan.load(files[0])
        with self._named("when it restored replicas"):
            self._restored = self._planner.restore_replicas(plan)
        if self._restored and self._recent.maxlen:
            self._recent.extend(_read(files[1]))
        return self._restored


def _write(path: Path, records: Iterable[pa.RecordBatch]) -> None:
    with (
        whole_file(path) as part,
        pa.OSFile(str(part), "wb") as file,
        pa.ipc.new_file(file, WIRED_SCHEMA) as writer,
    ):
        for record in records:
            writer.write_batch(record)


def _read(path: Path) -> Iterator[Batch]:
    try:
        with pa.OSFile(str(path), "rb") as file:
            for record in pa.ipc.open_file(file).read_all().to_batches(max_chunksize=1):
                yield from (batch for batch, _ in batches_from_record(record))
    except (pa.ArrowException, OSError) as error:
        if refused(error):
            raise
        raise damaged_file(path, str(error)) from error
