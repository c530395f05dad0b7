"""Gradients of replicas: which rank has them for which rows, and how all ranks sum them.

    before backward   all ranks learn which rows each of them touched         touched
    in backward       a rank's gradients, several of one row                  entries
                        cut by the touched rows, chunk by chunk               chunks
                        summed over ranks, and the rows stepped by the sums   reduction

Only gradients travel: by the touched rows each rank knows what those are of that come.
"""
