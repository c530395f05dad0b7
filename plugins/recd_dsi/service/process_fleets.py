"""The workers that this process started or found, by registry: all of its loaders share them."""

from __future__ import annotations

import atexit
import secrets
from dataclasses import replace
from threading import Lock
from typing import TYPE_CHECKING

from recd_plugins.api.reading import Delivery

if TYPE_CHECKING:
    from recd_dsi.service.credentials import Credentials
    from recd_dsi.service.fleet import Backend, Fleet
    from recd_dsi.service.reader import ServiceReaderConfig

__all__ = ["end_workers", "fleet_of"]

MIB = 1 << 20

_LOCK = Lock()
_FLEETS: dict[tuple[str, ServiceReaderConfig], Fleet] = {}
"""By the digest of how rows become batches, and by the reader's options."""


def fleet_of(
    config: ServiceReaderConfig, delivery: Delivery, rank: int, credentials: Credentials
) -> Fleet:
    """The workers of a registry; they are started if they are not there yet.

    If the loaders of several ranks are in one process, they share the workers of the first rank.
    """
    with _LOCK:
        place = (delivery.digest, config)
        if place not in _FLEETS:
            _FLEETS[place] = (
                _started(config, delivery, credentials)
                if config.coordinator is None
                else _known_by(config.coordinator, config, delivery, rank, credentials)
            )
        return _FLEETS[place]


def _known_by(
    coordinator: str,
    config: ServiceReaderConfig,
    delivery: Delivery,
    rank: int,
    credentials: Credentials,
) -> Fleet:
    """The workers that a coordinator names for a rank."""
    from recd_dsi.service.coordinator_callers import watch_members
    from recd_dsi.service.fleet import Fleet

    fleet = Fleet(credentials, config.workers)
    watch_members(fleet, coordinator, credentials, delivery.digest, rank, config.workers)
    return fleet


def _started(config: ServiceReaderConfig, delivery: Delivery, credentials: Credentials) -> Fleet:
    """Workers that this process starts, and more or fewer of them as they are needed."""
    from recd_dsi.service.fleet import Fleet
    from recd_dsi.service.local_backend import LocalBackend
    from recd_dsi.service.ray_backend import RayBackend
    from recd_dsi.service.scaling import Bounds, Scaler, Scaling
    from recd_dsi.service.worker import WorkerOptions

    if not credentials.token:  # other users of this machine can also call its loopback
        credentials = replace(credentials, token=secrets.token_urlsafe(24))
    fleet = Fleet(credentials, config.workers)
    options = WorkerOptions(
        buffer_bytes=config.buffer_mib * MIB,
        disk=config.cache,
        disk_bytes=config.cache_mib * MIB,
        shared_bytes=config.shared_memory_mib * MIB,
        credentials=credentials,
    )
    given = (delivery, options, config.workers, fleet.set_workers)
    backend: Backend
    if config.backend == "ray":
        backend = RayBackend(*given, address=config.ray_address)
    else:
        backend = LocalBackend(*given)
    backend.wait()
    fleet.backend = backend
    if config.most_workers is not None:
        bounds = Bounds(fewest=config.workers, most=config.most_workers)
        fleet.scaler = Scaler(Scaling(bounds), lambda: [fleet.about()], fleet)
    return fleet


@atexit.register
def end_workers() -> None:
    """End the workers that this process started."""
    with _LOCK:
        for fleet in _FLEETS.values():
            fleet.close()
        _FLEETS.clear()
