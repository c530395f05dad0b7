"""Access distributions: counted from batches and traces or drawn by formulas, and how two differ.

From batches to a plan: `sample` says which batches are counted, `lookups` finds the ids in each,
`counting` has a `row_counter` or a `row_sketch` for each table, which counts them row by row and
fold by fold (`whole_bags` those bags whose rows are all hot), `forecast` says what the folds
promise of batches to come. What comes of it is a `distribution` for each table, in an
`access_profile`.

`batches_of_ranks` brings the counts of all ranks to rank 0. The batches of a trainer's own loader
come by `trainer_batches`, and training still gets them (`look`, `contents`); `second_epoch` asks
whether their ids come again.
"""
