"""What all tests share: how hypothesis draws."""

from __future__ import annotations

from hypothesis import settings

# The same examples in every run; and a busy machine is slow, not wrong.
settings.register_profile("recd", deadline=None, derandomize=True)
settings.load_profile("recd")
