"""Tier plans: which rows of each table have replicas, and where.

    how many rows of a table each tier takes            table_sizes
      of the rows of all tables in one order             merged_rows
    the plan of such sizes, row by row                  plan_of_sizes
      as it is kept in a file                            tier_plan
      what another plan changes                          plan_changes

A policy says how many rows; which ones these are, an access distribution says, or the policy.
"""
