"""Tensors in files that the system pages in and out: they may be larger than memory."""

from __future__ import annotations

import errno
import mmap
import os
import tempfile
from pathlib import Path

import torch
from torch import Tensor

from recd_plugins.errors import CapabilityError, RegistryError

__all__ = ["IN_MEMORY", "MappedFile", "check_folder", "file_system"]

IN_MEMORY = ("tmpfs", "ramfs", "devtmpfs")
"""File systems that are memory themselves."""
PAGE = mmap.PAGESIZE


class MappedFile:
    """Zeros [numel] in a file of their own in a folder.

    The file never has a name, so that nothing is left of it when the tensor, or the process,
    is gone; and its space is set aside at once, so that the disk cannot fill up under it. Pages
    that nobody has touched take no memory.
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
                f"{folder}: {num_bytes / 1e9:,.3f} GB for a mapped table cannot be had "
                f"({error.strerror}); {free / 1e9:,.3f} GB are free. Name a folder on a larger "
                "disk, or spread the table over more machines."
            ) from error
        self._random = False
        self.tensor: Tensor = torch.frombuffer(self._mapping, dtype=dtype)

    def expect(self, *, random: bool) -> None:
        """How it will be read from now on.

        The system reads ahead, unless at random: then most of what it read would be for
        nothing, and where memory is short it would push out what is needed.
        """
        if random != self._random:
            self._random = random
            self._mapping.madvise(mmap.MADV_RANDOM if random else mmap.MADV_NORMAL)

    def read_ahead(self, at: Tensor, width: int) -> None:
        """Have the disk read the numbers [at, at + width), for each of `at` [n], all at once.

        Whoever reads them would else wait for the disk page by page.
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
            f"{folder}: is no folder that this process may write to. Make it, or name another "
            "for mapped tables."
        )
    if (kind := file_system(folder)) in IN_MEMORY:
        raise RegistryError(
            f"{folder}: lies in memory itself ({kind}). Name a folder on a disk for mapped tables."
        )


def file_system(folder: Path) -> str:
    """The kind of file system that a folder lies on; "" where Linux does not tell."""
    mounts = Path("/proc/self/mountinfo")
    device = folder.stat().st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    for line in mounts.read_text().splitlines() if mounts.exists() else []:
        place, _, kind = line.partition(" - ")
        if place.split()[2] == number:
            return kind.split()[0]
    return ""
