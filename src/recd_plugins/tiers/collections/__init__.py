"""The collections that TorchRec sharded, with tiers in front of their tables.

    EmbeddingCollection         rows come from home, one by one           sequences
    EmbeddingBagCollection      rows are summed at home, and sums come    bag_sums, home_sums
      where ids are coalesced   rows come, and are summed by who asked    row_bags, pooled_rows

`tiered_module` has what they share; `sharder`, beside this folder, makes them.
"""
