"""The settings of registry.yaml apart from the slots: how to train."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from recd_plugins.config import Config, Range
from recd_plugins.errors import RegistryError
from recd_plugins.launch.machine_cores import cores_of_each
from recd_plugins.planning.codecs import BYTES, Codecs, Precision, torchrec_codecs

__all__ = ["CodecSettings", "OptimizerSettings", "TrainSettings"]


@dataclass(frozen=True, kw_only=True)
class OptimizerSettings(Config):
    """Tables have a fused optimizer, updated in backward; dense parameters any of torch's."""

    tables: Literal["rowwise_adagrad", "adagrad", "sgd"] = "rowwise_adagrad"
    """The fused optimizer of the embedding tables."""
    tables_lr: Annotated[float, Range(gt=0)] = 0.05
    """Its learning rate."""
    tables_eps: Annotated[float, Range(gt=0)] = 1e-8
    """Its epsilon (the Adagrads)."""
    dense: str = "adam"
    """A class of torch.optim, by its name in any case: adam, adamw, sgd, adagrad, ..."""
    dense_lr: Annotated[float, Range(gt=0)] = 1e-3
    """Its learning rate."""
    dense_options: Mapping[str, Any] = field(default_factory=dict)
    """Its other keyword arguments, say {weight_decay: 0.01}."""

    @property
    def options(self) -> dict[str, Any]:
        """The options of `train.optimizer` that give these settings. SGD has no epsilon: a registry
        that sets one gets a notice to take it out."""
        found = dataclasses.asdict(self)
        if self.tables == "sgd":
            del found["tables_eps"]
        return found

    def fused_params(self) -> dict[str, Any]:
        """The tables' optimizer as TorchRec's sharders take it."""
        from fbgemm_gpu.split_embedding_configs import EmbOptimType

        kinds = {
            "rowwise_adagrad": EmbOptimType.EXACT_ROWWISE_ADAGRAD,
            "adagrad": EmbOptimType.EXACT_ADAGRAD,
            "sgd": EmbOptimType.EXACT_SGD,
        }
        return {
            "optimizer": kinds[self.tables],
            "learning_rate": self.tables_lr,
            "eps": self.tables_eps,
        }


@dataclass(frozen=True, kw_only=True)
class CodecSettings(Config):
    """The precisions in which floats travel between ranks; lookups, sums and steps are in 32 bits
    anyway. Fewer bits round, and so train other weights."""

    forward: Precision = "fp32"
    """That of rows and sums on their way to who asked, by TorchRec's codecs, which have fp16 for
    bf16 on a CPU. Within a node, rows that are coalesced over it or have replicas keep 32 bits."""
    backward: Precision = "fp32"
    """That of their gradients on the way back."""
    backward_scale: Annotated[float, Range(gt=0)] = 1.0
    """The factor of these gradients as they travel: fp16 has nothing between 0 and 6e-8."""
    dense: Precision = "fp32"
    """That of the dense parameters' gradients; where they cross nodes once, between nodes alone."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.backward_scale != 1.0 and self.backward == "fp32":
            raise RegistryError(
                "is for gradients that travel in fewer bits, but backward is fp32. Set backward to "
                "fp16, or take it out.",
                "backward_scale",
            )

    def of_tables(self, device: str) -> Codecs | None:
        """The codecs of rows, sums and their gradients, as TorchRec's sharders take them; None if
        all have 32 bits."""
        return torchrec_codecs(self.forward, self.backward, self.backward_scale, device)

    @property
    def carried(self) -> float:
        """The bytes of rows, sums and gradients as they travel, divided by those of float32."""
        return (BYTES[self.forward] + BYTES[self.backward]) / (2 * BYTES["fp32"])

    @property
    def dense_carried(self) -> float:
        """The same ratio for dense gradients."""
        return BYTES[self.dense] / BYTES["fp32"]

    @property
    def of_wrapper(self) -> dict[str, Any]:
        """The precision of dense gradients, as TorchRec's DefaultDataParallelWrapper takes it."""
        return {} if self.dense == "fp32" else {"allreduce_comm_precision": self.dense}


