"""The reader service (DPP): processes that read for trainers, and hand over whole batches.

A batch is a pure function of table, registry, seed, epoch and position. So a worker holds nothing
that could be lost, and any worker can be asked for any batch.
"""
