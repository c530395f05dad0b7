"""Benchmarks: `python -m benchmarks.<suite> [--quick] [--json]`."""
