"""A user's own torch module as a transform: a torch.export file, read without unpickling."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import re
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import torch
from torch import Tensor, nn

from recd_plugins.api import Config, Context, DataError, Range, RegistryError, so_many
from recd_plugins.api.data import Schema, whole_file
from recd_plugins.api.rows import with_ids

if TYPE_CHECKING:
    from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

__all__ = ["Exported", "ExportedConfig", "build_exported", "export"]

MEANT = "Name a file that recd_dsi.transforms.export wrote."


@dataclass(frozen=True, kw_only=True)
class ExportedConfig(Config):
    """The program, and what comes out of it."""

    file: Path
    """The file that `recd_dsi.transforms.exported.export` wrote."""
    num_ids: Annotated[int, Range(ge=1, le=2**62)]
    """The number of ids that come out, which are in [0, num_ids); any other id is an error."""
    sha256: str | None = None
    """The SHA-256 that the file must have; by default any file is taken."""


def export(module: nn.Module, file: Path) -> None:
    """Write a module of `forward(ids [N] int64, lengths [R] int64) -> (ids, lengths)` to a file.

    The rows are those of all features that registry.yaml names, one after another; as many rows
    must come out. As in any transform on unique samples, each row's result must depend only on that
    row. torch.export must accept the module.
    """
    dynamic = torch.export.Dim.DYNAMIC
    program = torch.export.export(
        module.eval(),
        (torch.arange(7, device="cpu"), torch.tensor([3, 0, 4], device="cpu")),
        dynamic_shapes=({0: dynamic}, {0: dynamic}),
    )
    with whole_file(Path(file)) as part:
        torch.export.save(program, part)


class Exported(nn.Module):
    """Rows of ids -> the rows that a torch.export program makes of (ids, lengths).

    If all rows keep their lengths, ids keep their weights; otherwise the new ids weigh 1.
    """

    def __init__(self, program: bytes, num_ids: int, name: str) -> None:
        super().__init__()
        self._program, self._name, self.num_ids = program, name, num_ids
        self._run: Any = None

    def __getstate__(self) -> dict[str, Any]:
        """The state for a worker: it gets the program, and loads it itself."""
        return {**self.__dict__, "_run": None}

    def forward(self, features: KeyedJaggedTensor) -> KeyedJaggedTensor:
        if self._run is None:
            self._run = torch.export.load(io.BytesIO(self._program)).module()
        given = features.lengths().long()
        ids, lengths = self._run(features.values().long(), given)
        self._check(ids, lengths, given)
        if torch.equal(lengths, given):
            return with_ids(features, ids)
        weights = features.weights_or_none()
        return with_ids(
            features,
            ids,
            lengths=lengths.to(features.lengths().dtype),
            weights=None if weights is None else weights.new_ones(len(ids)),
        )

    def _check(self, ids: Tensor, lengths: Tensor, given: Tensor) -> None:
        if lengths.shape != given.shape or int(lengths.sum()) != len(ids):
            raise DataError(
                f"{self._name} made {so_many(len(ids), 'id')} and {so_many(len(lengths), 'row')} "
                f"of {int(lengths.sum())}, of {so_many(len(given), 'row')}. Let it return (ids, "
                "lengths) of as many rows."
            )
        if len(ids) and not (int(ids.min()) >= 0 and int(ids.max()) < self.num_ids):
            raise DataError(
                f"{self._name} made ids from {int(ids.min())} to {int(ids.max())}, but num_ids is "
                f"{self.num_ids}. Correct one of the two."
            )

    def schema(self, schema: Schema) -> Schema:
        return schema.replace(
            dataclasses.replace(feature, num_ids=self.num_ids) for feature in schema.sparse
        )

    def extra_repr(self) -> str:
        return f"{self._name}, num_ids={self.num_ids}"


def build_exported(config: ExportedConfig, context: Context) -> Exported:
    """The record's build."""
    try:
        program = config.file.read_bytes()
    except OSError as error:
        raise RegistryError(
            f"{config.file} cannot be read ({error.strerror}). {MEANT}", "file"
        ) from error
    digest = hashlib.sha256(program).hexdigest()
    if config.sha256 not in (None, digest):
        raise RegistryError(
            f"{config.file} has another one, {digest}. Take the file that was chosen, or name this "
            "one if you trust it.",
            "sha256",
        )
    _check_archive(program, config.file)
    return Exported(program, config.num_ids, str(config.file))


PLAIN = re.compile(
    r"[^/]+/(archive_format|archive_version|byteorder|\.data/\w+|models/model\.json"
    r"|data/weights/weight_\d+|data/constants/tensor_\d+"
    r"|data/(weights/model_weights|constants/model_constants)_config\.json"
    r"|data/sample_inputs/model\.pt)"
)
"""The files of a torch.export program whose tensors are plain bytes."""


def _check_archive(program: bytes, file: Path) -> None:
    """Raise `RegistryError` unless the whole file can be read without unpickling: torch would
    unpickle anything else in it, and so run any code that it holds."""
    try:
        with zipfile.ZipFile(io.BytesIO(program)) as archive:
            names = archive.namelist()
            configs = [
                json.loads(archive.read(name))["config"]
                for name in names
                if name.endswith("_config.json")
            ]
            inputs = [archive.read(name) for name in names if name.endswith(".pt")]
    except (zipfile.BadZipFile, ValueError, KeyError) as error:
        raise RegistryError(f"{file} is no program ({error}). {MEANT}", "file") from error
    odd = [name for name in names if not PLAIN.fullmatch(name)]
    entries = [entry for config in configs for entry in config.values()]
    pickled = any(entry.get("use_pickle") or not entry.get("tensor_meta") for entry in entries)
    twice = len(set(names)) < len(names)
    if odd or pickled or twice or not any(name.endswith("/archive_format") for name in names):
        raise RegistryError(
            f"{file} holds more than a program and plain tensors ({', '.join(odd) or 'pickles'}). "
            "It is not loaded, because it could run any code. Write the module again, with "
            "recd_dsi.transforms.export.",
            "file",
        )
    for one in inputs:  # torch.export.load falls back to unpickling them
        try:
            torch.load(io.BytesIO(one), weights_only=True)
        except Exception as error:
            raise RegistryError(
                f"{file} holds sample inputs that are no plain tensors ({error}). {MEANT}", "file"
            ) from error
