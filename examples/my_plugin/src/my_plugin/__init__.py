"""A pooling and a dataset; the host calls the hooks below."""

from __future__ import annotations

from my_plugin.decay import DecayConfig, build_decay
from my_plugin.tastes import TastesConfig, build_tastes
from recd_plugins.api import DatasetRecord, PoolingRecord, hookimpl


@hookimpl
def recd_pooling() -> list[PoolingRecord[DecayConfig]]:
    return [
        PoolingRecord(
            name="decay",
            summary="A sum in which older values count less.",
            config=DecayConfig,
            build=build_decay,
        )
    ]


@hookimpl
def recd_dataset() -> list[DatasetRecord[TastesConfig]]:
    return [
        DatasetRecord(
            name="tastes",
            summary="Generated clicks of users whose taste drifts.",
            config=TastesConfig,
            build=build_tastes,
        )
    ]
