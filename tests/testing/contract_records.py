"""What the tests of contracts share: a record around anything, and its messages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

import pytest

from recd_plugins.config import Config, Range
from recd_plugins.slots import (
    Record,
)
from recd_plugins.testing.conformance import ContractBroken, check_record


@dataclass(frozen=True, kw_only=True)
class Rate(Config):
    rate: Annotated[float, Range(ge=0, le=1)] = 0.5
    """A documented option."""


def record(kind: type[Record[Any, Any]], make: Callable[[], object], **more: Any) -> Any:
    """A record whose build calls `make`."""
    given: dict[str, Any] = {"name": "mine", "summary": "Mine.", "config": Rate} | more
    return kind(build=lambda config, context: make(), **given)


def broken(subject: Record[Any, Any], **given: Any) -> str:
    """The message with which the record fails."""
    with pytest.raises(ContractBroken) as caught:
        check_record(subject, **given)
    return str(caught.value)
