"""Foreign trainers: where each is from, how it is called, and the lines that are added to it."""

from __future__ import annotations

import difflib
import importlib.util
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["TRAINERS", "ZIPF", "Edit", "Trainer"]

ZIPF = 1.1
"""The exponent of the law by which ids are drawn."""


@dataclass(frozen=True)
class Edit:
    """One place in a file: a text that stands there once, and what it becomes."""

    find: str
    becomes: str

    def of(self, text: str, file: Path) -> str:
        if text.count(self.find) != 1:
            raise SystemExit(
                f"{file}: holds {text.count(self.find)} times what is to be edited, not once: "
                f"{self.find!r}. It has changed since the edit was written."
            )
        return text.replace(self.find, self.becomes)


@dataclass(frozen=True, kw_only=True)
class Trainer:
    """A program of somebody else's, in its original form."""

    name: str
    source: str
    """Its repository, and the file in it that is run."""
    file: str
    """The file, below the folder of all that was fetched; or, in a package, from its root."""
    call: str
    """The function that trains."""
    arguments: Sequence[str] | None = None
    """A command line, where it takes one."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments of the function."""
    flags: Sequence[str] = ()
    """A command line that it reads by itself."""
    needs: Sequence[str] = ()
    """The packages that it imports beside this project's."""
    files: Mapping[str, Any] = field(default_factory=dict)
    """YAML files that it reads where it runs."""
    registry: Mapping[str, Any]
    """What registry.yaml says."""
    concessions: Sequence[Edit] = ()
    """What the CPU needs, on both sides."""
    edits: Sequence[Edit]
    """What recd_plugins needs."""

    def lacks(self, folder: Path) -> Iterator[str]:
        """What is not here of what it takes to run it."""
        if not (folder / self.file).is_file():
            yield str(folder / self.file)
        yield from (f"package {one}" for one in self.needs if not importlib.util.find_spec(one))

    def text(self, folder: Path, *, edited: bool) -> str:
        """The program, as it is or with the lines that are added."""
        file = folder / self.file
        text = file.read_text()
        for edit in (*self.concessions, *(self.edits if edited else ())):
            text = edit.of(text, file)
        return text

    def lines(self, folder: Path) -> int:
        """How many lines are added or changed."""
        before, after = (self.text(folder, edited=edited).splitlines() for edited in (False, True))
        return sum(
            line.startswith("+") and not line.startswith("+++")
            for line in difflib.unified_diff(before, after, n=0)
        )


def _installed(package: str, file: str) -> str:
    """A file of a package that is installed here."""
    found = importlib.util.find_spec(package)
    assert found is not None
    assert found.origin is not None
    return str(Path(found.origin).parent / file)


FLEXSHARD: Mapping[str, Any] = {
    "plugins": ["recd_flexshard"],
    "sharding": {"use": "flexshard", "budget_gb": 0.05},
    "topology": {"ranks_per_node": 1, "inter_node_gbps": 0.025},
}
"""Two machines behind 200 mbit: what auto goes by is the time that bytes take there."""
IMPORT = "import recd_plugins as rp\n"
STACK = '    stack = rp.load("registry.yaml")\n'

