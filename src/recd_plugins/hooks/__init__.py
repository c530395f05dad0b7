"""The pluggy host: which plugins there are, and the records that they provide.

`catalog` registers the plugins that registry.yaml names, after `defaults`, the host's own. It
collects their records by the hooks of `specs`, one for each slot, which `markers` mark, and has
`record_check` look at each.

`imported` finds a plugin among what is `installed`, or by its path, and imports it; `process_state`
puts back what that changes of the whole process. `plugin_files` knows the files of its code, and
`blame` finds the plugin whose code raised an error.
"""
