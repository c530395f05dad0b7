"""A plan that this machine's memory has no room for is said to be one, on the ranks that train."""

from __future__ import annotations

import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torchrec.modules.embedding_configs import EmbeddingBagConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

import recd_plugins as rp
from recd_plugins.launch.machine_memory import machine_memory
from recd_plugins.notices import NoticeWarning
from recd_plugins.planning.cluster.topology import GB
from recd_plugins.testing.gloo import GlooPool

MEMINFO = "MemTotal:       24610856 kB\nMemFree:         1000 kB\n"
BYTES = 24610856 * 1024


@pytest.mark.parametrize(
    ("limits", "found"),
    [
        ({}, BYTES),
        ({"memory.max": "max\n"}, BYTES),
        ({"memory.max": "4294967296\n"}, 1 << 32),
        ({"memory/memory.limit_in_bytes": "9223372036854771712\n"}, BYTES),
        ({"memory/memory.limit_in_bytes": "1073741824\n"}, 1 << 30),
    ],
)
def test_a_container_has_no_more_than_its_limit(
    limits: dict[str, str], found: int, tmp_path: Path
) -> None:
    groups = {f"sys/fs/cgroup/{name}": text for name, text in limits.items()}
    for name, text in {"proc/meminfo": MEMINFO, **groups}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert machine_memory(tmp_path) == found
    assert machine_memory(tmp_path / "elsewhere") is None


BY_SIZE = str(Path(__file__).parents[2] / "examples" / "by_size.py")


def said_of_a_plan(share: float) -> list[str]:
    """What is said of the plan of a table that takes this share of the machine's memory."""
    memory = machine_memory() or 0
    rows = int(share * memory / (64 * 4))
    table = EmbeddingBagConfig(
        name="item", embedding_dim=64, num_embeddings=rows, feature_names=["item"]
    )
    model = nn.Sequential(EmbeddingBagCollection(tables=[table], device=torch.device("meta")))
    stack = rp.load({"sharding": "torchrec", "topology": {"host_memory_gb": 1e6}})
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        stack.plan(model)
    return [str(one.message) for one in caught if one.category is NoticeWarning]


@pytest.mark.skipif(machine_memory() is None, reason="the machine does not say how much it has")
@pytest.mark.parametrize("share", [0.9, 1.1])
def test_a_plan_without_room_is_told_on_rank_0(gloo_pool: GlooPool, share: float) -> None:
    told, other = gloo_pool.run(said_of_a_plan, share)
    about = [line for line in told if "may have no room" in line]
    assert bool(about) == (share > 1)
    assert not [line for line in other if "may have no room" in line]
    if about:
        assert about[0].startswith("sharding: torchrec may have no room: by its plan the ranks of")
        assert "Write `host_memory_gb` of a rank under `topology`" in about[0]


def said_of_a_strangers_plan(gigabytes: float) -> list[str]:
    """What is said of a stranger's plan of a table of 0.26 GB for a rank of so many."""
    table = EmbeddingBagConfig(
        name="item", embedding_dim=64, num_embeddings=1_000_000, feature_names=["item"]
    )
    model = nn.Sequential(EmbeddingBagCollection(tables=[table], device=torch.device("meta")))
    topology = {"host_memory_gb": gigabytes}
    stack = rp.load({"plugins": [BY_SIZE], "sharding": "by_size", "topology": topology})
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        stack.plan(model)
    about = [str(one.message) for one in caught if one.category is NoticeWarning]
    return [line for line in about if "may have no room" in line]


def test_a_strangers_plan_beyond_the_topology_is_told(gloo_pool: GlooPool) -> None:
    assert gloo_pool.run(said_of_a_strangers_plan, 1.0) == [[], []]
    ((about,), other) = gloo_pool.run(said_of_a_strangers_plan, 0.01)
    assert about.startswith("sharding: by_size may have no room: by its plan a rank holds 0.")
    assert "`topology: {host_memory_gb: 0.01}` is what it has. Have the planner keep to" in about
    assert not other


