"""Ladder: stored tensors as values, piece by piece; then mapped tables where memory is short."""

from __future__ import annotations

import io
import json
import resource
import zipfile
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
import torch.distributed.checkpoint as dcp
from on_disk import on_disk
from torch import Tensor, nn
from torch.distributed._shard.sharded_tensor import ShardedTensor
from torch.distributed.checkpoint import FileSystemReader, FileSystemWriter
from torchrec.distributed import DistributedModelParallel
from torchrec.modules.embedding_configs import EmbeddingConfig
from torchrec.modules.embedding_modules import EmbeddingCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor
from trio import in_mapped_files

from recd_plugins.errors import DataError
from recd_plugins.registry.settings import OptimizerSettings
from recd_plugins.testing.arrange import BySharding
from recd_plugins.testing.gloo import GlooPool, RanksFailed
from recd_plugins.tiers.mapped_tables import mapped
from recd_plugins.trainer.checkpoints import storage
from recd_plugins.trainer.checkpoints.job_tensors import fill
from recd_plugins.trainer.checkpoints.storage import (
    FileSlice,
    JsonReader,
    JsonWriter,
    alone,
    read_into,
)
from recd_plugins.trainer.initial_tables import initialise_tables, table_initialisers

NUMBERS = torch.arange(60.0).reshape(10, 6)


def stored(tensor: Tensor) -> FileSlice:
    """As it lies among others in a file of a checkpoint."""
    file = io.BytesIO(b"before")
    file.seek(6)
    torch.save(tensor, file)
    length = file.tell() - 6
    file.write(b"after")
    return FileSlice(file, 6, length)  # type: ignore[arg-type]


@pytest.mark.parametrize("piece", [1, 50, 1 << 22])
@pytest.mark.parametrize(
    "tensor",
    [
        NUMBERS,
        NUMBERS.t(),
        NUMBERS.reshape(5, 2, 6).transpose(0, 1),
        NUMBERS[3:7, 1:4],
        NUMBERS[:1],
        NUMBERS.bfloat16(),
        NUMBERS > 7,
        torch.tensor(3.5),
        torch.empty(0, 4),
        torch.empty(4, 0),
    ],
)
def test_any_tensor_is_read_whole(
    tensor: Tensor, piece: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage, "PIECE", piece)
    found = torch.zeros_like(tensor)
    read_into(found, stored(tensor), [0] * tensor.dim(), tensor.size())
    assert torch.equal(found, tensor)


@pytest.mark.parametrize("piece", [1, 50, 1 << 22])
def test_a_part_is_read_into_rows_with_gaps(piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "PIECE", piece)
    into = torch.zeros(9, 5)
    read_into(into[::3, 1:4], stored(NUMBERS), [4, 2], [3, 3])
    expected = torch.zeros(9, 5)
    expected[::3, 1:4] = NUMBERS[4:7, 2:5]
    assert torch.equal(into, expected)


def test_what_does_not_fit_or_was_changed_is_reported() -> None:
    with pytest.raises(ValueError, match=r"of \[2, 6\] is stored as \[10, 6\]"):
        read_into(torch.zeros(2, 6), stored(NUMBERS), [0, 0], [10, 6])
    file = io.BytesIO()
    torch.save(NUMBERS, file)
    written = bytearray(file.getvalue())
    written[written.index(NUMBERS.numpy().tobytes()) + 100] ^= 1
    part = FileSlice(io.BytesIO(written), 0, len(written))  # type: ignore[arg-type]
    with pytest.raises(zipfile.BadZipFile, match="CRC"):
        read_into(torch.zeros(10, 6), part, [0, 0], [10, 6])


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")  # one rank, of no job
def test_a_checkpoint_whose_tensor_does_not_fit_says_what_to_do(tmp_path: Path) -> None:
    dcp.save({"a": NUMBERS}, storage_writer=JsonWriter(tmp_path))
    (file,) = (path for path in tmp_path.iterdir() if path.suffix != ".json")
    torch.save(NUMBERS[:4].clone(), file)
    listed = tmp_path / storage.METADATA
    held = json.loads(listed.read_text())
    held["stored"][0]["bytes"] = file.stat().st_size
    listed.write_text(json.dumps(held))
    says = (
        rf"{tmp_path}: does not fit this model, or is damaged \(ValueError: a tensor of "
        r"\[10, 6\] is stored as \[4, 6\]\)\. Resume with the registry that made it"
    )
    with pytest.raises(DataError, match=says):
        fill({"a": torch.zeros(10, 6)}, JsonReader(tmp_path), tmp_path)


