"""RecD from raw logs to preprocessed batches, and what each step saves."""

import timeit
from pathlib import Path

import recd_plugins as rp
from recd_dedup.etl.cluster import cluster_buckets
from recd_dedup.log.codec import MessageCodec
from recd_dedup.log.join import JoinConfig, JoinReport, joined
from recd_dedup.log.replay import Replay
from recd_dedup.log.shards import ZstdShards, ZstdShardsConfig
from recd_dsi.transforms import SigridHash
from recd_plugins.api.batch import RowWise
from recd_plugins.api.testing import scratch_folder

user = {"kind": "user", "num_ids": 100_000, "stay": 0.95, "sequence": True, "length": 40}
features = [user | {"name": f"history_{i}", "group": "history", "shift": True} for i in range(4)]
features += [user | {"name": "topics"}, {"name": "item", "num_ids": 100_000}]
dataset = {"use": "sessions", "samples": 24_000, "features": features}
recd = {"plugins": ["recd_dlrm", "recd_dedup"], "train": {"batch_size": 4096}}
recd["reader"] = {"use": "local", "sessions": "whole"}
recd["dedup"] = {"use": "exact", "weigh": "bytes"}  # with a known model, weigh by time


def mb(folder):
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 1e6


def ms(transform, batches):
    return 1e3 * timeit.timeit(lambda: [transform(batch) for batch in batches], number=1)


with scratch_folder() as folder:
    recd["folder"], logs = folder, {}
    tables = rp.load(recd | {"dataset": dataset}).prepare()
    by_time, schema = tables.train, tables.schema
    for route in ("message", "session"):  # O1
        with ZstdShards(ZstdShardsConfig(route=route, shards=16), Path(folder, route)) as log:
            for messages in Replay(schema).messages(by_time.each_read()):
                log.append(messages)
        logs[route] = mb(log.folder)
    streams = joined(log, MessageCodec(schema), JoinConfig(), report := JoinReport())
    by_session = cluster_buckets(streams, schema, Path(folder, "by_session"))  # O2
    dataset = {"use": "parquet", "train": str(by_session.path), "test": str(tables.test.path)}
    stack = rp.load(recd | {"dataset": dataset})
    print(report)
    for what, here, paper in next(stack.stats(by_time))[1].tables[0].rows:
        print(f"{what:<42} {here:>8}, in the paper {paper}")
    ikjts = [batch.dedup for batch in stack.loader(rank=0, world_size=1)]  # O3, groups as advised
    kjts, transform = [ikjt.to_kjt() for ikjt in ikjts], RowWise(SigridHash(50_000))  # O4
    sent = sum(kjt.values().nbytes + kjt.lengths().nbytes for kjt in kjts) / 1e6
    for step, before, after, unit in (
        ("O1 log shards by session", logs["message"], logs["session"], "MB"),
        ("O2 table clustered by session", mb(by_time.path), mb(by_session.path), "MB"),
        ("O3 IKJTs sent to the trainer", sent, sum(i.to_bytes().size for i in ikjts) / 1e6, "MB"),
        ("O4 preprocessed as IKJTs", ms(transform, kjts), ms(transform, ikjts), "ms"),
    ):
        print(f"{step:<30} {before:8.2f} -> {after:7.2f} {unit}, {before / after:5.2f}x")
