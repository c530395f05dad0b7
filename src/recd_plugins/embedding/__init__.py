"""Modules that take an IKJT: embeddings of unique samples, poolings on them, models adapted.

`adapt` makes a trainer's model take unique samples: its collections (`dedup`) look them up
(`lookup`), and its poolings run on them (`pooling`, checked by `pooled_check`) unless a trial says
that all samples would give something else (`pooling_trial`). What they yield is `unexpanded` until
code reads it, which has it copied to all samples (`expand`). `scored` has embeddings times the
weights of their ids.

`sharded` has each part of such a collection sharded as TorchRec would, behind one module
(`sharded_parts`) whose outputs are `tied`; `input_check` looks at its first batch. `adapted_plan`
says who can shard such a model. `wrapped_sharder` is the base of sharders around a trainer's;
`corrected_sharders` and `bags_of_one` have more of them.

`timing` measures what unique samples save and cost, and `unique_calls` counts the calls.
"""
