"""An existing TorchRec trainer; the lines that recd_plugins adds to it are marked with #.

python examples/drop_in.py                            one rank
torchrun --nproc-per-node 2 examples/drop_in.py       two
"""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.optim import _apply_optimizer_in_backward as apply_optimizer_in_backward
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig
from torchrec.distributed import DistributedModelParallel, TrainPipelineSparseDist
from torchrec.models.dlrm import DLRM
from torchrec.optim.keyed import CombinedOptimizer, KeyedOptimizerWrapper
from torchrec.optim.optimizers import in_backward_optimizer_filter
from torchrec.optim.rowwise_adagrad import RowWiseAdagrad

import recd_plugins as rp  #

cpu = torch.device("cpu")


class MyModel(nn.Module):
    def __init__(self, dlrm: DLRM) -> None:
        super().__init__()
        self.dlrm = dlrm

    def forward(self, batch):
        logits = self.dlrm(batch.dense, batch.features).squeeze(-1)
        loss = nn.functional.binary_cross_entropy_with_logits(logits, batch.labels)
        return loss, loss.detach()


alone = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
os.environ.update(alone | os.environ)  # what torchrun sets, if it did
dist.init_process_group("gloo")
torch.manual_seed(0)
stack = rp.load({"plugins": ["recd_dlrm"], "dataset": {"use": "sessions", "samples": 50_000}})  #
loader = stack.loader(dist.get_rank(), dist.get_world_size())  #
names = {f.name: f.num_ids for f in stack.schema.sparse}
tables = [
    EmbeddingBagConfig(name=name, embedding_dim=16, num_embeddings=rows, feature_names=[name])
    for name, rows in names.items()
]
ebc = EmbeddingBagCollection(tables=tables, device=torch.device("meta"))
apply_optimizer_in_backward(RowWiseAdagrad, ebc.parameters(), {"lr": 0.05})
model = MyModel(DLRM(ebc, len(stack.schema.dense), [32, 16], [32, 1]))
model = stack.adapt(model)  #
plan = stack.plan(model)  #
sharders = stack.sharders()  #
model = DistributedModelParallel(model, device=cpu, plan=plan, sharders=sharders)  #
dense = dict(in_backward_optimizer_filter(model.named_parameters()))
adam = KeyedOptimizerWrapper(dense, lambda params: torch.optim.Adam(params, lr=1e-3))
optimizer = CombinedOptimizer([model.fused_optimizer, adam])
train = TrainPipelineSparseDist(model, optimizer, cpu)
batches = iter(loader)
losses = [train.progress(batches).item() for _ in range(40)]
if dist.get_rank() == 0:
    print(f"loss {sum(losses[:10]) / 10:.4f} -> {sum(losses[-10:]) / 10:.4f}")
dist.destroy_process_group()
