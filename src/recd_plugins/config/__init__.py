"""Reads the YAML that users write, safely, and parses it into frozen dataclasses."""

from recd_plugins.config.option_types import wrong_with_options
from recd_plugins.config.parsing import (
    Config,
    Range,
    idle_options,
    option_path,
    parse,
    path_of,
    wrong_with_defaults,
)

__all__ = [
    "Config",
    "Range",
    "idle_options",
    "option_path",
    "parse",
    "path_of",
    "wrong_with_defaults",
    "wrong_with_options",
]
