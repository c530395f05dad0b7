"""Generated sessions: the dataset, and the laws that its rows are drawn from."""
