"""How many samples and sessions have gone by, in bounded memory."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from recd_dedup.hashing import U64, mix, salt
from recd_plugins.api.data import Schema

__all__ = ["Population", "SessionCount"]


@dataclass(frozen=True)
class Population:
    """Samples, and the sessions that they are of."""

    samples: int
    sessions: int | None
    """Nothing where a table knows no sessions."""

    @property
    def samples_per_session(self) -> float | None:
        """S."""
        return self.samples / self.sessions if self.sessions else None

    def __str__(self) -> str:
        mean = self.samples_per_session
        return f"{self.samples:,} samples" + ("" if mean is None else f" (S = {mean:.2f})")


class SessionCount:
    """Counts distinct sessions: exactly up to `most`, then by adaptive sampling (Wegman).

    Of all sessions those are held whose hash is at most a limit, which is halved when they
    become too many; n held stand for n 2^64 / (limit + 1). The error is about most^-0.5.
    """

    def __init__(self, schema: Schema, most: int = 1 << 20) -> None:
        self.samples = 0
        self._session_id = schema.session_id
        self._most = most
        self._limit = (1 << 64) - 1
        self._held: U64 = np.empty(0, np.uint64)
        self._salt = salt(0, "session count")

    def add(self, chunk: pa.Table) -> None:
        self.samples += chunk.num_rows
        if self._session_id is None:
            return
        hashes = mix(chunk[self._session_id].to_numpy(), self._salt)
        new = np.unique(hashes[hashes <= np.uint64(self._limit)])
        self._held = np.union1d(self._held, new)
        while self._held.size > self._most:
            self._limit >>= 1
            self._held = self._held[self._held <= np.uint64(self._limit)]

    def population(self) -> Population:
        if self._session_id is None:
            return Population(self.samples, None)
        return Population(self.samples, round(self._held.size * 2**64 / (self._limit + 1)))
