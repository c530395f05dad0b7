"""O3: converters of batches to IKJTs, and the advisor that chooses feature groups."""
