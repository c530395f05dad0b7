"""registry.yaml: reads and checks it, and keeps what it chose and what each choice knows when it is
built."""

from recd_plugins.registry.choice import KEYS, Choice
from recd_plugins.registry.registry import Registry, plugin_names

__all__ = ["KEYS", "Choice", "Registry", "plugin_names"]
