"""A file or folder on a store: `Uri`, with the methods of `pathlib.Path` that tables need.

A `Location` is a path or a URI, and most code takes one without checking which. Arrow itself reads
S3, gs, abfs and hdfs; fsspec reads any other scheme. A failure is a `DataError` that names the URI,
what was wrong and what to do; before that, faults that may pass are tried again (`store.py`).
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import IO, Any, NamedTuple, NoReturn, TypeVar
from urllib.parse import parse_qsl, unquote, urlsplit

from recd_plugins.errors import DataError
from recd_plugins.storage.store import (
    ARROWS,
    AZURE,
    OpenStore,
    explained,
    store_of,
    tried,
    without,
)

__all__ = ["GLOB", "Location", "Stat", "Uri", "input_file", "is_uri", "location_of"]

R = TypeVar("R")
GLOB = frozenset("*?[")
SCHEMES = "://"


class Stat(NamedTuple):
    """The part of `os.stat` that a store also knows."""

    st_size: int
    st_mtime_ns: int


class Uri:
    """`scheme://container/key`; the rest of a URI (user, options) says how to reach it.

    Its text leaves out user and options, because they may contain secrets.
    """

    __slots__ = ("_access", "_path", "scheme")

    def __init__(self, text: str) -> None:
        parts = urlsplit(text)
        self.scheme = parts.scheme.lower()
        before, _, host = parts.netloc.rpartition("@")  # a user and a password may come before it
        user, _, password = before.partition(":")
        if self.scheme in AZURE and not password and user:
            user, host = "", parts.netloc  # a container in an account
        self._path = (host + "/" + parts.path.lstrip("/")).rstrip("/")
        if not self.scheme or not self._path.strip("/"):
            raise DataError(
                f"{self}: is not a URI of a file or folder. Write scheme://bucket/path."
            )
        options = dict(parse_qsl(parts.query, keep_blank_values=True))
        if user and self.scheme in ARROWS:
            options |= {"user": user, "secret_key": password}
        elif user:
            options |= {"access_key": unquote(user), "secret_key": unquote(password)}
        self._access = tuple(sorted(options.items()))

    def _at(self, path: str) -> Uri:
        made = object.__new__(Uri)
        made.scheme, made._path, made._access = self.scheme, path, self._access
        return made

    def __str__(self) -> str:
        return f"{self.scheme}://{self._path}"

    def __repr__(self) -> str:
        return f"Uri({str(self)!r})"

    def __fspath__(self) -> NoReturn:
        raise DataError(
            f"{self}: is on a store, but here it must be a file of this machine. Copy it to disk, "
            "and name the copy."
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Uri) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    def __lt__(self, other: Uri) -> bool:
        return self._key < other._key

    def __truediv__(self, name: str) -> Uri:
        return self._at(posixpath.join(self._path, name))

    def __reduce__(self) -> tuple[Any, ...]:
        return _again, (self.scheme, self._path, self._access)

    @property
    def _key(self) -> tuple[Any, ...]:
        return self.scheme, self._path, self._access

    @property
    def name(self) -> str:
        return posixpath.basename(self._path)

    @property
    def stem(self) -> str:
        return PurePosixPath(self.name).stem

    @property
    def suffix(self) -> str:
        return PurePosixPath(self.name).suffix

    @property
    def parent(self) -> Uri:
        return self._at(posixpath.dirname(self._path) or self._path)

    def with_name(self, name: str) -> Uri:
        return self.parent / name

    @property
    def parts(self) -> tuple[str, ...]:
        return tuple(self._path.split("/"))

    def above(self, count: int) -> Uri:
        """The folder that its first `count` parts name."""
        return self._at("/".join(self.parts[:count]))

    def below(self, folder: Uri) -> str:
        """The path of this URI relative to a folder that contains it."""
        return self._path[len(folder._path) :].lstrip("/")

    @property
    def access(self) -> dict[str, str]:
        """The options that say how to reach it, which may contain secrets."""
        return dict(self._access)

    def reached_as(self, other: Uri) -> Uri:
        """The same URI, reached with the options of another one."""
        return _again(self.scheme, self._path, other._access)

    def explained(self, error: OSError) -> DataError:
        """The message about a fault, as it is shown to users."""
        return explained(error, self, self.store)

    def hidden(self, text: str) -> str:
        """A text without the secrets that it may contain."""
        return without(text, self.store.secrets)

    @property
    def store(self) -> OpenStore:
        """The store, opened once in each process."""
        return store_of(os.getpid(), self.scheme, self.parts[0], self._access)

    def _tried(self, work: Callable[[Any, str], R]) -> R:
        return tried(lambda store: work(store.system, store.path(self._path)), self, self.store)

    def exists(self) -> bool:
        return self.kind() != "NotFound"

    def is_dir(self) -> bool:
        return self.kind() == "Directory"

    def is_file(self) -> bool:
        return self.kind() == "File"

    def kind(self) -> str:
        """File, Directory or NotFound."""
        kind: str = self._tried(lambda system, path: system.get_file_info(path)).type.name
        return kind

    def stat(self) -> Stat:
        info = self._tried(lambda system, path: system.get_file_info(path))
        if info.type.name == "NotFound":
            raise FileNotFoundError(2, "there is no such file", str(self))
        return _stat(info)

    def listed(self, *, deep: bool = False) -> dict[Uri, Stat]:
        """The files of a folder, or with `deep` of all folders in it too, in order of their
        names."""
        return self.listing(deep=deep)[0]

    def listing(self, *, deep: bool = False) -> tuple[dict[Uri, Stat], frozenset[str]]:
        """`listed`, and the names of the folders directly in this folder."""
        from pyarrow.fs import FileSelector

        def listing(system: Any, path: str) -> Any:
            selector = FileSelector(path, recursive=deep, allow_not_found=True)
            return path, system.get_file_info(selector)

        top, found = self._tried(listing)
        top = top.lstrip("/")
        files = {
            self / info.path.lstrip("/")[len(top) :].lstrip("/"): _stat(info)
            for info in found
            if info.type.name == "File"
        }
        below = (info.path.lstrip("/")[len(top) :].strip("/") for info in found if not info.is_file)
        return dict(sorted(files.items())), frozenset(one for one in below if "/" not in one)

    def matching(self, pattern: str, listed: dict[Uri, Stat] | None = None) -> dict[Uri, Stat]:
        """The files whose path below this folder matches: `**` is any folders, `*` stays in one. If
        the files are already `listed`, these are not listed again."""
        wanted = pattern.split("/")
        files = self.listed(deep=len(wanted) > 1) if listed is None else listed
        return {
            file: stat for file, stat in files.items() if _fits(file.below(self).split("/"), wanted)
        }

    def glob(self, pattern: str) -> Iterator[Uri]:
        yield from self.matching(pattern)

    def rglob(self, pattern: str) -> Iterator[Uri]:
        return self.glob(f"**/{pattern}")

    def open(self, mode: str = "rb") -> IO[bytes]:
        """A file of bytes, to be read from any position, or written from its start."""
        file: IO[bytes] = self.opened() if mode == "rb" else self.created()
        return file

    def opened(self) -> Any:
        """Arrow's file, to be read; `reading` can try its reads again."""
        return self._tried(lambda system, path: system.open_input_file(path))

    def created(self) -> Any:
        """Arrow's file, to be written: it is there, complete, once it is closed."""
        return self._tried(lambda system, path: system.open_output_stream(path))

    def reading(self, work: Callable[[], R]) -> R:
        """The result of work that reads an open file; it is tried again after a fault that may
        pass."""
        return tried(lambda _: work(), self, self.store)

    def read_bytes(self) -> bytes:
        def whole(system: Any, path: str) -> bytes:
            with system.open_input_file(path) as file:
                content: bytes = file.read()
                return content

        return self._tried(whole)

    def read_text(self, encoding: str = "utf-8") -> str:
        return self.read_bytes().decode(encoding)

    def write_bytes(self, content: bytes) -> None:
        """Write the file. It is complete afterwards, or as it was before: stores guarantee this."""

        def write(system: Any, path: str) -> None:
            with system.open_output_stream(path) as file:
                file.write(content)

        self._tried(write)

    def write_text(self, text: str, encoding: str = "utf-8") -> None:
        self.write_bytes(text.encode(encoding))

    def mkdir(self, *, parents: bool = False, exist_ok: bool = True) -> None:
        """Make a folder; does nothing if the store has only keys with common prefixes."""
        if not self.store.keys:
            self._tried(lambda system, path: system.create_dir(path, recursive=parents))

    def unlink(self, *, missing_ok: bool = False) -> None:
        def delete(system: Any, path: str) -> None:
            try:
                system.delete_file(path)
            except FileNotFoundError:
                if not missing_ok:
                    raise

        self._tried(delete)


