"""Rung 1 and 4 (values, a run): RecD's data suite on a small table has every row of its targets."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from benchmarks.models import sessions
from benchmarks.recd_data.__main__ import compare
from benchmarks.recd_data.batches import padded_unique
from recd_plugins.sparse.ikjt import InverseKeyedJaggedTensor
from recd_plugins.sparse.jagged import Jagged
from recd_plugins.testing.batches import to_lists

TARGETS = {
    "clustered vs time-ordered file size": (3.71, False),
    "O1 shard compression": (1.5, False),
    "reader rows/s, clustered + IKJT + preprocessing": (1.79, False),
    "IKJT conversion, time over the cheapest plain KJT conversion's": (1.25, True),
    "IKJT conversion in the reader, time over gathering KJTs": (1.0, True),
    "IKJT conversion in the reader, time over gathering KJTs, repeats left out of files": (
        1.0,
        True,
    ),
    "IKJT conversion, speed over memcpy's": (0.5, False),
    "IKJT conversion, speed over memcpy's, sequences alone": (0.5, False),
    "conversion vs padded torch.unique(dim=0)": (15, False),
    "partial conversion, time over exact conversion's": (4, True),
    "partial conversion, fewer values kept than exact": (5, False),
    "preprocessing on unique samples": (None, False),
    "clustering, time over reading and writing the same table unsorted": (3, True),
    "clustering, peak memory": (1500, True),
    "bytes from reader to trainer": (None, False),
}
"""Issue rows; where the target follows the DedupeFactor, it is not named here."""

LIMITED = (
    "IKJT conversion, speed over memcpy's, sequences alone",
    "conversion vs padded torch.unique(dim=0)",
    "preprocessing on unique samples",
    "reader rows/s, clustered + IKJT + preprocessing",
)
"""Rows whose limit is measured, so that its share depends on the machine's load."""


@pytest.mark.usefixtures("one_thread")
def test_the_suite_on_a_small_table(tmp_path: Path) -> None:
    config = sessions("rm1", 1 / 16, samples=4096)
    report = compare(config, config, tmp_path, rounds=1, batch_size=512)
    figures = {figure.name: figure for figure in report.figures}
    assert len(figures) == len(report.figures)
    for name, (target, at_most) in TARGETS.items():
        figure = figures[name]
        assert figure.value > 0
        assert figure.at_most == at_most
        assert figure.target is not None
        assert figure.target == target or target is None
        beyond = figure.value - figure.target
        assert figure.met == (beyond <= 0 if at_most else beyond >= 0)
        assert figure.note
    preprocessed = figures["preprocessing on unique samples"].target
    assert preprocessed is not None
    assert figures["bytes from reader to trainer"].target == pytest.approx(
        9 / 8 * preprocessed  # 0.9 and 0.8 of one factor
    )
    # What no load of the machine changes.
    for name in ("bytes from reader to trainer", "clustered vs time-ordered file size"):
        share = figures[name].share
        assert share is not None
        assert 0.1 < share <= 1, name
    for name in ("IKJT conversion, time over the cheapest plain KJT conversion's", *LIMITED):
        assert (figures[name].share or 0) > 0, name
    assert figures["O1 shard compression"].met
    assert figures["partial conversion, fewer values kept than exact"].met
    assert report.settings["samples"] == 4096


def test_the_padded_baseline_finds_the_same_unique_samples() -> None:
    columns = {
        "c": Jagged(torch.tensor([7, 8, 7, 8, 10]), torch.tensor([2, 2, 1])),
        "d": Jagged(torch.tensor([9, 9, 11]), torch.tensor([1, 1, 1])),
    }
    (c, d), inverse_lookup = padded_unique(columns, ["c", "d"])
    ikjt = InverseKeyedJaggedTensor.from_jagged(columns, [["c", "d"]])
    assert inverse_lookup.tolist() == ikjt.inverse_lookup[0].tolist() == [0, 0, 1]
    assert to_lists(ikjt.kjt) == {"c": [[7, 8], [10]], "d": [[9], [11]]}
    assert [c.values.tolist(), c.lengths.tolist()] == [[7, 8, 10], [2, 1]]
    assert [d.values.tolist(), d.lengths.tolist()] == [[9, 11], [1, 1]]
