"""The kit that plugin authors test with. As a pytest plugin it provides `gloo_pool`.

`gloo` runs a test on ranks, `parity` compares two trainings, and `conformance` checks that a
plugin's record keeps its slot's contract.
"""
