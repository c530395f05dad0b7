"""Values that nobody means: what a slip of the hand, a broken script or an enemy writes."""

from __future__ import annotations

__all__ = ["ODD_PATHS", "ODD_TEXTS", "ODD_YAML"]

ODD_NUMBERS = (
    "0",
    "-1",
    "1",
    "0.5",
    "-0.0",
    "5e-324",
    "1.0e-300",
    "1.0e300",
    ".nan",
    ".inf",
    "-.inf",
    str(2**31),
    str(2**63),
    str(2**64),
    "1" + 30 * "0",
    "1" + 400 * "0",
    5_000 * "9",
    "-" + 5_000 * "9",
    "0x" + 5_000 * "f",
)
"""As YAML has them."""

ODD_PATHS = (
    ".",
    "..",
    "/",
    "/dev/zero",
    "/dev/full",
    "/dev/null",
    "/proc/self/mem",
    "/proc/x",
    "~nosuchuser/x",
    "a_fifo",
    "a_loop",
    "a_file",
    "a_file/below",
    "a_folder",
    "not/there",
    300 * "n",
    5_000 * "n/",
)
"""A job makes those that are relative."""

ODD_YAML = (
    *ODD_NUMBERS,
    *(f'"{path}"' for path in ODD_PATHS),
    "",
    "null",
    "true",
    '""',
    '" "',
    '"a\\0b"',
    '"\\U0001F600\\u202E"',
    '"%s{0}%n$(id)"',
    f'"{5_000 * "x"}"',
    "2024-01-01",
    "2024-13-41",
    "2024-01-01T25:61:00",
    "12:34:56",
    "[]",
    "{}",
    "[[[]]]",
    "{a: 1}",
    "{1: 2, null: 3}",
    "[1, x, null]",
    "&a [*a]",
    "&a {b: *a}",
    "*nobody",
    "!!python/object/apply:os.system [exit]",
    "!!binary aGVsbG8=",
    "!!binary '%'",
    "!!set {a, b}",
    "!!omap [a: 1]",
    "!!float x",
    "!!int ''",
    "!!timestamp x",
    "{<<: 1}",
    f"{{{', '.join(f'k{i}: {i}' for i in range(2_000))}}}",
    "[" * 3_000 + "]" * 3_000,
    "{use: nobody}",
    "'unclosed",
    "@",
    "? [a]",
)
"""Values as a registry or an override has them."""

ODD_TEXTS = (
    *(
        number.replace(".nan", "nan").replace(".inf", "inf").replace("1.0e", "1e")
        for number in ODD_NUMBERS
    ),
    *ODD_PATHS,
    "",
    " ",
    "-",
    "--",
    "true",
    "\U0001f600\u202e",
    "\udcff\udcfe",
    "%s{0}%n$(id)",
    5_000 * "x",
    "a=b",
    "=",
    ",",
    "*",
    "[",
    "x:y",
    "1e3",
    "\u0661",
)
"""Values as a command line has them: whatever a system passes on, which a NUL is not."""
