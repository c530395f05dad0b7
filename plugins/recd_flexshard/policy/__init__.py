"""The policy of how many rows each tier takes: functions from prices to sizes.

`offers` prices each row in each tier, and `goals` chooses by them: `breakpoints` are the paper's,
down the rows of all tables, and `optimum` is the frontier of memory against time. For the goal
auto, `search` tries the `candidates` of all ways that ids and rows can travel, by their
`sized_ledgers`; `best_so_far` has the rules by which one takes another's place, and
`considered_plans` reports what was weighed for each collection.
"""
