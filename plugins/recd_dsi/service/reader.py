"""The `service` reader: workers make a rank's batches; the rank starts or finds them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from recd_dsi.service.addresses import host_and_port
from recd_dsi.service.process_fleets import fleet_of
from recd_plugins.api import Config, Context, GivesNotices, Loader, Notice, Range, RegistryError
from recd_plugins.api.data import Split, Table
from recd_plugins.api.reading import (
    Delivery,
    LocalReader,
    LocalReaderConfig,
    SessionOrder,
    Shares,
    Tail,
    table_digest,
)

if TYPE_CHECKING:
    from recd_plugins.api.batch import Batch

__all__ = ["ServiceReader", "ServiceReaderConfig", "build_service_reader"]

MIB = 1 << 20


@dataclass(frozen=True, kw_only=True)
class ServiceReaderConfig(Config):
    """The way in which workers read for a rank."""

    workers: Annotated[int, Range(ge=1, le=256)] = 2
    """The number of a rank's workers: it starts so many, or with a `coordinator` asks so many of
    those that are there. Raise it if training waits for batches."""
    most_workers: Annotated[int | None, Range(ge=1, le=256)] = None
    """The largest number of workers: the rank starts more, up to so many, while too few batches
    wait, and ends some, down to `workers`, while plenty do. By default it is always `workers`."""
    backend: Literal["local", "ray"] = "local"
    """Who starts the workers: each rank, as processes of its machine that end with it (`local`), or
    Ray, as actors that are spread over its nodes (`ray`)."""
    ray_address: str | None = None
    """The address of a running Ray that `backend: ray` joins, or `auto` for the one of this
    machine. By default the rank starts a Ray of its own."""
    coordinator: str | None = None
    """The host:port of a coordinator, whose workers the rank then asks. By default the rank starts
    workers of its own."""
    token_file: Path | None = None
    """The file of the token that a coordinator's workers, or actors of Ray, ask for. You need it
    for workers beyond 127.0.0.1."""
    certificate: Path | None = None
    """A PEM file with the certificates that the rank trusts beyond 127.0.0.1. Actors of Ray show
    the same certificate."""
    key: Path | None = None
    """A PEM file with the private key of that certificate. Actors of Ray read it on their nodes."""
    shuffle: bool = True
    """As the local reader's."""
    window: Annotated[int, Range(ge=0)] = 2
    """As the local reader's."""
    sessions: SessionOrder = "split"
    """As the local reader's."""
    tail: Tail = "drop"
    """As the local reader's."""
    streams: Annotated[int | None, Range(ge=1)] = None
    """As the local reader's: with equal `streams` batches are the same."""
    pin_memory: bool | None = None
    """Whether batches are in pinned memory, where torch sees a CUDA device; by default if the job
    trains on it."""
    prefetch_mib: Annotated[int, Range(ge=1)] = 64
    """The memory, in MiB, for batches that wait in the rank."""
    shared_memory_mib: Annotated[int, Range(ge=0)] = 64
    """The memory, in MiB, through which a started worker hands batches to ranks of its machine.
    With 0 they go over the wire, as those of other machines do."""
    buffer_mib: Annotated[int, Range(ge=1)] = 256
    """The memory, in MiB, in which a started worker keeps batches: first those that it made ahead,
    then those that it has sent."""
    cache: Path | None = None
    """A folder in which started workers keep batches for which memory has no room; by default they
    keep none. Set it if several jobs ask for the same batches, such as other models over the same
    table and transforms."""
    cache_mib: Annotated[int, Range(ge=1)] = 8192
    """The largest size of that folder, in MiB."""
    hedge: Annotated[float, Range(gt=0)] = 1.0
    """The seconds after which a worker of whom a batch is wanted must show that it is there; after
    twice as many, the rank asks another worker too."""
    deadline: Annotated[float, Range(gt=0)] = 60.0
    """The seconds after which a call to a worker has failed."""
    patience: Annotated[float, Range(gt=0)] = 5.0
    """The seconds without any worker after which the rank does what `when_none_answers` says."""
    when_none_answers: Literal["read", "fail"] = "read"
    """What a rank does then: it reads by itself until a worker is back (`read`), or ends with an
    error (`fail`)."""
    damaged: Literal["raise", "skip"] = "raise"
    """What happens if two workers cannot read a stripe, each after some tries: the epoch ends
    (`raise`), or the stripe's rows come empty and weigh 0, now and in all later epochs, as in a
    resumed run (`skip`). `skip` is for 5% of the stripes at most, and for `sessions: split`
    alone."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.damaged == "skip" and self.sessions != "split":
            raise RegistryError(
                f"skip keeps the order of rows, but with `sessions: {self.sessions}` that order "
                "depends on the rows, which cannot be read. Choose split, or `damaged: raise`.",
                "damaged",
            )
        if self.most_workers is not None and self.most_workers < self.workers:
            raise RegistryError(
                f"is {self.most_workers}, fewer than the {self.workers} `workers` to begin with.",
                "most_workers",
            )
        if self.most_workers is not None and self.coordinator is not None:
            raise RegistryError(
                "is for workers that the rank starts, but a coordinator scales its own: give it "
                "`--most-workers`, and leave this out.",
                "most_workers",
            )
        self._check_who_starts()

    def _check_who_starts(self) -> None:
        """Raise `RegistryError` for options that do not fit the chosen workers, and for a text that
        is not an address."""
        for option in ("coordinator", "ray_address"):
            address = getattr(self, option)
            if address is not None and address != "auto":
                try:
                    host_and_port(address)
                except RegistryError as error:
                    raise RegistryError(error.message, option) from None
        if self.coordinator is not None:
            for option in self.set_among("backend", "ray_address", "key", "cache"):
                raise RegistryError(
                    "is for workers that the rank starts, but `recd serve` starts those of a "
                    "coordinator, and has the same option. Take it out here.",
                    option,
                )
        elif self.backend != "ray" and self.ray_address is not None:
            raise RegistryError(
                f"is for actors of Ray, but `backend: {self.backend}` starts processes of this "
                "machine. Write `backend: ray`, or take it out.",
                "ray_address",
            )

    def idle_options(self) -> Mapping[str, str]:
        idle = {**self.local.idle_options()}
        if self.coordinator is not None:
            why = (
                "it is for workers that the rank starts, and a coordinator's are started elsewhere"
            )
            idle |= dict.fromkeys(self.set_among("buffer_mib", "cache_mib"), why)
        elif self.cache is None and self.set_among("cache_mib"):
            idle["cache_mib"] = (
                "it is the size of the folder that `cache` names, and `cache` is not set"
            )
        if self.key is not None and self.certificate is None:
            idle["key"] = "it is the private key of `certificate`, and `certificate` is not set"
        return idle

    @property
    def local(self) -> LocalReaderConfig:
        """The options that are the local reader's too."""
        return LocalReaderConfig(
            shuffle=self.shuffle,
            window=self.window,
            sessions=self.sessions,
            tail=self.tail,
            streams=self.streams,
            pin_memory=self.pin_memory,
        )

    @property
    def forks(self) -> bool:
        """Whether a rank forks its workers."""
        return self.backend == "local" and self.coordinator is None


