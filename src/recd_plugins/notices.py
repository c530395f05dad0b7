"""Notices of what registry.yaml switches on and a job does not use, or uses at a loss: one place
for all.

A planner, a converter or a model says it as `Notice`s; a `Stack` warns of each on rank 0, once.
"""

from __future__ import annotations

import hashlib
import logging
import os
import sys
import threading
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar, TextIO

from recd_plugins.errors import CapabilityError
from recd_plugins.storage.uri import Location

__all__ = [
    "NOTICE",
    "Empty",
    "Ended",
    "GivesNotices",
    "LeftOut",
    "MadeApart",
    "MadeOtherwise",
    "Missed",
    "NotHeldOut",
    "Notice",
    "NoticeWarning",
    "Notices",
    "Otherwise",
    "Outdated",
    "PutBack",
    "Repeated",
    "Replaced",
    "RunsOn",
    "Slower",
    "TooLarge",
    "Unchecked",
    "Unneeded",
    "Unused",
    "Unwatched",
    "Wrong",
    "action_on_notices",
    "hide_logs",
    "hide_other_warnings",
    "hide_warnings",
    "noticed_if_long",
    "notices_as_lines",
]

NOTICE = "notice: "
"""How a line begins that is a notice."""


class NoticeWarning(UserWarning):
    """The category of the warnings on rank 0."""


@contextmanager
def noticed_if_long(seconds: float, message: str) -> Iterator[None]:
    """Inside, a notice is given once it takes this long."""
    notice = threading.Timer(seconds, warnings.warn, [message, NoticeWarning])
    notice.daemon = True
    notice.start()
    try:
        yield
    finally:
        notice.cancel()


def hide_other_warnings() -> None:
    """From now on this process shows notices alone: what torch and TorchRec warn of and log asks
    nothing of a user."""
    hide_warnings()
    _show_notices()


def _show_notices() -> None:
    warnings.filterwarnings("always", category=NoticeWarning)


def action_on_notices() -> str:
    """What Python does with a notice, by this process's filters of warnings."""
    for action, message, category, module, line in warnings.filters:
        if issubclass(NoticeWarning, category) and not (message or module or line):
            return action
    return "default"


def hide_warnings() -> None:
    """From now on this process shows no warning, not even a notice: one that tries what others
    decide."""
    warnings.filterwarnings("ignore")
    hide_logs()


def hide_logs() -> None:
    """From now on torch and TorchRec log errors alone."""
    for chatty in ("torchrec", "torch.fx"):
        logging.getLogger(chatty).setLevel(logging.ERROR)


