"""The `logged` dataset: what the `log` slot holds, joined into samples."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, ClassVar

import pyarrow as pa

from recd_dedup.hashing import uniforms
from recd_dedup.log.checked_log import CheckedLog
from recd_dedup.log.codec import Decoder, MessageCodec
from recd_dedup.log.join import JoinConfig, JoinReport, joined
from recd_dedup.log.json_messages import JsonDecoder, JsonMessages
from recd_dedup.log.kafka import KafkaLog
from recd_dedup.log.shards import ZstdShards
from recd_dedup.log.snapshot import Snapshot
from recd_plugins.api import Config, Context, DataError, LogStore, Range, RecdError, RegistryError
from recd_plugins.api.data import (
    SPLITS,
    Dataset,
    Location,
    LogRoute,
    Progress,
    Schema,
    Split,
    Tables,
    TableWriter,
    silent,
    write_whole,
)

__all__ = ["LoggedConfig", "LoggedSamples", "build_logged"]


@dataclass(frozen=True, kw_only=True)
class LoggedConfig(Config):
    """Samples from raw logs."""

    schema: Schema = field(default_factory=Schema)
    """The columns of the samples, for a log whose own messages carry the features. By default they
    are those of `messages`."""
    messages: JsonMessages | None = None
    """How messages that other programs wrote are read. By default messages have the log's own
    format."""
    join: JoinConfig = field(default_factory=JoinConfig)
    """How long requests and events wait for each other."""
    test_fraction: Annotated[float, Range(gt=0, lt=1)] = 0.1
    """The share of sessions, drawn by their ids, that form the test split. No session is in both
    splits."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.messages is not None:
            if self.schema not in (Schema(), self.messages.schema):
                raise RegistryError(
                    "is given by `messages.columns`, and by `schema` once more. Take one out.",
                    "schema",
                )
            object.__setattr__(self, "schema", self.messages.schema)
            if self.messages.kind is None:  # no event will be waited for
                if self.join.window_ms:
                    object.__setattr__(self, "_set_idly", self.join.set_among("window_ms"))
                object.__setattr__(self, "join", replace(self.join, window_ms=0))
        elif self.schema == Schema():
            raise RegistryError(
                "is missing: it names the features that the log's messages carry. If other "
                "programs wrote them, `messages` must describe how to read them.",
                "schema",
            )
        if self.schema.session_id is None or self.schema.timestamp is None:
            raise RegistryError("must name session_id and timestamp: logs have both.", "schema")

    # The times of `join` that are set, and by which no message is waited for.
    _set_idly: ClassVar[Sequence[str]] = ()

    def idle_options(self) -> Mapping[str, str]:
        why = "it is the time to wait for events, and without `messages.kind` there are none"
        return {f"join.{option}": why for option in self._set_idly}

    def decoder(self, route: LogRoute) -> Decoder:
        """The decoder for messages of a log with this route."""
        if self.messages is None:
            return MessageCodec(self.schema)
        return JsonDecoder(self.messages, route)

    def vocabulary_digests(self) -> dict[Location, str]:
        """The files in which ids of messages are looked up, each with a digest of its present
        content."""
        return {} if self.messages is None else self.messages.columns.vocabulary_digests()

    def held_to(
        self, vocabularies: Mapping[Location, str], samples: Iterable[pa.Table]
    ) -> Iterator[pa.Table]:
        """The samples; raises `DataError` if a vocabulary has changed, and with it the ids that
        values get."""
        for each in samples:
            for file, digest in self.vocabulary_digests().items():
                if digest != vocabularies.get(file):
                    raise DataError(
                        f"{file}: this vocabulary has changed since the log was opened. Do not "
                        "write to it while a log is joined; start a new run with it as it is, or "
                        "restore the old one."
                    )
            yield each

    def of_split(self, samples: pa.Table, split: Split) -> pa.Table:
        """The samples whose sessions are in the split."""
        sessions = samples[self.schema.session_id].to_numpy()
        held_out = uniforms(0, "test", sessions) < self.test_fraction
        return samples.filter(pa.array(held_out == (split == "test")))

    def write(
        self,
        folder: Path,
        samples: Iterable[pa.Table],
        report: JoinReport,
        progress: Progress = silent,
    ) -> None:
        """Both splits of samples as tables, in one pass, while `report` counts them."""
        with (
            TableWriter(folder / "train", self.schema) as train,
            TableWriter(folder / "test", self.schema) as test,
        ):
            progress("joining requests and events", 0, None)  # a log may not yield for minutes
            for each in samples:
                train.write(self.of_split(each, "train"))
                test.write(self.of_split(each, "test"))
                progress("joining requests and events", report.samples, None)


class LoggedSamples(Dataset):
    """Joins once if both splits become tables, and else once for each; `reports` says what each of
    these joins found."""

    def __init__(self, config: LoggedConfig, log: CheckedLog | Snapshot) -> None:
        self.config = config
        self.reports: dict[Split, JoinReport] = {}
        self._log = log

    @property
    def schema(self) -> Schema:
        return self.config.schema

    def chunks(self, split: Split) -> Iterator[pa.Table]:
        report = self.reports[split] = JoinReport()
        for samples in self._samples(report):
            yield self.config.of_split(samples, split)

    def fingerprint(self) -> str:
        return "-".join([self._log.fingerprint(), *self._vocabularies.values()])

    def prepare(self, folder: Path, progress: Progress = silent) -> Tables:
        """The splits as tables, in one pass over a log that may grow meanwhile, and join.json
        beside them, with the report on the whole log."""
        if not any((folder / split).exists() for split in SPLITS):
            report = self.reports["train"] = JoinReport()
            try:
                self.config.write(folder, self._samples(report), report, progress)
            except RecdError:
                with suppress(OSError):
                    folder.rmdir()
                raise
        tables = super().prepare(folder, progress)
        if self.reports:
            report = next(iter(self.reports.values()))  # each report covers the whole log
            found = report.to_dict() | self._unsealed()
            write_whole(folder / "join.json", json.dumps(found, indent=2))
            report.warn("dataset: logged")
        return tables

    def _samples(self, report: JoinReport) -> Iterator[pa.Table]:
        decoder = self.config.decoder(self._log.route)
        for stream in joined(self._log, decoder, self.config.join, report):
            yield from self.config.held_to(self._vocabularies, stream)

    @cached_property
    def _vocabularies(self) -> Mapping[Location, str]:
        """The vocabularies as they were when they were first needed."""
        return self.config.vocabulary_digests()

    def _unsealed(self) -> dict[str, dict[str, int]]:
        """Counts for files that no writer has sealed: their number, their messages, and lost
        bytes."""
        log = self._log.log if isinstance(self._log, Snapshot) else self._log
        left = log.unsealed.values() if isinstance(log, ZstdShards) else ()
        names = ("files", "messages", "unreadable_bytes")
        sums = (len(left), sum(one.messages for one in left), sum(one.tail for one in left))
        return {"unsealed": dict(zip(names, sums, strict=True))} if left else {}


def build_logged(config: LoggedConfig, context: Context) -> LoggedSamples:
    log: LogStore = context.neighbours["log"]
    if isinstance(log, KafkaLog | ZstdShards):  # it may grow while ranks ask for tables
        return LoggedSamples(config, Snapshot(log, context.folder))
    return LoggedSamples(config, CheckedLog(log))
