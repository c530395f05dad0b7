"""libzstd's function that decompresses a frame, for kernels: they call it without the GIL.

zstandard's wheels bring libzstd in two modules, of which the one for cffi shows its functions. That
is private to zstandard, so whoever asks must do without where it is not so.
"""

from __future__ import annotations

import ctypes
import importlib.util
from functools import cache

__all__ = ["zstd_function"]


@cache
def zstd_function() -> int:
    """The address of `size_t ZSTD_decompress(void*, size_t, const void*, size_t)`; 0 if it is not
    to be found."""
    module = importlib.util.find_spec("zstandard._cffi")
    if module is None or module.origin is None:
        return 0
    try:
        function = ctypes.CDLL(module.origin).ZSTD_decompress
    except (OSError, AttributeError):
        return 0
    return ctypes.cast(function, ctypes.c_void_p).value or 0