def notices_as_lines(*, on_errors: bool = False) -> None:
    """From now on a notice is a line: `on_errors` on standard error, as a command's are; else of
    this process's output, for what a rank writes to standard error is shown where it fails, and a
    notice is for a run that goes well. Filters of warnings, as PYTHONWARNINGS has them, are not for
    these lines. A command that looks at a table several times has a notice of it once in a row."""
    _show_notices()
    others = warnings.showwarning
    latest = ""

    def show(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        nonlocal latest
        if issubclass(category, NoticeWarning):
            if on_errors and str(message) == latest:
                return
            latest = str(message)
            print(f"{NOTICE}{message}", file=sys.stderr if on_errors else sys.stdout, flush=True)
        else:
            others(message, category, filename, lineno, file, line)

    warnings.showwarning = show


@dataclass(frozen=True, kw_only=True)
class Notice:
    """The thing that a user should know of something that registry.yaml switches on."""

    what: str
    """The thing that is switched on, as registry.yaml has it: `sharding: flexshard`."""
    why: str
    """Why it does nothing, or what it costs: a clause, with the figures."""
    cure: str
    """Sentences that say what to do, with the lines to write."""
    verdict: ClassVar[str]
    """The predicate between `what` and `why`: what comes of it."""
    refused: ClassVar[bool]
    """Whether `strict: true` makes an error of it."""

    def __str__(self) -> str:
        return f"{self.what} {self.verdict}: {self.why.rstrip('.')}. {self.cure}"


class Unused(Notice):
    """It is switched on, and this job does not use it."""

    verdict = "is not used"
    refused = True


class Slower(Notice):
    """It is used as it was forced to be, though steps take longer by the prices than without it."""

    verdict = "makes steps slower"
    refused = False


class Missed(Notice):
    """It is used, and gains far less than it could of the same data."""

    verdict = "gains less than it could"
    refused = False


class Otherwise(Notice):
    """It is used, and what is trained may not be what plain TorchRec would train of it."""

    verdict = "may train otherwise"
    refused = False


class TooLarge(Notice):
    """It is used, and takes more than there is."""

    verdict = "may have no room"
    refused = False


class Outdated(Notice):
    """It was written before, by code, or of a file, that has changed since."""

    verdict = "may be outdated"
    refused = False


class Wrong(Notice):
    """What comes out is not what the model says, with plain TorchRec neither."""

    verdict = "is computed wrongly"
    refused = True


class NotHeldOut(Notice):
    """It is held out to test by, and trained on, too."""

    verdict = "is trained on, too"
    refused = False


class Repeated(Notice):
    """It has the same rows more than once."""

    verdict = "has files twice"
    refused = False


class MadeOtherwise(Notice):
    """Its ids or numbers mean something else than those of the train split."""

    verdict = "has other ids or numbers than dataset.train"
    refused = True


class MadeApart(Notice):
    """It has several tables, in which the same id or number means something else."""

    verdict = "has tables of other ids or numbers than its first"
    refused = True


class Unneeded(Notice):
    """It is read and made ready, and nothing takes it."""

    verdict = "is not needed"
    refused = False


class PutBack(Notice):
    """It changes on import what is the whole process's."""

    verdict = "is put back"
    refused = False


class Replaced(Notice):
    """An override writes it anew, and settings that it had are gone."""

    verdict = "is replaced whole"
    refused = False


class RunsOn(Notice):
    """It was started beside a job that is done, and nobody ends it."""

    verdict = "keeps the job from ending"
    refused = False


class Ended(Notice):
    """It is a process that nobody asked for."""

    verdict = "is ended"
    refused = False


class LeftOut(Notice):
    """Nobody chose it, and all that there are were asked for."""

    verdict = "is left out"
    refused = False


class Unwatched(Notice):
    """Nobody sees whether training uses it."""

    verdict = "is not watched"
    refused = False


class Unchecked(Notice):
    """Nobody looks whether what comes of it is as it says."""

    verdict = "is not checked"
    refused = False


class Empty(Notice):
    """Its key stands in registry.yaml, or in the file of a schema or a topology, and nothing behind
    it."""

    verdict = "has nothing behind it"
    refused = True


class GivesNotices(ABC):
    """A base that the product of a record may inherit: it is then asked once it has done its
    work."""

    @abstractmethod
    def notices(self) -> Sequence[Notice]:
        """A planner's: of its last plan, on rank 0. Others': alike on all ranks."""


GIVEN = "RECD_NOTICES_GIVEN"
"""The variable by which ranks know the notices that the command which started them has given."""


class Notices:
    """The notices that a job has been given."""

    def __init__(
        self,
        *,
        strict: bool = False,
        path: Location | None = None,
        lines: Mapping[str, int] | None = None,
    ) -> None:
        """`strict`: what is not used is an error, on every rank that gives the notice. A warning
        names the line of the file (`path`), of which `lines` has that of each key."""
        self._strict = strict
        self._path = str(path or "registry")
        self._lines = lines or {}
        self._given: set[Notice] = set()

    def give(self, found: Iterable[Notice], rank: int) -> None:
        """Warn of what is new, on rank 0; or raise it, where that is asked for."""
        new = [notice for notice in dict.fromkeys(found) if notice not in self._given]
        self._given.update(new)
        if self._strict and (refused := [str(notice) for notice in new if notice.refused]):
            raise CapabilityError(
                "\n".join([*refused, "`strict: true` in registry.yaml makes an error of this."])
            )
        if rank == 0:
            before = os.environ.get(GIVEN, "").split()
            for notice in new:
                if _digest(notice) in before:
                    continue
                key = notice.what.partition(":")[0]
                line = self._lines.get(key, 1)
                warnings.warn_explicit(str(notice), NoticeWarning, self._path, line)

    def for_ranks(self) -> dict[str, str]:
        """The variable by which ranks that this process starts give none of these notices again."""
        return {GIVEN: " ".join(sorted(map(_digest, self._given)))}


def _digest(notice: Notice) -> str:
    return hashlib.sha256(str(notice).encode(errors="surrogatepass")).hexdigest()[:16]
