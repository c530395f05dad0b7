"""The kernel with which TorchRec looks up rows one by one, on its own, so that it can be timed."""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["rows_kernel"]


def rows_kernel(num_rows: int, dim: int, device: torch.device) -> Any:
    """A table that yields float32 rows for `(ids, offsets)`, and steps them by row-wise Adagrad in
    backward; on a CPU it looks them up as bags of one, as a job does.

    Random states stay as they were: if only one rank times, it would otherwise draw other numbers
    than the others from then on.
    """
    from fbgemm_gpu.split_embedding_configs import EmbOptimType
    from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation, PoolingMode
    from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
        ComputeDevice,
        SplitTableBatchedEmbeddingBagsCodegen,
    )

    from recd_plugins.compat.bags_of_one import look_up_as_bags

    on_cpu = device.type == "cpu"
    place = EmbeddingLocation.HOST if on_cpu else EmbeddingLocation.DEVICE
    where = ComputeDevice.CPU if on_cpu else ComputeDevice.CUDA
    with torch.random.fork_rng(devices=[] if on_cpu else [device]):
        table = SplitTableBatchedEmbeddingBagsCodegen(
            [(num_rows, dim, place, where)],
            optimizer=EmbOptimType.EXACT_ROWWISE_ADAGRAD,
            pooling_mode=PoolingMode.NONE,
            device=device,
        )
        table.init_embedding_weights_uniform(-0.1, 0.1)
    look_up_as_bags(table)
    return table
