"""The measures of a run: its metrics, the cost of a step, and runs side by side."""