def test_a_view_is_written_without_a_copy_and_alone() -> None:
    view = NUMBERS[3:7]
    own = alone(view)
    assert torch.equal(own, view)
    assert own.data_ptr() == view.data_ptr()
    assert len(own.untyped_storage()) == view.nbytes
    assert alone(NUMBERS) is NUMBERS
    assert len(alone(NUMBERS[:, 1:3]).untyped_storage()) == NUMBERS.nbytes  # DCP copies it


ROWS, DIM = 1 << 16, 64
TABLE_BYTES = ROWS * DIM * 4


class TwoTables(nn.Module):
    """Of 16 MiB each, which one kernel has in one buffer."""

    def __init__(self) -> None:
        super().__init__()
        tables = [
            EmbeddingConfig(name=name, embedding_dim=DIM, num_embeddings=ROWS, feature_names=[name])
            for name in ("songs", "films")
        ]
        self.sequences = EmbeddingCollection(tables=tables, device=torch.device("meta"))

    def forward(self, features: KeyedJaggedTensor) -> Tensor:
        found = self.sequences(features)
        return found["songs"].values().sum() + found["films"].values().square().sum()


def mapped_model(folder: Path, seed: int) -> DistributedModelParallel:
    """Trained for a step."""
    model = TwoTables()
    initialisers = table_initialisers(model)
    arranged = BySharding("row_wise")(model, OptimizerSettings(tables="adagrad"))
    sharded = DistributedModelParallel(
        model,
        device=torch.device("cpu"),
        plan=arranged.plan,
        sharders=mapped(arranged.sharders, folder),
    )
    initialise_tables(sharded, initialisers, seed)
    rows = torch.arange(seed, ROWS, 97)
    lengths = torch.tensor([len(rows), len(rows)])
    keys = ["songs", "films"]
    sharded(KeyedJaggedTensor(keys=keys, values=rows.repeat(2), lengths=lengths)).backward()
    return sharded


def held(model: DistributedModelParallel) -> dict[str, Any]:
    """What a checkpoint holds."""
    tensors = {f"model.{name}": value for name, value in model.state_dict().items()}
    for name, states in model.fused_optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer.{name}/{key}": value for key, value in states.items()}
    return tensors


class WholeWriter(JsonWriter):
    write_data = FileSystemWriter.write_data


class WholeReader(JsonReader):
    read_data = FileSystemReader.read_data


def through_a_checkpoint(folder: Path, who: Literal["ours", "writer", "reader"]) -> tuple[int, int]:
    """On a rank that may take 3/4 of a table: tensors that came back, and that changed so."""
    first, second = mapped_model(folder, 1), mapped_model(folder, 2)
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (owned() + TABLE_BYTES * 3 // 4, hard))
    try:
        writer = (WholeWriter if who == "writer" else JsonWriter)(folder / "checkpoint")
        dcp.save(held(first), storage_writer=writer)
        before = checksums(second)
        state = held(second)
        reader = (WholeReader if who == "reader" else JsonReader)(folder / "checkpoint")
        dcp.load(state, storage_reader=reader)
        second.load_state_dict(
            {name.removeprefix("model."): v for name, v in state.items() if name[:6] == "model."}
        )
        wanted, found = checksums(first), checksums(second)
        same = [name for name in wanted if found[name] == wanted[name]]
        return len(same), sum(before[name] != wanted[name] for name in same)
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def checksums(model: DistributedModelParallel) -> dict[str, list[float]]:
    """Of a thousand rows at a time, to the bit: equal where all numbers are."""
    return {
        name: [
            part.view(torch.int32).sum().item()
            for part in value.local_shards()[0].tensor.flatten().split(64_000)
        ]
        for name, value in held(model).items()
        if isinstance(value, ShardedTensor)
    }


def owned() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmData:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("/proc/self/status has no VmData")


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    (on_disk(tmp_path) / "checkpoint").mkdir()
    return tmp_path


@in_mapped_files
def test_mapped_tables_are_saved_and_loaded_in_less_memory_than_one(
    gloo_pool: GlooPool, disk: Path
) -> None:
    """Linux limits what a process has beside mapped files. Weights and states are equal."""
    ((same, changed),) = gloo_pool.run(through_a_checkpoint, disk, "ours", world_size=1)
    assert (same, changed) == (4, 4)  # two tables and their Adagrad states


@in_mapped_files
@pytest.mark.parametrize("who", ["writer", "reader"])
def test_torchs_own_would_take_more(gloo_pool: GlooPool, disk: Path, who: str) -> None:
    with pytest.raises(RanksFailed, match="allocate"):
        gloo_pool.run(through_a_checkpoint, disk, who, world_size=1)
