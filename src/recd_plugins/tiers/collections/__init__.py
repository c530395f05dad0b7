"""The collections that TorchRec sharded, with tiers in front of their tables.

    EmbeddingCollection         rows come from home, one by one           sequences
    EmbeddingBagCollection      rows are summed at home, and sums come    bag_sums
      where ids are coalesced   rows come, and are summed by who asked    row_bags

`tiered_module` has what they share. Each has a file with what it yields, `sequences_output`,
`bag_sums_output` and `row_bags_output`: the awaitable, and the autograd function that joins rows
from home with those of the tiers. Bags are summed by `group_bags`, and added to the columns of
their features by `column_blocks`. `sharder`, beside this folder, makes the collections.
"""