TRAINERS = (
    Trainer(
        name="golden_training",
        source="pytorch/torchrec, examples/golden_training/train_dlrm.py",
        file="examples/golden_training/train_dlrm.py",
        call="train",
        options={"num_embeddings": 100_000, "num_iterations": 10_000},
        registry=FLEXSHARD,
        edits=(
            Edit("from tqdm import tqdm\n", f"from tqdm import tqdm\n{IMPORT}"),
            Edit(
                "    model = DistributedModelParallel(\n",
                f"{STACK}"
                "    data = _get_random_dataset(num_embeddings=num_embeddings)\n"
                "    plan = stack.plan(train_model, batches=data, sharders=[sharder])\n"
                "    model = DistributedModelParallel(\n"
                "        plan=plan,\n",
            ),
            Edit("        sharders=[sharder],\n", "        sharders=stack.sharders(),\n"),
        ),
    ),
    Trainer(
        name="dlrm, multi-hot 3",
        source="facebookresearch/dlrm, torchrec_dlrm/dlrm_main.py",
        file="dlrm/torchrec_dlrm/dlrm_main.py",
        call="main",
        arguments=(
            "--num_embeddings_per_feature",
            ",".join(["20000"] * 26),
            "--multi_hot_sizes",
            ",".join(["3"] * 26),
            "--multi_hot_distribution_type=uniform",
            "--embedding_dim=16",
            "--dense_arch_layer_sizes=64,16",
            "--over_arch_layer_sizes=64,1",
            "--learning_rate=0.1",
            "--adagrad",
            "--limit_train_batches=10000",
        ),
        registry=FLEXSHARD,
        edits=(
            Edit("from tqdm import tqdm\n", f"from tqdm import tqdm\n{IMPORT}"),
            Edit(
                "    model = DistributedModelParallel(\n",
                f"{STACK}"
                "    hot = Multihot(args.multi_hot_sizes, args.num_embeddings_per_feature, "
                "args.batch_size, False, args.multi_hot_distribution_type)\n"
                "    look = RestartableMap(hot.convert_to_multi_hot, train_dataloader)\n"
                "    plan = stack.plan(train_model, batches=look)\n"
                "    model = DistributedModelParallel(\n"
                "        sharders=stack.sharders(),\n",
            ),
        ),
    ),
    Trainer(
        name="two_tower",
        source="pytorch/torchrec, examples/retrieval/two_tower_train.py",
        file="examples/retrieval/two_tower_train.py",
        call="train",
        options={"num_embeddings": 100_000, "num_iterations": 10_000, "batch_size": 128},
        needs=("faiss",),
        registry=FLEXSHARD,
        edits=(
            Edit(
                "from torchrec.sparse.jagged_tensor import KeyedJaggedTensor\n",
                f"from torchrec.sparse.jagged_tensor import KeyedJaggedTensor\n{IMPORT}",
            ),
            Edit(
                "    model = DistributedModelParallel(\n",
                f"{STACK}"
                "    look = get_dataloader(batch_size=batch_size, num_embeddings=num_embeddings)\n"
                "    plan = stack.plan(two_tower_train_task, batches=look)\n"
                "    model = DistributedModelParallel(\n"
                "        plan=plan,\n"
                "        sharders=stack.sharders(),\n",
            ),
        ),
    ),
    Trainer(
        name="bert4rec",
        source="pytorch/torchrec, examples/bert4rec/bert4rec_main.py",
        file="examples/bert4rec/bert4rec_main.py",
        call="main",
        arguments=(
            "--dataset_name=random",
            "--random_user_count=1000",
            "--random_item_count=2000",
            "--random_size=100000",
            "--max_len=20",
            "--emb_dim=32",
            "--train_batch_size=64",
            "--num_epochs=10000",
            "--lr=0.01",
        ),
        needs=("pandas",),
        registry=FLEXSHARD,
        concessions=(Edit("EmbOptimType.ADAM", "EmbOptimType.EXACT_ROWWISE_ADAGRAD"),),
        edits=(
            Edit("from tqdm import tqdm\n", f"from tqdm import tqdm\n{IMPORT}"),
            Edit(
                "        model = DMP(\n"
                "            module=model_bert4rec,\n"
                "            device=device,\n"
                "            sharders=[\n"
                "                cast(ModuleSharder[nn.Module], "
                "EmbeddingCollectionSharder(fused_params))\n"
                "            ],\n",
                '        stack = rp.load("registry.yaml")\n'
                "        mine = [EmbeddingCollectionSharder(fused_params)]\n"
                "        ids = lambda batch: _to_kjt(batch[0], device)\n"
                "        plan = stack.plan(model_bert4rec, batches=train_loader, features=ids, "
                "sharders=mine)\n"
                "        model = DMP(\n"
                "            module=model_bert4rec,\n"
                "            device=device,\n"
                "            plan=plan,\n"
                "            sharders=stack.sharders(),\n",
            ),
        ),
    ),
    Trainer(
        name="managed collision",
        source="TorchRec's distributed/benchmark/benchmark_train_pipeline.py, as installed",
        file=_installed("torchrec", "distributed/benchmark/benchmark_train_pipeline.py"),
        call="main",
        flags=(
            "--batch_size=128",
            "--num_batches=100",
            "--num_iters=10000",
            "--num_float_features=10",
            "--feature_pooling_avg=4",
            f"--power_law_alpha={ZIPF}",
            "--pin_memory=false",
            "--num_unweighted_features=6",
            "--num_weighted_features=1",
            "--embedding_feature_dim=32",
            "--base_row_size=20000",
            "--device_group=cpu",
            "--sharding_type=row_wise",
            "--pipeline=sparse",
            "--sync_fwd=false",
            "--yaml_config=collisions.yaml",
        ),
        files={
            "collisions.yaml": {"mc_config": {"mc_type": "sort-zch", "input_hash_size": 1_000_000}}
        },
        registry=FLEXSHARD,
        concessions=(
            Edit(
                "    assert (\n"
                "        torch.cuda.is_available() and torch.cuda.device_count() >= "
                "run_option.world_size\n"
                '    ), "CUDA not available or insufficient GPUs for the requested world_size"\n',
                "",
            ),
            Edit('backend="cpu:gloo,cuda:nccl"', 'backend="gloo"'),
            Edit("fwd_event = torch.cuda.Event(enable_timing=True)", "fwd_event = None"),
            Edit("if isinstance(output, torch.Tensor):", "if output is None:"),
            # TorchRec's planner wants as many buckets for each rank, of which this asks for one in
            # all; and on CPUs it knows no row-wise bags.
            Edit(
                "        # Create a planner for sharding based on the specified type\n",
                "        from torchrec.distributed import embeddingbag as bags\n"
                "        bags.EmbeddingBagCollectionSharder.sharding_types = "
                "lambda *_: ['row_wise']\n"
                "        for part in unsharded_model.modules():\n"
                '            if hasattr(part, "_buckets"):\n'
                "                part._buckets = world_size\n",
            ),
            Edit(
                "        result = benchmark_func(\n",
                "        _func_to_benchmark(bench_inputs, sharded_model, pipeline)\n"
                "        result = benchmark_func(\n",
            ),
            Edit(
                "benchmark_res_per_rank = run_multi_process_func(\n        func=runner,\n",
                'benchmark_res_per_rank = runner(\n        rank=int(os.environ["RANK"]),\n',
            ),
        ),
        edits=(
            Edit(
                "from torchrec.modules.embedding_configs import EmbeddingBagConfig\n",
                f"from torchrec.modules.embedding_configs import EmbeddingBagConfig\n{IMPORT}",
            ),
            Edit(
                "        sharded_model, optimizer = "
                "sharding_config.generate_sharded_model_and_optimizer(\n",
                '        stack = rp.load("registry.yaml")\n'
                "        ids = lambda batch: [batch.idlist_features, batch.idscore_features]\n"
                "        plan = stack.plan(unsharded_model, batches=bench_inputs, features=ids)\n"
                "        sharding_config._plan_and_sharders = lambda *_: (stack.sharders(), plan)\n"
                "        sharded_model, optimizer = "
                "sharding_config.generate_sharded_model_and_optimizer(\n",
            ),
        ),
    ),
)
