"""Tables larger than memory: their rows and optimizer state lie in files that the system pages."""

from __future__ import annotations

import dataclasses
import errno
import mmap
import os
import tempfile
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torchrec.distributed.types import (
    ModuleSharder,
    ParameterSharding,
    ShardingEnv,
    ShardingEnv2D,
)
from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection

from recd_plugins.compat.host_buffers import (
    KernelBuffers,
    StateWidth,
    before_lookups,
    kernels_over,
    state_width,
    takes_buffers,
)
from recd_plugins.compat.torchrec import own_fused_params, table_of
from recd_plugins.embedding.wrapped_sharder import WrappedSharder
from recd_plugins.errors import CapabilityError, RegistryError
from recd_plugins.launch.control_groups import text_of

__all__ = ["IN_MEMORY", "MappedFile", "MappedSharder", "check_folder", "file_system", "mapped"]

IN_MEMORY = ("tmpfs", "ramfs", "devtmpfs")
"""File systems that are memory themselves."""
KEYS = "`folder` in registry.yaml, or `mapped_folder` where that is set"
"""What names the folder."""
PAGE = mmap.PAGESIZE


class MappedSharder(WrappedSharder):
    """Has `inner` shard a collection, and its tables lie in mapped files on this rank.

    The sharded module is what `inner` makes anyway; its parameters, state dict and optimizer are
    views of the files. Each kernel has files of its own, which nobody else sees and which vanish
    with the process: checkpoints keep what is to be kept.
    """

    def __init__(
        self,
        inner: ModuleSharder[Any],
        folder: Path,
        tables: Collection[str] | None,
        apart: Collection[str],
    ) -> None:
        """`tables` lie in files, by default all. Those `apart` share no file with others, since
        `inner` has them in another module."""
        super().__init__(inner)
        if not takes_buffers():
            raise CapabilityError(
                "mapped tables need fbgemm 1.7 or a newer one: kernels of an older one, as here, "
                "keep rows in their own memory. Keep the tables in memory, or upgrade to torch "
                "2.12, fbgemm 1.7 and TorchRec 1.7."
            )
        check_folder(folder)
        self._folder = folder
        self._tables, self._apart = tables, apart

    def shard(
        self,
        module: EmbeddingCollection | EmbeddingBagCollection,
        params: dict[str, ParameterSharding],
        env: ShardingEnv,
        device: torch.device | None = None,
        module_fqn: str | None = None,
    ) -> Any:
        if device is not None and device.type != "cpu":
            raise CapabilityError(
                "mapped tables are for the CPU. On CUDA, TorchRec's kernel `fused_uvm_caching` "
                "keeps tables in host memory: use it instead of mapped tables."
            )
        if isinstance(env, ShardingEnv2D):
            raise CapabilityError(
                "mapped tables need one process group over all ranks: leave out mapped tables, or "
                "2D parallelism."
            )
        files = _Files(self._folder)
        kernels = [
            files.kernel(tables)
            for tables in _alike(
                module, params, env.rank, self.fused_params or {}, self._tables, self._apart
            )
        ]
        with kernels_over(module, kernels):
            sharded = self._inner.shard(module, params, env, device, module_fqn)
        # To ask for the state dict is to fill, save or load the tables, row after row.
        sharded.register_state_dict_pre_hook(lambda *_: files.expect(random=False))
        before_lookups(sharded, files.read_ahead)
        return sharded


def mapped(
    sharders: Iterable[ModuleSharder[Any]],
    folder: Path,
    tables: Collection[str] | None = None,
    apart: Collection[str] = (),
) -> list[ModuleSharder[Any]]:
    """The sharders; those of collections keep their tables, or the named ones, in files in
    `folder`.

    Tiers may stand in front of these; `apart` names the tables of bags whose rows travel there.
    Tables of another kernel than the fused one stay in memory.
    """
    collections = (EmbeddingCollection, EmbeddingBagCollection)
    return [
        MappedSharder(sharder, folder, tables, apart)
        if sharder.module_type in collections
        else sharder
        for sharder in sharders
    ]


class MappedFile:
    """Zeros [numel] in a file of their own in a folder.

    The file never has a name, so nothing is left of it once the tensor, or the process, is gone.
    Its space is allocated at once, so the disk cannot fill up under it. Pages that nobody has
    touched take no memory.
    """

    def __init__(self, numel: int, dtype: torch.dtype, folder: Path) -> None:
        num_bytes = numel * dtype.itemsize
        disk = os.statvfs(folder)
        free = disk.f_bavail * disk.f_frsize
        try:
            if num_bytes > free:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            with tempfile.TemporaryFile(dir=folder) as file:
                os.posix_fallocate(file.fileno(), 0, num_bytes)
                self._mapping = mmap.mmap(file.fileno(), num_bytes)
        except OSError as error:
            raise CapabilityError(
                f"{folder}: {num_bytes / 1e9:,.3f} GB for a mapped table cannot be allocated "
                f"({error.strerror}); {free / 1e9:,.3f} GB are free. Name a folder on a larger "
                f"disk ({KEYS}), or spread the table over more machines."
            ) from error
        self._random = False
        self.tensor: Tensor = torch.frombuffer(self._mapping, dtype=dtype)

    def expect(self, *, random: bool) -> None:
        """Advise the system how the file will be read from now on.

        The system reads ahead unless reads are random: then it would mostly read in vain, and where
        memory is short it would evict what is needed.
        """
        if random != self._random:
            self._random = random
            self._mapping.madvise(mmap.MADV_RANDOM if random else mmap.MADV_NORMAL)

    def read_ahead(self, at: Tensor, width: int) -> None:
        """Have the disk read the numbers [at, at + width), for each of `at` [n], all at once.

        Otherwise the reader would wait for the disk page by page.
        """
        size = self.tensor.itemsize
        first, last = at * size // PAGE, ((at + width) * size - 1) // PAGE
        most = width * size // PAGE + 2
        pages = torch.cat([torch.minimum(first + page, last) for page in range(most)])
        for page in torch.unique(pages).tolist():
            self._mapping.madvise(mmap.MADV_WILLNEED, page * PAGE, PAGE)


