"""Mapped tables: the file alone, then one and two gloo ranks, bit by bit against memory."""

from __future__ import annotations

import ctypes
import os
import resource
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from tiered import ROWS, Bags, ByTiers, Sequences, batch_of, held, sharded
from torch import Tensor, nn
from torch.distributed._shard.sharded_tensor import ShardedTensor
from torchrec.distributed import DistributedModelParallel
from torchrec.distributed.embedding import EmbeddingCollectionSharder
from torchrec.distributed.types import ParameterSharding, ShardingEnv
from torchrec.modules.embedding_configs import EmbeddingConfig
from torchrec.modules.embedding_modules import EmbeddingCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor
from trio import in_mapped_files

from recd_plugins.errors import CapabilityError, RegistryError
from recd_plugins.registry.settings import OptimizerSettings
from recd_plugins.testing.arrange import Arranged, Arrangement, BySharding
from recd_plugins.testing.gloo import GlooPool, RanksFailed
from recd_plugins.testing.parity import TABLE_OPTIMIZERS, TableOptimizerName, check_parity
from recd_plugins.tiers.mapped_tables import IN_MEMORY, MappedFile, file_system, mapped
from recd_plugins.trainer.checkpoints.storage import JsonReader, JsonWriter
from recd_plugins.trainer.initial_tables import initialise_tables, table_initialisers


@dataclass(frozen=True)
class Mapped:
    """Another arrangement, with its tables in mapped files."""

    inner: Arrangement
    folder: Path

    def __call__(self, model: nn.Module, optimizer: OptimizerSettings) -> Arranged:
        arranged = self.inner(model, optimizer)
        return Arranged(model, arranged.plan, mapped(arranged.sharders, self.folder))


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    if (kind := file_system(tmp_path)) in IN_MEMORY:
        pytest.skip(f"needs a temporary folder on a disk; {tmp_path} lies on {kind}")
    return tmp_path


def test_a_file_holds_zeros_and_then_what_is_written(disk: Path) -> None:
    file = MappedFile(10_000, torch.float32, disk)
    assert not file.tensor.any()
    file.tensor[::3] = 2.5
    for random in (True, False):
        file.expect(random=random)
        file.read_ahead(torch.tensor([0, 5_000, 9_990]), 10)
        assert file.tensor.sum() == 2.5 * 3_334


def evict(tensor: Tensor) -> None:
    """Have the system write the file and drop its pages, as when memory is short."""
    system = ctypes.CDLL(None, use_errno=True)
    place = ctypes.c_void_p(tensor.data_ptr()), ctypes.c_size_t(tensor.nbytes)
    synchronous, page_out = 4, 21
    if system.msync(*place, synchronous) or system.madvise(*place, page_out):
        pytest.skip(f"the system drops no pages on demand: {os.strerror(ctypes.get_errno())}")


def waits_for_the_disk(read: Callable[[], object]) -> int:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_majflt
    read()
    return resource.getrusage(resource.RUSAGE_SELF).ru_majflt - before


def test_rows_that_straddle_pages_are_read_ahead(disk: Path) -> None:
    width = 1000  # a page holds 1024 numbers
    file = MappedFile(400 * 3 * width, torch.float32, disk)
    file.tensor.fill_(1)
    at = torch.arange(400) * 3 * width
    file.expect(random=True)

    def read() -> None:
        assert file.tensor[at].sum() + file.tensor[at + width - 1].sum() == 800

    evict(file.tensor)
    assert waits_for_the_disk(read) > 400
    for pause in (0.1, 0.5, 2.0, 10.0):  # a busy disk takes longer
        evict(file.tensor)
        file.read_ahead(at, width)
        time.sleep(pause)
        if (waits := waits_for_the_disk(read)) < 40:
            break
    assert waits < 40


def test_nothing_is_left_in_the_folder(disk: Path) -> None:
    file = MappedFile(10_000, torch.float32, disk)
    assert file.tensor.is_contiguous()
    assert list(disk.iterdir()) == []


def test_a_disk_without_room_is_named(disk: Path) -> None:
    with pytest.raises(CapabilityError, match=r"cannot be allocated .* larger disk"):
        MappedFile(1 << 50, torch.float32, disk)


@in_mapped_files
def test_folders_that_will_not_do(tmp_path: Path) -> None:
    with pytest.raises(RegistryError, match="this process may write"):
        mapped([EmbeddingCollectionSharder()], tmp_path / "absent")
    memory = Path("/dev/shm")
    if not memory.exists() or file_system(memory) not in IN_MEMORY:
        pytest.skip("/dev/shm does not lie in memory here")
    with pytest.raises(RegistryError, match=r"is itself in memory .*`folder` in registry\.yaml"):
        mapped([EmbeddingCollectionSharder()], memory)


@in_mapped_files
def test_cuda_has_its_own_way(disk: Path) -> None:
    (sharder,) = mapped([EmbeddingCollectionSharder()], disk)
    with pytest.raises(CapabilityError, match="fused_uvm_caching"):
        sharder.shard(Sequences().sequences, {}, ShardingEnv(1, 0), torch.device("cuda"))


@in_mapped_files
def test_an_optimizer_that_the_cpu_lacks(disk: Path) -> None:
    sharder = EmbeddingCollectionSharder(fused_params={"optimizer": EmbOptimType.ADAM})
    params = {name: ParameterSharding("row_wise", "fused") for name in ROWS}
    with pytest.raises(CapabilityError, match=r"'songs': .*row-wise Adagrad"):
        mapped([sharder], disk)[0].shard(Sequences().sequences, params, ShardingEnv(1, 0))


