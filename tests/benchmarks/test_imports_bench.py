"""A small run of the import benchmark: both sides read all rows, each in a process of its own."""

from __future__ import annotations

import pytest

from benchmarks.honesty import imports


@pytest.mark.slow
def test_an_import_is_timed_beside_a_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(imports, "MIB", {True: 1})
    monkeypatch.setattr(imports, "ROUNDS", {True: 1})
    monkeypatch.setattr(imports, "CHUNK", 5_000)
    time, memory = imports.figures(quick=True)
    assert time.value > 0
    assert time.note.endswith("rows of 14 columns, 1 MiB; both sides in turn")
    assert memory.met
