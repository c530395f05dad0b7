"""Other people's code where it is private or changes: TorchRec, versions.

    TorchRec's sharded collections, as it made them     torchrec
      made of several                                   made_of_parts
      how ids travel, and what comes of them            asked_collectives, outputs
      how bags are divided                              mean_division
      their weights at home                             home_weights
    fbgemm's kernels in them                            fused_kernels
      corrected, or taken otherwise, on the CPU         last_tables, bags_of_one, host_buffers
    torch                                               pytorch, tracing, both_ways, uneven_gather

Kernels of our own are compiled by `kernels`. `versions` says which versions belong together.
"""
