"""The kernels that read and deduplicate, loaded once by the server from which ranks and programs
are forked: each of them would load them again, in a tenth of a second.

Only our own tests preload it: an installation that is new would compile them all, which takes 20 s
(`recd_plugins.data.compiled`). It lies here because the server imports before it knows of `tests`.
"""

from __future__ import annotations

from recd_plugins.data.compiled import compile_kernels

__all__: list[str] = []

compile_kernels()
