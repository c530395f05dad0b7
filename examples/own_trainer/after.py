"""A trainer in TorchRec's own style, with its own batch, loader, optimizers and checkpoints.

torchrun --nproc-per-node 2 FILE [CHECKPOINT]
"""

import gc
import sys
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor
from torchrec.distributed import DistributedModelParallel, TrainPipelineSparseDist
from torchrec.models.dlrm import DLRM, DLRMTrain
from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward
from torchrec.optim.keyed import CombinedOptimizer, KeyedOptimizerWrapper
from torchrec.optim.optimizers import in_backward_optimizer_filter
from torchrec.optim.rowwise_adagrad import RowWiseAdagrad
from torchrec.streamable import Pipelineable

import recd_plugins as rp

ROWS = {"user": 20_000, "item": 50_000, "shop": 1_000}
IDS = {"user": 1, "item": 8, "shop": 1}


@dataclass
class Clicks(Pipelineable):
    dense_features: Tensor
    sparse_features: KeyedJaggedTensor
    labels: Tensor

    def to(self, device, non_blocking=False):
        return Clicks(*(part.to(device, non_blocking=non_blocking) for part in self.parts()))

    def record_stream(self, stream):
        for part in self.parts():
            part.record_stream(stream)

    def pin_memory(self):
        return Clicks(*(part.pin_memory() for part in self.parts()))

    def parts(self):
        return self.dense_features, self.sparse_features, self.labels


class ClickStream(IterableDataset[Clicks]):
    """Endless batches, whose ids follow Zipf's law."""

    def __init__(self, rank, batch_size):
        self.rank, self.batch_size = rank, batch_size

    def __iter__(self):
        draw = torch.Generator().manual_seed(self.rank)
        while True:
            values = []
            for name, rows in ROWS.items():
                uniform = torch.rand(self.batch_size * IDS[name], generator=draw)
                values.append((rows**uniform).long() - 1)
            lengths = [torch.full((self.batch_size,), IDS[name]) for name in ROWS]
            kjt = KeyedJaggedTensor(list(ROWS), torch.cat(values), lengths=torch.cat(lengths))
            dense = torch.rand(self.batch_size, 4, generator=draw)
            yield Clicks(dense, kjt, (values[0] % 3 == 0).long())


def parts(rank=0):
    """The model and the loader of a rank."""
    loader = DataLoader(ClickStream(rank, batch_size=256), batch_size=None)
    tables = [
        EmbeddingBagConfig(name=name, num_embeddings=rows, embedding_dim=16, feature_names=[name])
        for name, rows in ROWS.items()
    ]
    ebc = EmbeddingBagCollection(tables=tables, device=torch.device("meta"))
    apply_optimizer_in_backward(RowWiseAdagrad, ebc.parameters(), {"lr": 0.1})
    torch.manual_seed(0)
    return DLRMTrain(DLRM(ebc, 4, [32, 16], [32, 1], dense_device=torch.device("cpu"))), loader


def main(steps=50, checkpoint=None):
    device = torch.device("cpu")
    model, loader = parts(dist.get_rank())
    stack = rp.load(Path(__file__).with_name("registry.yaml"))
    plan = stack.plan(model, batches=loader, features=lambda batch: batch.sparse_features)
    model = DistributedModelParallel(model, device=device, plan=plan, sharders=stack.sharders())
    dense = dict(in_backward_optimizer_filter(model.named_parameters()))
    adam = KeyedOptimizerWrapper(dense, lambda params: torch.optim.Adam(params, lr=1e-3))
    optimizer = CombinedOptimizer([model.fused_optimizer, adam])
    if checkpoint is not None and checkpoint.exists():
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        dcp.load(state, checkpoint_id=checkpoint)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
    pipeline = TrainPipelineSparseDist(model, optimizer, device)
    batches = iter(loader)
    losses = [pipeline.progress(batches)[0].item() for _ in range(steps)]
    if checkpoint is not None:
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        dcp.save(state, checkpoint_id=checkpoint)
    return losses


if __name__ == "__main__":
    dist.init_process_group("gloo")
    found = main(checkpoint=Path(sys.argv[1]) if len(sys.argv) > 1 else None)
    if dist.get_rank() == 0:
        print(f"loss {sum(found[:10]) / 10:.4f} -> {sum(found[-10:]) / 10:.4f}")
    gc.collect()  # the model has cycles, and would keep gloo's threads beyond the program's end
    dist.destroy_process_group()
