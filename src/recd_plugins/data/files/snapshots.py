"""Tables of Delta Lake, Iceberg and Spark streams: which files a snapshot has.

All keep data as Parquet files, and a list of these in logs of their own; the libraries of the first
two read their logs. Files that a log no longer lists still lie beside the others. The log says what
a file lacks: the values of its partition, and nulls for a column that was added later. It also says
what the table calls the columns of the file. Snapshots that have deleted rows within a file are
refused, not read wrongly; so are tables of other programs that keep a log.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Literal

from recd_plugins.data.files.delta_snapshot import delta_snapshot
from recd_plugins.data.files.iceberg_snapshot import iceberg_snapshot
from recd_plugins.data.files.logged_tables import Snapshot, without_secrets, written_anew
from recd_plugins.data.files.logs import SnapshotKind, snapshot_kind
from recd_plugins.data.files.paths import place_of
from recd_plugins.data.files.spark_snapshot import spark_snapshot
from recd_plugins.data.parquet.file_facts import FileFacts
from recd_plugins.errors import CapabilityError, DataError, listed
from recd_plugins.storage.uri import Location

__all__ = ["TableFormat", "check_latest", "snapshot_files"]

TableFormat = Literal["parquet", "delta", "iceberg"]

KEEPERS: Mapping[SnapshotKind, str] = {
    "delta": "Delta Lake",
    "iceberg": "Iceberg",
    "spark": "a stream of Spark",
}
NOT_READ: Mapping[SnapshotKind, str] = {
    "hudi": "is a table of Hudi, which is not read: older versions of its rows lie beside the "
    f"latest ones. {written_anew('hudi')}. `CALL show_commits` lists earlier commits, and "
    ".option('as.of.instant', TIME) loads the table as it was at one of them",
    "paimon": "is a table of Paimon, which is not read: older versions of its rows lie beside the "
    f"latest ones. {written_anew('paimon')}. The table `TABLE$snapshots` lists earlier snapshots, "
    "and .option('scan.snapshot-id', ID) loads one of them",
    "lance": "is a table of Lance, which is not read: its files are not Parquet. Write its latest "
    "rows as Parquet: pyarrow.dataset.write_dataset(lance.dataset(TABLE).scanner().to_reader(), "
    "FOLDER, format='parquet'). lance.dataset(TABLE).versions() lists earlier versions, and "
    "lance.dataset(TABLE, version=N) opens one of them",
}
"""What errors say about tables of which other programs keep a log."""
UNSUPPORTED = re.compile(
    "feature|catalog-managed|unsupported field type|unknown format version", re.IGNORECASE
)
"""What a library says of a table that needs features it does not know."""


def snapshot_files(table: Location, kind: SnapshotKind, snapshot: int | None) -> Snapshot:
    """The files of a snapshot, by default the latest one."""
    if kind in NOT_READ:
        raise DataError(f"{table}: {NOT_READ[kind]}.")
    if kind == "spark":
        try:
            return _with_files(table, *spark_snapshot(table))
        except DataError:
            raise
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(
                f"{table}: its _spark_metadata cannot be read ({error}). Copy the whole folder."
            ) from error
    read = delta_snapshot if kind == "delta" else iceberg_snapshot
    package = "deltalake" if kind == "delta" else "pyiceberg"
    try:
        return _with_files(table, *read(table, snapshot))
    except ImportError:
        raise CapabilityError(
            f"{table}: a table of format {kind} is read by {package}, which is not installed: "
            f"pip install 'recd-plugins[{kind}]'."
        ) from None
    except DataError:
        raise
    except Exception as error:  # libraries have their own errors, some just Exceptions
        which = "" if snapshot is None else f" of snapshot {snapshot}"
        why = without_secrets(error, table)
        if UNSUPPORTED.search(why):
            raise DataError(
                f"{table}: needs a reader that knows more than {package} does ({why}). "
                f"{written_anew(kind)}."
            ) from error
        raise DataError(
            f"{table}: {package} finds no files{which} here ({why}). Check the path, the format "
            "and the snapshot."
        ) from error


def _with_files(table: Location, files: dict[Location, FileFacts], name: str) -> Snapshot:
    if not files:
        raise DataError(
            f"{table}: its snapshot has no files, so there are no rows. Name another snapshot."
        )
    return files, name


def check_latest(table: Location, files: Sequence[Location]) -> None:
    """Raises `DataError` for files in a table's folder that its latest snapshot does not have."""
    kind = snapshot_kind(table)
    assert kind is not None
    latest = {*map(place_of, snapshot_files(table, kind, None)[0])}
    gone = [str(file) for file in files if place_of(file) not in latest]
    if gone:
        raise DataError(
            f"{listed(gone, 4)}: {KEEPERS[kind]} keeps {table}, whose latest snapshot has no such "
            "file: its rows were deleted, rewritten or never committed. Name that folder to read "
            "the files of the snapshot, or name only files of the snapshot."
        )
