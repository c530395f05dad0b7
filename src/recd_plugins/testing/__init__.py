"""The kit that plugin authors test with; as a pytest plugin it brings `gloo_pool`.

`gloo` runs a test on ranks, `parity` compares two trainings, `conformance` checks that
a plugin's record keeps its slot's contract.
"""
