"""Tables of Delta Lake for tests: logs that are written by hand, as other programs write them."""

from __future__ import annotations

import base64
import json
import string
import struct as struct_module
import uuid
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq

Action = dict[str, Any]
B85, Z85 = (
    "0123456789" + letters + marks
    for letters, marks in (
        (string.ascii_uppercase + string.ascii_lowercase, "!#$%&()*+-;<=>?@^_`{|}~"),
        (string.ascii_lowercase + string.ascii_uppercase, ".-:+=^!/*?&<>()[]{}@%$#"),
    )
)


def deleted(*rows: int) -> Action:
    """A deletion vector within the log: a bitmap of one container, in the letters of ZeroMQ."""
    head = struct_module.pack("<IQIIIHHI", 1681511377, 1, 0, 12346, 1, 0, len(rows) - 1, 16)
    whole = head + struct_module.pack(f"<{len(rows)}H", *rows)
    written = base64.b85encode(whole).decode().translate(str.maketrans(B85, Z85))
    return {
        "storageType": "i",
        "pathOrInlineDv": written,
        "sizeInBytes": len(whole),
        "cardinality": len(rows),
    }


def commit(table: Path, version: int, *actions: Action) -> Path:
    log = table / "_delta_log"
    log.mkdir(parents=True, exist_ok=True)
    (log / f"{version:020}.json").write_text("\n".join(map(json.dumps, actions)))
    return table


def protocol(*features: str) -> Action:
    if not features:
        return {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}
    both = {"readerFeatures": [*features], "writerFeatures": [*features]}
    return {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, **both}}


def metadata(columns: dict[str, Any], *partitions: str, **configuration: str) -> Action:
    fields = [
        {"name": name, "type": kind, "nullable": True, "metadata": {}}
        for name, kind in columns.items()
    ]
    return {
        "metaData": {
            "id": str(uuid.uuid4()),
            "format": {"provider": "parquet", "options": {}},
            "schemaString": json.dumps({"type": "struct", "fields": fields}),
            "partitionColumns": [*partitions],
            "configuration": configuration,
            "createdTime": 0,
        }
    }


def struct(**fields: Any) -> dict[str, Any]:
    described: dict[str, Any] = metadata(fields)["metaData"]
    whole: dict[str, Any] = json.loads(described["schemaString"])
    return whole


def lists(element: Any) -> dict[str, Any]:
    return {"type": "array", "elementType": element, "containsNull": True}


def added(
    table: Path, name: str, columns: dict[str, Any], /, place: str = "", **more: Any
) -> Action:
    """A file that is written, and what the log says of it; `place` is its name there."""
    file = table / name
    file.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), file)
    known = {
        "path": place or quote(name),
        "partitionValues": {},
        "size": file.stat().st_size,
        "modificationTime": 0,
        "dataChange": True,
    }
    return {"add": known | more}
