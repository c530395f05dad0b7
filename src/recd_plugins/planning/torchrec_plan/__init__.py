"""TorchRec's own plan, by the constraints of registry.yaml and of the trainer.

    the planner of the slot `sharding`                  torchrec_planner
      one plan as it is made                             proposed_plan
        by a search that keeps constraints               constrained_search
          those of a trainer's own                       given_constraints
          in TorchRec's planner                          torchrec_search, torchrec_proposals
    what a trainer would have without us                beside_plain
      which is searched once somebody asks               plain_search

The constraints of registry.yaml are in `planning.constraints`, which planners in front use too.
"""
