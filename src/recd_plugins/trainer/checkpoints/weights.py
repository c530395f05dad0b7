"""Loads the weights of a run's checkpoint into a plain model, in one process, to serve or export
it; and reads all tensors of a checkpoint for torch.distributed.checkpoint."""

from __future__ import annotations

import warnings
from pathlib import Path

import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint import StorageReader

from recd_plugins.errors import DataError, listed
from recd_plugins.notices import NoticeWarning
from recd_plugins.trainer.checkpoints.extra_states import EXTRA
from recd_plugins.trainer.checkpoints.files import check_whole, checkpoint_of, read_job, read_rank
from recd_plugins.trainer.checkpoints.storage import JsonReader

__all__ = ["checkpoint_reader", "load_weights"]


def checkpoint_reader(run: str | Path) -> StorageReader:
    """The `storage_reader` with which `torch.distributed.checkpoint.load` reads the latest
    checkpoint of a run, or the one named, for any plan and ranks. Names and shapes are those of
    `read_metadata().state_dict_metadata`: `model.NAME` and `optimizer.NAME/STATE`.
    """
    path = checkpoint_of(Path(run))
    check_whole(path)
    return JsonReader(path)


def load_weights(model: nn.Module, run: str | Path) -> int:
    """Fill an unsharded model, such as `stack.model()`, from the latest checkpoint of a run, or
    from the one named; returns the checkpoint's step. Parameters on the meta device move to the
    CPU. A notice names weights that the model has no place for.
    """
    path = checkpoint_of(Path(run))
    check_whole(path)
    step: int = read_job(path)["step"]
    for module in model.modules():
        own = [*module.parameters(recurse=False), *module.buffers(recurse=False)]
        if any(tensor.is_meta for tensor in own):
            module.to_empty(device="cpu", recurse=False)
    tensors: dict[str, Tensor] = {
        f"model.{name}": one for name, one in model.state_dict().items() if isinstance(one, Tensor)
    }
    reader = JsonReader(path)
    kept = reader.read_metadata().state_dict_metadata
    wrong = [
        name.removeprefix("model.")
        for name, one in tensors.items()
        if getattr(kept.get(name), "size", None) != one.size()
    ]
    if wrong:
        raise DataError(
            f"{path}: has no {wrong[0]!r} of the shape that this model has. Build the model by the "
            "registry that the run was trained by (job.json of the checkpoint holds it)."
        )
    left = sorted(name for name in kept if name.startswith("model.") and name not in tensors)
    if left:
        warnings.warn(
            f"{path}: the model has no place for {listed(name[6:] for name in left)}, and without "
            "it the model may compute something else than what was trained. Load into the whole "
            "model, and take the part of it that you want.",
            NoticeWarning,
            stacklevel=2,
        )
    with warnings.catch_warnings():  # torch warns of a single process, which is meant here
        warnings.filterwarnings("ignore", "torch.distributed is disabled")
        dcp.load(dict(tensors), storage_reader=reader, no_dist=True)
    extra = {name[6:]: one for name, one in tensors.items() if name.endswith(EXTRA)}
    model.load_state_dict({**extra, **read_rank(path, 0).get("model", {})}, strict=False)
    return step
