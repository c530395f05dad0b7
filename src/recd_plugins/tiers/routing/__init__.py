"""Which tier has the row of an id, and where: on a CPU by `Router`, on a GPU by `SortedRouter`.
Before that, `InputIds` puts the batch's features in the order of the tables."""
