"""The base of planners that give rows replicas: a plugin's policy says how many rows, and which.

    what a policy says                       tier_policy
    how often each row is looked up          table_profiles
    the policy chooses sizes                 chosen_sizes
    every kernel keeps rows on all ranks     kernel_rows
    it pays beside TorchRec's own plan       priced_choice
    what is left to TorchRec, and why        left_tables
    what of that a notice says               plan_notices

A `TierProposal`, of `tier_proposal`, takes these steps in this order. `TierPlanner`, of
`tier_planner`, has rank 0 make one for all ranks, and does what follows from it. What it plans is
trained by the rest of `tiers`, which imports nothing of this folder.
"""
