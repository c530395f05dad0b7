"""The YAML that users write: it is read safely, and parsed into frozen dataclasses."""

from recd_plugins.config.option_types import wrong_with_options
from recd_plugins.config.parsing import (
    Config,
    Range,
    idle_options,
    option_path,
    parse,
    path_of,
)

__all__ = [
    "Config",
    "Range",
    "idle_options",
    "option_path",
    "parse",
    "path_of",
    "wrong_with_options",
]
