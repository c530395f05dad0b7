"""Replica tiers: copies of hot rows in front of the tables that TorchRec shards.

A batch's way. TorchRec calls a tiered module as it calls its own. The steps below are in the order
of time, each with its file on the right. docs/tiers.md has the numbers of one batch.

    TorchRec                  tiers
    input_dist                TieredModule.input_dist                         collections
                              Tiers.route makes a RoutedBatch of the KJT:     tiers
                                InputIds puts it in the tables' order         routing
                                Router.route finds tier and position of ids   routing
                                find_home_ids coalesces those that miss       exchange
                                AskedIds.of sorts those of `per_node`         exchange
                              the ids that miss go home by TorchRec's own     collections
                                later, if the node coalesces them first       exchange
                              GroupRequest: the node is asked for rows        exchange
    waits for splits          the ids of `per_node` go to ranks of the node   exchange
    waits for ids             GroupAnswer: rows asked for                     exchange
                                and rows touched                              gradients
    compute_and_output_dist   Tiers.look_up makes the Update:                 tiers
                                Replicas.fill, where they are empty           replicas
                                  each tier takes its rows from their home    replicas, home_tables
                                rows go to the ranks that asked               routed_batch
                              TorchRec looks the others up at home
    its output is looked at   rows of home and tiers, in the order of ids,    collections
                              or summed over bags                             collections
    backward                  Update.accumulate hands Entries on,             updates
                              Reduction sums them over ranks in Chunks        gradients
                                on a stream of its own on CUDA                updates
    the end of backward       the last update that is due is applied:         updates
                                the rows are stepped                          row_optimizer

Imports run one way, from the collections down to the peers, which the import rules check. `peers`
are the ranks of a world and of a node, `collectives` what they run one after another; `tables` says
which tables are alike, and so go this way together.

Beside this way, `sharder` makes the tiered module of each collection that a tier plan names.
`planner` makes tier plans by a policy. `mapped_tables` keep rows at home in files. After
`Tiers.retier`, batches are routed by other replicas; the first of these to be computed moves the
rows.

Letters of shapes: N ids of a batch or a group, n some of them, u different ones, r those that
others ask of this rank; H rows in which hits are looked up; F features, B samples, D columns; S
shares of a tier, R rows of a share; U ranks of the world.

Names of indices, all int64: `at` and `missed` say which of the ids; `positions` which rows of a
tier, `addresses` the same share by share (int32 where that is enough); `inverse` which of the
different ids or rows each id has; `which` any rows of the tensor beside it. The tensors of replicas
are the tiers' own: a forward reads them, and only a fill, or an update at the end of backward,
writes to them.
"""
