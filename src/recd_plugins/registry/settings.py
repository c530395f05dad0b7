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
from recd_plugins.planning.prices.codecs import BYTES, Codecs, Precision, torchrec_codecs

__all__ = ["CodecSettings", "OptimizerSettings", "TrainSettings"]


@dataclass(frozen=True, kw_only=True)
class OptimizerSettings(Config):
    """Tables have a fused optimizer, updated in backward; dense parameters any of torch's."""

    tables: Literal["rowwise_adagrad", "adagrad", "sgd"] = "rowwise_adagrad"
    """The fused optimizer of the embedding tables."""
    tables_lr: Annotated[float, Range(gt=0)] = 0.05
    """The learning rate of the tables."""
    tables_eps: Annotated[float, Range(gt=0)] = 1e-8
    """The epsilon of the tables' optimizer, if that is an Adagrad."""
    dense: str = "adam"
    """The optimizer of the dense parameters: a class of torch.optim, by its name in any case, such
    as adam, adamw, sgd or adagrad."""
    dense_lr: Annotated[float, Range(gt=0)] = 1e-3
    """The learning rate of the dense parameters."""
    dense_options: Mapping[str, Any] = field(default_factory=dict)
    """Other keyword arguments of the dense optimizer, such as {weight_decay: 0.01}."""

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
    """The precision of rows and sums on their way to the ranks that look them up, by TorchRec's
    codecs, which on a CPU take fp16 for bf16. Within a node, rows that are coalesced over it or
    have replicas keep 32 bits."""
    backward: Precision = "fp32"
    """The precision of the gradients of these rows and sums on their way back."""
    backward_scale: Annotated[float, Range(gt=0)] = 1.0
    """The factor by which these gradients are multiplied while they travel. Raise it with fp16,
    which has nothing between 0 and 6e-8."""
    dense: Precision = "fp32"
    """The precision of the dense parameters' gradients in their all-reduce. If they cross nodes
    once, it holds between nodes alone."""

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
    """The number of processes that `recd train` starts. Under torchrun, torchrun's world size
    counts instead."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """The device that trains. `auto` takes CUDA if torch sees a device; then each rank of a machine
    needs a device of its own."""
    batch_size: Annotated[int, Range(ge=1)] = 512
    """The number of samples of a rank in a step."""
    steps: Annotated[int, Range(ge=1)] = 300
    """The number of steps to train, over as many epochs as that takes."""
    seed: int = 0
    """The seed of parameters, tables and shuffling. Tables start alike at any world size and
    plan."""
    optimizer: OptimizerSettings = field(default_factory=OptimizerSettings)
    """The optimizers, with their learning rates."""
    codecs: CodecSettings = field(default_factory=CodecSettings)
    """The precisions in which floats travel between ranks."""
    log_every: Annotated[int, Range(ge=1)] = 20
    """The steps between two lines of metrics."""
    eval_every: Annotated[int, Range(ge=0)] = 0
    """The steps between two evaluations on the test split. With 0 there is one, at the end."""
    eval_batches: Annotated[int, Range(ge=0)] = 0
    """The batches of a rank in an evaluation. With 0 it takes the whole test split."""
    sync_batch_norm: bool = False
    """Whether batch normalisation is over the batches of all ranks (on CUDA alone). By default each
    rank normalises over its own batch."""
    retier_every: Annotated[int, Range(ge=0)] = 0
    """The steps after which the replicas move to the rows that are hot by then; with 0 they stay.
    Set it if hot rows change while you train."""
    retier_batches: Annotated[int, Range(ge=1)] = 20
    """The number of latest batches whose lookups decide which rows are hot. Rank 0 counts those of
    its own."""
    profile_steps: Annotated[int, Range(ge=0)] = 0
    """The number of steps that torch.profiler records, once, after the first line of metrics; 0
    records none. The run's folder then has a breakdown of the step and a trace."""
    forecast_ms: Annotated[float, Range(ge=0)] = 0.0
    """The milliseconds that a step should take, as `recd advise` forecasts or, with `--try`,
    measures them, and writes them into its registry; 0 if nobody knows. At its end a run compares
    them with its steps."""
    checkpoint_every: Annotated[int, Range(ge=0)] = 100
    """The steps between two checkpoints. With 0 there is one, at the end."""
    keep_checkpoints: Annotated[int, Range(ge=1)] = 2
    """The number of checkpoints that are kept, the latest ones."""
    on_damaged: Literal["stop", "go_back"] = "stop"
    """What `--resume` does if the latest checkpoint is damaged: it stops (`stop`), or renames it
    and goes back to the latest that is not damaged (`go_back`)."""
    on_full: Literal["stop", "go_on"] = "stop"
    """What a run does if the disk has no room for a checkpoint or for a line of metrics: it stops
    (`stop`), or trains on without it (`go_on`)."""
    elastic: Literal["step", "rank"] = "step"
    """What stays the same when torchrun restarts the job on another number of ranks: the samples of
    a step (`step`), if the ranks can share them evenly, or the samples of a rank (`rank`)."""
    run: Path = Path("runs/latest")
    """The folder of metrics, TensorBoard events and checkpoints."""
    begin_from: Path | None = None
    """The run, or the checkpoint, with whose weights and optimizer states a new run begins, on any
    data and number of ranks. By default it begins with new ones; `--resume` does not look at it."""
    hang_after: Annotated[float, Range(ge=0)] = 600.0
    """The seconds without a step, a batch of an evaluation or a checkpoint (before the first step:
    without any work) after which the job ends, and says which rank hangs, and where. With 0 the job
    waits for ever, as a debugger needs."""
    bags_of_one: bool = True
    """Whether a CPU looks up rows of sequences as bags of one, since fbgemm's kernel for bags
    applies their gradients several times as fast; the weights are the same. A run's explanation of
    its plan names these tables, and says why others are not among them."""
    threads: Annotated[int, Range(ge=0, le=1024)] = 0
    """The CPU threads of a rank, for torch and for Arrow. With 0 the ranks share evenly the cores
    that they may use."""

    def threads_of_each(self, ranks_here: int) -> int:
        """The CPU threads of each of this machine's ranks."""
        return self.threads or cores_of_each(ranks_here)
