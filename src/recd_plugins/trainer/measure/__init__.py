"""The measures of a run: metrics, what a step costs, runs side by side."""
