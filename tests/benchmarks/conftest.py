"""Benchmarks as tests run them: nobody judges a time, so none is kept free of garbage."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from benchmarks import harness


@pytest.fixture(autouse=True)
def _garbage_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is sought before each side of a comparison, which takes these small sides as long as all
    that they do; and this process has frozen what it imported."""
    left = SimpleNamespace(collect=lambda: 0, get_freeze_count=lambda: 1)
    monkeypatch.setattr(harness, "gc", left)
