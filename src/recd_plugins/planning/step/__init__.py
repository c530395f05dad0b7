"""The price of a whole step: what the ledger counts, and what a rank computes beside it.

`compute` has the seconds of dense layers, poolings and reading; `step_forecast` adds them to a
ledger, and says what hides beside what.
"""