class ServiceReader(GivesNotices):
    """Opens loaders whose batches workers make; a `Reader`."""

    def __init__(
        self,
        config: ServiceReaderConfig,
        *,
        local: LocalReader,
        delivery: Callable[[], Delivery] | None,
    ) -> None:
        self._config, self._local, self._delivery = config, local, delivery

    def notices(self) -> Sequence[Notice]:
        return self._local.notices()

    def loader(
        self,
        table: Table,
        *,
        rank: int,
        world_size: int,
        batch_size: int,
        split: Split,
        transform: Callable[[Batch], Batch] | None = None,
    ) -> Loader:
        """The rank's loader; it reads in this process if the batches are not the registry's own."""
        local = self._local.loader(
            table,
            rank=rank,
            world_size=world_size,
            batch_size=batch_size,
            split=split,
            transform=transform,
        )
        if self._delivery is None:
            return local
        from recd_dsi.service.credentials import credentials_of
        from recd_dsi.service.fetching import FetchingOptions  # torch: seconds
        from recd_dsi.service.job import BatchJob
        from recd_dsi.service.loader import ServiceLoader

        config, order, delivery = self._config, local.source.order, self._delivery()
        credentials = credentials_of(config.token_file, config.certificate, config.key)
        shares = Shares(world_size=world_size, streams=order.streams)
        return ServiceLoader(
            local,
            BatchJob.of(
                order,
                delivery=delivery.digest,
                table=table_digest(table),
                split=split,
                consumers=world_size,
            ),
            rank,
            first_stream=shares.streams_of(rank)[0],
            fleet=lambda: fleet_of(config, delivery, rank, credentials),
            options=FetchingOptions(
                prefetch_bytes=config.prefetch_mib * MIB,
                hedge=config.hedge,
                deadline=config.deadline,
                patience=config.patience,
                pin_memory=self._local.pins,
                shared_bytes=config.shared_memory_mib * MIB,
            ),
            fall_back=config.when_none_answers == "read",
            workers=config.most_workers or config.workers,
            leave_out=config.damaged == "skip",
        )


def build_service_reader(config: ServiceReaderConfig, context: Context) -> ServiceReader:
    """The record's build."""
    local = LocalReader.of(config.local, context)
    return ServiceReader(config, local=local, delivery=context.delivery)
