"""DSI: what Meta's storage and ingestion do to features before training.

`transforms/` holds the transforms of features and of dense columns, each with its formula;
`service/` holds the processes that read for trainers (DPP).
"""

from __future__ import annotations

from typing import Any

from recd_dsi.service.reader import ServiceReaderConfig, build_service_reader
from recd_plugins.api import PreprocessRecord, ReaderRecord, hookimpl


@hookimpl
def recd_preprocess() -> list[PreprocessRecord[Any]]:
    # These import torch, which takes seconds and memory that a coordinator should not spend.
    from recd_dsi.transforms.records import RECORDS

    return [*RECORDS]


@hookimpl
def recd_reader() -> list[ReaderRecord[ServiceReaderConfig]]:
    return [
        ReaderRecord(
            name="service",
            summary="Workers read for each rank, in processes of their own, and serve batches.",
            config=ServiceReaderConfig,
            build=build_service_reader,
        )
    ]
