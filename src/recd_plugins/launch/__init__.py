"""Starts the ranks of one machine, joins them over loopback, ends them with their parent, and says
which of them fail. It also says which cores and how much memory they may use, and what the
system says of a process."""
