"""What a run tells of itself: metrics, what a step costs, runs side by side."""
