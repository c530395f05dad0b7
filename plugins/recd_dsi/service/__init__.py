"""The reader service (DPP): processes that read for trainers, and hand over whole batches.

A batch is a pure function of table, registry, seed, epoch and position, so a worker holds nothing
that could be lost, and any worker may be asked for any batch.
"""