def check_folder(folder: Path) -> None:
    """`RegistryError` unless files can be made there, on a disk."""
    if not os.access(folder, os.W_OK | os.X_OK) or not folder.is_dir():
        raise RegistryError(
            f"{folder}: is not a folder to which this process may write. Make it, or name another "
            "for mapped tables."
        )
    if (kind := file_system(folder)) in IN_MEMORY:
        raise RegistryError(
            f"{folder}: is itself in memory ({kind}). Name a folder on a disk for mapped tables "
            f"({KEYS})."
        )


def file_system(folder: Path) -> str:
    """The kind of file system that a folder lies on; "" where Linux does not say it."""
    device = folder.stat().st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    for line in text_of(Path("/proc/self/mountinfo")).splitlines():
        place, _, kind = line.partition(" - ")
        if place.split()[2] == number:
            return kind.split()[0]
    return ""


class _Files:
    """The mapped files of a collection's tables."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: dict[int, MappedFile] = {}

    def kernel(self, tables: Sequence[_TablePart]) -> KernelBuffers:
        """Room for tables of one kernel."""
        return KernelBuffers(
            parameters=tuple(table.parameter for table in tables),
            weights=self._zeros(sum(table.numel for table in tables), tables[0].dtype),
            state=self._zeros(sum(table.state_numel for table in tables), torch.float32),
        )

    def expect(self, *, random: bool) -> None:
        for file in self._files.values():
            file.expect(random=random)

    def read_ahead(self, buffer: Tensor, at: Tensor, width: int) -> None:
        file = self._files[buffer.data_ptr()]
        file.expect(random=True)
        file.read_ahead(at, width)

    def _zeros(self, numel: int, dtype: torch.dtype) -> Tensor | None:
        if not numel:
            return None
        file = MappedFile(numel, dtype, self._folder)
        self._files[file.tensor.data_ptr()] = file
        return file.tensor


class _TablePart(NamedTuple):
    """A rank's part of a table."""

    parameter: str
    dtype: torch.dtype
    rows: int
    numel: int
    width: StateWidth

    @property
    def state_numel(self) -> int:
        return {"none": 0, "one": self.rows, "row": self.numel}[self.width]


def _alike(
    module: EmbeddingCollection | EmbeddingBagCollection,
    params: Mapping[str, ParameterSharding],
    rank: int,
    fused_params: Mapping[str, Any],
    chosen: Collection[str] | None,
    apart: Collection[str],
) -> Iterable[list[_TablePart]]:
    """The chosen tables of each fused kernel, which TorchRec makes for tables of one kind."""
    poolings = (
        {config.name: config.pooling for config in module.embedding_bag_configs()}
        if isinstance(module, EmbeddingBagCollection)
        else {}
    )
    alike: dict[tuple[object, ...], list[_TablePart]] = {}
    for name, parameter in module.named_parameters():
        table = table_of(name)
        sharding = params[table]
        if sharding.compute_kernel != "fused" or (chosen is not None and table not in chosen):
            continue
        own = own_fused_params(parameter)
        width = state_width({**fused_params, **own})
        if width is None:
            raise CapabilityError(
                f"table {table!r}: mapped tables are updated by SGD, Adagrad or row-wise "
                "Adagrad. Choose one of them, or keep the table in memory."
            )
        kind = (
            parameter.dtype,
            parameter.shape[1],  # tables of different D may come to stand in different modules
            table in apart,
            poolings.get(table),
            repr(dataclasses.replace(sharding, ranks=None, sharding_spec=None)),
            repr(sorted(own.items())),
        )
        rows, numel = _part(sharding, rank)
        alike.setdefault(kind, []).append(_TablePart(name, parameter.dtype, rows, numel, width))
    return alike.values()


def _part(sharding: ParameterSharding, rank: int) -> tuple[int, int]:
    """The number of rows and of numbers of a table that a rank holds."""
    spec: Any = sharding.sharding_spec
    sizes = [shard.shard_sizes for shard in spec.shards if shard.placement.rank() == rank]
    return sum(size[0] for size in sizes), sum(size[0] * size[1] for size in sizes)
