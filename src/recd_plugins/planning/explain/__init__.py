"""Why a plan is as it is, for a person to read.

What each tier takes, costs and saves: `plan_report`, which `recd plan` prints, with `why_not_more`
of each table. The price of one row with its formulas: `price_list`, for `recd explain`. Numbers and
tables as people read them: `words`.
"""
