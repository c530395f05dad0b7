"""SCARS: the formulas against what really moves, and what coalescing and a cache are worth."""
