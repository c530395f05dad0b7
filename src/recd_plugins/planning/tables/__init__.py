"""The tables of a model, and where a plan of TorchRec's has them.

    the collections of a model                          embedding_collections
      a ModelTable for each table, by features           model_tables
    the tables of a plan, one after another             planned_tables
      the ranks that have each part of a table           planned_shards
    a table with its access distribution                profiled_table

A ProfiledTable is all that prices know of a table.
"""
