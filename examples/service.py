"""The reader service: three workers, one killed in mid-epoch, and losses stay to the bit.

`python examples/service.py [SAMPLES]` trains two epochs by the local reader, then by the service.
"""

import os
import signal
import sys
import tempfile

import torch
from torch.nn.functional import binary_cross_entropy_with_logits
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig
from torchrec.models.dlrm import DLRM

import recd_plugins as rp

NAMES = ("history", "item")
MADE = {"use": "sessions", "dense": 2}
MADE["features"] = [{"name": name, "length": 8, "num_ids": 5_000} for name in NAMES]
SERVICE = {"use": "service", "workers": 3, "prefetch_mib": 1}
SERVICE |= {"when_none_answers": "fail", "patience": 120}  # a busy machine is slow, not dead


def train(loader, disturb):
    torch.manual_seed(0)
    size = {"num_embeddings": 5_000, "embedding_dim": 16}
    tables = [EmbeddingBagConfig(name=f"t_{n}", feature_names=[n], **size) for n in NAMES]
    model, losses = DLRM(EmbeddingBagCollection(tables=tables), 2, [32, 16], [32, 1]), []
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.05)
    for batch in (batch for _ in range(2) for batch in loader):
        logits = model(batch.dense, batch.features).squeeze(1)
        loss = binary_cross_entropy_with_logits(logits, batch.labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if disturb and len(losses) == len(loader) // 3:
            worker = loader.fleet().backend.pids[0]
            os.kill(worker, signal.SIGKILL)
            print(f"after step {len(losses)} of {2 * len(loader)} a worker of 3 was killed")
    return losses


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        registry = {"plugins": ["recd_dlrm", "recd_dsi"], "folder": folder}
        registry |= {"dataset": MADE | {"samples": int([*sys.argv, "20000"][1])}}
        registry |= {"train": {"batch_size": 128, "device": "cpu"}}
        registry["preprocess"] = [{"use": "sigrid_hash", "features": "item", "modulo": 999}]
        losses = {}
        for name, reader in (("local", {"use": "local"}), ("service", SERVICE)):
            loader = rp.load(registry | {"reader": reader}).loader(rank=0, world_size=1)
            losses[name] = train(loader, disturb=name == "service")
            print(f"{name:7} loss {losses[name][0]:.17g} -> {losses[name][-1]:.17g}")
        same = sum(map(float.__eq__, *losses.values()))
        print(f"{same} of {len(losses['local'])} losses are equal to the bit")