Location = Path | Uri
"""Where a file or a folder is: on disk, or on a store."""


def is_uri(text: str) -> bool:
    """Whether a text names a scheme: `s3://bucket/table`, not `C:/table`."""
    scheme, found, _ = text.partition(SCHEMES)
    return bool(found) and len(scheme) > 1 and scheme.replace("+", "").isalnum()


def location_of(text: str | Location) -> Location:
    """The path or URI that a text names; `file://` is a path on this machine."""
    if isinstance(text, Path | Uri):
        return text
    if not is_uri(text):
        return Path(text)
    if text.lower().startswith("file://"):
        return Path(unquote(urlsplit(text).path))
    return Uri(text)


def input_file(location: Location) -> Any:
    """Arrow's file, to be read from any position, on a disk or on a store."""
    if isinstance(location, Uri):
        return location.opened()
    import pyarrow

    return pyarrow.OSFile(str(location))


def _again(scheme: str, path: str, access: tuple[tuple[str, str], ...]) -> Uri:
    made = object.__new__(Uri)
    made.scheme, made._path, made._access = scheme, path, access
    return made


def _stat(info: Any) -> Stat:
    return Stat(info.size or 0, info.mtime_ns or 0)


def _fits(parts: list[str], wanted: list[str]) -> bool:
    if not wanted:
        return not parts
    if wanted[0] == "**":
        return any(_fits(parts[at:], wanted[1:]) for at in range(len(parts) + 1))
    return bool(parts) and fnmatchcase(parts[0], wanted[0]) and _fits(parts[1:], wanted[1:])
