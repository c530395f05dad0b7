"""What a trainer calls: a registry's records become its loader, model, plan and sharders.

A `Stack`, of `stack`, builds each part when it is asked for. Its methods are on the left, the files
that do the work on the right.

    every call      its arguments are of the kind that they must be               arguments
                      what a method returns is handed on, not the method          uncalled
    prepare         the dataset as tables on disk, or as periods                  tables
    loader          opens the reader on them, and checks its batches              loaders
                      of a dataset that grows, one period after another           period_batches
    order           batches in an order of the planner's                          batch_order
    adapt           the model takes unique samples                                adaptation
    plan            the registry's planner, what it knows, whose sharders         planner
                      it plans on every rank of a group                           group_planning
                        and ranks have made the same of registry.yaml             made_alike
                        for a model that looks up what is read                    looked_up
                      the plan fits TorchRec, this machine and the trainer        checked_plan
                      what ranks exchange by it                                   planned_exchanges
    sharders        the planner's, wrapped by what else the registry does         handed_sharders
    optimizer       the factory that a record builds, checked                     optimizer
    in_short        the plan of very many tables                                  plan_in_short
    notices         what a trainer asks for, and what it leaves unused            usage
                      as registry.yaml itself shows                               idle_settings
                      as shows once its model trains                              unused_in_training
                        and when that is                                          watched_models
"""

from recd_plugins.stack.stack import Stack, load

__all__ = ["Stack", "load"]
