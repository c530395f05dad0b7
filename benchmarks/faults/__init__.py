"""Faults: what is done to the project on purpose, and what it promises all the same.

docs/reliability.md has the promises. A kind of fault is a file that draws cases from a seed."""
