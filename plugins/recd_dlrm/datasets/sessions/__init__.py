"""Generated sessions: the dataset, and the laws from which its rows are drawn."""
