"""Which tier has the row of an id, and where: on a CPU by `Router`, on a GPU by `SortedRouter`."""
