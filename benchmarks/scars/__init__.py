"""SCARS: the formulas against what is really moved, and what coalescing and a cache are worth."""
