"""O1: raw logs as shards, and the join of features with events.

A log is written and read as `shards` of files or as topics of `kafka`, or by another plugin, whose
answers `checked_log` checks. `routing` sends a message to its log shard. What is in a message is
known to a decoder: `codec` has the log's own, `json_messages` that of messages that other programs
wrote.

Of files: `shard_file` has their format, `log_block` that of the messages in them, `manifest` what
all of a log have in common. `sealed` lists those that their writers closed. `marks` show how far
each writer was, from which `cuts` finds what came before a time. Of Kafka: `kafka_topics` has the
brokers.

`join` makes samples of requests and events. `logged_dataset` joins a log as it was when it was
first asked for (`snapshot`). `growing_log` joins one that is still written, period by period:
`log_period` has what a period was made of, and `period_join` makes its samples. `replay` turns a
table into logs that it could have come from.
"""
