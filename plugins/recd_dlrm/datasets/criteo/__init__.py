"""Criteo's click logs: the dataset, its raw rows, its vocabularies."""
