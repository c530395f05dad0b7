"""Where access distributions come from: batches, traces, formulas; and how two differ."""
