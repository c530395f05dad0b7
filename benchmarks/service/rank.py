"""A trainer's rank: it trains, writes down each step's loss and batch, and keeps checkpoints.

If it is killed and started again, it continues from its latest checkpoint.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn.functional import binary_cross_entropy_with_logits
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig
from torchrec.models.dlrm import DLRM

import recd_plugins as rp
from recd_dsi.service.loader import ServiceLoader
from recd_plugins.api import Loader
from recd_plugins.data.batch import Batch
from recd_plugins.data.wired_batch import batch_to_record
from recd_plugins.errors import RecdError
from recd_plugins.launch.environment import die_with_parent

__all__ = ["losses_of", "run_rank", "steps_of"]

EPOCHS = 2
STEPS_OF_A_CHECKPOINT = 7
ITEMS, IDS, DENSE = ("item_0", "item_1"), 1_000, 8
LOSSES, CHECKPOINT = "losses", "checkpoint.npz"


def run_rank(registry: dict[str, Any], folder: Path, at: list[int], pipe: Connection) -> None:
    """Run the rank's process. It stops at some steps until its parent lets it go on."""
    die_with_parent()

    def wait(step: int) -> None:
        if step in at:
            pipe.send_bytes(f"at {step}".encode())
            pipe.recv_bytes()
            pipe.send_bytes(f"holds {loader.about()['held_bytes']}".encode())

    try:
        opened = rp.load(registry).loader(0, 1)
        assert isinstance(opened, ServiceLoader)
        loader = opened
        _train(loader, folder, wait)
    except RecdError as error:
        pipe.send_bytes(f"error {error}".encode())
        return
    pipe.send_bytes(b"done ")


def losses_of(registry: Mapping[str, Any], folder: Path) -> list[str]:
    """The losses of an undisturbed run, in this process."""
    folder.mkdir()
    _train(rp.load(registry).loader(0, 1), folder, lambda step: None)
    return steps_of(folder)


def steps_of(folder: Path) -> list[str]:
    """Each step's loss, to the bit, and the digest of its batch."""
    path = folder / LOSSES
    return path.read_text().splitlines() if path.exists() else []


def _digest(batch: Batch) -> str:
    """The digest of all tensors of a batch."""
    return hashlib.sha256(batch_to_record(batch).serialize()).hexdigest()[:24]


def _train(loader: Loader, folder: Path, wait: Callable[[int], None]) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    tables = [
        EmbeddingBagConfig(name=name, feature_names=[name], num_embeddings=IDS, embedding_dim=4)
        for name in ITEMS
    ]
    model = DLRM(EmbeddingBagCollection(tables=tables), DENSE, [8, 4], [8, 1])
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.05)
    step = _load(folder, model, optimizer, loader)
    with (folder / LOSSES).open("a") as losses:
        while loader.state_dict()["epoch"] < EPOCHS:
            for batch in loader:
                wait(step)
                logits = model(batch.dense, batch.features).squeeze(1)
                loss = binary_cross_entropy_with_logits(logits, batch.labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                print(float(loss.detach()).hex(), _digest(batch), file=losses, flush=True)
                step += 1
                if step % STEPS_OF_A_CHECKPOINT == 0:
                    _save(folder, model, optimizer, {**loader.state_dict(), "step": step})


def _tensors(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    """All that training changes, by name."""
    found = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    for name, parameter in model.named_parameters():
        found |= {f"{key}.{name}": one for key, one in optimizer.state[parameter].items()}
    return found


def _save(
    folder: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer, state: dict[str, Any]
) -> None:
    part = folder / f"part-{CHECKPOINT}"
    arrays: dict[str, Any] = {
        name: one.detach().numpy() for name, one in _tensors(model, optimizer).items()
    }
    np.savez(part, state=np.array(json.dumps(state)), **arrays)
    part.rename(folder / CHECKPOINT)


def _load(
    folder: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer, loader: Loader
) -> int:
    """The step from which to go on; records of later steps are deleted."""
    kept, step = steps_of(folder), 0
    if (folder / CHECKPOINT).exists():
        with np.load(folder / CHECKPOINT) as found:
            state = json.loads(str(found["state"]))
            step = state.pop("step")
            for name, tensor in _tensors(model, optimizer).items():
                tensor.detach().copy_(torch.from_numpy(found[name]))
        loader.load_state_dict(state)
    (folder / LOSSES).write_text("".join(f"{line}\n" for line in kept[:step]))
    return step
