"""Jobs on tables of an S3 server: the losses are those of the same tables on disk."""

from __future__ import annotations

import json
import uuid

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from forked import run_module
from stored import SCHEMA, put, rows

from benchmarks.s3_endpoint import seeded
from recd_plugins.data.table_writer import TableWriter
from recd_plugins.storage.uri import location_of

pytestmark = pytest.mark.slow

REGISTRY = """
plugins: [recd_dlrm]
dataset: {{use: parquet, train: "{train}", test: "{test}"}}
model: {{use: dlrm, embedding_dim: 8, bottom: [16], top: [16]}}
sharding: {{use: torchrec, search: greedy}}
train: {{ranks: 2, batch_size: 32, steps: 6, log_every: 2, eval_every: 6, checkpoint_every: 3,
  device: cpu}}
"""


def trained(folder, environment, *arguments, code=0):
    done = run_module("recd_plugins", "train", *arguments, folder=folder, environment=environment)
    assert done.code == code, f"exit code {done.code}\n{done.out}\n{done.err}"
    return done.out + done.err


def losses(folder):
    (file,) = folder.glob("runs/*/metrics.jsonl")
    lines = map(json.loads, file.read_text().splitlines())
    return [(one["kind"], one["step"], one["loss"]) for one in lines if "loss" in one]


def test_a_job_reads_a_store_as_it_reads_a_disk(store, tmp_path):
    tables = tmp_path / "tables"
    for split, count in (("train", 512), ("test", 128)):
        with TableWriter(tables / split, SCHEMA, rows_per_stripe=64, stripes_per_file=4) as writer:
            writer.write(rows(count))
    target = location_of(f"s3://tables/{uuid.uuid4().hex}")
    put(tables, target)
    store.faults = seeded(5, 0.1, ("503", "cut", "half"), most=6)
    environment = {
        "AWS_ACCESS_KEY_ID": "somebody",
        "AWS_SECRET_ACCESS_KEY": "her-secret",
        "AWS_ENDPOINT_URL": store.url,
    }
    for name, lies in (("disk", tables), ("store", target)):
        folder = tmp_path / name
        folder.mkdir()
        text = REGISTRY.format(train=lies / "train", test=lies / "test")
        (folder / "registry.yaml").write_text(text)
        trained(folder, environment)
    assert losses(tmp_path / "store") == losses(tmp_path / "disk")
    assert len(losses(tmp_path / "store")) > 2
    (pinned,) = (tmp_path / "store").glob("runs/*/pins.json")
    files = json.loads(pinned.read_text())["train"]["files"]
    assert sorted(files) == ["part-00000.parquet", "part-00001.parquet"]

    with pa.BufferOutputStream() as sink:
        pq.write_table(rows(256, seed=1).replace_schema_metadata(SCHEMA.arrow().metadata), sink)
        (target / "train" / "part-00001.parquet").write_bytes(sink.getvalue().to_pybytes())
    printed = trained(tmp_path / "store", environment, "--resume", "train.steps=8", code=2)
    assert "part-00001.parquet: is not what it was when the run began" in printed
