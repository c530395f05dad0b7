"""The updates of replicas: when gradients are handed on, and when rows change.

    a forward makes one; its backward hands gradients on         update
      which are summed on a stream of their own, on CUDA         side_stream
    the end of a backward applies those that are due             due_updates

How gradients are summed over ranks is in `gradients`, beside this folder.
"""
