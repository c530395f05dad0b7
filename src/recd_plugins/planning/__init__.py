"""The planning of where rows go: how often they are looked up, what the cluster is, what rows cost
in each tier, and the plan.

A plan's way. What goes in is on the left, each step's file on the right. The planner that takes
these steps is `tiers.planner`; how many rows each tier takes, a plugin's policy says.

    a trainer's batches       Look reads the first, which it still gets         access
                              count_sample counts lookups, row by row           access
                              a Profile has a RowDistribution for each table    access
    its model and sharders    a ModelTable for each table                       model_tables
                              the modules that these shard                      sharders
                              the optimizer of each table, the codecs           fused_params, codecs
    registry.yaml             a Topology, and the Cluster that it makes         topology, cluster
                              the constraints of each table                     constraints
    the trainer's own         its constraints of tables                         given_constraints
    TorchRec's own plan       TorchRecPlanner proposes it                       torchrec_planner
                                a ProposedPlan is one as it is made             proposed_plan
                                by a ConstrainedSearch                          constrained_search
                                beside what a trainer would have without us     beside_plain
                              PlannedShards: which rank has what of a table     planned_shards
    a ProfiledTable           rows and shards of a table in one                 profiled_table
                                MergedRows: those of all tables in one order    merged_rows
    Prices                    a row's Cost in each tier                         cost
                                k and o, by the optimizer                       replica_factor
                              the rows of a table at home, rank by rank         row_wise_cost
                                if their sums travel                            bag_cost
                                as TorchRec's own plan has them                 sharded_cost
    the policy's TableSizes   how many rows of a table each tier takes          table_sizes
                              a TableLedger prices each tier of a table         table_ledger
                              a Ledger adds up what all tables cost             ledger
                                in milliseconds                                 milliseconds
                              kernels that would have no row on a rank          kernels_without_rows
                              a TierPlan names the rows of each tier            plan_of_sizes
                                and is kept in a file                           tier_plan
    too little memory         Homes: which tables lie in mapped files           homes
    the plan                  a PlanReport says why it is as it is              explain

A step's files are in the folders `access`, `tables`, `cluster`, `torchrec_plan`, `prices`,
`tier_plans` and `explain`, or here. `planner_bases` says what planners can be, `answers` checks
what a stranger's answers, and `plan_check` the plan that comes of it; `memory_held` says how much
memory that plan takes of a machine or a device. What a whole step does beside its tables is in
`step`.

Any step may use these: what ranks do `together`, and must have made alike;
what is `remembered` while registries are compared; how profiles and plans are an `arrow_file`.
"""