@in_mapped_files
@pytest.mark.parametrize(
    ("build", "arrange", "world_size", "kinds"),
    [
        (Sequences, BySharding("row_wise"), 2, TABLE_OPTIMIZERS),
        (Bags, BySharding("table_wise"), 2, ["sgd"]),
        (Sequences, ByTiers(ranks_per_node=1, seed=3), 2, ["sgd", "rowwise_adagrad"]),
        (Bags, ByTiers(ranks_per_node=1, seed=3, coalesce="rank"), 2, ["sgd"]),
    ],
    ids=["sequences", "bags", "sequences behind tiers", "coalesced bags"],
)
def test_bit_by_bit_as_in_memory(
    gloo_pool: GlooPool,
    disk: Path,
    build: Callable[[], nn.Module],
    arrange: Arrangement,
    world_size: int,
    kinds: list[Any],
) -> None:
    check_parity(
        gloo_pool,
        build,
        [[batch_of(step * 2 + rank, 6) for rank in range(world_size)] for step in range(4)],
        arrange=Mapped(arrange, disk),
        reference=arrange,
        tables=kinds,
        exact=True,
    )


def train(model: DistributedModelParallel, steps: range) -> None:
    for step in steps:
        model(batch_of(2 * step + dist.get_rank(), 6))[0].backward()
        model.fused_optimizer.step()


def through_checkpoints(
    there: Arrangement, back: Arrangement, kind: TableOptimizerName, folder: Path
) -> None:
    """On a rank: three steps there, the next three back there, through a checkpoint."""
    straight, first, second = (sharded(one, Sequences, kind) for one in (there, there, back))
    train(straight, range(6))
    train(first, range(3))
    dcp.save(held(first), storage_writer=JsonWriter(folder))
    filled = held(second)
    dcp.load(filled, storage_reader=JsonReader(folder))
    second.load_state_dict(
        {name.removeprefix("model."): v for name, v in filled.items() if name[:6] == "model."}
    )
    train(second, range(3, 6))
    for name, value in held(straight).items():
        if isinstance(value, ShardedTensor):
            ours, theirs = (one.local_shards()[0].tensor for one in (held(second)[name], value))
            assert torch.equal(ours, theirs), name


@in_mapped_files
@pytest.mark.parametrize(("kind", "to_memory"), [("adagrad", True), ("rowwise_adagrad", False)])
def test_checkpoints_move(gloo_pool: GlooPool, disk: Path, kind: str, to_memory: bool) -> None:
    plain = BySharding("row_wise")
    there, back = (Mapped(plain, disk), plain) if to_memory else (plain, Mapped(plain, disk))
    (disk / "checkpoint").mkdir()
    gloo_pool.run(through_checkpoints, there, back, kind, disk / "checkpoint")


LARGE_ROWS = 1 << 19
DIM = 64
TABLE_BYTES = LARGE_ROWS * DIM * 4


class Large(nn.Module):
    """A table of 128 MiB."""

    def __init__(self) -> None:
        super().__init__()
        table = EmbeddingConfig(
            name="songs", embedding_dim=DIM, num_embeddings=LARGE_ROWS, feature_names=["songs"]
        )
        self.sequences = EmbeddingCollection(tables=[table], device=torch.device("meta"))

    def forward(self, features: KeyedJaggedTensor) -> Tensor:
        return self.sequences(features)["songs"].values().square().sum()


def memory_to_train(arrange: Arrangement, limit: float) -> int:
    """On a rank: by how many bytes the memory that the process itself owns has grown.

    It may grow by `limit` of the table's bytes.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    owned = memory("VmData"), memory("RssAnon")
    resource.setrlimit(resource.RLIMIT_DATA, (owned[0] + int(limit * TABLE_BYTES), hard))
    try:
        model = Large()
        initialisers = table_initialisers(model)
        arranged = arrange(model, OptimizerSettings(tables="adagrad"))
        placed = DistributedModelParallel(
            model, device=torch.device("cpu"), plan=arranged.plan, sharders=arranged.sharders
        )
        initialise_tables(placed, initialisers, 0)
        for step in range(3):
            rows = torch.arange(step, LARGE_ROWS, 97)
            placed(
                KeyedJaggedTensor(keys=["songs"], values=rows, lengths=torch.tensor([len(rows)]))
            ).backward()
        return memory("RssAnon") - owned[1]
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def memory(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise AssertionError(f"/proc/self/status has no {field}")


@in_mapped_files
def test_a_table_takes_no_memory_of_the_process(gloo_pool: GlooPool, disk: Path) -> None:
    """Pages of files are the system's to drop; Linux limits what a process has beside them."""
    plain = BySharding("row_wise")
    (grown,) = gloo_pool.run(memory_to_train, Mapped(plain, disk), 0.75, world_size=1)
    assert grown < TABLE_BYTES / 2
    with pytest.raises(RanksFailed, match="allocate"):
        gloo_pool.run(memory_to_train, plain, 0.75, world_size=1)


def test_an_old_fbgemm_keeps_tables_in_memory_and_is_told(
    disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("recd_plugins.tiers.mapped_tables.takes_buffers", lambda: False)
    with pytest.raises(CapabilityError, match=r"mapped tables need fbgemm 1\.7"):
        mapped([EmbeddingCollectionSharder()], disk)
