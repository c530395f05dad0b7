"""Tables of Iceberg for tests: a catalog that keeps the latest alone, and metadata by hand."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any


def iceberg(place, **properties):
    """A table and what commits to it: a catalog that keeps nothing but the latest table."""
    from pyiceberg.catalog import MetastoreCatalog
    from pyiceberg.catalog.noop import NoopCatalog
    from pyiceberg.table import CommitTableResponse, Table

    class Only(NoopCatalog):
        _update_and_stage_table = MetastoreCatalog._update_and_stage_table
        _create_staged_table = MetastoreCatalog._create_staged_table
        _resolve_table_location = lambda self, location, *name: location  # noqa: E731
        _get_default_warehouse_location = MetastoreCatalog._get_default_warehouse_location
        _write_metadata = staticmethod(MetastoreCatalog._write_metadata)
        _parse_metadata_version = staticmethod(MetastoreCatalog._parse_metadata_version)
        latest = None

        def create(self, schema, **options):
            staged = self._create_staged_table(("n", "t"), schema, place, **options)
            self._write_metadata(staged.metadata, staged.io, staged.metadata_location)
            self.latest = Table(
                ("n", "t"), staged.metadata, staged.metadata_location, staged.io, self
            )
            return self.latest

        def kept(self, staged):
            self.latest = Table(
                ("n", "t"), staged.metadata, staged.metadata_location, staged.io, self
            )
            return self.latest

        def load_table(self, identifier):
            return self.latest

        def commit_table(self, table, requirements, updates):
            staged = self._update_and_stage_table(table, table.name(), requirements, updates)
            self._write_metadata(staged.metadata, staged.io, staged.metadata_location)
            self.kept(staged)
            return CommitTableResponse(
                metadata=staged.metadata, metadata_location=staged.metadata_location
            )

    return Only("only", **properties)


def latest_metadata(table: Path) -> Path:
    """The file that describes a table of `iceberg`."""
    return max((table / "metadata").glob("*.metadata.json"))


def edited(table: Path, change: Callable[[dict[str, Any]], Any]) -> Path:
    """The table with its metadata changed by hand, as a writer of format 3 may have it: pyiceberg
    writes none."""
    described = json.loads(latest_metadata(table).read_text())
    change(described)
    number = int(latest_metadata(table).name.split("-")[0]) + 1
    (table / "metadata" / f"{number:05}-by-hand.metadata.json").write_text(json.dumps(described))
    return table


def delete_rows(table: Any, content: str, file_format: str = "PARQUET") -> None:
    """Have the latest snapshot of a table list a file of deletes for one of its files, as Flink and
    Spark write them: pyiceberg writes none."""
    from pyiceberg.manifest import (
        DataFile,
        DataFileContent,
        FileFormat,
        ManifestContent,
        ManifestEntry,
        ManifestEntryStatus,
        ManifestWriterV2,
        write_manifest_list,
    )
    from pyiceberg.typedef import Record

    class DeletesWriter(ManifestWriterV2):
        def content(self) -> ManifestContent:
            return ManifestContent.DELETES

    snapshot = table.current_snapshot()
    folder = Path(table.location().removeprefix("file://"))
    deletes = DataFile.from_args(
        content=DataFileContent[content],
        file_path=f"{table.location()}/data/deletes",
        file_format=FileFormat[file_format],
        partition=Record(),
        record_count=1,
        file_size_in_bytes=100,
        equality_ids=[1] if content == "EQUALITY_DELETES" else None,
    )
    entry = ManifestEntry.from_args(
        status=ManifestEntryStatus.ADDED,
        snapshot_id=snapshot.snapshot_id,
        sequence_number=None,
        file_sequence_number=None,
        data_file=deletes,
    )
    output = table.io.new_output(f"{table.location()}/metadata/deletes-m0.avro")
    with DeletesWriter(
        table.spec(), table.schema(), output, snapshot.snapshot_id, "deflate"
    ) as writer:
        writer.add_entry(entry)
    manifests = [*snapshot.manifests(table.io), writer.to_manifest_file()]
    whole = f"{table.location()}/metadata/deletes-list.avro"
    with write_manifest_list(
        format_version=2,
        output_file=table.io.new_output(whole),
        snapshot_id=snapshot.snapshot_id,
        parent_snapshot_id=None,
        sequence_number=snapshot.sequence_number,
        avro_compression="deflate",
    ) as listed:
        listed.add_manifests(manifests)
    edited(folder, lambda described: described["snapshots"][-1].update({"manifest-list": whole}))
