"""Ladder: one process, then tables that move between gloo ranks and plans."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.api import CheckpointException
from torchrec.distributed import DistributedModelParallel

from recd_plugins.errors import DataError
from recd_plugins.registry.settings import OptimizerSettings
from recd_plugins.testing.arrange import BySharding
from recd_plugins.testing.gloo import GlooPool
from recd_plugins.testing.probe import Probe
from recd_plugins.testing.trained import gather_table
from recd_plugins.trainer.checkpoints.storage import JsonReader, JsonWriter
from recd_plugins.trainer.initial_tables import initialise_tables, table_initialisers

# Said of every save and load in one process, which is what these tests want.
pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")

TENSORS = {
    "floats": torch.linspace(-1, 1, 12).reshape(3, 4),
    "special": torch.tensor([float("inf"), float("nan"), -0.0, 1e-45]),
    "doubles": torch.tensor([1 / 3], dtype=torch.float64),
    "halves": torch.arange(3, dtype=torch.bfloat16),
    "integers": torch.tensor([2**62, -1]),
    "bytes": torch.arange(5, dtype=torch.uint8),
    "switches": torch.tensor([True, False]),
    "scalar": torch.tensor(3.5),
    "empty": torch.empty(0, 4),
    "a name/with.signs ": torch.ones(1),
}


def save(folder: Path, tensors: dict[str, Any] | None = None) -> Path:
    dcp.save(dict(tensors or TENSORS), storage_writer=JsonWriter(folder), no_dist=True)
    return folder


def loaded(folder: Path) -> dict[str, Tensor]:
    blank = {name: torch.full_like(tensor, 0) for name, tensor in TENSORS.items()}
    dcp.load(blank, storage_reader=JsonReader(folder), no_dist=True)
    return blank


def same(left: dict[str, Tensor], right: dict[str, Tensor]) -> bool:
    """Alike to the bit, types too."""
    return left.keys() == right.keys() and all(
        value.dtype == right[name].dtype
        and value.shape == right[name].shape
        and torch.equal(
            value.reshape(-1).view(torch.uint8), right[name].reshape(-1).view(torch.uint8)
        )
        for name, value in left.items()
    )


def test_tensors_come_back_to_the_bit(tmp_path: Path) -> None:
    found = loaded(save(tmp_path / "checkpoint"))
    assert same(found, TENSORS)
    assert not same(found, {**TENSORS, "scalar": torch.tensor(3.25)})


def test_the_metadata_is_what_torch_would_have_pickled(tmp_path: Path) -> None:
    dcp.save(dict(TENSORS), storage_writer=FileSystemWriter(tmp_path / "stock"), no_dist=True)
    stock = FileSystemReader(tmp_path / "stock").read_metadata()
    ours = JsonReader(save(tmp_path / "ours")).read_metadata()
    assert ours.state_dict_metadata.keys() == stock.state_dict_metadata.keys()
    for name, expected in stock.state_dict_metadata.items():
        found = ours.state_dict_metadata[name]
        assert (found.size, found.chunks) == (expected.size, expected.chunks)
        assert found.properties.dtype == expected.properties.dtype
    assert ours.storage_data.keys() == stock.storage_data.keys()
    for index, expected in stock.storage_data.items():
        found = ours.storage_data[index]
        assert (found.relative_path, found.offset, found.length) == (
            expected.relative_path,
            expected.offset,
            expected.length,
        )


def test_nothing_is_pickled_beside_the_tensors(tmp_path: Path) -> None:
    folder = save(tmp_path / "checkpoint")
    assert sorted(path.name for path in folder.iterdir()) == ["__0_0.distcp", "metadata.json"]
    metadata = json.loads((folder / "metadata.json").read_text())
    assert metadata["tensors"]["floats"] == {
        "dtype": "float32",
        "size": [3, 4],
        "chunks": [[[0, 0], [3, 4]]],
    }


@pytest.mark.parametrize("value", ["text", 3, {"nested": object()}, [1, 2]])
def test_what_is_no_tensor_is_refused(value: object, tmp_path: Path) -> None:
    with pytest.raises(CheckpointException) as caught:
        save(tmp_path / "checkpoint", {"fine": torch.ones(1), "wrong": value})
    assert "wrong" in str(caught.value)
    assert "is no tensor; a checkpoint keeps such values in its job.json" in str(caught.value)
    assert not (tmp_path / "checkpoint/metadata.json").exists()


def edited(folder: Path, **changes: Any) -> Path:
    """A checkpoint whose first stored item or tensor says something else."""
    file = folder / "metadata.json"
    metadata = json.loads(file.read_text())
    for key, value in changes.items():
        if key in metadata["stored"][0]:
            metadata["stored"][0][key] = value
        else:
            metadata["tensors"]["floats"][key] = value
    file.write_text(json.dumps(metadata))
    return folder


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"file": "../elsewhere.distcp"}, "'../elsewhere.distcp' is outside of the checkpoint"),
        ({"file": "a/../../b"}, "'a/../../b' is outside of the checkpoint"),
        ({"file": "/etc/passwd"}, "'/etc/passwd' is outside of the checkpoint"),
        ({"file": 3}, "metadata.json: cannot be read"),
        ({"dtype": "float33"}, "metadata.json: cannot be read"),
        ({"dtype": "nn"}, "'nn' is no dtype"),
        ({"dtype": "load"}, "'load' is no dtype"),
        ({"size": 3}, "metadata.json: cannot be read"),
        ({"chunks": [[0]]}, "metadata.json: cannot be read"),
    ],
)
def test_metadata_is_not_believed_unchecked(
    changes: dict[str, Any], says: str, tmp_path: Path
) -> None:
    folder = edited(save(tmp_path / "checkpoint"), **changes)
    with pytest.raises(DataError) as caught:
        JsonReader(folder).read_metadata()
    assert says in str(caught.value)
    assert "The checkpoint is damaged: none is there before it" in str(caught.value)


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"tensors": {}}', "3", "null"])
def test_a_torn_metadata_file_is_named(text: str, tmp_path: Path) -> None:
    folder = save(tmp_path / "checkpoint")
    (folder / "metadata.json").write_text(text)
    with pytest.raises(DataError, match=r"checkpoint/metadata.json: cannot be read"):
        JsonReader(folder).read_metadata()


def test_a_missing_metadata_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"metadata.json: cannot be read .*No such file"):
        JsonReader(tmp_path).read_metadata()


Kind = Literal["row_wise", "table_wise", "column_wise"]


def through(
    folder: str, kind: Kind, seed: int, *, load: bool
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """On a rank: a model that starts from `seed` is saved or loaded; its tables and the rest."""
    torch.manual_seed(seed)
    model = Probe()
    initialisers = table_initialisers(model)
    arranged = BySharding(kind)(model, OptimizerSettings())
    sharded = DistributedModelParallel(
        arranged.model, device=torch.device("cpu"), plan=arranged.plan, sharders=arranged.sharders
    )
    initialise_tables(sharded, initialisers, seed)
    state = sharded.state_dict()
    if load:
        dcp.load(state, storage_reader=JsonReader(Path(folder)))
        sharded.load_state_dict(state)
    else:
        dcp.save(state, storage_writer=JsonWriter(Path(folder)))
    full = {name: gather_table(value) for name, value in sharded.state_dict().items()}
    return (
        {name: value for name, value in full.items() if "over" not in name},
        {name: value for name, value in full.items() if "over" in name},
    )


@pytest.mark.parametrize(
    ("saved", "wanted"),
    [
        (("row_wise", 2), ("column_wise", 1)),
        (("column_wise", 1), ("row_wise", 4)),
        (("row_wise", 4), ("table_wise", 2)),
        (("table_wise", 2), ("column_wise", 4)),
    ],
)
def test_a_model_moves_between_plans_and_world_sizes(
    saved: tuple[Kind, int], wanted: tuple[Kind, int], tmp_path: Path, gloo_pool: GlooPool
) -> None:
    folder = str(tmp_path / "checkpoint")
    kind, world_size = saved
    (before, *_) = gloo_pool.run(through, folder, kind, 1, load=False, world_size=world_size)
    kind, world_size = wanted
    (fresh, *_) = gloo_pool.run(
        through, str(tmp_path / "other"), kind, 2, load=False, world_size=world_size
    )
    after = gloo_pool.run(through, folder, kind, 2, load=True, world_size=world_size)
    for part, other in zip(before, fresh, strict=True):
        assert not any(torch.equal(value, other[name]) for name, value in part.items())
    for tables, dense in after:
        assert same(tables, before[0])
        assert same(dense, before[1])
    assert len(before[0]) == 3
    assert len(before[1]) == 2
