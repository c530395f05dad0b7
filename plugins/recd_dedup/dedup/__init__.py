"""O3: batches to IKJTs: converters, and the advisor of groups."""
