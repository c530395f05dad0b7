"""Benchmarks: `python -m benchmarks` runs all that are kept; `python -m benchmarks.<suite>` one."""