def said_on_a_gpu(options: dict[str, Any]) -> list[str]:
    """What is said on a GPU of 24 GB of the plan of a table of 20."""
    rows = 20 * GB // (64 * 4)
    table = EmbeddingBagConfig(
        name="item", embedding_dim=64, num_embeddings=rows, feature_names=["item"]
    )
    model = nn.Sequential(EmbeddingBagCollection(tables=[table], device=torch.device("meta")))
    ids = torch.arange(4096) % 1_000
    batch = KeyedJaggedTensor(["item"], ids, lengths=torch.ones(4096, dtype=torch.int32))
    with pytest.MonkeyPatch.context() as patches, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        has = SimpleNamespace(total_memory=24 * GB)
        patches.setattr(torch.cuda, "is_available", lambda: True)
        patches.setattr(torch.cuda, "device_count", lambda: 1)
        patches.setattr(torch.cuda, "current_device", lambda: 0)
        patches.setattr(torch.cuda, "get_device_properties", lambda device: has)
        rp.load(options).plan(model, batches=[batch], features=lambda batch: batch)
    about = [str(one.message) for one in caught if one.category is NoticeWarning]
    return [line for line in about if "may have no room" in line]


REPLICAS: dict[str, Any] = {
    "plugins": ["recd_scars"],
    "cache": {"use": "scars", "size": "hit_rate", "hit_rate": 1.0, "hot_batches": False},
}


@pytest.mark.parametrize(
    ("options", "fits"),
    [
        ({"sharding": "torchrec"}, True),  # by TorchRec's 32 GB it fits, and here too
        ({"sharding": "torchrec", "train": {"optimizer": {"tables": "adagrad"}}}, False),
        (REPLICAS, True),
        (
            REPLICAS
            | {
                "cache": REPLICAS["cache"] | {"home": "host", "memory_gb": 4},
                "train": {"optimizer": {"tables": "adagrad"}},
            },
            True,
        ),
    ],
)
def test_a_plan_without_room_on_a_gpu_is_told(
    gloo_pool: GlooPool, options: dict[str, Any], fits: bool
) -> None:
    """TorchRec takes a GPU to have 32 GB where nobody says what it has."""
    more = {"topology": {"device_memory_gb": 80}} if not fits else {}
    (about,) = gloo_pool.run(said_on_a_gpu, options | more, world_size=1)
    assert bool(about) != fits
    if about:
        assert "by its plan a rank's GPU holds 40 GB of tables, state and replicas" in about[0]
        assert "the one here has 24 GB of memory. Write `device_memory_gb` under" in about[0]


def said_of_mapped_tables(folder: Path) -> list[str]:
    """What is said of the plan of a table larger than this machine's memory, in mapped files."""
    memory = machine_memory() or 0
    rows = int(1.1 * memory / (4096 * 4))
    table = EmbeddingBagConfig(
        name="item", embedding_dim=4096, num_embeddings=rows, feature_names=["item"]
    )
    model = nn.Sequential(EmbeddingBagCollection(tables=[table], device=torch.device("meta")))
    cache = {"use": "scars", "home": "mapped", "size": "hit_rate", "hit_rate": 0.5}
    stack = rp.load({"plugins": ["recd_scars"], "cache": cache, "folder": str(folder)})
    ids = torch.arange(64) % 9
    batch = KeyedJaggedTensor(["item"], ids, lengths=torch.ones(64, dtype=torch.int32))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        stack.plan(model, batches=[batch], features=lambda batch: batch)
    return [str(one.message) for one in caught if one.category is NoticeWarning]


@pytest.mark.skipif(machine_memory() is None, reason="the machine does not say how much it has")
def test_tables_in_mapped_files_need_no_room(gloo_pool: GlooPool, tmp_path: Path) -> None:
    for told in gloo_pool.run(said_of_mapped_tables, tmp_path):
        assert not [line for line in told if "may have no room" in line]
