"""The checkpoints that a run keeps on disk and goes on from.

    Checkpoints           writes and reads them; it says what is in one    checkpoint
    folders and files     by step, each with its digest                    step_folders, files
    tensors               those of model and optimizers                    job_tensors
                            buffers that differ between ranks              rank_buffers
                            as torch.distributed.checkpoint, by JSON       storage
    what is no tensor     rates and numbers of optimizers                  optimizer_numbers
                          extra states of modules                          extra_states
                          positions of loaders, random numbers             positions, random_state
                          states of callbacks                              callback_states
    what is loaded        fills model and optimizers, by any plan          job_state
    a job that resumes    what of its registry may differ                  registry_before
                            which version wrote the checkpoint             version_before
                            on another number of ranks                     other_ranks, reshard
    another program       loads the weights alone                          weights

Nothing is loaded of a checkpoint that is damaged.
"""
