"""registry.yaml: reads and checks it, and keeps what it chose and what each choice knows when it is
built.

    registry.yaml   its values with their lines, and overrides            source
                      how to train                                        settings
                      a Choice for each record that it names              choice
                        which this machine can build                      capability
                      all of it, checked before anything is built         registry
    a build         gets a Context, with what its neighbours built        contexts
    the dataset     as tables through every `etl` step                    prepare
                      in folders named by how they are made               written_tables
                        of files, and by code, that may have changed      option_files, plugin_code
                        and a notice says so                              outdated
                      of one that grows, period by period                 periods
                    what a measure of `stats` finds in a table            table_stats
    the features    what `preprocess` and `dedup` make of them            feature_steps
                      in groups of a converter, checked                   checked_groups
                        which it may choose by batches of an epoch        delivered_batches
    for others      the same batches in another process                   delivery
                    the same transforms in serving, as one text           program
"""

from recd_plugins.registry.choice import KEYS, Choice
from recd_plugins.registry.registry import Registry, plugin_names

__all__ = ["KEYS", "Choice", "Registry", "plugin_names"]
