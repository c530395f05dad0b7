"""Training on a log, period by period, while a service (here a thread) writes it."""

import json
import sys
import threading
import time
from pathlib import Path

import torch
from torch.nn.functional import binary_cross_entropy_with_logits
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig
from torchrec.models.dlrm import DLRM

import recd_plugins as rp
from recd_dedup.log.replay import Replay
from recd_dedup.log.shards import ZstdShards, ZstdShardsConfig
from recd_dlrm.datasets.sessions.dataset import Sessions, SessionsConfig
from recd_plugins.api.testing import scratch_folder

made = SessionsConfig(samples=int([*sys.argv, "20000"][1]))
rows = next(Sessions(made).chunks("train")).sort_by("timestamp")
begin, end = rows["timestamp"][0].as_py(), rows["timestamp"][-1].as_py()
dataset = {"use": "growing_log", "schema": json.loads(made.schema.to_json()), "origin": begin}
dataset |= {"period_ms": (end - begin) // 6 + 1, "ends_when_sealed": True}
dataset |= {"join": {"window_ms": 300_000, "disorder_ms": 1_000}}


def serve(folder):
    with ZstdShards(ZstdShardsConfig(shards=4), Path(folder)) as log:
        chunks = (rows.slice(n, 500) for n in range(0, len(rows), 500))
        for messages in Replay(made.schema).messages(chunks):
            log.append(messages)
            log.flush()
            time.sleep(0.5)


with scratch_folder() as folder:
    registry = {"plugins": ["recd_dlrm", "recd_dedup"], "folder": folder, "dataset": dataset}
    registry |= {"log": {"use": "zstd_shards", "shards": 4}, "etl": ["cluster_by_session"]}
    registry |= {"reader": {"tail": "pad"}, "train": {"batch_size": 128, "device": "cpu"}}
    tables = [
        EmbeddingBagConfig(one.num_ids, 16, one.name, feature_names=[one.name])
        for one in made.schema.sparse
    ]
    model = DLRM(EmbeddingBagCollection(tables=tables), len(made.schema.dense), [16], [16, 1])
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.05)
    (service := threading.Thread(target=serve, args=(f"{folder}/log",), daemon=True)).start()
    period, samples, loader = 0, 0, rp.load(registry).loader(rank=0, world_size=1)
    while len(loader):  # 0 once the data have ended
        for batch in loader:
            logits = model(batch.dense, batch.features).squeeze(1)
            loss = binary_cross_entropy_with_logits(logits, batch.labels, batch.weights)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            samples += int((batch.weights > 0).sum())
        print(f"period {period}: loss {loss:.4f}; still written: {service.is_alive()}")
        period += 1
    print(f"{samples:,} samples trained")
