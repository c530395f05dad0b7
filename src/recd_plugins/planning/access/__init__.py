"""Access distributions: counted from batches and traces or drawn by formulas, and how two
differ."""
