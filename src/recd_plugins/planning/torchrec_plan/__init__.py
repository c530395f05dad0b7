"""TorchRec's own plan, by the constraints of registry.yaml and of the trainer.

the planner of the slot `sharding`                  torchrec_planner
  one plan as it is made                             proposed_plan
    by a search that keeps constraints               constrained_search
      in TorchRec's planner                          torchrec_search, torchrec_proposals
what a trainer would have without us                beside_plain
  which is searched once somebody asks               plain_search
"""
