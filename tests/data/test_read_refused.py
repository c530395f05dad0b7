"""Value tests: a stripe that cannot be read says whether its file, or the system, is to blame."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest

from recd_plugins.data.parquet.opened_file import OpenedFile
from recd_plugins.data.stripes import Stripe, read_stripe
from recd_plugins.errors import DataError


class Refused:
    """A file as the system lets it be read: its errors come with few processes allowed."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def read_row_group(self, *given: Any, **options: Any) -> pa.Table:
        raise self.error


@pytest.mark.parametrize(
    ("error", "cure"),
    [
        (pa.ArrowException("Failed to launch worker thread: Resource"), "`ulimit -u`, or `ulimit"),
        (pa.ArrowMemoryError("malloc of size 64 failed"), "Ask for fewer or smaller rows"),
        (pa.ArrowInvalid("Corrupt snappy compressed data."), "The file was damaged or cut short"),
    ],
)
def test_it_says_what_to_do(error: Exception, cure: str) -> None:
    file = cast("OpenedFile", Refused(error))
    with pytest.raises(DataError) as raised:
        read_stripe(file, Stripe(Path("a.parquet"), 0, 9), ["ids"])
    message = str(raised.value)
    assert message.startswith(f"a.parquet, row group 0: cannot be read ({error}). ")
    assert cure in message
    assert ("damaged" in message) == (cure.startswith("The file"))
