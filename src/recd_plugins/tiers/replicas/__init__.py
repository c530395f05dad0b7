"""Replicas, the copies of hot rows.

    a collection's, under one tier plan, by group of tables    group_replicas
      the rows of a tier that a rank holds                      tier_rows
      which rank of a node has which row of a tier              tier_layout

A batch keeps the `Replicas` that it was routed by.
"""
