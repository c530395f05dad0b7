"""registry.yaml: how it is read and checked, what it chose, what each choice knows when built."""

from recd_plugins.registry.choices import KEYS, Choice, Registry, plugin_names

__all__ = ["KEYS", "Choice", "Registry", "plugin_names"]
