"""The run of `recd train`: the standard TorchRec pipeline, assembled from a registry, and trained
step by step, alike on every rank.

A run's way, with each step's file on the right.

    a rank of a launcher    joins the process group                          process_group
                              of a job that torchrun restarted, too          elastic
    train                   begins a run, or goes on from a checkpoint       run
                              in a folder that one job has at a time         run_folder, run_lock
                              watched: where ranks stand if none steps       watchdog, standing
    assemble                makes a Job: model, plan, optimizers, pipeline   assemble
                              rows begin by the seed, whatever the plan      initial_tables
                              the optimizer of the dense parameters          dense_optimizer
                              what the model returns is checked              outputs_check
                            leaves in the folder what the run is made of     run_provenance
    Loop                    trains each step, and evaluates                  loop
                              callbacks are called, with a Training          run_callbacks, training
                              a first batch that all ranks have is noticed   same_batches
                              replicas move to the rows that are hot         retiering
                              metrics are printed and written                run_report
                              ranks agree to stop after the same step        stop_signal
                              or end, and say why a loss is not finite       divergence
    every so many steps     dense parameters and rates are held to be alike  ranks_alike
                              and a checkpoint is written                    checkpoints
    the end                 what keeps Python from ending is named           threads_left

`measure` has what is measured on the way, and `tuning` the trials of `recd tune`.
"""