@dataclass(frozen=True, kw_only=True)
class TrainSettings(Config):
    """The `train` key of registry.yaml."""

    ranks: Annotated[int, Range(ge=1, le=65_536)] = 2
    """Processes that `recd train` starts; under torchrun its world size counts."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """`auto` takes CUDA where torch sees a device; each rank of a machine then needs one."""
    batch_size: Annotated[int, Range(ge=1)] = 512
    """Samples per rank and step."""
    steps: Annotated[int, Range(ge=1)] = 300
    """Steps to train, over as many epochs as it takes."""
    seed: int = 0
    """Seeds parameters, tables (alike at any world size and plan) and shuffling."""
    optimizer: OptimizerSettings = field(default_factory=OptimizerSettings)
    """The optimizers, with their learning rates."""
    codecs: CodecSettings = field(default_factory=CodecSettings)
    """The precisions in which floats travel between ranks."""
    log_every: Annotated[int, Range(ge=1)] = 20
    """Steps between two lines of metrics."""
    eval_every: Annotated[int, Range(ge=0)] = 0
    """Steps between two evaluations on the test split; 0 only at the end."""
    eval_batches: Annotated[int, Range(ge=0)] = 0
    """Batches per rank and evaluation; 0 the whole test split."""
    sync_batch_norm: bool = False
    """Batch normalisation over the batches of all ranks (CUDA), not each rank's own."""
    retier_every: Annotated[int, Range(ge=0)] = 0
    """Steps between two moves of the replicas to the rows that are hot now; 0 they stay."""
    retier_batches: Annotated[int, Range(ge=1)] = 20
    """The latest batches whose lookups decide which rows are hot; rank 0 keeps its own of them."""
    profile_steps: Annotated[int, Range(ge=0)] = 0
    """Steps that torch.profiler watches, once, after the first line of metrics: a breakdown of the
    step, and a trace in the run's folder."""
    forecast_ms: Annotated[float, Range(ge=0)] = 0.0
    """Milliseconds of a step that are expected, as `recd advise` writes them into its registry: at
    its end a run has them beside what its steps took. 0 where they were not forecast."""
    checkpoint_every: Annotated[int, Range(ge=0)] = 100
    """Steps between two checkpoints; 0 only at the end."""
    keep_checkpoints: Annotated[int, Range(ge=1)] = 2
    """The latest checkpoints to keep."""
    on_damaged: Literal["stop", "go_back"] = "stop"
    """The action of `--resume` where the latest checkpoint is damaged: stop, or go back to the
    latest that is not; the damaged one is renamed."""
    on_full: Literal["stop", "go_on"] = "stop"
    """A run's action where the disk has no room for a checkpoint: stop, or train on without it."""
    elastic: Literal["step", "rank"] = "step"
    """The number that stays when torchrun restarts the job on another number of ranks: the samples
    of a `step`, where the ranks can share them evenly, or those of a `rank`."""
    run: Path = Path("runs/latest")
    """The folder of metrics, TensorBoard events and checkpoints."""
    hang_after: Annotated[float, Range(ge=0)] = 600.0
    """Seconds without a step, a batch of an evaluation or a checkpoint, and before the first step
    without any work, after which the job ends and says which rank hangs, and where; 0 waits for
    ever, as for a debugger."""
    bags_of_one: bool = True
    """Whether rows of sequences are looked up as bags of one, on a CPU: fbgemm's kernel for bags
    applies their gradients several times as fast. The weights are the same. What a run explains
    of its plan names the tables, and says of others why not."""
    threads: Annotated[int, Range(ge=0, le=1024)] = 0
    """CPU threads of a rank, for torch and for Arrow; 0 shares evenly the cores that
    they may use."""

    def threads_of_each(self, ranks_here: int) -> int:
        """The CPU threads of each of this machine's ranks."""
        return self.threads or cores_of_each(ranks_here)
