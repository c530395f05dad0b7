"""The reader service: its coordinator and a worker are killed, and losses stay the same to the bit.

`python examples/service.py [SAMPLES [PORT]]` trains with the local reader, then with the service.
"""

import multiprocessing
import os
import sys

import torch
from torch.nn.functional import binary_cross_entropy_with_logits as cross_entropy
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig
from torchrec.models.dlrm import DLRM

import recd_plugins as rp
from recd_dsi.service.cli import coordinator
from recd_dsi.service.local_backend import LocalBackend
from recd_dsi.service.worker import WorkerOptions
from recd_plugins.api.testing import scratch_folder

TRAIN = {"batch_size": 128, "device": "cpu"}
SERVICE = {"use": "service", "workers": 3, "patience": 120, "when_none_answers": "fail"}


def train(loader):
    torch.manual_seed(0)
    tables = [EmbeddingBagConfig(500, 16, "t", feature_names=["user_region", "item_category"])]
    model = DLRM(EmbeddingBagCollection(tables=tables), 2, [32, 16], [32, 1])
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.05)
    for batch in (batch for _ in range(2) for batch in loader):
        loss = cross_entropy(model(batch.dense, batch.features).squeeze(1), batch.labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield loss.item()


if __name__ == "__main__":
    samples, port = [*map(int, sys.argv[1:]), *(20_000, 8815)[len(sys.argv) - 1 :]]
    with scratch_folder() as folder:
        registry = {"plugins": ["recd_dlrm", "recd_dsi"], "folder": folder, "train": TRAIN}
        registry["dataset"] = {"use": "sessions", "samples": samples, "dense": 2}
        local = [*train(rp.load(registry).loader(rank=0, world_size=1))]
        same, address = 0, f"127.0.0.1:{port}"
        stack = rp.load(registry | {"reader": SERVICE | {"coordinator": address}})
        workers = LocalBackend(stack.delivery(), WorkerOptions(join=address), 3, print)
        process, given = multiprocessing.get_context("forkserver").Process, {"port": port}
        first, second = (process(target=coordinator, kwargs=given, daemon=True) for _ in range(2))
        first.start()
        for step, (loss, ours) in enumerate(zip(local, train(stack.loader(0, 1)), strict=True), 1):
            same += loss == ours
            if step == len(local) // 6:
                first.kill()
                os.kill(next(filter(None, workers.pids)), 9)
                second.start()
                print(f"after step {step} of {len(local)} the coordinator and a worker were killed")
        workers.close()
        second.kill()
        print(f"{same} of {len(local)} losses equal to the bit, from {local[0]:.3f} to {loss:.3f}")
