"""The kernels that read and deduplicate, loaded once by the server from which ranks and programs
are forked: each of them would load them again, in a tenth of a second.

A pool's ranks have no need of it: an installation that is new would compile them all, which takes
20 s (`recd_plugins.data.compiled`).
"""

from __future__ import annotations

from recd_plugins.data.compiled import compile_kernels

__all__: list[str] = []

compile_kernels()
