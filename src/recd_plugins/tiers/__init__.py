"""Replica tiers: copies of hot rows in front of the tables that TorchRec shards.

A batch goes through these files once, and imports run the same way; the import rules hold it.

1. `sharder` gives a collection that a tier plan names its tiered module (`tier_collections`): rows
   are yielded, or TorchRec sums bags at home, or rows come and bags are summed here.
2. `tiers`: all of one collection. `route` makes a `routed_batch` of the ids: `router` finds each
   id's tier and position. The ids that miss are coalesced and go to TorchRec; a node's ranks ask
   each other for rows of the tier `per_node` (`exchange`), and find out which rows are touched.
3. `replicas` hold the rows; they are filled from the `home_tables`, and flushed back to it.
4. `rows` puts the rows of all tiers back in the order of the ids; `bags` sums them.
5. `update`: backward accumulates gradients of replicas, ranks sum them in chunks, and the rows are
   stepped by the arithmetic of their tables' optimizer (`row_optimizer`).

All of this stands on `collectives`, which also knows the nodes, and how a tier's rows lie over
ranks. `tier_planner` makes the plans, given a policy; `mapped_tables` keep rows at home in files.
"""
