"""What rows cost in each tier: FlexShard's formulas, added up for all tables of a choice.

    a row in each tier                                  cost
      k and o of its replicas                            replica_factor
      its copies in the router's memory                  router_memory
    a table at home, rank by rank                       row_wise_cost
      if its sums travel                                 bag_cost
      as TorchRec's own plan has it                      sharded_cost
    each tier of a table, by its sizes                  table_ledger
    all tables of a choice                              ledger
      in milliseconds of a step                          milliseconds

`codecs` says in how many bits rows and sums travel.
"""
