"""Which tier has the row of an id, and where.

    the batch's features come in the order of the tables       input_ids
    a router finds the rows: hits, and ids that miss           routed_ids
      on the CPU in bitmaps of the rows that have replicas     bitmap_router, ranked_bitmap
      on CUDA among these rows in ascending order              sorted_router

Each group of tables has a router of its own, which is made with its replicas.
"""
