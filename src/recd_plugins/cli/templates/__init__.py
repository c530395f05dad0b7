"""The files that `recd plugins new` writes: a plugin for each slot with its test, all of them real.

A folder's `__init__.py` becomes the plugin, `test_new_plugin.py` its test, and `registry.yaml` a
registry that switches it on; `package/` holds what all share. `cli/new_plugin.py` puts the
plugin's own name where `new_plugin`, `NewPlugin` or the name of the folder's module stands.
"""
