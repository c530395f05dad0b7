"""The price of a whole step: what the ledger counts, and what a rank computes beside it."""
